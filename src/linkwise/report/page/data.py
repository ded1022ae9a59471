"""The page's one value, computed by the functions that plan: nothing is counted here a second time."""

import math
from collections.abc import Mapping, Sequence

from linkwise._version import __version__
from linkwise.core.chain import Chain
from linkwise.diagnose.diagnose import diagnose
from linkwise.diagnose.types import Findings
from linkwise.measure.lab.run import LabResult
from linkwise.plan import handoff_types
from linkwise.plan.traffic import traffic
from linkwise.plan.traffic_types import Traffic
from linkwise.plan.types import Plan
from linkwise.report.page import others
from linkwise.report.page.chains import Writer, book_chains, book_figures, book_textbook
from linkwise.report.page.faults import faults
from linkwise.report.page.layouts import Searched, layouts
from linkwise.report.page.memory import memory
from linkwise.report.page.observed import compare
from linkwise.report.page.picture import CHAINED, Counted, picture
from linkwise.report.page.steps import STEPS, At, at, sizes, step_time
from linkwise.report.page.types import Figure, Page, StepTime
from linkwise.report.page.used import of_evidence, without_calls
from linkwise.report.plan import screen
from linkwise.report.text import LABEL
from linkwise.trace.gather import Evidence

_MANY = 256  # devices beyond which the slider has fewer positions


def page_data(
    plan: Plan,
    *,
    handoff: handoff_types.Handoff | None = None,
    handoff_chains: Mapping[str, Chain] | None = None,
    traffics: Sequence[tuple[str, Traffic]] = (),
    evidence: Evidence | None = None,
    findings: Findings | None = None,
    lab: LabResult | None = None,
    used: Sequence[str] = (),
    searched: Searched | None = None,
) -> Page:
    """Everything the page shows of a plan.

    handoff: what moving KV takes on the plan's cluster; handoff_chains: of its figures. traffics: by name, steps
    counted at another placement. evidence: what ran, to hold against the plan. findings: what to mark. lab:
    what its links counted while the evidence was written. used: what stands beside the plan, in words.
    searched: the search that made the plan, so that it is not made again; None = it is.
    """
    writer = Writer()
    batches = sizes(plan) if plan.cluster.size <= _MANY else sizes(plan, 6)
    own = batches.index(plan.chosen.point.batch)
    moments = [
        at(plan, step, batch) for step in STEPS for batch in (batches if step != "prefill" else batches[own : own + 1])
    ]
    times = tuple(map(step_time, moments))
    counted = [_counted(moment, time, batches[own]) for moment, time in zip(moments, times, strict=True)]
    # Without calls nothing is held against the plan; what else the evidence says is a diagnosis' to find.
    alone = evidence is not None and findings is None and without_calls(evidence)
    diagnosed = diagnose(evidence, plan) if evidence is not None and alone else None
    found = findings or diagnosed
    marks = faults(found, plan) if found else ()
    turns = {time.step: time.interval_s for time in times if time.batch == batches[own]}
    beside = [others.traffic(name, one, turns[one.step], plan) for name, one in traffics]
    beside += [others.handoff(handoff, plan)] if handoff else []
    counted += beside
    drawn = picture(plan, counted, marks, writer)
    figures = book_figures(plan, batches, writer)
    carried = book_chains("handoff.", handoff_chains or {}, writer)
    tried, left_out = layouts(plan, searched)
    decode = next(one.links for one in counted if one.step == "decode" and one.batch == batches[own])
    observed = compare(evidence, plan, decode, lab) if evidence else None
    targets = plan.workload.targets
    return Page(
        version=__version__,
        title=f"{plan.model.name} · {plan.replicas} x {plan.layout} · {plan.cluster.name}",
        lead=_lead(plan),
        calibration=plan.calibration,
        batches=batches,
        plan=own,
        steps=(*STEPS, *(one.step for one in beside)),
        figures=figures + carried,
        textbook=book_textbook(plan, writer),
        book=writer.book(),
        picture=drawn,
        times=times,
        memory=memory(plan),
        layouts=tried,
        layouts_left_out=left_out,
        targets=tuple((n, v) for n, v in (("ttft_s", targets.ttft_s), ("tpot_s", targets.tpot_s)) if v is not None),
        observed=observed,
        faults=marks,
        notes=tuple(_stale(plan, figures, own)),
        used=(*used, *(of_evidence(evidence, observed, diagnosed) if evidence else ())),
    )


def _counted(moment: At, time: StepTime, own: int) -> Counted:
    found = traffic(moment.plan, moment.step)
    explained = moment.plan if moment.plan.cluster.size <= CHAINED or moment.batch == own else None
    # Stages work on different microbatches, so the bytes of all of them cross in one turn of the busiest.
    return Counted(moment.step, moment.batch, time.interval_s, found.links, found.busiest_by_time, explained)


def _lead(plan: Plan) -> tuple[tuple[str, str], ...]:
    """The plan's first screen as (label, words); what is about the terminal is left out."""
    found = []
    for line in screen(plan):
        label, words = line[:LABEL].strip(), line[LABEL:].strip()
        if line.startswith("note: "):
            label, words = "note", line.removeprefix("note: ")
        elif line.startswith(plan.model.name):
            label, words = "what", line
        if label != "more":
            found.append((label, words))
    return tuple(found)


def _stale(plan: Plan, figures: Sequence[Figure], own: int) -> list[str]:
    """Whether the file's figures follow from its inputs."""
    now = {f.path: f.values[own if len(f.values) > 1 else 0] for f in figures}
    other = [path for path, stored in plan.figures.items() if not _same(now.get(path), stored)]
    if not other:
        return []
    return [
        f"{len(other)} figures of the file do not follow from its inputs, such as {other[0]}: it was edited, or written"
        " by another version; the page shows what the inputs give"
    ]


def _same(value: float | None, stored: float) -> bool:
    return value is not None and math.isclose(value, stored, rel_tol=1e-9)

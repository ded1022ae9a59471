"""Whether a plan's figures are those its own inputs give: what is timed again later has to be what was planned."""

import math
from typing import Any

from linkwise._version import __version__
from linkwise.core.errors import InputError
from linkwise.core.quantity import value_of
from linkwise.engine.base import Resolved
from linkwise.plan.engine_of import engine_of
from linkwise.plan.evaluate import evaluate
from linkwise.plan.explain import subject
from linkwise.plan.figures import figures, step_times
from linkwise.plan.interval import trust
from linkwise.plan.ledger import ledger
from linkwise.plan.types import Candidate, Ledger, Plan

_CLOSE = 1e-9
# Of all replicas, whose number is nobody's input: a program may ask for a plan with more of them.
_OF_ALL = {"deployment_rate_per_s"}


def agree(plan: Plan, where: str) -> None:
    """Raises InputError naming the first figure of a plan that its model, cluster, options and calibration do not give.

    A plan of another version of linkwise is let pass: its formulas were others.
    """
    if plan.version != __version__:
        return
    try:
        resolved, memory, found = _recomputed(plan)
    except InputError as error:  # what the inputs say together cannot be
        at = f"{where}: field {error.where}" if error.where else where
        raise InputError(error.message, where=at, expected=error.expected, hint=error.hint) from None
    for name in resolved.__struct_fields__:
        _same(where, f"resolved.{name}", getattr(plan.resolved, name), getattr(resolved, name))
    _same(where, "ledger.ranks", len(plan.ledger.ranks), len(memory.ranks))
    for number, (mine, given) in enumerate(zip(plan.ledger.ranks, memory.ranks, strict=True)):
        for kind in ("weights", "kv"):
            _same(where, f"ledger.ranks[{number}]: {kind}", mine.bytes_of(kind), given.bytes_of(kind))
        for name in ("budget_bytes", "kv_bytes", "kv_tokens", "requests"):
            _same(where, f"ledger.ranks[{number}].{name}", getattr(mine, name), getattr(given, name))
    for path in sorted((found.keys() | plan.figures.keys()) - _OF_ALL):
        _same(where, f"figures.{path}", plan.figures.get(path), found.get(path))
    for name in ("tpot_s", "ttft_s"):
        if name in found:
            _same(where, f"chosen.point.{name}", getattr(plan.chosen.point, name), found[name])
    _timed(plan, where)
    settled = _settled(plan, memory)
    if settled is not None:
        _same(where, "chosen.max_rate_per_s", plan.chosen.max_rate_per_s, settled.max_rate_per_s)
        point = plan.chosen.point
        for name in ("rate_per_s", "tokens_per_s", *(("at_hand",) if point.at_hand else ())):
            _same(where, f"chosen.point.{name}", getattr(point, name), getattr(settled.point, name))


def _timed(plan: Plan, where: str) -> None:
    """Steps, and how far their times can be trusted."""
    about, point = subject(plan), plan.chosen.point
    given = step_times(about)
    for step, stored, now in zip(
        ("decode_time", "prefill_time"), (plan.decode_time, plan.prefill_time), given, strict=True
    ):
        for name in ("batch", "step_s", "compute_s", "comm_s", "host_s", "bubble"):
            _same(where, f"{step}.{name}", getattr(stored, name), getattr(now, name))
        for name in sorted(stored.parts.keys() | now.parts.keys()):
            _same(where, f"{step}.parts.{name}", stored.parts.get(name), now.parts.get(name))
    sure = trust(point.tpot_s, point.ttft_s, about._replace(replicas=plan.chosen.replicas), point.batch)
    for name in ("tpot", "ttft"):
        own, known = getattr(plan.trust, name, None), getattr(sure, name)
        for end in ("low_s", "high_s"):
            _same(where, f"trust.{name}.{end}", getattr(own, end, None), getattr(known, end, None))


def _settled(plan: Plan, memory: Ledger) -> Candidate | None:
    """Where the layout settles; None where a target is missed on the devices that the ranks lie on."""
    about = subject(plan)
    case = about.model, about.cluster, about.engine, about.options, about.workload
    count = plan.chosen.replicas
    found = evaluate(*case, plan.layout, memory, count, about.places, exact=True)
    return found if isinstance(found, Candidate) else None


def _recomputed(plan: Plan) -> tuple[Resolved, Ledger, dict[str, Any]]:
    """Settings, memory and figures from the plan's inputs alone."""
    engine = engine_of(plan)
    return (
        engine.resolve(plan.options, plan.model, plan.cluster.accelerator, plan.layout),
        ledger(plan.model, plan.cluster, engine, plan.layout, plan.options, plan.workload),
        # Of as many replicas as the point is of: a program may ask for a plan with more of them.
        {path: value_of(x) for path, x in figures(subject(plan)._replace(replicas=plan.chosen.replicas)).items()},
    )


def _same(where: str, field: str, stored: Any, given: Any) -> None:
    both = isinstance(stored, int | float) and isinstance(given, int | float)
    if stored == given or (both and math.isclose(stored, given, rel_tol=_CLOSE)):
        return
    raise InputError(
        f"field {field}: {_word(stored)}", where=where,
        expected=f"{_word(given)}, as the plan's model, cluster, options and calibration give it",
        hint="It was edited, or written by another state of linkwise: make it again with linkwise plan",
    )  # fmt: skip


def _word(value: object) -> str:
    return f"{value:.10g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)[:60]

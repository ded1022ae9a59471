"""The commands as Python calls, with the same names and settings.

    import linkwise
    plan = linkwise.plan("llama-3.3-70b", on="2x4xh100-sxm", isl=4000, osl=500, rate="6/s", ttft="1s", tpot="40ms")
    plan.layout, plan.replicas, plan.figures["decode.all_reduce.sent_bytes"]

Every call takes text (`on="8xh100-sxm"`) or values (a `Model`, a `Cluster`), and returns a frozen value: data a program
reads, with a repr a person reads, written to a file by `save` and read by `load`. Bad input raises `InputError`.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack

import msgspec

from linkwise import doors
from linkwise.answers import Fit, Handoff, NoPlan, Plan, Traffic, as_kind, called, load, plan_of, save
from linkwise.api_handoff import explain_handoff, handoff
from linkwise.api_task import Task, cluster_of, task_of
from linkwise.cluster.types import Cluster
from linkwise.core.errors import InputError
from linkwise.core.files import FilePath
from linkwise.engine.base import Engine
from linkwise.model.types import Model
from linkwise.plan import types
from linkwise.settings import Settings
from linkwise.workload.types import Targets

if TYPE_CHECKING:
    from linkwise.cluster.types import Accelerator
    from linkwise.engine.registry import Known
    from linkwise.model import catalogue
    from linkwise.plan.explain import Explanation
    from linkwise.plan.textbook import Worked
    from linkwise.report.compare import Comparison

__all__ = ["Fit", "Handoff", "NoPlan", "Plan", "Traffic", "load", "save"]
__all__ += ["compare", "engines", "explain", "fit", "handoff", "hardware", "models", "plan", "traffic"]


def fit(
    model: FilePath | Model | None = None,
    on: FilePath | Cluster = "",
    *,
    engine: str | Engine | None = None,
    from_command: str = "",
    from_manifest: FilePath = "",
    from_running: str = "",
    **settings: Unpack[Settings],
) -> Fit:
    """Does it fit, and what is the first thing that does not?

    model: catalogue name, folder, Hugging Face id or `Model`. on: shorthand ("2x8xh100-sxm"), YAML file or `Cluster`.
    engine: "vllm" (when nothing else says one), "vllm@0.11", ... from_command, from_manifest, from_running: as in
    `plan`. Raises InputError for anything malformed; "does not fit" is an answer, no error.
    """
    task = task_of(model, on, engine, settings, command=from_command, manifest=from_manifest, running=from_running)
    from linkwise.plan.fit import fit as decide

    found = decide(task.model, task.cluster, task.engine, task.options, task.workload, fixed=task.fixed)
    room = _room(task, found.ledger)
    return as_kind(Fit, msgspec.structs.replace(found, notes=(*found.notes, *task.notes, *room)))


def plan(
    model: FilePath | Model | None = None,
    on: FilePath | Cluster = "",
    *,
    engine: str | Engine | None = None,
    from_command: str = "",
    from_manifest: FilePath = "",
    from_running: str = "",
    price: str = "",
    prefill_on: FilePath | Cluster | None = None,
    pareto: bool | None = None,
    replicas: int | None = None,
    **settings: Unpack[Settings],
) -> Plan | NoPlan:
    """How is it split, what does each link carry, how long does it take, and why this way?

    from_command: an engine's own launch command; from_manifest: a file that has one (Kubernetes, compose, or what
    `launch` wrote; FILE:NAME where it has several); from_running: a server's address. Its engine, model, degrees,
    replicas and options are planned as they run; a setting given beside it wins. engine: "vllm" when neither it nor a
    command says one; beside a command it may add the version. pareto: set what the devices offer side by side, with a
    choice for the targets; None = where there are targets, a price or other devices for prefill groups (prefill_on).
    price: USD per device hour, such as "2.5" or "h100-sxm=2.5,h200-sxm=3.4". replicas: so many, in place of what the
    load takes or a command has; other devices stay unused, which a note says. Other arguments as in `fit`. NoPlan says
    what is short when none is feasible.
    """
    from linkwise.api_frontier import beside, frontier_of
    from linkwise.api_pools import commands
    from linkwise.plan.build import plan as build
    from linkwise.plan.fit import Case
    from linkwise.plan.offers import Seen, collect
    from linkwise.plan.types import NoPlan as Short

    doors.of_type(replicas, (int, type(None)), "replicas", "how many, or None")
    task = task_of(model, on, engine, settings, command=from_command, manifest=from_manifest, running=from_running)
    asked = Case(task.model, task.cluster, task.engine, task.options, task.workload)
    wanted = bool(price or prefill_on or asked.workload.targets != Targets()) if pareto is None else pareto
    seen: list[Seen] = []
    elsewhere = None if prefill_on is None else cluster_of(prefill_on)
    with beside(simulates=wanted) as aside:
        found = build(
            *asked, fixed=task.fixed, replicas=task.replicas if replicas is None else replicas,
            seen=collect(seen, asked) if wanted else None, other=aside,
            searched=(lambda: aside.begin(asked, seen, price, elsewhere)) if wanted and aside else None,
        )  # fmt: skip
        if wanted:
            own = None if isinstance(found, Short) else found.chosen
            front = frontier_of(asked, seen, price=price, prefill_on=elsewhere, own=own, other=aside)
            today = {
                "engine": engine, "from_command": from_command, "from_manifest": from_manifest,
                "from_running": from_running,
            }  # fmt: skip
            typed = commands(front, asked.workload, model, on, prefill_on, settings, today)
            found = msgspec.structs.replace(found, frontier=msgspec.structs.replace(front, commands=typed))
    if task.replicas is None:
        return _answer(msgspec.structs.replace(found, notes=(*found.notes, *task.notes)))
    freely = _freely(found, build(task.model, task.cluster, task.engine, found.options, task.workload))
    room = () if isinstance(found, Short) else _room(task, found.ledger)
    return _answer(msgspec.structs.replace(found, notes=(*found.notes, *task.notes, *room, *freely)))


def _room(task: Task, ledger: "types.Ledger | None") -> tuple[str, ...]:
    """Whether a running server has the KV room that the ledger expects of it."""
    from linkwise.api_existing import contradiction

    return contradiction(task.model, ledger, task.kv_tokens)


def _freely(today: "types.Plan | types.NoPlan", free: "types.Plan | types.NoPlan") -> tuple[str, ...]:
    """What the planner would choose in place of a command's layout, beside what that delivers."""
    if isinstance(free, types.NoPlan):
        return ()
    best = f"{free.replicas} x ({free.layout}): {free.chosen.max_rate_per_s * free.replicas:.2f} requests/s at most"
    if isinstance(today, types.NoPlan):
        return (f"a free choice for the same devices: {best}",)
    if (free.layout, free.replicas) == (today.layout, today.replicas):
        return ("a free choice for the same devices is this same layout",)
    now = f"{today.replicas} x ({today.layout}): {today.chosen.max_rate_per_s * today.replicas:.2f}"
    return (f"a free choice for the same devices would be {best}, against {now} as the command has it",)


def explain(source: "FilePath | types.Plan | types.Fit | Handoff", path: str = "") -> "Explanation | Worked":
    """The chain behind one figure of a plan, a fit or a handoff (value or file).

    "seed:<id>" as source gives a worked calculation of the textbook instead: all of it, or the one figure `path`.
    """
    kinds = (str, os.PathLike, types.Plan, types.NoPlan, types.Fit, Handoff)
    doors.of_type(source, kinds, "source", "a plan, a fit or a handoff, its file, or seed:ID")
    doors.of_type(path, str, "path", "the path of a figure")
    if isinstance(source, str) and source.startswith("seed:"):
        from linkwise.plan.explain import Explanation
        from linkwise.plan.textbook import chain

        worked = chain(source.removeprefix("seed:"))
        return Explanation(path, worked.chain(path)) if path else worked
    value = load(source) if isinstance(source, str | os.PathLike) else source
    if isinstance(value, types.NoPlan):
        raise InputError(
            f"no figure {path!r}: there is no plan to explain. {value.nearest.layout} came nearest: "
            f"{value.nearest.shortfall.reason}",
            where="explain",
            expected="a plan, a fit or a handoff",
        )
    if isinstance(value, Handoff):
        return explain_handoff(value, path)
    if isinstance(value, types.Plan) and path.startswith("link:"):
        from linkwise.plan.link_chain import explain_link

        return explain_link(value, path)
    from linkwise.plan.explain import explain as chain_behind

    return chain_behind(value, path)


def compare(a: "FilePath | types.Plan", b: "FilePath | types.Plan") -> "Comparison":
    """Two plans (values or files) side by side: memory, bytes, time, failure boundary."""
    from linkwise.report.compare import compare as beside

    return beside(plan_of(a), plan_of(b), names=(called(a, "a"), called(b, "b")))


def traffic(
    source: "FilePath | types.Plan",
    *,
    step: str = "decode",
    placement: tuple[int, ...] | None = None,
    replica: int | None = None,
    algorithms: Mapping[str, str] | None = None,
) -> Traffic:
    """Bytes on every link in one step of a plan (value or file), and which link is busy longest.

    step: prefill, decode or mixed. placement: devices in rank order, replica after replica (None = the plan's own).
    replica: count this one alone. algorithms: by kind, in place of the plan's, such as {"all_reduce": "tree"}.
    """
    from linkwise.plan.traffic import traffic as count

    return as_kind(Traffic, count(plan_of(source), step, placement, replica=replica, algorithms=algorithms))


def models() -> "tuple[catalogue.Entry, ...]":
    """Models known by name, with the sources of their facts."""
    from linkwise.model.catalogue import entries

    return entries()


def hardware() -> "tuple[Accelerator, ...]":
    """Accelerators known by name, with source and confidence."""
    from linkwise.cluster.presets import hardware as known

    return tuple(known())


def engines() -> "tuple[Known, ...]":
    """Engines known, at their newest known version: what is supported, where each figure comes from."""
    from linkwise.engine.registry import known

    return tuple(known())


def _answer(found: types.Plan | types.NoPlan) -> "Plan | NoPlan":
    return as_kind(Plan, found) if isinstance(found, types.Plan) else as_kind(NoPlan, found)

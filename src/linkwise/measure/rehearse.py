"""A plan's own communication, run without weights: same groups, order, kinds and bytes, predicted against measured.

Ops run in the plan's order, each as often as the step calls it, all its groups at once (replicas, tensor groups of a
stage); a barrier of all ranks stands before each op, outside its time.

What runs is the library under torch.distributed, so that is what is predicted. Where the plan's engine takes kernels of
its own (one-shot all-reduces) the plan's step is priced with those, and its times are not these.
"""

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from linkwise.cluster.types import Cluster, Tier
from linkwise.core.errors import InputError
from linkwise.core.layout import groups
from linkwise.core.schema import Frozen
from linkwise.dist.calls import Prepared, prepare
from linkwise.dist.groups import Named, Session, Team, barrier, create, settled, share
from linkwise.dist.observer import Seen, observe
from linkwise.engine import registry
from linkwise.measure.calibration import LIBRARY
from linkwise.measure.sweep import Progress, silent
from linkwise.plan.collective_time import estimate, floor_us
from linkwise.plan.collective_ways import IMPLEMENTATIONS, Group, ways
from linkwise.plan.collectives import wire
from linkwise.plan.time import Span, worst_spans
from linkwise.plan.types import Op, Plan

REHEARSAL_SCHEMA = "linkwise.rehearsal/1"
STEPS = ("decode", "mixed", "prefill")
PASSES = 3
_KERNELS = frozenset({"one_shot", "two_shot", "by size"})  # of an engine; all else is the library's
# What a rank's part of a call is seen as.
_SEEN = {"send_recv": ("send", "recv")}


class OpTime(Frozen, frozen=True, kw_only=True):
    """One op of the step. calls: in the step. groups, ranks: how many called it at once, ranks of one.

    S_bytes: planned; seen_bytes: as each rank's process group was seen to be asked for it; as_planned: kind, group and
    bytes were the plan's (whole elements). predicted_s, measured_s: of one call, the best of PASSES; spread_s: by how
    much the median pass took longer. transport: whose calls were predicted, as the planner names them.
    """

    role: str
    kind: str
    group: str
    stage: int
    ranks: int
    groups: int
    calls: int
    S_bytes: float
    seen_bytes: int
    as_planned: bool
    transport: str
    predicted_s: float
    measured_s: float
    spread_s: float

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured_s / self.predicted_s if self.predicted_s else float("inf")


class Rehearsal(Frozen, frozen=True, kw_only=True):
    """predicted_s, measured_s: all ops of the step, stage after stage. library: what ran. calibration: what the
    prediction rests on."""

    schema: str = REHEARSAL_SCHEMA
    model: str
    cluster: str
    layout: str
    replicas: int
    step: str
    library: str
    calibration: str
    ops: tuple[OpTime, ...]
    predicted_s: float
    measured_s: float
    notes: tuple[str, ...] = ()

    @property
    def as_planned(self) -> bool:
        return all(op.as_planned for op in self.ops)


def ops_of(plan: Plan, step: str) -> tuple[Op, ...]:
    """The ops of a step. Raises InputError for an unknown step, or one without communication."""
    if step not in STEPS:
        raise InputError(f"step {step!r}", where="--step", expected=", ".join(STEPS))
    found: tuple[Op, ...] = getattr(plan, step)
    if not found:
        raise InputError(f"{plan.layout} communicates nothing in {step}", where="measure", expected="a plan of groups")
    return found


def callers(plan: Plan, op: Op, replicas: int) -> tuple[Named, ...]:
    """The groups that make an op's call, as world ranks: those of its stage; of a pipeline, a stage and the next."""
    found = groups(plan.layout, op.group)
    if op.group == "pp":
        found = [ranks[op.stage : op.stage + 2] for ranks in found]
    else:
        found = [ranks for ranks in found if ranks[0] // plan.layout.stage_size == op.stage]
    size = plan.layout.size
    return tuple(Named(op.group, tuple(r + copy * size for r in ranks)) for copy in range(replicas) for ranks in found)


def transport_of(library: str, cluster: Cluster, tier: Tier) -> str:
    """Whose figures stand for what runs over a tier: the library's own where a calibration has them, else those of the
    planner's library. library: by its name first, as a session or a calibration has it: gloo (torch 2.9)."""
    own = library.split(maxsplit=1)[0]
    measured = f"{own}.{tier.value}" in cluster.constants.latency_us and own not in IMPLEMENTATIONS
    return own if measured else LIBRARY


def predict(op: Op, place: Span, cluster: Cluster, transport: str) -> float:
    """Seconds of one call of an op over the transport that a rehearsal runs: calls in a row, launched from the host.

    place: where the op's groups lie. A single call is waited for, so its launch counts; a library on the host waits for
    every call.
    """
    group = Group(place.tier, op.size, place.per_node, place.nodes, place.share)
    lowest = floor_us(cluster, transport, op.kind, group) if op.repeat == 1 and transport == LIBRARY else 0.0
    moved = wire(op.kind, float(op.S_bytes), op.size).sent
    seconds = float(estimate(ways(op.kind, group, cluster, transport), moved, lowest).seconds)
    if op.sizes:  # an uneven exchange ends with its busiest rank
        seconds *= max(abs(float(size)) for size in op.sizes) * len(op.sizes) / float(op.S_bytes)
    return seconds


def transport_notes(plan: Plan, ops: Sequence[Op], library: str, transports: Sequence[str]) -> tuple[str, ...]:
    """What is held against what, where a reader could take one thing for another. transports: of each op."""
    ran, named = library.split(maxsplit=1)[0], list(dict.fromkeys(transports))
    found = [
        f"predicted are calls of {', '.join(named)} as torch.distributed makes them ({plan.cluster.constants.label})"
    ]
    if any(one != ran for one in named):
        found.append(f"no figures of {ran}, which ran: linkwise measure -o FILE, then --calibration FILE predicts it")
    convention = registry.get(plan.engine, plan.engine_version).convention_for(plan.model, plan.layout, plan.options)
    reduces = [op for op in ops if op.kind == "all_reduce"]
    kernels = {convention.all_reduce} if reduces else set()
    kernels |= {convention.all_reduce_small} if any(op.algorithm in _KERNELS for op in reduces) else set()
    own = ", ".join(sorted(kernels - {LIBRARY}))
    if own:
        found.append(
            f"the plan's step counts all-reduces by {plan.engine}'s own kernels ({own}), which a rehearsal does not"
            " run: its times are no check of those"
        )
    return tuple(found)


def rehearse(
    session: Session,
    plan: Plan,
    step: str,
    replicas: int,
    *,
    library: str,
    notes: tuple[str, ...] = (),
    progress: Progress = silent,
) -> Rehearsal | None:
    """Run a step's ops on every rank; the result on rank 0, None on the others."""
    ops = ops_of(plan, step)
    by_op = [callers(plan, op, replicas) for op in ops]
    teams = create(session, list(dict.fromkeys(named for each in by_op for named in each)))
    mine: list[dict[str, Any]] = []
    for number, (op, named) in enumerate(zip(ops, by_op, strict=True)):
        words = f"{op.role}: {op.kind} in {op.group} of {op.size}"
        progress(number, len(ops), words)
        session.watch.at(words)
        mine.append(_run(session, op, next((teams[one] for one in named if one in teams), None)))
    gathered = share(session, "rehearsal", mine)
    if gathered is None:
        return None
    places = worst_spans(plan.layout, plan.cluster, plan.rank_grid)
    transports = [transport_of(library, plan.cluster, places[op.group].tier) for op in ops]
    found = []
    for at, (op, named, transport) in enumerate(zip(ops, by_op, transports, strict=True)):
        parts = [each[at] for each in gathered if each[at]]
        passes = [max(part["seconds"][turn] for part in parts) for turn in range(PASSES)]
        best = min(passes)
        found.append(
            OpTime(
                role=op.role, kind=op.kind, group=op.group, stage=op.stage, ranks=op.size, groups=len(named),
                calls=op.repeat, S_bytes=float(op.S_bytes), seen_bytes=max(part["bytes"] for part in parts),
                as_planned=all(part["as_planned"] for part in parts), transport=transport,
                predicted_s=predict(op, places[op.group], plan.cluster, transport), measured_s=best,
                spread_s=median(passes) - best,
            )
        )  # fmt: skip
    return Rehearsal(
        model=plan.model.name,
        cluster=plan.cluster.name,
        layout=str(plan.layout),
        replicas=replicas,
        step=step,
        library=library,
        calibration=plan.cluster.constants.label,
        ops=tuple(found),
        predicted_s=sum(op.calls * op.predicted_s for op in found),
        measured_s=sum(op.calls * op.measured_s for op in found),
        notes=(*transport_notes(plan, ops, library, transports), *notes),
    )


def _run(session: Session, op: Op, team: Team | None) -> dict[str, Any]:
    """This rank's part of an op: seconds of one call by pass, and what its process group was seen to do."""
    call = _prepared(session, op, team) if team else None
    seen: list[Seen] = []
    if call and team:
        with observe() as seen:
            call.run()
        settled(session)
    seconds = []
    for _ in range(PASSES):
        barrier(session)
        if call:
            start = time.perf_counter()
            for _ in range(op.repeat):
                call.run()
            settled(session)
            seconds.append((time.perf_counter() - start) / op.repeat)
    if not call or not team:
        return {}
    planned = [one for one in seen if one.kind in _SEEN.get(op.kind, (op.kind,)) and one.group == op.group]
    exact = all(one.S_bytes == call.S_bytes and one.members == team.members for one in planned)
    # A tensor holds whole elements, one share a rank: S may differ from the plan's by less than that.
    near = abs(call.S_bytes - float(op.S_bytes)) <= op.size * (call.S_bytes / call.elements) / 2 + 1e-9 or bool(
        op.sizes
    )
    return {
        "seconds": seconds,
        "bytes": max((one.S_bytes for one in seen), default=0),
        "as_planned": bool(planned) and len(planned) == len(seen) and exact and near,
    }


def _prepared(session: Session, op: Op, team: Team) -> Prepared:
    # An uneven exchange is uneven by destination; its way back comes from there.
    back = -1.0 if op.role.endswith(".combine") else 1.0
    return prepare(session, team, op.kind, float(op.S_bytes), op.dtype, tuple(back * float(s) for s in op.sizes))

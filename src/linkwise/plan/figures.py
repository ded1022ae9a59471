"""Every figure of a plan by path, computed by the functions that plan: on plain numbers to store them, on recorded
numbers to explain them."""

from collections.abc import Iterable
from typing import NamedTuple

from linkwise.cluster.types import Cluster
from linkwise.core.layout import Layout
from linkwise.core.quantity import Given, Num, named, plain, times, total, value_of
from linkwise.engine.base import Engine, Options
from linkwise.model.types import Model
from linkwise.plan.batch import Batch
from linkwise.plan.collectives import bubble
from linkwise.plan.ledger import ledger, ledger_figures
from linkwise.plan.operate import (
    Operation,
    at_work,
    decode_step,
    in_flight,
    mixed_step,
    operation,
    prefill_step,
    rate_of_seats,
    seats,
)
from linkwise.plan.rounds import waiting
from linkwise.plan.step import step_ops
from linkwise.plan.time import GroupTime, Span, group_seconds, op_seconds, place_of, worst_spans
from linkwise.plan.types import Op, StepTime
from linkwise.workload.types import Workload


class Subject(NamedTuple):
    """What a plan's figures are computed from. grid: devices of each replica; None = ranks on devices in order.
    at_hand: requests on average, which `batch` is rounded up from; 0 = as many."""

    model: Model
    cluster: Cluster
    engine: Engine
    layout: Layout
    options: Options
    workload: Workload
    batch: int
    replicas: int
    grid: tuple[tuple[int, ...], ...] | None = None
    at_hand: float = 0.0

    @property
    def places(self) -> dict[str, Span]:
        """Where the groups of each axis lie."""
        return worst_spans(self.layout, self.cluster, self.grid)


def batches(s: Subject, given: Given = plain) -> dict[str, Batch]:
    """The three steps of a plan: a prompt chunk, a decode step, and both in one."""
    limit = s.engine.resolve(s.options, s.model, s.cluster.accelerator, s.layout).max_batched_tokens
    batch = given("batch", s.batch, "requests", "requests decoding at once on the replica")
    return {
        "prefill": prefill_step(s.workload, limit, given),
        "decode": decode_step(s.workload, s.layout, s.options, batch, given),
        "mixed": mixed_step(s.workload, s.layout, s.options, limit, batch, given),
    }


def ops_of(s: Subject, batch: Batch, given: Given = plain) -> list[Op]:
    """The ops of one step at the plan's placement."""
    place = place_of(s.layout, s.places, s.cluster)
    return step_ops(s.model, s.layout, s.engine, batch, s.options, place=place, given=given)


def prefill_seconds(s: Subject, given: Given = plain) -> GroupTime:
    """One prompt chunk alone."""
    step = batches(s, given)["prefill"]
    return group_seconds(s.model, s.layout, s.engine, s.cluster, step, s.options, s.places, given=given)


def step_times(s: Subject) -> tuple[StepTime, StepTime]:
    """A decode step of the batch, and a prompt chunk."""
    at = operation(s.model, s.layout, s.engine, s.cluster, s.workload, s.options, s.batch, s.places)
    return _step_time(s, at.decode, s.batch), _step_time(s, prefill_seconds(s), 1)


def _step_time(s: Subject, group: GroupTime, batch: int) -> StepTime:
    busiest = max(group.stages, key=lambda stage: float(stage.step))
    return StepTime(
        batch=batch,
        step_s=float(group.token),
        compute_s=float(sum(stage.compute for stage in group.stages)),
        comm_s=float(sum(stage.comm for stage in group.stages)),
        host_s=float(sum(stage.host for stage in group.stages)),
        bubble=float(bubble(s.layout.pp, in_flight(s.layout, s.options))),
        parts={name: float(part) for name, part in busiest.parts.items()},
    )


def figures(s: Subject, given: Given = plain) -> dict[str, Num]:
    """Every explainable figure: memory, then bytes, calls and time of each step, then what a replica delivers."""
    result = ledger_figures(s.model, s.cluster, s.engine, s.layout, s.options, s.workload, given)
    places = s.places
    whole, at = (
        operation(
            s.model, s.layout, s.engine, s.cluster, s.workload, s.options, batch, places, alike=s.replicas, given=given
        )
        for batch in (s.batch, s.at_hand or s.batch)
    )
    eager = s.options.eager or not s.engine.defaults.cuda_graphs
    convention = s.engine.convention_for(s.model, s.layout, s.options)
    for step, batch in batches(s, given).items():
        ops = ops_of(s, batch, given)
        result |= traffic_figures(step, ops)
        for op in ops:
            one = op_seconds(op, places[op.group], s.cluster, convention, eager=eager, given=given)
            result[f"{step}.{op.role}.time_s"] = named(f"{step}.{op.role}.time_s", times(op.repeat, one), "s")
    prefill = prefill_seconds(s, given)
    for step, group in (("decode", whole.decode), ("mixed", whole.mixed), ("prefill", prefill)):
        result |= _time_figures(step, group)
    result["tpot_s"] = named("tpot_s", at.tpot, "s")
    result["ttft_s"] = named("ttft_s", at.ttft + _seat(s, at, given), "s")
    share = at_work(s.workload, s.batch, s.replicas, given)
    rate = at.rate if share is None else at.rate * share
    note = "one replica, so many requests at hand" if share is None else "the mean of all replicas, idle ones too"
    result["rate_per_s"] = named("rate_per_s", rate, "requests/s", note)
    replicas = given("replicas", s.replicas, "", "plan")
    result["deployment_rate_per_s"] = named("deployment_rate_per_s", rate * replicas, "requests/s")
    return result


def _seat(s: Subject, at: Operation, given: Given) -> Num:
    """Seconds that requests which come at a rate wait for one of those that hold memory."""
    if s.workload.rate_per_s is None:
        return 0.0
    memory = ledger(s.model, s.cluster, s.engine, s.layout, s.options, s.workload)
    resolved = s.engine.resolve(s.options, s.model, s.cluster.accelerator, s.layout)
    taken = seats(memory, s.engine, s.workload, resolved, s.layout)
    most = rate_of_seats(s.model, s.layout, s.engine, s.cluster, s.workload, s.options, taken, s.places)
    return waiting(s.at_hand or s.batch, at.spread, at.rate, taken, most, s.replicas, given)


def traffic_figures(step: str, ops: Iterable[Op]) -> dict[str, Num]:
    """S, calls and bytes per rank and step: each role in the stage that sends most of it, each kind and the whole step
    in the stage that sends most in all."""
    by_stage: dict[int, list[Op]] = {}
    for op in ops:
        by_stage.setdefault(op.stage, []).append(op)
    result: dict[str, Num] = {f"{step}.sent_bytes": 0, f"{step}.calls": 0}
    if not by_stage:
        return result
    for op in sorted((op for found in by_stage.values() for op in found), key=_weight):
        result |= _role_figures(step, op)
    busiest = max(by_stage.values(), key=lambda found: sum(_weight(op) for op in found))
    kinds = sorted({op.kind for op in busiest})
    for kind in kinds:
        same = [op for op in busiest if op.kind == kind]
        for field in FIELDS:
            path = f"{step}.{kind}.{field}"
            terms = [_role_figures(step, op)[f"{step}.{op.role}.{field}"] for op in same]
            result[path] = named(path, total(terms), "B", "per rank and step, all roles of this kind")
        result[f"{step}.{kind}.calls"] = sum(op.repeat for op in same)
    path = f"{step}.sent_bytes"
    result[path] = named(path, total(result[f"{step}.{k}.sent_bytes"] for k in kinds), "B", "per rank and step")
    result[f"{step}.calls"] = sum(op.repeat for op in busiest)
    return result


FIELDS = ("sent_bytes", "recv_bytes", "useful_recv_bytes")


def _weight(op: Op) -> float:
    return float(value_of(op.wire_sent_bytes)) * op.repeat


def _role_figures(step: str, op: Op) -> dict[str, Num]:
    path = f"{step}.{op.role}"
    found = {
        f"{path}.S_bytes": named(f"{path}.S_bytes", op.S_bytes, "B", "one call, as the group sees it"),
        f"{path}.calls": op.repeat,
    }
    note = f"per rank, {op.repeat} calls" + (f" of stage {op.stage}" if op.stage else "")
    for field, value in zip(FIELDS, (op.wire_sent_bytes, op.wire_recv_bytes, op.useful_recv_bytes), strict=True):
        found[f"{path}.{field}"] = named(f"{path}.{field}", times(op.repeat, value), "B", note)
    return found


def _time_figures(step: str, group: GroupTime) -> dict[str, Num]:
    busiest = max(group.stages, key=lambda s: value_of(s.step))
    found = {
        f"{step}.step_s": group.token,
        f"{step}.stage_s": group.interval,
        f"{step}.compute_s": busiest.compute,
        f"{step}.comm_s": busiest.comm,
        f"{step}.host_s": busiest.host,
    }
    found |= {f"{step}.{name}.read_s": part for name, part in busiest.parts.items()}
    return {path: named(path, value, "s") for path, value in found.items()}


def textbook_figures(s: Subject, textbook: Engine) -> dict[str, float]:
    """The same traffic figures under the textbook convention, to stand beside the engine's own."""
    plain_subject = s._replace(engine=textbook)
    result: dict[str, float] = {}
    for step, batch in batches(s).items():
        found = traffic_figures(step, ops_of(plain_subject, batch))
        result |= {path: value_of(value) for path, value in found.items()}
    return result

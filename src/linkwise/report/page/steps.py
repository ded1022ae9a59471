"""The steps of a plan at several batches: where the time of each goes, by stage."""

from typing import NamedTuple

import msgspec

from linkwise.core.quantity import value_of
from linkwise.plan import step_work
from linkwise.plan.batch import Batch
from linkwise.plan.explain import subject
from linkwise.plan.figures import Subject, batches, ops_of
from linkwise.plan.inventory import inventory, stages
from linkwise.plan.operate import in_flight
from linkwise.plan.step import freeze
from linkwise.plan.time import group_seconds, op_seconds, work_of
from linkwise.plan.types import Plan
from linkwise.report.page.types import OpTime, StageTime, StepTime

STEPS = ("prefill", "decode", "mixed")
MOST = 10  # positions of the slider


class At(NamedTuple):
    """A step at a batch: the plan as it would be there, with its ops."""

    step: str
    batch: int
    plan: Plan


def sizes(plan: Plan, most: int = MOST) -> tuple[int, ...]:
    """Batches of the slider: powers of two up to what memory and engine hold, and the plan's own."""
    top = max(1, min(plan.ledger.requests, plan.resolved.max_seqs * plan.layout.dp_attn))
    found = {2**i for i in range(12) if 2**i < top} | {top}
    own = plan.chosen.point.batch
    others = sorted(found - {own})
    room = min(most - 1, len(others))
    # The smallest and the largest stay; between them evenly many are left out.
    keep = {others[round(i * (len(others) - 1) / max(1, room - 1))] for i in range(room)}
    return tuple(sorted({*keep, own}))


def at(plan: Plan, step: str, batch: int) -> At:
    """The plan with its ops at another batch: at its own, as it is."""
    if batch == plan.chosen.point.batch:
        return At(step, batch, plan)
    about = subject(plan)._replace(batch=batch)
    chosen = msgspec.structs.replace(plan.chosen, point=msgspec.structs.replace(plan.chosen.point, batch=batch))
    ops = freeze(ops_of(about, batches(about)[step]))
    return At(step, batch, msgspec.structs.replace(plan, chosen=chosen, **{step: ops}))


def step_time(one: At) -> StepTime:
    """Where the time of a step goes, by the functions that priced it."""
    plan = one.plan
    about = subject(plan)
    batch = batches(about)[one.step]
    group = group_seconds(about.model, about.layout, about.engine, about.cluster, batch, about.options, about.places)
    ops = _ops(about, batch)
    found: dict[tuple[object, ...], StageTime] = {}
    for stage, seconds in enumerate(group.stages):
        made = StageTime(
            stages=(stage,),
            parts={name: float(value_of(part)) for name, part in seconds.parts.items()},
            ops=ops.get(stage, ()),
            host_s=float(value_of(seconds.host)),
            step_s=float(value_of(seconds.step)),
        )
        key = (tuple(made.parts.items()), made.ops, made.step_s)
        before = found.get(key)
        found[key] = msgspec.structs.replace(before, stages=(*before.stages, stage)) if before else made
    return StepTime(
        step=one.step,
        batch=one.batch,
        token_s=float(value_of(group.token)),
        interval_s=float(value_of(group.interval)),
        in_flight=in_flight(plan.layout, plan.options),
        stages=tuple(found.values()),
    )


def _ops(about: Subject, batch: Batch) -> dict[int, tuple[OpTime, ...]]:
    """Ops by stage with the seconds of one call, and what they add to the step."""
    model, layout, engine, cluster, options = about.model, about.layout, about.engine, about.cluster, about.options
    eager = options.eager or not engine.defaults.cuda_graphs
    convention, places = engine.convention_for(model, layout, options), about.places
    stock, constants = inventory(model), engine.step_constants(cluster)
    works = [
        work_of(stock, stage, layout, engine, cluster, batch, options, places)
        for stage in stages(model, layout, engine)
    ]
    found: dict[int, list[OpTime]] = {}
    for op in ops_of(about, batch):
        one = float(value_of(op_seconds(op, places[op.group], cluster, convention, eager=eager)))
        # The op alone in the step: what is exposed of it adds up to what is exposed of all.
        alone = works[op.stage]._replace(calls=op.repeat, comm_s=op.repeat * one)
        made = OpTime(
            role=op.role,
            kind=op.kind,
            group=op.group,
            size=op.size,
            algorithm=op.algorithm,
            calls=op.repeat,
            S_bytes=float(value_of(op.S_bytes)),
            call_s=one,
            exposed_s=float(value_of(step_work.seconds(alone, constants).comm)),
        )
        found.setdefault(op.stage, []).append(made)
    return {stage: tuple(ops) for stage, ops in found.items()}

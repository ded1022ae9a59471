"""What the steps of many runs have to do, in one array each, so that a fit evaluates all runs at once."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from linkwise.engine.step_constants import StepConstants
from linkwise.plan.batch import Batch, Part
from linkwise.plan.inventory import Stage, inventory, stages
from linkwise.plan.step_work import CLASSES, Block, Work, seconds
from linkwise.plan.time import US, work_of, worst_spans
from linkwise.simulate.calibrate.case import Case
from linkwise.simulate.tables import Floats

if TYPE_CHECKING:
    from linkwise.simulate.calibrate.steps import Steps

_AT_ONCE = 100_000  # steps evaluated together


class Carried(NamedTuple):
    """What steps carry: rows that drew, prompts, their new tokens, tokens cached before those, cached tokens of the
    rows (sums over the lane that took longest), tokens of all lanes. Arrays."""

    rows: Floats
    prompts: Floats
    fresh: Floats
    behind: Floats
    cached: Floats
    everyone: Floats


class Runs(NamedTuple):
    """Runs whose steps are evaluated together. where: of each step, its run. cases: of each run, its number."""

    work: Work
    where: Floats
    tpot_weight: Floats
    ttft_weight: Floats
    front: Floats
    rest_s: Floats
    cases: Floats


def work_of_steps(case: Case, steps: "Steps") -> Work:
    """The work of each kind of step of a run, stage after stage; arrays."""
    ends = np.cumsum(steps.stages)
    parts = [
        _work(case, stage, Carried(*(x[end - size : end] for x in steps.carried)))
        for stage, end, size in zip(_stages(case), ends, steps.stages, strict=True)
    ]
    return parts[0] if len(parts) == 1 else _one_after_the_other(parts, steps.stages)


def stage_seconds_of(case: Case, carried: Carried) -> Floats:
    """Seconds (step, stage) with the constants its engine has."""
    constants = case.served.engine.step_constants(case.served.cluster)
    number, places = len(carried.rows), _stages(case)
    found = np.zeros((number, len(places)))
    for first in range(0, number, _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        for place, stage in enumerate(places):
            found[some, place] = _step_seconds(_work(case, stage, Carried(*(x[some] for x in carried))), constants)
    return found


def _stages(case: Case) -> tuple[Stage, ...]:
    what = case.served
    return stages(what.model, what.layout, what.engine)


def _work(case: Case, stage: Stage, carried: Carried) -> Work:
    s, what = carried, case.served
    verify = 1 + what.options.mtp_tokens
    prompts = np.maximum(s.prompts, 1)
    prompt = Part(s.prompts, s.fresh / prompts, s.behind / prompts, prompt=True)
    drawn = Part(s.rows, verify, s.cached / np.maximum(s.rows, 1))
    batch = Batch("mixed", (prompt, drawn), s.rows * verify + s.prompts)
    return work_of(
        inventory(what.model), stage, what.layout, what.engine, what.cluster, batch, what.options,
        worst_spans(what.layout, what.cluster, what.grid), everyone=s.everyone if what.layout.dp_attn > 1 else None,
    )  # fmt: skip


def _step_seconds(work: Work, c: StepConstants) -> Any:
    found = seconds(work, c)
    return sum(found.parts.values()) + found.comm + found.engine


def together(found: Sequence[tuple[int, "Steps", Work]]) -> Runs:
    """Several runs as one. Each with its number."""
    sizes = [sum(steps.stages) for _, steps, _ in found]
    return Runs(
        _one_after_the_other([work for _, _, work in found], sizes), np.repeat(np.arange(len(found)), sizes),
        np.concatenate([s.tpot_weight for _, s, _ in found]), np.concatenate([s.ttft_weight for _, s, _ in found]),
        np.array([s.front for _, s, _ in found]), np.array([s.rest_s for _, s, _ in found]),
        np.array([number for number, _, _ in found]),
    )  # fmt: skip


def _one_after_the_other(works: Sequence[Work], sizes: Sequence[int]) -> Work:
    """Works of so many steps each as one."""

    def joined(values: Sequence[Any]) -> Floats:
        return np.concatenate([np.broadcast_to(x, size) for x, size in zip(values, sizes, strict=True)]).astype(float)

    blocks = {}
    for name in sorted({name for work in works for name in work.blocks}):
        mine = [work.blocks.get(name, Block(0, {}, {})) for work in works]
        kinds = [k for k in CLASSES if any(k in block.flops for block in mine)]
        blocks[name] = Block(
            joined([block.bytes for block in mine]),
            {k: joined([block.flops.get(k, 0) for block in mine]) for k in kinds},
            {k: joined([block.fill_flops.get(k, 0) for block in mine]) for k in kinds if name == "experts"},
            joined([0 if block.met is None else block.met for block in mine]) if name == "experts" else None,
            joined([0.5 if block.met is None else block.pick for block in mine]) if name == "experts" else 1.0,
            joined([block.grouped for block in mine]),
        )
    names = sorted({name for work in works for name in work.peaks})
    return Work(
        kind="mixed", blocks=blocks, hbm_Bps=joined([w.hbm_Bps for w in works]),
        peaks={k: joined([w.peaks.get(k, 1.0) for w in works]) for k in names},
        kv_bytes=joined([w.kv_bytes for w in works]), attention_flops=joined([w.attention_flops for w in works]),
        layers={k: joined([w.layers[k] for w in works]) for k in works[0].layers},
        calls=joined([w.calls for w in works]), comm_s=joined([w.comm_s for w in works]),
        prompt_tokens=joined([w.prompt_tokens for w in works]), prompts=joined([w.prompts for w in works]),
    )  # fmt: skip


def unpacks(work: Work) -> bool:
    """Whether experts are unpacked: their reading then has another constant."""
    return "experts" in work.blocks and "unpacked" in work.blocks["experts"].flops


def means(runs: Runs, c: StepConstants) -> tuple[Floats, Floats]:
    """Mean TPOT and TTFT of each run under the constants, its events in the order they were simulated in."""
    step = np.broadcast_to(_step_seconds(runs.work, c), runs.where.shape)
    number = len(runs.rest_s)
    tpot: Floats = np.asarray(np.bincount(runs.where, step * runs.tpot_weight, number), dtype=float)
    front = runs.front @ np.array([c.request_us, c.request_each_us, c.request_token_us]) * US
    return tpot, np.bincount(runs.where, step * runs.ttft_weight, number) + front + runs.rest_s

"""From a plan's own step model to the tables of the event loop: one step, many readers (DESIGN §2.1).

Nothing is counted here. A stage's step is asked of plan/time.py with the tokens, the sampled rows or the context varied
one at a time; what depends on which is taken apart by its part, and reading from arithmetic by asking once with memory
that takes no time and once with arithmetic that takes none.
"""

from collections.abc import Callable

import numpy as np

from linkwise.core.quantity import Given, Num, plain, value_of
from linkwise.plan.batch import Batch, Part
from linkwise.plan.inventory import Stage, inventory, kv_layout, stages
from linkwise.plan.time import ALL_ROWS, US, StageTime, stage_seconds, worst_spans
from linkwise.simulate.served import Served
from linkwise.simulate.tables import Floats, Tables, rounded

CELLS = 4096  # of the grid of contexts: exact where time is linear between its points
_EXACT = 4096  # tokens up to which every size of a step is asked for; beyond, every 16th and between them a line
_NO_TIME = 1e18

_Ask = Callable[[Batch, Given], StageTime]


def tables_of(what: Served, longest: int, *, budget: int, sampled: int, coarse: bool = False) -> Tables:
    """Its steps up to `budget` tokens and `sampled` rows, for requests of up to `longest` tokens.

    coarse: asked for at a few dozen sizes, with lines between them: within a percent, thirty times as fast.
    """
    layout, engine = what.layout, what.engine
    stock, places = inventory(what.model), worst_spans(layout, what.cluster, what.grid)
    split = layout.cp * layout.dcp > 1
    kept = kv_layout(layout, engine.convention_for(what.model, layout, what.options))
    cell = max(1, -(-(longest + 2) // (64 if coarse else CELLS)))
    # A whole number of tokens a cell, and a point beyond the longest.
    context = np.arange(0, longest + 2 * cell + 2, cell, dtype=float)
    found = []
    for stage in stages(what.model, layout, engine):

        def ask(batch: Batch, given: Given, stage: Stage = stage) -> StageTime:
            return stage_seconds(
                stock, stage, layout, engine, what.cluster, batch, what.options, places, given=given
            )  # fmt: skip

        # Where attention replicas hold unlike loads, some weights still serve the tokens of all.
        shared = ("experts", ALL_ROWS) if layout.dp_attn > 1 and layout.cp == 1 else ()
        found.append(_stage(ask, layout.cp, budget, sampled, context, split, shared, coarse))
    columns = {name: np.array([one[name] for one in found]) for name in found[0]}
    c = engine.step_constants(what.cluster)
    each = {
        name: np.full(len(found), us * US)
        for name, us in (("overhead", c.step_us), ("prompt_token", c.prompt_token_us))
    }
    columns["prompt"] = columns["prompt"] - each["prompt_token"]
    return rounded(
        Tables(
            **columns, **each, cell=float(cell), cp=layout.cp, blend=split, kv_adds=c.kv_sharpness == 1,
            prompt_flop=kept.cp / layout.cp,
        )
    )  # fmt: skip


def _stage(
    ask: _Ask, cp: int, budget: int, sampled: int, context: Floats, split: bool, shared: tuple[str, ...], coarse: bool
) -> dict[str, Floats]:  # fmt: skip
    """One stage's part of every table; `prompt` with one token of it."""
    apart = {"kv", "head", "prompt", *shared}
    tokens = _sizes(budget, coarse)
    drawn = ask(Batch("decode", (Part(tokens, 1, 0),), 0), plain)
    prompt = ask(Batch("prefill", (Part(1, tokens * cp, 0, prompt=True),), 0), plain)
    rows = _sizes(sampled, coarse)
    one = Part(1, 1, 0)
    heads, none = ask(Batch("decode", (one,), rows), plain), ask(Batch("decode", (one,), 0), plain)
    logits = np.subtract(heads.comm, none.comm)
    cached = Batch("decode", (Part(1, 1, context - 1),), 0)
    read = ask(cached, _without("peak")).parts["kv"]
    flop = ask(cached, _without("hbm")).parts["kv"]
    behind: Num = np.zeros(len(context))
    if split:
        chunk = [ask(Batch("prefill", (Part(1, cp, x, prompt=True),), 0), plain).comm for x in (context, 0)]
        behind = np.subtract(chunk[0], chunk[1])
    bare = ask(Batch("decode", (one,), 0), _without("hbm", "peak"))
    first = ask(Batch("prefill", (Part(1, 1, 0, prompt=True),), 0), plain).parts.get("prompt", 0)
    return {
        "work": _whole(tokens, _work(drawn, apart), budget), "comm": _whole(tokens, drawn.comm, budget),
        "prompt_work": _whole(tokens, _work(prompt, apart), budget), "prompt_comm": _whole(tokens, prompt.comm, budget),
        "experts": _whole(tokens, sum(drawn.parts.get(name, 0) for name in shared), budget),
        "prompt": np.asarray(float(value_of(first))),
        "head": _whole(rows, heads.parts.get("head", 0), sampled), "logits": _whole(rows, logits, sampled),
        "read": np.broadcast_to(read, context.shape), "flop": np.broadcast_to(flop, context.shape),
        "context": np.broadcast_to(behind, context.shape),
        "floor": np.asarray(float(value_of(bare.host + bare.compute))),
    }  # fmt: skip


def _work(step: StageTime, apart: set[str]) -> Num:
    """What depends on the number of tokens of a rank alone."""
    return sum(value for name, value in step.parts.items() if name not in apart)


def _sizes(most: int, coarse: bool) -> Floats:
    if coarse:
        return np.unique(np.concatenate((np.arange(1, 17), np.geomspace(16, max(16, most), 48).round()))).astype(float)
    if most <= _EXACT:
        return np.arange(1, most + 1, dtype=float)
    return np.unique(np.concatenate((np.arange(1, _EXACT), np.arange(_EXACT, most, 16), [most]))).astype(float)


def _whole(sizes: Floats, seconds: Num, most: int) -> Floats:
    """A value for every number of tokens 0..most; that of 0 is that of 1."""
    found: Floats = np.interp(np.arange(most + 1), sizes, np.broadcast_to(seconds, sizes.shape))
    return found


def _without(*names: str) -> Given:
    """Inputs with some resources endless: the other ones' time is left."""

    def given(name: str, value: Num, unit: str = "", source: str = "") -> Num:
        return value * _NO_TIME if name.startswith(names) else value

    return given

"""What a step of one stage has to do, and how long that takes: the step model in one formula.

`Work` holds bytes, FLOPs and counts, as plan/time.py finds them for a batch. `seconds` makes times of them with the
constants of the engine (engine/step_constants.py): a part of the weights takes a p-norm of its reading and computing,
parts add up, and so do the cache, layers, collectives and what a prompt costs beside them. The same function plans,
explains, fills the simulator's tables and is fitted to results, so that a figure means one thing.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from linkwise.core.quantity import Given, Num, named, plain, pnorm, power, times, total
from linkwise.engine.step_constants import StepConstants

US = 1e-6
# How a weight is computed: by the device's units of its dtype, or unpacked to 16 bits first.
CLASSES = ("bf16", "fp8", "fp8-block", "fp4", "unpacked")


class Block(NamedTuple):
    """Weights of a stage that are read together. flops: by class. fill_flops: of one more row for each expert, by
    class; empty for what is no expert. met: tokens that meet the experts, each of which picks one with chance `pick`;
    only experts that are picked are read. None = all weights are read. grouped: 1 = tokens came to them by a direct
    exchange, in order of experts; 0 = all ranks have all tokens."""

    bytes: Num
    flops: dict[str, Num]
    fill_flops: dict[str, Num]
    met: Num | None = None
    pick: Num = 1.0
    grouped: Num = 0


class Work(NamedTuple):
    """One step of one stage on one rank. Plain numbers, recorded ones, or arrays over batches.

    hbm_Bps: datasheet rate of memory; peaks: datasheet FLOP/s by class, "attention" those of attention.
    layers: by kind (all, moe, shared, mla, linear, qk-norm, block-fp8, unpacked, replicas: with experts that several
    attention replicas share). calls, comm_s: collectives on the
    critical path, and their time as the catalogue has it. prompts: 1 where the step holds a prompt, else 0.
    """

    kind: str
    blocks: dict[str, Block]
    hbm_Bps: Num
    peaks: dict[str, Num]
    kv_bytes: Num
    attention_flops: Num
    layers: dict[str, Num]
    calls: Num
    comm_s: Num
    prompt_tokens: Num
    prompts: Num


class Seconds(NamedTuple):
    """Of one step: parts of computing by name, collectives, the engine's own."""

    parts: dict[str, Num]
    comm: Num
    engine: Num


_LAYERS = (
    ("all", "layer_us"), ("moe", "moe_layer_us"), ("shared", "shared_layer_us"), ("mla", "mla_layer_us"),
    ("linear", "linear_layer_us"), ("qk-norm", "qk_norm_layer_us"), ("block-fp8", "block_fp8_layer_us"),
    ("unpacked", "dequant_layer_us"), ("replicas", "dp_layer_us"),
)  # fmt: skip
_PROMPT_LAYERS = (
    ("all", "prompt_layer_us"), ("moe", "prompt_moe_layer_us"), ("mla", "prompt_mla_layer_us"),
    ("linear", "prompt_linear_layer_us"),
)  # fmt: skip


def seconds(work: Work, c: StepConstants, given: Given = plain) -> Seconds:
    """Times of a step's parts under the constants."""

    def share(name: str) -> Num:
        return given(name, getattr(c, name), "", c.source(name))

    def micro(name: str) -> Num:
        return given(name.removesuffix("_us"), getattr(c, name) * US, "s", c.source(name))

    def each(kinds: tuple[tuple[str, str], ...]) -> list[Num]:
        return [times(count, micro(name)) for kind, name in kinds if _any(count := work.layers.get(kind, 0), c, name)]

    hbm = given("hbm", work.hbm_Bps, "B/s", "datasheet")
    parts = {name: _block(name, block, work, c, hbm, share, given) for name, block in work.blocks.items()}
    parts["kv"] = _attention(work, c, hbm, share, given)
    if layers := each(_LAYERS):
        parts["kernels"] = named(f"{work.kind}.kernels", total(layers), "s", "small kernels and gaps of every layer")
    if prompt := _prompt(work, c, each, micro):
        parts["prompt"] = named(f"{work.kind}.prompt", total(prompt), "s", "what a step that holds a prompt takes more")
    comm = work.comm_s
    if c.collective_share != 1:
        comm = times(comm, share("collective_share"))
    if c.collective_us:
        comm = comm + times(work.calls, micro("collective_us"))
    return Seconds(parts, comm, micro("step_us"))


def _any(count: Num, c: StepConstants, name: str) -> bool:
    return bool(getattr(c, name)) and not (isinstance(count, int) and count == 0)


_Share = Callable[[str], Num]


def _block(
    name: str, block: Block, work: Work, c: StepConstants, hbm: Num, share: _Share, given: Given
) -> Num:  # fmt: skip
    """Reading and computing one part of the weights."""
    expert = name == "experts"
    rate = "dequant_hbm_" if expert and "unpacked" in block.flops else "expert_hbm_" if expert else "hbm_"
    touched: Num = 1
    if block.met is not None:
        touched = named(f"{work.kind}.experts_touched", _touched(block.met, block.pick, c, share),
                        note="share of experts read")  # fmt: skip
    read = times(block.bytes, touched) / times(hbm, share(f"{rate}efficiency"))
    work_s: list[Num] = []
    for kind, asked in block.flops.items():
        flops, speed = asked, given(f"peak.{kind}", work.peaks[kind], "FLOP/s", "datasheet")
        speed = times(speed, *(share(one) for one in _EFFICIENCY[kind] if getattr(c, one) != 1))
        if expert and kind != "unpacked" and c.expert_efficiency != 1:
            speed = speed * share("expert_efficiency")
        if expert and _any(block.grouped, c, "grouped_efficiency") and c.grouped_efficiency != 1:
            speed = speed * power(share("grouped_efficiency"), block.grouped)
        if kind in block.fill_flops and c.expert_rows:
            flops = flops + times(given("expert_rows", c.expert_rows, "rows", c.source("expert_rows")),
                                  block.fill_flops[kind], touched)  # fmt: skip
        work_s.append(flops / speed)
    return named(f"{work.kind}.{name}.time", pnorm(read, total(work_s), c.sharpness), "s")


def _touched(met: Num, pick: Num, c: StepConstants, share: _Share) -> Num:
    """Share of experts that get a row of so many tokens. All alike: 1 - (1 - pick)^met. Some are picked more often than
    others: with chances spread as a gamma distribution of shape a, 1 - (1 + met pick / a)^-a (a negative binomial)."""
    if c.expert_evenness == math.inf:
        return 1 - power(1 - pick, met)
    a = share("expert_evenness")
    return 1 - power(1 + times(met, pick) / a, -a)


_EFFICIENCY = {
    "bf16": ("bf16_efficiency",), "fp8": ("fp8_efficiency",), "fp8-block": ("fp8_efficiency", "block_fp8_efficiency"),
    "fp4": ("fp4_efficiency",), "unpacked": ("dequant_efficiency",),
}  # fmt: skip


def _attention(work: Work, c: StepConstants, hbm: Num, share: _Share, given: Given) -> Num:
    """Reading the cached tokens of every request, and attending to them."""
    read = work.kv_bytes / times(hbm, share("kv_efficiency"))
    speed = times(
        given("peak.attention", work.peaks["attention"], "FLOP/s", "datasheet"), share("attention_efficiency")
    )
    return named(f"{work.kind}.kv.time", pnorm(read, work.attention_flops / speed, c.kv_sharpness), "s")


def _prompt(
    work: Work, c: StepConstants, each: Callable[[tuple[tuple[str, str], ...]], list[Num]], micro: _Share
) -> list[Num]:  # fmt: skip
    """What no captured graph covers, where the step holds a prompt at all."""
    if isinstance(work.prompts, int) and work.prompts == 0:
        return []
    fixed = each(_PROMPT_LAYERS) + ([micro("prompt_step_us")] if c.prompt_step_us else [])
    found = [times(work.prompts, total(fixed))] if fixed else []
    return found + ([times(work.prompt_tokens, micro("prompt_token_us"))] if c.prompt_token_us else [])

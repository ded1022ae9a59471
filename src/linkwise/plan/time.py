"""How long a step takes: bytes and FLOPs by part, layers, and every exposed collective.

What a step has to do is found here, for one stage and its busiest rank; how long that takes is one formula
(plan/step_work.py) of named constants, the engine's calibration or the cluster's roofline. Each weight or KV byte is
read once a step; parts add up, since they run one after the other. A collective takes the time of the fastest way its
implementation has of doing it (plan/collective_ways.py).
"""

import re
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from linkwise.cluster.types import Cluster
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.core.quantity import Given, Num, ceil_div, maximum, minimum, named, plain, times, total, where
from linkwise.engine.base import Convention, Engine, Options
from linkwise.model.types import Model
from linkwise.plan import step_work
from linkwise.plan.batch import Batch, Part
from linkwise.plan.inventory import Inventory, Stage, held, inventory, kv_layout, layers_within, read_bytes, stages
from linkwise.plan.places import (
    Span,
    group_of,
    group_span,
    has_kernel,
    on_rails,
    op_seconds,
    place_of,
    port_bandwidth,
    socket_shares,
    span,
    spans,
    worse,
    worst_spans,
)  # fmt: skip
from linkwise.plan.step import kv_dtype_of, stage_ops
from linkwise.plan.step_work import US, Block, Work
from linkwise.plan.types import Op
from linkwise.plan.writer import unlike_loads

__all__ = [
    "US", "GroupTime", "Span", "StageTime", "Weights", "Work", "flops_seconds", "group_of", "group_seconds",
    "group_span", "has_kernel", "on_rails", "op_seconds", "place_of", "port_bandwidth", "read_seconds",
    "socket_shares", "span", "spans", "stage_seconds", "stage_work", "work_of", "worse", "worst_spans",
]  # fmt: skip


def read_seconds(count: Num, bandwidth_Bps: Num) -> Num:
    """Seconds to stream bytes at a bandwidth."""
    return count / bandwidth_Bps


def flops_seconds(flops: Num, peak: Num) -> Num:
    """Seconds of arithmetic at a FLOP rate."""
    return flops / peak


class Weights(NamedTuple):
    """Weights one rank of a stage reads, gathered by what limits them: category -> (bytes, {dtype: elements})."""

    parts: dict[str, tuple[int, dict[str, int]]]


_CATEGORY = {"embed": "", "vision": "", "norm": "attn", "mtp": "mtp", "head": "head", "mlp": "mlp"}


# MLPs split over all ranks of a stage run the rows of all its attention replicas; those whole on each rank of a tensor
# group run that rank's share of its rows.
ALL_ROWS, OWN_ROWS = "mlp-all", "mlp-own"


def category(role: str) -> str:
    """Which roofline part a role belongs to; empty = not read whole in a step (an embedding lookup)."""
    if "moe.experts" in role and not role.startswith("mtp"):
        return "experts"
    first = role.split(".", maxsplit=1)[0]
    return "mlp" if first == "moe" else _CATEGORY.get(first, "attn")


# Decode, mixed and prefill steps of one layout ask for the same stage one after the other.
@lru_cache(maxsize=256)
def stage_work(stock: Inventory, stage: Stage, layout: Layout, engine: Engine, options: Options) -> Weights:
    """Bytes and elements by category for one rank of a stage."""
    parts: dict[str, tuple[int, dict[str, int]]] = {}
    convention = engine.convention_for(stock.model, layout, options)
    for item in held(stock, stage, layout, engine, mtp=options.mtp_tokens > 0, convention=convention):
        where_to = category(item.role)
        if not where_to:
            if item.role.startswith("embed") and stock.model.tied and stage.is_last:
                where_to = "head"
            else:
                continue
        if where_to == "mlp" and not item.role.startswith("mtp"):
            where_to = _rows_of(item.role, item.over, layout, convention)
        size, elements = parts.get(where_to, (0, {}))
        elements[item.dtype] = elements.get(item.dtype, 0) + item.elements
        parts[where_to] = (size + item.bytes, elements)
    return Weights(parts)


def _rows_of(role: str, over: tuple[str, ...], layout: Layout, convention: Convention) -> str:
    """The category of a dense MLP's or a shared expert's weight, by the rows that a rank runs through it."""
    if over == ("stage",) and layout.stage_size > layout.tp:
        return ALL_ROWS
    dense = role.startswith("mlp") and convention.mlp_over == "none"
    return OWN_ROWS if dense and layout.tp > 1 else "mlp"


_KINDS = {"float8_e4m3": "fp8", "float8_e5m2": "fp8", "int8": "fp8", "float4_e2m1": "fp4", "int4": "unpacked"}


def kind_of(dtype: str, cluster: Cluster, block_fp8: bool = False) -> str:
    """How weights of a dtype are computed on a device (step_work.CLASSES): 4-bit ones without units are unpacked."""
    flops, kind = cluster.accelerator.flops, _KINDS.get(dtype, "bf16")
    if kind == "fp4" and not flops.get("fp4"):
        return "unpacked"
    if kind == "fp8":
        return "bf16" if not flops.get("fp8") else "fp8-block" if block_fp8 else "fp8"
    return kind


def peak_of(kind: str, cluster: Cluster) -> float:
    """Datasheet FLOP/s of a kind. Raises InputError for a device that states none."""
    found = cluster.accelerator.flops.get({"fp8-block": "fp8", "unpacked": "bf16"}.get(kind, kind))
    if not found:
        raise InputError("has no compute figure", where=cluster.accelerator.name, expected="flops: bf16")
    return found


_BLOCK_FP8 = re.compile(r"fp8 \d{2,}x\d{2,}", re.ASCII)


def has_block_fp8(model: Model) -> bool:
    """Whether linear weights are FP8 with a scale for each block of rows and columns."""
    return bool(_BLOCK_FP8.match(model.quantization))


class StageTime(NamedTuple):
    """Seconds of one step of a stage; arrays over batch sizes on the fast path."""

    step: Num
    compute: Num
    comm: Num
    host: Num
    parts: dict[str, Num]


def stage_seconds(
    stock: Inventory,
    stage: Stage,
    layout: Layout,
    engine: Engine,
    cluster: Cluster,
    batch: Batch,
    options: Options,
    places: dict[str, Span],
    *,
    given: Given = plain,
    known: "Calls | None" = None,
) -> StageTime:
    """One step of one stage: weights by part, cache, layers, exposed collectives, host launch.

    known: what calls of the same step take on other stages of the layout; those of this stage join them.
    """
    work = work_of(stock, stage, layout, engine, cluster, batch, options, places, given=given, known=known)
    found = step_work.seconds(work, engine.step_constants(cluster), given)
    compute = named(f"{batch.kind}.compute", total(found.parts.values()), "s")
    comm = named(f"{batch.kind}.comm", found.comm, "s")
    host: Num = 0
    if options.eager or not engine.defaults.cuda_graphs:
        # The host launches kernels one by one: the device is never faster than that.
        each = cluster.constants.host_us_per_layer
        launch = given("launch", each * US * stage.layers, "s", "eager launch of every layer")
        host = maximum(0, launch - compute)
    host = named(f"{batch.kind}.host", host + found.engine, "s")
    return StageTime(named(f"{batch.kind}.stage", compute + comm + host, "s"), compute, comm, host, found.parts)


def work_of(
    stock: Inventory, stage: Stage, layout: Layout, engine: Engine, cluster: Cluster, batch: Batch, options: Options,
    places: dict[str, Span], *, everyone: Num | None = None, given: Given = plain, known: "Calls | None" = None,
) -> Work:  # fmt: skip
    """What one step of one stage has to do on its busiest rank.

    everyone: tokens of all attention replicas, where they hold unlike loads; None = each has those of the batch.
    known: as in `stage_seconds`.
    """
    model, everyone = stock.model, batch.everyone if everyone is None else everyone
    convention = engine.convention_for(model, layout, options)
    block_fp8 = has_block_fp8(model)
    tokens = batch.rank_tokens(layout.cp)
    blocks: dict[str, Block] = {}
    kinds: set[str] = set()
    for name, (size, elements) in sorted(stage_work(stock, stage, layout, engine, options).parts.items()):
        rows = batch.sampled if name == "head" else tokens
        if name == "head" and convention.head_over == "stage" and layout.dp_attn > 1:
            rows = times(rows, layout.dp_attn)  # those of all attention replicas, which are gathered
        elif name == ALL_ROWS:
            rows = times(tokens, unlike_loads(batch, layout, convention)) if everyone is None else everyone
        elif name == OWN_ROWS:
            rows = ceil_div(tokens, layout.tp)
        count = given(f"{name}.bytes", size, "B", "ledger: weights of the stage on one rank")
        met: Num | None = None
        pick, grouped = 1.0, 0
        if name == "experts" and model.moe is not None:
            pick = model.moe.top_k / model.moe.experts
            # Tokens of the whole stage meet every expert; a rank multiplies k/E of them with each expert it holds.
            met = times(batch.tokens, layout.dp_attn) if everyone is None else everyone
            rows = times(met, given("top_k/experts", pick, "", "routing"), options.moe_skew)
            grouped = int(layout.dp_attn > 1 and convention.moe_exchange.startswith("all_to_all"))
        flops: dict[str, Num] = {}
        fill: dict[str, Num] = {}
        for dtype, n in sorted(elements.items()):
            kind = kind_of(dtype, cluster, block_fp8)
            held = given(f"{name}.elements.{dtype}", n, "elements", "ledger")
            flops[kind] = flops.get(kind, 0) + 2 * rows * held
            if name == "experts":
                fill[kind] = fill.get(kind, 0) + 2 * held
        kinds |= flops.keys()
        blocks[name] = Block(count, flops, fill, met, pick, grouped)
    peaks: dict[str, Num] = {kind: peak_of(kind, cluster) for kind in kinds}
    peaks["attention"] = peak_of(kind_of(model.dtype, cluster), cluster)
    exposed = _exposed(stock, stage, layout, engine, cluster, batch, options, places, given, known)
    prompts = [part for part in batch.parts if part.prompt]
    kv_bytes, attention_flops = _attention(stock, stage, layout, convention, batch, options)
    return Work(
        kind=batch.kind, blocks=blocks, hbm_Bps=cluster.accelerator.hbm_Bps, peaks=peaks, kv_bytes=kv_bytes,
        attention_flops=attention_flops, layers=_layer_counts(stock, stage, model, block_fp8, kinds, layout.dp_attn),
        calls=sum(calls for calls, _ in exposed), comm_s=total(one for _, one in exposed),
        prompt_tokens=total(_on_rank(part, layout.cp) for part in prompts),
        prompts=minimum(1, total(part.tokens for part in prompts)) if prompts else 0,
    )  # fmt: skip


def _on_rank(part: Part, cp: int) -> Num:
    return times(part.requests, ceil_div(part.new, cp)) if cp > 1 else part.tokens


def _layer_counts(
    stock: Inventory, stage: Stage, model: Model, block_fp8: bool, kinds: set[str], replicas: int
) -> dict[str, Num]:  # fmt: skip
    moe = stock.ffns(stage, "moe")
    beside = moe if model.moe is not None and model.moe.shared_experts else 0
    every = stock.whole_layers(stage)
    return {
        "all": every, "moe": moe, "shared": beside, "mla": stock.of_mixer(stage, "mla", "sparse"),
        "linear": stock.of_mixer(stage, "linear", "mamba"), "qk-norm": stock.with_role(stage, "attn.q_norm"),
        "block-fp8": every if block_fp8 else 0,
        "unpacked": moe if "unpacked" in kinds else 0, "replicas": moe if replicas > 1 else 0,
    }  # fmt: skip


def _exposed(
    stock: Inventory, stage: Stage, layout: Layout, engine: Engine, cluster: Cluster, batch: Batch, options: Options,
    places: dict[str, Span], given: Given, known: "Calls | None",
) -> list[tuple[Num, Num]]:  # fmt: skip
    """Calls of each op of the step, and their seconds together."""
    eager = options.eager or not engine.defaults.cuda_graphs
    place = place_of(layout, places, cluster)
    convention = engine.convention_for(stock.model, layout, options)
    result: list[tuple[Num, Num]] = []
    for op in stage_ops(stock, stage, layout, engine, batch, options, place=place, given=given):
        same = op.role, op.kind, op.group, op.size, op.dtype
        if known is not None and same in known and np.array_equal(known[same][1], op.S_bytes):
            one = known[same][0]
        else:
            one = op_seconds(op, places[op.group], cluster, convention, eager=eager, given=given)
        if known is not None:
            known[same] = one, op.S_bytes
        calls, one = _made(op, one)
        result.append((calls, named(f"{op.role}.all", times(op.repeat, one), "s")))
    return result


def _made(op: Op, one: Num) -> tuple[Num, Num]:
    """Calls of an op and seconds of one; none in those of an array's steps that have nothing for it.

    A step alone has no such op (plan/step.py); an array of steps has it where any of them does.
    """
    if not isinstance(op.S_bytes, np.ndarray) or np.all(op.S_bytes):
        return op.repeat, one
    some = op.S_bytes > 0
    return times(op.repeat, some), where(some, one, 0.0)


def _attention(
    stock: Inventory, stage: Stage, layout: Layout, convention: Convention, batch: Batch, options: Options
) -> tuple[Num, Num]:  # fmt: skip
    """Cached bytes the step reads on one rank, and the FLOPs of attending to them (and of linear mixers)."""
    kv_dtype, kept = kv_dtype_of(stock.model, options), kv_layout(layout, convention)
    read: list[Num] = []
    work: list[Num] = []
    for part in batch.parts:
        read.append(times(part.requests, read_bytes(stock, stage, kept, kv_dtype, part.context + part.new)))
        # Queries of a prompt see half of it on average; heads are split over tp, a prompt's queries over cp, and the
        # keys that rows attend to where cp splits them.
        middle = part.context + (part.new + 1) / 2
        for layer, layers in stock.layer_kinds:
            number = layers_within(layers, stage)
            if number and layer.mixer != "none":
                each = layer.context_flops(middle) + layer.mixer_flops_per_token
                heads = layout.tp * (layout.cp if part.prompt else kept.cp)
                one = times(number, part.requests, part.new, each)
                work.append(one / heads if heads > 1 else one)
    size = named(f"{batch.kind}.kv.bytes", total(read), "B", "cached state the step reads on one rank")
    return size, named(f"{batch.kind}.attention.flops", total(work), "FLOP", "on one rank")


# A call by role, kind, group, ranks and dtype: seconds, and S it was asked for.
Calls = dict[tuple[str, str, str, int, str], tuple[Num, Num]]


class GroupTime(NamedTuple):
    """A step through the whole group. token: all stages in turn. interval: one batch after the other, busiest stage."""

    token: Num
    interval: Num
    stages: tuple[StageTime, ...]


def group_seconds(
    model: Model, layout: Layout, engine: Engine, cluster: Cluster, batch: Batch, options: Options,
    places: dict[str, Span] | None = None, *, placement: tuple[int, ...] | None = None, given: Given = plain,
) -> GroupTime:  # fmt: skip
    """One step of a serving group, at `places` or else at those of `placement`. Equal stages are computed once."""
    stock = inventory(model)
    where_to = places or spans(layout, cluster, placement)
    done: dict[tuple[object, ...], StageTime] = {}
    known: Calls | None = {} if given is plain else None  # a chain shows every call
    result = []
    for stage in stages(model, layout, engine):
        key = (_content(stock, stage), stage.is_first, stage.is_last)
        if key not in done:
            done[key] = stage_seconds(
                stock, stage, layout, engine, cluster, batch, options, where_to, given=given, known=known
            )  # fmt: skip
        result.append(done[key])
    token = named(f"{batch.kind}.token", total(s.step for s in result), "s")
    interval = result[0].step
    for one in result[1:]:
        interval = maximum(interval, one.step)
    return GroupTime(token, named(f"{batch.kind}.interval", interval, "s"), tuple(result))


def _content(stock: Inventory, stage: Stage) -> tuple[object, ...]:
    layers = stock.model.layers[stage.first : stage.end]
    return tuple(sorted((x.mixer, x.ffn, x.attn_flops_per_pair, x.attends or 0, x.attends_stride) for x in layers))

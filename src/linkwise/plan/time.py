"""How long a step takes: roofline of bytes and FLOPs, plus latency and bandwidth of every exposed collective.

Every constant comes from the cluster's `Constants`: calibration replaces that value and touches no formula.
Each weight or KV byte is read once a step, so a part of a step takes max(bytes / HBM, FLOPs / peak); parts add up,
since they run one after the other. A collective takes base + per_step · steps + wire bytes / bandwidth of its path.
"""

from functools import lru_cache
from typing import NamedTuple

from linkwise.cluster.types import Cluster, Tier
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout, groups
from linkwise.core.quantity import Given, Num, maximum, named, plain, power, times, total, where
from linkwise.engine.base import Convention, Engine, Options
from linkwise.model.types import Model
from linkwise.plan.batch import Batch
from linkwise.plan.collectives import hops
from linkwise.plan.inventory import Inventory, Stage, held, inventory, layers_within, read_bytes, stages
from linkwise.plan.step import kv_dtype_of, stage_ops
from linkwise.plan.types import Op
from linkwise.plan.writer import Place, kernel_limits

US = 1e-6


def read_seconds(count: Num, bandwidth_Bps: Num) -> Num:
    """Seconds to stream bytes at a bandwidth."""
    return count / bandwidth_Bps


def flops_seconds(flops: Num, peak: Num) -> Num:
    """Seconds of arithmetic at a FLOP rate."""
    return flops / peak


class Span(NamedTuple):
    """Where the groups of an axis lie: the slowest tier they cross, and ranks of one group per node."""

    tier: Tier
    per_node: int


def span(layout: Layout, axis: str, cluster: Cluster) -> Span:
    """The worst group of an axis when ranks are laid on devices in order (innermost axis on neighbouring devices)."""
    worst, per_node = Tier.DEVICE, 1
    order = list(Tier)
    for members in groups(layout, axis):
        tier = cluster.tier(members)
        if order.index(tier) > order.index(worst):
            worst = tier
            per_node = max(1, len(members) // len({cluster.node_of(d) for d in members}))
    return Span(worst, per_node)


def spans(layout: Layout, cluster: Cluster) -> dict[str, Span]:
    """`span` of every axis."""
    return {a: span(layout, a, cluster) for a in ("pp", "cp", "dp_attn", "tp", "dcp", "ep", "moe_tp", "stage")}


def place_of(layout: Layout, places: dict[str, Span]) -> Place:
    """What a step's ops depend on of where the group lies."""
    stage = places["stage"]
    nodes = layout.stage_size // stage.per_node if stage.tier is Tier.CLUSTER else 1
    return Place(nodes, frozenset(axis for axis, s in places.items() if s.tier is Tier.ISLAND))


def port_bandwidth(cluster: Cluster, place: Span, kind: str, ranks: int) -> float:
    """Bytes/s per direction the busiest port gives one rank of a group.

    A ring over nodes crosses each node's NICs once in each direction for the whole group's data, and NCCL runs one ring
    per NIC, so the ranks of a node pool their NICs. A pairwise exchange uses each rank's own NIC.
    """
    own = cluster.bandwidth(place.tier, ranks)
    if place.tier is Tier.CLUSTER and kind in {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "gather"}:
        pooled = own * place.per_node
        tier = Tier.ISLAND if cluster.island_size >= place.per_node > 1 else Tier.NODE
        inside = cluster.bandwidth(tier, place.per_node)
        return min(pooled, inside) if place.per_node > 1 else pooled
    return own


def op_seconds(
    op: Op, place: Span, cluster: Cluster, convention: Convention, *, eager: bool, given: Given = plain
) -> Num:
    """Seconds of one call of an op, busiest rank."""
    bandwidth = given(
        f"bandwidth.{op.group}", port_bandwidth(cluster, place, op.kind, op.size), "B/s",
        f"{cluster.port(place.tier)[0]}, {cluster.constants.label} efficiency",
    )  # fmt: skip
    name = "eager" if eager else convention.all_reduce if op.kind == "all_reduce" else "nccl"
    latency = _call_latency(cluster, name, place.tier, op.role, hops(op.kind, op.size), given)
    if op.algorithm in {"one_shot", "two_shot", "by size"} and not eager:
        small = convention.all_reduce_small
        kernel = kernel_limits(convention, op.size)
        one, two = (_call_latency(cluster, n, place.tier, op.role, 1, given) for n in (small, f"{small}-two-shot"))
        latency = where(op.S_bytes < kernel.one_shot, one, where(op.S_bytes <= kernel.most, two, latency))
    moved = op.wire_sent_bytes  # every algorithm of ours receives as much
    if op.kind == "all_to_all" and place.tier is Tier.CLUSTER and op.size > 1:
        # Only what is bound for other nodes crosses the NICs.
        elsewhere = op.size - place.per_node
        moved = moved * given("remote_share", elsewhere / (op.size - 1), "", f"{elsewhere} of {op.size - 1} peers")
    slower = cluster.constants.collective_factor
    return named(f"{op.role}.call", times(_skewed(latency + moved / bandwidth, op), slower), "s")


def _call_latency(cluster: Cluster, name: str, tier: Tier, role: str, steps: int, given: Given) -> Num:
    base, per_step = cluster.constants.latency(name, tier)
    source = f"{name} over {tier.value}, {cluster.constants.label}: {base:g} us + {steps} steps x {per_step:g} us"
    return given(f"latency.{role}.{name}", (base + per_step * steps) * US, "s", source)


def _skewed(seconds: Num, op: Op) -> Num:
    """An uneven exchange ends with its busiest rank."""
    if not op.sizes:
        return seconds
    busiest: Num = 0
    for size in op.sizes:
        busiest = maximum(busiest, size)
    return seconds * (busiest * len(op.sizes) / op.S_bytes)


class Work(NamedTuple):
    """Weights one rank of a stage reads, gathered by what limits them: category -> (bytes, {dtype: elements})."""

    parts: dict[str, tuple[int, dict[str, int]]]


_CATEGORY = {"embed": "", "vision": "", "norm": "attn", "mtp": "mtp", "head": "head", "mlp": "mlp"}


def category(role: str) -> str:
    """Which roofline part a role belongs to; empty = not read whole in a step (an embedding lookup)."""
    if "moe.experts" in role and not role.startswith("mtp"):
        return "experts"
    first = role.split(".", maxsplit=1)[0]
    return "mlp" if first == "moe" else _CATEGORY.get(first, "attn")


# Decode, mixed and prefill steps of one layout ask for the same stage one after the other.
@lru_cache(maxsize=256)
def stage_work(stock: Inventory, stage: Stage, layout: Layout, engine: Engine, options: Options) -> Work:
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
        size, elements = parts.get(where_to, (0, {}))
        elements[item.dtype] = elements.get(item.dtype, 0) + item.elements
        parts[where_to] = (size + item.bytes, elements)
    return Work(parts)


def _peak(cluster: Cluster, dtype: str) -> float:
    flops = cluster.accelerator.flops
    wanted = {"float8_e4m3": "fp8", "float8_e5m2": "fp8", "int8": "fp8", "float4_e2m1": "fp4"}.get(dtype, "bf16")
    # A device without the units computes in the next wider type it has.
    for name in ("fp4", "fp8", "bf16")[("fp4", "fp8", "bf16").index(wanted) :]:
        if flops.get(name):
            return flops[name]
    raise InputError("has no compute figure", where=cluster.accelerator.name, expected="flops: bf16")


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
) -> StageTime:
    """One step of one stage: roofline by part, exposed collectives, host launch."""
    c = cluster.constants
    model = stock.model
    hbm = given("hbm", cluster.accelerator.hbm_Bps * c.hbm_efficiency, "B/s", f"{cluster.accelerator.label}, {c.label}")
    tokens, kind = batch.rank_tokens(layout.cp), batch.kind
    parts: dict[str, Num] = {}
    for name, (size, elements) in sorted(stage_work(stock, stage, layout, engine, options).parts.items()):
        rows = batch.sampled if name == "head" else tokens
        count = given(f"{name}.bytes", size, "B", "ledger: weights of the stage on one rank")
        share: Num = 1
        if name == "experts" and model.moe is not None:
            k, experts = model.moe.top_k, model.moe.experts
            # Tokens of the whole stage meet every expert; a rank multiplies k/E of them with each expert it holds.
            everyone = times(batch.tokens, layout.dp_attn)
            share = named(f"{kind}.experts_touched", 1 - power(1 - k / experts, everyone), note="share of experts read")
            rows = times(everyone, given("top_k/experts", k / experts, "", "routing"), options.moe_skew)
        work = [
            2 * rows * given(f"{name}.elements.{dtype}", n, "elements", "ledger")
            / given(f"peak.{dtype}", _peak(cluster, dtype) * c.flops_efficiency, "FLOP/s", cluster.accelerator.label)
            for dtype, n in sorted(elements.items())
        ]  # fmt: skip
        parts[name] = named(f"{kind}.{name}.time", maximum(read_seconds(times(count, share), hbm), total(work)), "s")
    parts["kv"] = _attention(stock, stage, layout, engine, cluster, batch, options, hbm, given)
    kernels = c.kernel_us_per_layer * US * stage.layers
    if kernels:
        parts["kernels"] = given("kernels", kernels, "s", f"{stage.layers} layers x {c.kernel_us_per_layer:g} us")
    compute = named(f"{kind}.compute", total(parts.values()), "s")
    comm = named(
        f"{kind}.comm", total(_exposed(stock, stage, layout, engine, cluster, batch, options, places, given)), "s"
    )
    host: Num = 0
    eager = options.eager or not engine.defaults.cuda_graphs
    overhead = c.step_overhead_us * US
    if eager:
        # The host launches kernels one by one: the device is never faster than that.
        launch = given("launch", c.host_us_per_layer * US * stage.layers, "s", "eager launch of every layer")
        host = maximum(0, launch - compute)
    host = named(f"{kind}.host", host + given("step_overhead", overhead, "s", f"scheduler, {c.label}"), "s")
    return StageTime(named(f"{kind}.stage", compute + comm + host, "s"), compute, comm, host, parts)


def _exposed(
    stock: Inventory, stage: Stage, layout: Layout, engine: Engine, cluster: Cluster, batch: Batch, options: Options,
    places: dict[str, Span], given: Given,
) -> list[Num]:  # fmt: skip
    eager = options.eager or not engine.defaults.cuda_graphs
    place = place_of(layout, places)
    convention = engine.convention_for(stock.model, layout, options)
    result = []
    for op in stage_ops(stock, stage, layout, engine, batch, options, place=place, given=given):
        one = op_seconds(op, places[op.group], cluster, convention, eager=eager, given=given)
        result.append(named(f"{op.role}.all", times(op.repeat, one), "s"))
    return result


def _attention(
    stock: Inventory, stage: Stage, layout: Layout, engine: Engine, cluster: Cluster, batch: Batch, options: Options,
    hbm: Num, given: Given,
) -> Num:  # fmt: skip
    """Reading the cached tokens of every request, or the arithmetic of attending to them, whichever is longer."""
    kv_dtype = kv_dtype_of(stock.model, options)
    peak = _peak(cluster, stock.model.dtype) * cluster.constants.flops_efficiency
    read: list[Num] = []
    work: list[Num] = []
    for part in batch.parts:
        read.append(times(part.requests, read_bytes(stock, stage, layout, kv_dtype, part.context + part.new)))
        # Queries of a prompt see half of it on average; heads are split over tp, queries or keys over cp.
        middle = part.context + (part.new + 1) / 2
        for layer, layers in stock.layer_kinds:
            number = layers_within(layers, stage)
            if number and layer.mixer != "none":
                each = layer.context_flops(middle) + layer.mixer_flops_per_token
                heads = layout.tp * layout.cp
                one = times(number, part.requests, part.new, each)
                work.append(one / heads if heads > 1 else one)
    rate = given("peak.attention", peak, "FLOP/s", f"{stock.model.dtype} attention")
    size = named(f"{batch.kind}.kv.bytes", total(read), "B", "cached state the step reads on one rank")
    flops = named(f"{batch.kind}.attention.flops", total(work), "FLOP", "on one rank")
    return named(f"{batch.kind}.kv.time", maximum(read_seconds(size, hbm), flops_seconds(flops, rate)), "s")


class GroupTime(NamedTuple):
    """A step through the whole group. token: all stages in turn. interval: one batch after the other, busiest stage."""

    token: Num
    interval: Num
    stages: tuple[StageTime, ...]


def group_seconds(
    model: Model, layout: Layout, engine: Engine, cluster: Cluster, batch: Batch, options: Options,
    places: dict[str, Span] | None = None, *, given: Given = plain,
) -> GroupTime:  # fmt: skip
    """One step of a serving group. Equal stages are computed once."""
    stock = inventory(model)
    where_to = places or spans(layout, cluster)
    done: dict[tuple[object, ...], StageTime] = {}
    result = []
    for stage in stages(model, layout, engine):
        key = (_content(stock, stage), stage.is_first, stage.is_last)
        if key not in done:
            done[key] = stage_seconds(stock, stage, layout, engine, cluster, batch, options, where_to, given=given)
        result.append(done[key])
    token = named(f"{batch.kind}.token", total(s.step for s in result), "s")
    interval = result[0].step
    for one in result[1:]:
        interval = maximum(interval, one.step)
    return GroupTime(token, named(f"{batch.kind}.interval", interval, "s"), tuple(result))


def _content(stock: Inventory, stage: Stage) -> tuple[object, ...]:
    layers = stock.model.layers[stage.first : stage.end]
    return tuple(sorted((x.mixer, x.ffn, x.attn_flops_per_pair, x.attends or 0, x.attends_stride) for x in layers))

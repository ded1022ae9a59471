"""Does it fit, and if not, what is the first thing that does not and what change would help?

Layouts are tried smallest group first (DESIGN §2.5): within a size, tensor groups stay inside an island, then inside a
node, before a pipeline takes over. Every change that is offered has been run through the same ledger.
"""

from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from linkwise.cluster.types import Cluster
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout, check_product
from linkwise.core.quantity import value_of
from linkwise.core.units import show_bytes, show_count
from linkwise.engine.base import Engine, Options, Refusal
from linkwise.model import quant
from linkwise.model.types import Model
from linkwise.plan.ledger import ledger, ledger_figures
from linkwise.plan.memory import within_length
from linkwise.plan.search import layouts
from linkwise.plan.shortfall import LOWER_UTILISATIONS, STEP_SEQS, STEP_TOKENS, UTILISATIONS
from linkwise.plan.types import Fit, Ledger, Shortfall
from linkwise.workload.types import Workload

# How far into the order of resources a layout comes before it fails: the later, the nearer it is to fitting.
_ORDER = ("legality", "weights", "workspace", "device memory", "kv", "kv concurrency")


class Case(NamedTuple):
    """What is asked, apart from the layout."""

    model: Model
    cluster: Cluster
    engine: Engine
    options: Options
    workload: Workload


class Tried(NamedTuple):
    """A layout with its ledger; the ledger's shortfall says "legality" when the engine would not start it."""

    layout: Layout
    ledger: Ledger

    @property
    def fits(self) -> bool:
        return self.ledger.shortfall is None


def fit(
    model: Model,
    cluster: Cluster,
    engine: Engine,
    options: Options,
    workload: Workload,
    layout: Layout | None = None,
    fixed: dict[str, int] | None = None,
) -> Fit:
    """The smallest group that fits the cluster, or the one that comes nearest with what it lacks.

    layout: judge this one alone. fixed: some degrees by name; the others are tried. The rest of the cluster holds
    replicas. Raises InputError for degrees the cluster cannot hold and for options that contradict the model.
    """
    if options.weight_dtype is not None and model.quantization != options.weight_dtype:
        raise InputError(
            f"weight_dtype is {options.weight_dtype} but {model.name} was read with {model.quantization} weights",
            where="options",
            expected="a model read with the same weight_dtype",
        )
    workload = within_length(model, options, workload)
    case = Case(model, cluster, engine, options, workload)
    if layout is not None:
        if layout.size > cluster.size:
            check_product(layout, cluster.size)
        best, tried = judge(case, layout), 1
    else:
        best, tried = smallest(case, fixed or {})
    chosen = layout is not None or bool(fixed)
    return Fit(
        model=model,
        cluster=cluster,
        workload=workload,
        engine=engine.name,
        engine_version=engine.version,
        options=options,
        resolved=engine.resolve(options, model, cluster.accelerator, best.layout),
        layout=best.layout,
        replicas=cluster.size // best.layout.size,
        ledger=best.ledger,
        fits=best.fits,
        nearest=() if best.fits else nearest(case, best, chosen=chosen),
        tried=tried,
        figures={
            path: value_of(figure)
            for path, figure in ledger_figures(model, cluster, engine, best.layout, options, workload).items()
        },
        notes=(*model.notes, *_notes(case, best.layout)),
    )


def judge(case: Case, layout: Layout) -> Tried:
    """The ledger of one layout; a layout the engine refuses keeps its ledger, with legality as what is short."""
    memory = ledger(case.model, case.cluster, case.engine, layout, case.options, case.workload)
    refusal = _refusal(case, layout)
    if refusal is not None:
        short = Shortfall(
            resource="legality", rank=0, need=0, have=0, unit="", reason=refusal.reason, change=refusal.change
        )
        memory = replace(memory, shortfall=short)
    return Tried(layout, memory)


def _refusal(case: Case, layout: Layout) -> Refusal | None:
    per_node = case.cluster.devices_per_node
    return case.engine.refuses(case.model, layout, devices_per_node=per_node, options=case.options)


def smallest(case: Case, fixed: dict[str, int]) -> tuple[Tried, int]:
    """The first layout that fits in the order of preference, else the nearest to fitting; and how many were tried.

    Plain layouts (tp, pp, ep) come first. Those that also split attention or context make room for KV, so they are
    tried only where KV is what a plain one lacks, or where the fixed degrees leave nothing plain.
    """
    found = sorted(layouts(case.model, case.cluster, fixed), key=lambda x: preference(x, case.cluster))
    if not found:
        given = ", ".join(f"{k} {v}" for k, v in fixed.items())
        raise InputError(
            f"no layout with {given}" if given else "no layout",
            where="layout",
            expected=f"degrees whose product divides into {case.cluster.size} devices of {case.cluster.name}",
        )
    plain = [x for x in found if _plain(x)]
    best, count = _first(case, plain)
    short = best.ledger.shortfall if best else None
    if best is None or (short is not None and short.resource.startswith("kv")):
        other, more = _first(case, [x for x in found if not _plain(x)])
        count += more
        if other is not None and (best is None or _lack(other) < _lack(best)):
            best = other
    return best or judge(case, found[0]), count


def _first(case: Case, found: list[Layout]) -> tuple[Tried | None, int]:
    """The first legal layout that fits, else the one nearest to fitting, else None; and how many were looked at."""
    best: Tried | None = None
    for number, layout in enumerate(found, 1):
        if _refusal(case, layout) is not None:
            continue
        one = judge(case, layout)
        if one.fits:
            return one, number
        if best is None or _lack(one) < _lack(best):
            best = one
    return best, len(found)


def _plain(layout: Layout) -> bool:
    return layout.cp == layout.dp_attn == layout.dcp == 1


def preference(layout: Layout, cluster: Cluster) -> tuple[int, ...]:
    """Smallest group first; tp inside an island (where there is one), inside a node, then as few stages as possible."""
    island = cluster.island_size if cluster.island_size > 1 else cluster.devices_per_node
    return (
        layout.size,
        int(layout.tp > max(island, cluster.devices_per_node)),
        int(layout.tp > island),
        layout.pp,
        layout.cp,
        layout.dp_attn,
        layout.dcp,
        layout.ep,
    )


def _lack(one: Tried) -> tuple[int, float]:
    """How far from fitting: first by the resource that fails (later is nearer), then by the share of it missing.

    To the nearest per cent: a replicated norm must not decide between layouts, the order of preference does.
    """
    short = one.ledger.shortfall
    if short is None:
        return (0, 0.0)
    place = len(_ORDER) - _ORDER.index(short.resource)
    return (place, round((short.need - short.have) / short.need, 2) if short.need else 0.0)


def nearest(case: Case, best: Tried, *, chosen: bool) -> tuple[str, ...]:
    """The smallest changes that make it fit, each verified; `chosen`: the user gave degrees, so others may fit."""
    short = best.ledger.shortfall
    if short is None:
        return ()
    if short.resource == "legality":
        return tuple(t for t in (_other_layout(case), short.change) if t)
    kv = short.resource.startswith("kv")
    offers: list[Callable[[], str]] = [lambda: _other_layout(case)] if chosen else []
    if short.resource == "weights":
        offers += [lambda: _narrow_weights(case, best)]
    elif short.resource in {"workspace", "device memory"}:
        offers += [lambda: _smaller_step(case, best), lambda: _more_memory(case, best)]
        offers += [lambda: _less_memory(case, best), lambda: _eager(case, best)]
        offers += [lambda: _narrow_weights(case, best)]
    elif kv:
        offers += [lambda: _narrow_kv(case, best), lambda: _shorter(case, best), lambda: _fewer(case, best)]
        offers += [lambda: _more_memory(case, best), lambda: _narrow_weights(case, best)]
    offers += [lambda: _more_devices(case) or _more_nodes(case)]
    return tuple(text for text in (offer() for offer in offers) if text)


def _fits_with(case: Case, layout: Layout, **options: object) -> Tried | None:
    """The same layout with options changed, if that fits."""
    try:
        one = judge(case._replace(options=replace(case.options, **options)), layout)
    except InputError:  # the engine has no such option, as ours stores no fp8 KV
        return None
    return one if one.fits else None


def _other_layout(case: Case) -> str:
    one, _ = smallest(case, {})
    return f"{one.layout} fits this cluster" if one.fits else ""


def _narrow_weights(case: Case, best: Tried) -> str:
    if case.model.quantization != "none":
        return ""
    tensors, _ = quant.what_if(case.model.tensors, "fp8", case.model.dtype)
    narrow = replace(case.model, tensors=tensors, quantization="fp8")
    one = judge(case._replace(model=narrow), best.layout)
    if not one.fits:
        return ""
    rank = one.ledger.ranks[one.ledger.tightest]
    left = rank.budget_bytes - rank.bytes_of("weights")
    return f"fp8 weights fit {one.layout} with {show_bytes(left)} a rank for KV and workspace"


def _narrow_kv(case: Case, best: Tried) -> str:
    if case.options.kv_dtype not in {None, "auto", "bfloat16", "float16", "bf16", "fp16"}:
        return ""
    return "fp8 KV" if _fits_with(case, best.layout, kv_dtype="fp8") else ""


def _smaller_step(case: Case, best: Tried) -> str:
    """Fewer requests in a step where sampling sets the peak, fewer tokens where the forward pass does, else both."""
    now = case.engine.resolve(case.options, case.model, case.cluster.accelerator, best.layout)
    seqs = [{"max_seqs": n} for n in STEP_SEQS if n < now.max_seqs]
    tokens = [{"max_batched_tokens": n} for n in STEP_TOKENS if n < now.max_batched_tokens]
    sampling = any(rank.bytes_of("logits") for rank in best.ledger.ranks)
    both = [{**a, **b} for a, b in zip(tokens[-2:], seqs[-2:], strict=False)]
    for changes in (*(seqs + tokens if sampling else tokens + seqs), *both):
        if _fits_with(case, best.layout, **changes):
            return " and ".join(f"{name} {show_count(value)}" for name, value in changes.items())
    return ""


def _more_memory(case: Case, best: Tried) -> str:
    now = case.engine.resolve(case.options, case.model, case.cluster.accelerator, best.layout).memory_utilization
    for share in UTILISATIONS:
        if share > now and _fits_with(case, best.layout, memory_utilization=share):
            return f"memory_utilization {share:g}"
    return ""


def _less_memory(case: Case, best: Tried) -> str:
    """A smaller budget, where what lies beside it is short."""
    now = case.engine.resolve(case.options, case.model, case.cluster.accelerator, best.layout).memory_utilization
    for share in LOWER_UTILISATIONS:
        if share < now and _fits_with(case, best.layout, memory_utilization=share):
            return f"memory_utilization {share:g}"
    return ""


def _eager(case: Case, best: Tried) -> str:
    return "no CUDA graphs (eager)" if not case.options.eager and _fits_with(case, best.layout, eager=True) else ""


def _shorter(case: Case, best: Tried) -> str:
    """The longest request that fits, where the longest is the engine's limit and not the workload's own length."""
    asked, tokens = case.options.max_model_len, best.ledger.kv_tokens
    if not asked or not tokens:
        return ""
    length = tokens // best.layout.dp_attn
    if length < case.workload.total_tokens or not _fits_with(case, best.layout, max_model_len=length):
        return ""
    return f"max_model_len {show_count(length)}"


def _fewer(case: Case, best: Tried) -> str:
    wanted = case.workload.concurrency
    most = best.ledger.requests * (case.cluster.size // best.layout.size)
    if not wanted or not 0 < most < wanted:
        return ""
    fewer = case._replace(workload=replace(case.workload, concurrency=most))
    return f"{show_count(most)} requests at once" if judge(fewer, best.layout).fits else ""


def _more_devices(case: Case) -> str:
    """A single small machine may have more of the same devices; one read from a topology file is what it is."""
    cluster = case.cluster
    if cluster.detail is not None:
        return ""
    for count in (2, 4, 8):
        if cluster.nodes > 1 or count <= cluster.devices_per_node or count % cluster.island_size:
            continue
        one = judge(case._replace(cluster=replace(cluster, devices_per_node=count)), Layout(tp=count))
        if one.fits:
            return f"{count} devices: {one.layout}"
    return ""


def _more_nodes(case: Case) -> str:
    """The smallest number of nodes more, up to eight, over which a pipeline or tp fits."""
    for nodes in range(case.cluster.nodes + 1, case.cluster.nodes + 9):
        one = _across(case._replace(cluster=_with_nodes(case.cluster, nodes)), nodes)
        if one is None:
            continue
        inside = "tp inside each node" if one.layout.tp <= case.cluster.devices_per_node else "tp across nodes"
        count = "a second node" if nodes == 2 else f"{nodes} nodes in place of {case.cluster.nodes}"
        return f"{count}: {one.layout} ({inside})"
    return ""


def _with_nodes(cluster: Cluster, nodes: int) -> Cluster:
    """The cluster grown; a single machine gets some network, whose speed no ledger depends on."""
    if cluster.nics_per_node:
        fabric = cluster.fabric if cluster.fabric != "none" else "fat-tree"
        return replace(cluster, nodes=nodes, fabric=fabric)
    return replace(cluster, nodes=nodes, nics_per_node=1, nic_Bps=1e9, fabric="fat-tree")


def _across(case: Case, nodes: int) -> Tried | None:
    """The pipeline over whole nodes, or tp over all of them, if one fits."""
    devices = case.cluster.devices_per_node
    for layout in (Layout(tp=devices, pp=nodes), Layout(tp=devices * nodes)):
        if layout.pp <= len(case.model.layers):
            one = judge(case, layout)
            if one.fits:
                return one
    return None


def _notes(case: Case, layout: Layout) -> tuple[str, ...]:
    """Rules the figures rest on that a reader would not guess."""
    found = []
    batches = case.options.microbatches or layout.pp
    if batches > 1:
        found.append(f"requests counts all {batches} batches in flight; one step takes 1/{batches} of them")
    if layout.dp_attn > 1:
        found.append(f"requests and KV tokens add up over {layout.dp_attn} attention replicas")
    return tuple(found)

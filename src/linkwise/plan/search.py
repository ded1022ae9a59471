"""Every layout the model, the engine and the cluster allow, each with the first resource that does not fit or with the
point it operates at (DESIGN §2.4). Choosing among the feasible ones is choose.py's question."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from linkwise.cluster.types import Cluster, Tier
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.engine.base import Engine, Options
from linkwise.model.types import Model
from linkwise.plan.ledger import ledger
from linkwise.plan.operate import operation
from linkwise.plan.time import Span, spans
from linkwise.plan.types import Candidate, Ledger, Point, Rejection, Shortfall
from linkwise.workload.types import Workload

# Twelve batch sizes per layout: powers of two up to where an engine's defaults stop.
BATCHES = tuple(2**i for i in range(12))

DEGREES = ("tp", "pp", "cp", "dp_attn", "dcp", "ep")


Sizes = npt.NDArray[np.int64]


class Points(NamedTuple):
    """A layout at several batch sizes."""

    sizes: Sizes
    tpot: npt.NDArray[np.float64]
    ttft: npt.NDArray[np.float64]
    rate: npt.NDArray[np.float64]
    meets_tpot: npt.NDArray[np.bool_]
    meets_ttft: npt.NDArray[np.bool_]


class Found(NamedTuple):
    """What a search saw: feasible layouts with their ledgers, rejected ones with reasons."""

    candidates: tuple[Candidate, ...]
    ledgers: tuple[Ledger, ...]
    rejected: tuple[Rejection, ...]
    considered: int


def divisors(n: int) -> list[int]:
    """All divisors, ascending."""
    return [d for d in range(1, n + 1) if n % d == 0]


def group_sizes(cluster: Cluster) -> list[int]:
    """Group sizes that pack: parts of a node, or whole nodes."""
    inside = divisors(cluster.devices_per_node)
    across = [cluster.devices_per_node * n for n in range(2, cluster.nodes + 1) if cluster.nodes % n == 0 or n <= 4]
    return inside + sorted(set(across))


def layouts(model: Model, cluster: Cluster, fixed: dict[str, int]) -> Iterator[Layout]:
    """Every combination of degrees that packs into the cluster, smallest group first; `fixed` degrees are given.

    ep is 1 for dense models. Sequence-sharded tp is a variant the user asks for, not a degree to search.
    """
    unknown = sorted(set(fixed) - {*DEGREES, "sequence_sharded"})
    if unknown:
        raise InputError(f"unknown degree {', '.join(unknown)}", where="layout", expected=", ".join(DEGREES))
    sharded = bool(fixed.get("sequence_sharded", 0))
    sizes = group_sizes(cluster)
    if {"tp", "pp", "cp", "dp_attn"} <= set(fixed):
        product = fixed["tp"] * fixed["pp"] * fixed["cp"] * fixed["dp_attn"]
        sizes = [product] if product <= cluster.size else []
    for size in sizes:
        for pp in _options(fixed, "pp", size):
            for cp in _options(fixed, "cp", size // pp):
                for dp in _options(fixed, "dp_attn", size // pp // cp):
                    tp = size // pp // cp // dp
                    if fixed.get("tp", tp) != tp or pp > len(model.layers):
                        continue
                    for dcp in _options(fixed, "dcp", tp):
                        for ep in _options(fixed, "ep", cp * dp * tp) if model.moe else _options(fixed, "ep", 1):
                            yield Layout(
                                tp=tp, pp=pp, cp=cp, dp_attn=dp, dcp=dcp, ep=ep, sequence_sharded=sharded
                            )  # fmt: skip


def _options(fixed: dict[str, int], name: str, within: int) -> list[int]:
    if name in fixed:
        return [fixed[name]] if fixed[name] >= 1 and within % fixed[name] == 0 else []
    return divisors(within)


def search(
    model: Model,
    cluster: Cluster,
    engine: Engine,
    options: Options,
    workload: Workload,
    fixed: dict[str, int] | None = None,
) -> Found:
    """Evaluate every layout at twelve batch sizes."""
    candidates: list[Candidate] = []
    ledgers: list[Ledger] = []
    rejected: list[Rejection] = []
    considered = 0
    for layout in layouts(model, cluster, fixed or {}):
        considered += 1
        replicas = cluster.size // layout.size
        refusal = engine.refuses(model, layout, devices_per_node=cluster.devices_per_node)
        if refusal is not None:
            rejected.append(
                Rejection(layout=layout, replicas=replicas, shortfall=_illegal(refusal.reason, refusal.change))
            )
            continue
        memory = ledger(model, cluster, engine, layout, options, workload)
        if memory.shortfall is not None:
            rejected.append(Rejection(layout=layout, replicas=replicas, shortfall=memory.shortfall))
            continue
        outcome = evaluate(model, cluster, engine, options, workload, layout, memory)
        if isinstance(outcome, Shortfall):
            rejected.append(Rejection(layout=layout, replicas=replicas, shortfall=outcome))
        else:
            candidates.append(outcome)
            ledgers.append(memory)
    return Found(tuple(candidates), tuple(ledgers), tuple(rejected), considered)


def _illegal(reason: str, change: str) -> Shortfall:
    return Shortfall(resource="legality", rank=0, need=0, have=0, unit="", reason=reason, change=change)


def crossing(layout: Layout, places: dict[str, Span]) -> str:
    """The slowest tier a tensor group crosses."""
    return places["tp"].tier.value if layout.tp > 1 else Tier.DEVICE.value


def evaluate(
    model: Model,
    cluster: Cluster,
    engine: Engine,
    options: Options,
    workload: Workload,
    layout: Layout,
    memory: Ledger,
) -> Candidate | Shortfall:
    """The point a fitting layout operates at, or the first target it misses."""
    places = spans(layout, cluster)
    most = min(memory.requests, engine.resolve(options, model, cluster.accelerator, layout).max_seqs * layout.dp_attn)
    targets = workload.targets

    def at(sizes: Sizes) -> Points:
        found = operation(model, layout, engine, cluster, workload, options, sizes, places)
        tpot, ttft, rate = (np.broadcast_to(x, sizes.shape) for x in (found.tpot, found.ttft, found.rate))
        return Points(sizes, tpot, ttft, rate, tpot <= (targets.tpot_s or np.inf), ttft <= (targets.ttft_s or np.inf))

    available = cluster.size // layout.size
    wanted = workload.rate_per_s
    grid = np.array(BATCHES)
    if workload.concurrency is not None:
        # So many requests and no more: replicas beyond them would idle.
        available = min(available, workload.concurrency)
        most = min(most, -(-workload.concurrency // available))
        grid = grid if wanted is not None else np.array([most])
    points = at(np.unique(np.minimum(grid, most)))
    good = points.meets_tpot & points.meets_ttft
    if good.any() and not good[-1]:
        # The largest batch inside the targets lies between two powers of two: look there.
        last = int(np.flatnonzero(good)[-1])
        between = np.linspace(points.sizes[last], points.sizes[last + 1], len(BATCHES)).astype(int)
        points = at(np.unique(np.concatenate([points.sizes, between])))
        good = points.meets_tpot & points.meets_ttft
    sizes, tpot, ttft, rate, meets_tpot, meets_ttft = points
    if not meets_ttft.any():
        return _missed("ttft", float(ttft.min()), targets.ttft_s or 0.0, places, layout)
    if not meets_tpot.any():
        return _missed("tpot", float(tpot.min()), targets.tpot_s or 0.0, places, layout)
    if not good.any():
        return _missed("tpot", float(tpot[meets_ttft].min()), targets.tpot_s or 0.0, places, layout)
    best = int(np.argmax(np.where(good, rate, -1.0)))
    max_rate = float(rate[best])
    replicas = available if wanted is None else max(1, int(np.ceil(wanted / max_rate - 1e-9)))
    if replicas > available:
        return Shortfall(
            resource="rate", rank=0, need=wanted or 0.0, have=max_rate * available, unit="requests/s",
            reason=f"{available} replica(s) sustain {max_rate:.2f} requests/s each within the targets",
            change=f"{replicas} replicas of {layout.size} devices: {replicas * layout.size} devices in all",
        )  # fmt: skip
    offered = max_rate if wanted is None else wanted / replicas
    # The smallest batch that carries the offered rate: where a replica settles.
    enough = good & (rate >= offered * (1 - 1e-9))
    settled = int(np.argmax(enough)) if enough.any() else best
    return Candidate(
        layout=layout, replicas=replicas, group_size=layout.size, max_rate_per_s=max_rate, requests=memory.requests,
        point=Point(
            batch=int(sizes[settled]), tpot_s=float(tpot[settled]), ttft_s=float(ttft[settled]),
            rate_per_s=offered, tokens_per_s=offered * workload.osl_tokens,
        ),
        kv_tokens=memory.kv_tokens, weights_bytes_per_rank=max(r.bytes_of("weights") for r in memory.ranks),
        tier=crossing(layout, places), stage_tier=places["stage"].tier.value,
    )  # fmt: skip


def _missed(resource: str, have: float, need: float, places: dict[str, Span], layout: Layout) -> Shortfall:
    name = resource.upper()
    across = f"; tp {layout.tp} crosses the {places['tp'].tier.value} tier" if layout.tp > 1 else ""
    return Shortfall(
        resource=resource, rank=0, need=need, have=have, unit="s",
        reason=f"best {name} is {have * 1e3:.1f} ms against {need * 1e3:.1f} ms{across}",
        change=f"a {name} target of {have * 1e3:.0f} ms, or more ranks in the group",
    )  # fmt: skip

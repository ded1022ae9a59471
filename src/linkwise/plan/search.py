"""Every layout the model, the engine and the cluster allow, each with the first resource that does not fit or with the
point it operates at (DESIGN §2.4). Choosing among the feasible ones is choose.py's question."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from linkwise.cluster.types import Cluster, Tier
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.engine.base import Engine, Options
from linkwise.model.types import Model
from linkwise.plan.ledger import ledger
from linkwise.plan.operate import operation
from linkwise.plan.time import Span, spans
from linkwise.plan.types import Candidate, Ledger, Point, Rejection, Shortfall
from linkwise.workload.types import Targets, Workload

if TYPE_CHECKING:
    from concurrent.futures import Future

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

    def only(self, some: npt.NDArray[np.bool_]) -> "Points":
        """Some of the sizes."""
        return Points(
            self.sizes[some], self.tpot[some], self.ttft[some], self.rate[some], self.meets_tpot[some],
            self.meets_ttft[some],
        )  # fmt: skip


Order = Callable[[Layout, Ledger], dict[str, Span]]


class Other(Protocol):
    """A process that takes work, such as an executor."""

    def submit(self, work: Callable[..., Any], /, *given: Any) -> "Future[Any]":
        """Work with what it is given."""
        ...


class Found(NamedTuple):
    """What a search saw: feasible layouts with their ledgers, rejected ones with reasons."""

    candidates: tuple[Candidate, ...]
    ledgers: tuple[Ledger, ...]
    rejected: tuple[Rejection, ...]
    considered: int


def divisors(n: int) -> list[int]:
    """All divisors, ascending."""
    return [d for d in range(1, n + 1) if n % d == 0]


# Groups beyond this many ranks are searched only while nothing smaller is feasible, and never beyond MAX_RANKS: the
# rule prefers small groups, and nothing published has made a larger one worth its size.
USUAL_RANKS = 72
MAX_RANKS = 1024
WORTH = 24  # layouts of one size from which on a second process is worth its messages


def group_sizes(cluster: Cluster) -> list[int]:
    """Group sizes that pack, ascending: parts of a node, or whole nodes."""
    inside = divisors(cluster.devices_per_node)
    most = min(cluster.nodes, max(1, MAX_RANKS // cluster.devices_per_node))
    across = [n for n in range(2, most + 1) if cluster.nodes % n == 0 or n <= 4]
    return inside + [cluster.devices_per_node * n for n in across]


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
    replicas: int | None = None,
    order: Order | None = None,
    seen: Callable[[Layout, Points], None] | None = None,
    other: Other | None = None,
) -> Found:
    """Evaluate every layout at twelve batch sizes. replicas: how many to run; None = what rate or cluster ask for.

    order: where a layout's ranks lie when not on devices in order. seen: told of every layout that fits and of its
    batches. other: a process that takes half of the layouts; None = all here.
    """
    candidates: list[Candidate] = []
    ledgers: list[Ledger] = []
    rejected: list[Rejection] = []
    considered = 0
    case = model, cluster, engine, options, workload
    # Groups of the usual sizes at once, as another process knows what it has been sent only as long as it looks.
    for size, some in groupby(layouts(model, cluster, fixed or {}), key=lambda layout: max(layout.size, USUAL_RANKS)):
        if candidates and size > max(USUAL_RANKS, candidates[0].group_size):
            break
        rows = [(layout, _refused(layout, case, replicas)) for layout in some]
        considered += len(rows)
        looks = iter(_looks(case, replicas, [layout for layout, no in rows if no is None], order, other))
        for layout, no in rows:
            one = None if no is not None else next(looks)
            short = no if one is None else one.outcome
            if one is not None and one.points is not None and seen is not None:
                seen(layout, one.points)
            if isinstance(short, Shortfall):
                rejected.append(Rejection(layout=layout, replicas=cluster.size // layout.size, shortfall=short))
            elif one is not None and isinstance(one.outcome, Candidate):
                candidates.append(one.outcome)
                ledgers.append(one.memory)
    return Found(tuple(candidates), tuple(ledgers), tuple(rejected), considered)


_Case = tuple[Model, Cluster, Engine, Options, Workload]


class _Look(NamedTuple):
    """What was found of a layout that the engine takes. points: where it fits, at its batches."""

    memory: Ledger
    outcome: Candidate | Shortfall
    points: Points | None


def _refused(layout: Layout, case: _Case, replicas: int | None) -> Shortfall | None:
    """Why a layout is none here."""
    model, cluster, engine, *_ = case
    if replicas is not None and replicas > cluster.size // layout.size:
        return _illegal(f"{replicas} replicas of {layout.size} devices are more than {cluster.size} devices", "")
    refusal = engine.refuses(model, layout, devices_per_node=cluster.devices_per_node)
    return None if refusal is None else _illegal(refusal.reason, refusal.change)


def _looks(
    case: _Case, replicas: int | None, todo: Sequence[Layout], order: Order | None, other: Other | None
) -> list[_Look]:
    """Every layout's outcome, in order; half of them found in another process where there is one and it pays."""
    if other is None or order is not None or len(todo) < WORTH:
        return _looked(case, replicas, todo, order)
    theirs = other.submit(_looked, case, replicas, todo[1::2])
    ours = _looked(case, replicas, todo[0::2])
    return [one for pair in zip_longest(ours, theirs.result()) for one in pair if one is not None]


def _looked(case: _Case, replicas: int | None, todo: Sequence[Layout], order: Order | None = None) -> list[_Look]:
    found = []
    for layout in todo:
        memory = ledger(*case[:3], layout, *case[3:])
        points: list[Points] = []

        def keep(_: Layout, at: Points, into: list[Points] = points) -> None:
            into.append(at)

        places = order(layout, memory) if order else None
        outcome = memory.shortfall or evaluate(*case, layout, memory, replicas, places, seen=keep)
        found.append(_Look(memory, outcome, points[0] if points else None))
    return found


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
    replicas: int | None = None,
    places: dict[str, Span] | None = None,
    *,
    exact: bool = False,
    seen: Callable[[Layout, Points], None] | None = None,
) -> Candidate | Shortfall:
    """The point a fitting layout operates at, or the first target it misses. replicas, places as in `search`.

    exact: at the smallest batch that carries the rate, not the next of the twelve. seen: as in `search`.
    """
    places = places or spans(layout, cluster)
    available = replicas or cluster.size // layout.size
    most = min(memory.requests, engine.resolve(options, model, cluster.accelerator, layout).max_seqs * layout.dp_attn)
    grid: Sizes = np.array(BATCHES)
    if workload.concurrency is not None:
        # So many requests and no more: replicas beyond them would idle.
        available = min(available, workload.concurrency)
        most = min(most, -(-workload.concurrency // available))
        grid = grid if workload.rate_per_s is not None else np.array([most])

    def at(sizes: Sizes) -> Points:
        found = operation(model, layout, engine, cluster, workload, options, sizes, places)
        tpot, ttft, rate = (np.broadcast_to(x, sizes.shape) for x in (found.tpot, found.ttft, found.rate))
        targets = workload.targets
        return Points(sizes, tpot, ttft, rate, tpot <= (targets.tpot_s or np.inf), ttft <= (targets.ttft_s or np.inf))

    sizes = np.unique(np.minimum(grid, most))
    points = at(sizes) if workload.targets == Targets() else _refined(at, sizes)
    if seen is not None:
        seen(layout, points)
    good = points.meets_tpot & points.meets_ttft
    if not good.any():
        return _missed(points, workload, places, layout)
    settled = _settle(points, good, available, workload)
    if exact and not isinstance(settled, Shortfall):
        points, good = _closer(at, points, good, settled[0])
        settled = _settle(points, good, available, workload)
    if isinstance(settled, Shortfall):
        return replace(settled, change=settled.change.format(size=layout.size))
    point, max_rate, used = settled
    return Candidate(
        layout=layout,
        replicas=used if replicas is None else replicas,
        group_size=layout.size,
        max_rate_per_s=max_rate,
        requests=memory.requests,
        point=point,
        kv_tokens=memory.kv_tokens,
        weights_bytes_per_rank=max(r.bytes_of("weights") for r in memory.ranks),
        tier=crossing(layout, places),
        stage_tier=places["stage"].tier.value,
    )


def _refined(at: Callable[[Sizes], Points], sizes: Sizes) -> Points:
    """Points at these sizes; the largest inside the targets lies between two of them, so also at some between those.

    Everything between is evaluated at once: a layout's time hardly grows with the number of its sizes.
    """
    between = [np.linspace(a, b, len(BATCHES)).astype(int) for a, b in pairwise(sizes.tolist())]
    every = at(np.unique(np.concatenate([sizes, *between])))
    good = every.meets_tpot & every.meets_ttft
    shown = np.isin(every.sizes, sizes)
    inside = np.flatnonzero(good & shown)
    if len(inside) and inside[-1] < len(good) - 1:
        last = int(np.searchsorted(sizes, every.sizes[inside[-1]]))
        shown |= np.isin(every.sizes, between[last])
    return every.only(shown)


def _closer(
    at: Callable[[Sizes], Points], points: Points, good: npt.NDArray[np.bool_], settled: Point
) -> tuple[Points, npt.NDArray[np.bool_]]:
    """All batches between the one settled at and the next smaller one known."""
    last = int(np.searchsorted(points.sizes, settled.batch))
    below = int(points.sizes[last - 1]) if last else 0
    for _ in range(3):
        sizes = np.unique(np.linspace(below + 1, settled.batch, len(BATCHES) + 1).astype(int))
        between = at(sizes)
        enough = between.rate >= settled.rate_per_s * (1 - 1e-9)
        first = int(np.argmax(enough)) if enough.any() else len(sizes) - 1
        below = int(sizes[first - 1]) if first else below
        settled = replace(settled, batch=int(sizes[first]))
    both = at(np.unique(np.append(points.sizes, settled.batch)))
    return both, both.meets_tpot & both.meets_ttft


def _settle(
    points: Points, good: npt.NDArray[np.bool_], available: int, workload: Workload
) -> tuple[Point, float, int] | Shortfall:
    """Where a replica settles: the smallest batch that carries its share of the rate, else the best rate."""
    best = int(np.argmax(np.where(good, points.rate, -1.0)))
    max_rate, wanted = float(points.rate[best]), workload.rate_per_s
    used = available if wanted is None else max(1, math.ceil(wanted / max_rate - 1e-9))
    if used > available:
        return Shortfall(
            resource="rate",
            rank=0,
            need=wanted or 0.0,
            have=max_rate * available,
            unit="requests/s",
            reason=f"{available} replica(s) sustain {max_rate:.2f} requests/s each within the targets",
            change=f"{used} replicas of {{size}} devices",
        )
    offered = max_rate if wanted is None else wanted / used
    enough = good & (points.rate >= offered * (1 - 1e-9))
    i = int(np.argmax(enough)) if enough.any() else best
    return (
        Point(
            batch=int(points.sizes[i]),
            tpot_s=float(points.tpot[i]),
            ttft_s=float(points.ttft[i]),
            rate_per_s=offered,
            tokens_per_s=offered * workload.osl_tokens,
        ),
        max_rate,
        used,
    )


def _missed(points: Points, workload: Workload, places: dict[str, Span], layout: Layout) -> Shortfall:
    """The first latency target that no batch size meets, or none together with the other."""
    late = not points.meets_ttft.any()
    resource = "ttft" if late else "tpot"
    need = (workload.targets.ttft_s if late else workload.targets.tpot_s) or 0.0
    have = points.ttft if late else points.tpot if not points.meets_tpot.any() else points.tpot[points.meets_ttft]
    best, name = float(have.min()), resource.upper()
    across = f"; tp {layout.tp} spans the {places['tp'].tier.value} tier" if layout.tp > 1 else ""
    return Shortfall(
        resource=resource,
        rank=0,
        need=need,
        have=best,
        unit="s",
        reason=f"best {name} is {best * 1e3:.1f} ms against {need * 1e3:.1f} ms{across}",
        change=f"a {name} target of {math.ceil(best * 1e5) / 100:g} ms, or more ranks in the group",
    )

"""What a layout that fits delivers: at twelve batch sizes, where it settles, or the first target it misses."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from linkwise.cluster.types import Cluster, Tier
from linkwise.core.layout import Layout
from linkwise.core.quantity import Num
from linkwise.engine.base import Engine, Options
from linkwise.model.types import Model
from linkwise.plan.operate import Operation, Replica, among, at_work, full, operations, replica, seats
from linkwise.plan.rounds import waiting
from linkwise.plan.time import Span, spans
from linkwise.plan.types import Candidate, Ledger, Point, Shortfall
from linkwise.workload.types import Targets, Workload

# Twelve batch sizes per layout: powers of two up to where an engine's defaults stop.
BATCHES = tuple(2**i for i in range(12))

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


def crossing(layout: Layout, places: dict[str, Span]) -> str:
    """The slowest tier a tensor group crosses."""
    return places["tp"].tier.value if layout.tp > 1 else Tier.DEVICE.value


class Trial(NamedTuple):
    """A layout that fits, before it is known what it delivers.

    replicas: so many run; None = what the load takes. available: replicas that have work, no more than users. alike:
    replicas that share the load; None = as many as carry the rate with so many requests at hand. shown: batch sizes it
    is looked at; sizes: those and some between them. at: what a replica does at other sizes; replica: at `sizes`.
    seats: requests served at once at most, which those that come at a rate wait for; at and replica have them last.
    None = nobody waits.
    """

    workload: Workload
    layout: Layout
    memory: Ledger
    places: dict[str, Span]
    replicas: int | None
    available: int
    alike: int | None
    shown: Sizes
    sizes: Sizes
    seats: int | None
    at: Callable[[npt.NDArray[Any]], Replica]
    replica: Replica


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
) -> Candidate | Shortfall:
    """The point a fitting layout operates at, or the first target it misses. replicas, places as in `search`.

    exact: with as many requests at hand as carry the rate on average, not the next of the twelve batch sizes.
    """
    one = trial(model, cluster, engine, options, workload, layout, memory, replicas, places)
    (found, points), *_ = outcomes([one])
    # Users of a closed loop are at hand whatever they are served at.
    closed = workload.rate_per_s is None and workload.concurrency is not None
    if not exact or closed or not isinstance(found, Candidate):
        return found
    return _outcome(one, _closer(one._replace(alike=found.replicas), points, found.point))


def trial(
    model: Model, cluster: Cluster, engine: Engine, options: Options, workload: Workload, layout: Layout,
    memory: Ledger, replicas: int | None = None, places: dict[str, Span] | None = None,
) -> Trial:  # fmt: skip
    """What `outcomes` judges. Arguments as in `evaluate`."""
    where_to = places or spans(layout, cluster)
    available = replicas or cluster.size // layout.size
    resolved = engine.resolve(options, model, cluster.accelerator, layout)
    most = min(memory.requests, resolved.max_seqs * layout.dp_attn)
    grid: Sizes = np.array(BATCHES)
    if workload.concurrency is not None:
        # So many requests and no more: replicas beyond them would idle.
        available = min(available, workload.concurrency)
        most = min(most, -(-workload.concurrency // available))
        grid = grid if workload.rate_per_s is not None else np.array([most])
    shown = np.unique(np.minimum(grid, most))
    sizes = shown if workload.targets == Targets() else np.unique(np.concatenate([shown, *_between(shown)]))

    held = None if workload.rate_per_s is None else seats(memory, engine, workload, resolved, layout)

    def at(batch: npt.NDArray[Any]) -> Replica:
        every = batch if held is None else np.append(batch, held)
        return replica(model, layout, engine, cluster, workload, options, every, where_to)

    alike = None if workload.rate_per_s is not None and replicas is None else available
    return Trial(workload, layout, memory, where_to, replicas, available, alike, shown, sizes, held, at, at(sizes))


def outcomes(trials: Sequence[Trial]) -> list[tuple[Candidate | Shortfall, Points]]:
    """What each delivers at its best, or the first target it misses; and its batches."""
    every = _points([(one, one.sizes, one.replica) for one in trials])
    points = [_refined(one, each) for one, each in zip(trials, every, strict=True)]
    return [(_outcome(one, each), each) for one, each in zip(trials, points, strict=True)]


def _points(asked: Sequence[tuple[Trial, npt.NDArray[Any], Replica]]) -> list[Points]:
    """What each trial's replica does at these sizes."""
    most = iter(operations([full(one) for trial, _, one in asked if trial.seats is not None]))
    counts = _counts(asked)
    found = operations([among(one, count) for (*_, one), count in zip(asked, counts, strict=True)])
    return [
        _judged(one, sizes, each, None if one.seats is None else next(most), count)
        for (one, sizes, _), each, count in zip(asked, found, counts, strict=True)
    ]


def _counts(asked: Sequence[tuple[Trial, npt.NDArray[Any], Replica]]) -> list[Num]:
    """Replicas that share the load, at each size where the rate decides: of one by itself, to begin with."""
    alone = iter(operations([one for trial, _, one in asked if trial.alike is None]))
    return [one.alike if one.alike is not None else _count(one, next(alone).rate) for one, *_ in asked]


def _count(one: Trial, rate: Num) -> Num:
    return np.clip(np.ceil((one.workload.rate_per_s or 0.0) / rate - 1e-9), 1, one.available)


def _judged(one: Trial, sizes: npt.NDArray[Any], found: Operation, most: Operation | None, alike: Num) -> Points:
    """most: of a replica with every seat taken."""
    known = len(sizes) + (one.seats is not None)
    tpot, ttft, rate, spread = (
        np.broadcast_to(x, known)[: len(sizes)] for x in (found.tpot, found.ttft, found.rate, found.spread)
    )
    if one.seats is not None and most is not None:
        count = np.broadcast_to(alike, known)[: len(sizes)]
        ttft = ttft + waiting(sizes, spread, rate, one.seats, most.rate, count)
    targets = one.workload.targets
    return Points(sizes, tpot, ttft, rate, tpot <= (targets.tpot_s or np.inf), ttft <= (targets.ttft_s or np.inf))


def _outcome(one: Trial, points: Points) -> Candidate | Shortfall:
    layout, memory = one.layout, one.memory
    if (full_up := _crowded(one)) is not None:
        return full_up
    good = points.meets_tpot & points.meets_ttft
    if not good.any():
        return _missed(points, one.workload, one.places, layout)
    settled = _settle(points, good, one)
    if isinstance(settled, Shortfall):
        return replace(settled, change=settled.change.format(size=layout.size))
    point, max_rate, used = settled
    return Candidate(
        layout=layout,
        replicas=used if one.replicas is None else one.replicas,
        group_size=layout.size,
        max_rate_per_s=max_rate,
        requests=memory.requests,
        point=point,
        kv_tokens=memory.kv_tokens,
        weights_bytes_per_rank=max(r.bytes_of("weights") for r in memory.ranks),
        tier=crossing(layout, one.places),
        stage_tier=one.places["stage"].tier.value,
    )


def _crowded(one: Trial) -> Shortfall | None:
    """Users of a closed loop that replicas of a number asked for have no memory for: the ledger shares them among all
    that the devices hold."""
    users, memory, size = one.workload.concurrency, one.memory, one.layout.size
    if one.replicas is None or users is None or one.workload.rate_per_s is not None:
        return None
    each = -(-users // one.available)
    if each <= memory.requests:
        return None
    tightest = memory.ranks[memory.tightest]
    return Shortfall(
        resource="kv concurrency",
        rank=tightest.ranks[0],
        need=tightest.kv_bytes * each // memory.requests,
        have=tightest.kv_bytes,
        unit="B",
        reason=f"{users:,} requests on {one.available} replica(s) are {each:,} on each; KV holds {memory.requests:,}",
        change=f"{-(-users // memory.requests)} replicas of {size} devices",
    )


def _between(shown: Sizes) -> list[Sizes]:
    """Sizes between each of them and the next: a layout's time hardly grows with the number of its sizes."""
    return [np.linspace(a, b, len(BATCHES)).astype(int) for a, b in pairwise(shown.tolist())]


def _refined(one: Trial, every: Points) -> Points:
    """Points at the sizes to look at; the largest inside the targets lies between two of them, so those between too."""
    if len(one.sizes) == len(one.shown):
        return every
    good = every.meets_tpot & every.meets_ttft
    places = np.searchsorted(one.sizes, one.shown)
    kept = np.zeros(len(one.sizes), bool)
    kept[places] = True
    inside = np.flatnonzero(good[places])
    if len(inside) and inside[-1] < len(places) - 1:
        last = int(inside[-1])
        kept[places[last] : places[last + 1]] = True
    return every.only(kept)


def _closer(one: Trial, points: Points, settled: Point) -> Points:
    """The points, and the one that carries the rate: found between the batch settled at and the next smaller one known.

    Where a rate is asked, requests at hand are a mean, which need not be a whole number.
    """
    last, whole = int(np.searchsorted(points.sizes, settled.batch)), one.workload.rate_per_s is None
    idle = at_work(one.workload, settled.batch, one.replicas or one.available)
    wanted = settled.rate_per_s if idle is None else settled.rate_per_s / idle
    below, above = float(points.sizes[last - 1]) if last else 0.0, float(settled.batch)
    found: list[float] = []
    for _ in range(3):
        sizes = np.linspace(below, above, len(BATCHES) + 1)
        sizes = np.unique(np.ceil(sizes[1:])) if whole else sizes[1:]
        rates = operations([among(one.at(sizes), one.alike or 1)])[0].rate[: len(sizes)]
        enough = rates >= wanted * (1 - 1e-9)
        first = int(np.argmax(enough)) if enough.any() else len(sizes) - 1
        if first and not whole:
            share = (wanted - rates[first - 1]) / (rates[first] - rates[first - 1])
            found = [float(sizes[first - 1] + share * (sizes[first] - sizes[first - 1]))]
        below, above = float(sizes[first - 1]) if first else below, float(sizes[first])
        if whole and above - below <= 1:
            break
    sizes = np.unique(np.concatenate([points.sizes, found, [above]]))
    return _points([(one, sizes, one.at(sizes))])[0]


def _settle(points: Points, good: npt.NDArray[np.bool_], one: Trial) -> tuple[Point, float, int] | Shortfall:
    """Where a replica settles: the fewest requests at hand that carry its share of the rate, else the best rate.

    Its rate is the mean of all that run, those without a user too.
    """
    available, workload = one.available, one.workload
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
    if one.replicas is not None:  # all that were asked for share the load, also where fewer would carry it
        used = available
    offered = max_rate if wanted is None else wanted / used
    enough = good & (points.rate >= offered * (1 - 1e-9))
    i = int(np.argmax(enough)) if enough.any() else best
    share = at_work(workload, math.ceil(points.sizes[i]), one.replicas or used)
    offered *= 1 if share is None else share
    return (
        Point(
            batch=math.ceil(points.sizes[i]),
            at_hand=float(points.sizes[i]),
            tpot_s=float(points.tpot[i]),
            ttft_s=float(points.ttft[i]),
            rate_per_s=offered,
            tokens_per_s=offered * workload.osl_tokens,
        ),
        max_rate,
        used,
    )


def _ms(seconds: float, other: float) -> str:
    """Milliseconds to the digit, the first at least, that tells them from the other's."""
    shown = [(f"{seconds * 1e3:.{digits}f}", f"{other * 1e3:.{digits}f}") for digits in range(1, 7)]
    return next((one for one, two in shown if one != two), shown[0][0])


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
        reason=f"best {name} is {_ms(best, need)} ms against {_ms(need, best)} ms{across}",
        change=f"a {name} target of {math.ceil(best * 1e5) / 100:g} ms, or more ranks in the group",
    )

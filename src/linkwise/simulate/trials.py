"""Runs of pools at one number of replicas and one rate after another, judged at exact percentiles."""

import math
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from linkwise.core.errors import InputError
from linkwise.core.units import show_apart
from linkwise.simulate.fleet import Counts
from linkwise.simulate.rules import Fault, Pool, Run
from linkwise.simulate.run import simulate
from linkwise.simulate.state import DONE, Array
from linkwise.simulate.summary import percentile
from linkwise.simulate.types import Simulated
from linkwise.workload.requests import Requests
from linkwise.workload.types import Targets

CLOSE = 1.01  # the rate that replicas hold is found to this factor
WARM = 0.1  # share of the run that is left out as warming up, or two stays of a request where that is longer
AFTER_S = 60.0  # how long after a failure its requests are looked at


class Seen(NamedTuple):
    """One run. missed: what it does not meet, in words."""

    ttft_s: float
    tpot_s: float | None
    missed: tuple[str, ...]


class Trials:
    """Runs of pools under these requests, sped up or slowed down. share: the percentile, 0.99 = 99 of 100 requests.

    run: how so many replicas are driven. drawn_per_s: the rate that the requests were drawn at, None for a trace.
    runs: how many were made; one asked for again is not made again.
    """

    def __init__(
        self, pools: Sequence[Pool], load: Requests, run: Callable[[Counts], Run], targets: Targets, share: float,
        drawn_per_s: float | None = None,
    ) -> None:  # fmt: skip
        self._pools, self._load, self._run, self._targets, self._share = pools, load, run, targets, share
        self._drawn = drawn_per_s is not None
        self._rate = rate_of(load)
        self._seen: dict[tuple[Counts, float], Seen] = {}

    @property
    def runs(self) -> int:
        return len(self._seen)

    def at(self, counts: Counts, rate_per_s: float) -> Seen:
        """What so many replicas of each pool do under so many requests/s."""
        key = counts, rate_per_s
        if key not in self._seen:
            self._seen[key] = self._judged(self._simulated(counts, rate_per_s, self._run(counts)))
        return self._seen[key]

    def alone(self) -> Seen:
        """What every request gets that meets nobody."""
        calm = self._load._replace(arrival_s=1e5 * np.arange(self._load.number, dtype=float))
        one = tuple(1 for _ in self._pools)
        return self._judged(simulate(self._sized(one), calm, self._run(one)))

    def failing(self, counts: Counts, pool: int, lost: int, rate_per_s: float) -> float:
        """The TTFT percentile of requests in the minute after `lost` replicas of a pool die together, half-way."""
        half = float(self._load.arrival_s[-1]) * self._rate / rate_per_s / 2
        first = sum(counts[:pool])
        faults = tuple(Fault(kind="down", replica=first + r, start_s=half, end_s=1e9) for r in range(lost))
        every = self._simulated(counts, rate_per_s, replace(self._run(counts), faults=faults)).requests
        hit = (every["arrival"] >= half) & (every["arrival"] <= half + AFTER_S) & (every["first"] >= 0)
        return _at(every["first"][hit] - every["arrival"][hit], self._share)

    def _sized(self, counts: Counts) -> list[Pool]:
        return [pool._replace(replicas=count) for pool, count in zip(self._pools, counts, strict=True)]

    def _simulated(self, counts: Counts, rate: float, run: Run) -> Simulated:
        quick = self._load._replace(arrival_s=np.multiply(self._load.arrival_s, self._rate / rate))
        return simulate(self._sized(counts), quick, run, asked_per_s=rate if self._drawn else None)

    def _judged(self, found: Simulated) -> Seen:
        kept = measured(found.requests)
        share, targets = self._share, self._targets
        several = kept[kept["output"] > 1]
        ttft = _at(kept["first"] - kept["arrival"], share)
        tpot = _at((several["end"] - several["first"]) / (several["output"] - 1), share) if len(several) else None
        missed = [f"saturated: {found.summary.saturation}"] if found.summary.saturated else []
        for name, value, limit in (("TTFT", ttft, targets.ttft_s), ("TPOT", tpot, targets.tpot_s)):
            if value is not None and limit is not None and value > limit:
                missed.append(f"{name} p{100 * share:g} {' against '.join(show_apart(value, limit))}")
        return Seen(ttft, tpot, tuple(missed))


def measured(every: Array) -> Array:
    """Served requests that arrive once the run is warm."""
    done = every[every["status"] == DONE]
    first, last = float(every["arrival"].min()), float(every["arrival"].max())
    stay = float(np.mean(done["end"] - done["arrival"]))
    warm = first + min((last - first) / 2, max(WARM * (last - first), 2 * stay))
    found: Array = done[done["arrival"] >= warm]
    return found


def _at(values: Array, share: float) -> float:
    return percentile(np.sort(values), share) if len(values) else 0.0


def rate_of(load: Requests) -> float:
    """Mean arrivals per second."""
    span = float(load.arrival_s[-1] - load.arrival_s[0])
    if load.number < 2 or span <= 0:
        raise InputError("all requests arrive at once", where="capacity", expected="arrivals that have a rate")
    return (load.number - 1) / span


def smallest(holds: Callable[[int], bool], start: int, most: int) -> int | None:
    """The smallest of 1..most that holds, the one above it too; None when `most` does not.

    More replicas may do worse than fewer, where their requests fall in step: a number that holds by such a chance alone
    is passed over.
    """
    low, high = 0, min(max(1, start), most)  # low does not hold
    while not holds(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        # Close below the start first: the closed form is rarely far off.
        middle = (low + high) // 2 if low or high <= 2 else max(1, high * 3 // 4)
        low, high = (low, middle) if holds(middle) else (middle, high)
    while high < most and not holds(high + 1):
        high += 2
        while high < most and not holds(high):
            high += 1
    return high if high < most or holds(most) else None


def fewest(holds: Callable[[Counts], bool], start: Counts, most: int, sizes: Counts) -> Counts | None:
    """The numbers of replicas that hold and take the fewest devices; None when no numbers of up to `most` do.

    sizes: devices of a replica, by pool. Of two pools the fewest of each is looked for beside plenty of the other; when
    those do not do together, numbers from there on are tried by the devices they take.
    """
    if len(start) == 1:
        found = smallest(lambda n: holds((n,)), start[0], most)
        return None if found is None else (found,)
    plenty = (min(most, max(1, start[0])), min(most, max(1, start[1])))
    while not holds(plenty):
        if max(plenty) == most:
            return None
        plenty = (min(most, 2 * plenty[0]), min(most, 2 * plenty[1]))
    first, second = plenty
    least = (
        _fewest_beside(lambda n, other: holds((n, other)), start[0], first, second, most),
        _fewest_beside(lambda n, other: holds((other, n)), start[1], second, first, most),
    )
    tried, queue = {least}, [(0, least)]
    while queue:
        _, counts = heappop(queue)
        if holds(counts):
            return counts
        for more in ((counts[0] + 1, counts[1]), (counts[0], counts[1] + 1)):
            if more not in tried and max(more) <= most:
                tried.add(more)
                heappush(queue, (sum(n * size for n, size in zip(more, sizes, strict=True)), more))
    return plenty


def _fewest_beside(holds: Callable[[int, int], bool], start: int, enough: int, other: int, most: int) -> int:
    """The fewest of a pool, beside so many of the other that more of those would change nothing."""
    while True:
        beside = other
        found = smallest(lambda n, beside=beside: holds(n, beside), min(start, enough), enough) or enough  # type: ignore[misc]
        if found == 1 or other == most or not holds(found - 1, min(most, 2 * other)):
            return found
        other = min(most, 2 * other)


def most_rate(holds: Callable[[float], bool], start: float) -> float:
    """The highest rate that holds, to CLOSE; 0 when none a thousandth of `start` does."""
    low, high, at = 0.0, math.inf, start
    while not low or high == math.inf:
        if holds(at):
            low, at = at, at * 1.25
        else:
            high, at = at, at / 1.25
        if at < start / 1000 or at > start * 1e6:
            return low
    while high / low > CLOSE:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low

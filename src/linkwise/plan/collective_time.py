"""How long does one collective take, by implementation, and which algorithm and protocol does it choose?

The way taken is the fastest of those an implementation has (collective_ways.py), as NCCL's own tuning does it; engines'
kernels are taken where their thresholds say (plan/step.py). An eager call ends no sooner than the host launches it.
"""

from functools import lru_cache
from typing import Literal, NamedTuple

from linkwise.cluster.types import Cluster, Tier
from linkwise.core.errors import InputError
from linkwise.core.quantity import Given, Num, maximum, minimum, named, plain
from linkwise.plan.collective_ways import Group, Way, group_of, is_stated, ways
from linkwise.plan.collectives import hops, wire

US = 1e-6
Mode = Literal["graph", "eager"]


class Estimate(NamedTuple):
    """Seconds of one call, and what they rest on. algorithm, protocol: of the way taken; "by size" for an array of
    sizes whose elements differ. extrapolated: no measurement of this kind of link, or of this many ranks."""

    seconds: Num
    algorithm: str
    protocol: str
    extrapolated: bool
    source: str


def collective_time(
    kind: str, size_bytes: Num, ranks: int, nodes: int, cluster: Cluster, implementation: str = "nccl",
    mode: Mode = "graph",
) -> Estimate:  # fmt: skip
    """Time of one call of `size_bytes` (S as in plan/collectives.py) over `ranks` ranks spread over `nodes` nodes.

    implementation: one of IMPLEMENTATIONS. mode: graph (captured, or launched back to back) or eager (launched one by
    one from the host). Raises InputError for a kind, implementation or place that does not exist.
    """
    if mode not in ("graph", "eager"):
        raise InputError(f"mode {mode!r}", where="collective", expected="graph or eager")
    group = group_of(cluster, ranks, nodes)
    found = ways(kind, group, cluster, implementation)
    moved = wire(kind, size_bytes, ranks).sent
    lowest = floor_us(cluster, implementation, kind, group) if mode == "eager" else 0.0
    made = estimate(found, moved, lowest)
    return made._replace(source=f"{made.source}; not below {lowest:g} us of host launch") if lowest else made


def estimate(found: tuple[Way, ...], moved: Num, lowest_us: float = 0.0) -> Estimate:
    """The fastest way for bytes on the bus, plain numbers or arrays; not below `lowest_us`."""
    each = [way.latency_us * US + moved / way.bandwidth_Bps for way in found]
    seconds = each[0]
    for other in each[1:]:
        seconds = minimum(seconds, other)
    taken = [way for way, time in zip(found, each, strict=True) if _any_equal(time, seconds)]
    first = taken[0] if len(taken) == 1 or not hasattr(seconds, "__len__") else None
    return Estimate(
        maximum(seconds, lowest_us * US),
        first.algorithm if first else "by size",
        first.protocol if first else "by size",
        any(way.extrapolated for way in taken),
        "; ".join(dict.fromkeys(way.source for way in taken)),
    )


def _any_equal(a: Num, b: Num) -> bool:
    same = a == b
    return bool(same.any()) if hasattr(same, "any") else bool(same)


@lru_cache(maxsize=1024)
def _frontier(found: tuple[Way, ...]) -> tuple[Way, ...]:
    """The ways that can be fastest for some size: no other has both less latency and more bandwidth."""
    kept: list[Way] = []
    for way in sorted(found, key=lambda w: (w.latency_us, -w.bandwidth_Bps)):
        if not kept or way.bandwidth_Bps > kept[-1].bandwidth_Bps:
            kept.append(way)
    return tuple(kept)


def call_seconds(found: tuple[Way, ...], moved: Num, name: str, given: Given = plain) -> Num:
    """Seconds of the fastest way; a recorded number shows every way it was compared with."""
    best: Num = None
    for way in _frontier(found) if given is plain else found:
        # Names are for chains: writing them for plain numbers would take longer than the arithmetic.
        label = "" if given is plain else f"{name}.{way.algorithm}" + (f".{way.protocol}" if way.protocol else "")
        latency = given(f"latency.{label}", way.latency_us * US, "s", way.source)
        time = latency + moved / given(f"bandwidth.{label}", way.bandwidth_Bps, "B/s", way.source)
        time = named(label, time, "s")
        best = time if best is None else minimum(best, time)
    return best


def floor_us(cluster: Cluster, implementation: str, kind: str, group: Group) -> float:
    """Microseconds the host needs to launch one eager call: the implementation's own figure, unless `eager.<tier>` was
    given for this cluster."""
    if group.tier is Tier.DEVICE:
        return 0.0
    table, tier = cluster.constants.latency_us, f"eager.{group.tier.value}"
    own = table.get(f"{implementation}-{tier}")
    if own is None or is_stated(cluster.constants, tier):
        own = table.get(f"{tier}.{kind}") or cluster.constants.latency("eager", group.tier)
    return own[0] + own[1] * hops(kind, group.ranks)

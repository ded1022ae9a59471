"""Which algorithm does an op run? The one its price is for: bytes on links and latency are then of the same way."""

from collections.abc import Callable
from typing import NamedTuple

from linkwise.cluster.types import Cluster, Tier
from linkwise.core.quantity import value_of
from linkwise.engine.base import Convention
from linkwise.plan import collective_ways
from linkwise.plan.algorithms import site
from linkwise.plan.collective_ways import Way
from linkwise.plan.collectives import wire
from linkwise.plan.time import US, Span, group_of
from linkwise.plan.types import Op
from linkwise.plan.writer import kernel_limits


class Taken(NamedTuple):
    """The way an op's price is for. own: it is of the algorithm asked for; else that has no figures, and `way` stands
    for the latency alone."""

    way: Way
    own: bool = True

    @property
    def share(self) -> float:
        """Share of a link's usable bandwidth that its bytes get."""
        return self.way.share if self.own else 1.0

    @property
    def latency_s(self) -> float:
        return self.way.latency_us * US


def taken(
    op: Op, place: Span, cluster: Cluster, convention: Convention, groups: tuple[tuple[int, ...], ...], wanted: str = ""
) -> Taken:
    """The fastest way of an op's implementation that all its groups can run, as `time.op_seconds` prices it.

    wanted: another algorithm, in place of the one that would be taken.
    """
    group = group_of(place, op.size)
    moved = float(value_of(wire(op.kind, op.S_bytes, op.size).sent))

    def fastest(ways: list[Way]) -> Way:
        return min(ways, key=lambda way: way.latency_us * US + moved / way.bandwidth_Bps)

    def ways(implementation: str) -> tuple[Way, ...]:
        return collective_ways.ways(op.kind, group, cluster, implementation)

    runs = _runs(cluster, groups)
    implementation = implementation_of(op, convention, cluster)
    usual = ways(implementation)
    own = fastest([way for way in usual if runs(way.algorithm)] or list(usual))
    if not wanted or own.algorithm == wanted:
        return Taken(own)
    others = {implementation, library_of(op, convention)}
    if op.kind == "all_reduce" and place.tier is Tier.ISLAND:
        others |= {"custom", "custom-two-shot"}
    found = [way for name in sorted(others) for way in ways(name) if way.algorithm == wanted]
    return Taken(fastest(found)) if found else Taken(own, own=False)


def library_of(op: Op, convention: Convention) -> str:
    """What runs an op where no kernel of the engine does."""
    return convention.all_reduce if op.kind == "all_reduce" else "nccl"


def implementation_of(op: Op, convention: Convention, cluster: Cluster) -> str:
    """The implementation an op runs on: an engine's kernel inside its limits, else the library."""
    if op.algorithm in {"one_shot", "two_shot", "by size"}:
        kernel, size = kernel_limits(convention, op.size, cluster.accelerator.capability), value_of(op.S_bytes)
        if size < kernel.one_shot:
            return convention.all_reduce_small
        if kernel.one_shot <= kernel.most and size <= kernel.most:
            return f"{convention.all_reduce_small}-two-shot"
    return library_of(op, convention)


def _runs(cluster: Cluster, groups: tuple[tuple[int, ...], ...]) -> Callable[[str], bool]:
    """Whether every group can run an algorithm: a switch that adds up must be there, and nodes be alike."""

    def runs(algorithm: str) -> bool:
        if algorithm not in {"nvls", "nvls_tree"}:
            return True
        places = [site(cluster, members) for members in groups]
        if algorithm == "nvls":
            return all(place.switched for place in places)
        return all(
            len({len(part) for part in place.domains}) == 1
            and all(len(part) == 1 or place.part(part).switched for part in place.domains)
            for place in places
        )

    return runs

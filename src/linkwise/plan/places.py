"""Where the groups of a layout lie, and what one call over them takes.

A group's place is the slowest tier it crosses and what links leave it; a call takes the time of the fastest way its
implementation has of doing it there (plan/collective_ways.py).
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from linkwise.cluster.links import measured_share
from linkwise.cluster.types import Cluster, Tier
from linkwise.core.identity import ById
from linkwise.core.layout import AXES, Layout, groups
from linkwise.core.quantity import Given, Num, maximum, named, plain, times, value_of, where
from linkwise.engine.base import Convention
from linkwise.plan import collective_time, collective_ways
from linkwise.plan.collective_ways import Group
from linkwise.plan.collectives import wire
from linkwise.plan.step_work import US
from linkwise.plan.types import Op
from linkwise.plan.writer import Place, kernel_limits


class Span(NamedTuple):
    """Where the groups of an axis lie: the slowest tier they cross, and the fewest ranks of a group on one node.

    nodes: nodes a group touches. share: what its ranks get of a device's usual bandwidth at the tier; exchange: the
    same for pairwise exchanges where it differs, else 0. inner, inner_share: of a group over nodes, tier and share of
    its ranks on the node where they are slowest; None and 1 = as neighbours are.
    """

    tier: Tier
    per_node: int
    nodes: int = 1
    share: float = 1.0
    exchange: float = 0.0
    inner: Tier | None = None
    inner_share: float = 1.0


def group_span(members: tuple[int, ...], cluster: Cluster) -> Span:
    """Where one group of devices lies, and what links measured one by one leave it."""
    return _group_span(members, ById(cluster))


@lru_cache(maxsize=16_384)  # many layouts have the same groups
def _group_span(members: tuple[int, ...], key: ById[Cluster]) -> Span:
    cluster = key.value
    found = _usual_span(members, cluster)
    return found._replace(share=found.share * measured_share(cluster, members))


def _usual_span(members: tuple[int, ...], cluster: Cluster) -> Span:
    tier = cluster.tier(members)
    if tier is Tier.ISLAND and cluster.detail is not None:
        usual = cluster.bandwidth(tier, len(members))
        return Span(tier, len(members), share=cluster.bandwidth(tier, len(members), members) / usual if usual else 1.0)
    if tier is not Tier.CLUSTER:
        ring, exchange = socket_shares(members, cluster) if tier is Tier.NODE else (1.0, 0.0)
        return Span(tier, len(members), share=ring, exchange=exchange)
    on: dict[int, list[int]] = {}
    for number in members:
        on.setdefault(cluster.node_of(number), []).append(number)
    per_node = min(map(len, on.values()))
    inner, inner_share = _inner(list(map(tuple, on.values())), per_node, cluster)
    oversubscribed = cluster.oversubscription > 1 and cluster.fabric == "rail"
    # What stays on its rails never meets the oversubscribed core.
    share = cluster.oversubscription if oversubscribed and on_rails(members, cluster) else 1.0
    return Span(tier, per_node, len(on), share, inner=inner, inner_share=inner_share)


def _inner(parts: list[tuple[int, ...]], per_node: int, cluster: Cluster) -> tuple[Tier | None, float]:
    """Tier and share of a group's ranks inside the node where they are slowest; (None, 1) where that is the usual."""
    if (
        cluster.detail is None
        and cluster.island_size >= cluster.devices_per_node
        and not cluster.accelerator.scaleup_mesh
    ):
        return None, 1.0
    inside = [_usual_span(part, cluster) for part in parts if len(part) > 1]
    if not inside:
        return None, 1.0
    tier = max((one.tier for one in inside), key=_SLOWER.__getitem__)
    slowest = min(cluster.bandwidth(one.tier, one.per_node) * one.share for one in inside)
    usual = cluster.bandwidth(tier, per_node)
    share = slowest / usual if usual else 1.0
    if tier is collective_ways.usual_inner_tier(cluster, per_node) and share == 1:
        return None, 1.0
    return tier, share


def socket_shares(members: tuple[int, ...], cluster: Cluster) -> tuple[float, float]:
    """What the link between sockets leaves ranks of one node of their PCIe ports: (in a ring, in pairwise exchanges).

    A ring crosses it once each way, an exchange for every pair that is apart. Other groups cross it at the same time:
    a group has as much of it as of the devices of a socket. The second is 0 where it is the first.
    """
    on: dict[int, int] = {}
    for number in members:
        on[cluster.socket_of(number)] = on.get(cluster.socket_of(number), 0) + 1
    detail = cluster.detail_of(cluster.node_of(members[0]))
    if len(on) < 2 or detail is None:
        return 1.0, 0.0
    port = cluster.bandwidth(Tier.NODE)
    link = detail.between_sockets_Bps * cluster.constants.link_efficiency.get("smp", 1.0)
    link *= max(count / detail.sockets.count(socket) for socket, count in on.items())
    counts = sorted(on.values())
    pairs = (len(members) - 1) / (counts[-1] * counts[-2])
    ring, exchange = min(1.0, link / port), min(1.0, link * pairs / port)
    return ring, 0.0 if exchange == ring else exchange


def on_rails(members: tuple[int, ...], cluster: Cluster) -> bool:
    """Whether every node's members sit on the same rails, so that traffic between nodes stays on them (with PXN)."""
    rails: dict[int, set[int]] = {}
    own = cluster.detail is None and cluster.nics_per_node == cluster.devices_per_node  # NIC i is device i's
    for number in members:
        node, index = divmod(number, cluster.devices_per_node)
        rails.setdefault(node, set()).update((index,) if own else cluster.nics_of(number))
    first, *rest = rails.values()
    return all(one == first for one in rest)


def worse(a: Span, b: Span) -> Span:
    """The slower of two places."""
    return max(a, b, key=_slowness)


def _slowness(place: Span) -> tuple[float, ...]:
    inner = _SLOWER[place.inner] if place.inner else 0
    return _SLOWER[place.tier], -place.per_node, -place.share, inner, -place.inner_share, -place.exchange


_SLOWER = {tier: at for at, tier in enumerate(Tier)}


def span(layout: Layout, axis: str, cluster: Cluster, placement: tuple[int, ...] | None = None) -> Span:
    """The worst group of an axis. placement: device of each rank of the serving group; None = ranks on devices in
    order (innermost axis on neighbouring devices)."""
    found = groups(layout, axis)
    if placement is None:
        return _worst(tuple(found), ById(cluster))
    return _worst_of([tuple(placement[r] for r in ranks) for ranks in found], cluster)


@lru_cache(maxsize=4096)  # layouts differ in a few axes only
def _worst(found: tuple[tuple[int, ...], ...], key: ById[Cluster]) -> Span:
    return _worst_of(found, key.value)


def _worst_of(found: Sequence[tuple[int, ...]], cluster: Cluster) -> Span:
    worst = Span(Tier.DEVICE, 1)
    for members in found:
        one = group_span(members, cluster)
        if one != worst:
            worst = worse(worst, one)
    return worst


def spans(layout: Layout, cluster: Cluster, placement: tuple[int, ...] | None = None) -> dict[str, Span]:
    """`span` of every axis."""
    return {axis: span(layout, axis, cluster, placement) for axis in AXES}


def worst_spans(layout: Layout, cluster: Cluster, grid: tuple[tuple[int, ...], ...] | None = None) -> dict[str, Span]:
    """`spans` of the replica that lies worst, axis by axis. grid: devices of each replica; None = in order."""
    found = spans(layout, cluster, grid[0] if grid else None)
    for row in grid[1:] if grid else ():
        found = {axis: worse(found[axis], one) for axis, one in spans(layout, cluster, row).items()}
    return found


def place_of(layout: Layout, places: dict[str, Span], cluster: Cluster) -> Place:
    """What a step's ops depend on of where the group lies."""
    stage = places["stage"]
    nodes = stage.nodes if stage.tier is Tier.CLUSTER else 1
    served = frozenset(axis for axis, s in places.items() if has_kernel(s.tier, s.per_node, cluster))
    return Place(nodes, served, cluster.accelerator.capability)


def has_kernel(tier: Tier, ranks: int, cluster: Cluster) -> bool:
    """Whether engines' own all-reduce kernels run there: inside an island, and for two ranks that are PCIe peers."""
    return tier is Tier.ISLAND or (tier is Tier.NODE and ranks == 2 and cluster.accelerator.p2p)


def group_of(place: Span, ranks: int) -> Group:
    """A place as plan/collective_ways.py takes it."""
    return Group(
        place.tier, ranks, place.per_node, place.nodes, place.share, place.exchange, place.inner, place.inner_share
    )


def port_bandwidth(cluster: Cluster, place: Span, kind: str, ranks: int) -> float:
    """Bytes/s per direction the busiest port gives one rank of a group (see collective_ways.port_bandwidth)."""
    return collective_ways.port_bandwidth(cluster, group_of(place, ranks), kind)


def op_seconds(
    op: Op, place: Span, cluster: Cluster, convention: Convention, *, eager: bool, given: Given = plain
) -> Num:
    """Seconds of one call of an op, busiest rank: the fastest way its implementation has (plan/collective_time.py)."""
    group = group_of(place, op.size)
    moved = wire(op.kind, op.S_bytes, op.size).sent

    def takes(implementation: str) -> Num:
        found = collective_ways.ways(op.kind, group, cluster, implementation)
        return collective_time.call_seconds(found, moved, f"{op.role}.{implementation}", given)

    library = convention.all_reduce if op.kind == "all_reduce" else "nccl"
    seconds, usual = takes(library), moved
    if op.algorithm in {"one_shot", "two_shot", "by size"}:
        kernel = kernel_limits(convention, op.size, cluster.accelerator.capability)
        small, below = convention.all_reduce_small, op.S_bytes < kernel.one_shot
        if kernel.one_shot <= kernel.most:
            seconds = where(op.S_bytes <= kernel.most, takes(f"{small}-two-shot"), seconds)
        seconds = where(below, takes(small), seconds)
        usual = where(below, wire(op.kind, op.S_bytes, op.size, "one_shot").sent, moved)
    # Bytes an engine saves (or that a caller leaves out) by other means than the algorithm, at the port's bandwidth.
    spared = usual - op.wire_sent_bytes
    if np.any(value_of(spared) != 0):
        port = collective_ways.port_bandwidth(cluster, group, op.kind, crossing=True)
        seconds = seconds - spared / given(f"bandwidth.{op.group}", port, "B/s", cluster.constants.label)
    if eager:
        floor = collective_time.floor_us(cluster, library, op.kind, group)
        source = f"host launch of an eager call, {cluster.constants.label}"
        seconds = maximum(seconds, given(f"launch.{op.role}", floor * US, "s", source))
    slower = cluster.constants.collective_factor
    return named(f"{op.role}.call", times(_skewed(seconds, op), slower), "s")


def _skewed(seconds: Num, op: Op) -> Num:
    """An uneven exchange ends with its busiest rank."""
    if not op.sizes:
        return seconds
    busiest: Num = 0
    for size in op.sizes:
        busiest = maximum(busiest, size)
    return seconds * (busiest * len(op.sizes) / op.S_bytes)

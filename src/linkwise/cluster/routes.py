"""Which way? The links a message between two devices crosses.

A device with several NICs spreads what it sends between nodes evenly over all of them, so there may be several ways at
once, each with its share of the bytes (`ways`). `route` is the first of them: the one way of a single connection.
"""

from collections import Counter
from itertools import pairwise
from math import lcm
from typing import NamedTuple

import msgspec

from linkwise.cluster.links import Shape, device, host, link, shape_of, stem
from linkwise.cluster.types import Cluster, Device, Link, Tier
from linkwise.core.errors import InputError


class Way(NamedTuple):
    """Links in order, and the share of the bytes that takes them."""

    share: float
    links: tuple[Link, ...]


def route(cluster: Cluster, a: int, b: int, *, relay: bool = True) -> tuple[Link, ...]:
    """The links a message from device a to device b crosses, in order; empty when they are the same device.

    Inside an island over its links; inside a node through the host; between nodes device, NIC, fabric, NIC, device.
    On a rail fabric a message for another rail first moves, where an island allows it, to the neighbour that owns the
    NIC on b's rail (what NCCL calls PXN), else it crosses the core. `reason` says which, in a line. Raises InputError
    for unknown devices.
    """
    return ways(cluster, a, b, relay=relay)[0].links


def ways(cluster: Cluster, a: int, b: int, *, relay: bool = True) -> tuple[Way, ...]:
    """Every way from a to b as `route` has it, one for each pair of NICs that carries some; shares add up to 1."""
    shape = shape_of(cluster)
    return tuple(
        Way(share, tuple(link(shape, src, dst) for src, dst in pairwise(way)))
        for share, way in stops(cluster, shape, a, b, relay=relay)
    )


def ways_apart(
    first: Cluster, a: int, second: Cluster, b: int, labels: tuple[str, str] = ("first", "second")
) -> tuple[Way, ...]:
    """Every way from device a of one cluster to device b of another: device, NIC, the network, NIC, device.

    The network between them is taken to be as wide as the NICs of both. labels: put before each side's vertices.
    Raises InputError for a side without NICs.
    """
    sides = [_side(cluster, number, name) for cluster, number, name in ((first, a, labels[0]), (second, b, labels[1]))]
    (mine, leave), (theirs, arrive) = sides
    turns = lcm(len(mine), len(theirs))
    pairs = Counter((mine[turn % len(mine)], theirs[turn % len(theirs)]) for turn in range(turns))
    return tuple(
        Way(
            count / turns,
            (
                *_links(leave, (*leave.stem, leave.nic(one)), out=True),
                *_links(arrive, (*arrive.stem, arrive.nic(other))),
            ),
        )
        for (one, other), count in pairs.items()
    )


class _End(NamedTuple):
    shape: Shape
    node: int
    stem: tuple[str, ...]
    label: str

    def nic(self, number: int) -> str:
        return f"n{self.node}.nic{number}"


def _side(cluster: Cluster, number: int, label: str) -> tuple[tuple[int, ...], _End]:
    """NICs of a device, and how its traffic leaves its node."""
    here = device(cluster, number)
    nics = cluster.nics_of(number)
    if not nics:
        raise InputError(
            f"{cluster.name} has no NICs", where=f"{label} side", expected="NICs: another cluster is reached over them",
            hint="In YAML: nics: {count: 1, Gbps: 100}",
        )  # fmt: skip
    # Beside another cluster even a single node is one of several: what its slots share counts.
    shape = msgspec.structs.replace(shape_of(cluster), nodes=cluster.nodes + 1, nics=cluster.nics_per_node)
    return nics, _End(shape, here.node, stem(shape, number), label)


def _links(end: _End, way: tuple[str, ...], *, out: bool = False) -> list[Link]:
    """The links of one side, from the device to the network or back, under its label."""
    stops = (*way, "network") if out else ("network", *way[::-1])
    found = []
    for src, dst in pairwise(stops):
        names = (x if x == "network" else f"{end.label} {x}" for x in (src, dst))
        found.append(
            msgspec.structs.replace(link(end.shape, src, dst), **dict(zip(("src", "dst"), names, strict=True)))
        )
    return found


def stops(cluster: Cluster, shape: Shape, a: int, b: int, *, relay: bool = True) -> list[tuple[float, tuple[str, ...]]]:
    """`ways` as shares and vertices, for many pairs of one cluster. shape: its `shape_of`."""
    source, target = device(cluster, a), device(cluster, b)
    if source.node == target.node or cluster.tier((a, b)) is Tier.ISLAND:
        return [(1.0, _near(cluster, shape, source, target))]
    mine, theirs = cluster.nics_of(a), cluster.nics_of(b)
    both = Counter(_pair(shape, mine, theirs, turn) for turn in range(lcm(len(mine), len(theirs))))
    found = {_far(cluster, shape, source, target, pair, relay): count for pair, count in both.items()}
    whole = sum(found.values())
    return [(count / whole, way) for way, count in found.items()]


def connection(cluster: Cluster, a: int, b: int) -> tuple[Link, ...]:
    """`route` where a device is its own PCIe slot, as in a lab: d0>n0.slot0>n0.nic0 is one link, d0>n0.nic0."""
    found: list[Link] = []
    for one in route(cluster, a, b):
        if ".slot" in one.src and found and found[-1].dst == one.src:
            into = found.pop()
            slower = min((into, one), key=lambda x: x.effective_Bps)
            found.append(msgspec.structs.replace(slower, src=into.src, dst=one.dst))
        else:
            found.append(one)
    return tuple(found)


def _pair(shape: Shape, mine: tuple[int, ...], theirs: tuple[int, ...], turn: int) -> tuple[int, int]:
    """NICs of a turn; on a rail fabric the sender's own on the receiver's rail, where it has one."""
    to = theirs[turn % len(theirs)]
    return (to if shape.rail and to in mine else mine[turn % len(mine)]), to


def reason(cluster: Cluster, a: int, b: int) -> str:
    """One line on why the route from a to b is what it is."""
    source, target = device(cluster, a), device(cluster, b)
    tier = cluster.tier((a, b) if a != b else (a,))
    if tier is Tier.DEVICE:
        return "the same device: nothing moves"
    if tier is Tier.ISLAND:
        detail = cluster.detail_of(source.node)
        direct = bool(detail.strands) if detail and detail.islands else cluster.accelerator.scaleup_mesh
        way = "direct link" if direct else "switch"
        return f"both in island {source.island}: {cluster.accelerator.scaleup_kind} {way}"
    if tier is Tier.NODE:
        apart = cluster.socket_of(a) != cluster.socket_of(b)
        words = f"both in node {source.node}, sockets apart" if apart else f"both in node {source.node}"
        if cluster.accelerator.p2p:
            return f"{words} but no scale-up link joins them: {cluster.accelerator.host_link}"
        return f"{words}, no peer access: copied through host memory"
    if cluster.fabric != "rail":
        return f"nodes {source.node} and {target.node}: each side's NIC, leaf switches and the core"
    mine, theirs = _pair(shape_of(cluster), cluster.nics_of(a), cluster.nics_of(b), 0)
    if mine == theirs:
        return f"nodes {source.node} and {target.node}, both on rail {mine}: one rail switch"
    if _neighbour(cluster, source, theirs) is not None:
        return f"rail {mine} to rail {theirs}: first over the island to the neighbour on rail {theirs}"
    return f"rail {mine} to rail {theirs}: across the core, no island neighbour is on rail {theirs}"


def _near(cluster: Cluster, shape: Shape, a: Device, b: Device) -> tuple[str, ...]:
    """The vertices between two devices of a node or an island."""
    start, end = f"d{a.id}", f"d{b.id}"
    if a.id == b.id:
        return (start,)
    if cluster.tier((a.id, b.id)) is Tier.ISLAND:
        detail = shape.detail_of(a.node) if shape.shaped else None
        direct = bool(detail.strands) if detail else shape.mesh
        return (start, end) if direct else (start, f"island{a.island}", end)
    hosts = dict.fromkeys((host(shape, a.id), host(shape, b.id)))
    return *stem(shape, a.id), *hosts, *stem(shape, b.id)[::-1]


def _far(cluster: Cluster, shape: Shape, a: Device, b: Device, nics: tuple[int, int], relay: bool) -> tuple[str, ...]:
    """The vertices between two devices of different nodes that send over these NICs."""
    mine, theirs = nics
    arrive = (f"n{b.node}.nic{theirs}", *stem(shape, b.id)[::-1])
    leave = (*stem(shape, a.id), f"n{a.node}.nic{mine}")
    if not shape.rail:
        return *leave, f"leaf{a.node}", "core", f"leaf{b.node}", *arrive
    if mine == theirs:
        return *leave, f"rail{mine}", *arrive
    neighbour = _neighbour(cluster, a, theirs) if relay else None
    if neighbour is not None:
        hop = _near(cluster, shape, a, neighbour)
        return *hop, *stem(shape, neighbour.id)[1:], f"n{a.node}.nic{theirs}", f"rail{theirs}", *arrive
    return *leave, f"rail{mine}", "core", f"rail{theirs}", *arrive


def _neighbour(cluster: Cluster, a: Device, rail: int) -> Device | None:
    """The device of a's node and island with a NIC on a rail: one whose first it is, else any."""
    first = a.node * cluster.devices_per_node
    found = [
        (nics.index(rail), number)
        for number in range(first, first + cluster.devices_per_node)
        if rail in (nics := cluster.nics_of(number)) and cluster.tier((a.id, number)) is Tier.ISLAND
    ]
    return device(cluster, min(found)[1]) if found else None

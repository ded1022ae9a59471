"""What every algorithm sees of a group, and what it gives back: sends between devices, before any route is chosen.

An algorithm turns one call into (from, to, bytes). It knows which members share a node and how many NICs they have, not
which links are between them: plan/flows.py lays the sends on routes.
"""

from collections.abc import Callable, Iterator
from itertools import combinations
from math import gcd
from typing import NamedTuple

from linkwise.cluster.links import device
from linkwise.cluster.routes import route
from linkwise.cluster.types import Cluster, Tier
from linkwise.core.errors import InputError
from linkwise.core.quantity import Num

# As an end of a send: the scale-up switch of the other end's island, which reduces and multicasts (NVLink SHARP).
SWITCH = -1


class Send(NamedTuple):
    """Bytes one device gives to another in one call. An end may be SWITCH."""

    src: int
    dst: int
    bytes: Num


class Site(NamedTuple):
    """A group's members, and where they lie.

    devices: in group order. domains: members by node, or by island where islands span nodes; in order of appearance,
    members of one smaller island side by side. heads: per domain, places of members that each own another NIC, as many
    in every domain: a channel enters a domain at each of them. switched: one scale-up switch joins all members. mesh:
    they are in one island and each pair has a link of its own.
    """

    cluster: Cluster
    devices: tuple[int, ...]
    domains: tuple[tuple[int, ...], ...]
    heads: tuple[tuple[int, ...], ...]
    switched: bool
    mesh: bool

    @property
    def size(self) -> int:
        return len(self.devices)

    def part(self, devices: tuple[int, ...]) -> "Site":
        """Some of the members as a group of their own."""
        return site(self.cluster, devices)


class Call(NamedTuple):
    """One call of a collective.

    S: bytes, as DESIGN §3 defines them for the kind. sizes: all-to-all only, bytes each member has for each member
    (its own included, sum = S); empty = even. back: an exchange in reverse, from where the bytes went to where they
    came from. root: place of the first or collecting member. crossing: share of an exchange's bytes that crosses when
    a token goes to a node once; fan_out: share left inside it when a token goes to each rank once.
    channels: rings or trees side by side; None = one per NIC of a domain.
    """

    S: Num
    sizes: tuple[Num, ...] = ()
    back: bool = False
    root: int = 0
    crossing: Num = 1.0
    fan_out: Num = 1.0
    channels: int | None = None


Algorithm = Callable[[Site, Call], Iterator[Send]]


def site(cluster: Cluster, devices: tuple[int, ...]) -> Site:
    """Where a group's members lie. Raises InputError for unknown devices, or one that is in the group twice."""
    if len(set(devices)) != len(devices) or not devices:
        raise InputError(
            f"devices {', '.join(map(str, devices[:20])) or 'of nobody'}",
            where="group",
            expected="each device at most once, at least one",
        )
    places = [device(cluster, number) for number in devices]
    by_island = cluster.island_size > cluster.devices_per_node
    domains: dict[int, list[int]] = {}
    for place in places:
        domains.setdefault(place.island if by_island else place.node, []).append(place.id)
    ordered = tuple(_side_by_side(cluster, members) for members in domains.values())
    near = len(devices) > 1 and cluster.tier(devices) is Tier.ISLAND
    mesh = near and all(len(route(cluster, a, b)) == 1 for a, b in combinations(devices, 2))
    switched = near and not mesh and route(cluster, *devices[:2])[0].dst.startswith("island")
    return Site(cluster, devices, ordered, _heads(cluster, ordered), switched, mesh)


def _side_by_side(cluster: Cluster, members: list[int]) -> tuple[int, ...]:
    """Members of one island together, and islands of one socket: a ring then crosses from socket to socket once.

    The sort is stable: what is alike stays in group order.
    """
    home: dict[int, int] = {}
    for number in members:
        home.setdefault(cluster.island_of(number), cluster.socket_of(number))
    return tuple(sorted(members, key=lambda d: (home[cluster.island_of(d)], cluster.island_of(d))))


def _heads(cluster: Cluster, domains: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Per domain, the first member at each NIC; as many in every domain."""
    found = []
    for members in domains:
        first: dict[tuple[int, int], int] = {}
        for index, number in enumerate(members):
            place = device(cluster, number)
            first.setdefault((place.node, place.nic), index)
        found.append(tuple(first.values()))
    most = min(len(heads) for heads in found)
    return tuple(heads[:most] for heads in found)


def channels_of(where: Site, call: Call) -> int:
    """How many rings or trees run side by side."""
    if call.channels is None:
        return len(where.heads[0]) if len(where.domains) > 1 else 1
    if not 1 <= call.channels <= 1024:
        raise InputError(f"{call.channels} channels", where="collective", expected="1..1024")
    return call.channels


def by_channel(where: Site, channel: int) -> list[tuple[int, ...]]:
    """Members by domain in a channel's order: each domain starts at the channel's NIC.

    On a mesh channels take strides 1, 3, 5, ... around a domain, so that they share its links.
    """
    turned = []
    for members, heads in zip(where.domains, where.heads, strict=True):
        start, count = heads[channel % len(heads)], len(members)
        strides = [s for s in range(1, count) if gcd(s, count) == 1] if where.cluster.accelerator.scaleup_mesh else []
        stride = strides[channel % len(strides)] if strides else 1
        turned.append(tuple(members[(start + stride * i) % count] for i in range(count)))
    return turned


def equal_domains(where: Site, algorithm: str) -> int:
    """Members of a domain, for algorithms that pair members of different domains. InputError when they differ."""
    sizes = {len(members) for members in where.domains}
    if len(sizes) != 1:
        raise InputError(
            f"nodes of {', '.join(map(str, sorted(sizes)))} members",
            where=algorithm,
            expected="as many members of the group on every node",
        )
    return sizes.pop()

"""Which links does a collective load? The sends of an algorithm, laid on the routes of a cluster.

A flow is bytes from one vertex to another over a chain of directed links (cluster/links.py). Conserved by construction
and by test: the sum over links of bytes equals the sum over flows of bytes x hops.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from linkwise.cluster.links import links, shape_of
from linkwise.cluster.routes import Way, connection, stops
from linkwise.cluster.types import Cluster, Link
from linkwise.core.errors import InputError
from linkwise.core.quantity import Num
from linkwise.plan.algorithms import SWITCH, Call, Send, algorithm_of, site

# A directed link by its ends, as cluster/links.py names them.
Ends = tuple[str, str]


class Flow(NamedTuple):
    """Bytes from device to device (or SWITCH) over the links of its way, in order."""

    src: int
    dst: int
    bytes: Num
    way: tuple[Link, ...]


class Roads:
    """The ways of one cluster, each looked up once. link: every directed link by its ends.

    single: as one connection of one process has it (a lab's socket): over a device's first NIC alone.
    """

    def __init__(self, cluster: Cluster, *, single: bool = False) -> None:
        self.cluster, self.single = cluster, single
        self._shape = shape_of(cluster)
        self.link: dict[Ends, Link] = {(one.src, one.dst): one for one in links(cluster)}
        self._switch = {src: one for (src, dst), one in self.link.items() if dst.startswith("island")}
        self._ways: dict[tuple[int, int], tuple[Way, ...]] = {}

    def ways(self, src: int, dst: int) -> tuple[Way, ...]:
        """The ways from one device to another, or between a device and its island's switch, and the share of each."""
        found = self._ways.get((src, dst))
        if found is None:
            if SWITCH in {src, dst}:
                found = (Way(1.0, self._to_switch(src, dst)),)
            elif self.single:
                found = (Way(1.0, connection(self.cluster, src, dst)),)
            else:
                found = tuple(
                    Way(share, tuple(self.link[hop] for hop in pairwise(way)))
                    for share, way in stops(self.cluster, self._shape, src, dst)
                )
            self._ways[src, dst] = found
        return found

    def _to_switch(self, src: int, dst: int) -> tuple[Link, ...]:
        up = self._switch.get(f"d{max(src, dst)}")
        if up is None:
            raise InputError(f"device {max(src, dst)}", where=self.cluster.name, expected="one on a scale-up switch")
        return (up if dst == SWITCH else self.link[up.dst, up.src],)


def sends(kind: str, cluster: Cluster, devices: tuple[int, ...], call: Call, algorithm: str = "") -> Iterator[Send]:
    """Who gives how much to whom in one call. devices: the members in group order.

    Raises InputError for an unknown kind or algorithm, members that are no devices or are named twice, a root outside
    the group, sizes that are not one a member, or an algorithm that this group cannot run (nvls without a switch).
    """
    run, where = algorithm_of(kind, algorithm), site(cluster, devices)
    if not 0 <= call.root < len(devices):
        raise InputError(f"root {call.root}", where=kind, expected=f"0..{len(devices) - 1}")
    return run(where, call)


def flows(kind: str, roads: Roads, devices: tuple[int, ...], call: Call, algorithm: str = "") -> list[Flow]:
    """The flows of one call, one for each way of each send. Arguments and errors as for `sends`."""
    return [
        Flow(one.src, one.dst, one.bytes if way.share == 1 else one.bytes * way.share, way.links)
        for one in sends(kind, roads.cluster, devices, call, algorithm)
        for way in roads.ways(one.src, one.dst)
    ]


def link_bytes(found: Iterable[Flow]) -> dict[Ends, Num]:
    """Bytes on every directed link that carries any."""
    carried: dict[Ends, Num] = {}
    for flow in found:
        for link in flow.way:
            ends = link.src, link.dst
            carried[ends] = carried.get(ends, 0) + flow.bytes
    return carried


class Moved(NamedTuple):
    """Bytes of one rank in one call."""

    sent: Num
    recv: Num


def per_device(found: Iterable[Flow]) -> dict[int, Moved]:
    """What each device sends and receives, as its own process counts it: what it relays for others is left out."""
    moved: dict[int, Moved] = {}
    for flow in found:
        for number, is_source in ((flow.src, True), (flow.dst, False)):
            if number != SWITCH:
                old = moved.get(number, Moved(0, 0))
                moved[number] = (
                    old._replace(sent=old.sent + flow.bytes) if is_source else old._replace(recv=old.recv + flow.bytes)
                )
    return moved

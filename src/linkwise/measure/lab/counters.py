"""Bytes on every directed link, as the interfaces count them: Ethernet frames with their headers (14 + 20 + 20 + 12
bytes around each segment of TCP), acknowledgements and whatever else is on the wire.
"""

import json
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from linkwise.core.errors import InputError
from linkwise.core.schema import Frozen
from linkwise.measure.lab.netns import MTU, Step, run
from linkwise.measure.lab.topology import Wiring

SOCKET = "LINKWISE_LAB"  # environment variable of a rank: where it asks for counters
HEADER_BYTES = 14 + 20 + 20 + 12  # Ethernet, IPv4, TCP, its timestamps
PAYLOAD_BYTES = MTU + 14 - HEADER_BYTES  # 8948 of a frame of 9014
FRAMING = (MTU + 14) / PAYLOAD_BYTES  # bytes on a link over bytes a process sent, full segments: 1.0074
# An empty segment back for every second one received is the most TCP does when nothing else goes that way.
ACKS = HEADER_BYTES / 2 / PAYLOAD_BYTES


class Count(NamedTuple):
    """What went over a directed link."""

    bytes: int
    packets: int


Counts = dict[str, Count]  # by `src>dst`, as plan/traffic_types.py names links


class LinkCount(Frozen, frozen=True, kw_only=True):
    """A directed link of a lab: what it was held to in bytes/s, and what went over it."""

    src: str
    dst: str
    rate_Bps: float
    bytes: int
    packets: int


def read(wiring: Wiring) -> Counts:
    """Every link's counters since it was built; called in the namespace of the bridges. Raises BuildError."""
    bridges = set(wiring.bridges)
    seen: dict[str, dict[str, tuple[Count, Count]]] = {}
    found: Counts = {}
    for cable in wiring.cables:
        # What one end received is what the other sent, so one end tells both: the one at a bridge where there is one.
        at_b = cable.b in bridges
        end, interface = (cable.b, cable.b_interface) if at_b else (cable.a, cable.a_interface)
        place = "" if end in bridges else end
        if place not in seen:
            where = ("ip", "-n", place) if place else ("ip",)
            seen[place] = parse(run(Step((*where, "-j", "-s", "link", "show"), "", "counters")))
        sent, received = seen[place][interface]
        there, back = (received, sent) if at_b else (sent, received)
        found[f"{cable.a}>{cable.b}"], found[f"{cable.b}>{cable.a}"] = there, back
    return found


def parse(text: str) -> dict[str, tuple[Count, Count]]:
    """(sent, received) by interface, from `ip -j -s link show`."""
    return {one["ifname"]: (_count(one["stats64"]["tx"]), _count(one["stats64"]["rx"])) for one in json.loads(text)}


def _count(stats: Mapping[str, Any]) -> Count:
    return Count(int(stats["bytes"]), int(stats["packets"]))


def since(before: Mapping[str, Count], after: Mapping[str, Count]) -> Counts:
    """What went over each link between two readings."""
    return {
        link: Count(now.bytes - before[link].bytes, now.packets - before[link].packets) for link, now in after.items()
    }


def serve(path: str, look: Callable[[], Counts]) -> None:
    """Answer every connection to a socket with the counters, for ever (a thread's work)."""
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(path)
        door.listen(64)
        while True:
            caller, _ = door.accept()
            with caller:
                try:
                    caller.sendall(json.dumps(look()).encode())
                except OSError:
                    continue  # it left before it had its answer


def snapshot() -> Counts:
    """The counters of all links, asked by a rank. Raises InputError when this process is in no lab."""
    path = os.environ.get(SOCKET)
    if not path:
        raise InputError("this process is in no lab", where=SOCKET, expected="to be started by `linkwise lab`")
    parts = []
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(30)
        try:
            caller.connect(path)
            while part := caller.recv(65536):
                parts.append(part)
        except OSError as error:
            raise InputError(f"the lab does not answer: {error}", where=path) from None
    return {link: Count(*pair) for link, pair in json.loads(b"".join(parts)).items()}

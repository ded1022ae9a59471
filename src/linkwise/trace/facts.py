"""What logs, counters and reports say besides calls: one fact is one statement about a place at a time.

Readers translate their formats into the names below, so that no rule of `diagnose/` knows a format. What a format says
and no rule asks for is left out. A fact that is absent is not a zero.
"""

from typing import Literal, NamedTuple

from linkwise.core.printable import clipped, printable
from linkwise.trace.events import Members

Kind = Literal[
    "counter",    # a cumulative figure of a device, NIC or host: value; two of them make a rate
    "gauge",      # a figure of a moment, of an engine or a rank
    "device",     # a fault a device reports: an Xid, a throttle reason in force
    "network",    # an error of a transport: a completion with error, a port that is down
    "transport",  # how a rank reaches a peer: p2p, shm, net.ib.gdr, net.ib, net.socket, ...
    "place",      # where a rank runs: labels host, device, bus, numa, nic, cpus, pid
    "watchdog",   # a rank says a collective took too long: value seconds; labels op, sequence, enqueued, completed
    "launched",   # collectives a rank has launched on a communicator (not completed): value; name: the op
    "missing",    # a rank that does not answer, or whose record is not there
    "status",     # what a monitor says of a group: name ok, error
    "stack",      # where a rank's thread stands: name: the innermost call that says it, labels: frames
    "error",      # an exception or fatal line of a rank
    "notice",     # a line that looks like a fault and is none by itself: a busy-wait, an idle heartbeat
    "setting",    # a configuration that is in force: name and labels value
    "exit",       # a process ended: value its code, negative: the signal
]  # fmt: skip

MAX_TEXT = 300


class Fact(NamedTuple):
    """One statement. rank, peer: -1 = not of one. device: gpu3, a bus id, a NIC or NIC:port. unix_ns: 0 = not known.

    text: the line it was read from, short and printable. source: file and line or field.
    """

    kind: Kind
    name: str
    value: float = 0.0
    rank: int = -1
    host: str = ""
    device: str = ""
    peer: int = -1
    group: Members = ()
    unix_ns: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    text: str = ""
    source: str = ""
    unit: str = ""

    def label(self, name: str, otherwise: str = "") -> str:
        """The value of a label."""
        return next((value for key, value in self.labels if key == name), otherwise)


class Span(NamedTuple):
    """A request, or a part of it, as an engine or a router reports it. request: its id or hash; parent: of the part.

    name: request, queue, prefill, transfer, decode, or the format's own. Times in Unix ns.
    """

    request: str
    name: str
    began_ns: int
    ended_ns: int
    service: str = ""
    failed: bool = False
    labels: tuple[tuple[str, str], ...] = ()


def quoted(line: str) -> str:
    """A line of evidence as it may be shown."""
    return clipped(printable(" ".join(line.split())), MAX_TEXT)

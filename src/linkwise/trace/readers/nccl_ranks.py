"""Which process of a log of NCCL is which rank, and its calls as a record.

Ranks of the world are those of the largest communicator, else a launcher's. A communicator of which the log does not
hold all ranks is a unit of its own, with its own ranks: nothing says which ranks of the world those are.
"""

from array import array
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from linkwise.core.printable import clipped, printable
from linkwise.trace.calls import columns
from linkwise.trace.events import Head, RankTrace
from linkwise.trace.facts import Fact
from linkwise.trace.readers import nccl_lines as lines

MAX_PROCESSES = 65_536
MAX_COMMUNICATORS = 262_144  # memberships of processes in communicators
MAX_CALLS = 5_000_000
P2P = "|p2p"


class Communicator:
    """One communicator of a log. processes: by rank, those that the log has."""

    def __init__(self, key: str, size: int) -> None:
        self.key, self.size = key, size
        self.processes: dict[int, Process] = {}


class Place(NamedTuple):
    """A process in a communicator; rank -1: not known."""

    communicator: Communicator
    rank: int


class Calls:
    """Calls of a process on one communicator, in columns."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.ops: list[str] = []
        self.dtypes: list[str] = []
        self.turns, self.sizes, self.peers = array("q"), array("q"), array("q")

    @property
    def p2p(self) -> list[bool]:
        return [op in ("send", "recv") for op in self.ops]

    def repeats(self) -> bool:
        """Whether opCounts of collectives do not rise: calls of one ncclGroupStart share one."""
        turns = [turn for turn, flag in zip(self.turns, self.p2p, strict=True) if not flag]
        return any(b <= a for a, b in pairwise(turns))

    def sequence(self, in_order: bool) -> list[int]:
        """Numbers of the calls in their group; of send and recv, which have no count of their own, by their order."""
        counts = [0, 0]
        found = []
        for turn, flag in zip(self.turns, self.p2p, strict=True):
            found.append(counts[flag] if flag or in_order else turn)
            counts[flag] += 1
        return found


class Process:
    """A device of a process: what NCCL calls a rank. hint: the rank that a launcher gives it."""

    def __init__(self, host: str, pid: int, device: int) -> None:
        self.host, self.pid, self.device = host, pid, device
        self.hint, self.bus = -1, ""
        self.places: dict[str, Place] = {}  # by the communicator's pointer
        self.sizes: Counter[int] = Counter()  # how many communicators of each size
        self.latest: Place | None = None
        self.calls: dict[str, Calls] = {}


class Processes:
    """Everybody that a log speaks of."""

    def __init__(self) -> None:
        self.all: dict[tuple[str, int, int], Process] = {}
        self.communicators: dict[str, Communicator] = {}
        self.lost = 0
        self._joined = self._called = 0

    def of(self, line: lines.Line) -> Process | None:
        """Who wrote a line; None beyond the bounds."""
        key = line.host, line.pid, line.device
        found = self.all.get(key)
        if found is None and len(self.all) < MAX_PROCESSES:
            found = self.all[key] = Process(*key)
        return found

    def join(self, process: Process, joined: lines.Communicator) -> None:
        """A line of the making of a communicator."""
        key = joined.id
        if not key and joined.color:
            parent = process.places.get(joined.parent)
            key = f"{parent.communicator.key if parent else joined.parent} {joined.color}"
        process.bus = process.bus or joined.bus
        self._place(process, key, joined.pointer, joined.rank, joined.size)

    def _place(self, process: Process, key: str, pointer: str, rank: int, size: int) -> Place | None:
        known = process.places.get(pointer)
        if known and key in ("", known.communicator.key):  # Init COMPLETE after Init START
            process.latest = known
            return known
        self._joined += 1
        if self._joined > MAX_COMMUNICATORS:
            self.lost += 1
            return None
        # Without an id: by its size, and which of that size it is on its rank.
        key = key or f"{size} ranks #{process.sizes[size]}"
        process.sizes[size] += 1
        communicator = self.communicators.setdefault(key, Communicator(key, size))
        rank = rank if rank < communicator.size else -1
        if rank >= 0:
            communicator.processes.setdefault(rank, process)
        process.latest = process.places[pointer] = Place(communicator, rank)
        return process.latest

    def call(self, process: Process, call: lines.Call) -> None:
        """A call, on a communicator whose making the log may not hold."""
        hint = call.rank if call.rank >= 0 else process.hint
        place = process.places.get(call.pointer) or self._place(process, "", call.pointer, hint, call.size)
        self._called += 1
        if place is None or self._called > MAX_CALLS:
            self.lost += 1
            return
        kept = process.calls.setdefault(place.communicator.key, Calls(place))
        kept.ops.append(call.op)
        kept.dtypes.append(call.dtype)
        kept.turns.append(call.turn)
        kept.sizes.append(call.S_bytes)
        kept.peers.append(call.peer)


class Ranks:
    """Ranks of the world for processes, and for ranks of communicators. notes: what that rests on."""

    def __init__(self, processes: Processes, notes: list[str]) -> None:
        self._processes = list(processes.all.values())
        self._notes = notes
        self._of: dict[int, int] = {}
        self._whole = 0  # size of the communicator that is the world
        every = processes.communicators.values()
        size = max((one.size for one in every), default=0)
        largest = [one for one in every if one.size == size]
        sets = [set(map(id, one.processes.values())) for one in largest]
        # Two of that size without a common process: neither is the world.
        if any(sets[0].isdisjoint(other) for other in sets[1:]):
            notes.append("no communicator holds all processes: ranks are those that a launcher put before the lines")
        elif largest and any(sets):
            self._whole = size
            self._of = {id(process): rank for one in largest[::-1] for rank, process in one.processes.items()}
            notes.append(f"ranks are those of its largest communicator, of {size}")
        for process in self._processes:
            if process.hint >= 0:
                self._of.setdefault(id(process), process.hint)
        self.size = max([self._whole, *(rank + 1 for rank in self._of.values())])

    def of(self, process: Process) -> int:
        """A process's rank; -1: not known."""
        return self._of.get(id(process), -1)

    def world(self, place: Place | None, rank: int) -> int:
        """The world rank of a rank of a communicator; -1: not known."""
        if place is None or rank < 0:
            return -1
        if place.communicator.size == self._whole:
            return rank if rank < self._whole else -1
        process = place.communicator.processes.get(rank)
        return self.of(process) if process else -1

    def alone_on(self, host: str) -> int:
        """The only rank of a host; -1 when there are several."""
        found = {self.of(process) for process in self._processes if process.host == host}
        return found.pop() if len(found) == 1 else -1

    def members(self, communicator: Communicator) -> tuple[int, ...]:
        """World ranks; () unless all are known."""
        if communicator.size == self._whole:
            return tuple(range(self._whole))
        found = {self.of(process) for process in communicator.processes.values()}
        return tuple(sorted(found)) if len(found) == communicator.size and -1 not in found else ()

    def places(self, where: str) -> Iterator[Fact]:
        """Where each process runs."""
        for process in self._processes:
            if process.places:
                named = {
                    "host": process.host,
                    "device": f"gpu{process.device}",
                    "pid": str(process.pid),
                    "bus": process.bus,
                }
                labels = tuple((key, value) for key, value in named.items() if value)
                rank = self.of(process)
                yield Fact(
                    "place", "rank", rank=rank, host=process.host, device=process.bus, labels=labels, source=where
                )

    def traces(self, where: str, format: str) -> Iterator[RankTrace]:
        """A record per process, and one per communicator whose members nobody knows."""
        callers = [process for process in self._processes if process.calls]
        if not callers:
            return
        again = {key for process in callers for key, kept in process.calls.items() if kept.repeats()}
        if again:
            self._notes.append("opCount repeats, as in grouped calls: there calls are numbered in their order instead")
        self._notes.append("it tells when calls are enqueued, not when they end: they count as done")
        homeless = 0
        for process in callers:
            rank = self.of(process)
            whole = [kept for kept in process.calls.values() if rank >= 0 and self.members(kept.place.communicator)]
            alone = [kept for kept in process.calls.values() if kept not in whole]
            if whole:
                yield self._trace(process, whole, again, Head(rank=rank, world=self.size), where, format)
            for place in [kept.place for kept in alone if kept.place.rank >= 0]:
                key, size = place.communicator.key, place.communicator.size
                head = Head(rank=place.rank, world=size, unit=f"communicator {key}"[:200])
                yield self._trace(process, [process.calls[key]], again, head, where, format)
            homeless += sum(1 for kept in alone if kept.place.rank < 0)
        if homeless:
            self._notes.append(f"calls on {homeless} communicators are left out: nothing says of which rank they are")

    def _trace(
        self, process: Process, kept: list[Calls], again: set[str], head: Head, where: str, format: str
    ) -> RankTrace:
        groups: dict[str, tuple[int, ...]] = {}
        table: dict[str, list[Any]] = {name: [] for name in ("group", "op", "sequence", "S_bytes", "dtype", "peer")}
        for one in kept:
            communicator = one.place.communicator
            key = clipped(printable(communicator.key), 190)
            p2p = one.p2p
            members = tuple(range(head.world)) if head.unit else self.members(communicator)
            groups |= {key: members} | ({key + P2P: members} if True in p2p else {})
            table["group"] += [key + P2P * flag for flag in p2p]
            table["op"] += one.ops
            table["sequence"] += one.sequence(communicator.key in again)
            table["S_bytes"] += one.sizes
            table["dtype"] += one.dtypes
            table["peer"] += one.peers if head.unit else [self.world(one.place, peer) for peer in one.peers]
        return RankTrace(
            head=Head(
                rank=head.rank,
                world=head.world,
                unit=head.unit,
                host=process.host[:200],
                device=process.bus,
                groups=groups,
                transport="nccl",
                pid=process.pid,
                writer=format,
            ),
            calls=columns(**table),
            source=where,
            format=format,
        )

"""Our own records back from files. They are hostile until checked: sizes are bounded, every line is validated."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from linkwise.core.errors import InputError
from linkwise.core.files import open_regular
from linkwise.core.schema import decode_json
from linkwise.trace.calls import of_events
from linkwise.trace.events import Anchor, Batch, Count, Event, Handoff, Head, Name, Number, RankTrace, Trace
from linkwise.trace.facts import Fact
from linkwise.trace.readers.base import Reading, Source
from linkwise.trace.writer import EARLIER, OPEN, SUFFIX, Cpu, Open, Row, Slot

FORMAT = "linkwise trace"
MAX_FILE_BYTES = 512 * 2**20
MAX_LINE_BYTES = 4 * 2**20
MAX_EVENTS = 20_000_000
MAX_FILES = 65_536
MAX_LOOKS = 1_000  # at the time on cores, of one record

_OPEN = b'{"schema":"linkwise.open/'
_ROW = msgspec.json.Decoder(Row)
_TAGGED: dict[str, msgspec.json.Decoder[Any]] = {
    "step": msgspec.json.Decoder(tuple[str, *(Batch.__annotations__[n] for n in Batch._fields[:4])]),  # type: ignore[misc]
    "over": msgspec.json.Decoder(tuple[str, Number, Count]),
    "handoff": msgspec.json.Decoder(tuple[str, *(Handoff.__annotations__[n] for n in Handoff._fields)]),  # type: ignore[misc]
    "clock": msgspec.json.Decoder(tuple[str, Count, Count]),
    "lost": msgspec.json.Decoder(tuple[str, Count]),
    "cut": msgspec.json.Decoder(tuple[str]),
    "open": msgspec.json.Decoder(Open),
    "cpu": msgspec.json.Decoder(Cpu),
}
_OPS: frozenset[Name] = frozenset(
    {
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "send",
        "recv",
        "broadcast",
        "gather",
        "barrier",
        "wait",
    }
)


def read_folder(folder: str | Path) -> Trace:
    """All records of a folder, by unit and rank; a record's earlier and current file are one.

    Raises InputError naming the file and the line for what no run of ours writes.
    """
    folder = Path(folder)
    try:
        names = sorted(n for n in os.listdir(folder) if n.endswith(SUFFIX))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(folder), expected="a trace folder") from None
    if not names or len(names) > MAX_FILES:
        raise InputError(f"{len(names)} trace files", where=str(folder), expected=f"files that end in {SUFFIX}")
    parts = {n: read_file(folder / n) for n in names}
    found = []
    for name in names:
        if name.endswith(EARLIER):
            current = name.removesuffix(EARLIER) + SUFFIX
            found += [] if current in parts else [parts[name]]
        else:
            before = parts.get(name.removesuffix(SUFFIX) + EARLIER)
            found.append(joined(before, parts[name]) if before else parts[name])
    return Trace(ranks=tuple(sorted(found, key=lambda r: (r.head.unit, r.head.rank, r.head.anchor.unix_ns))))


def joined(a: RankTrace, b: RankTrace) -> RankTrace:
    """One record of an earlier and a current file."""
    # A step whose calls lie in both files began in the earlier one.
    last = a.batches[-1].step if a.batches else -1
    events, carried = list(b.calls), 0
    while carried < len(events) and events[carried].step < 0:
        events[carried] = events[carried]._replace(step=last)
        carried += 1
    return msgspec.structs.replace(
        b,
        head=a.head,
        calls=of_events((*a.calls, *events)),
        batches=a.batches + b.batches,
        handoffs=a.handoffs + b.handoffs,
        anchors=a.anchors + b.anchors,
        lost=a.lost + b.lost,
    )


def recognises(source: Source) -> bool:
    """The first line is the head of one of our records, or of the call one of them was in."""
    return source.head.startswith((b'{"schema":"linkwise.trace/', _OPEN))


def read(source: Source) -> Reading:
    """One file. A last line without its end, as a killed process leaves it, is left out (`cut`)."""
    if source.head.startswith(_OPEN):  # read with the record beside it
        return Reading()
    found = _read(source)
    return Reading(ranks=(found.record,), facts=tuple(found.facts()), notes=found.notes())


def read_file(path: str | Path) -> RankTrace:
    """One file's record."""
    return _read(Source(Path(path))).record


def _read(source: Source) -> "_Reading":
    if not source.packed and source.size > MAX_FILE_BYTES:
        raise InputError(f"{source.size} bytes", where=source.where, expected=f"at most {MAX_FILE_BYTES}")
    with source.open() as file:
        lines = _lines(file, source.where)
        first = next(lines, b"")
        if not first.endswith(b"\n"):
            raise InputError("has no whole first line", where=source.where, expected="a trace that linkwise wrote")
        head = decode_json(first, Head, where=f"{source.where}: line 1")
        found = _Reading(head, source.where)
        found.record = found.all(lines, _slot(source.path))
        return found


def _slot(path: Path) -> Open | None:
    """The call that a record's process was in, from the file beside it; None where none is, or none is whole."""
    beside = path.with_name(path.name.removesuffix(SUFFIX) + OPEN)
    if not path.name.endswith(SUFFIX) or path.name.endswith(EARLIER) or not beside.exists():
        return None
    try:
        text = Source(beside).bytes(Slot.BYTES)
        return (
            _TAGGED["open"].decode(text[Slot.AT :].partition(b"\n")[0]) if text[Slot.AT : Slot.AT + 1] == b"[" else None
        )
    except (InputError, msgspec.MsgspecError):  # it was being written
        return None


def read_tail(path: Path, most: int) -> RankTrace:
    """The head of a record and about its last `most` bytes, while it may still be written to."""
    where = str(path)
    with open_regular(path) as (file, size):
        first = file.readline(MAX_LINE_BYTES + 1)
        if not first.endswith(b"\n"):
            raise InputError("has no whole first line", where=where, expected="a trace that linkwise wrote")
        head = decode_json(first, Head, where=f"{where}: line 1")
        if size > len(first) + most:
            file.seek(size - most)
            file.readline(MAX_LINE_BYTES + 1)  # the rest of a line
        return _Reading(head, where).all(iter(file.read(2 * most).splitlines(keepends=True)))


def _lines(file: Any, where: str) -> Iterator[bytes]:
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise InputError(f"more than {MAX_LINE_BYTES} bytes", where=f"{where}: line {number}")
        yield line


class _Reading:
    """One file's events as they come."""

    def __init__(self, head: Head, where: str) -> None:
        self.head, self.where = head, where
        self.step, self.lost = -1, 0
        self.full = False
        self.opened: Open | None = None
        self.events: list[Event] = []
        self.batches: list[Batch] = []
        self.handoffs: list[Handoff] = []
        self.anchors = [head.anchor]
        self.cpu: list[Cpu] = []
        self.record: RankTrace

    def all(self, lines: Iterator[bytes], slot: Open | None = None) -> RankTrace:
        """slot: the call its process was in when it ended."""
        cut = False
        for number, line in enumerate(lines, 2):
            if not line.endswith(b"\n"):
                cut = True
                break
            try:
                self.take(line)
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, ValueError) as error:
                raise InputError(f"not a trace line: {error}", where=f"{self.where}: line {number}") from None
            if len(self.events) + len(self.batches) + len(self.handoffs) > MAX_EVENTS:
                raise InputError(f"more than {MAX_EVENTS} events", where=self.where)
        opened = slot or self.opened
        if opened is not None:
            event = self.under_way(opened)
            if not any(event[1:6] == past[1:6] and event.started_ns == past.started_ns for past in self.events[-64:]):
                self.events.append(event)
        return RankTrace(
            head=self.head,
            calls=of_events(self.events),
            batches=tuple(self.batches),
            handoffs=tuple(self.handoffs),
            anchors=tuple(self.anchors),
            lost=self.lost,
            cut=cut or self.full,
            source=self.where,
            format=FORMAT,
        )

    def take(self, line: bytes) -> None:
        tag = line[2 : line.find(b'"', 2)].decode()
        if tag not in _TAGGED:
            self.call(_ROW.decode(line))
            return
        _, *values = value = _TAGGED[tag].decode(line)
        if tag == "step":
            batch = Batch(*values)
            if len(batch.tokens) != len(batch.requests):
                raise ValueError("a step with other numbers of requests and tokens")
            self.step = batch.step
            self.batches.append(batch)
        elif tag == "handoff":
            self.handoffs.append(Handoff(*values))
        elif tag == "clock":
            self.anchors.append(Anchor(*values))
        elif tag == "lost":
            self.lost += values[0]
            self.step = -1  # of the calls behind the gap nothing says whose step they are, until the next one begins
        elif tag == "cut":
            self.full = True
        elif tag == "over":
            if self.batches and self.batches[-1].step == value[1]:
                self.batches[-1] = self.batches[-1]._replace(ended_ns=value[2])
        elif tag == "cpu":
            self.cpu.append(Cpu(*value))
            if len(self.cpu) > MAX_LOOKS:  # every second one, but the newest
                self.cpu = self.cpu[:-1:2] + self.cpu[-1:]
        else:
            self.opened = value

    def notes(self) -> tuple[str, ...]:
        """What a person should know who reads this record."""
        said = []
        if self.record.cut:
            how = "the disk took no more" if self.full else "its file is cut in the middle of a line"
            said.append(f"record of rank {self.head.rank} ends early: {how}")
        if self.record.lost:
            said.append(f"record of rank {self.head.rank} lacks {self.record.lost:,} calls that were not written")
        return tuple(said)

    def facts(self) -> Iterator[Fact]:
        """What the system said of the rank's time on its cores."""
        for one in self.cpu:
            at = self.record.unix_ns(one.at_ns)
            for name, value, unit in (
                ("cpu.run_ns", one.run_ns, "ns"), ("cpu.run_delay_ns", one.run_delay_ns, "ns"),
                ("cpu.nr_periods", one.periods, ""), ("cpu.nr_throttled", one.throttled, ""),
                ("cpu.throttled_us", one.throttled_us, "us"),
            ):  # fmt: skip
                yield Fact(
                    "counter", name, float(value), rank=self.head.rank, host=self.head.host, unix_ns=at, unit=unit,
                    labels=(("unit", self.head.unit), ("pid", str(self.head.pid))), source=self.where,
                )  # fmt: skip

    def under_way(self, opened: Open) -> Event:
        """The call a rank was in; of an older record, with what the last call of that role says of it."""
        if opened.op:
            if opened.op not in _OPS or opened.group not in self.head.groups:
                raise InputError(f"an open {opened.op!r} on {opened.group!r}", where=self.where)
            return Event(
                opened.step, opened.group, opened.role, opened.op, opened.sequence, opened.S_bytes, opened.dtype,
                opened.peer, opened.since_ns, opened.since_ns, 0, "started",
            )  # fmt: skip
        alike = next((event for event in reversed(self.events) if event.role == opened.role), None)
        if alike is None:
            return Event(
                opened.step, "", opened.role, "", -1, 0, "", -1, opened.since_ns, opened.since_ns, 0, "started"
            )
        number = 1 + max(event.sequence for event in self.events if event.group == alike.group)
        return alike._replace(
            step=opened.step, sequence=number, created_ns=opened.since_ns, started_ns=opened.since_ns, ended_ns=0,
            state="started",
        )  # fmt: skip

    def call(self, row: Row) -> None:
        self.opened = None  # it came out of it
        if row.op not in _OPS:
            raise ValueError(f"operation {row.op!r}")
        if self.head.groups.get(row.group) != row.members:
            raise ValueError(f"group {row.group!r} of {row.members}, which the first line does not name")
        if not row.created_ns <= row.started_ns <= row.ended_ns:
            raise ValueError("a call that ends before it begins")
        self.events.append(
            Event(
                self.step, row.group, row.role, row.op, row.sequence, row.S_bytes, row.dtype, row.peer,
                row.created_ns, row.started_ns, row.ended_ns, "done",
            )
        )  # fmt: skip

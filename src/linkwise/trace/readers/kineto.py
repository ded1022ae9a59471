"""Traces of the PyTorch profiler (Kineto), plain or gzipped, of NVIDIA, AMD and CPU runs.

Read in windows of a few MiB, so that the length of a trace costs time and no memory; a file that ends early gives what
is whole in it. Layout: pytorch/kineto libkineto/src/output_json.cpp and docs of torch.profiler.
"""

import re
import zlib
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw
from msgspec.structs import replace

from linkwise.core.errors import InputError
from linkwise.core.printable import clipped, printable
from linkwise.core.schema import convert
from linkwise.trace.events import Head, RankTrace
from linkwise.trace.readers.base import MAX_BYTES, Reading, Source
from linkwise.trace.readers.kineto_calls import before_gaps, rows
from linkwise.trace.readers.kineto_scan import MAX_MEMBERS, Groups, Scan, members

FORMAT = "PyTorch profiler trace"

WINDOW_BYTES = 8 * 2**20
MAX_EVENT_BYTES = 64 * 2**20
UNIX_US = 10**15  # before there was a base, times were Unix us: some 1.6e15
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_NOT_FINITE = re.compile(rb"(:\s*)-?(?:[nN]a[nN]|[iI]nf(?:inity)?)(?=\s*[,}\]])")
_RANK = re.compile(r"rank[-_ ]?(\d{1,7})(?!\d)|-TP-(\d{1,5})(?!\d)", re.IGNORECASE)
_TIMELINE = re.compile(rb"\[\s*\[\s*-?\d+\s*,\s*-?\d+\s*,\s*\d+\s*,\s*\d+\s*\]")
_TRACE = "a trace of torch.profiler with kernels, CPU operators or collectives"


class _Top(msgspec.Struct):
    """The object around the events; each field is looked at by itself, so that an odd one costs no other."""

    traceEvents: list[Raw] = []
    baseTimeNanoseconds: Raw = Raw(b"0")
    distributedInfo: Raw = Raw(b"{}")
    host_name: Raw = Raw(b'""')
    hostname: Raw = Raw(b'""')
    traceName: Raw = Raw(b'""')


class _Info(msgspec.Struct):
    rank: Raw = Raw(b"-1")
    world_size: Raw = Raw(b"0")
    backend: Raw = Raw(b'""')
    pg_config: Raw = Raw(b"[]")


class _Group(msgspec.Struct):
    pg_name: str | int = ""
    pg_desc: str | None = None
    pg_size: Annotated[int, Meta(ge=0, le=2**20)] | None = None
    ranks: list[Annotated[int, Meta(ge=0, lt=2**20)]] | str | None = None


_BROKEN = (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError, OverflowError)
_Rank = Annotated[int, Meta(ge=0, lt=2**20)]


def recognises(source: Source) -> bool:
    """Trace events with what Kineto puts around them; also PyTorch's records that lie beside them and are none."""
    return _kind(source) != ""


def _kind(source: Source) -> str:
    head = source.head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith(b"{"):
        if _EVENTS.search(head) or (b'"schemaVersion"' in head and b'"deviceProperties"' in head):
            return "kineto"
        if b'"nodes"' in head and b'"schema"' in head and (b'"ctrl_deps"' in head or b'"rf_id"' in head):
            return "execution"
    return "timeline" if _TIMELINE.match(head) else ""


def read(source: Source) -> Reading:
    """One rank's calls and own work. Raises InputError for a file without one whole event of a known kind."""
    kind = _kind(source)
    if kind == "execution":
        raise InputError("a PyTorch execution trace: it has no times of calls", where=source.where, expected=_TRACE)
    if kind == "timeline":
        raise InputError("a memory timeline: it has no calls", where=source.where, expected=_TRACE)
    return _Reading(source).all()


class _Reading:
    def __init__(self, source: Source) -> None:
        self.source, self.where = source, source.where
        self.groups = Groups()
        self.scan = Scan(self.groups)
        self.top = _Top()
        self.notes: list[str] = []
        self.cut = False
        self.consumed = 0  # bytes before the window
        self.lines = 0

    def all(self) -> Reading:
        self.windows()
        scan = self.scan
        if not scan.events:
            raise InputError("no whole event", where=f"{self.where}: line {self.lines + 1}", expected=_TRACE)
        info = _field(self.top.distributedInfo, _Info, _Info())
        self.configured(info)
        base, relative = self.base()
        calls, busy, notes, numbered = rows(scan, base)
        if not len(calls):
            raise InputError(f"{scan.events} events, none of a known kind", where=self.where, expected=_TRACE)
        head = self.head(info)
        if self.cut and head.groups and not numbered:
            head = replace(head, groups={})
            notes.append("its calls carry no numbers, so which are missing is not known: not held against other ranks")
        elif self.cut:
            calls = before_gaps(calls, [name for name in calls.groups if len(head.groups.get(name, ())) > 1])
        if relative:
            notes.append("times are relative: the trace names no base")
        if scan.odd:
            notes.append(f"{scan.odd} events were not understood and are left out")
        if scan.dropped:
            notes.append(f"{scan.dropped} events are beyond the bounds and are left out")
        trace = RankTrace(
            head=head, calls=calls, busy_ns=busy, lost=scan.dropped, cut=self.cut, source=self.where, format=FORMAT
        )  # fmt: skip
        return Reading(ranks=(trace,), notes=(*self.notes, *notes))

    def windows(self) -> None:
        """All events, window by window. The text of a window begins with an event and is valid where it is cut, so it
        is cut between two events and nowhere else."""
        text, began, goal = b"", False, WINDOW_BYTES
        for piece in self.pieces():
            text += piece
            if not began:
                found = _EVENTS.search(text)
                if found is None:
                    if len(text) > MAX_EVENT_BYTES:
                        raise InputError(f"no traceEvents in {len(text)} bytes", where=self.where, expected=_TRACE)
                    continue
                self.around(text[: found.start()].rstrip().rstrip(b",") + b"}", required=True)
                began, text = True, self.past(text, found.end())
            if len(text) >= goal:
                end = self.some(text)
                text = self.past(text, end)
                goal = WINDOW_BYTES if end else 2 * len(text)
                if len(text) > MAX_EVENT_BYTES:
                    break
        if not began:
            raise InputError("ends before its events", where=f"{self.where}: line {self.lines + 1}", expected=_TRACE)
        self.last(text)

    def pieces(self) -> Iterator[bytes]:
        """The unpacked bytes; a gzip that breaks off gives what came before."""
        size = 0
        with self.source.open() as file:
            while size <= MAX_BYTES:
                try:
                    piece = file.read(WINDOW_BYTES // 8)
                except (OSError, EOFError, zlib.error):
                    return
                if not piece:
                    return
                size += len(piece)
                yield piece.removeprefix(b"\xef\xbb\xbf") if size == len(piece) else piece
        raise InputError(f"more than {MAX_BYTES} bytes", where=self.where, expected=f"at most {MAX_BYTES}")

    def past(self, text: bytes, end: int) -> bytes:
        self.consumed += end
        self.lines += text.count(b"\n", 0, end)
        return text[end:]

    def some(self, text: bytes) -> int:
        """Take the events of a window up to a place between two of them: where that is, 0 when none is found. The
        places are tried from the last one back, ever further, as events may hold lists of objects."""
        places = [found.end() for found in _BETWEEN.finditer(text, max(0, len(text) - 2**16))]
        if not places:
            places = [found.end() for found in _BETWEEN.finditer(text)]
        for end in _back(places):
            if self.list(text[:end].rstrip().rstrip(b",")):
                return end
        return self._further(text, places)

    def _further(self, text: bytes, places: list[int]) -> int:
        """Places in the whole window, after those near its end did not do."""
        before = [found.end() for found in _BETWEEN.finditer(text) if not places or found.end() < places[0]]
        return next((end for end in _back(before) if self.list(text[:end].rstrip().rstrip(b","))), 0)

    def list(self, text: bytes) -> bool:
        """Take a text of events, if it is one."""
        found = _decoded(b"[" + text + b"]", list[Raw])
        for raw in found or ():
            self.scan.take(raw)
        return found is not None

    def last(self, text: bytes) -> None:
        """The end: events, the end of their list and what else the object says; or a cut."""
        if self.around(b'{"traceEvents":[' + text, required=False):
            return
        self.cut = True
        ends = [match.start() + 1 for match in _BETWEEN.finditer(text)]
        if text.rstrip().rstrip(b",").endswith(b"}"):
            ends.append(len(text.rstrip().rstrip(b",")))
        end = next((end for end in _back(ends) if self.list(text[:end])), 0)
        at = self.lines + text.count(b"\n", 0, end) + 1
        self.notes.append(f"cut or broken at line {at}, byte {self.consumed + end}: the events before are used")

    def around(self, text: bytes, *, required: bool) -> bool:
        """Fields of the object around the events; those that come after them keep what came before."""
        found = _decoded(text, _Top)
        if found is None:
            if required:
                raise InputError("not valid JSON before its events", where=f"{self.where}: line 1", expected=_TRACE)
            return False
        for raw in found.traceEvents:
            self.scan.take(raw)
        empty = _Top()
        for name in _Top.__struct_fields__[1:]:
            value = bytes(getattr(found, name))
            if value != bytes(getattr(empty, name)):
                setattr(self.top, name, Raw(value))  # a copy, which does not keep the window
        return True

    def base(self) -> tuple[int, bool]:
        """Unix ns of the trace's zero, and whether that is not known."""
        base = _field(self.top.baseTimeNanoseconds, Annotated[int, Meta(ge=0, le=2**61)], 0)
        return base, not base and self.scan.latest_us < UNIX_US

    def configured(self, info: _Info) -> None:
        """The groups that the trace lists, by the names that calls have for them."""
        for raw in _field(info.pg_config, list[Raw], [])[:4096]:
            group = _field(raw, _Group, _Group())
            ranks = members(group.ranks) if isinstance(group.ranks, str) else tuple(group.ranks or ())
            if group.pg_name != "" and len(ranks) <= MAX_MEMBERS:
                self.groups.add(str(group.pg_name)[:150], (group.pg_desc or "")[:40], ranks, group.pg_size or 0)

    def head(self, info: _Info) -> Head:
        scan = self.scan
        rank = _field(info.rank, _Rank, -1)
        if rank < 0:
            rank = self.named()
        world = max(_field(info.world_size, Annotated[int, Meta(ge=0, le=2**20)], 0), rank + 1)
        if not _field(info.world_size, int, 0):
            world = max([world, *(max(ranks) + 1 for ranks in self.groups.members.values())])
        groups = {}
        for key, ranks in self.groups.members.items():
            if max(ranks) < world:
                groups[key] = list(ranks)
            else:
                self.notes.append(f"group {clipped(printable(key), 60)} has ranks outside the {world}: left out")
        host = _field(self.top.host_name, str, "") or _field(self.top.hostname, str, "")
        backend = _field(info.backend, str, "") or (
            "nccl" if scan.kernels or scan.marks else "gloo" if scan.gloo else ""
        )
        value = {
            "rank": rank,
            "world": world,
            "host": host[:200],
            "device": f"gpu{scan.devices.most_common(1)[0][0]}" if scan.devices else "",
            "transport": backend[:200],
            "groups": groups,
            "pid": scan.pids.most_common(1)[0][0] if scan.pids else 0,
        }
        return convert(value, Head, where=self.where)

    def named(self) -> int:
        """The rank by the file's or the trace's name; 0 with a note when they say none."""
        for name in (self.source.name, _field(self.top.traceName, str, "")[-400:]):
            found = _RANK.search(name)
            if found and int(found[1] or found[2]) < 2**20:
                self.notes.append("the rank is that of the file's name: the trace has none")
                return int(found[1] or found[2])
        self.notes.append("the rank is not known: taken for 0")
        return 0


def _back(places: list[int]) -> Iterator[int]:
    """The last of some places, the one before, then two, four, ... further back, and the first."""
    step = 1
    while step <= len(places):
        yield places[-step]
        step *= 2
    if len(places) > 2 and step // 2 != len(places):
        yield places[0]


def _decoded(text: bytes, kind: Any) -> Any:
    """A value of JSON, also of the one Kineto writes with nan and inf where a device's properties were not known."""
    try:
        return msgspec.json.decode(text, type=kind)
    except _BROKEN:
        pass
    try:
        return msgspec.json.decode(_NOT_FINITE.sub(rb"\1null", text), type=kind)
    except _BROKEN:
        return None


def _field(raw: Raw, kind: Any, otherwise: Any) -> Any:
    """A field's value, or what to take where it is of another kind."""
    try:
        found = msgspec.json.decode(raw, type=kind)
    except _BROKEN:
        return otherwise
    return otherwise if found is None else found

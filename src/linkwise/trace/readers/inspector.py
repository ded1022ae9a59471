"""JSON lines of the NCCL Inspector plugin: calls that completed, a record per communicator and rank.

After nccl: ext-profiler/inspector (README.md and inspector.cc), format v4. It holds nothing of a call that hangs: there
a hang is an absence. `rank` is the rank in the communicator, and nothing says which rank of the world that is: each
communicator is a unit of its own. coll_sn counts the calls of one kind (src/scheduler: comm->seqNumber[func]), so that
each kind is a group of its own, "<id>|all_reduce". Times: without NCCL_INSPECTOR_DUMP_VERBOSE only the duration is
measured, and the time of the line is that of the dump, later than the end by up to its interval.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from linkwise.core.errors import InputError
from linkwise.core.printable import clipped, printable
from linkwise.trace.calls import columns
from linkwise.trace.events import Head, RankTrace
from linkwise.trace.facts import Fact, quoted
from linkwise.trace.readers.base import Reading, Source
from linkwise.trace.readers.nccl_lines import snake

FORMAT = "NCCL Inspector"
MAX_CALLS = 2_000_000
MAX_RECORDS = 65_536
MAX_SERIES = 4096
MAX_OPS = 64
P2P = "|p2p"
_PER_RANK = ("all_gather", "reduce_scatter")  # coll_msg_size_bytes: of one rank's part (inspectorComputeCollBw)
_FIELDS = ('"coll_perf"', '"p2p_perf"', '"dump_stats"')


class _Header(msgspec.Struct):
    id: str
    rank: int
    n_ranks: int


class _Metadata(msgspec.Struct):
    dump_timestamp_us: int = 0
    hostname: str = ""
    pid: int = 0
    inspector_output_format_version: str = ""


class _Kernel(msgspec.Struct):
    kernel_start_ts: int = 0
    kernel_stop_ts: int = 0


class _Times(msgspec.Struct):
    coll_start_ts: int = 0
    p2p_start_ts: int = 0
    kernel_events: list[_Kernel] = []


class _Coll(msgspec.Struct):
    coll: str
    coll_sn: int
    coll_msg_size_bytes: int = 0
    coll_exec_time_us: float = 0.0
    coll_busbw_gbs: float = 0.0
    event_trace_ts: _Times | None = None


class _P2P(msgspec.Struct):
    p2p: str
    p2p_sn: int
    p2p_peer: int = -1
    p2p_msg_size_bytes: int = 0
    p2p_exec_time_us: float = 0.0
    p2p_busbw_gbs: float = 0.0
    event_trace_ts: _Times | None = None


class _Line(msgspec.Struct):
    """header and metadata stand in every line, from v4.3 on only in the dump_stats line before its calls."""

    header: _Header | None = None
    metadata: _Metadata | None = None
    coll_perf: _Coll | None = None
    p2p_perf: _P2P | None = None
    dump_stats: dict[str, Any] | None = None


class _Call(NamedTuple):
    op: str
    sequence: int
    S_bytes: int
    peer: int
    created_ns: int
    started_ns: int
    ended_ns: int


class _Record:
    """One rank of one communicator."""

    def __init__(self, header: _Header, metadata: _Metadata) -> None:
        self.header, self.metadata = header, metadata
        self.calls: list[_Call] = []
        self.points: list[tuple[str, int, float, int]] = []  # op, bytes, busbw in GB/s, Unix ns
        self.ops: set[str] = set()
        self.lost = 0


_DECODER = msgspec.json.Decoder(_Line, strict=True)


def recognises(source: Source) -> bool:
    """The first line is one of the Inspector's."""
    first = source.text.lstrip().split("\n", 1)[0][:4096]
    return first[:1] == "{" and any(field in first for field in _FIELDS) and '"header"' in first


def read(source: Source) -> Reading:
    """One file. Raises InputError, naming the line, for what the Inspector does not write; a cut last line is left."""
    log = _Log(source.where)
    held: tuple[int, str] | None = None
    for number, line in source.lines():
        if not line.strip():
            continue
        if held is not None:
            log.take(*held)
        held = number, line
    if held is not None:
        log.take(*held, last=True)
    return log.reading()


class _Log:
    def __init__(self, where: str) -> None:
        self._where = where
        self._records: dict[tuple[str, int], _Record] = {}
        self._current: _Record | None = None
        self._count = self._beyond = 0
        self._cut = self._timed = False

    def take(self, number: int, line: str, last: bool = False) -> None:
        where = f"{self._where}: line {number}"
        try:
            value = _DECODER.decode(line)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            if last and self._records and not line.rstrip().endswith("}"):
                self._cut = True  # a process that was killed leaves its last line so
                return
            raise InputError(f"not a line of it: {error}", where=where, expected=FORMAT) from None
        if value.header is not None:
            self._current = self._record(value.header, value.metadata or _Metadata(), where)
        if self._current is None:
            raise InputError("no header in it or before it", where=where, expected="lines as the Inspector writes them")
        record = self._current
        if value.metadata is not None:
            record.metadata = value.metadata
        if value.dump_stats is not None:
            for field in ("coll_dropped_total", "p2p_dropped_total"):
                dropped = value.dump_stats.get(field, 0)
                if type(dropped) is int and 0 < dropped < 2**62:
                    record.lost = max(record.lost, dropped)
        for call, busbw in self._calls(value, record, where):
            self._count += 1
            if self._count > MAX_CALLS:
                self._beyond += 1
                continue
            record.ops.add(call.op)
            if len(record.ops) > MAX_OPS:
                raise InputError("calls of too many names", where=where, expected=f"at most {MAX_OPS} kinds of calls")
            record.calls.append(call)
            if 0 < busbw < 1e6 and len(record.points) < MAX_SERIES:
                record.points.append((call.op, call.S_bytes, busbw, record.metadata.dump_timestamp_us * 1000))

    def _record(self, header: _Header, metadata: _Metadata, where: str) -> _Record:
        if not 0 <= header.rank < header.n_ranks <= 65_536:
            raise InputError(f"rank {header.rank} of {header.n_ranks}", where=where, expected="at most 65536 ranks")
        key = header.id, header.rank
        found = self._records.get(key)
        if found is None:
            if len(self._records) >= MAX_RECORDS:
                raise InputError("too many communicators", where=where, expected=f"at most {MAX_RECORDS}")
            found = self._records[key] = _Record(header, metadata)
        return found

    def _calls(self, line: _Line, record: _Record, where: str) -> Iterator[tuple[_Call, float]]:
        ranks = record.header.n_ranks
        if (coll := line.coll_perf) is not None:
            op = clipped(printable(snake(coll.coll)), 60)
            size = coll.coll_msg_size_bytes * (ranks if op in _PER_RANK else 1)
            times = self._times(coll.event_trace_ts, coll.coll_exec_time_us, record, where)
            yield _checked(_Call(op, coll.coll_sn, size, -1, *times), where), coll.coll_busbw_gbs
        if (p2p := line.p2p_perf) is not None:
            op = clipped(printable(snake(p2p.p2p)), 60)
            peer = p2p.p2p_peer if 0 <= p2p.p2p_peer < ranks else -1
            times = self._times(p2p.event_trace_ts, p2p.p2p_exec_time_us, record, where)
            yield _checked(_Call(op, p2p.p2p_sn, p2p.p2p_msg_size_bytes, peer, *times), where), p2p.p2p_busbw_gbs

    def _times(self, traced: _Times | None, took_us: float, record: _Record, where: str) -> tuple[int, int, int]:
        """Created, started, ended in Unix ns. Without a trace: the time of the dump, less the duration."""
        if not (math.isfinite(took_us) and 0 <= took_us < 2**42):
            raise InputError("a duration", where=where, expected="microseconds of a call")
        kernels = [one for one in traced.kernel_events if one.kernel_start_ts > 0] if traced else []
        if traced and kernels:
            self._timed = True
            starts = min(one.kernel_start_ts for one in kernels)
            created = traced.coll_start_ts or traced.p2p_start_ts
            return created * 1000, starts * 1000, max(one.kernel_stop_ts for one in kernels) * 1000
        ended = record.metadata.dump_timestamp_us * 1000
        return 0, max(0, ended - round(took_us * 1000)), ended

    def reading(self) -> Reading:
        notes = ["ranks are those of each communicator, which is a unit of its own"]
        if self._count and not self._timed:
            notes.append(
                "calls are placed at the time of their dump: their durations are measured, their times are not"
            )
        if self._cut:
            notes.append("its last line is cut and left out")
        if self._beyond:
            notes.append(f"only the first {MAX_CALLS} calls are kept")
        traces: list[RankTrace] = []
        facts: list[Fact] = []
        for record in self._records.values():
            trace = self._trace(record)
            traces.append(trace)
            facts += _facts(record, trace.head, self._where)
        return Reading(ranks=tuple(traces), facts=tuple(facts), notes=tuple(notes))

    def _trace(self, record: _Record) -> RankTrace:
        header, metadata = record.header, record.metadata
        key = clipped(printable(header.id), 120)
        members = tuple(range(header.n_ranks))
        groups = [f"{key}{P2P if call.op in ('send', 'recv') else f'|{call.op}'}" for call in record.calls]
        rows = list(zip(*record.calls, strict=True)) if record.calls else [()] * len(_Call._fields)
        op, sequence, sizes, peers, created, started, ended = rows
        return RankTrace(
            head=Head(
                rank=header.rank,
                world=header.n_ranks,
                unit=f"communicator {key}"[:200],
                host=clipped(printable(metadata.hostname), 200),
                groups=dict.fromkeys(groups, members),
                transport="nccl",
                pid=metadata.pid if 0 <= metadata.pid < 2**62 else 0,
                writer=clipped(printable(f"{FORMAT} {metadata.inspector_output_format_version}"), 200),
            ),
            calls=columns(
                group=groups,
                op=op,
                sequence=sequence,
                S_bytes=sizes,
                peer=peers,
                created_ns=created,
                started_ns=started,
                ended_ns=ended,
            ),
            lost=record.lost + self._beyond,
            cut=self._cut,
            source=self._where,
            format=FORMAT,
        )


def _checked(call: _Call, where: str) -> _Call:
    if not all(0 <= value < 2**62 for value in (call.sequence, call.S_bytes, *call[4:])):
        raise InputError("a number of a call", where=where, expected="numbers from 0 to 2^62")
    return call


def _facts(record: _Record, head: Head, where: str) -> Iterator[Fact]:
    labels = (("communicator", head.unit.removeprefix("communicator ")), ("comm_rank", str(head.rank)))
    yield Fact(
        "place", "rank", host=head.host, labels=(*labels, ("host", head.host), ("pid", str(head.pid))), source=where
    )  # fmt: skip
    for op, size, busbw, at in record.points:
        about = (*labels, ("op", quoted(op)), ("S_bytes", str(size)), ("pid", str(head.pid)))
        yield Fact(
            "gauge", "rank.busbw_GBps", busbw, host=head.host, unix_ns=at if 0 <= at < 2**62 else 0, labels=about,
            source=where, unit="GB/s",
        )  # fmt: skip

"""All ranks' calls on one clock, as a file that Perfetto and chrome://tracing open (Trace Event Format, JSON)."""

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from linkwise.core.errors import InputError
from linkwise.trace.calls import STATES
from linkwise.trace.clocks import Clocks
from linkwise.trace.events import RankTrace
from linkwise.trace.gather import Evidence
from linkwise.trace.joined import Joined, Rows

REQUESTS = 1_000_000  # pid of the requests' track, beyond any rank's


def write(path: str | Path, evidence: Evidence, joined: Joined, clocks: Clocks) -> int:
    """Write the timeline, packed when the name ends in .gz; returns how many events it holds. Times in us from the
    first one. Raises InputError when the file cannot be written or nothing has a time."""
    begin = _begin(evidence, joined)
    if begin is None:
        raise InputError("no call and no request has a time", where="evidence", expected="records with times")
    path = Path(path)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    count = 0
    try:
        with gzip.open(part, "wt", compresslevel=5) if path.name.endswith(".gz") else open(part, "w") as file:
            file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
            for count, event in enumerate(_events(evidence, joined, clocks, begin), 1):
                file.write((",\n" if count > 1 else "") + json.dumps(event, separators=(",", ":")))
            file.write("\n]}\n")
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(f"cannot be written: {error.strerror}", where=str(path)) from None
    return count


def _begin(evidence: Evidence, joined: Joined) -> int | None:
    times = [
        int(column[column > 0].min())
        for rows in (joined.rows, joined.alone)
        for column in (rows.created_ns, rows.started_ns)
        if (column > 0).any()
    ]
    times += [span.began_ns for span in evidence.spans if span.began_ns > 0]
    return min(times, default=None)


def _events(evidence: Evidence, joined: Joined, clocks: Clocks, begin: int) -> Iterator[dict[str, Any]]:
    for place, rank in enumerate(joined.ranks):
        yield from _names(place, rank)
    for rows in (joined.rows, joined.alone):
        yield from _calls(joined, rows, begin)
    for place, rank in enumerate(joined.ranks):
        yield from _handoffs(place, rank, clocks.shift_ns.get(place, 0), begin)
    if evidence.spans:
        yield {"ph": "M", "name": "process_name", "pid": REQUESTS, "args": {"name": "requests"}}
    lanes: dict[str, int] = {}
    for span in evidence.spans:
        yield {
            "ph": "X",
            "cat": "request",
            "name": span.name,
            "pid": REQUESTS,
            "tid": lanes.setdefault(span.request, len(lanes)),
            "ts": (span.began_ns - begin) / 1e3,
            "dur": max(0, span.ended_ns - span.began_ns) / 1e3,
            "args": {"request": span.request, "service": span.service, "failed": span.failed},
        }


def _names(place: int, rank: RankTrace) -> Iterator[dict[str, Any]]:
    head = rank.head
    name = " ".join(word for word in (head.unit, f"rank {head.rank}", head.host, head.device) if word)
    yield {"ph": "M", "name": "process_name", "pid": place, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": place, "args": {"sort_index": head.rank}}


def _calls(joined: Joined, rows: Rows, begin: int) -> Iterator[dict[str, Any]]:
    """A call is a slice from its start (else from when it was enqueued) to its end; without an end it is an instant."""
    columns = zip(*(column.tolist() for column in rows), strict=True)
    for values in columns:
        row: Any = Rows(*values)
        start = row.started_ns or row.created_ns
        if start <= 0:
            continue
        key = joined.groups[row.group].key if row.group >= 0 else "own work"
        op, role = joined.ops[row.op], joined.roles[row.role]
        event: dict[str, Any] = {
            "name": role or op or "call",
            "cat": op or "open",
            "pid": row.who,
            "tid": key,
            "ts": (start - begin) / 1e3,
            "args": {
                "op": op,
                "group": key,
                "sequence": row.sequence,
                "S_bytes": row.S_bytes,
                "step": row.step,
                "state": STATES[row.state],
                "enqueued_us": (row.created_ns - begin) / 1e3 if row.created_ns else None,
            },
        }
        if row.ended_ns > 0:
            yield event | {"ph": "X", "dur": max(0, row.ended_ns - start) / 1e3}
        else:
            yield event | {"ph": "i", "s": "t"}


def _handoffs(place: int, rank: RankTrace, shift: int, begin: int) -> Iterator[dict[str, Any]]:
    for one in rank.handoffs:
        for name, start, end in (("queued", one.queued_ns, one.began_ns), (one.side, one.began_ns, one.ended_ns)):
            if start > 0 and end >= start:
                yield {
                    "ph": "X",
                    "cat": "handoff",
                    "name": f"handoff {name}",
                    "pid": place,
                    "tid": "handoff",
                    "ts": (rank.unix_ns(start) + shift - begin) / 1e3,
                    "dur": (end - start) / 1e3,
                    "args": {"request": one.request, "bytes": one.S_bytes, "attempt": one.attempt},
                }

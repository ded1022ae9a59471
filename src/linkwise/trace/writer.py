"""A rank's record while it runs: a bounded buffer in memory and bounded files, written off the step's way.

A step pays for appending what is there anyway; a thread turns it into JSON lines every so often. Two files bound the
disk: when the current one is full it becomes the earlier one, and the one before that is gone. What a killed process
had not written yet is at most what it did since the thread's last turn.

    line 1      {"schema": "linkwise.trace/1", "rank": ..., ...}       `events.Head`
    a call      [op, role, group, members, sequence, S_bytes, dtype, peer, created_ns, started_ns, ended_ns]
    others      ["step", ...Batch up to its tokens], ["over", step, ended_ns], ["handoff", ...Handoff],
                ["clock", monotonic_ns, unix_ns], ["lost", calls], ["open", role, step, since_ns]

A call that takes longer than a turn is written as open, so that the record of a rank that is killed in it says so.
What a group's driver sees of its ranks goes into a file beside theirs (`note_fault`).
"""

import contextlib
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from linkwise.core.errors import InputError
from linkwise.core.schema import Frozen
from linkwise.trace.events import Anchor, Batch, Count, Handoff, Head, Members, Name, Number

EVENTS = 65_536
FILE_BYTES = 64 * 2**20
TURN_S = 0.5
ANCHOR_S = 10.0
SUFFIX, EARLIER, FAULTS = ".trace.jsonl", ".earlier.trace.jsonl", ".faults.jsonl"


class Row(NamedTuple):
    """A finished call as it is kept and written: in the order of `runtime.comm.Call`."""

    op: Name
    role: Name
    group: Name
    members: Members
    sequence: Number
    S_bytes: Count
    dtype: Name
    peer: Number
    created_ns: Count
    started_ns: Count
    ended_ns: Count


class Noted(Frozen, frozen=True, kw_only=True):
    """What a driver saw of its ranks. kind: dead, stopped, slow, error, start, map."""

    schema: Literal["linkwise.fault/1"] = "linkwise.fault/1"  # type: ignore[assignment]
    unit: Name
    ranks: Members
    kind: Annotated[str, Meta(max_length=40)]
    message: Annotated[str, Meta(max_length=1000)]
    unix_ns: Count


class Open(NamedTuple):
    """The call a rank was in when its record ended."""

    tag: Annotated[str, Meta(pattern="^open$")]
    role: Name
    step: Number
    since_ns: Count


class Writer:
    """One rank's record. Made by `open_writer`.

    add: takes a `Row` or a tuple in its order; cheap, never blocks and never fails: with a full buffer the oldest goes.
    trouble: why nothing is written any more, empty = all is well. A full disk must not end a serving group.
    """

    def __init__(self, path: Path, head: Head, events: int, file_bytes: int, turn_s: float) -> None:
        self.path, self.earlier = path, path.with_name(path.name.removesuffix(SUFFIX) + EARLIER)
        self.head, self.trouble = head, ""
        self._buffer: deque[Any] = deque(maxlen=events)
        self.add = self._buffer.append
        self.inside: Callable[[], tuple[int, str]] = lambda: (0, "")  # calls so far, and the role of the one under way
        self.step = -1
        self._room = file_bytes // 2
        self._encode = msgspec.json.Encoder().encode_lines
        self._next: dict[str, int] = {}
        self._anchored = time.monotonic_ns()
        self._lock, self._over = threading.Lock(), threading.Event()
        self._file, self._size = self._new(), 0
        self._put(msgspec.json.encode(head) + b"\n")
        self._thread = threading.Thread(target=self._run, args=(turn_s,), name="linkwise-trace", daemon=True)
        if turn_s > 0:
            self._thread.start()

    def batch(self, batch: Batch) -> None:
        """The rows added from now on belong to this step."""
        self.step = batch.step
        self._buffer.append(("step", *batch[:4]))

    def over(self, step: int, ended_ns: int) -> None:
        """A step is over on this rank."""
        self._buffer.append(("over", step, ended_ns))

    def handoff(self, handoff: Handoff) -> None:
        self._buffer.append(("handoff", *handoff))

    def open(self, role: str, step: int, since_ns: int) -> None:
        """The call this rank is in, before its record ends for a fault."""
        self._buffer.append(Open("open", role, step, since_ns))

    def flush(self) -> None:
        """Write what is in the buffer."""
        with self._lock:
            if self.trouble:
                self._buffer.clear()
                return
            buffer = self._buffer
            full = len(buffer) == buffer.maxlen
            rows = [buffer.popleft() for _ in range(len(buffer))]
            missing = self._gap(rows, full)
            if missing:
                rows.insert(0, ("lost", missing))
            now = time.monotonic_ns()
            if now - self._anchored > ANCHOR_S * 1e9:
                self._anchored = now
                rows.append(("clock", *anchor()))
            if rows:
                self._put(self._encode(rows))

    def close(self) -> None:
        """Write the rest and end. Idempotent."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(5.0)
        self.flush()
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
                self.trouble = self.trouble or "closed"

    def _run(self, turn_s: float) -> None:
        before, since = (-1, ""), 0
        while not self._over.wait(turn_s):
            now, here = time.monotonic_ns(), self.inside()
            if here[1] and here == before:
                self.open(here[1], self.step, since)
            elif here != before:
                before, since = here, now
            self.flush()

    def _gap(self, rows: list[Any], full: bool) -> int:
        """Calls that fell out of a full buffer, by their groups' sequence numbers."""
        missing = 0
        if full:
            seen: set[str] = set()
            for row in rows:
                if len(row) == len(Row._fields) and row[2] not in seen:
                    seen.add(row[2])
                    missing += max(0, row[4] - self._next.get(row[2], 0))
        last: set[str] = set()
        for row in reversed(rows):
            if len(row) == len(Row._fields) and row[2] not in last:
                last.add(row[2])
                self._next[row[2]] = row[4] + 1
                if len(last) == len(self.head.groups):
                    break
        return missing

    def _new(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        try:
            return os.open(self.path, flags, 0o640)
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", where=str(self.path)) from None

    def _put(self, data: bytes) -> None:
        """Append to the file, or begin another one; what does not fit into a whole one is dropped."""
        try:
            if self._size and self._size + len(data) > self._room:
                os.close(self._file)
                self._file = -1
                os.replace(self.path, self.earlier)
                self._file, self._size = self._new(), 0
                data = msgspec.json.encode(msgspec.structs.replace(self.head, anchor=anchor())) + b"\n" + data
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]
            self._size += len(data)
        except (OSError, InputError) as error:
            self.trouble = str(error)


def anchor() -> Anchor:
    """Now, on both clocks."""
    return Anchor(time.monotonic_ns(), time.time_ns())


def open_writer(
    folder: Path, head: Head, *, events: int = EVENTS, file_bytes: int = FILE_BYTES, turn_s: float = TURN_S
) -> Writer:
    """A new record in a folder, which is made when it is missing. events: held in memory at most. file_bytes: of this
    rank's two files together, about. turn_s: between two turns of the writing thread, 0 = only `flush` writes.

    Raises InputError when the folder or the file cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be made: {error.strerror}", where=str(folder)) from None
    unit = re.sub(r"[^A-Za-z0-9_-]", "_", head.unit)[:60] or "unit"
    name = f"{unit}.rank{head.rank}.{time.time_ns() // 1000:x}-{os.getpid()}{SUFFIX}"
    return Writer(folder / name, head, events, file_bytes, turn_s)


def note_fault(folder: Path, unit: str, ranks: Sequence[int], kind: str, message: str) -> None:
    """Keep what a driver saw of its ranks beside their records. Never fails: a full disk must not end a driver."""
    fault = Noted(unit=unit[:200], ranks=tuple(ranks), kind=kind[:40], message=message[:1000], unix_ns=time.time_ns())
    name = re.sub(r"[^A-Za-z0-9_-]", "_", unit)[:60] or "unit"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / f"{name}{FAULTS}", "ab") as file:
            file.write(msgspec.json.encode(fault) + b"\n")

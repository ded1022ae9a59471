"""A rank's record while it runs: a bounded buffer in memory and bounded files, written off the step's way.

A step pays for appending what is there anyway; a thread turns it into JSON lines every so often. Two files bound the
disk: when the current one is full it becomes the earlier one, and the one before that is gone. What a killed process
had not written yet is at most what it did since the thread's last turn.

    line 1      {"schema": "linkwise.trace/1", "rank": ..., ...}       `events.Head`
    a call      [op, role, group, members, sequence, S_bytes, dtype, peer, created_ns, started_ns, ended_ns]
    others      ["step", ...Batch up to its tokens], ["over", step, ended_ns], ["handoff", ...Handoff],
                ["clock", monotonic_ns, unix_ns], ["lost", calls], ["cut"],
                ["open", role, step, since_ns, op, group, sequence, S_bytes, dtype, peer],
                ["cpu", run_ns, run_delay_ns, periods, throttled, throttled_us, monotonic_ns]

A call that takes longer than a turn is written as open. And the call under way stands in a small file beside, mapped
into memory: what a process has put there outlives it however it ends, so its record ends with the call it was in
(`Slot`).
A disk that takes nothing more is tried again every second; `cut` is then the record's end, where it finds room.
`cpu` is what the system says of the process's threads and of its control group, counted since their start.
What a group's driver sees of its ranks goes into a file beside theirs (`note_fault`).
"""

import contextlib
import mmap
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
from linkwise.trace.bounded import Bounded, append_whole, why
from linkwise.trace.events import Anchor, Batch, Count, Handoff, Head, Members, Name, Number

EVENTS = 65_536
FILE_BYTES = 64 * 2**20
TURN_S = 0.1  # a driver that sees a rank stopped or gone ends the others within half a second: they must have written
ANCHOR_S = 10.0
CPU_S = 0.5
RETRY_S = 1.0  # between two tries to write to a disk that takes nothing
_NO_EVENTS = frozenset({"over", "open", "clock", "cpu"})  # rows that say more of an event, or of the process
SUFFIX, EARLIER, FAULTS, OPEN = ".trace.jsonl", ".earlier.trace.jsonl", ".faults.jsonl", ".open.jsonl"


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

    schema: Literal["linkwise.fault/1"] = "linkwise.fault/1"
    unit: Name
    ranks: Members
    kind: Annotated[str, Meta(max_length=40)]
    message: Annotated[str, Meta(max_length=1000)]
    unix_ns: Count


class Open(NamedTuple):
    """The call a rank was in when its record ended. op "": only its role is known."""

    tag: Annotated[str, Meta(pattern="^open$")]
    role: Name
    step: Number
    since_ns: Count
    op: Name = ""
    group: Name = ""
    sequence: Number = -1
    S_bytes: Count = 0
    dtype: Name = ""
    peer: Number = -1


class Cpu(NamedTuple):
    """Time of all threads on a core, and of the one that waited most for one; of their control group: periods of its
    quota, those in which it was stopped, and for how long. Counted since the start of each."""

    tag: Annotated[str, Meta(pattern="^cpu$")]
    run_ns: Count
    run_delay_ns: Count
    periods: Count
    throttled: Count
    throttled_us: Count
    at_ns: Count


class Slotted(Frozen, frozen=True, kw_only=True):
    """The first line of a file that holds the call under way. record: name of the file it belongs to."""

    schema: Literal["linkwise.open/1"] = "linkwise.open/1"
    record: Annotated[str, Meta(max_length=300)]


class Slot:
    """The call a rank is in, where its end does not take it away: 4 KiB of a file, in memory that the kernel keeps."""

    BYTES, AT = 4096, 1024

    def __init__(self, path: Path, record: str) -> None:
        self.path = path
        head = msgspec.json.encode(Slotted(record=record)) + b"\n"
        with open(path, "xb") as file:
            file.write(head.ljust(self.AT - 1) + b"\n" + b" " * (self.BYTES - self.AT - 1) + b"\n")
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), self.BYTES)
        self._encode = msgspec.json.Encoder().encode

    def enter(self, one: Open) -> None:
        line = self._encode(one) + b"\n"
        self._memory[self.AT : self.AT + len(line)] = line

    def leave(self) -> None:
        self._memory[self.AT] = 0x20

    def remove(self) -> None:
        """The rank ended well."""
        self._memory.close()
        self.path.unlink(missing_ok=True)


class Writer:
    """One rank's record. Made by `open_writer`.

    add: takes a `Row` or a tuple in its order; cheap, never blocks and never fails: with a full buffer the oldest goes.
    trouble: why nothing is written now, empty = all is well. A full disk must not end a serving group.
    unwritten: calls, steps and handoffs that the record lacks, for that or for a full buffer.
    """

    def __init__(self, path: Path, head: Head, events: int, file_bytes: int, turn_s: float) -> None:
        self.path, self.earlier = path, path.with_name(path.name.removesuffix(SUFFIX) + EARLIER)
        self.head, self.unwritten = head, 0
        self._buffer: deque[Any] = deque(maxlen=events)
        self.add = self._buffer.append
        self.inside: Callable[[], Open | None] = lambda: None  # the call under way
        self.slot: Slot | None = None
        self.usage: Callable[[], Cpu | None] = lambda: None
        self.step = -1
        self._encode = msgspec.json.Encoder().encode_lines
        self._next: dict[str, int] = {}
        self._missing = self._again = 0  # calls to be told as lost; when to write again, monotonic ns
        self._anchored = self._used = time.monotonic_ns()
        self._lock, self._over, self._closed = threading.Lock(), threading.Event(), False
        self._heads = 0
        self._files = Bounded(path, self.earlier, file_bytes // 2, self._head)
        self.trouble = self._files.put(b"")
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

    def open(self, role: str, step: int, since_ns: int, *call: Any) -> None:
        """The call this rank is in, before its record ends for a fault. call: the rest of `Open`, as far as known."""
        self._buffer.append(Open("open", role, step, since_ns, *call))

    def flush(self) -> None:
        """Write what is in the buffer; what cannot be written is counted."""
        with self._lock:
            buffer = self._buffer
            if self._closed:
                buffer.clear()
                return
            full = len(buffer) == buffer.maxlen
            rows = [buffer.popleft() for _ in range(len(buffer))]
            missing = self._gap(rows, full)
            self.unwritten += missing
            self._missing += missing
            now = time.monotonic_ns()
            if now - self._anchored > ANCHOR_S * 1e9:
                self._anchored = now
                rows.append(("clock", *anchor()))
            if now - self._used > CPU_S * 1e9:
                self._use(rows, now)
            if rows:
                self._write(rows, now)

    def _write(self, rows: list[Any], now: int) -> None:
        if now >= self._again:
            lost = [("lost", self._missing)] if self._missing else []
            self.trouble = self._files.put(self._encode([*lost, *rows]))
        if not self.trouble:
            self._missing = self._again = 0
            return
        if now >= self._again:
            self._again = now + int(RETRY_S * 1e9)
        self._missing += sum(len(row) == len(Row._fields) for row in rows)
        self.unwritten += sum(row[0] not in _NO_EVENTS for row in rows)

    def close(self) -> None:
        """Write the rest and end. Idempotent."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(5.0)
        self._used = self._again = 0
        self.flush()
        with self._lock:
            self._files.close()
            self._closed = True

    def _head(self) -> bytes:
        """A file's first line. A later file has an anchor of its own."""
        self._heads += 1
        head = self.head if self._heads == 1 else msgspec.structs.replace(self.head, anchor=anchor())
        return msgspec.json.encode(head) + b"\n"

    def _use(self, rows: list[Any], now: int) -> None:
        used = self.usage()
        self._used = now
        if used is not None:
            rows.append(used)

    def begin_slot(self) -> None:
        """Keep the call under way; without one where the file cannot be made."""
        with contextlib.suppress(OSError, ValueError):
            self.slot = Slot(self.path.with_name(self.path.name.removesuffix(SUFFIX) + OPEN), self.path.name)

    def _run(self, turn_s: float) -> None:
        self._use(self._buffer, 0)  # type: ignore[arg-type]
        before: Open | None = None
        told = False
        while not self._over.wait(turn_s):
            one = self.inside()
            if one is not before:
                before, told = one, False
            elif one is not None and not told:
                self._buffer.append(one)
                told = True
            self.flush()

    def _gap(self, rows: list[Any], full: bool) -> int:
        """Calls that fell out of a full buffer, by their groups' sequence numbers."""
        missing = 0
        if full:
            seen: set[str] = set()
            for row in rows:
                if len(row) == len(Row._fields) and row[4] >= 0 and row[2] not in seen:
                    seen.add(row[2])
                    missing += max(0, row[4] - self._next.get(row[2], 0))
        last: set[str] = set()
        for row in reversed(rows):
            if len(row) == len(Row._fields) and row[4] >= 0 and row[2] not in last:
                last.add(row[2])
                self._next[row[2]] = row[4] + 1
                if len(last) == len(self.head.groups):
                    break
        return missing


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


def note_fault(folder: Path, unit: str, ranks: Sequence[int], kind: str, message: str) -> str:
    """Keep what a driver saw of its ranks beside their records. Never fails: a full disk must not end a driver.

    Returns why it could not be kept; empty = it is.
    """
    fault = Noted(unit=unit[:200], ranks=tuple(ranks), kind=kind[:40], message=message[:1000], unix_ns=time.time_ns())
    name = re.sub(r"[^A-Za-z0-9_-]", "_", unit)[:60] or "unit"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / f"{name}{FAULTS}", "ab") as file:
            append_whole(file.fileno(), msgspec.json.encode(fault) + b"\n", file.tell())
    except OSError as error:
        return why(error)
    return ""

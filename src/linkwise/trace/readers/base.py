"""What every reader of evidence is, and the bounded view of a file it works on."""

import gzip
import io
import math
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from linkwise.core.errors import InputError
from linkwise.core.files import open_regular
from linkwise.trace.events import RankTrace
from linkwise.trace.facts import Fact, Span
from linkwise.trace.readers import seek
from linkwise.trace.readers.sieve import Sieve

MAX_BYTES = 2 * 2**30  # of one file, unpacked
MAX_RATIO = 1_000  # unpacked to packed: deflate reaches 1,032 on zeros, traces some 30
HEAD_BYTES = 64 * 2**10
MAX_LINE_BYTES = 4 * 2**20
BLOCK_BYTES = 2**20
TAIL_BYTES = 2**18
_Bytes = bytes  # by another name inside `Source`, which has a method of this one


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What one file says. notes: what a person should know of how it was read (a cut end, rows left out)."""

    ranks: tuple[RankTrace, ...] = ()
    facts: tuple[Fact, ...] = ()
    spans: tuple[Span, ...] = ()
    notes: tuple[str, ...] = ()


class Reader(Protocol):
    """One format: a module. FORMAT names it. recognises: by content, from the source's head (names and folders only
    where the format is one, as in sysfs). read: raises InputError, naming line or field, for what is not usable."""

    FORMAT: str

    def recognises(self, source: "Source") -> bool: ...

    def read(self, source: "Source") -> Reading: ...


class Source:
    """A file of evidence: its first bytes at once, the rest through bounded reads; gzip is unpacked on the way.

    since_s: of a large log only the beginning and what its last so many seconds hold is asked for; 0 = all of it.
    until_cpu_s: processor time of this process (time.process_time) at which reading lines ends, and `notes` says where.
    """

    def __init__(self, path: Path, *, where: str = "", since_s: float = 0.0) -> None:
        self.path, self.where, self.since_s = path, where or str(path), since_s
        self.until_cpu_s = math.inf
        self.notes: tuple[str, ...] = ()
        self._ends = -1  # ends of lines in it, once it has been read to its end
        with open_regular(path) as (file, self.size):
            self.packed = file.read(2) == b"\x1f\x8b"
        with self.open() as file:
            self.head = _read(file, HEAD_BYTES, self.where)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def text(self) -> str:
        """The head as text; what is no UTF-8 becomes a mark."""
        return self.head.decode("utf-8-sig", errors="replace")

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """The unpacked bytes as a file. Reading beyond the bounds raises InputError."""
        with open_regular(self.path) as (file, size):
            if not self.packed:
                yield file
                return
            with gzip.GzipFile(fileobj=file) as inner:
                limit = min(MAX_BYTES, max(size * MAX_RATIO, 2**20))
                yield io.BufferedReader(_Bounded(inner, limit, self.where), 2**20)

    def bytes(self, most: int = MAX_BYTES) -> bytes:
        """The whole of it. Raises InputError when it is longer than `most`, or its gzip is broken."""
        with self.open() as file:
            data = _read(file, most + 1, self.where)
        if len(data) > most:
            raise InputError(f"more than {most} bytes", where=self.where, expected=f"at most {most}")
        return data

    @property
    def date_ns(self) -> int:
        """When the file was written, as the system has it; 0 = not known."""
        try:
            return max(0, os.stat(self.path).st_mtime_ns)
        except OSError:
            return 0

    def lines(self) -> Iterator[tuple[int, str]]:
        """Numbered lines as text without their ends. Raises InputError at one beyond MAX_LINE_BYTES."""
        with self.open() as file:
            for number, block in self._blocks(file):
                for place, line in enumerate(block[1:-1].split(b"\n")):
                    yield number + place, _text(line)

    def sifted(self, sieve: Sieve) -> Iterator[tuple[int, str]]:
        """Those of the lines that may hold one of a sieve's words, of the part that `since_s` asks for."""
        with self.open() as file:
            for number, block in self._blocks(file, late=self.since_s > 0):
                for place, line in sieve.lines(block):
                    yield number + place, _text(line)

    def tail(self, most: int) -> list[tuple[int, str]]:
        """The last lines of it, with the numbers that `lines` gives them, or 0 before it has been read to its end. Of a
        packed file the whole is read."""
        with self.open() as file:
            if not self.packed:
                file.seek(max(0, self.size - TAIL_BYTES))
            kept = b""
            while data := _read(file, BLOCK_BYTES, self.where):
                kept = (kept + data)[-TAIL_BYTES:]
        text = kept.rstrip(b"\n")
        rows = text.split(b"\n")[-most:]
        last = self._ends - (len(kept) - len(text)) + 1 if self._ends >= 0 else 0
        return [(max(0, last - len(rows) + 1 + place), _text(row)) for place, row in enumerate(rows)]

    def _blocks(self, file: BinaryIO, *, late: bool = False) -> Iterator[tuple[int, _Bytes]]:
        """Whole lines, a block at a time, with the number of the first: each block has a line's end on both sides."""
        number, kept, skip_to = 1, b"\n", 0
        if late and not self.packed and self.size >= seek.SEEK_BYTES:
            skip_to = seek.beginning(file, self.size, self.since_s, self.date_ns)
            file.seek(0)
        while True:
            where = f"{self.where}: line {number}"
            if time.process_time() >= self.until_cpu_s:
                self._cut(number - 1, file)
                return
            if skip_to and seek.KEPT_BYTES <= file.tell() < skip_to:
                number, kept, skip_to = self._skip(file, number, len(kept) - 1, skip_to), b"\n", 0
            data = _read(file, BLOCK_BYTES, where)
            if not data:
                self._ends = number - 1
                if len(kept) > 1:
                    yield number, kept + b"\n"
                return
            whole = kept + data
            end = whole.rfind(b"\n")
            if end:
                yield number, whole[: end + 1]
                number += whole.count(b"\n", 1, end + 1)
            kept = whole[end:]
            if len(kept) > MAX_LINE_BYTES:
                where = f"{self.where}: line {number}"
                raise InputError(f"more than {MAX_LINE_BYTES} bytes", where=where, expected="lines of text")

    def _cut(self, lines: int, file: BinaryIO) -> None:
        share = "" if self.packed or not self.size else f", {100 * file.tell() / self.size:.0f} % of it"
        self._note(f"read to line {lines:,}{share}: the rest would take more processor time than a file is given")

    def _skip(self, file: BinaryIO, number: int, kept: int, skip_to: int) -> int:
        """Go on at a byte where a line begins; its number. kept: bytes of an unfinished line before the place."""
        begin, at = number, file.tell() - kept
        file.seek(at)
        while at < skip_to and (data := file.read(min(BLOCK_BYTES, skip_to - at))):
            number += data.count(b"\n")
            at += len(data)
        self._note(f"lines {begin:,} to {number - 1:,} are from before the time asked for and were not read")
        return number

    def _note(self, text: str) -> None:
        self.notes = tuple(dict.fromkeys((*self.notes, text)))


def _text(line: bytes) -> str:
    return line.decode("utf-8", errors="replace").rstrip("\r\n")


def _read(file: BinaryIO, most: int, where: str) -> bytes:
    try:
        return file.read(most)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot be unpacked: {error}", where=where) from None


class _Bounded(io.RawIOBase):
    """A stream that ends with an error, not with the machine's memory."""

    def __init__(self, inner: BinaryIO | gzip.GzipFile, limit: int, where: str) -> None:
        self._inner, self._left, self._limit, self._where = inner, limit, limit, where

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._inner.read(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise InputError(f"unpacks to more than {self._limit} bytes", where=self._where, expected="a trace")
        buffer[: len(data)] = data
        return len(data)

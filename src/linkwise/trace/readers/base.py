"""What every reader of evidence is, and the bounded view of a file it works on."""

import gzip
import io
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

MAX_BYTES = 2 * 2**30  # of one file, unpacked
MAX_RATIO = 1_000  # unpacked to packed: deflate reaches 1,032 on zeros, traces some 30
HEAD_BYTES = 64 * 2**10
MAX_LINE_BYTES = 4 * 2**20


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
    """A file of evidence: its first bytes at once, the rest through bounded reads; gzip is unpacked on the way."""

    def __init__(self, path: Path, *, where: str = "") -> None:
        self.path, self.where = path, where or str(path)
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

    def lines(self) -> Iterator[tuple[int, str]]:
        """Numbered lines as text without their ends. Raises InputError at one beyond MAX_LINE_BYTES."""
        with self.open() as file:
            number = 0
            while line := _line(file, self.where, number + 1):
                number += 1
                yield number, line.decode("utf-8", errors="replace").rstrip("\r\n")


def _line(file: BinaryIO, where: str, number: int) -> bytes:
    try:
        line = file.readline(MAX_LINE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot be unpacked: {error}", where=f"{where}: line {number}") from None
    if len(line) > MAX_LINE_BYTES:
        raise InputError(f"more than {MAX_LINE_BYTES} bytes", where=f"{where}: line {number}", expected="lines of text")
    return line


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

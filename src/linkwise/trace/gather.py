"""Everything a folder of evidence says: each file by its own reader, unusable ones named, none of them fatal."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec

from linkwise.core.errors import InputError
from linkwise.core.printable import printable
from linkwise.trace import readers
from linkwise.trace.events import RankTrace, Trace
from linkwise.trace.facts import Fact, Span
from linkwise.trace.readers.base import Reading, Source
from linkwise.trace.readers.own import joined
from linkwise.trace.writer import EARLIER, SUFFIX

MAX_FILES = 65_536
MAX_DEPTH = 16
PARALLEL_BYTES = 32 * 2**20  # below this a second process costs more than it saves


class Unusable(NamedTuple):
    """A file that could not be used, and why."""

    path: str
    reason: str


class Used(NamedTuple):
    """A file that was, and as what. notes: what a person should know of how it was read."""

    path: str
    format: str
    notes: tuple[str, ...] = ()


class Evidence(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What all files say together."""

    trace: Trace = Trace()
    facts: tuple[Fact, ...] = ()
    spans: tuple[Span, ...] = ()
    used: tuple[Used, ...] = ()
    unusable: tuple[Unusable, ...] = ()


class _Read(NamedTuple):
    path: str
    format: str
    reading: Reading | None
    reason: str


def gather(paths: Sequence[str | Path], *, processes: int = 2) -> Evidence:
    """Evidence from files and folders (searched through). processes: at most; more than one only where it pays.

    Raises InputError for a path that does not exist and for more than MAX_FILES files.
    """
    files = list(_files(paths))
    size = sum(os.path.getsize(path) for path, _ in files if os.path.isfile(path))
    if processes > 1 and len(files) > 1 and size > PARALLEL_BYTES:
        with ProcessPoolExecutor(processes) as pool:
            found = list(pool.map(_read, files, chunksize=max(1, min(16, len(files) // (4 * processes)))))
    else:
        found = [_read(one) for one in files]
    return _together(found)


def _files(paths: Sequence[str | Path]) -> Iterator[tuple[str, str]]:
    """Files with the name they are shown by, in the order of their names."""
    count = 0
    for given in paths:
        top = str(given)
        if not os.path.lexists(top):
            raise InputError("no such file or folder", where=top, expected="evidence")
        if not os.path.isdir(top):
            yield top, top
            continue
        for folder, inner, names in os.walk(top):
            inner[:] = sorted(inner) if folder[len(top) :].count(os.sep) < MAX_DEPTH else []
            for name in sorted(names):
                count += 1
                if count > MAX_FILES:
                    raise InputError(f"more than {MAX_FILES} files", where=top, expected="a folder of evidence")
                path = os.path.join(folder, name)
                yield path, os.path.relpath(path, top)


def _read(one: tuple[str, str]) -> _Read:
    path, shown = one
    shown = printable(shown)
    try:
        format, reading = readers.read(Source(Path(path), where=shown))
    except InputError as error:
        return _Read(shown, "", None, str(error).removeprefix(f"{shown}: "))
    except (RecursionError, MemoryError) as error:
        return _Read(shown, "", None, f"too deep or too large: {type(error).__name__}")
    return _Read(shown, format, reading, "")


def _together(found: list[_Read]) -> Evidence:
    good = [(one, one.reading) for one in found if one.reading is not None]
    return Evidence(
        trace=Trace(ranks=tuple(_ranks(good))),
        facts=tuple(fact for _, reading in good for fact in reading.facts),
        spans=tuple(span for _, reading in good for span in reading.spans),
        used=tuple(Used(one.path, one.format, reading.notes) for one, reading in good),
        unusable=tuple(Unusable(one.path, one.reason) for one in found if one.reading is None),
    )


def _ranks(good: list[tuple[_Read, Reading]]) -> list[RankTrace]:
    """All records by unit and rank; a record of ours in an earlier and a current file is one."""
    earlier = {one.path.removesuffix(EARLIER): reading.ranks[0] for one, reading in good if one.path.endswith(EARLIER)}
    ranks: list[RankTrace] = []
    for one, reading in good:
        if one.path.endswith(EARLIER):
            continue
        before = earlier.pop(one.path.removesuffix(SUFFIX), None) if one.path.endswith(SUFFIX) else None
        ranks += [joined(before, rank) for rank in reading.ranks] if before else reading.ranks
    ranks += earlier.values()
    return sorted(ranks, key=lambda r: (r.head.unit, r.head.rank, r.head.anchor.unix_ns))

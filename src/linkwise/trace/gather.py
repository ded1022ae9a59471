"""Everything a folder of evidence says: each file by its own reader, unusable ones named, none of them fatal."""

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from linkwise.core.errors import InputError
from linkwise.core.files import open_regular
from linkwise.core.printable import printable
from linkwise.trace import readers
from linkwise.trace.events import RankTrace, Trace, names_a_host
from linkwise.trace.facts import Fact, Span
from linkwise.trace.limits import allow_cpu, limit
from linkwise.trace.readers.base import Reading, Source
from linkwise.trace.readers.own import joined
from linkwise.trace.readers.shared import folder_host
from linkwise.trace.whose import START, Unusable, of_starts, renamed, told
from linkwise.trace.writer import EARLIER, SUFFIX

MAX_FILES = 65_536
MAX_DEPTH = 16
PARALLEL_BYTES = 2 * 2**20  # below this processes cost more than they save
FILE_CPU_S = 120  # processor time one file may take before its process is ended
LINES_SHARE = 0.75  # of it, after which a log is read no further


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


class _File(NamedTuple):
    """path, and the name it is shown by. since_s: what is asked of it, see `Source`."""

    path: str
    shown: str
    since_s: float


def gather(paths: Sequence[str | Path], *, processes: int = 2, since_s: float = 0.0) -> Evidence:
    """Evidence from files and folders (searched through). processes: at most; more than one only where it pays.

    since_s: large logs need not be read before their last so many seconds, their beginnings aside; 0 = all of them.
    Files beyond MAX_FILES are unusable. Raises InputError for a path that does not exist.
    """
    every = [_File(path, shown, since_s) for path, shown in _files(paths)]
    files, beyond = every[:MAX_FILES], every[MAX_FILES:]
    size = sum(os.path.getsize(one.path) for one in files if os.path.isfile(one.path))
    apart = processes > 0 and (size > PARALLEL_BYTES or any(_packed(one.path) for one in files))
    found = _apart(files, processes) if apart else [_read(one) for one in files]
    reason = f"not read: more than {MAX_FILES} files"
    return _together(found + [_Read(printable(one.shown), "", None, reason) for one in beyond])


def _packed(path: str) -> bool:
    """A small packed file may be a large one."""
    try:
        with open_regular(path) as (file, _):
            return file.read(2) == b"\x1f\x8b"
    except InputError:
        return False


def _apart(files: list[_File], processes: int) -> list[_Read]:
    """Files read in processes of their own, within limits of processor time and memory that the system keeps.

    A file whose reading breaks them ends that process; the files that were lost with it are read again one by one, so
    that only the one is unusable.
    """
    found: dict[int, _Read] = {}
    left = list(range(len(files)))
    with ProcessPoolExecutor(processes, initializer=limit) as pool, suppress(BrokenProcessPool):
        chunk = max(1, min(16, len(files) // (4 * processes)))
        for number, read in zip(left, pool.map(_within, files, chunksize=chunk), strict=False):
            found[number] = read
    for number in left:
        if number in found:
            continue
        with ProcessPoolExecutor(1, initializer=limit) as pool:
            try:
                found[number] = pool.submit(_within, files[number]).result()
            except BrokenProcessPool:
                reason = f"reading it took more than {FILE_CPU_S} s of processor time, or ended its process"
                found[number] = _Read(printable(files[number].shown), "", None, reason)
    return [found[number] for number in left]


def _within(one: _File) -> _Read:
    allow_cpu(FILE_CPU_S)
    return _read(one)


def _files(paths: Sequence[str | Path]) -> Iterator[tuple[str, str]]:
    """Files with the name they are shown by, in the order of their names."""
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
                path = os.path.join(folder, name)
                yield path, os.path.relpath(path, top)


def _read(one: _File) -> _Read:
    shown = printable(one.shown)
    try:
        source = Source(Path(one.path), where=shown, since_s=one.since_s)
        source.until_cpu_s = time.process_time() + LINES_SHARE * FILE_CPU_S
        format, reading = readers.read(source)
    except InputError as error:
        return _Read(shown, "", None, str(error).removeprefix(f"{shown}: "))
    except (RecursionError, MemoryError) as error:
        return _Read(shown, "", None, f"too deep or too large: {type(error).__name__}")
    except Exception as error:  # noqa: BLE001 - a bug of one reader must not hide what the other files say
        return _Read(shown, "", None, f"a bug of its reader ({type(error).__name__}: {error}): please report it"[:300])
    return _Read(shown, format, reading, "")


def _together(found: list[_Read]) -> Evidence:
    good = [(one, one.reading) for one in found if one.reading is not None]
    ranks, doubles = _told_apart(_ranks(good))
    return Evidence(
        trace=Trace(ranks=tuple(ranks)),
        facts=of_starts([fact for _, reading in good for fact in reading.facts], ranks),
        spans=tuple(span for _, reading in good for span in reading.spans),
        used=tuple(Used(one.path, one.format, reading.notes + doubles.get(one.path, ())) for one, reading in good),
        unusable=told([(one.path, one.reason) for one in found if one.reading is None], ranks),
    )


def _ranks(good: list[tuple[_Read, Reading]]) -> list[tuple[str, RankTrace]]:
    """All records with the file they are from; a record of ours in an earlier and a current file is one."""
    earlier = {one.path.removesuffix(EARLIER): reading.ranks[0] for one, reading in good if one.path.endswith(EARLIER)}
    ranks: list[tuple[str, RankTrace]] = []
    for one, reading in good:
        if one.path.endswith(EARLIER):
            continue
        before = earlier.pop(one.path.removesuffix(SUFFIX), None) if one.path.endswith(SUFFIX) else None
        ranks += [(one.path, joined(before, rank) if before else rank) for rank in reading.ranks]
    ranks += [(rank.source, rank) for rank in earlier.values()]
    return [(path, _at(rank, folder_host(path))) for path, rank in ranks]


def _at(rank: RankTrace, host: str) -> RankTrace:
    """A record that does not say its host is of the one its folder is named after."""
    known = names_a_host(rank.head.host) or not host
    return rank if known else replace(rank, head=replace(rank.head, host=host))


def _told_apart(found: list[tuple[str, RankTrace]]) -> tuple[list[RankTrace], dict[str, tuple[str, ...]]]:
    """Records sorted by unit and rank, each rank once in its unit; and by file, notes on records that are not used.

    A rank that is there twice is one of three: of another folder, hence of another job; of a later start of the same
    unit; or the same record in a second form, such as a dump as pickle and as JSON, of which the fuller one is used.
    """
    found, again = _without_copies(found)
    folders: dict[tuple[str, int], set[str]] = {}
    for path, rank in found:
        folders.setdefault((rank.head.unit, rank.head.rank), set()).add(os.path.dirname(path))
    apart = any(len(places) > 1 for places in folders.values())
    units: dict[str, list[tuple[str, RankTrace]]] = {}
    for path, rank in found:
        unit = "/".join(word for word in (os.path.dirname(path), rank.head.unit) if word) if apart else rank.head.unit
        units.setdefault(unit, []).append((path, rank))
    kept: list[RankTrace] = []
    doubles = again
    for unit, records in units.items():
        seen: dict[int, tuple[str, RankTrace]] = {}
        start = 1
        for path, rank in sorted(records, key=lambda one: (one[1].head.anchor.unix_ns, *_fuller(*one))):
            number = rank.head.rank
            if number in seen and rank.head.anchor.unix_ns:  # ours say when they began: the unit was started again
                kept += _named(seen, unit, start)
                seen, start = {}, start + 1
            if number in seen:
                doubles[path] = (f"rank {number} is also in {seen[number][0]}, which is used",)
            else:
                seen[number] = (path, rank)
        kept += _named(seen, unit, start)
    return sorted(kept, key=lambda rank: (rank.head.unit, rank.head.rank)), doubles


def _without_copies(
    found: list[tuple[str, RankTrace]],
) -> tuple[list[tuple[str, RankTrace]], dict[str, tuple[str, ...]]]:
    """Records without those of a folder inside another one that has all of its ranks and more: copies, not a job."""
    ranks: dict[str, set[tuple[str, int]]] = {}
    for path, rank in found:
        ranks.setdefault(os.path.dirname(path), set()).add((rank.head.unit, rank.head.rank))
    inside = {
        folder: next(
            (
                top
                for top in ranks
                if folder.startswith(f"{top}/" if top else "") and folder != top and own < ranks[top]
            ),
            None,
        )
        for folder, own in ranks.items()
    }
    notes: dict[str, tuple[str, ...]] = {
        path: (
            f"rank {rank.head.rank} is also in {inside[os.path.dirname(path)] or 'the folder above'}, which is used",
        )
        for path, rank in found
        if inside[os.path.dirname(path)] is not None
    }
    return [one for one in found if one[0] not in notes], notes


def _fuller(path: str, rank: RankTrace) -> tuple[int, bool, str]:
    """Which of two records of a rank comes first: with more calls, then not as JSON, which drops fields."""
    return -len(rank.calls), path.endswith(".json"), path


def _named(seen: dict[int, tuple[str, RankTrace]], unit: str, start: int) -> list[RankTrace]:
    name = f"{unit}{START}{start}" if start > 1 else unit
    return [renamed(rank, name) for _, rank in seen.values()]

"""Whose is what names no record? A file that cannot be read: by its name. A statement: by its time and its place."""

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from linkwise.trace.events import RankTrace
from linkwise.trace.facts import Fact

MANY = 4096  # records that are looked at for a file that has none like it beside it
START = " start "  # between a unit's name and which of its starts it is
_RANK = re.compile(r"rank[_-]?(\d{1,7})(?!\d)", re.IGNORECASE)
_RUN = re.compile(r"[0-9a-f]*[0-9][0-9a-f]*")
_ENDING = re.compile(r"(?:\.gz)+$", re.IGNORECASE)


class Unusable(NamedTuple):
    """A file that could not be used, and why. record: its name, or its ending, is like those of ranks' records beside
    it, so that it may be one; rank: whose, -1 = not known; unit: of the rank, "" = not known, or none."""

    path: str
    reason: str
    record: bool = False
    rank: int = -1
    unit: str = ""


def told(bad: Sequence[tuple[str, str]], records: Sequence[RankTrace]) -> tuple[Unusable, ...]:
    """Files that cannot be used and why, with the ranks whose records they are as far as their names and their
    neighbours' say."""
    patterns: dict[str, list[RankTrace]] = {}
    for one in records if bad else ():
        patterns.setdefault(_pattern(one.source), []).append(one)
    endings = {_ending(pattern) for pattern in patterns} - {""}
    return tuple(
        _told(path, reason, patterns.get(_pattern(path), []), records)
        if _pattern(path) in patterns or _RANK.search(os.path.basename(path))
        else Unusable(path, reason, record=_ending(_pattern(path)) in endings)
        for path, reason in bad
    )


def _told(path: str, reason: str, beside: list[RankTrace], records: Sequence[RankTrace]) -> Unusable:
    named = _RANK.search(os.path.basename(path))
    if named:
        rank, before = int(named[1]), path[: len(path) - len(os.path.basename(path)) + named.start(1)]
        near = [one for one in beside if one.source.startswith(before)] or beside or records[:MANY]
    else:
        rank, near = _by_place(path, beside), beside
    have = {one.head.unit for one in near if one.head.rank == rank}
    units = {one.head.unit for one in near} - have
    return Unusable(path, reason, record=True, rank=rank, unit=units.pop() if len(units) == 1 else "")


def _ending(pattern: str) -> str:
    """Folder and ending of a pattern, as in "d/ .pt.trace.json"; "" for a name without any."""
    folder, name = os.path.split(pattern)
    return f"{folder}/ .{name.partition('.')[2]}" if "." in name else ""


def _by_place(path: str, beside: list[RankTrace]) -> int:
    """The number in a name that is the rank in the names of all neighbours; -1 where there is none such."""
    runs = _RUN.findall(os.path.basename(path))
    names = [(one.head.rank, _RUN.findall(os.path.basename(one.source))) for one in beside]
    for place, run in enumerate(runs):
        if run.isdigit() and len(run) < 8 and all(_is(theirs[place], rank) for rank, theirs in names) and names:
            return int(run)
    return -1


def _is(run: str, rank: int) -> bool:
    return run.isdigit() and len(run) < 8 and int(run) == rank


def _pattern(path: str) -> str:
    """A path with each number in its file's name replaced: the same for files that one writer wrote."""
    folder, name = os.path.split(path)
    return f"{folder}/{_RUN.sub('#', _ENDING.sub('', name))}"


def of_starts(facts: Sequence[Fact], ranks: Sequence[RankTrace]) -> tuple[Fact, ...]:
    """Statements about a unit that was started again, or of which there are several in folders, with the unit's name
    as its records have it: of the last start that had begun by then, in the folder of the statement if it is there."""
    by_source = {(one.source, one.head.rank): one.head.unit for one in ranks}
    begun: dict[str, list[tuple[int, str, str]]] = {}
    for one in ranks:
        first = one.head.unit.partition(START)[0].rpartition("/")[2]
        begun.setdefault(first, []).append((one.head.anchor.unix_ns, os.path.dirname(one.source), one.head.unit))
    several = {name for name, found in begun.items() if {unit for _, _, unit in found} != {name}}
    if not several:
        return tuple(facts)

    def named(fact: Fact) -> Fact:
        unit = fact.label("unit")
        if unit not in several or not unit:
            return fact
        folder = os.path.dirname(fact.source)
        here = [one for one in begun[unit] if one[1] == folder] or begun[unit]
        before = sorted(one for one in here if one[0] <= fact.unix_ns) or sorted(here)[:1]
        name = by_source.get((fact.source, fact.rank)) or before[-1][2]
        labels = tuple((key, name if key == "unit" else value) for key, value in fact.labels)
        return fact._replace(labels=labels)

    return tuple(map(named, facts))


def renamed(rank: RankTrace, unit: str) -> RankTrace:
    """A record under another unit's name."""
    return rank if rank.head.unit == unit else replace(rank, head=replace(rank.head, unit=unit[-200:]))

"""Evidence of another job among that of this one: ranks that a job of this size does not have, records left over from
an earlier run."""

from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from linkwise.core.units import counted, show_time
from linkwise.diagnose.case import ranks_text
from linkwise.trace.calls import DONE
from linkwise.trace.clocks import TOGETHER
from linkwise.trace.events import RankTrace
from linkwise.trace.facts import Fact
from linkwise.trace.gather import Evidence
from linkwise.trace.joined import unix_ns
from linkwise.trace.whose import Unusable

APART_NS = 60_000_000_000  # more than clocks of a cluster that anybody keeps are apart
UNIX_NS = 10**18  # below it a time is none of the day: a monotonic clock's without an anchor
_MONITORS = frozenset({"status", "launched", "missing"})  # whose report is of one job as a whole


def of_one_job(evidence: Evidence) -> tuple[Evidence, tuple[str, ...]]:
    """Evidence without what is of another job, and notes on what was left out.

    How many ranks the job has is known where a record has a group of all of them. A monitor's report that speaks of
    more is left out as a whole; of logs, what they say of ranks beyond.
    """
    evidence = _without_left_over(evidence)
    heads = [rank.head for rank in evidence.trace.ranks]
    world = max((head.world for head in heads if any(len(m) == head.world for m in head.groups.values())), default=0)
    if not world or any(head.world > world for head in heads):
        return evidence, ()
    beyond: dict[str, set[int]] = {}
    monitors: set[str] = set()
    for fact in evidence.facts:
        if (highest := _highest(fact)) >= world:
            beyond.setdefault(_file(fact), set()).add(highest)
            monitors |= {_file(fact)} if fact.kind in _MONITORS else set()
    if not beyond:
        return evidence, ()
    kept = tuple(fact for fact in evidence.facts if _file(fact) not in monitors and _highest(fact) < world)
    notes = tuple(
        f"{path}: speaks of {ranks_text(sorted(ranks))}, and the job of the records has {counted(world, 'rank')}:"
        " it is of another job, and left out" + ("" if path in monitors else " as far as it is of such ranks")
        for path, ranks in beyond.items()
    )
    return replace(evidence, facts=kept), notes


class _Span(NamedTuple):
    """When a record's calls were, in Unix ns, and how far it came by group: calls entered, and calls over."""

    first: int
    last: int
    entered: dict[str, int]
    over: dict[str, int]


def _without_left_over(evidence: Evidence) -> Evidence:
    """Evidence in which records of another time than most of their unit's count as unusable.

    Such a record's calls are long before, or after, all of the others', and its counts contradict theirs: a call was
    over on one side that the other side, by its count, never entered. With counts that agree it is the clock alone.
    """
    units: dict[str, list[tuple[RankTrace, _Span]]] = {}
    for rank in evidence.trace.ranks:
        span = _span(rank)
        if span is not None and not rank.cut:
            units.setdefault(rank.head.unit, []).append((rank, span))
    old: dict[int, Unusable] = {}
    for unit, mine in units.items():
        runs = _runs(mine)
        most = max(runs, key=len)
        for run in runs:
            for rank, span in run if 2 * len(most) > len(mine) and run is not most else ():
                if any(_contradict(span, other) for _, other in most):
                    why = _why(span, [one for _, one in most])
                    old[id(rank)] = Unusable(rank.source, why, record=True, rank=rank.head.rank, unit=unit)
    if not old:
        return evidence
    kept = tuple(rank for rank in evidence.trace.ranks if id(rank) not in old)
    used = tuple(one for one in evidence.used if one.path not in {bad.path for bad in old.values()})
    trace = replace(evidence.trace, ranks=kept)
    return replace(evidence, trace=trace, used=used, unusable=(*evidence.unusable, *old.values()))


def _span(rank: RankTrace) -> _Span | None:
    calls = rank.calls
    times = np.concatenate([unix_ns(rank, one) for one in (calls.created_ns, calls.started_ns, calls.ended_ns)])
    times = times[times > 0]
    if not len(times) or times.min() < UNIX_NS:
        return None
    together = np.isin(calls.op, [calls.ops.index(op) for op in TOGETHER if op in calls.ops])
    entered: dict[str, int] = {mark.group: mark.enqueued for mark in rank.marks}
    over: dict[str, int] = {}
    for code, name in enumerate(calls.groups):
        here = calls.group == code
        entered[name] = max(entered.get(name, -1), int(calls.sequence[here].max(initial=-1)))
        over[name] = int(calls.sequence[here & together & (calls.state == DONE)].max(initial=-1))
    return _Span(int(times.min()), int(times.max()), entered, over)


def _runs(records: list[tuple[RankTrace, _Span]]) -> list[list[tuple[RankTrace, _Span]]]:
    """Records by time: a new run begins where nothing happened on any for APART_NS."""
    found: list[list[tuple[RankTrace, _Span]]] = []
    reached = 0
    for record in sorted(records, key=lambda one: one[1].first):
        if not found or record[1].first - reached > APART_NS:
            found.append([])
        found[-1].append(record)
        reached = max(reached, record[1].last)
    return found


def _contradict(a: _Span, b: _Span) -> bool:
    """Whether a call was over on one side that the other never entered, in a group of both."""
    return any(
        one.over.get(name, -1) > other.entered[name] for one, other in ((a, b), (b, a)) for name in other.entered
    )


def _why(span: _Span, most: list[_Span]) -> str:
    first, last = min(one.first for one in most), max(one.last for one in most)
    older = span.last < first
    apart = show_time((first - span.last if older else span.first - last) / 1e9)
    return (
        f"its calls are {apart} {'older' if older else 'younger'} than those of the other records, and its counts are"
        " not of the same run: it is of another run, or its clock is wrong and it was taken at another moment"
    )


def _highest(fact: Fact) -> int:
    return max((fact.rank, *fact.group))


def _file(fact: Fact) -> str:
    return fact.source.partition(": line ")[0]

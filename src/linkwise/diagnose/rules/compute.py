"""Own work that records name (kernels, forward, backward): a worker, or a stage, that takes longer for the same."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from linkwise.core.units import show_figure, show_time
from linkwise.diagnose.case import Case, ranks_text
from linkwise.diagnose.progress import on_device
from linkwise.diagnose.steps import work_ns
from linkwise.diagnose.types import Finding
from linkwise.trace.joined import LOCAL

# A worker is slow when the same work takes half as long again as its peers', a stage when it has a quarter more to do
# than the others; less is how stages with embedding or head, and any two machines, differ.
WORKER, STAGE = 1.5, 1.25
LEAST = 10  # pieces of work of a kind, for its middle to mean something


class _Work(NamedTuple):
    """Of one record: the middle of each kind of work in s, and how many pieces there are of it."""

    middle_s: dict[int, float]
    pieces: dict[int, int]

    def total_s(self, kinds: set[int]) -> float:
        """What one round of these kinds takes."""
        return sum(self.middle_s[kind] for kind in kinds)


def find(case: Case) -> Iterator[Finding]:
    """Slow workers; else a stage with more to do."""
    work = _work(case)
    slow = list(_workers(case, work))
    yield from slow
    if not slow:
        yield from _stages(case, work)


def like_its_peers(case: Case) -> set[int]:
    """Records whose named work takes as long as their peers', while somebody else's does not: they are late because of
    that one, in waits that nobody recorded."""
    work = _work(case)
    slow = {one.original_fault.ranks for one in [*_workers(case, work), *_stages(case, work)]}
    blamed = {rank for ranks in slow for rank in ranks}
    return {who for who in work if blamed and case.joined.ranks[who].head.rank not in blamed}


def _work(case: Case) -> dict[int, _Work]:
    rows = case.joined.alone
    known = (rows.op == case.joined.op(LOCAL)) & (rows.started_ns > 0) & (rows.ended_ns > rows.started_ns)
    who, role = rows.who[known], rows.role[known]
    length = work_ns(case.joined)[known] / 1e9
    found: dict[int, _Work] = {}
    order = np.lexsort((role, who))
    who, role, length = who[order], role[order], length[order]
    new = np.flatnonzero((np.diff(who) != 0) | (np.diff(role) != 0)) + 1 if len(who) else np.zeros(0, np.int64)
    for part in np.split(np.arange(len(who)), new) if len(who) else ():
        if len(part) >= LEAST:
            mine = found.setdefault(int(who[part[0]]), _Work({}, {}))
            mine.middle_s[int(role[part[0]])] = float(np.median(length[part]))
            mine.pieces[int(role[part[0]])] = len(part)
    # What comes once a step (an optimizer, a collection of garbage) has waits for others in it that nobody names.
    most = max((count for one in found.values() for count in one.pieces.values()), default=0)
    return {
        who: _Work({kind: one.middle_s[kind] for kind in one.middle_s if 2 * one.pieces[kind] >= most}, one.pieces)
        for who, one in found.items()
    }


def _workers(case: Case, work: dict[int, _Work]) -> Iterator[Finding]:
    for who, mine in work.items():
        peers = [place for place in work if place != who and _stage(case, place) == _stage(case, who)]
        kinds = set(mine.middle_s).intersection(*(work[place].middle_s for place in peers)) if peers else set()
        if not kinds:
            continue
        usual = _low([work[place].total_s(kinds) for place in peers])
        own = mine.total_s(kinds)
        if own < WORKER * usual:
            continue
        lost = (own - usual) * min(mine.pieces[kind] for kind in kinds)
        yield Finding(
            class_="late_rank",
            summary=f"{case.name(who)} takes {show_figure(own / usual, 2)} times as long as its peers for the same"
            " work",
            original_fault=case.fault(who),
            cause="device" if on_device(case.joined, who) else "",
            confidence=min(0.95, 0.6 + 0.2 * (own / usual - 1)),
            waited_s=lost,
            evidence=tuple(
                f"{_name(case, kind)}: {show_time(mine.middle_s[kind], 4)} (median of {mine.pieces[kind]}), its peers"
                f" {_middle(work, kind, peers)}"
                for kind in sorted(kinds, key=lambda kind: -mine.middle_s[kind])[:6]
            ),
            first_reporter="those who wait for it",
            next=f"nvidia-smi -q -d PERFORMANCE,CLOCK,ECC where rank {case.joined.ranks[who].head.rank} runs, and what"
            " else runs there",
            recovery="restart group",
        )


def _stages(case: Case, work: dict[int, _Work]) -> Iterator[Finding]:
    stages: dict[int, list[int]] = {}
    for place in work:
        stages.setdefault(_stage(case, place)[1], []).append(place)
    if len(stages) < 2:
        return
    kinds = set.intersection(*(set(one.middle_s) for one in work.values()))
    own = {stage: _low([work[place].total_s(kinds) for place in places]) for stage, places in stages.items()}
    slow = max(own, key=lambda stage: own[stage])
    usual = _low([time for stage, time in own.items() if stage != slow])
    if not kinds or own[slow] < STAGE * usual:
        return
    ranks = [case.joined.ranks[place].head.rank for place in stages[slow]]
    yield Finding(
        class_="stage_imbalance",
        summary=f"pipeline stage {slow} ({ranks_text(ranks)}) has {show_figure(own[slow] / usual, 2)} times the work"
        " of the others",
        original_fault=case.fault(*stages[slow]),
        confidence=0.85,
        waited_s=(own[slow] - usual) * min(work[place].pieces[kind] for place in stages[slow] for kind in kinds),
        evidence=tuple(
            f"{_name(case, kind)}: {_middle(work, kind, stages[slow])}, other stages"
            f" {_middle(work, kind, [place for place in work if place not in stages[slow]])}"
            for kind in sorted(kinds)[:6]
        ),
        first_reporter="the other stages, which wait",
        next="move layers off it; embedding, head and loss count as layers",
        recovery="none",
    )


def _name(case: Case, kind: int) -> str:
    return case.joined.roles[kind] or "work"


def _middle(work: Mapping[int, _Work], kind: int, places: Iterable[int]) -> str:
    return show_time(_low([work[place].middle_s[kind] for place in places]), 4)


def _stage(case: Case, place: int) -> tuple[str, int]:
    head = case.joined.ranks[place].head
    return head.unit, head.shard.get("pp", 0)


def _low(values: list[float]) -> float:
    """The lower middle: of two, the smaller."""
    return sorted(values)[(len(values) - 1) // 2]

"""Clocks of different hosts, brought together on collectives that all members leave together.

The last to arrive at an all-reduce, all-gather, all-to-all or barrier lets everybody go: its end is one moment on every
member's clock. So the median difference of two clocks over their common ends is how far they are apart, and what
remains around it says how well that is known. Without recorded ends, callers that wait for each call still order them:
nobody begins the next call of a group before everybody has begun this one. That bounds how far clocks can be apart,
from both sides, and they are moved only as far as these bounds ask.
"""

from collections import deque
from typing import NamedTuple

import numpy as np

from linkwise.trace.calls import Ints
from linkwise.trace.events import Trace
from linkwise.trace.joined import Joined, join

TOGETHER = ("all_reduce", "all_gather", "all_to_all", "reduce_scatter", "barrier")
LEAST = 3  # calls in common, for two clocks to be compared
MOST = 4_000  # calls that are looked at; the newest, where clocks are now


class Clocks(NamedTuple):
    """shift_ns: by place of a record, what to add to its times. residual_s: median distance of ends from their
    common moment after that, None = no ends in common. by_ends: whether ends decided. apart: records that share no
    call with the rest, whose clocks stay as they are. unsure_ns: by place, how far the order of calls alone leaves its
    clock open; less lateness than that is none."""

    shift_ns: dict[int, int]
    residual_s: float | None
    by_ends: bool
    apart: tuple[int, ...]
    unsure_ns: dict[int, int]


def align(trace: Trace) -> Clocks:
    """How far every record's clock is from that of the most. Records of one named host share a clock."""
    clock = _clocks(trace)
    if len(set(clock)) < 2:
        return Clocks({}, None, by_ends=True, apart=(), unsure_ns={})
    joined = join(trace)
    of = np.asarray(clock, np.int64)
    call, who, time = _moments(joined, joined.rows.ended_ns)
    by_ends = len(call) > 0
    if by_ends:
        found = _spanned(_by_ends(of[who], call, time), of[who])
    else:
        begun = np.where(joined.rows.started_ns > 0, joined.rows.started_ns, joined.rows.created_ns)
        call, who, time = _moments(joined, begun)
        group = joined.rows.group[joined.first[:-1]]
        found = _spanned(_by_order(of[who], call, time, group), of[who])
    shift = {place: found[mine][0] for place, mine in enumerate(clock) if mine in found}
    unsure = {place: found[mine][1] for place, mine in enumerate(clock) if mine in found}
    moved = time + np.asarray([shift.get(place, 0) for place in range(len(clock))], np.int64)[who]
    left = _spread(call, moved) if by_ends else None
    return Clocks(shift, left, by_ends, tuple(place for place in range(len(clock)) if place not in shift), unsure)


def _clocks(trace: Trace) -> list[int]:
    """A number per record; records of one named host have the same."""
    seen: dict[tuple[str, int], int] = {}
    return [
        seen.setdefault((rank.head.host, -1) if rank.head.host else ("", place), len(seen))
        for place, rank in enumerate(trace.ranks)
    ]


def _moments(joined: Joined, times: Ints) -> tuple[Ints, Ints, Ints]:
    """Call, record and time of the newest entries of calls that all members leave together, where the time is known."""
    rows = joined.rows
    together = np.isin(rows.op, [joined.op(name) for name in TOGETHER]) & (times > 0)
    call = np.repeat(np.arange(joined.calls), np.diff(joined.first))[together]
    who, time = rows.who[together], times[together]
    if not len(call):
        return call, who, time
    # A call counts when two records have it; the newest ones first.
    counts = np.bincount(call, minlength=joined.calls)
    newest = np.zeros(joined.calls, np.int64)
    np.maximum.at(newest, call, time)
    shared = np.flatnonzero(counts > 1)
    keep = np.zeros(joined.calls, bool)
    keep[shared[np.argsort(newest[shared])[-MOST:]]] = True
    return call[keep[call]], who[keep[call]], time[keep[call]]


# How far the second clock is ahead of the first, and how far that is open, in ns.
_Gaps = dict[tuple[int, int], tuple[int, int]]


def _by_ends(clock: Ints, call: Ints, time: Ints) -> _Gaps:
    """By the median difference of ends, for clocks with enough calls in common."""
    found: dict[tuple[int, int], list[int]] = {}
    for ends in _each(clock, call, time).values():
        # One end per clock is enough: members on one host leave together by the same clock.
        hub = min(ends)
        for other, (_, latest) in ends.items():
            if other != hub:
                found.setdefault((hub, other), []).append(latest - ends[hub][1])
    return {pair: (int(np.median(gaps)), 0) for pair, gaps in found.items() if len(gaps) >= LEAST}


def _by_order(clock: Ints, call: Ints, time: Ints, group: Ints) -> _Gaps:
    """By what beginnings of following calls allow: nothing within the bounds, else the nearer bound."""
    most: dict[tuple[int, int], int] = {}
    times: dict[tuple[int, int], int] = {}
    calls = _each(clock, call, time)
    for here in calls:
        # Calls are numbered group by group, so the next one of a group has the next number.
        after = calls.get(here + 1, {}) if here + 1 < len(group) and group[here + 1] == group[here] else {}
        hub = min(calls[here])
        pairs = [(hub, b) for b in after if b != hub] + [(a, hub) for a in calls[here] if a != hub and hub in after]
        for a, b in pairs:
            gap = after[b][0] - calls[here][a][1]
            most[a, b] = min(most.get((a, b), gap), gap)
            times[a, b] = times.get((a, b), 0) + 1
    found: _Gaps = {}
    for (a, b), high in most.items():
        low = -most.get((b, a), -high)
        if a < b and times[a, b] >= LEAST and low <= high:  # else they do not wait for each call: nothing follows
            found[a, b] = min(max(0, low), high), high - low
    return found


def _each(clock: Ints, call: Ints, time: Ints) -> dict[int, dict[int, tuple[int, int]]]:
    """By call and clock, the earliest and latest time."""
    found: dict[int, dict[int, tuple[int, int]]] = {}
    for mine, here, at in zip(clock.tolist(), call.tolist(), time.tolist(), strict=True):
        times = found.setdefault(here, {})
        low, high = times.get(mine, (at, at))
        times[mine] = min(low, at), max(high, at)
    return found


def _spanned(gaps: _Gaps, clock: Ints) -> dict[int, tuple[int, int]]:
    """By clock: what brings it to the one with the most entries, over the gaps that lead there, and how far that is
    open; clocks that none lead to are left out."""
    ways: dict[int, list[tuple[int, int, int]]] = {}
    for (a, b), (gap, width) in gaps.items():
        ways.setdefault(a, []).append((b, gap, width))
        ways.setdefault(b, []).append((a, -gap, width))
    root = int(np.bincount(clock).argmax()) if len(clock) else 0
    found, waiting = {root: (0, 0)}, deque([root])
    while waiting:
        here = waiting.popleft()
        for there, gap, width in ways.get(here, ()):
            if there not in found:
                found[there] = found[here][0] - gap, found[here][1] + width
                waiting.append(there)
    return found


def _spread(call: Ints, time: Ints) -> float | None:
    """Median distance in s of ends from the middle end of their call."""
    if not len(call):
        return None
    order = np.lexsort((time, call))
    call, time = call[order], time[order]
    starts = np.flatnonzero(np.append(True, np.diff(call) != 0))
    ends = np.append(starts[1:], len(call))
    middles = time[(starts + ends) // 2]
    return float(np.median(np.abs(time - np.repeat(middles, ends - starts)))) / 1e9

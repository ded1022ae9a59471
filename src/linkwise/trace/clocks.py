"""Clocks of different hosts, brought together on what one host's event must have been before another's.

The last to arrive at an all-reduce, all-gather, all-to-all or barrier lets everybody go: its end is one moment on every
member's clock. So the median difference of two clocks over their common ends is how far they are apart, and what
remains around it says how well that is known.

Where there are no common ends, or recorders note them up to a tenth of a second late, three orders bound the
difference. A message is not received before its sending began. No member's call is over before all have entered it.
And callers that wait for each call begin the next one of a group only after everybody has begun this one. Each bounds
a pair of clocks from one side; bounds add up along any way from clock to clock (a ring of stages closes them), and the
tightest way counts. Clocks are moved only as far as the bounds ask. Clocks that no bounds tie from both sides stay
apart: what happened first on them is not known.

Records of one named host share a clock, unless their own calls say that they do not: several machines may have one
name, and "localhost" is none.
"""

from typing import NamedTuple

import numpy as np

from linkwise.trace.calls import DONE, Ints
from linkwise.trace.events import Head, Trace, names_a_host
from linkwise.trace.joined import P2P, Joined, join

TOGETHER = ("all_reduce", "all_gather", "all_to_all", "reduce_scatter", "barrier")
LEAST = 3  # calls in common, for two clocks to be compared by them
MOST = 4_000  # calls that are looked at; the newest, where clocks are now
MESSAGES = 65_536  # likewise
SURE_NS = 1_000_000  # by which times must contradict each other: a device's and its host's are not quite on one clock
# What bounds may contradict each other by, tried in turn: clocks run at different speeds while a record lasts, and
# recorders note an end up to a tenth of a second late.
SLACK_NS = (0, 100_000, 1_000_000, 10_000_000, 100_000_000)


class Clocks(NamedTuple):
    """shift_ns: by place of a record, what to add to its times. residual_s: median distance of ends from their
    common moment after that, None = no ends in common. by_ends: whether any ends were compared. island: by place; times
    of records on different islands cannot be compared. apart: records that are not on the largest one. unsure_ns: by
    place, how far order alone leaves its clock open; less lateness than that is none. one_way: those of `apart` that
    messages, or other orders, bind to another island from one side only. clock: by place, records of one number share
    a clock; () = all do."""

    shift_ns: dict[int, int]
    residual_s: float | None
    by_ends: bool
    apart: tuple[int, ...]
    unsure_ns: dict[int, int]
    island: tuple[int, ...]
    one_way: tuple[int, ...] = ()
    clock: tuple[int, ...] = ()
    refuted: tuple[int, ...] = ()


# By two clocks: the second is ahead of the first by at most so many ns.
_Limits = dict[tuple[int, int], int]


class _Place(NamedTuple):
    """Of a clock: its island, how far it is ahead of the island's first clock, and how far that is open, in ns."""

    island: int
    ahead: int
    open: int


def align(trace: Trace, joined: Joined | None = None) -> Clocks:
    """How far every record's clock is from that of the most. Records of one machine, or named host, share a clock.

    joined: the trace's calls, where they are joined already.
    """
    joined = join(trace) if joined is None else joined
    clock, refuted = _kept(_clocks(trace), joined)
    if len(set(clock)) < 2:
        return Clocks({}, None, by_ends=True, apart=(), unsure_ns={}, island=(0,) * len(clock))
    of = np.asarray(clock, np.int64)
    entries = np.bincount(of[joined.rows.who], minlength=max(clock) + 1)
    order = sorted(range(len(entries)), key=lambda one: -int(entries[one]))
    polled = np.asarray([rank.polled for rank in joined.ranks])[joined.rows.who]
    call, who, time = _moments(joined, np.where(polled, 0, joined.rows.ended_ns))
    gaps = _by_ends(of[who], call, time)
    tied = _tied(gaps, order)
    limits: tuple[_Limits, _Limits] = ({}, {})
    if any(one.island for one in tied.values()):
        limits = _limits(joined, of, polled)
        tied = _islands(tied, limits, order)
    one_sided = {clock for pair in limits[1] if len({tied[clock].island for clock in pair}) > 1 for clock in pair}
    places = [tied[mine] for mine in clock]
    shift = {place: -one.ahead for place, one in enumerate(places)}
    moved = time - np.asarray([one.ahead for one in places], np.int64)[who]
    return Clocks(
        shift,
        _spread(call, moved) if gaps else None,
        by_ends=bool(gaps),
        apart=tuple(place for place, one in enumerate(places) if one.island),
        unsure_ns={place: one.open for place, one in enumerate(places)},
        island=tuple(one.island for one in places),
        one_way=tuple(place for place, one in enumerate(places) if one.island and clock[place] in one_sided),
        clock=tuple(clock),
        refuted=refuted,
    )


def _kept(clock: list[int], joined: Joined) -> tuple[list[int], tuple[int, ...]]:
    """Clocks that records claim to share, as far as their calls do not refute it: those of a refuted one each have
    their own. A call is over nowhere before everybody entered it; on one clock, not by its times either. Also the
    records whose claim is refuted."""
    rows = joined.rows
    together = np.isin(rows.op, [joined.op(name) for name in TOGETHER]) & (rows.state == DONE)
    call = np.repeat(np.arange(joined.calls), np.diff(joined.first))
    of = np.asarray(clock, np.int64)
    begun = np.where(rows.created_ns > 0, rows.created_ns, rows.started_ns)
    here = np.flatnonzero(together & (begun > 0) & (rows.ended_ns > 0))
    if not len(here):
        return clock, ()
    _, part = np.unique(call[here] * (1 + int(of.max())) + of[rows.who[here]], return_inverse=True)
    begins, ends = begun[here], rows.ended_ns[here]
    first_end = np.full(int(part.max()) + 1, np.iinfo(np.int64).max)
    last_begin = np.zeros(len(first_end), np.int64)
    np.minimum.at(first_end, part, ends)
    np.maximum.at(last_begin, part, begins)
    # By record: in how many of its calls that another record of its clock has, and in how many times contradict.
    shared = np.bincount(part)[part] > 1
    odd = (begins > first_end[part] + SURE_NS) | (ends < last_begin[part] - SURE_NS)
    count = np.bincount(rows.who[here], weights=shared, minlength=len(clock))
    odds = np.bincount(rows.who[here], weights=odd, minlength=len(clock))
    bad = {clock[place] for place in np.flatnonzero((odds >= LEAST) & (2 * odds > count)).tolist()}
    refuted = tuple(place for place, one in enumerate(clock) if one in bad)
    numbers: dict[tuple[int, int], int] = {}
    return [
        numbers.setdefault((one, place if one in bad else -1), len(numbers)) for place, one in enumerate(clock)
    ], refuted


def _clocks(trace: Trace) -> list[int]:
    """A number per record; records that say one machine, or else one host's name, have the same."""
    seen: dict[tuple[str, str, int], int] = {}
    heads = [(head.clock, "" if head.clock or not names_a_host(head.host) else head.host) for head in _heads(trace)]
    return [
        seen.setdefault((clock, host, -1 if clock or host else place), len(seen))
        for place, (clock, host) in enumerate(heads)
    ]


def _heads(trace: Trace) -> list[Head]:
    return [rank.head for rank in trace.ranks]


def _moments(joined: Joined, times: Ints) -> tuple[Ints, Ints, Ints]:
    """Call, record and time of the newest entries of calls that all members leave together, where the time is known."""
    kept, call = _shared(joined, times)
    return call, joined.rows.who[kept], times[kept]


def _shared(joined: Joined, times: Ints) -> tuple[Ints, Ints]:
    """Rows with a time of the newest calls that all members leave together and two records have, and their calls."""
    rows = joined.rows
    together = np.flatnonzero(np.isin(rows.op, [joined.op(name) for name in TOGETHER]) & (times > 0))
    call = np.repeat(np.arange(joined.calls), np.diff(joined.first))[together]
    if not len(call):
        return together, call
    counts = np.bincount(call, minlength=joined.calls)
    newest = np.zeros(joined.calls, np.int64)
    np.maximum.at(newest, call, times[together])
    shared = np.flatnonzero(counts > 1)
    keep = np.zeros(joined.calls, bool)
    keep[shared[np.argsort(newest[shared])[-MOST:]]] = True
    return together[keep[call]], call[keep[call]]


def _by_ends(clock: Ints, call: Ints, time: Ints) -> dict[tuple[int, int], int]:
    """How far the second clock of a pair is ahead of the first: the median difference of ends, where there are enough
    calls in common."""
    found: dict[tuple[int, int], list[int]] = {}
    for ends in _each(clock, call, time).values():
        # One end per clock is enough: members on one host leave together by the same clock.
        hub = min(ends)
        for other, (_, latest) in ends.items():
            if other != hub:
                found.setdefault((hub, other), []).append(latest - ends[hub][1])
    return {pair: int(np.median(gaps)) for pair, gaps in found.items() if len(gaps) >= LEAST}


def _tied(gaps: dict[tuple[int, int], int], order: list[int]) -> dict[int, _Place]:
    """Every clock's place among those that common ends tie it to. order: clocks, that with the most entries first."""
    ways: dict[int, list[tuple[int, int]]] = {}
    for (a, b), gap in gaps.items():
        ways.setdefault(a, []).append((b, gap))
        ways.setdefault(b, []).append((a, -gap))
    found: dict[int, _Place] = {}
    island = 0
    for root in order:
        if root in found:
            continue
        found[root], waiting = _Place(island, 0, 0), [root]
        for here in waiting:  # it grows
            for there, gap in ways.get(here, ()):
                if there not in found:
                    found[there] = _Place(island, found[here].ahead + gap, 0)
                    waiting.append(there)
        island += 1
    return found


def _limits(joined: Joined, of: Ints, polled: np.ndarray) -> tuple[_Limits, _Limits]:
    """By messages and ends, which nothing contradicts, and by all orders. of: the clock of each record; polled: rows
    whose ends are late, and whose callers do not wait for each call."""
    by_message = _by_messages(joined, of)
    if polled.any():
        by_message = _tightest(by_message, _by_late_ends(joined, of))
    begun = np.where(joined.rows.started_ns > 0, joined.rows.started_ns, joined.rows.created_ns)
    call, who, time = _moments(joined, np.where(polled, 0, begun))
    by_order = _by_order(of[who], call, time, joined.rows.group[joined.first[:-1]])
    return by_message, _tightest(by_message, by_order)


def _tightest(a: _Limits, b: _Limits) -> _Limits:
    return {pair: min(a.get(pair, b.get(pair, 0)), b.get(pair, a.get(pair, 0))) for pair in {*a, *b}}


def _by_late_ends(joined: Joined, of: Ints) -> _Limits:
    """By calls that are over: on no member's clock before any member entered them."""
    created, ended = joined.rows.created_ns, joined.rows.ended_ns
    kept, call = _shared(joined, np.where(created > 0, ended, 0))
    clock = of[joined.rows.who[kept]]
    ends, begins = _each(clock, call, ended[kept]), _each(clock, call, created[kept])
    found: _Limits = {}
    for here in ends:
        hub = min(ends[here])
        for other in ends[here]:
            for a, b in ((hub, other), (other, hub)) if other != hub else ():
                gap = ends[here][b][0] - begins[here][a][1]
                found[a, b] = min(found.get((a, b), gap), gap)
    return found


def _by_order(clock: Ints, call: Ints, time: Ints, group: Ints) -> _Limits:
    """By what beginnings of following calls allow."""
    most: _Limits = {}
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
    # Where both sides contradict each other, these two do not wait for each call: nothing follows.
    return {
        (a, b): high
        for (a, b), high in most.items()
        if times[a, b] >= LEAST and most.get((b, a), -high) + high >= 0
    }  # fmt: skip


def _by_messages(joined: Joined, of: Ints) -> _Limits:
    """By messages: the end of a receive, on its clock, is not before the beginning of the send.

    The k-th send is the k-th receive only in records that have all of a group's calls from the first one on.
    """
    rows = joined.rows
    pairs = joined.first[:-1][np.diff(joined.first) == 2]
    send, recv = (joined.op(name) for name in P2P)
    if send < 0 or recv < 0 or not len(pairs):
        return {}
    other = rows.op[pairs] == recv
    src, dst = np.where(other, pairs + 1, pairs), np.where(other, pairs, pairs + 1)
    began = np.where(rows.created_ns > 0, rows.created_ns, rows.started_ns)
    whole = from_the_first(joined)
    good = (rows.op[src] == send) & (rows.op[dst] == recv) & (rows.state[dst] == DONE) & whole[src] & whole[dst]
    good &= (rows.step[src] == rows.step[dst]) | (rows.step[src] < 0) | (rows.step[dst] < 0)
    good &= (began[src] > 0) & (rows.ended_ns[dst] > 0) & (of[rows.who[src]] != of[rows.who[dst]])
    src, dst = src[good], dst[good]
    newest = np.argsort(began[src], kind="stable")[-MESSAGES:]
    a, b = of[rows.who[src[newest]]], of[rows.who[dst[newest]]]
    gap = rows.ended_ns[dst[newest]] - began[src[newest]]
    found: _Limits = {}
    for pair in zip(a.tolist(), b.tolist(), gap.tolist(), strict=True):
        found[pair[:2]] = min(found.get(pair[:2], pair[2]), pair[2])
    return found


def from_the_first(joined: Joined) -> np.ndarray:
    """Rows of records that have every call of the row's group, from the first one on, by the calls' numbers: only of
    these the k-th send is the k-th receive."""
    rows = joined.rows
    key = rows.who * (len(joined.groups) + 1) + rows.group
    order = np.lexsort((rows.sequence, key))
    ordered, number = key[order], rows.sequence[order]
    begin = np.flatnonzero(np.append(True, np.diff(ordered) != 0))
    gap = np.append(0, np.maximum(np.diff(number) - 1, 0))
    gap[begin] = np.maximum(number[begin] - 1, 0)  # some recorders count from 1
    broken = np.add.reduceat(gap, begin) > 0
    found = np.empty(len(order), bool)
    found[order] = np.repeat(~broken, np.diff(np.append(begin, len(order))))
    return found


def _each(clock: Ints, call: Ints, time: Ints) -> dict[int, dict[int, tuple[int, int]]]:
    """By call and clock, the earliest and latest time."""
    found: dict[int, dict[int, tuple[int, int]]] = {}
    for mine, here, at in zip(clock.tolist(), call.tolist(), time.tolist(), strict=True):
        times = found.setdefault(here, {})
        low, high = times.get(mine, (at, at))
        times[mine] = min(low, at), max(high, at)
    return found


def _islands(tied: dict[int, _Place], limits: tuple[_Limits, _Limits], order: list[int]) -> dict[int, _Place]:
    """Islands that ends left apart, joined where limits bind them from both sides."""
    by_message, both = (_between(tied, one) for one in limits)
    first: dict[int, int] = {}  # islands by their first clock, that with the most entries first
    for clock in order:
        first.setdefault(tied[clock].island, clock)
    left, joint = list(first), {}
    for number in range(len(left)):
        if not left:
            break
        root = left[0]
        found = _bounded(root, both) or _bounded(root, by_message) or {root: (0, 0)}
        for island, (low, high) in found.items():
            if island in left:
                joint[island] = _Place(number, min(max(0, low), high), high - low)
                left.remove(island)
    return {
        clock: _Place(joint[one.island].island, joint[one.island].ahead + one.ahead, joint[one.island].open)
        for clock, one in tied.items()
    }


def _between(tied: dict[int, _Place], limits: _Limits) -> _Limits:
    """Limits of clocks as limits of islands' first clocks."""
    found: _Limits = {}
    for (a, b), most in limits.items():
        pair = tied[a].island, tied[b].island
        gap = most - tied[b].ahead + tied[a].ahead
        if pair[0] != pair[1]:
            found[pair] = min(found.get(pair, gap), gap)
    return found


def _bounded(root: int, limits: _Limits) -> dict[int, tuple[int, int]] | None:
    """How far others may be ahead of an island at least and at most, where both are known; None when limits contradict
    each other by more than clocks drift."""
    back = {(b, a): most for (a, b), most in limits.items()}
    for slack in SLACK_NS:
        high, low = _shortest(root, limits, slack), _shortest(root, back, slack)
        if high is not None and low is not None:
            return {one: (-low[one], high[one]) for one in high if one in low}
    return None


def _shortest(root: int, limits: _Limits, slack: int) -> dict[int, int] | None:
    """Shortest ways from a root (Bellman and Ford); None when some way round is shorter than nothing."""
    found = {root: 0}
    for _ in range(len({one for pair in limits for one in pair}) + 1):
        changed = False
        for (a, b), most in limits.items():
            if a in found and found[a] + most + slack < found.get(b, 2**100):
                found[b], changed = found[a] + most + slack, True
        if not changed:
            return found
    return None


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

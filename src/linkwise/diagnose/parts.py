"""Calls of members whose clocks are not known well enough to compare, and calls that were enqueued ahead.

Who came last across hosts is known only where it came later than the clocks may be wrong. Any other call is taken as
one part per clock: within a host its members are compared, between hosts nobody is charged, and what a member waited
until the others came by their clocks at the latest is nobody's.
"""

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from linkwise.trace.calls import Ints
from linkwise.trace.clocks import Clocks
from linkwise.trace.joined import P2P, Joined, Rows

Flags = npt.NDArray[np.bool_]

NEVER_NS = 2**60  # how far clocks are apart that nothing binds
# How clocks are compared: as far as they are bound; as they are written; or only those of one host with each other, as
# if none ever waited for another.
Trust = Literal["bound", "written", "host"]
NEEDED = ("who", "group", "op", "ended_ns")
MOST_ROUNDS = 16  # a call's wait may put off one behind it, in any group


class Parts(NamedTuple):
    """A trace's calls, those across clocks that are too open taken apart. joined: rows by part, with NEEDED columns;
    order: of each row its row before; call: of each part its call before; arrive: by row; unsure_ns: by part, how far
    its members' clocks may be apart; until_ns: by row, when a member on another clock may have come at the latest, 0 =
    none of another part."""

    joined: Joined
    order: Ints
    call: Ints
    arrive: Ints
    unsure_ns: Ints
    until_ns: Ints


def parts(joined: Joined, arrive: Ints, whole: Flags, ahead: Flags, clocks: Clocks | None, trust: Trust) -> Parts:
    """A trace's calls as far as their members' times can be compared. whole: calls of which all arrivals are known;
    ahead: rows that may have been enqueued ahead; clocks: None = one."""
    none = np.zeros(joined.calls, np.int64)
    if clocks is None or len(set(clocks.clock)) < 2:
        arrive = in_turn(joined, arrive, whole, ahead, none)
        return Parts(joined, np.arange(len(arrive)), np.arange(joined.calls), arrive, none, arrive * 0)
    who, places, first = joined.rows.who, range(len(joined.ranks)), joined.first[:-1]
    island = np.asarray([clocks.island[place] for place in places], np.int64)[who]
    clock = np.asarray([clocks.clock[place] for place in places], np.int64)[who]
    open_ = np.asarray([0 if trust == "written" else clocks.unsure_ns.get(place, 0) for place in places], np.int64)[who]
    call = np.repeat(np.arange(joined.calls), np.diff(joined.first))
    apart = _several(island, first)
    unsure = np.where(apart, NEVER_NS, _unsure(clock, open_, first))
    if trust == "host":
        unsure = np.where(unsure > 0, NEVER_NS, unsure)
    arrive = in_turn(joined, arrive, whole, ahead, unsure)
    # First those on different islands, then those of one island that came closer together than its clocks are bound.
    part, begins = _split(call, np.where(apart[call], island, 0))
    until = np.where(apart[call], NEVER_NS, 0)
    ordered = np.lexsort((who, part))
    unsure = _unsure(clock[ordered], open_[ordered], begins)
    last, second = _latest(arrive[ordered], clock[ordered], begins)
    near = (unsure > 0) & ((last - second <= unsure) | (trust == "host"))
    until = np.maximum(until, np.where(near[part], (last + unsure)[part], 0))
    final, _ = _split(part, np.where(near[part], clock, 0))
    order = np.lexsort((who, final))
    starts = np.flatnonzero(np.append(True, np.diff(final[order]) != 0))
    before = part[order[starts]]
    return Parts(
        joined._replace(rows=_needed(joined.rows, order), first=np.append(starts, len(order)).astype(np.int64)),
        order,
        call[order[starts]],
        arrive[order],
        np.where(near[before], 0, unsure[before]),
        until[order] * (trust != "host"),
    )


def _needed(rows: Rows, order: Ints) -> Rows:
    """Rows in an order, with the columns that times are taken from alone: a million rows are 8 MB a column."""
    kept = {name: column[order] if name in NEEDED else column[:0] for name, column in rows._asdict().items()}
    return Rows(**kept)


def _split(call: Ints, by: Ints) -> tuple[Ints, Ints]:
    """A number for each row by call and something else, in the order of calls, and where each begins when sorted."""
    part, sizes = call, np.bincount(call)
    if by.any():
        _, part, sizes = np.unique(call * (int(by.max()) + 1) + by, return_inverse=True, return_counts=True)
    return part, np.append(0, np.cumsum(sizes)[:-1]).astype(np.int64)


def _several(values: Ints, first: Ints) -> Flags:
    found: Flags = np.minimum.reduceat(values, first) != np.maximum.reduceat(values, first)
    return found


def _unsure(clock: Ints, open_: Ints, first: Ints) -> Ints:
    """By call, how far apart its members' clocks may be: as far as the two that are most open; 0 on one clock."""
    call = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(clock))))
    most = np.maximum.reduceat(open_, first)
    widest = np.maximum.reduceat(np.where(open_ == most[call], clock, -1), first)
    next_ = np.maximum.reduceat(np.where(clock != widest[call], open_, -1), first)
    return np.where(next_ < 0, 0, most + next_)


def _latest(arrive: Ints, clock: Ints, first: Ints) -> tuple[Ints, Ints]:
    """By call the last arrival, and the last one on any other clock."""
    call = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(clock))))
    last = np.maximum.reduceat(arrive, first)
    of = np.maximum.reduceat(np.where(arrive == last[call], clock, -1), first)
    return last, np.maximum.reduceat(np.where(clock != of[call], arrive, 0), first)


def in_turn(joined: Joined, arrive: Ints, whole: Flags, ahead: Flags, unsure_ns: Ints) -> Ints:
    """Arrivals of calls that may have been enqueued ahead: not before their rank left the collective in front of them,
    so that a wait counts once, in the call it began in. unsure_ns: by call, what clocks may be apart."""
    rows, first = joined.rows, joined.first[:-1]
    ahead = ahead & (arrive > 0) & ~np.isin(rows.op, [joined.op(name) for name in P2P])
    if not ahead.any():
        return arrive
    call = np.repeat(np.arange(joined.calls), np.diff(joined.first))
    order = np.lexsort((rows.sequence, arrive, rows.who))
    order = order[ahead[order]]
    records = runs(rows.who[order])
    for _ in range(MOST_ROUNDS):
        left = np.where(whole, np.maximum.reduceat(arrive, first) - unsure_ns, 0)[call[order]]
        left = np.maximum(left, arrive[order])
        reached = np.zeros(len(order), np.int64)
        for begin, end in records:
            reached[begin + 1 : end] = np.maximum.accumulate(left[begin : end - 1])
        later = np.maximum(arrive[order], reached)
        if (later == arrive[order]).all():
            break
        arrive = arrive.copy()
        arrive[order] = later
    return arrive


def once(who: Ints, arrive: Ints, waits: Ints) -> Ints:
    """Waits without what of them lies in a wait of the same record that began before."""
    found = np.zeros(len(who), np.int64)
    order = np.lexsort((arrive, who))
    order = order[waits[order] > 0]
    for begin, end in runs(who[order]):
        mine = order[begin:end]
        until = arrive[mine] + waits[mine]
        before = np.append(0, np.maximum.accumulate(until)[:-1])
        found[mine] = np.maximum(until - np.maximum(arrive[mine], before), 0)
    return found


def runs(values: Ints) -> list[tuple[int, int]]:
    """Where equal neighbours begin and end."""
    if not len(values):
        return []
    starts = np.flatnonzero(np.append(True, np.diff(values) != 0))
    return list(zip(starts.tolist(), np.append(starts[1:], len(values)).tolist(), strict=True))

"""Who kept whom waiting? Every call's time taken apart, and every wait followed to where it began.

On a rank's own line a moment is one of three: inside a call and waiting for the last member to arrive; inside a call
that moves bytes; between calls, which is the rank's own doing. A wait ends with the last arrival, and what the last
arriver did meanwhile is again one of the three. So each moment of waiting is followed from rank to rank, through every
group, until it is somebody's own time or some group's moving. A victim, late because it waited elsewhere, is passed
through and never charged.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from linkwise.diagnose.parts import Flags, Parts, Trust, once, parts, runs
from linkwise.trace.calls import DONE, Ints
from linkwise.trace.clocks import Clocks
from linkwise.trace.events import RankTrace
from linkwise.trace.joined import LEAVING, P2P, Joined, Rows

MOST_FOLLOWED = 50_000  # calls whose wait is followed: the longest ones
ROOTED = ("broadcast", "scatter")  # what members wait in until one of them has something for the others
PAUSE, USUAL = 2, 3  # times the usual wait in such a call; of so many at least
MOST_STEPS = 64  # hops from rank to rank before a wait is given up as not followed

Floats = npt.NDArray[np.float64]


class Line(NamedTuple):
    """One record's calls in time. arrive, last, leave: ns; last: when the call's last member arrived; call: number;
    lead: record of that member. gap: ns between the end of what was before and the arrival, -1 = not known."""

    arrive: Ints
    last: Ints
    leave: Ints
    call: Ints
    lead: Ints


class Origins(NamedTuple):
    """Stretches of ranks' own time that others waited because of. who: record; at_ns: its end; held_ns: the longest
    wait in one call that began there: one stretch may hold up several groups, at the same time."""

    who: Ints
    at_ns: Ints
    held_ns: Floats


class Timing(NamedTuple):
    """Times of a trace. Per row of `Joined.rows`: arrive, leave (0 = not known), gap (-1 = not known), waited: for
    members whose times can be compared with its own, each moment once. Per call: last arrival, its record (-1 = not
    known), the wait that is charged (from when half the members were there, and more than clocks may be wrong), moved
    (-1 = not known).

    own_ns, own_calls: by record, waiting of others that its own time caused, summed over all who waited from when half
    of a call's members were there, and in how many calls; held_ns: by record, how long it held others up, however many
    of them: never more than its own time; origins: the same by stretch of own time. moved_ns: by group, waiting that
    its moving caused, in ns of its calls; elapsed_ns: of the whole trace (clocks that cannot be compared: of the
    longest), or of its steps where it has some: what was idle in between is nobody's; unfollowed_ns: waits nobody could
    be found for.
    """

    arrive: Ints
    leave: Ints
    gap: Ints
    waited: Ints
    last: Ints
    lead: Ints
    wait: Ints
    moved: Ints
    own_ns: Floats
    own_calls: Ints
    held_ns: Floats
    origins: Origins
    moved_ns: Floats
    elapsed_ns: int
    unfollowed_ns: float


def timing(joined: Joined, clocks: Clocks | None = None, trust: Trust = "bound") -> Timing | None:
    """The times of a trace; None when too few of them are known to say anything.

    clocks: which can be compared, and how well; None = one clock. Of calls of which that is not known well enough, each
    clock's part is judged by itself (`parts.py`).
    """
    rows = joined.rows
    polled = np.asarray([rank.polled for rank in joined.ranks], bool)[rows.who]
    came = np.where((rows.started_ns > 0) & ~polled, rows.started_ns, rows.created_ns)
    if not len(came) or not (came > 0).any():
        return None
    whole = _whole(joined, came, np.repeat(np.arange(joined.calls), np.diff(joined.first)))
    taken = parts(joined, came, whole, polled, clocks, trust)
    found = _of_parts(taken, polled[taken.order], whole[taken.call], clocks)
    return found if taken.joined is joined else _of_calls(taken, found, joined.calls)


def _of_parts(taken: Parts, polled: Flags, whole: Flags, clocks: Clocks | None) -> Timing:
    joined, rows, arrive = taken.joined, taken.joined.rows, taken.arrive
    first, sizes = joined.first[:-1], np.diff(joined.first)
    call = np.repeat(np.arange(joined.calls), sizes)
    whole = whole & (sizes > 1)
    ended = np.where(polled, 0, rows.ended_ns)  # up to a tenth of a second late: no time to reckon with
    island = np.asarray(clocks.island if clocks else (0,) * len(joined.ranks), np.int64)[rows.who]
    last = np.maximum.reduceat(arrive, first)
    lead = np.where(whole | (taken.until_ns[first] == 0), _lead(rows.who, arrive, last[call], call, joined.calls), -1)
    leave = _leave(ended, arrive, last, call, whole)
    leave = np.where(ended > 0, leave, np.maximum(leave, np.minimum(_next(rows.who, arrive), taken.until_ns)))
    gap = _gaps(joined, arrive, leave)
    # Rows in the order of their arrival: of each call the one with which half are there (of two, the first), the last.
    order = np.lexsort((arrive, call))
    middle, final = order[first + (sizes - 1) // 2], order[first + sizes - 1]
    wait = np.where(whole, np.maximum(last - arrive[middle] - taken.unsure_ns, 0), 0)
    ends = np.where(leave > 0, leave, np.iinfo(np.int64).max)
    soonest = np.minimum.reduceat(ends, first)
    known = ended > 0
    # A sender may return at once: a message has moved when its receiver has it.
    taken_ns = np.maximum.reduceat(np.where(rows.op == joined.op("recv"), leave, 0), first)
    soonest = np.where(taken_ns > 0, taken_ns, soonest)
    moved = np.where(whole & np.logical_and.reduceat(known, first), soonest - last, -1)
    moved = np.where((moved < 0) | (taken.until_ns[first] > 0), -1, moved)
    elapsed = _busy(joined.ranks) or _longest(arrive, leave, island)
    lines = _lines(joined, arrive, leave, last, lead, call, whole)
    _add_leaving(joined, lines)
    wait = _charged(joined, wait)
    waits = np.where(arrive > 0, np.maximum(last[call] - arrive, 0), 0)
    waiting = np.add.reduceat(np.minimum(waits, wait[call]), first)
    followed = _follow(joined, lines, _Waits(wait, last, lead, gap[final], gap[middle], waiting))
    return Timing(
        arrive, leave, gap, once(rows.who, arrive, waits), last, lead, wait, moved, followed.own, followed.calls,
        followed.held, followed.origins, followed.moved, max(1, elapsed), followed.lost,
    )  # fmt: skip


def _of_calls(taken: Parts, found: Timing, calls: int) -> Timing:
    """Times by part as times by call: of a call in parts those of the part with the longest wait."""
    back = np.argsort(taken.order)
    order = np.lexsort((found.wait, taken.call))
    chosen = order[np.searchsorted(taken.call[order], np.arange(calls), side="right") - 1]
    by_row = {name: getattr(found, name)[back] for name in ("arrive", "leave", "gap", "waited")}
    by_call = {name: getattr(found, name)[chosen] for name in ("last", "lead", "wait", "moved")}
    return found._replace(**by_row, **by_call)


def _next(who: Ints, arrive: Ints) -> Ints:
    """By row, when its rank came to its next call; 0 where there is none."""
    order = np.lexsort((arrive, who))
    found = np.zeros(len(who), np.int64)
    same = who[order[1:]] == who[order[:-1]]
    found[order[:-1][same]] = arrive[order[1:][same]]
    return found


def _longest(arrive: Ints, leave: Ints, island: Ints) -> int:
    """From the first arrival to the end, of the clocks that can be compared with the longest."""
    known = arrive > 0
    spans = [
        int(max(arrive[here].max(), leave[here].max()) - arrive[here].min())
        for one in np.unique(island[known]).tolist()
        for here in [known & (island == one)]
    ]
    return max(spans)


def _whole(joined: Joined, arrive: Ints, call: Ints) -> Flags:
    """Calls that every known member entered and is done with, more than one, at times that are known.

    In a call that is still open nobody is late yet: what keeps it open is a question for the hang rule.
    """
    sizes = np.asarray([len(group.known) for group in joined.groups], np.int64)
    p2p = np.isin(joined.rows.op[joined.first[:-1]], [joined.op(name) for name in P2P])
    asked = np.where(p2p, 2, sizes[joined.rows.group[joined.first[:-1]]])
    there = np.bincount(call, weights=(arrive > 0) & (joined.rows.state == DONE), minlength=joined.calls)
    whole: Flags = (there == asked) & (asked > 1)
    return whole


def _charged(joined: Joined, wait: Ints) -> Ints:
    """What of every call's wait is charged to anybody.

    Only calls that are meant to be entered together: a message's receiver waits for its sender by design. So do those
    who get a broadcast: as long as usual is the sender's doing, what is much longer is a pause in which it had no work.
    """
    first = joined.first[:-1]
    op, group = joined.rows.op[first], joined.rows.group[first]
    found = np.where(np.isin(op, [joined.op(name) for name in P2P]), 0, wait)
    rooted = np.flatnonzero(np.isin(op, [joined.op(name) for name in ROOTED]) & (wait > 0))
    order = rooted[np.lexsort((group[rooted], op[rooted]))]
    for begin, end in runs(op[order] * (1 + len(joined.groups)) + group[order]):
        mine = order[begin:end]
        usual = int(np.median(wait[mine])) if len(mine) >= USUAL else 0
        found[mine] = np.minimum(wait[mine], PAUSE * usual)
    return found


def _lead(who: Ints, arrive: Ints, last: Ints, call: Ints, calls: int) -> Ints:
    """The record that arrived last, by call."""
    lead = np.full(calls, -1, np.int64)
    latest = arrive == last
    lead[call[latest]] = who[latest]
    return lead


def _leave(ended: Ints, arrive: Ints, last: Ints, call: Ints, whole: Flags) -> Ints:
    """When each row's rank left its call: as recorded; else, for a call all entered, not before the last arrival."""
    return np.where(ended > 0, np.maximum(ended, arrive), np.where(whole[call] & (arrive > 0), last[call], 0))


def _gaps(joined: Joined, arrive: Ints, leave: Ints) -> Ints:
    """Own time before each row's call: from the latest end of its rank's earlier calls to its arrival."""
    count, left = len(arrive), _leaving(joined)
    who = np.append(joined.rows.who, left.who)
    came, gone = np.append(arrive, left.started_ns), np.append(leave, left.ended_ns)
    gap = np.full(len(came), -1, np.int64)
    order = np.lexsort((came, who))
    order = order[came[order] > 0]
    at, out = came[order], gone[order]
    for begin, end in runs(who[order]):
        reached = np.maximum.accumulate(np.maximum(out[begin:end], at[begin:end]))
        free = np.append(-1, np.maximum(at[begin + 1 : end] - reached[:-1], 0))
        before = np.flatnonzero((order[begin : end - 1] >= count) & (free[:-1] > 0))
        free[before + 1] += free[before]  # own time before waiting for a message to leave is of the call behind it
        gap[order[begin:end]] = free
    return gap[:count]


def _leaving(joined: Joined) -> Rows:
    """Times in which a rank waited for its message to leave."""
    alone = joined.alone
    return alone.take((alone.op == joined.op(LEAVING)) & (alone.started_ns > 0) & (alone.ended_ns > alone.started_ns))


def _add_leaving(joined: Joined, lines: dict[int, Line]) -> None:
    """On its line such a wait is one for the receiver, whom it is followed to."""
    left = _leaving(joined)
    at = {(rank.head.unit, rank.head.rank): place for place, rank in enumerate(joined.ranks)}
    for who in np.unique(left.who).tolist():
        mine, unit = left.take(left.who == who), joined.ranks[who].head.unit
        lead = np.asarray([at.get((unit, peer), -1) for peer in mine.peer.tolist()], np.int64)
        none = np.full(len(lead), -1, np.int64)
        line = lines.get(who, Line(*(none[:0] for _ in Line._fields)))
        both = Line(
            np.append(line.arrive, mine.started_ns),
            np.append(line.last, mine.ended_ns),
            np.append(line.leave, mine.ended_ns),
            np.append(line.call, none),
            np.append(line.lead, lead),
        )
        order = np.argsort(both.arrive, kind="stable")
        lines[who] = Line(*(column[order] for column in both))


def _busy(ranks: tuple[RankTrace, ...]) -> int:
    """Time in steps of the rank with the most; 0 where a record has none."""
    found = [sum(one.ended_ns - one.began_ns for one in rank.batches if one.ended_ns) for rank in ranks]
    return max(found) if found and min(found) > 0 else 0


def _lines(
    joined: Joined, arrive: Ints, leave: Ints, last: Ints, lead: Ints, call: Ints, whole: Flags
) -> dict[int, Line]:
    rows = joined.rows
    order = np.lexsort((arrive, rows.who))
    order = order[(arrive[order] > 0) & (leave[order] > 0)]
    who = rows.who[order]
    found = {}
    for begin, end in runs(who):
        mine = order[begin:end]
        at = call[mine]
        # In a call that somebody's record lacks, who came last is not known: its time is nobody's.
        met, led = np.where(whole[at], last[at], leave[mine]), np.where(whole[at], lead[at], -1)
        found[int(who[begin])] = Line(arrive[mine], met, leave[mine], at, led)
    return found


class _Waits(NamedTuple):
    """By call: the wait, the last arrival and its record, and own time before the call (-1 = not known) of the last
    one and of the one it is held against; waiting: the wait summed over those who were there."""

    wait: Ints
    last: Ints
    lead: Ints
    gap: Ints
    usual: Ints
    waiting: Ints


class _Followed(NamedTuple):
    """Waits by where they began, as in `Timing`."""

    own: Floats
    calls: Ints
    held: Floats
    origins: Origins
    moved: Floats
    lost: float


def _stretch(waits: _Waits, number: int) -> tuple[int, int, int]:
    """Of a call's wait, the own time that its last member took longer than the one it is held against; and the stretch
    of its line, before that own time, in which it fell behind by the rest.

    Both do the same work before a call: coming later out of the call before, by another group or by bytes that took
    longer there, is not the last member's own doing, however long its own work lasts.
    """
    wait, last = int(waits.wait[number]), int(waits.last[number])
    gap, usual = int(waits.gap[number]), int(waits.usual[number])
    if gap < 0 or usual < 0:
        return 0, last - wait, last
    longer = min(wait, max(0, gap - usual))
    return longer, last - gap - (wait - longer), last - gap


def _follow(joined: Joined, lines: dict[int, Line], waits: _Waits) -> _Followed:
    """Every wait charged to records' own time and to groups' moving."""
    wait, lead = waits.wait, waits.lead
    own = np.zeros(len(joined.ranks))
    count = np.zeros(len(joined.ranks), np.int64)
    moved = np.zeros(max(1, len(joined.groups)))
    origins: dict[tuple[int, int], float] = {}  # by record and the row of its line that the own time lies before
    lost = 0.0
    group = joined.rows.group[joined.first[:-1]]
    for number in np.argsort(wait, kind="stable")[::-1][:MOST_FOLLOWED].tolist():
        if wait[number] <= 0:
            break
        longer, begin, end = _stretch(waits, number)
        first = int(lead[number])
        charged: dict[tuple[int, int], float] = {(first, _before(lines, first, int(waits.last[number]))): float(longer)}
        todo = [(first, begin, end, 0)] if begin < end else []
        while todo:
            who, begin, end, hops = todo.pop()
            line = lines.get(who)
            if line is None or hops > MOST_STEPS:
                lost += end - begin
                continue
            for kind, start, stop, where in _apart(line, begin, end):
                if kind == "moved":
                    moved[group[line.call[where]]] += stop - start
                elif kind == "own" or int(line.lead[where]) == who:
                    charged[who, where] = charged.get((who, where), 0.0) + (stop - start)
                else:
                    todo.append((int(line.lead[where]), start, stop, hops + 1))
        by_record: dict[int, float] = {}
        for (who, where), time in charged.items():
            origins[who, where] = max(origins.get((who, where), 0.0), time)
            by_record[who] = by_record.get(who, 0.0) + time
        for who, time in by_record.items():
            own[who] += time * (int(waits.waiting[number]) / int(wait[number]))
            count[who] += time >= wait[number] / 2
    found = _origins(lines, origins)
    held = np.bincount(found.who, weights=found.held_ns, minlength=len(joined.ranks)).astype(np.float64)
    return _Followed(own, count, held, found, moved, lost)


def _before(lines: dict[int, Line], who: int, moment: int) -> int:
    """The row of a record's line that it arrives in at a moment."""
    return int(np.searchsorted(lines[who].arrive, moment, side="left")) if who in lines else 0


def _origins(lines: dict[int, Line], found: dict[tuple[int, int], float]) -> Origins:
    kept = sorted(key for key, time in found.items() if time > 0)
    ends = [int(lines[who].arrive[min(row, len(lines[who].arrive) - 1)]) if who in lines else 0 for who, row in kept]
    held = np.asarray([found[key] for key in kept])
    return Origins(np.asarray([who for who, _ in kept], np.int64), np.asarray(ends, np.int64), held)


def _apart(line: Line, begin: int, end: int) -> list[tuple[str, int, int, int]]:
    """A stretch of a rank's line in pieces: own, wait, moved; from its end backwards. where: row of the line; for own
    time the row it lies before."""
    pieces: list[tuple[str, int, int, int]] = []
    row = int(np.searchsorted(line.arrive, end, side="left")) - 1
    here = end
    while here > begin:
        if row < 0:
            pieces.append(("own", begin, here, 0))
            break
        arrive, last, leave = int(line.arrive[row]), int(line.last[row]), int(line.leave[row])
        if leave < here:
            pieces.append(("own", max(begin, leave), here, row + 1))
            here = max(begin, leave)
        if here > begin and arrive < here:
            meet = min(max(last, arrive), here)
            if meet < here:
                pieces.append(("moved", max(begin, meet), here, row))
                here = max(begin, meet)
            if here > begin and arrive < here:
                pieces.append(("wait", max(begin, arrive), here, row))
                here = max(begin, arrive)
        row -= 1
    return pieces

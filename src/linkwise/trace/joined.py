"""Every rank's calls side by side: which entries of different ranks are one call (DESIGN §2.6).

A call of a group is the same on two ranks when unit, members, the group's name and its number in the group agree; the
k-th send from a to b is b's k-th receive from a. Times are brought to one clock by `clocks.align` first.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from linkwise.trace.calls import Ints
from linkwise.trace.events import RankTrace, Trace

P2P = ("send", "recv")
LOCAL = "compute"  # own work, no call
LEAVING = "wait"  # for a message to leave, which the receiver may hold up: no call either


class Group(NamedTuple):
    """A process group of a unit. key: as its records name it; members: world ranks; known: places in `Joined.ranks`
    of those whose record is there, by world rank."""

    unit: str
    key: str
    members: tuple[int, ...]
    known: dict[int, int]

    @property
    def missing(self) -> tuple[int, ...]:
        """Members without a record."""
        return tuple(rank for rank in self.members if rank not in self.known)


class Rows(NamedTuple):
    """Entries in columns: one row is one call as one rank saw it. who: place in `Joined.ranks`; group: in
    `Joined.groups`, -1 = in none; op, role, dtype: places in the words of `Joined`. Times in Unix ns, 0 = not known."""

    who: Ints
    group: Ints
    op: Ints
    role: Ints
    dtype: Ints
    sequence: Ints
    S_bytes: Ints
    step: Ints
    peer: Ints
    created_ns: Ints
    started_ns: Ints
    ended_ns: Ints
    state: Ints

    def take(self, rows: Any) -> "Rows":
        """Some rows: indices, or a mask."""
        return Rows(*(column[rows] for column in self))


class Joined(NamedTuple):
    """All calls of a trace. rows: sorted by call, then rank; first: where each call's rows begin, with the end last.

    Entries in no group (own work; a group nobody names the members of) are in `alone`.
    """

    ranks: tuple[RankTrace, ...]
    groups: tuple[Group, ...]
    ops: tuple[str, ...]
    roles: tuple[str, ...]
    dtypes: tuple[str, ...]
    rows: Rows
    first: Ints
    alone: Rows

    @property
    def calls(self) -> int:
        return len(self.first) - 1

    def op(self, name: str) -> int:
        """The place of an op's name; -2 when no call has it."""
        return self.ops.index(name) if name in self.ops else -2


def join(trace: Trace, shift_ns: dict[int, int] | None = None) -> Joined:
    """The calls of all ranks. shift_ns: by place of a record, what to add to its times to be on one clock."""
    groups: dict[tuple[str, str, tuple[int, ...]], int] = {}
    known: list[dict[int, int]] = []
    ops: dict[str, int] = {}
    roles: dict[str, int] = {}
    dtypes: dict[str, int] = {}
    parts: list[list[Ints]] = []
    for who, rank in enumerate(trace.ranks):
        calls = rank.calls
        places = []
        for name in calls.groups:
            members = rank.head.groups.get(name, ())
            if len(members) < 2:
                places.append(-1)
                continue
            place = groups.setdefault((rank.head.unit, name, members), len(groups))
            if place == len(known):
                known.append({})
            known[place].setdefault(rank.head.rank, who)
            places.append(place)
        shift = (shift_ns or {}).get(who, 0)
        parts.append(
            [
                np.full(len(calls), who, np.int64),
                _mapped(calls.group, places),
                _mapped(calls.op, [ops.setdefault(word, len(ops)) for word in calls.ops]),
                _mapped(calls.role, [roles.setdefault(word, len(roles)) for word in calls.roles]),
                _mapped(calls.dtype, [dtypes.setdefault(word, len(dtypes)) for word in calls.dtypes]),
                calls.sequence,
                calls.S_bytes,
                calls.step,
                calls.peer,
                unix_ns(rank, calls.created_ns, shift),
                unix_ns(rank, calls.started_ns, shift),
                unix_ns(rank, calls.ended_ns, shift),
                calls.state.astype(np.int64),
            ]
        )
    # A rank that belongs to a group and made no call in it is one the others may be waiting for.
    for who, rank in enumerate(trace.ranks):
        for name, members in rank.head.groups.items():
            place = groups.get((rank.head.unit, name, members), -1)
            if place >= 0:
                known[place].setdefault(rank.head.rank, who)
    columns = _together(parts)
    named = tuple(Group(*key, known[place]) for key, place in groups.items())
    sides = {name: code for name, code in ops.items() if name in P2P}
    outside = (columns.group < 0) | np.isin(columns.op, [ops.get(LOCAL, -2), ops.get(LEAVING, -2)])
    alone = columns.take(outside)
    kept, first = _by_call(columns, ~outside, trace.ranks, sides)
    return Joined(trace.ranks, named, tuple(ops), tuple(roles), tuple(dtypes), kept, first, alone)


def moved(joined: Joined, shift_ns: dict[int, int]) -> Joined:
    """The same calls with the times of each record moved. Which calls are one does not depend on times."""
    if not any(shift_ns.values()):
        return joined
    by = np.asarray([shift_ns.get(place, 0) for place in range(len(joined.ranks))], np.int64)

    def all_of(rows: Rows) -> Rows:
        times = (rows.created_ns, rows.started_ns, rows.ended_ns)
        created, started, ended = (np.where(time > 0, time + by[rows.who], 0) for time in times)
        return rows._replace(created_ns=created, started_ns=started, ended_ns=ended)

    return joined._replace(rows=all_of(joined.rows), alone=all_of(joined.alone))


def _mapped(codes: npt.NDArray[np.int32], places: list[int]) -> Ints:
    return np.asarray(places or [0], np.int64)[codes]


def _together(parts: list[list[Ints]]) -> Rows:
    """Columns of all records; each part is let go as it is used: a million calls are 100 MB."""
    found = []
    for place in range(len(Rows._fields)):
        found.append(np.concatenate([part[place] for part in parts]) if parts else np.zeros(0, np.int64))
        for part in parts:
            part[place] = found[-1][:0]
    return Rows(*found)


def unix_ns(rank: RankTrace, times: Ints, shift: int = 0) -> Ints:
    """Unix ns of a column by the rank's anchors; 0 stays 0."""
    anchors = rank.anchors or (rank.head.anchor,)
    at = np.asarray([anchor.monotonic_ns for anchor in anchors], np.int64)
    offset = np.asarray([anchor.unix_ns - anchor.monotonic_ns for anchor in anchors], np.int64)
    moved = times + offset[np.maximum(np.searchsorted(at, times, side="right") - 1, 0)] + shift
    return np.where(times > 0, moved, 0)


def _by_call(
    rows: Rows, inside: npt.NDArray[np.bool_], ranks: tuple[RankTrace, ...], sides: dict[str, int]
) -> tuple[Rows, Ints]:
    """Rows of calls, sorted so that those of one call are together, and where each call begins."""
    if not inside.all():
        rows = rows.take(inside)
    if not len(rows.who):
        return rows, np.zeros(1, np.int64)
    number, far = rows.sequence, np.full(len(rows.who), -1, np.int64)  # both ends of a message, as one number
    p2p = np.isin(rows.op, list(sides.values()))
    if p2p.any():
        world = np.asarray([rank.head.rank for rank in ranks], np.int64)[rows.who]
        sends = rows.op == sides.get("send", -2)
        src, dst = np.where(sends, world, rows.peer), np.where(sends, rows.peer, world)
        far = np.where(p2p, (src + 1) * 2**21 + dst + 1, -1)
        number = np.where(p2p, _nth(rows.who, rows.group, far, p2p), number)
    order = np.lexsort((rows.who, number, far, rows.group))
    number, far = number[order], far[order]
    rows = rows.take(order)
    new = np.ones(len(number), bool)
    new[1:] = (np.diff(rows.group) != 0) | (np.diff(far) != 0) | (np.diff(number) != 0)
    return rows, np.append(np.flatnonzero(new), len(number)).astype(np.int64)


def _nth(who: Ints, group: Ints, far: Ints, p2p: npt.NDArray[np.bool_]) -> Ints:
    """The how-manieth message of its rank in its group between its two ends, from 0, in the order of the record."""
    count = np.zeros(len(who), np.int64)
    places = np.flatnonzero(p2p)
    order = places[np.lexsort((places, far[places], group[places], who[places]))]
    new = np.ones(len(order), bool)
    new[1:] = (np.diff(who[order]) != 0) | (np.diff(group[order]) != 0) | (np.diff(far[order]) != 0)
    begin = np.flatnonzero(new)
    count[order] = np.arange(len(order)) - np.repeat(begin, np.diff(np.append(begin, len(order))))
    return count

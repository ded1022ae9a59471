"""How far did each rank get? Per group and member: calls enqueued, calls completed, and what is still open."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from linkwise.trace.calls import DONE, FAILED, SCHEDULED, STARTED
from linkwise.trace.clocks import TOGETHER
from linkwise.trace.joined import P2P, Joined

# Backends whose calls complete on a device, so that a rank's "completed" is its device's and not the caller's return.
ON_DEVICE = ("nccl", "rccl", "xccl", "hccl")


class Progress(NamedTuple):
    """Of one member of one group. Numbers of calls in the group; -1 = none. enqueued: the last it entered; started:
    the last its device began, as far as is recorded; completed: the last it is done with; open: rows of `Joined.rows`
    it has not come out of, oldest first. counted: by the recorder's own watermarks, which also know calls that are no
    longer in the record."""

    who: int
    enqueued: int
    started: int
    completed: int
    open: tuple[int, ...]
    counted: bool


Board = dict[int, dict[int, Progress]]  # by group, by world rank


class Stall(NamedTuple):
    """A group somebody is stuck in. oldest: number of the oldest call a member is open in, which is the one that is
    stuck; call: of the calls that members stand in, each in its own oldest, the furthest."""

    group: int
    oldest: int
    call: int


def stalls(joined: Joined, board: Board) -> list[Stall]:
    """Groups with open calls."""
    found = []
    for place, members in board.items():
        stands = [int(joined.rows.sequence[one.open[0]]) for one in members.values() if one.open]
        if stands:
            found.append(Stall(place, min(stands), max(stands)))
    return found


def moving(joined: Joined, board: Board) -> dict[str, str]:
    """Units whose calls went on while their records were taken, with what shows it, in words.

    Either a recorder says so; or a member is done with a call that another, by its own count at that moment, had not
    entered yet: it did so later, as no call is over anywhere before everybody entered it.
    """
    found = {
        rank.head.unit: f"calls of rank {rank.head.rank} ended between its recorder's last look and its dump"
        for rank in joined.ranks
        if rank.pace == "moving"
    }
    rows = joined.rows
    whole = (rows.state == DONE) & np.isin(rows.op, [joined.op(name) for name in TOGETHER])
    last = np.full(len(joined.groups), -1, np.int64)
    np.maximum.at(last, rows.group[whole], rows.sequence[whole])
    for place, members in board.items():
        late = [rank for rank, one in members.items() if one.counted and 0 <= one.enqueued < last[place]]
        group = joined.groups[place]
        if late and group.unit not in found:
            found[group.unit] = (
                f"call {last[place]} of group {group.key} is over, which rank {late[0]} had not entered when its record"
                " was taken"
            )
    return found


def progress(joined: Joined) -> Board:
    """Progress of every member on every group of collectives."""
    rows = joined.rows
    p2p = np.isin(rows.op, [joined.op(name) for name in P2P])
    marks = {
        (place, who): mark
        for place, group in enumerate(joined.groups)
        for who in group.known.values()
        for mark in joined.ranks[who].marks
        if mark.group == group.key
    }
    found: Board = {place: {} for place in range(len(joined.groups))}
    last: dict[tuple[int, int], int] = {}
    done: dict[tuple[int, int], int] = {}
    begun: dict[tuple[int, int], int] = {}
    left: dict[tuple[int, int], list[int]] = {}
    here = np.flatnonzero(~p2p)
    order = here[np.lexsort((rows.sequence[here], rows.who[here], rows.group[here]))]
    group, who = rows.group[order], rows.who[order]
    begins = [0, *(np.flatnonzero((np.diff(group) != 0) | (np.diff(who) != 0)) + 1).tolist()] if len(order) else []
    for begin, end in pairwise([*begins, len(order)]):
        mine = order[begin:end]
        key = int(group[begin]), int(who[begin])
        last[key] = int(rows.sequence[mine[-1]])
        state = rows.state[mine]
        started = mine[(state == STARTED) | (rows.started_ns[mine] > 0)]
        begun[key] = int(rows.sequence[started[-1]]) if len(started) else -1
        pending = mine[(state == STARTED) | (state == SCHEDULED) | (state == FAILED)]
        if len(pending):
            left[key] = pending.tolist()
            done[key] = int(rows.sequence[pending[0]]) - 1
        else:
            done[key] = int(rows.sequence[mine[state == DONE][-1]])
    messages = set(rows.group[p2p].tolist()) - set(group.tolist())  # counts of sends and receives say nothing of peers
    for place, one in enumerate(joined.groups):
        if place in messages:
            continue
        for rank, who_ in one.known.items():
            mark = marks.get((place, who_))
            key = place, who_
            enqueued, started, completed = last.get(key, -1), begun.get(key, -1), done.get(key, -1)
            if mark is not None:
                enqueued, started, completed = max(enqueued, mark.enqueued), max(started, mark.started), mark.completed
            found[place][rank] = Progress(
                who_, enqueued, started, completed, tuple(left.get(key, ())), mark is not None
            )  # fmt: skip
    return found


def fronts(joined: Joined) -> dict[int, int]:
    """By record, the row of `Joined.rows` it stands in: of those it has not come out of one its device has begun, else
    the oldest; what was enqueued behind waits for it."""
    rows = joined.rows
    pending = np.flatnonzero(rows.state != DONE)
    created = np.where(rows.created_ns > 0, rows.created_ns, np.iinfo(np.int64).max)
    order = pending[np.lexsort((rows.sequence[pending], created[pending], rows.state[pending] != STARTED))]
    found: dict[int, int] = {}
    for row, who in zip(order.tolist(), rows.who[order].tolist(), strict=True):
        found.setdefault(who, row)
    return found


def on_device(joined: Joined, who: int) -> bool:
    """Whether a record's calls run on a device."""
    return joined.ranks[who].head.transport.lower().startswith(ON_DEVICE)

"""How far did each rank get? Per group and member: calls enqueued, calls completed, and what is still open."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from linkwise.trace.calls import DONE, FAILED, SCHEDULED, STARTED
from linkwise.trace.joined import P2P, Joined

# Backends whose calls complete on a device, so that a rank's "completed" is its device's and not the caller's return.
ON_DEVICE = ("nccl", "rccl", "xccl", "hccl")


class Progress(NamedTuple):
    """Of one member of one group. Numbers of calls in the group; -1 = none. enqueued: the last it entered; completed:
    the last it is done with; open: rows of `Joined.rows` it has not come out of, oldest first. counted: by the
    recorder's own watermarks, which also know calls that are no longer in the record."""

    who: int
    enqueued: int
    completed: int
    open: tuple[int, ...]
    counted: bool


Board = dict[int, dict[int, Progress]]  # by group, by world rank


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
            enqueued, completed = last.get((place, who_), -1), done.get((place, who_), -1)
            if mark is not None:
                enqueued, completed = max(enqueued, mark.enqueued), mark.completed
            found[place][rank] = Progress(
                who_, enqueued, completed, tuple(left.get((place, who_), ())), mark is not None
            )
    return found


def on_device(joined: Joined, who: int) -> bool:
    """Whether a record's calls run on a device."""
    return joined.ranks[who].head.transport.lower().startswith(ON_DEVICE)


def waiting(joined: Joined, who: int, board: Board) -> bool:
    """Whether a record ends inside a call, a message or an operation."""
    rank = joined.ranks[who].head.rank
    if any(rank in members and members[rank].who == who and members[rank].open for members in board.values()):
        return True
    rows, alone = joined.rows, joined.alone
    p2p = (rows.who == who) & (rows.state != DONE)
    return bool(p2p.any() or ((alone.who == who) & (alone.state == STARTED)).any())

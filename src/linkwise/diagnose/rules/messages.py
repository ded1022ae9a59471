"""Sends and receives that do not come to an end: who is waited for? `hang.py` asks; no rule by itself."""

from collections.abc import Iterator

import numpy as np

from linkwise.diagnose.case import Case
from linkwise.diagnose.progress import on_device
from linkwise.diagnose.rules.whereabouts import Why, cut_before
from linkwise.diagnose.types import Finding
from linkwise.trace.calls import DONE, SCHEDULED, STARTED
from linkwise.trace.clocks import from_the_first
from linkwise.trace.joined import P2P

MOST = 8  # waits that are told of one rank


def _open(case: Case) -> list[int]:
    """Rows of messages that are not over and whose peer is known."""
    rows = case.joined.rows
    p2p = np.isin(rows.op, [case.joined.op(name) for name in P2P])
    found = np.flatnonzero(p2p & (rows.state != DONE) & (rows.peer >= 0)).tolist()
    return [row for row in found if case.joined.ranks[int(rows.who[row])].head.unit not in case.moving]


def awaited(case: Case, gone: set[int]) -> dict[int | tuple[str, int], list[Why]]:
    """Who is waited for in a message and waits for nothing itself, by place, or has no record, by unit and rank.
    gone: records of ranks that are known to stand still."""
    joined = case.joined
    places = {(rank.head.unit, rank.head.rank): place for place, rank in enumerate(joined.ranks)}
    found: dict[int | tuple[str, int], list[Why]] = {}
    for row in _open(case):
        far = _far_end(case, row)
        if far is not None and joined.rows.state[far] == DONE:
            continue  # it was there
        who, peer = int(joined.rows.who[row]), int(joined.rows.peer[row])
        unit = joined.ranks[who].head.unit
        place = places.get((unit, peer))
        if who in gone or (place is not None and place in case.waiting):
            continue
        key: int | tuple[str, int] = (unit, peer) if place is None else place
        op = joined.ops[joined.rows.op[row]]
        there = "has no record" if place is None else "waits for nothing"
        why = found.setdefault(key, [])
        one = Why(f"{case.name(who)} waits in a {op} with rank {peer}, which {there}", -1, op == "recv")
        if len(why) < MOST and one not in why:
            why.append(one)
    return found


def _far_end(case: Case, row: int) -> int | None:
    """The other end of a message, where it is on record and certain: both records have all of their messages."""
    joined = case.joined
    call = int(np.searchsorted(joined.first, row, side="right")) - 1
    ends = range(int(joined.first[call]), int(joined.first[call + 1]))
    whole = case.once("whole messages", lambda: from_the_first(joined))
    return next((end for end in ends if end != row), None) if len(ends) == 2 and whole[list(ends)].all() else None


def stuck_on_device(case: Case) -> tuple[dict[int, list[str]], dict[int, list[str]]]:
    """Records that stand in a message whose other end is over, and in one whose other end has begun while theirs has
    not: why, in words. Where devices carry messages, and both records have them all, so that it is known which two are
    one."""
    rows, joined = case.joined.rows, case.joined
    ended: dict[int, list[str]] = {}
    started: dict[int, list[str]] = {}
    for row in _open(case):
        who, other = int(rows.who[row]), _far_end(case, row)
        if case.fronts.get(who) != row or other is None or not on_device(joined, who):
            continue
        op, far = joined.ops[rows.op[row]], case.name(int(rows.who[other]))
        over = rows.state[other] == DONE and not cut_before(case, who, int(rows.ended_ns[other]))
        begun = rows.state[other] == STARTED and rows.state[row] == SCHEDULED
        if over:
            text = f"{case.name(who)} stands in a {op}: {far} is done with it, and its own device does not end it"
            ended.setdefault(who, []).append(text)
        elif begun and _tells_starts(case, who):
            text = f"{case.name(who)} stands in a {op}: {far} is in it, and its own device has not begun it"
            started.setdefault(who, []).append(text)
    return ended, started


def _tells_starts(case: Case, who: int) -> bool:
    """Whether a record says what its device began. A group's own count does not where its last calls are messages."""
    rows = case.joined.rows
    begun = (rows.who == who) & ((rows.started_ns > 0) | (rows.state == STARTED))
    return bool(begun.any()) or any(mark.started >= 0 for mark in case.joined.ranks[who].marks)


def unmoved(case: Case) -> Iterator[Finding]:
    """Messages both of whose ends wait: for each other's turn, or for the bytes."""
    joined = case.joined
    rows, opened = joined.rows, _open(case)
    if not opened:
        return
    places = {(rank.head.unit, rank.head.rank): place for place, rank in enumerate(joined.ranks)}
    waits = {
        int(rows.who[row]): (row, places.get((joined.ranks[rows.who[row]].head.unit, int(rows.peer[row])), -1))
        for row in opened
        if case.fronts.get(int(rows.who[row])) == row
    }
    call = np.repeat(np.arange(joined.calls), np.diff(joined.first))
    lines = [
        f"{case.name(who)} stands in a {joined.ops[rows.op[row]]} with rank {int(rows.peer[row])}"
        for who, (row, _) in sorted(waits.items())
    ]
    ring = _ring({who: peer for who, (_, peer) in waits.items()})
    same = [who for who in ring if call[waits[who][0]] == call[waits[ring[(ring.index(who) + 1) % len(ring)]][0]]]
    if ring and not same:
        yield Finding(
            class_="control_divergence",
            summary="ranks wait for each other in different messages: " + ", ".join(case.name(who) for who in ring),
            cause="software",
            confidence=0.7,
            evidence=tuple(lines[:MOST]),
            next="py-spy dump of these ranks: the first decision that differs is above these calls",
            recovery="restart group",
        )
    elif lines:
        yield Finding(
            class_="hang",
            summary=f"{lines[0]}, and no message moves: nobody is known to be behind",
            confidence=0.5,
            decided=False,
            evidence=tuple(lines[:MOST]),
            would_decide="stacks of these ranks; device and network counters of their hosts",
            next="nvidia-smi -q and the NIC counters of every host; py-spy dump of every rank",
            recovery="restart group",
        )


def _ring(waits: dict[int, int]) -> list[int]:
    """Records of which each waits for the next, and the last for the first; [] when there are none."""
    for start in sorted(waits):
        path, here = [start], waits[start]
        while here in waits and here not in path:
            path.append(here)
            here = waits[here]
        if here in path:
            return path[path.index(here) :]
    return []

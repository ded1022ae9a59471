"""Where is a rank that others wait for and that is in no call? Still at work, past a call it left out, or without work.

None of this is a rule by itself: `hang.py` asks.
"""

from typing import Literal, NamedTuple

import numpy as np

from linkwise.diagnose.case import Case
from linkwise.diagnose.places import whole
from linkwise.trace.events import RankTrace
from linkwise.trace.facts import Fact
from linkwise.trace.joined import P2P

NEAR = 64  # calls of a record's end that are looked at
REGULAR = 3  # stretches of equal length, for a shorter one to be odd


class Why(NamedTuple):
    """Somebody waits for a rank. group: place in `Joined.groups`, -1 = in a message; begins: the call is one that the
    awaited rank begins (it sends, or has what the others are to get), so that without work it rightly makes none."""

    text: str
    group: int
    begins: bool


def work(case: Case, place: int, why: list[Why]) -> Literal["some", "none", "unknown"]:
    """Whether a rank that others wait for has anything to do. Who begins with nothing is idle, and not at fault."""
    if not all(one.begins for one in why) or complaints(case):
        return "some"
    rows = case.joined.rows
    mine = rows.who == place
    got, gave = (int((mine & (rows.op == case.joined.op(op))).sum()) for op in reversed(P2P))
    if got > gave:
        return "some"  # it has something that it has not passed on
    unit = case.joined.ranks[place].head.unit
    records = [rank for rank in case.joined.ranks if rank.head.unit == unit]
    if any(_open_step(rank) for rank in records):
        return "some"
    return "none" if any(_ends_known(rank) for rank in records) else "unknown"


def complaints(case: Case) -> bool:
    """Whether anything says that requests or calls wait."""
    if any(case.facts(kind) for kind in ("watchdog", "error", "exit", "missing")):
        return True
    latest: dict[tuple[object, ...], Fact] = {}
    for fact in case.facts("gauge", "serve.running", "serve.waiting"):
        key = fact.name, fact.host, fact.rank, fact.label("engine"), fact.label("dp")
        before = latest.get(key)
        if before is None or (fact.unix_ns, whole(fact, "snapshot")) >= (before.unix_ns, whole(before, "snapshot")):
            latest[key] = fact
    return any(fact.value > 0 for fact in latest.values())


def in_step(case: Case, place: int) -> bool:
    """Whether a record ends inside a step."""
    return _open_step(case.joined.ranks[place])


def _ends_known(rank: RankTrace) -> bool:
    return any(batch.ended_ns for batch in rank.batches)


def _open_step(rank: RankTrace) -> bool:
    return bool(rank.batches) and not rank.batches[-1].ended_ns and (_ends_known(rank) or len(rank.batches) == 1)


def alike(case: Case, group: int) -> bool:
    """Whether the last calls of a group are all alike, so that one more or less shows in no other way."""
    rows = case.joined.rows
    here = np.flatnonzero(rows.group == group)
    near = here[rows.sequence[here] > int(rows.sequence[here].max(initial=0)) - NEAR]
    return all(len(np.unique(column[near])) < 2 for column in (rows.op, rows.S_bytes, rows.dtype, rows.role))


def left_out(case: Case, place: int, group: int) -> str:
    """In words, where a rank made fewer calls of a group than it always does, and went on; "" when it did not, or lost
    calls hide it."""
    key = case.joined.groups[group].key
    rank = case.joined.ranks[place]
    peers = [case.joined.ranks[who] for who in case.joined.groups[group].known.values() if who != place]
    return _short_step(rank, peers, key) or _short_stretch(rank, peers, key)


def _unbroken(rank: RankTrace, key: str) -> bool:
    """Whether the end of a record has all of its calls of a group, by their numbers."""
    calls = rank.calls
    if key not in calls.groups:
        return False
    numbers = calls.sequence[calls.group == calls.groups.index(key)][-4 * NEAR :]
    return bool((np.diff(numbers) == 1).all())


def _short_step(rank: RankTrace, peers: list[RankTrace], key: str) -> str:
    """A step that a rank is through with fewer calls than a peer made in it."""
    mine = _per_step(rank, key)
    over = {batch.step for batch in rank.batches if batch.ended_ns} | {step for step in mine if step < max(mine)}
    for peer in peers:
        theirs = _per_step(peer, key)
        for step in sorted(over & set(mine) & set(theirs)):
            if step != min(mine) and step != min(theirs) and mine[step] < theirs[step]:
                return (
                    f"in step {step} rank {rank.head.rank} made {mine[step]} calls of group {key} and went on, rank"
                    f" {peer.head.rank} made {theirs[step]}"
                )
    return ""


def _per_step(rank: RankTrace, key: str) -> dict[int, int]:
    """Calls of a group by step, of those near a record's end; the first step may be cut."""
    if not _unbroken(rank, key):
        return {}
    calls = rank.calls
    steps = calls.step[calls.group == calls.groups.index(key)][-4 * NEAR :]
    numbers, counts = np.unique(steps[steps >= 0], return_counts=True)
    return dict(zip(numbers.tolist(), counts.tolist(), strict=True))


def _short_stretch(rank: RankTrace, peers: list[RankTrace], key: str) -> str:
    """A stretch between two calls of another group in which a rank made fewer calls than in all others, while no peer
    has such a stretch."""
    for other in rank.calls.groups:
        if other == key or len(rank.head.groups.get(other, ())) < 2 or not _unbroken(rank, other):
            continue
        short = _odd(_stretches(rank, key, other))
        if short and not any(_odd(_stretches(peer, key, other)) for peer in peers):
            return (
                f"between two calls of group {other} rank {rank.head.rank} made {short[0]} of group {key}, before and"
                f" after always {short[1]}"
            )
    return ""


def _stretches(rank: RankTrace, key: str, other: str) -> list[int]:
    """Numbers of calls of one group between calls of another, near a record's end."""
    calls = rank.calls
    if other not in calls.groups or not _unbroken(rank, key):
        return []
    mine = np.cumsum(calls.group == calls.groups.index(key))
    at = mine[calls.group == calls.groups.index(other)][-NEAR:]
    return np.diff(at).tolist()  # type: ignore[no-any-return]


def _odd(stretches: list[int]) -> tuple[int, int] | None:
    """The one stretch that is shorter, and the length of all others."""
    usual = max(stretches, default=0)
    short = [one for one in stretches if one != usual]
    return (short[0], usual) if len(short) == 1 and len(stretches) > REGULAR else None

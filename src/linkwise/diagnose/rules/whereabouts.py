"""Where is a rank that others wait for and that is in no call? Still at work, past a call it left out, or without work.

None of this is a rule by itself: `hang.py` asks.
"""

from collections import Counter
from typing import Literal, NamedTuple

import numpy as np

from linkwise.diagnose.case import Case
from linkwise.diagnose.places import whole
from linkwise.trace.calls import Ints
from linkwise.trace.events import RankTrace
from linkwise.trace.facts import Fact
from linkwise.trace.joined import P2P
from linkwise.trace.readers import flight_recorder

NEAR = 64  # calls of a record's end that are looked at
POLL_NS = 200_000_000  # a watchdog looks for completed calls every 0.1 s: two ranks may know of one so far apart
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
    if case.told_to_stand:
        return True
    latest: dict[tuple[object, ...], Fact] = {}
    for fact in case.facts("gauge", "serve.running", "serve.waiting"):
        key = fact.name, fact.host, fact.rank, fact.label("engine"), fact.label("dp")
        before = latest.get(key)
        if before is None or (fact.unix_ns, whole(fact, "snapshot")) >= (before.unix_ns, whole(before, "snapshot")):
            latest[key] = fact
    return any(fact.value > 0 for fact in latest.values())


def perhaps_moving(case: Case, silent: set[int]) -> set[str]:
    """Units that may as well have been on their way when their recorders were read, which know no ends of calls
    (gloo's) or not that they stood: there several ranks are between calls, or one that nobody waits for is, or the one
    that is awaited may wait in a message, which gloo's recorder does not keep. silent: records that others wait for and
    that wait for nothing."""
    found = set()
    groups = case.joined.groups
    used = set(case.joined.rows.group.tolist())
    recorded = {groups[place].members for place in used}
    for unit in {rank.head.unit for rank in case.joined.ranks} if not case.told_to_stand else ():
        here = [place for place, rank in enumerate(case.joined.ranks) if rank.head.unit == unit]
        ranks = [case.joined.ranks[place] for place in here]
        if any(rank.format != flight_recorder.FORMAT or rank.only_open or _tells(rank) for rank in ranks):
            continue
        free = [place for place in here if place not in case.waiting and place not in silent]
        whole = {
            place
            for place in here
            if all(members in recorded for members in _smaller(case.joined.ranks[place]))
            and len(case.joined.ranks[place].calls)
        }
        mine = silent & set(here)
        if whole & set(free) or len(mine) > 1 or mine - whole:
            found.add(unit)
    return found


def _tells(rank: RankTrace) -> bool:
    """Whether a recorder tells when calls ended, or that its rank stood."""
    return bool(rank.pace) if rank.polled else bool(rank.calls.ended_ns.any())


def _smaller(rank: RankTrace) -> list[tuple[int, ...]]:
    """Groups of a rank that are not of all ranks."""
    return [members for members in rank.head.groups.values() if 1 < len(members) < rank.head.world]


def cut_before(case: Case, place: int, ended_ns: int) -> bool:
    """Whether a record may have been taken before it could know of a call that was over elsewhere at that moment.

    One in which no call ended in its last tenth of a second was taken when its rank stood.
    """
    if case.joined.ranks[place].pace == "still":
        return False
    return int(case.once("newest", lambda: _newest(case))[place]) <= ended_ns + POLL_NS


def _newest(case: Case) -> Ints:
    """By record, the last time at which something is known to have happened there."""
    rows = case.joined.rows
    found = np.zeros(len(case.joined.ranks), np.int64)
    np.maximum.at(found, rows.who, np.maximum(rows.created_ns, rows.ended_ns))
    return found


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
    return _uneven(case, place, group, more=False)


def made_twice(case: Case, place: int, group: int) -> str:
    """In words, where a rank made more calls of a group than it always does; "" when it did not."""
    return _uneven(case, place, group, more=True)


def _uneven(case: Case, place: int, group: int, *, more: bool) -> str:
    key = case.joined.groups[group].key
    rank = case.joined.ranks[place]
    peers = [case.joined.ranks[who] for who in case.joined.groups[group].known.values() if who != place]
    return _uneven_step(rank, peers, key, more=more) or _uneven_stretch(rank, peers, key, more=more)


def message_left_out(case: Case, place: int) -> str:
    """In words, where a rank that sends and receives in turn made two of one kind in a row; "" when it did not."""
    calls = case.joined.ranks[place].calls
    kinds = [calls.ops.index(op) if op in calls.ops else -1 for op in P2P]
    ops = calls.op[np.isin(calls.op, kinds)][-4 * NEAR :]
    for kind, name in zip(kinds, P2P, strict=True):
        between = {0: np.diff(np.cumsum(ops == kind)[ops != kind]).tolist()}
        odd = _odd(between, more=False)
        if odd:
            other = P2P[1 - P2P.index(name)]
            return (
                f"between two messages ({other}) rank {case.joined.ranks[place].head.rank} made {odd[0]} {name}, before"
                f" and after always {odd[1]}"
            )
    return ""


def _unbroken(rank: RankTrace, key: str) -> bool:
    """Whether the end of a record has all of its calls of a group, by their numbers."""
    calls = rank.calls
    if key not in calls.groups:
        return False
    numbers = calls.sequence[calls.group == calls.groups.index(key)][-4 * NEAR :]
    return bool((np.diff(numbers) == 1).all())


def _over(rank: RankTrace, counts: dict[int, int]) -> set[int]:
    """Steps a record is through."""
    return {batch.step for batch in rank.batches if batch.ended_ns} | {step for step in counts if step < max(counts)}


def _uneven_step(rank: RankTrace, peers: list[RankTrace], key: str, *, more: bool) -> str:
    """A step with fewer calls, or more, than a peer made in it; who made fewer is through with it."""
    mine = _per_step(rank, key)
    for peer in peers:
        theirs = _per_step(peer, key)
        few, many, over = (theirs, mine, _over(peer, theirs)) if more else (mine, theirs, _over(rank, mine))
        for step in sorted(over & set(mine) & set(theirs)):
            if step != min(mine) and step != min(theirs) and few[step] < many[step]:
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


def _uneven_stretch(rank: RankTrace, peers: list[RankTrace], key: str, *, more: bool) -> str:
    """A stretch between two calls of another group, or two messages, in which a rank made fewer calls, or more, than in
    all others, while no peer has such a stretch."""
    for other in rank.calls.groups:
        if other == key or len(rank.head.groups.get(other, ())) < 2 or not _unbroken(rank, other):
            continue
        odd = _odd(_stretches(rank, key, other), more=more)
        if odd and not any(_odd(_stretches(peer, key, other), more=more) for peer in peers):
            return (
                f"between two calls of group {other} rank {rank.head.rank} made {odd[0]} of group {key}, before and"
                f" after always {odd[1]}"
            )
    return ""


def _stretches(rank: RankTrace, key: str, other: str) -> dict[int, list[int]]:
    """Numbers of calls of one group between calls of another, near a record's end, by the kinds of the two: from a recv
    to a send is another part of a step than from there to the next."""
    calls = rank.calls
    if other not in calls.groups or not _unbroken(rank, key):
        return {}
    mine = np.cumsum(calls.group == calls.groups.index(key))
    at = np.flatnonzero(calls.group == calls.groups.index(other))[-NEAR:]
    kinds = calls.op[at[:-1]] * len(calls.ops) + calls.op[at[1:]]
    lengths = np.diff(mine[at])
    return {int(kind): lengths[kinds == kind].tolist() for kind in np.unique(kinds)}


def _odd(stretches: dict[int, list[int]], *, more: bool) -> tuple[int, int] | None:
    """The one stretch of its kind that is shorter, or longer, and the length of all others."""
    for lengths in stretches.values():
        usual, votes = Counter(lengths).most_common(1)[0] if lengths else (0, 0)
        if votes == len(lengths) - 1 and len(lengths) > REGULAR:
            odd = next(one for one in lengths if one != usual)
            if (odd > usual) == more:
                return odd, usual
    return None

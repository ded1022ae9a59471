"""Somebody waits for good: for whom?

Observed on labelled dumps and true by the meaning of a collective: a call cannot complete anywhere before every member
has entered it. So a member whose *completed* count is behind its peers' has a device that does not go on; one whose
*entered* count is behind and that waits for nothing itself has a host that does not go on; and a member without a
record, that everybody with one waits for, is where nobody could look. Those who wait elsewhere are passed through.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from linkwise.diagnose.case import Case, ranks_text
from linkwise.diagnose.progress import Progress, on_device, waiting
from linkwise.diagnose.types import DRIVER, Cause, Class, Fault, Finding
from linkwise.trace.calls import DONE
from linkwise.trace.facts import Fact
from linkwise.trace.joined import P2P

POLL_NS = 200_000_000  # a watchdog looks for completed calls every 0.1 s: two ranks may know of one so far apart


class Stall(NamedTuple):
    """A group somebody is stuck in. call: number of the newest call a member is open in."""

    group: int
    call: int


def stalls(case: Case) -> list[Stall]:
    """Groups with open calls."""
    rows = case.joined.rows
    found = []
    for place, members in case.board.items():
        open_rows = [row for one in members.values() for row in one.open]
        if open_rows:
            found.append(Stall(place, max(int(rows.sequence[row]) for row in open_rows)))
    return found


def find(case: Case) -> Iterator[Finding]:
    """Ranks that others wait for without end; a hang in which nobody is behind, as not decided."""
    stuck = stalls(case)
    told = _told(case)
    yield from told.values()
    device = _behind_on_device(case)
    silent, alone = _silent(case, stuck)
    absent = _absent(case, stuck, {*device, *silent})
    messages = _messages(case)
    for place, why in messages.items():
        if isinstance(place, int):
            silent.setdefault(place, []).extend(why)
    if not (device or silent or absent):
        # Messages wait along a whole pipeline: a missing record matters only where nobody else explains them.
        absent = {place: why for place, why in messages.items() if not isinstance(place, int)}
    reporter = _reporter(case, stuck)
    for place, why in device.items():
        yield _finding(case, place, why, "device_error", "device", reporter)
    for place, why in silent.items():
        if place not in device:
            yield _finding(case, place, why, "stopped_rank", "host", reporter)
    for (unit, rank), why in absent.items():
        yield _absent_finding(case, unit, rank, why, reporter)
    if not (device or silent or absent or told):
        if alone:
            yield alone[0]
        elif stuck:
            yield from _undecided(case, stuck, reporter)


def _told(case: Case) -> dict[int, Finding]:
    """What a driver of ours saw of its ranks' processes: their state and their end, from outside."""
    found: dict[int, Finding] = {}
    places = {(rank.head.unit, rank.head.rank): place for place, rank in enumerate(case.joined.ranks)}
    for fact in (*case.facts("missing", "stopped", "slow"), *case.facts("exit", "dead")):
        place = places.get((fact.label("unit"), fact.rank))
        if place is None or not fact.label("unit"):
            continue
        kind: Class = "dead_rank" if fact.kind == "exit" else "stopped_rank"
        found[place] = Finding(
            class_=kind,
            summary=f"{case.name(place)}: {_WORDS[kind]}",
            original_fault=case.fault(place),
            cause="host",
            first_reporter=DRIVER,
            confidence=0.8 if fact.name == "slow" else 0.9,
            evidence=(fact.text,),
            next=_NEXT[kind],
            recovery="restart group",
        )
    return found


def _behind_on_device(case: Case) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for place, members in case.board.items():
        counted = {rank: one for rank, one in members.items() if one.counted and on_device(case.joined, one.who)}
        most = max((one.completed for one in counted.values()), default=-1)
        for rank, one in counted.items():
            if one.completed < most and one.enqueued > one.completed and not _ended_before(case, place, one, most):
                ahead = ranks_text([r for r, other in counted.items() if other.completed == most])
                found.setdefault(one.who, []).append(
                    f"{_group(case, place)}: rank {rank} completed call {one.completed} of {one.enqueued} enqueued,"
                    f" {ahead} completed {most}"
                )
    return found


def _ended_before(case: Case, place: int, one: Progress, most: int) -> bool:
    """Whether a record ends before it could know of what its peers completed: dumps are not taken at one moment.

    A record of open calls alone is written by a tool that saw the hang; there nothing is known of completed calls.
    """
    rows = case.joined.rows
    if case.joined.ranks[one.who].only_open:
        return False
    mine = rows.who == one.who
    newest = max(int(rows.created_ns[mine].max(initial=0)), int(rows.ended_ns[mine].max(initial=0)))
    theirs = (rows.group == place) & (rows.sequence > one.completed) & (rows.sequence <= most) & (rows.who != one.who)
    ended = rows.ended_ns[theirs & (rows.ended_ns > 0)]
    return bool(len(ended)) and newest <= int(ended.min()) + POLL_NS


def _silent(case: Case, stuck: list[Stall]) -> tuple[dict[int, list[str]], list[Finding]]:
    """Members that do not come; and where most of a group does not, that the few in the call may be the odd ones."""
    found: dict[int, list[str]] = {}
    alone: list[Finding] = []
    for stall in stuck:
        members = case.board[stall.group]
        behind = {
            rank: one
            for rank, one in members.items()
            if one.enqueued < stall.call and not one.open and not waiting(case.joined, one.who, case.board)
        }
        inside = [rank for rank, other in members.items() if other.open]
        if len(behind) > max(1, len(inside)):
            alone.append(_ahead(case, stall, inside, list(behind)))
            continue
        for rank, one in behind.items():
            found.setdefault(one.who, []).append(
                f"{_group(case, stall.group)}: {ranks_text(inside)} in call {stall.call}, rank {rank} entered"
                f" {one.enqueued if one.enqueued >= 0 else 'none'} and waits for nothing"
            )
    return found, alone


def _ahead(case: Case, stall: Stall, inside: list[int], behind: list[int]) -> Finding:
    where = f"call {stall.call} of {_group(case, stall.group)}"
    return Finding(
        class_="hang",
        summary=f"{ranks_text(inside)} entered {where}, which the other {len(behind)} did not: a call too many there,"
        " or all the others stand still",
        confidence=0.5,
        decided=False,
        evidence=(f"{where}: {ranks_text(behind)} did not enter it and wait for nothing",),
        would_decide="stacks of a rank of each kind, or the plan of this step",
        next="py-spy dump of a rank of each kind: did the others mean to make this call?",
        recovery="restart group",
    )


def _messages(case: Case) -> dict[int | tuple[str, int], list[str]]:
    """Who is waited for in a send or a receive that is not over, and waits for nothing itself or has no record."""
    joined = case.joined
    rows = joined.rows
    places = {(rank.head.unit, rank.head.rank): place for place, rank in enumerate(joined.ranks)}
    p2p = np.isin(rows.op, [joined.op(name) for name in P2P])
    found: dict[int | tuple[str, int], list[str]] = {}
    for row in np.flatnonzero(p2p & (rows.state != DONE) & (rows.peer >= 0)).tolist():
        who, peer = int(rows.who[row]), int(rows.peer[row])
        unit = joined.ranks[who].head.unit
        place = places.get((unit, peer))
        if place is not None and waiting(joined, place, case.board):
            continue
        key: int | tuple[str, int] = (unit, peer) if place is None else place
        there = "has no record" if place is None else "waits for nothing"
        why = found.setdefault(key, [])
        if len(why) < 8:
            why.append(f"{case.name(who)} waits in a {joined.ops[rows.op[row]]} with rank {peer}, which {there}")
    return found


def _absent(case: Case, stuck: list[Stall], known: set[int]) -> dict[tuple[str, int], list[str]]:
    """Members without a record that a stuck group lacks, where no known one explains it."""
    found: dict[tuple[str, int], list[str]] = {}
    for stall in stuck:
        group = case.joined.groups[stall.group]
        explained = any(one.who in known or one.enqueued < stall.call for one in case.board[stall.group].values())
        if group.missing and not explained:
            for rank in group.missing:
                found.setdefault((group.unit, rank), []).append(
                    f"{_group(case, stall.group)}: every rank with a record entered call {stall.call};"
                    f" rank {rank} has no record"
                )
    # A missing rank is missing from every group: those that only share groups with it are not named beside it.
    most = max((len(why) for why in found.values()), default=0)
    return {key: why for key, why in found.items() if len(why) == most}


def _undecided(case: Case, stuck: list[Stall], reporter: str) -> Iterator[Finding]:
    crossed = _crossed(case, stuck)
    if crossed:
        yield crossed
        return
    stall = stuck[0]
    members = case.board[stall.group]
    inside = [rank for rank, one in members.items() if one.open]
    yield Finding(
        class_="hang",
        summary=f"{ranks_text(inside)} entered call {stall.call} of {_group(case, stall.group)} and none left it:"
        " enqueued everywhere, not completed",
        first_reporter=reporter,
        confidence=0.5,
        decided=False,
        evidence=tuple(f"{_group(case, one.group)}: all entered call {one.call}" for one in stuck[:8]),
        would_decide="device and network counters of these ranks (Xid, throttle, link errors), or stacks of their"
        " processes; dumps that also hold completed calls",
        next="nvidia-smi -q and the IB counters of every host; py-spy dump of every rank",
        recovery="restart group",
    )


def _crossed(case: Case, stuck: list[Stall]) -> Finding | None:
    """Ranks that wait for each other in different groups: they took different decisions."""
    waits: dict[int, tuple[int, set[int]]] = {}
    for stall in stuck:
        members = case.board[stall.group]
        for one in members.values():
            mine = int(case.joined.rows.sequence[one.open[0]]) if one.open else -1
            behind = {other.who for other in members.values() if other.enqueued < mine}
            if behind:
                waits[one.who] = (stall.group, behind)
    for who in waits:
        path, here = [who], who
        while here in waits and len(path) <= len(waits) + 1:
            here = next(iter(sorted(waits[here][1])))
            if here in path:
                ring = path[path.index(here) :]
                where = [f"{case.name(one)} in {_group(case, waits[one][0])}" for one in ring]
                return Finding(
                    class_="control_divergence",
                    summary="ranks wait for each other in different groups: " + ", ".join(where),
                    cause="software",
                    confidence=0.7,
                    evidence=tuple(where),
                    next="py-spy dump of these ranks: the first decision that differs is above these calls",
                    recovery="restart group",
                )
            path.append(here)
    return None


def _finding(case: Case, place: int, why: list[str], kind: Class, cause: Cause, reporter: str) -> Finding:
    gone = _exit_of(case, case.joined.ranks[place].head.rank)
    if gone and kind == "stopped_rank":
        kind = "dead_rank"
    return Finding(
        class_=kind,
        summary=f"{case.name(place)}: {_WORDS[kind]}",
        original_fault=case.fault(place),
        cause=cause,
        first_reporter=reporter,
        confidence=0.95 if len(why) > 1 else 0.85,
        evidence=(*([gone.text] if gone else []), *why[:6]),
        next=_NEXT[kind],
        recovery="restart group",
    )


_WORDS: dict[str, str] = {
    "device_error": "its device does not complete what its peers completed",
    "stopped_rank": "others wait for it and it waits for nothing: its process does not go on",
    "dead_rank": "its process ended while others waited",
}
_NEXT: dict[str, str] = {
    "device_error": "dmesg | grep -i xid and nvidia-smi -q on its host",
    "stopped_rank": "py-spy dump --pid of this rank; cat /proc/PID/status (State: T is stopped)",
    "dead_rank": "its log's last lines and dmesg (out of memory, Xid) on its host",
}


def _absent_finding(case: Case, unit: str, rank: int, why: list[str], reporter: str) -> Finding:
    gone = _exit_of(case, rank)
    closed = [fact.text for fact in case.facts("error", "peer_closed")][:2]
    return Finding(
        class_="dead_rank",
        summary=f"rank {rank} has no record and every other member of its groups waits for it",
        original_fault=Fault(ranks=(rank,), unit=unit),
        cause="host",
        first_reporter=reporter,
        confidence=0.9 if gone or closed else 0.75,
        evidence=(*([gone.text] if gone else []), *why[:6], *closed),
        would_decide="" if gone else "its process's state: it may have died, or live and not be able to write",
        next=f"the log of rank {rank}, and whether its process still runs",
        recovery="restart group",
    )


def _exit_of(case: Case, rank: int) -> Fact | None:
    return next((fact for fact in case.facts("exit") if fact.rank == rank), None)


def _reporter(case: Case, stuck: list[Stall]) -> str:
    """Who complained first: a watchdog or an error where its time is known, else who is stuck longest."""
    said = [fact for kind in ("watchdog", "error") for fact in case.facts(kind) if fact.rank >= 0]
    timed = sorted((fact for fact in said if fact.unix_ns), key=lambda fact: fact.unix_ns) or said
    if timed:
        return f"rank {timed[0].rank} ({timed[0].kind})"
    rows = case.joined.rows
    since = [
        (int(rows.created_ns[row]), rank)
        for stall in stuck
        for rank, one in case.board[stall.group].items()
        for row in one.open[:1]
        if rows.created_ns[row] > 0
    ]
    return f"rank {min(since)[1]} (waits longest)" if since else ""


def _group(case: Case, place: int) -> str:
    group = case.joined.groups[place]
    members = ranks_text(list(group.members))
    return f"group {group.key} ({members})"

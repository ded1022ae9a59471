"""Somebody waits for good: for whom?

Observed on labelled dumps and true by the meaning of a collective: a call cannot complete anywhere before every member
has entered it. So a member whose *completed* count is behind its peers', or that has not *started* what they started,
has a device that does not go on; one whose *entered* count is behind and that waits for nothing itself has a host that
does not go on; and a member without a record, that everybody with one waits for, is where nobody could look. Those who
wait elsewhere are passed through.
"""

from collections.abc import Iterator

import msgspec
import numpy as np

from linkwise.diagnose.case import Case, ranks_text
from linkwise.diagnose.progress import Progress, on_device
from linkwise.diagnose.rules import absent, departed, messages, nobody, unread, whereabouts
from linkwise.diagnose.rules.whereabouts import Why
from linkwise.diagnose.timing import ROOTED
from linkwise.diagnose.types import DRIVER, Cause, Class, Finding
from linkwise.trace.facts import Fact

_ALIKE = "the group's calls are all alike: their count does not tell a call left out from one not reached"
_EVEN = "its peers in collectives are as far as it is: it may have left a message out, before its record begins"


def find(case: Case) -> Iterator[Finding]:
    """Ranks that others wait for without end; a hang in which nobody is behind, as not decided."""
    told = _told(case)
    yield from told.values()
    behind = _behind_on_device(case)
    idle = {place: why for place, why in _not_started(case).items() if place not in behind}
    over, begun = messages.stuck_on_device(case)
    behind = {**over, **behind}
    idle = {place: why for place, why in (begun | idle).items() if place not in behind}
    # One that is stopped, or has ended, inside a call is no witness that others keep it waiting.
    gone = {*told, *(place for place in range(len(case.joined.ranks)) if _end(case, place))}
    silent, alone = _silent(case, gone)
    lacking = absent.of_groups(case, {*behind, *idle, *silent})
    waits = messages.awaited(case, gone | {*over})
    for place, why in waits.items():
        if isinstance(place, int):
            silent.setdefault(place, []).extend(why)
    known = bool(behind or idle or silent)
    if not known and not lacking:
        # Messages wait along a whole pipeline: a missing record matters only where nobody else explains them.
        lacking = {place: [one.text for one in why] for place, why in waits.items() if not isinstance(place, int)}
    reporter = _reporter(case)
    for place, texts in (behind | idle).items():
        yield _finding(case, place, texts, "device_error", "device", reporter, _IDLE if place in idle else "")
    still = {place: why for place, why in silent.items() if place not in behind and place not in idle}
    early = [place for place in still if place not in told and _ends_early(case, place)]
    ended = {place: [one.text for one in still[place]] for place in early}
    if ended:
        yield unread.of_ends(case, ended, reporter)
    stand = {
        place: list(_silent_findings(case, place, why, reporter)) for place, why in still.items() if place not in ended
    }
    one_left = any(one.class_ == "skipped_collective" for found in stand.values() for one in found)
    maybe = set() if behind or idle or told or one_left else whereabouts.perhaps_moving(case, {*silent})
    between = {place: silent[place] for place in stand if case.joined.ranks[place].head.unit in maybe}
    if between:
        yield nobody.between(case, between, reporter)
    for place, found in stand.items():
        yield from found if place not in between else ()
    yield from absent.each(case, lacking, reporter)
    elsewhere = [] if known or told else list(departed.elsewhere(case, reporter))
    yield from elsewhere
    if not (known or lacking or told or elsewhere):
        yield from alone[:1] or (nobody.all_came(case, reporter) if case.stalls else messages.unmoved(case))


def _end(case: Case, place: int) -> Fact | None:
    """What is known of the end of a record's process."""
    head = case.joined.ranks[place].head
    return absent.exit_of(case, head.unit, head.rank)


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


def _ends_early(case: Case, place: int) -> bool:
    """Whether a record was cut before its rank's last calls, and nothing else tells of its end."""
    return case.joined.ranks[place].cut and _end(case, place) is None


def _behind_on_device(case: Case) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for place, members in case.board.items():
        if case.joined.groups[place].unit in case.moving:
            continue
        counted = {rank: one for rank, one in members.items() if one.counted and on_device(case.joined, one.who)}
        most = max((one.completed for one in counted.values()), default=-1)
        for rank, one in counted.items():
            if one.completed < most and one.enqueued > one.completed and not _ended_before(case, place, one, most):
                ahead = ranks_text([r for r, other in counted.items() if other.completed == most])
                found.setdefault(one.who, []).append(
                    f"{case.group(place)}: rank {rank} completed call {one.completed} of {one.enqueued} enqueued,"
                    f" {ahead} completed {most}"
                )
    return found


def _ended_before(case: Case, place: int, one: Progress, most: int) -> bool:
    """Whether a record ends before it could know of what its peers completed: dumps are not taken at one moment.

    A record of open calls alone is written by a tool that saw the hang; there nothing is known of completed calls.
    """
    if case.joined.ranks[one.who].only_open:
        return False
    begin, end = np.searchsorted(case.joined.rows.group, (place, place + 1))  # they are sorted by group
    rows = case.joined.rows.take(slice(int(begin), int(end)))
    theirs = (rows.sequence > one.completed) & (rows.sequence <= most) & (rows.who != one.who) & (rows.ended_ns > 0)
    ended = rows.ended_ns[theirs]
    return bool(len(ended)) and whereabouts.cut_before(case, one.who, int(ended.min()))


def _not_started(case: Case) -> dict[int, list[str]]:
    """Members that enqueued a call their peers' devices are in, and whose own device is in nothing else and has not
    begun it. Most members must be in it: where few are, it is not said who is the odd one.

    A recorder that tells no starts (NCCL without timing) says nothing here: its calls are scheduled until the end.
    """
    found: dict[int, list[str]] = {}
    rows = case.joined.rows
    for stall in case.stalls:
        members = case.board[stall.group]
        for number in dict.fromkeys((stall.oldest, stall.call)):
            begun = [rank for rank, one in members.items() if one.started >= number or one.completed >= number]
            rest = {
                rank: one
                for rank, one in members.items()
                if one.enqueued >= number > max(one.started, one.completed)
                and (one.started >= 0 or one.completed < 0)
                and on_device(case.joined, one.who)
            }
            inside = [rank for rank in begun if members[rank].completed < number]
            few = len(rest) >= len(begun) and len(members) > 2
            if not inside or few:
                continue
            for rank, one in rest.items():
                front = case.fronts.get(one.who)
                here = front is None or (rows.group[front] == stall.group and rows.sequence[front] == number)
                if here:
                    found.setdefault(one.who, []).append(
                        f"{case.group(stall.group)}: {ranks_text(inside)} started call {number} and"
                        f" {'is' if len(inside) == 1 else 'are'} in it, rank {rank} enqueued it and its device has not"
                        " begun it"
                    )
    return found


def _silent(case: Case, gone: set[int]) -> tuple[dict[int, list[Why]], list[Finding]]:
    """Members that do not come; and where most of a group does not, that the few in the call may be the odd ones.
    gone: records of ranks that are known to stand still."""
    found: dict[int, list[Why]] = {}
    alone: list[Finding] = []
    rows, ops = case.joined.rows, case.joined.ops
    for stall in case.stalls:
        members = case.board[stall.group]
        behind = {
            rank: one
            for rank, one in members.items()
            if one.enqueued < stall.call and not one.open and one.who not in case.waiting
        }
        inside = [rank for rank, other in members.items() if other.open and other.who not in gone]
        if not inside:
            continue
        if len(behind) > max(1, len(inside)):
            twice = {members[rank].who: whereabouts.made_twice(case, members[rank].who, stall.group) for rank in inside}
            alone.extend(departed.repeated(case, who, stall, text) for who, text in twice.items() if text)
            alone.append(nobody.ahead(case, stall, inside, list(behind)))
            continue
        rooted = {ops[rows.op[members[rank].open[0]]] for rank in inside} <= {*ROOTED} and len(behind) == 1
        for rank, one in behind.items():
            text = (
                f"{case.group(stall.group)}: {ranks_text(inside)} in call {stall.call}, rank {rank} entered"
                f" {one.enqueued if one.enqueued >= 0 else 'none'} and waits for nothing"
            )
            found.setdefault(one.who, []).append(Why(text, stall.group, rooted))
    return found, alone


def _silent_findings(case: Case, place: int, why: list[Why], reporter: str) -> Iterator[Finding]:
    """A rank that others wait for and that waits for nothing: it stands still, left out a call, or has no work."""
    texts = [one.text for one in why]
    if _end(case, place) is None:
        work = whereabouts.work(case, place, why)
        if work == "none":
            return
        if work == "unknown":
            yield _idle_or_stopped(case, place, texts, reporter)
            return
        groups = [one.group for one in why if one.group >= 0]
        if not groups and (gap := whereabouts.message_left_out(case, place)):
            yield departed.skipped(case, place, [gap, *texts], reporter)
            return
        if not groups and _even(case, place) and not whereabouts.in_step(case, place):
            found = _finding(case, place, texts, "stopped_rank", "host", reporter, _EITHER)
            rank = case.joined.ranks[place].head.rank
            yield _open(found, f"a stack of rank {rank}: inside its step, or back in its loop", _EVEN)
            return
        place_of_gap = next((gap for group in groups if (gap := whereabouts.left_out(case, place, group))), "")
        if place_of_gap:
            yield departed.skipped(case, place, [place_of_gap, *texts], reporter)
            return
        if groups and all(whereabouts.alike(case, group) for group in groups) and not whereabouts.in_step(case, place):
            found = _finding(case, place, texts, "stopped_rank", "host", reporter, _EITHER)
            rank = case.joined.ranks[place].head.rank
            yield _open(found, f"a stack of rank {rank}: inside its step, or back in its loop with a call left out")
            return
    yield _finding(case, place, texts, "stopped_rank", "host", reporter)


def _even(case: Case, place: int) -> bool:
    """Whether others that a rank makes collectives with came as far and wait for nothing either: one that stands still
    holds them up."""
    groups = [members for members in case.board.values() if any(one.who == place for one in members.values())]
    peers = {one.who for members in groups for one in members.values()} - {place}
    return bool(peers) and not peers & case.waiting


def _open(found: Finding, would_decide: str, why: str = _ALIKE) -> Finding:
    """A finding whose rank is certain and whose kind is one of two."""
    more = {"confidence": found.confidence - 0.1, "evidence": (*found.evidence, why), "would_decide": would_decide}
    return msgspec.structs.replace(found, **more)


def _idle_or_stopped(case: Case, place: int, texts: list[str], reporter: str) -> Finding:
    return Finding(
        class_="hang",
        summary=f"others wait for {case.name(place)} to begin, and it is in no call: it has no work to give out, or it"
        " stands still",
        first_reporter=reporter,
        confidence=0.4,
        decided=False,
        evidence=tuple(texts[:6]),
        would_decide="whether requests wait or run (num_requests_waiting, num_requests_running); a stack of this rank:"
        " idle in its loop, or inside a step",
        next=f"py-spy dump of {case.name(place)}",
        recovery="none",
    )


def _finding(
    case: Case, place: int, why: list[str], kind: Class, cause: Cause, reporter: str, words: str = ""
) -> Finding:
    gone = _end(case, place)
    if gone and kind == "stopped_rank":
        kind = "dead_rank"
    return Finding(
        class_=kind,
        summary=f"{case.name(place)}: {words or _WORDS[kind]}",
        original_fault=case.fault(place),
        cause=cause,
        first_reporter=reporter,
        confidence=0.95 if len(why) > 1 else 0.85,
        evidence=(*([gone.text] if gone else []), *why[:6]),
        next=_NEXT[kind],
        recovery="restart group",
    )


_IDLE = "its device does not start what its peers' devices started"
_EITHER = "others wait for it and it waits for nothing: it stands still, or it left out a call and is done"
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


def _reporter(case: Case) -> str:
    """Who complained first: a watchdog or an error where its time is known, else who is stuck longest."""
    said = [fact for kind in ("watchdog", "error") for fact in case.facts(kind) if fact.rank >= 0]
    timed = sorted((fact for fact in said if fact.unix_ns), key=lambda fact: fact.unix_ns) or said
    if timed:
        return f"rank {timed[0].rank} ({timed[0].kind})"
    rows = case.joined.rows
    since = [
        (int(rows.created_ns[row]), rank, case.clocks.island[one.who])
        for stall in case.stalls
        for rank, one in case.board[stall.group].items()
        for row in one.open[:1]
        if rows.created_ns[row] > 0
    ]
    comparable = len({island for _, _, island in since}) == 1
    return f"rank {min(since)[1]} (waits longest)" if comparable else ""

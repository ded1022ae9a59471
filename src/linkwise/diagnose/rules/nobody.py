"""Somebody waits, and the evidence names nobody: what is said then. `hang.py` asks; no rule by itself."""

from collections.abc import Iterator

from linkwise.diagnose.case import Case, ranks_text
from linkwise.diagnose.progress import Stall
from linkwise.diagnose.rules import absent
from linkwise.diagnose.rules.whereabouts import Why
from linkwise.diagnose.types import Finding


def between(case: Case, silent: dict[int, list[Why]], reporter: str) -> Finding:
    """Records of a moment in which the group may stand, or may go on. silent: who is waited for, and why."""
    ranks = [case.joined.ranks[place].head.rank for place in silent]
    return Finding(
        class_="hang",
        summary=f"others wait for {ranks_text(ranks)}, which {'is' if len(ranks) == 1 else 'are'} in no call on record:"
        " they stand still, or wait in a message that is not on record, or these are records of a group that was going"
        " on",
        first_reporter=reporter,
        confidence=0.4,
        decided=False,
        evidence=tuple(one.text for why in silent.values() for one in why[:2])[:8],
        would_decide="a watchdog's line; or the same dumps some seconds later: with higher numbers, it goes on",
        next=f"py-spy dump of {ranks_text(ranks)}, and second dumps",
        recovery="none",
    )


def ahead(case: Case, stall: Stall, inside: list[int], behind: list[int]) -> Finding:
    """A few ranks in a call that most of the group did not enter."""
    where = f"call {stall.call} of {case.group(stall.group)}"
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


def all_came(case: Case, reporter: str) -> Iterator[Finding]:
    """All came and none left. The call that is stuck is the one its members stand in, each of them; what they enqueued
    behind it, in this or in other groups, only waits."""
    crossed = _crossed(case)
    if crossed:
        yield crossed
        return
    if any(absent.waited_for(case, block) for block in absent.blocks(case)):
        return  # that finding says who is not there
    rows = case.joined.rows
    stands: dict[tuple[int, int], list[int]] = {}
    for who, row in case.fronts.items():
        stands.setdefault((int(rows.group[row]), int(rows.sequence[row])), []).append(who)
    whole = {
        (stall.group, number): inside
        for stall in case.stalls
        for number in dict.fromkeys((stall.oldest, stall.call))
        if len(inside := stands.get((stall.group, number), [])) == len(case.joined.groups[stall.group].known)
    }
    # Where no call has all of its members standing in it, the one most of them do.
    found = whole or {
        (stall.group, stall.oldest): [one.who for one in case.board[stall.group].values() if one.open]
        for stall in case.stalls
    }

    def since(call: tuple[int, int]) -> int:
        times = [int(rows.created_ns[case.fronts[who]]) for who in found[call] if who in case.fronts]
        return min((time for time in times if time > 0), default=2**62)

    order = sorted(found, key=lambda call: (since(call), -len(found[call]), call))
    group, number = order[0]
    ranks = [case.joined.ranks[who].head.rank for who in found[order[0]]]
    behind = [stall for stall in case.stalls if stall.group not in {one for one, _ in order}]
    yield Finding(
        class_="hang",
        summary=f"{ranks_text(ranks)} entered call {number} of {case.group(group)} and none left it: "
        + ("enqueued everywhere, not completed" if whole else "its other members stand elsewhere"),
        first_reporter=reporter,
        confidence=0.5,
        decided=False,
        evidence=(
            *(f"{case.group(one)}: all entered call {call} and stand in it" for one, call in order[:6] if whole),
            *(f"{case.group(one.group)}: call {one.oldest} is enqueued behind it" for one in behind[:2]),
        )
        or tuple(f"{case.group(one.group)}: call {one.oldest} is the oldest that is open" for one in case.stalls[:8]),
        would_decide="device and network counters of these ranks (Xid, throttle, link errors), or stacks of their"
        " processes; dumps that also hold completed calls",
        next="nvidia-smi -q and the IB counters of every host; py-spy dump of every rank",
        recovery="restart group",
    )


def _crossed(case: Case) -> Finding | None:
    """Ranks that wait for each other in different groups: they took different decisions."""
    waits: dict[int, tuple[int, set[int]]] = {}
    for stall in case.stalls:
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
                where = [f"{case.name(one)} in {case.group(waits[one][0])}" for one in ring]
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

"""Handoffs as our own ranks recorded them, each rank's part held against its siblings' of the same side.

What a rank does on its own there is found by `pools`; here is what is left: a part that is slow inside its calls,
blocks that come late, attempts nobody answers for.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from linkwise.core.units import show_time
from linkwise.diagnose import chance
from linkwise.diagnose.case import Case
from linkwise.diagnose.rules import pools
from linkwise.diagnose.types import Fault, Finding
from linkwise.trace.events import Handoff

RATIO = 3.0  # times its siblings' that a rank's part takes
LEAST_NS = 5_000_000  # and longer by this: below it threads and clocks decide
FEWEST = 3  # handoffs
USUAL = 0.25  # of its handoffs take no longer than its least: what else the machine does only adds to some
SHARE = 0.5  # of the time from the prompt's end to the KV's arrival


class Part(NamedTuple):
    """One rank's part in one handoff, in Unix ns. place: its record."""

    place: int
    queued_ns: int
    began_ns: int
    ended_ns: int
    row: Handoff


def find(case: Case) -> Iterator[Finding]:
    """Nothing where no record has handoffs."""
    parts = _parts(case)
    if not parts:
        return
    yield from _owners(case, parts)
    if any(True for _ in pools.find(case)):
        return
    slow = _slow(case, parts)
    yield from (_sender(case, place, why) if side == "send" else _taker(case, place, why) for place, side, why in slow)
    if not slow:
        yield from _allocation(case, parts)


def _parts(case: Case) -> dict[tuple[str, str, int], list[Part]]:
    """By unit, request and attempt, what each rank did."""
    found: dict[tuple[str, str, int], list[Part]] = defaultdict(list)
    for place, rank in enumerate(case.joined.ranks):
        shift = case.clocks.shift_ns.get(place, 0)
        for row in rank.handoffs:
            queued, began, ended = (
                rank.unix_ns(at) + shift if at else 0 for at in (row.queued_ns, row.began_ns, row.ended_ns)
            )
            found[rank.head.unit, row.request, row.attempt].append(Part(place, queued, began, ended, row))
    return found


def _slow(case: Case, parts: dict[tuple[str, str, int], list[Part]]) -> list[tuple[int, str, list[str]]]:
    """Records whose part takes much longer than that of their siblings of the same side, handoff by handoff.

    Both ends of a message take as long as the later of the two: of a sender and a taker that are both slow, the one
    that began late is the one that kept the other.
    """
    took: dict[tuple[int, str], list[float]] = defaultdict(list)
    late: dict[tuple[int, str], list[float]] = defaultdict(list)
    charges: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)  # by unit and side
    for (unit, _, _), rows in parts.items():
        sides = {side: [part for part in rows if part.row.side == side] for side in ("send", "take")}
        for side, mine in sides.items():
            first: dict[int, int] = {}  # by island of clocks: beginnings on others are not compared
            for part in mine:
                island = case.clocks.island[part.place]
                first[island] = min(part.began_ns, first.get(island, part.began_ns))
            spent = []
            for part in mine:
                behind = part.began_ns - first[case.clocks.island[part.place]]
                took[part.place, side].append(part.ended_ns - part.began_ns)
                late[part.place, side].append(behind)
                spent.append((behind + part.ended_ns - part.began_ns, part.place))
            if len(spent) > 1:
                (more, who), (less, _) = sorted(spent, reverse=True)[:2]
                charges[unit, side].append((who, float(more - less)))
    late_ns = {key: float(np.median(values)) for key, values in late.items()}
    usual_ns = {key: float(np.quantile(np.add(took[key], late[key]), 0.5)) for key in took}
    least_ns = {key: float(np.quantile(np.add(took[key], late[key]), USUAL)) for key in took}
    found: dict[str, list[tuple[int, list[str]]]] = {"send": [], "take": []}
    for (place, side), time in least_ns.items():
        siblings = [key for key in took if key[1] == side and key[0] != place and _unit(case, key[0], place)]
        if len(took[place, side]) < FEWEST or not siblings:
            continue
        usual = float(np.median([usual_ns[key] for key in siblings]))
        if time < RATIO * usual or time - usual < LEAST_NS:
            continue
        paid = charges[case.joined.ranks[place].head.unit, side]
        charge = sum(more for who, more in paid if who == place)
        by_chance = chance.charged(np.asarray([more for _, more in paid]), charge, 1 + len(siblings))
        if by_chance >= chance.LIKELY and charge < chance.BURST_NS:
            continue
        words = [
            f"{case.name(place)} {side}s a request's KV in {show_time(np.median(took[place, side]) / 1e9)} (median of"
            f" {len(took[place, side])}; {100 * (1 - USUAL):.0f} % of them, with their late beginning, take"
            f" {show_time(time / 1e9)} or more), its siblings in {show_time(usual / 1e9)}",
            f"it begins {show_time(late_ns[place, side] / 1e9)} after the first of them",
        ]
        found[side].append((place, words))
    senders, takers = found["send"], found["take"]
    if senders and takers:
        # A late beginning is the rank's own. Without one it is the side that had more time of its own between calls.
        own = [(place, why) for place, why in takers if late_ns[place, "take"] >= SHARE * usual_ns[place, "take"]]
        if not own and _own_ns(case, takers) > _own_ns(case, senders):
            own = takers
        senders, takers = ([], own) if own else (senders, [])
    return [(place, "send", why) for place, why in senders] + [(place, "take", why) for place, why in takers]


def _own_ns(case: Case, found: list[tuple[int, list[str]]]) -> float:
    """Others' waiting that these records' own time caused, where calls have times."""
    return 0.0 if case.timing is None else max(float(case.timing.held_ns[place]) for place, _ in found)


def _outside(case: Case, place: int) -> bool:
    """Whether a record's handoffs pass mostly outside its calls."""
    times = pools.own_times(case.joined.ranks[place])
    return float(times.own.sum()) >= SHARE * float(times.whole.sum())


def _unit(case: Case, a: int, b: int) -> bool:
    return case.joined.ranks[a].head.unit == case.joined.ranks[b].head.unit


def _sender(case: Case, place: int, why: list[str]) -> Finding:
    return Finding(
        class_="handoff_slow_sender",
        summary=f"{case.name(place)} sends its pieces of the KV much more slowly than its siblings: every handoff ends"
        " with it",
        original_fault=case.fault(place),
        cause="host" if _outside(case, place) else "network",
        first_reporter="decode, which waits for the last piece",
        confidence=0.8,
        evidence=tuple(why),
        next="py-spy dump of this rank during a handoff; its NIC's counters against those of its siblings",
        recovery="none",
    )


def _taker(case: Case, place: int, why: list[str]) -> Finding:
    return Finding(
        class_="handoff_stalled",
        summary=f"decode side: {case.name(place)} takes its pieces of the KV much later than its siblings",
        original_fault=case.fault(place),
        cause="host" if _outside(case, place) else "network",
        first_reporter="prefill, whose blocks stay taken",
        confidence=0.8,
        evidence=tuple(why),
        next="py-spy dump of this rank during a handoff: what it does before it takes",
        recovery="none",
    )


def _allocation(case: Case, parts: dict[tuple[str, str, int], list[Part]]) -> Iterator[Finding]:
    """Time that goes into getting blocks, or into waiting until there are any. Times are those of the end that takes,
    and of whoever has a clock that can be held against it."""
    getting, waiting, whole = [], [], []
    for all_rows in parts.values():
        ends = [one for one in all_rows if one.row.side == "take"] or all_rows
        rows = [one for one in all_rows if case.clocks.island[one.place] == case.clocks.island[ends[0].place]]
        part = max(rows, key=lambda one: one.ended_ns)
        queued = part.queued_ns or part.began_ns
        whole.append(max(1, part.ended_ns - queued))
        getting.append(max(one.row.allocate_ns for one in rows))
        waiting.append(max(0, min(one.began_ns for one in rows) - queued))
    if len(whole) < FEWEST:
        return
    share = sum(getting) / sum(whole)
    if share >= SHARE and float(np.median(getting)) >= LEAST_NS:
        yield Finding(
            class_="handoff_allocation",
            summary=f"allocation on the decode side: {100 * share:.0f} % of the handoffs' time goes into getting"
            " blocks",
            cause="software",
            first_reporter="decode",
            confidence=0.85,
            evidence=(f"{show_time(np.median(getting) / 1e9)} a handoff (median of {len(getting)}) for its blocks",),
            next="how decode finds free blocks: fragmentation, eviction, or a scan of the pool",
            recovery="none",
        )
        return
    if float(np.median(waiting)) >= 1e9 and sum(waiting) >= 0.9 * sum(whole):
        yield Finding(
            class_="decode_starved",
            summary=f"prompts are done and wait {show_time(np.median(waiting) / 1e9)} (median) before their KV moves:"
            " decode has no blocks free, or does not get to take them",
            confidence=0.4,
            decided=False,
            evidence=(f"transfers themselves: {show_time((sum(whole) - sum(waiting)) / len(whole) / 1e9)} a handoff",),
            would_decide="how full decode's KV is at that time (its /metrics)",
            next="/metrics of the decode pool",
            recovery="none",
        )


def _owners(case: Case, parts: dict[tuple[str, str, int], list[Part]]) -> Iterator[Finding]:
    """Attempts that nobody answers for, and later attempts whose KV one side sent and the other never took."""
    ownerless = [key for key, rows in parts.items() if any(not part.row.owner for part in rows)]
    sides = {key: {part.row.side for part in rows} for key, rows in parts.items()}
    whole = any(len(both) == 2 for both in sides.values())
    last: dict[tuple[str, str], int] = {}
    for unit, request, attempt in parts:
        last[unit, request] = max(attempt, last.get((unit, request), 0))
    halves = [key for key, both in sides.items() if whole and len(both) == 1 and key[2] == last[key[:2]] and key[2] > 0]
    lost = [
        (fact.label("request"), fact)
        for fact in case.facts("error", "handoff_orphan", "orphan")
    ]  # fmt: skip
    if not (ownerless or halves or lost):
        return
    shown = [
        f"request {request}, attempt {attempt} of {unit or 'the unit'}: no owner"
        for unit, request, attempt in ownerless
    ]
    shown += [f"request {key[1]}, attempt {key[2]}: only its {next(iter(sides[key]))} side is there" for key in halves]
    shown += [fact.text for _, fact in lost]
    count = len({key[1] for key in [*ownerless, *halves]}) + len(lost)
    yield Finding(
        class_="handoff_ownership",
        summary=f"{count} requests were tried again and nobody answers for them: their blocks stay taken",
        original_fault=Fault(),
        cause="software",
        confidence=0.8,
        evidence=tuple(shown[:8]),
        next="who frees a request's blocks when an attempt fails after the transfer began",
        recovery="reject",
    )

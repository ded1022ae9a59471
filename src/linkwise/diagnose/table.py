"""Every rank in one line: when it came, how long it waited, what it moved, over what, and what went wrong there."""

from collections import Counter

import numpy as np
import numpy.typing as npt

from linkwise.diagnose.case import Case
from linkwise.diagnose.types import Row
from linkwise.trace.calls import Ints
from linkwise.trace.facts import Fact
from linkwise.trace.joined import P2P, Joined


def rows(case: Case) -> tuple[Row, ...]:
    """One row a record, and one for each rank that only logs or monitors speak of, or without saying of which unit."""
    joined, t = case.joined, case.timing
    count = len(joined.ranks)
    who = joined.rows.who
    calls = np.bincount(who, minlength=count)
    sent = np.bincount(who, weights=joined.rows.S_bytes, minlength=count)
    waited = gaps = moved = None
    if t is not None and count:
        call = np.repeat(np.arange(joined.calls), np.diff(joined.first))
        waited = np.bincount(who, weights=t.waited, minlength=count) / 1e9
        gaps = np.bincount(who, weights=np.maximum(t.gap, 0), minlength=count) / 1e9
        # With a member missing, who came last is not known: what follows may be waiting for it.
        there = (t.moved >= 0)[call] & _all_there(joined, t.arrive, call)[call]
        after = np.where((joined.rows.ended_ns > 0) & there, t.leave - np.maximum(t.last[call], t.arrive), 0)
        moved = np.bincount(who, weights=np.maximum(after, 0), minlength=count) / 1e9
    errors, transports, last = _errors(case), _transports(case), _last(case)
    places = _by_record(case, case.facts("place"))
    found = [
        Row(
            unit=rank.head.unit,
            rank=rank.head.rank,
            host=rank.head.host,
            device=rank.head.device,
            calls=int(calls[place]),
            bytes=int(sent[place]),
            late_s=None if t is None else float(t.own_ns[place]) / 1e9,
            waited_s=None if waited is None else float(waited[place]),
            own_s=None if gaps is None else float(gaps[place]),
            moved_s=None if moved is None or rank.polled else float(moved[place]),
            transport=transports.get((place, rank.head.rank), "") or rank.head.transport,
            errors=errors.get((place, rank.head.rank), ()),
            last=last.get(place, ""),
        )
        for place, rank in enumerate(joined.ranks)
    ]
    told = {(-1, fact.rank) for fact in case.evidence.facts if fact.rank >= 0 and not case.records_of(fact)}
    for key in sorted(told | {key for key in (*errors, *transports) if key[0] < 0})[:4096]:
        found.append(
            Row(
                rank=key[1],
                host=next((fact.host for fact in places.get(key, ()) if fact.host), ""),
                device=next((fact.device for fact in places.get(key, ()) if fact.device), ""),
                transport=transports.get(key, ""),
                errors=errors.get(key, ()),
            )
        )
    return tuple(found)


def _all_there(joined: Joined, arrive: Ints, call: Ints) -> npt.NDArray[np.bool_]:
    """Calls of which every member's arrival is known, members without a record too."""
    first = joined.first[:-1]
    sizes = np.asarray([len(group.members) for group in joined.groups], np.int64)
    p2p = np.isin(joined.rows.op[first], [joined.op(name) for name in P2P])
    asked = np.where(p2p, 2, sizes[joined.rows.group[first]])
    found: npt.NDArray[np.bool_] = np.bincount(call, weights=arrive > 0, minlength=joined.calls) >= asked
    return found


Key = tuple[int, int]  # a record, or -1 where no single one is known, and the rank


def _by_record(case: Case, facts: list[Fact]) -> dict[Key, list[Fact]]:
    found: dict[Key, list[Fact]] = {}
    for fact in facts:
        if fact.rank >= 0:
            records = case.records_of(fact)
            found.setdefault((records[0] if len(records) == 1 else -1, fact.rank), []).append(fact)
    return found


def _transports(case: Case) -> dict[Key, str]:
    """What carries calls, the commonest first."""
    return {
        key: ", ".join(kind for kind, _ in Counter(fact.name for fact in facts).most_common(3))
        for key, facts in _by_record(case, case.facts("transport")).items()
    }


def _errors(case: Case) -> dict[Key, tuple[str, ...]]:
    """Names of what went wrong."""
    kinds = ("device", "network", "error", "watchdog", "missing", "exit")
    facts = _by_record(case, [fact for kind in kinds for fact in case.facts(kind)])
    return {key: tuple(dict.fromkeys(fact.name for fact in mine))[:8] for key, mine in facts.items()}


def _last(case: Case) -> dict[int, str]:
    """By record, the call it ends in."""
    joined, rows = case.joined, case.joined.rows
    found = {}
    for who, row in case.fronts.items():
        role = joined.roles[rows.role[row]]
        group = joined.groups[rows.group[row]]
        found[who] = f"{joined.ops[rows.op[row]]} {role or group.key} #{int(rows.sequence[row])}"
    return found

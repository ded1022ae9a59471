"""Every rank in one line: when it came, how long it waited, what it moved, over what, and what went wrong there."""

from collections import Counter

import numpy as np

from linkwise.diagnose.case import Case
from linkwise.diagnose.types import Row
from linkwise.trace.calls import DONE
from linkwise.trace.events import RankTrace


def rows(case: Case) -> tuple[Row, ...]:
    """One row a record, and one for each rank that only logs or monitors speak of."""
    joined, t = case.joined, case.timing
    count = len(joined.ranks)
    who = joined.rows.who
    calls = np.bincount(who, minlength=count)
    sent = np.bincount(who, weights=joined.rows.S_bytes, minlength=count)
    waited = gaps = moved = None
    if t is not None and count:
        call = np.repeat(np.arange(joined.calls), np.diff(joined.first))
        apart = np.where(t.arrive > 0, np.maximum(t.last[call] - t.arrive, 0), 0)
        waited = np.bincount(who, weights=apart, minlength=count) / 1e9
        gaps = np.bincount(who, weights=np.maximum(t.gap, 0), minlength=count) / 1e9
        after = np.where((joined.rows.ended_ns > 0) & (t.arrive > 0), t.leave - np.maximum(t.last[call], t.arrive), 0)
        moved = np.bincount(who, weights=np.maximum(after, 0), minlength=count) / 1e9
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
            moved_s=None if moved is None else float(moved[place]),
            transport=_transport(case, rank),
            errors=_errors(case, rank.head.rank),
            last=_last(case, place),
        )
        for place, rank in enumerate(joined.ranks)
    ]
    named = {rank.head.rank for rank in joined.ranks}
    others = sorted({fact.rank for fact in case.evidence.facts if fact.rank >= 0} - named)
    for rank in others[:4096]:
        places = [fact for fact in case.facts("place") if fact.rank == rank]
        found.append(
            Row(
                rank=rank,
                host=next((fact.host for fact in places if fact.host), ""),
                device=next((fact.device for fact in places if fact.device), ""),
                transport=_transports(case, rank),
                errors=_errors(case, rank),
            )
        )
    return tuple(found)


def _transport(case: Case, rank: RankTrace) -> str:
    return _transports(case, rank.head.rank) or rank.head.transport


def _transports(case: Case, rank: int) -> str:
    kinds = Counter(fact.name for fact in case.facts("transport") if fact.rank == rank)
    return ", ".join(kind for kind, _ in kinds.most_common(3))


def _errors(case: Case, rank: int) -> tuple[str, ...]:
    kinds = ("device", "network", "error", "watchdog", "missing", "exit")
    return tuple(dict.fromkeys(fact.name for kind in kinds for fact in case.facts(kind) if fact.rank == rank))[:8]


def _last(case: Case, place: int) -> str:
    """The call the record ends in."""
    joined = case.joined
    mine = np.flatnonzero((joined.rows.who == place) & (joined.rows.state != DONE))
    if not len(mine):
        return ""
    row = int(mine[np.argmin(joined.rows.sequence[mine])])
    group = joined.groups[joined.rows.group[row]]
    role = joined.roles[joined.rows.role[row]]
    return f"{joined.ops[joined.rows.op[row]]} {role or group.key} #{int(joined.rows.sequence[row])}"

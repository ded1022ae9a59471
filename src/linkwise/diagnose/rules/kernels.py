"""A rank that comes late to its calls, told by how long they take on each member's device, without any clock.

All members leave a call together, so who is in it for the shortest came last. Where all of them came out of the same
call before it, too, they differ by their own doing alone, of device or host. For recorders that note no beginning, but
how long a call ran (PyTorch's flight recorder with TORCH_NCCL_ENABLE_TIMING).
"""

from collections.abc import Iterator

import numpy as np

from linkwise.core.units import show_time
from linkwise.diagnose.case import Case
from linkwise.diagnose.chance import LIKELY
from linkwise.diagnose.rules import late, mismatch
from linkwise.diagnose.rules.cause import NEXT, WORDS, cause_of, low, peers_of
from linkwise.diagnose.timing import Origins
from linkwise.diagnose.types import Finding
from linkwise.trace.calls import DONE, Ints
from linkwise.trace.clocks import TOGETHER


def find(case: Case) -> Iterator[Finding]:
    """Ranks that keep others in calls for a good part of the record, more than chance does."""
    t = case.timing
    if t is None or not any(rank.polled for rank in case.joined.ranks) or mismatch.differing(case):
        return
    origins = _last(case)
    held = np.bincount(origins.who, weights=origins.held_ns, minlength=len(case.joined.ranks)).astype(np.float64)
    times = np.bincount(origins.who, minlength=len(held))
    judged = t._replace(origins=origins, held_ns=held)
    for who in np.argsort(-held, kind="stable").tolist():
        least = max(late.SHARE * t.elapsed_ns, late.LEADER * float(held.max()))
        peers = peers_of(case, who)
        if held[who] < least or times[who] < late.CALLS or not peers or held[who] < late.RATIO * low(held[peers]):
            continue
        if late.charged_by_chance(judged, who, peers) < LIKELY:
            yield _finding(case, who, float(held[who]), int(times[who]), t.elapsed_ns)


def _last(case: Case) -> Origins:
    """By call that all members came to out of one other call: who was in it for the shortest, and how much longer half
    of the members were."""
    joined, rows = case.joined, case.joined.rows
    first, sizes = joined.first[:-1], np.diff(joined.first)
    call = np.repeat(np.arange(joined.calls), sizes)
    polled = np.asarray([rank.polled for rank in joined.ranks], bool)[rows.who]
    before = _before(rows.who, rows.created_ns, call)
    known = polled & (rows.started_ns > 0) & (rows.state == DONE) & (before >= 0)
    known &= np.isin(rows.op, [joined.op(name) for name in TOGETHER])
    members = np.asarray([len(group.members) for group in joined.groups], np.int64)
    good = np.logical_and.reduceat(known, first) & (sizes > 1) & (sizes == members[rows.group[first]])
    good &= np.minimum.reduceat(before, first) == np.maximum.reduceat(before, first)
    good[good] &= rows.group[first[before[first[good]]]] == rows.group[first[good]]
    took = rows.ended_ns - rows.started_ns
    order = np.lexsort((took, call))
    shortest = order[first]
    held = took[order[first + sizes // 2]] - took[shortest]
    good &= held > 0
    return Origins(rows.who[shortest[good]], rows.created_ns[shortest[good]], held[good].astype(np.float64))


def _before(who: Ints, created: Ints, call: Ints) -> Ints:
    """By row the call that its rank enqueued before it, -1 = none."""
    found = np.full(len(who), -1, np.int64)
    order = np.lexsort((created, who))
    same = who[order[1:]] == who[order[:-1]]
    found[order[1:][same]] = call[order[:-1][same]]
    return found


def _finding(case: Case, who: int, held: float, times: int, elapsed: int) -> Finding:
    head = case.joined.ranks[who].head
    cause, evidence = cause_of(case, None, who, held)
    return Finding(
        class_="late_rank",
        summary=f"{case.name(who)} is late by its own doing ({WORDS[cause]})",
        original_fault=case.fault(who),
        cause=cause,
        confidence=min(0.95, 0.6 + held / elapsed),
        waited_s=held / 1e9,
        evidence=(
            f"of calls that followed one of the same group, its device was in {times} for the shortest: it came last",
            f"half of the members were in them {show_time(held / 1e9)} longer, {100 * held / elapsed:.0f} % of the"
            " record",
            *evidence[:5],
        ),
        next=NEXT[cause].format(rank=head.rank, host=head.host or "its host"),
        recovery="restart group" if cause in {"device", "host"} else "none",
    )

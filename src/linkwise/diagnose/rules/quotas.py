"""A CPU quota that stops one rank and not its peers: now and then, so seldom in its usual step, and in calls too."""

from collections.abc import Iterator

from linkwise.core.units import show_time
from linkwise.diagnose.case import Case
from linkwise.diagnose.counters import grown
from linkwise.diagnose.rules.late import RATIO, SHARE
from linkwise.diagnose.types import Finding
from linkwise.trace.facts import Fact


def find(case: Case) -> Iterator[Finding]:
    """Ranks whose quota stopped them for a good part of the record."""
    t = case.timing
    if t is None or len(case.joined.ranks) < 2:
        return
    stopped = _stopped_us(case)
    for who, lost_us in stopped.items():
        if lost_us * 1e3 < SHARE * t.elapsed_ns:
            continue
        rest = max(us for place, us in stopped.items() if place != who)
        if lost_us < RATIO * rest:
            continue
        yield Finding(
            class_="late_rank",
            summary=f"{case.name(who)} is late: its CPU quota stops it",
            original_fault=case.fault(who),
            cause="contention",
            confidence=0.8,
            waited_s=lost_us / 1e6,
            evidence=(
                f"its threads were stopped for {show_time(lost_us / 1e6)} in all, those of others for"
                f" {show_time(rest / 1e6)} at most, in {show_time(t.elapsed_ns / 1e9)} of steps",
            ),
            next=f"cpu.max of its cgroup on {case.joined.ranks[who].head.host or 'its host'}: give it whole cores",
            recovery="none",
        )


def _stopped_us(case: Case) -> dict[int, float]:
    """By record, how long its quota stopped its threads."""
    by_rank: dict[int, list[tuple[Fact, float]]] = {}
    for fact, more in grown(case, "cpu.throttled_us"):
        by_rank.setdefault(fact.rank, []).append((fact, more))
    return {
        place: sum(more for fact, more in by_rank.get(head.rank, ()) if fact.label("unit", head.unit) == head.unit)
        for place, head in enumerate(rank.head for rank in case.joined.ranks)
    }

"""From evidence to findings: every rule, what explains what, and a table of the ranks."""

from collections.abc import Iterator

import msgspec
import numpy as np

from linkwise.core.units import counted, show_time
from linkwise.diagnose.case import Case, ranks_text
from linkwise.diagnose.job import of_one_job
from linkwise.diagnose.rules import RULES, one_look, routes
from linkwise.diagnose.table import rows
from linkwise.diagnose.types import Bad, Class, Finding, Findings
from linkwise.plan.types import Plan
from linkwise.trace.calls import Calls, Ints
from linkwise.trace.clocks import Clocks
from linkwise.trace.gather import Evidence
from linkwise.trace.joined import unix_ns
from linkwise.trace.readers import own

# A finding of the left kind explains those of the right kinds: they are what it looks like from elsewhere.
_MISMATCHES: tuple[Class, ...] = (
    "skipped_collective", "repeated_collective", "reordered_collective",
    "size_mismatch", "dtype_mismatch", "op_mismatch", "control_divergence",
)  # fmt: skip
_STUCK: tuple[Class, ...] = ("network_error", "handoff_stalled", "transport_unexpected")
_GONE: tuple[Class, ...] = ("dead_rank", "stopped_rank", "device_error")


def diagnose(evidence: Evidence, plan: Plan | None = None, *, without: tuple[str, ...] = ()) -> Findings:
    """What is wrong, whose fault it was, and how well that is known. plan: what the run was meant to do. without: rules
    that are not asked."""
    evidence, others = of_one_job(evidence)
    case = Case(evidence, plan)
    found = settle([one for name in RULES if name not in without for one in case.found(name)])
    told = one_look.notes(case)
    return Findings(
        findings=tuple(found),
        ranks=rows(case),
        used=tuple(f"{one.path}: {one.format}" for one in evidence.used),
        unusable=tuple(Bad(path=one.path, reason=one.reason) for one in evidence.unusable),
        clocks=_clocks(case),
        notes=tuple(filter(None, (routes.note(case), *_moving(case), *told, *others, *_notes(evidence))))[:64],
        unread=tuple(_unread(case)),
    )


def _unread(case: Case) -> Iterator[str]:
    """Parts that are not there to be read; a ring that a recorder writes round and round has no beginning by design."""
    ranks = case.evidence.trace.ranks
    for what, gone in (
        ("the end of", [rank for rank in ranks if rank.cut]),
        ("calls of", [rank for rank in ranks if rank.lost and rank.format == own.FORMAT]),
    ):
        if gone:
            units = sorted({rank.head.unit for rank in gone if rank.head.unit})
            whose = f" of {', '.join(units[:4])}" if units and len({rank.head.unit for rank in ranks}) > 1 else ""
            yield f"{what} the record of {ranks_text([rank.head.rank for rank in gone])}{whose}"
    if case.evidence.unusable:
        yield counted(len(case.evidence.unusable), "file")


def _moving(case: Case) -> Iterator[str]:
    """What is not looked for in records of a group that was on its way when they were taken."""
    for unit, why in list(case.moving.items())[:8]:
        yield (
            f"{f'{unit}: ' if unit else ''}these records were taken while calls went on ({why}): calls under way"
            " in them count as no hang. If it hangs now, take them again"
        )


def _notes(evidence: Evidence) -> tuple[str, ...]:
    """Each note once, with the first file it holds for and how many more."""
    paths: dict[str, list[str]] = {}
    for one in evidence.used:
        for note in dict.fromkeys(one.notes):
            paths.setdefault(note, []).append(one.path)
    return tuple(
        f"{mine[0]}{f' and {len(mine) - 1} more' if len(mine) > 1 else ''}: {note}" for note, mine in paths.items()
    )


def since(evidence: Evidence, seconds: float) -> Evidence:
    """What happened in the last seconds of the evidence; what has no time stays."""
    ranks = evidence.trace.ranks
    last = max(
        [int(unix_ns(rank, times).max()) for rank in ranks if len(times := _latest(rank.calls))]
        + [fact.unix_ns for fact in evidence.facts]
        + [span.ended_ns for span in evidence.spans],
        default=0,
    )
    first = last - int(seconds * 1e9)
    kept = []
    for rank in ranks:
        times = _latest(rank.calls)
        inside = (times == 0) | (unix_ns(rank, times) >= first)
        kept.append(msgspec.structs.replace(rank, calls=rank.calls.take(inside)))
    return msgspec.structs.replace(
        evidence,
        trace=msgspec.structs.replace(evidence.trace, ranks=tuple(kept)),
        facts=tuple(fact for fact in evidence.facts if not 0 < fact.unix_ns < first),
        spans=tuple(span for span in evidence.spans if span.ended_ns >= first),
    )


def _latest(calls: Calls) -> Ints:
    latest: Ints = np.maximum(np.maximum(calls.created_ns, calls.started_ns), calls.ended_ns)
    return latest


def settle(found: list[Finding]) -> list[Finding]:
    """Findings without those that another one explains, most certain first."""
    kinds = {one.class_ for one in found if one.decided}
    departed = any(one.class_ in _MISMATCHES for one in found)
    kept: list[Finding] = []
    for one in found:
        if one.class_ == "hang" and (departed or kinds & {*_GONE, *_STUCK}):
            continue
        if one.class_ in _GONE and kinds & {*_MISMATCHES} and one.confidence < 0.95:
            continue  # a rank that went another way looks, from outside, like one that does not come
        if one.class_ == "late_rank" and _same(one, found, (*_GONE, "handoff_slow_sender", "handoff_stalled")):
            continue
        kept.append(one)
    merged: dict[tuple[object, ...], Finding] = {}
    for one in kept:
        key = one.class_, one.original_fault, one.decided
        before = merged.get(key)
        merged[key] = one if before is None else _merged(before, one)
    return sorted(merged.values(), key=lambda one: (not one.decided, -one.confidence, -one.waited_s))


def _merged(a: Finding, b: Finding) -> Finding:
    evidence = tuple(dict.fromkeys(a.evidence + b.evidence))
    return msgspec.structs.replace(a, evidence=evidence, confidence=max(a.confidence, b.confidence))


def _same(one: Finding, found: list[Finding], kinds: tuple[Class, ...]) -> bool:
    return any(
        other.class_ in kinds and other.decided and set(one.original_fault.ranks) <= set(other.original_fault.ranks)
        for other in found
    )


def _clocks(case: Case) -> str:
    """How well the clocks were brought together, and which hosts' could not be."""
    clocks: Clocks = case.clocks
    moved = [abs(shift) for shift in clocks.shift_ns.values() if shift]
    words = [f"{counted(len(moved), 'clock')} moved by up to {show_time(max(moved) / 1e9)}"] if moved else []
    if clocks.refuted:
        words.append(
            f"{_apart(case, clocks.refuted)}: on the clock they share, calls end before others enter them, so each is"
            " taken to have its own"
        )
    unsure = max(clocks.unsure_ns.values(), default=0)
    if clocks.residual_s is not None:
        words.append(f"in step to {show_time(clocks.residual_s)} (median)")
    if unsure:
        words.append(f"as far as the order of calls and messages binds them: within {show_time(unsure / 1e9)}")
    if clocks.apart:
        loose = tuple(place for place in clocks.apart if place not in clocks.one_way)
        if clocks.one_way:
            words.append(
                f"apart: {_apart(case, clocks.one_way)}: calls and messages go one way between them and the others,"
                " which bounds clocks from one side only: who is late across is not said, within each side it is"
            )
        if loose:
            words.append(
                f"apart: {_apart(case, loose)}: nothing binds their clocks to the others', so times across are not"
                " compared"
            )
    return "; ".join(words) or "one clock"


def _apart(case: Case, places: tuple[int, ...]) -> str:
    """Hosts, or ranks of hosts nobody names, of records that are on no clock with the most."""
    ranks: dict[str, list[int]] = {}
    for place in places:
        head = case.joined.ranks[place].head
        ranks.setdefault(" ".join(word for word in (head.unit, head.host) if word), []).append(head.rank)
    shown = [f"{name} ({ranks_text(mine)})" if name else ranks_text(mine) for name, mine in ranks.items()]
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")

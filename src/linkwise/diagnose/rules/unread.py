"""Ranks whose record is there and cannot be used, or ends early: what they did is not known, so none is ever named for
what its record does not show. `hang.py` and `absent.py` ask; no rule by itself."""

from collections.abc import Iterable

from linkwise.diagnose.case import Case, ranks_text
from linkwise.diagnose.types import Fault, Finding
from linkwise.trace.whose import Unusable

MOST = 8  # files that are named


def files(case: Case, unit: str) -> dict[int, Unusable]:
    """By rank of a unit, the file that is its record and cannot be used; a rank with another record is not there."""
    known = {rank.head.rank for rank in case.joined.ranks if rank.head.unit == unit}
    return {
        one.rank: one
        for one in case.evidence.unusable
        if one.rank >= 0 and one.rank not in known and one.unit in (unit, "")
    }


def nameless(case: Case) -> list[Unusable]:
    """Files that are records of ranks nobody knows: any rank without a record may be one of these."""
    return [one for one in case.evidence.unusable if one.record and one.rank < 0]


def hidden(case: Case, unit: str, ranks: Iterable[int]) -> bool:
    """Whether the record of one of some ranks without a record may be a file that cannot be used."""
    return bool(nameless(case)) or bool(set(ranks) & set(files(case, unit)))


def of_files(case: Case, unit: str, waits: dict[int, list[str]], reporter: str) -> Finding:
    """Ranks that others wait for and that have no record, where one of the records could not be used. waits: by
    rank, who waits for it."""
    mine = files(case, unit)
    broken = [rank for rank in waits if rank in mine]
    rest = [rank for rank in waits if rank not in mine]
    unknown = nameless(case) if rest else []
    bad = [*(mine[rank] for rank in broken), *unknown]
    whose = f" of {unit}" if unit else ""
    said = [f"{_records(broken)} cannot be used"] if broken else []
    said += [f"{ranks_text(rest)} {_have(rest)} no record"] if rest else []
    said += ["a file that is a record cannot be used, and nothing says whose it is"] if unknown else []
    return Finding(
        class_="hang",
        summary=f"others wait for {ranks_text(list(waits))}{whose}: {', and '.join(said)}. What happened there is not"
        " known",
        original_fault=Fault(unit=unit),
        first_reporter=reporter,
        confidence=0.4,
        decided=False,
        evidence=(
            *(f"{one.path}: {one.reason}" for one in bad[:MOST]),
            *(line for why in waits.values() for line in why[:2]),
        )[: 2 * MOST],
        would_decide=f"{'this file' if len(bad) == 1 else 'these files'} whole and of this run, copied or written again"
        + (f"; whether the processes of {ranks_text(rest)} still run" if rest else ""),
        next=f"fetch {', '.join(one.path for one in bad[:MOST])} again; py-spy dump of {ranks_text(list(waits))}",
        recovery="none",
    )


def of_ends(case: Case, waits: dict[int, list[str]], reporter: str) -> Finding:
    """Ranks that others wait for as far as their records go, which end early. waits: by record, who waits for it."""
    ranks = [case.joined.ranks[place].head.rank for place in waits]
    units = {case.joined.ranks[place].head.unit for place in waits}
    sources = [case.joined.ranks[place].source for place in waits]
    return Finding(
        class_="hang",
        summary=f"others wait for {ranks_text(ranks)}, and {_records(ranks)} ends early: what happened there after"
        " that is not known",
        original_fault=Fault(unit=units.pop() if len(units) == 1 else ""),
        first_reporter=reporter,
        confidence=0.4,
        decided=False,
        evidence=(
            *(f"{source}: ends in the middle" for source in sources[:MOST] if source),
            *(line for why in waits.values() for line in why[:2]),
        )[: 2 * MOST],
        would_decide="the whole record, copied again; or what the driver saw of these ranks (*.faults.jsonl)",
        next=f"fetch {', '.join(sources[:MOST])} again; py-spy dump of {ranks_text(ranks)}",
        recovery="none",
    )


def _records(ranks: list[int]) -> str:
    return f"the record of {ranks_text(ranks)}"


def _have(ranks: list[int]) -> str:
    return "has" if len(ranks) == 1 else "have"

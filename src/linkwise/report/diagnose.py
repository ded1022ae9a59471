"""Findings on one screen: what is wrong first, then the ranks, then what the answer rests on."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from linkwise.core.units import counted, show_bytes, show_count, show_time
from linkwise.diagnose.types import Finding, Findings, Row
from linkwise.report.text import table

if TYPE_CHECKING:
    from rich.table import Table

ROWS = 12
LINES = 4


def screen(found: Findings, *, every: bool = False) -> Iterator["str | Table"]:
    """every: all evidence and all ranks, where the first screen shows the most telling."""
    yield _headline(found)
    for number, one in enumerate(found.findings, 1):
        yield ""
        yield from _finding(number, one, every)
    if found.ranks:
        yield ""
        yield from _ranks(found, every)
    yield ""
    yield f"clocks: {found.clocks}. read {counted(len(found.used), 'file')}"
    shown = found.unusable if every else found.unusable[:LINES]
    for bad in shown:
        yield f"unusable: {bad.path}: {bad.reason}"
    if len(found.unusable) > len(shown):
        yield f"unusable: {len(found.unusable) - len(shown)} more (--all)"
    for note in found.notes if every else found.notes[:2]:
        yield f"note: {note}"


def _headline(found: Findings) -> str:
    if not found.findings:
        seen = counted(len(found.ranks), "rank") if found.ranks else "the evidence"
        unread = f"; not read: {', '.join(found.unread)}" if found.unread else ""
        return f"no fault found in {seen}{', as far as they were read' if unread and found.ranks else ''}{unread}"
    decided = sum(one.decided for one in found.findings)
    words = (
        [f"{counted(decided, 'fault')} found"]
        if decided
        else ["something is wrong, and the evidence does not say whose fault"]
    )
    if decided and decided < len(found.findings):
        words.append(f"{counted(len(found.findings) - decided, 'question')} left open")
    return ", ".join(words)


def _finding(number: int, one: Finding, every: bool) -> Iterator[str]:
    sure = f"{100 * one.confidence:.0f} %" if one.decided else "not decided"
    yield f"{number}. {one.summary}  [{one.class_.replace('_', ' ')}, {sure}]"
    where = one.original_fault
    place = [text for text in (where.unit, where.device, where.host, where.link) if text]
    if place:
        yield f"   at: {', '.join(place)}"
    lines = one.evidence if every else one.evidence[:LINES]
    for line in lines:
        yield f"   - {line}"
    if len(one.evidence) > len(lines):
        yield f"   - {len(one.evidence) - len(lines)} more (--all)"
    if one.first_reporter:
        yield f"   first reporter: {one.first_reporter}"
    if one.would_decide:
        yield f"   would decide it: {one.would_decide}"
    if one.next:
        yield f"   next: {one.next}"
    if one.recovery and one.recovery != "none":
        yield f"   recovery: {one.recovery}"


def _ranks(found: Findings, every: bool) -> Iterator["str | Table"]:
    blamed = {(one.original_fault.unit, rank) for one in found.findings for rank in one.original_fault.ranks}

    def interest(row: Row) -> tuple[bool, bool, float]:
        return (row.unit, row.rank) not in blamed, not (row.errors or row.last), -(row.late_s or 0.0)

    rows = sorted(found.ranks, key=interest)
    shown = rows if every else rows[:ROWS]
    shown = sorted(shown, key=lambda row: (row.unit, row.rank))
    columns = ["", ">rank", "host", ">calls", ">bytes", ">late", ">waited", ">own", ">moved", "over", "in", "errors"]
    cells = [
        (
            "*" if (row.unit, row.rank) in blamed else "",
            f"{row.unit} {row.rank}".strip(),
            " ".join(word for word in (row.host, row.device) if word),
            show_count(row.calls),
            show_bytes(row.bytes),
            *(_seconds(value) for value in (row.late_s, row.waited_s, row.own_s, row.moved_s)),
            row.transport,
            row.last,
            ", ".join(row.errors),
        )
        for row in shown
    ]
    keep = [
        place for place in range(len(columns)) if place in {1, 3} or any(cell[place] not in {"", "-"} for cell in cells)
    ]
    yield table([columns[place] for place in keep], [[cell[place] for place in keep] for cell in cells])
    if len(rows) > len(shown):
        yield f"{counted(len(rows) - len(shown), 'more rank')}: --all"
    if any(row.late_s for row in shown):
        yield "late: others' waiting that begins with this rank; waited: its own for others; own: between its calls"


def _seconds(value: float | None) -> str:
    return "-" if value is None else show_time(value)

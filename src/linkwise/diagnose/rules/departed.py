"""A rank that left out a call, or made one twice, while others wait: told by counts and by the order of messages.

No rule by itself: `hang.py` asks.
"""

from collections.abc import Iterator

import msgspec

from linkwise.diagnose.case import Case, ranks_text
from linkwise.diagnose.progress import Stall
from linkwise.diagnose.rules import whereabouts
from linkwise.diagnose.types import Finding


def skipped(case: Case, place: int, texts: list[str], reporter: str) -> Finding:
    """A record that left out a call. texts: the evidence; reporter: who complained first."""
    return Finding(
        class_="skipped_collective",
        summary=f"{case.name(place)} left out a call and went on: the others wait in one more than it makes",
        original_fault=case.fault(place),
        cause="software",
        first_reporter=reporter,
        confidence=0.85,
        evidence=tuple(texts[:6]),
        next=f"the code path of {case.name(place)} before this call: it decided otherwise than its peers",
        recovery="restart group",
    )


def repeated(case: Case, place: int, stall: Stall, text: str) -> Finding:
    """A record that made a call once more. stall: where it stands in one the others do not make; text: the evidence."""
    where = f"{case.name(place)} stands in call {stall.call} of {case.group(stall.group)}, which the others do not make"
    found = skipped(case, place, [text, where], "")
    words = f"{case.name(place)} made a call once more than it does, and waits in one that the others do not make"
    return msgspec.structs.replace(found, class_="repeated_collective", summary=words)


def elsewhere(case: Case, reporter: str) -> Iterator[Finding]:
    """Who waits elsewhere, past a call of a group that it left out and others wait in, or past a message."""
    found = False
    for stall in case.stalls:
        members = case.board[stall.group]
        inside = [rank for rank, one in members.items() if one.open]
        for rank, one in members.items():
            if one.enqueued < stall.call and not one.open and one.who in case.waiting:
                gap = whereabouts.left_out(case, one.who, stall.group)
                if gap:
                    where = (
                        f"{case.group(stall.group)}: {ranks_text(inside)} in call {stall.call}, rank {rank} elsewhere"
                    )
                    found = True
                    yield skipped(case, one.who, [gap, where], reporter)
    odd = {place: text for place in sorted(case.waiting) if (text := whereabouts.message_left_out(case, place))}
    if len(odd) == 1 and not found:
        ((place, text),) = odd.items()
        yield skipped(case, place, [text, "all others sent and received in turn"], reporter)

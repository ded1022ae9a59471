"""What a driver of ours saw of its ranks: a line for every group that ended by a fault."""

import re
import signal

from linkwise.core.schema import decode_json
from linkwise.trace.facts import Fact, Kind, quoted
from linkwise.trace.readers.base import Reading, Source
from linkwise.trace.writer import Noted

FORMAT = "linkwise faults"
MAX_LINES = 100_000
_KINDS: dict[str, tuple[Kind, str]] = {
    "dead": ("exit", "dead"),
    "stopped": ("missing", "stopped"),
    "slow": ("missing", "slow"),
}


def recognises(source: Source) -> bool:
    """The first line is one of `trace.writer.note_fault`."""
    return source.head.startswith(b'{"schema":"linkwise.fault/')


def read(source: Source) -> Reading:
    """A fact for every rank a fault names, one without a rank where it names none."""
    facts: list[Fact] = []
    notes: tuple[str, ...] = ()
    for number, line in source.lines():
        if number > MAX_LINES:
            notes = (f"only the first {MAX_LINES} lines are read",)
            break
        one = decode_json(line.encode(), Noted, where=f"{source.where}: line {number}")
        kind, name = _KINDS.get(one.kind, ("error", one.kind))
        facts += [
            Fact(
                kind, name, _code(one.message, rank), rank=rank, unix_ns=one.unix_ns, text=quoted(one.message),
                labels=(("unit", one.unit),), source=f"{source.where}:{number}",
            )
            for rank in one.ranks or (-1,)
        ]  # fmt: skip
    return Reading(facts=tuple(facts), notes=notes)


def _code(message: str, rank: int) -> float:
    """Exit code of a rank as its obituary has it (runtime/ends.py); negative: the signal; 0 = not said."""
    said = re.search(
        rf"\brank {rank} (?:ended with code (\d{{1,3}})|was ended by (SIG\w{{2,10}}|signal \d{{1,3}}))", message
    )
    if said is None:
        return 0.0
    if said[1]:
        return float(said[1])
    named = signal.Signals.__members__.get(said[2])
    return -float(named if named is not None else said[2].rpartition(" ")[2] if " " in said[2] else 0)

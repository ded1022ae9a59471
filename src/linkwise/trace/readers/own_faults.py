"""What a driver of ours saw of its ranks: a line for every group that ended by a fault."""

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
                kind, name, rank=rank, unix_ns=one.unix_ns, text=quoted(one.message), labels=(("unit", one.unit),),
                source=f"{source.where}:{number}",
            )
            for rank in one.ranks or (-1,)
        ]  # fmt: skip
    return Reading(facts=tuple(facts), notes=notes)

"""Which format is this? Evidence recognised by what is in it.

A reader is a module with FORMAT, `recognises(source)` and `read(source)` (see base.py). To add one, write the module
and name it in READERS; order matters only where one format could pass for another.
"""

import time
from importlib import import_module
from typing import cast

from msgspec.structs import replace

from linkwise.core.errors import InputError
from linkwise.trace.facts import quoted
from linkwise.trace.readers.base import Reader, Reading, Source

# Those with a mark of their own first: a profile holds words of a flight recorder's. A reader is imported when it is
# asked, so that none costs the others.
READERS = (
    "own", "own_faults", "straggler", "kineto", "otlp", "flight_recorder", "inspector", "ras", "prometheus",
    "infiniband", "nvidia_smi", "lspci", "tcp", "cgroup",
)  # fmt: skip
# Logs are read by everyone who finds his own lines in them: an engine's log holds NCCL's, torch's and its own.
LOGS = ("nccl_log", "kernel_log", "engine_log", "stacks")


def reader(name: str) -> Reader:
    """The reader of that name, one of READERS."""
    return cast(Reader, import_module(f"linkwise.trace.readers.{name}"))


def recognise(source: Source) -> tuple[Reader, ...]:
    """The first reader whose format this is; for a log, all of them."""
    first = next((one for one in map(reader, READERS) if one.recognises(source)), None)
    return (first,) if first else tuple(one for one in map(reader, LOGS) if one.recognises(source))


def read(source: Source) -> tuple[str, Reading]:
    """What a file is, and what it says. Raises InputError when no format is recognised, or the file is not usable."""
    if not source.head.strip():
        raise InputError("empty", where=source.where, expected="a record, a dump, a log or counters")
    found = recognise(source)
    if not found:
        begins = quoted(source.text[:60]) if source.head.isascii() else "bytes that are no plain text"
        what = "JSON that breaks off" if _broken_off(source) else "no format of evidence recognised"
        raise InputError(
            f"{what}; it begins with {begins!r}", where=source.where,
            expected="one of the formats in docs/evidence.md",
        )  # fmt: skip
    readings, refused = {}, []
    end_s = source.until_cpu_s
    for place, one in enumerate(found):
        # Whoever reads first leaves the others their part of the time.
        source.until_cpu_s = (now := time.process_time()) + (end_s - now) / (len(found) - place)
        try:
            readings[one.FORMAT] = one.read(source)
        except InputError as error:
            refused.append(error)
    if not readings:
        raise refused[0]
    whole = together(*readings.values())
    return ", ".join(readings), replace(whole, notes=(*whole.notes, *source.notes)) if source.notes else whole


def _broken_off(source: Source) -> bool:
    """A file that begins as JSON does and does not end so, as a half-written one. Packed ones are not looked at."""
    if source.packed or not source.text.lstrip().startswith(('{"', "[{", "{\n", "[\n")):
        return False
    last = source.tail(1)[-1][1].rstrip()
    return not last.endswith(("}", "]"))


def together(*readings: Reading) -> Reading:
    """What several readers say of one file, each statement once."""
    if len(readings) == 1:
        return readings[0]
    return Reading(
        ranks=tuple(rank for one in readings for rank in one.ranks),
        facts=tuple(dict.fromkeys(fact for one in readings for fact in one.facts)),
        spans=tuple(dict.fromkeys(span for one in readings for span in one.spans)),
        notes=tuple(dict.fromkeys(note for one in readings for note in one.notes)),
    )

"""Which format is this? Evidence recognised by what is in it.

A reader is a module with FORMAT, `recognises(source)` and `read(source)` (see base.py). To add one, write the module
and name it in READERS; order matters only where one format could pass for another.
"""

from importlib import import_module
from typing import cast

from linkwise.core.errors import InputError
from linkwise.trace.readers.base import Reader, Reading, Source

# Binary formats and those with a mark of their own first; logs, which may hold lines of several, last.
# A reader is imported when it is asked, so that none costs the others.
READERS = ("own", "own_faults", "kineto", "straggler", "flight_recorder")


def reader(name: str) -> Reader:
    """The reader of that name, one of READERS."""
    return cast(Reader, import_module(f"linkwise.trace.readers.{name}"))


def recognise(source: Source) -> Reader | None:
    """The first reader whose format this is."""
    return next((one for one in map(reader, READERS) if one.recognises(source)), None)


def read(source: Source) -> tuple[str, Reading]:
    """What a file is, and what it says. Raises InputError when no format is recognised, or the file is not usable."""
    if not source.head.strip():
        raise InputError("empty", where=source.where, expected="a record, a dump, a log or counters")
    found = recognise(source)
    if found is None:
        raise InputError("no format of evidence recognised", where=source.where, expected="see docs/evidence.md")
    return found.FORMAT, found.read(source)

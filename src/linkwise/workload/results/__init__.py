"""Results of serving benchmarks as rows, whatever tool wrote them: recognised by what is in the file.

A reader of JSON is a module with FORMAT, `recognises(entry)` and `rows(entry)` (see base.py): write it and name it in
READERS. Tables are table.py's.
"""

import json
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from linkwise.core.errors import InputError
from linkwise.core.files import parse_json, read_text
from linkwise.workload.results import table
from linkwise.workload.results.base import Entry, Reader, Unusable
from linkwise.workload.results.types import Groups, LeftOut, Results, Row

__all__ = ["Groups", "LeftOut", "Results", "Row", "read"]

MAX_BYTES = 128 * 2**20  # detailed results hold every answer's text
MAX_LINE_BYTES = 64 * 2**20
MAX_ENTRIES = 1_000_000
READERS = ("guidellm", "sglang_serve", "vllm_serve", "aiperf")
EXPECTED = (
    "results of vllm bench serve, sglang bench_serving, aiperf, genai-perf or guidellm, or a CSV with named columns"
)

Rows = Callable[[Entry], Iterator[Row]]


def read(path: str | Path) -> Results:
    """All rows of a file, and every one that is left out with the reason. Raises InputError for a file that holds no
    results at all, or is not readable."""
    where = str(path)
    text = read_text(path, max_bytes=MAX_BYTES)
    if not text.strip():
        raise InputError("empty", where=where, expected=EXPECTED)
    rows: list[Row] = []
    left_out: list[LeftOut] = []
    formats: dict[str, None] = {}
    for entry, format, take in _json(text, where) if text.lstrip()[0] in "{[" else _table(text, where):
        if take is None:
            left_out.append(LeftOut(where=entry.where, reason=f"not recognised; expected {EXPECTED}"))
            continue
        formats[format] = None
        try:
            rows += take(entry)
        except Unusable as error:
            left_out.append(LeftOut(where=entry.where, reason=str(error)))
    if not formats:
        raise InputError("no results recognised", where=where, expected=EXPECTED)
    return Results(rows=tuple(rows), left_out=tuple(left_out), format=", ".join(formats))


Taken = tuple[Entry, str, Rows | None]


def _table(text: str, where: str) -> Iterator[Taken]:
    format, entries = table.entries(text, where)
    perf = import_module("linkwise.workload.results.aiperf")
    for entry in entries:
        yield entry, format, perf.rows if format == table.PERF_FORMAT else table.rows


def _json(text: str, where: str) -> Iterator[Taken]:
    readers = [cast(Reader, import_module(f"linkwise.workload.results.{name}")) for name in READERS]
    for number, entry in enumerate(_entries(text, where)):
        if number >= MAX_ENTRIES:
            raise InputError(f"more than {MAX_ENTRIES} entries", where=where)
        reader = next((one for one in readers if one.recognises(entry)), None)
        split = getattr(reader, "split", None)
        for one in split(entry) if split else (entry,):
            yield one, reader.FORMAT if reader else "", reader.rows if reader else None


def _entries(text: str, where: str) -> Iterator[Entry]:
    """The objects of a file: one, a list of them, or one a line."""
    lines = text.splitlines()
    first = next(line for line in lines if line.strip())
    if len(lines) > 1 and _whole(first):
        for number, line in enumerate(lines, 1):
            if line.strip():
                if len(line) > MAX_LINE_BYTES:
                    raise InputError(f"more than {MAX_LINE_BYTES} characters", where=f"{where}: line {number}")
                yield _object(parse_json(line, where=f"{where}: line {number}"), f"{where}: line {number}")
        return
    value = parse_json(text, where=where)
    if isinstance(value, list):
        yield from (_object(one, f"{where}: entry {number}") for number, one in enumerate(value))
    else:
        yield _object(value, where)


def _whole(line: str) -> bool:
    """Whether a line is an object of its own, as in JSON lines."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _object(value: Any, where: str) -> Entry:
    return Entry(where, value if isinstance(value, dict) else {})

"""Request traces: Azure's LLM inference CSV (2023), Mooncake's JSON lines with block hashes, and our own columns.

A file is read to a bound, every field is checked, and what cannot be is named by line and field.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from linkwise.core.errors import InputError
from linkwise.core.files import parse_json, read_text
from linkwise.core.printable import clipped
from linkwise.workload.requests import MAX_REQUESTS, Requests, requests
from linkwise.workload.types import MAX_TOKENS

MAX_TRACE_BYTES = 2**30
MOONCAKE_BLOCK = 512  # tokens of a block that has a hash id (mooncake_trace.md in Mooncake's repository)
MAX_HASHES = 200_000  # blocks of one prompt

_KNOWN = (
    "TIMESTAMP,ContextTokens,GeneratedTokens (Azure), arrival_s,input_tokens,output_tokens (CSV), or JSON lines with"
    " timestamp, input_length, output_length and hash_ids (Mooncake) or arrival_s, input_tokens, output_tokens"
)
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_OWN = ("arrival_s", "input_tokens", "output_tokens")
_STAMP = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,9})?(\+00:00|Z)?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,15}", re.ASCII)
_NUMBER = re.compile(r"[+-]?\d{1,15}(\.\d{1,18})?([eE][+-]?\d{1,3})?", re.ASCII)


class _Row(NamedTuple):
    at: float
    input: int
    output: int
    hashes: list[int]


class _Line(msgspec.Struct):
    """A line of JSON: Mooncake's names or ours. Fields nobody here reads are let pass."""

    timestamp: float | None = None
    input_length: int | None = None
    output_length: int | None = None
    arrival_s: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    hash_ids: list[int] = []


def load(path: str | Path, *, most: int = MAX_REQUESTS, longest: int | None = None) -> Requests:
    """The first `most` requests of a trace, from its first arrival on. Raises InputError naming line and field.

    longest: most tokens of a request, prompt and answer; one that has more is refused.
    """
    where = str(path)
    lines = read_text(path, max_bytes=MAX_TRACE_BYTES).splitlines()
    first = next((n for n, line in enumerate(lines) if line.strip()), None)
    if first is None:
        raise InputError("an empty file", where=where, expected="a request trace: " + _KNOWN)
    rows = _json(lines, where) if lines[first].lstrip().startswith("{") else _csv(lines, first, where)
    return _gathered(rows, where, most, longest)


def _gathered(rows: Iterator[tuple[int, _Row]], where: str, most: int, longest: int | None) -> Requests:
    """Rows as arrays; every row is checked, also those after the first `most`."""
    at: list[float] = []
    inputs: list[int] = []
    outputs: list[int] = []
    hashes: list[list[int]] = []
    before, zero = -np.inf, 0.0
    for number, row in rows:
        spot = f"{where}: line {number}"
        if row.at < before:
            raise InputError(
                f"arrival {row.at:g} s is before the line above it ({before:g} s)", where=spot,
                expected="arrivals in order", hint="Sort the trace by time",
            )  # fmt: skip
        for name, value in (("input", row.input), ("output", row.output)):
            if not 1 <= value <= MAX_TOKENS:
                raise InputError(f"{name} length is {value}", where=spot, expected=f"1..{MAX_TOKENS} tokens")
        if longest is not None and row.input + row.output > longest:
            raise InputError(
                f"input length {row.input:,} and output length {row.output:,}", where=spot,
                expected=f"at most {longest:,} tokens in all, the context",
                hint="--long drop leaves such requests out, and says how many",
            )  # fmt: skip
        zero = row.at if before == -np.inf else zero
        before = row.at
        if len(at) < most:
            at.append(row.at - zero)
            inputs.append(row.input)
            outputs.append(row.output)
            hashes.append(row.hashes)
    if not at:
        raise InputError("no request", where=where, expected="at least one")
    block = MOONCAKE_BLOCK if any(hashes) else 0
    # A microsecond, as for drawn arrivals: text holds no more.
    return requests(
        np.round(np.array(at) * 1e6) / 1e6, np.array(inputs, np.int64), np.array(outputs, np.int64),
        hashes if block else None, block, where=where,
    )  # fmt: skip


def _csv(lines: list[str], first: int, where: str) -> Iterator[tuple[int, _Row]]:
    head = [word.strip().strip('"') for word in lines[first].split(",")]
    names = next((n for n in (_AZURE, _OWN) if set(n) <= set(head)), None)
    if names is None:
        raise InputError(
            f"columns {clipped(', '.join(head), 80)}",
            where=f"{where}: line {first + 1}",
            expected="a header: " + _KNOWN,
        )
    twice = next((name for name in names if head.count(name) > 1), None)
    if twice is not None:
        raise InputError(
            f"column {twice} is there twice", where=f"{where}: line {first + 1}", expected="each column once"
        )
    places = [head.index(name) for name in names]
    for number, line in enumerate(lines[first + 1 :], first + 2):
        if not line.strip():
            continue
        words = line.split(",")
        spot = f"{where}: line {number}"
        if len(words) != len(head):
            raise InputError(f"{len(words)} fields", where=spot, expected=f"{len(head)}: {', '.join(head)}"[:200])
        at, new, out = (words[p].strip().strip('"') for p in places)
        seconds = _stamp(at, spot, names[0]) if names is _AZURE else _number(at, spot, names[0])
        yield number, _Row(seconds, _whole(new, spot, names[1]), _whole(out, spot, names[2]), [])


def _stamp(text: str, spot: str, field: str) -> float:
    """Seconds since 1970 of a UTC time."""
    if not _STAMP.fullmatch(text):
        raise InputError(
            f"field {field}: {text[:60]!r}", where=spot, expected="a time such as 2023-11-16 18:17:03.9799600"
        )
    try:
        moment = np.datetime64(text.removesuffix("Z").removesuffix("+00:00"), "ns")
    except ValueError:
        raise InputError(f"field {field}: {text[:60]!r}", where=spot, expected="a time that exists") from None
    return float(moment.astype(np.int64)) / 1e9


def _number(text: str, spot: str, field: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise InputError(f"field {field}: {text[:60]!r}", where=spot, expected="seconds")
    return _seconds(float(text), spot, field)


def _whole(text: str, spot: str, field: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise InputError(f"field {field}: {text[:60]!r}", where=spot, expected="a whole number of tokens")
    return int(text)


def _seconds(value: float, spot: str, field: str) -> float:
    if not 0 <= value < 1e10:
        raise InputError(f"field {field}: {value:g}", where=spot, expected="0 or more")
    return value


def _json(lines: list[str], where: str) -> Iterator[tuple[int, _Row]]:
    decode = msgspec.json.Decoder(_Line).decode
    names = tuple(f'"{name}"' for name in _Line.__struct_fields__)
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        spot = f"{where}: line {number}"
        if "\\" in text or any(text.count(name) > 1 for name in names):
            parse_json(text, where=spot)  # it refuses a field given twice; the decoder takes the last
        try:
            yield number, _of_line(decode(text), spot)
        except msgspec.ValidationError as error:
            raise InputError(f"field {_place(str(error))}", where=spot, expected=_KNOWN) from None
        except (msgspec.DecodeError, RecursionError) as error:
            raise InputError(f"not valid JSON: {error}", where=spot, expected="one object a line") from None


def _place(message: str) -> str:
    reason, _, place = message.partition(" - at `$")
    return f"{place.rstrip('`').lstrip('.') or 'line'}: {reason[:1].lower()}{reason[1:]}"


def _of_line(line: _Line, spot: str) -> _Row:
    ours = line.arrival_s is not None or line.input_tokens is not None
    names = _OWN if ours else ("timestamp", "input_length", "output_length")
    at, new, out = (getattr(line, name) for name in names)
    for name, value in zip(names, (at, new, out), strict=True):
        if value is None:
            raise InputError(f"field {name}: missing", where=spot, expected=_KNOWN)
    hashes: list[Any] = line.hash_ids
    if len(hashes) > MAX_HASHES or any(not 0 <= h < 2**62 for h in hashes):
        raise InputError("field hash_ids", where=spot, expected=f"at most {MAX_HASHES} whole numbers, not negative")
    if hashes and len(hashes) != -(-new // MOONCAKE_BLOCK):
        raise InputError(
            f"field hash_ids: {len(hashes)} blocks of {MOONCAKE_BLOCK} tokens, the prompt has {new} tokens",
            where=spot, expected=f"{-(-new // MOONCAKE_BLOCK)}: a hash for every block, the last one in part",
        )  # fmt: skip
    return _Row(_seconds(at if ours else at / 1000, spot, names[0]), new, out, hashes)

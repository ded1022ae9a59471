"""Tables (CSV): a run a line with named columns, and the figures that aiperf and genai-perf export as CSV.

Columns have the names of a Row's fields or one of `names.ALIASES`, times `ttft_s` and `tpot_s`, or in ms `ttft_ms`,
`tpot_ms`. Columns that nobody here reads are let pass.
"""

import csv
import re
from collections.abc import Iterator
from typing import Any

from linkwise.core.errors import InputError
from linkwise.workload.results import names
from linkwise.workload.results.base import Entry, Unusable
from linkwise.workload.results.types import Groups, Row, Statistic

FORMAT = "CSV"
PERF_FORMAT = "aiperf or genai-perf CSV"
MAX_COLUMNS = 500
MAX_ROWS = 1_000_000

_TTFT = ("ttft_ms", "mean_ttft_ms", "silicon_ttft_ms", "avg_ttft_ms")
_TPOT = ("tpot_ms", "mean_tpot_ms", "silicon_tpot_ms", "avg_tpot_ms")
_LOAD = re.compile(
    r"(?:batch |concurrency |(?P<of_rate>rate ))?(?P<n>\d{1,9}(?:\.\d{1,6})?)(?P<rate> ?(?:req(?:uests)?)?/s(?:ec)?)?"
    r"(?:, \d{1,9} prompts)?",
    re.IGNORECASE,
)
_NO = ("no", "false", "0", "0.0")
_FIGURE = re.compile(r"(?P<name>[\w ]{3,60})(?: \((?P<unit>[^()]{1,30})\))?")


def entries(text: str, where: str) -> tuple[str, list[Entry]]:
    """The format, and the rows of a table under its header. Raises InputError for what is no table of results."""
    lines = csv.reader(text.splitlines(), strict=True)
    try:
        header = next((row for row in lines if any(cell.strip() for cell in row)), [])
        columns = [re.sub(r"[\s-]+", "_", cell.strip().lower()) for cell in header]
        _checked(columns, where)
        if columns[:2] == ["metric", "avg"]:
            return PERF_FORMAT, [_figures(columns, lines, where)]
        found: list[Entry] = []
        for row in lines:
            if not any(cell.strip() for cell in row):
                continue
            if len(found) >= MAX_ROWS:
                raise InputError(f"more than {MAX_ROWS} rows", where=where)
            values = dict(zip(columns, (cell.strip() for cell in row), strict=False))
            extra = {"_cells": len(row), "_columns": len(columns)} if len(row) != len(columns) else {}
            found.append(Entry(f"{where}: line {lines.line_num}", values | extra))
    except csv.Error as error:
        raise InputError(f"not a table: {error}", where=f"{where}: line {lines.line_num}") from None
    return FORMAT, found


def _checked(columns: list[str], where: str) -> None:
    expected = "columns ttft_ms or tpot_ms (or ttft_s, tpot_s), isl, osl, concurrency, ...: see docs/results.md"
    if not 2 <= len(columns) <= MAX_COLUMNS:
        raise InputError(f"a header of {len(columns)} columns", where=where, expected=expected)
    twice = next((name for place, name in enumerate(columns) if name and name in columns[:place]), "")
    if twice:
        raise InputError(f"column {twice[:80]!r} is there twice", where=where, expected="each column once")
    times = {"ttft_s", "tpot_s", "median_ttft_ms", "median_tpot_ms", *_TTFT, *_TPOT}
    if columns[:2] != ["metric", "avg"] and not times & set(columns):
        raise InputError("no column of times", where=where, expected=expected)


def rows(entry: Entry) -> Iterator[Row]:
    """One line of a table."""
    if "_cells" in entry.values:
        raise Unusable(f"{entry.values['_cells']} cells, expected {entry.values['_columns']}")
    pools = _pools(entry)
    statistic, ttft_s, tpot_s = _times(entry)
    if ttft_s is None and tpot_s is None:
        raise Unusable("neither a time to first token nor a time per output token")
    name = names.ALIASES
    concurrency, rate = _load(entry)
    said = entry.text(*name["source"])
    yield Row(
        model=entry.text(*name["model"]), isl=entry.tokens(*name["isl"]), osl=entry.tokens(*name["osl"]),
        fixed_lengths=entry.flag(*name["fixed_lengths"]), **names.drafting(entry),
        prefix_hit=entry.number(*name["prefix_hit"], low=0.0, high=0.999),
        concurrency=concurrency, rate_per_s=rate, requests=entry.whole(*name["requests"]), ttft_s=ttft_s,
        tpot_s=tpot_s, statistic=statistic, source=f"{entry.where} ({said})" if said else entry.where,
        **_deployment(entry), **pools,
    )  # fmt: skip


def _deployment(entry: Entry) -> dict[str, Any]:
    said = names.deployment(entry)
    return said | {"engine": said["engine"] or names.engine(entry.text("backend"))}


def _pools(entry: Entry) -> dict[str, Any]:
    """Pools of their own for prompts and for decoding, where the line has both."""
    there = [side for side in ("prefill", "decode") if entry.given(*names.of_side(side, "tp"))]
    if len(there) < 2:
        said = (entry.text("disagg") or "no").lower() not in _NO or entry.text("mode") == "disagg"
        if there or said:
            raise Unusable("prefill and decode in pools of their own, expected prefill_tp and decode_tp")
        return {}
    return {side: _groups(entry, side) for side in there}


def _groups(entry: Entry, side: str) -> Groups:
    stages = names.of_side(side, "pp")
    if (entry.degree(*stages) or 1) > 1:
        raise Unusable(f"field {entry.given(*stages)}: {entry.degree(*stages)}, expected 1: a pool of no pipelines")
    said = {field: entry.degree(*names.of_side(side, field)) for field in Groups.__struct_fields__}
    return Groups(**{field: value for field, value in said.items() if value is not None})


def _load(entry: Entry) -> tuple[float | None, float | None]:
    """Concurrency and rate; one column may hold either: 64, batch 16, 8/s, 8 req/s."""
    concurrency = entry.number(*names.ALIASES["concurrency"], low=1.0, high=1e7)
    rate = entry.rate(*names.ALIASES["rate_per_s"])
    either = entry.text("concurrency_or_rate")
    if either is None or concurrency is not None or rate is not None:
        return concurrency, rate
    found = _LOAD.fullmatch(either)
    if found is None:
        raise Unusable(f"field concurrency_or_rate: {either!r}, expected 64, batch 16 or 8/s")
    if found["rate"] or found["of_rate"]:
        return None, Entry(entry.where, {"rate": found["n"]}).rate("rate")
    return Entry(entry.where, {"concurrency": found["n"]}).number("concurrency", low=1.0, high=1e7), None


def _times(entry: Entry) -> tuple[Statistic, float | None, float | None]:
    """In s. A column `statistic`, or a note that says medians, tells what the times are of."""
    ttft = entry.seconds("ttft_s", scale=1.0) or entry.seconds(*_TTFT)
    tpot = entry.seconds("tpot_s", scale=1.0) or entry.seconds(*_TPOT)
    told = f"{entry.text('statistic') or ''} {entry.text('note') or ''}".lower()
    if ttft is None and tpot is None:
        return "median", entry.seconds("median_ttft_ms"), entry.seconds("median_tpot_ms")
    return ("median" if re.search(r"\bmedians?\b", told) else "mean"), ttft, tpot


def _figures(columns: list[str], lines: Iterator[list[str]], where: str) -> Entry:
    """A table of figures as the JSON export has it: {time_to_first_token: {unit, avg, std}, ...}."""
    figures: dict[str, object] = {"input_config": {}}
    for row in lines:
        named = _FIGURE.fullmatch(row[0].strip()) if len(row) > 1 else None
        if named is None or row[0].strip().lower() == "metric":
            continue
        key = named["name"].strip().lower().replace(" ", "_")
        values = dict(zip(columns, row, strict=False)) if len(row) == len(columns) else {"avg": row[1]}
        figures.setdefault(key, {"unit": named["unit"] or "", **values})
    return Entry(where, figures)

"""A simulation as files: a table of requests in Parquet, and its steps as a timeline Perfetto opens."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from linkwise.core.errors import InputError
from linkwise.core.files import write_bytes
from linkwise.simulate.types import Simulated

STATUS = ("waiting", "done", "refused", "lost", "unmoved")
_TIMES = ("arrival", "start", "prefilled", "reserved", "moved", "first", "end")


def columns(found: Simulated) -> dict[str, Any]:
    """One column a figure, one row a request. Times in seconds since the start; NaN = it never came to that."""
    every = found.requests
    table: dict[str, Any] = {}
    for name in _TIMES:
        values = every[name].astype(float)
        table[f"{name}_s"] = values if name in ("arrival", "end") else np.where(values < 0, np.nan, values)
    for name in ("input", "output"):
        table[f"{name}_tokens"] = every[name].astype(np.int32)
    table["cached_tokens"] = every["hit"].astype(np.int32)
    table["preempted"] = every["preempted"].astype(np.int32)
    table["attention_replica"] = every["lane"].astype(np.int32)
    table["prefilled_on"] = np.where(every["source"] >= 0, every["source"], every["lane"]).astype(np.int32)
    table["status"] = np.array(STATUS)[every["status"]]
    return table


def parquet(found: Simulated, path: str | Path) -> None:
    """The table of requests. Raises InputError without pyarrow."""
    try:
        import pyarrow
        import pyarrow.parquet as files
    except ImportError:
        raise InputError(
            "pyarrow is not installed, and it writes Parquet",
            where="--parquet",
            expected="pyarrow",
            hint="pip install 'linkwise[evidence]' brings it",
        ) from None
    sink = pyarrow.BufferOutputStream()
    files.write_table(pyarrow.table(columns(found)), sink)
    write_bytes(path, sink.getvalue().to_pybytes())


def timeline(
    found: Simulated, path: str | Path, counters: Mapping[str, Sequence[tuple[float, float]]] | None = None
) -> None:
    """Trace events, the JSON that Perfetto opens: steps by replica and slot, queues as counters.

    counters: further ones by name, (second, value) each.
    """
    events: list[dict[str, Any]] = [
        {"ph": "C", "name": name, "pid": -1, "ts": at * 1e6, "args": {name: value}}
        for name, values in (counters or {}).items()
        for at, value in values
    ]
    replicas = found.replicas_of_slots
    first = {int(r): int(q) for q, r in reversed(list(enumerate(replicas)))}
    for replica in sorted(first):
        events.append({"ph": "M", "name": "process_name", "pid": replica, "args": {"name": f"replica {replica}"}})
    for line in found.steps:
        slot = int(line["slot"])
        replica = int(replicas[slot])
        rows, tokens = int(line["rows"]), int(line["prefill"])
        kind = "decode" if not tokens else "mixed" if rows else "prefill"
        start, end = float(line["start"]) * 1e6, float(line["end"]) * 1e6
        events.append({
            "ph": "X", "name": kind, "pid": replica, "tid": slot - first[replica], "ts": start, "dur": end - start,
            "args": {"decoding": rows, "prompt_tokens": tokens},
        })  # fmt: skip
        events.append({
            "ph": "C", "name": "waiting", "pid": replica, "ts": start, "args": {"requests": int(line["waiting"])},
        })  # fmt: skip
    write_bytes(path, msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"}))


__all__ = ["STATUS", "columns", "parquet", "timeline"]

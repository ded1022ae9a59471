"""Latencies of single kernels that another tool measured: parquet tables in folders of GPU, kind, engine and version.

The layout is that of `aiconfigurator-core` on PyPI, <gpu>/<kind>/<engine>/<version>/<table>.parquet: of the installed
package, or of any folder of that shape. Only rows of the tables are read: they were measured. What that tool
interpolates from them is its own.
"""

import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from linkwise.core.errors import InputError
from linkwise.core.printable import clipped, printable
from linkwise.engine.versions import version_key
from linkwise.simulate.tables import Floats

PACKAGE, WORD = "aiconfigurator_core", "aiconfigurator"
MAX_FILE_BYTES = 64 * 2**20
MAX_ROWS = 2_000_000
MAX_VERSIONS = 1_000
LONGEST_MS = 1e6

# Of each table: the columns of numbers, those of words. `latency` in ms is in all.
TABLES: dict[tuple[str, str], tuple[tuple[str, ...], tuple[str, ...]]] = {
    ("gemm", "gemm_perf"): (("m", "n", "k"), ("gemm_dtype",)),
    ("moe", "moe_perf"): (
        ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"),
        ("moe_dtype", "distribution"),
    ),
    ("attention", "context_attention_perf"): (
        ("batch_size", "isl", "num_heads", "head_dim", "window_size", "step"), ("attn_dtype", "kv_cache_dtype"),
    ),
    ("attention", "generation_attention_perf"): (
        ("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim", "window_size"),
        ("attn_dtype", "kv_cache_dtype"),
    ),
}  # fmt: skip

LATER = ("window_size",)  # tables of before it was there have no windows


class Table(NamedTuple):
    """One table's columns. seconds: measured. version: of the engine it was measured with."""

    name: str
    version: str
    numbers: dict[str, Floats]
    words: dict[str, npt.NDArray[np.str_]]
    seconds: Floats

    def only(self, rows: npt.NDArray[np.bool_]) -> "Table":
        """Some of its rows."""
        return self._replace(
            numbers={name: column[rows] for name, column in self.numbers.items()},
            words={name: column[rows] for name, column in self.words.items()},
            seconds=self.seconds[rows],
        )


class Found(NamedTuple):
    """The tables of one GPU and engine. source: what they come from, as a calibration says it. left_out: tables that
    could not be read, with the reason."""

    tables: tuple[Table, ...]
    source: str
    left_out: tuple[tuple[str, str], ...] = ()


def find(where: str, gpu: str, engine: str, version: str) -> Found:
    """The tables of a GPU (a name of cluster/facts) and an engine, of each the newest version not after `version`, else
    the oldest. where: a folder, or "aiconfigurator" for the installed package. Raises InputError where there are none.
    """
    root, source = _root(where)
    home = root / gpu.replace("-", "_")
    tables: list[Table] = []
    left_out: list[tuple[str, str]] = []
    for kind, name in TABLES:
        if chosen := _version(home / kind / engine, f"{name}.parquet", version):
            try:
                tables.append(_read(home / kind / engine / chosen / f"{name}.parquet", kind, name, chosen))
            except InputError as error:
                left_out.append((name, str(error)))
    if not tables and left_out:
        raise InputError("; ".join(why for _, why in left_out), where=f"--kernels {where}", expected="a table to read")
    if not tables:
        gpus = sorted(one.name.replace("_", "-") for one in root.iterdir() if one.is_dir())[:40]
        raise InputError(
            f"no table of {engine} on {gpu}", where=f"--kernels {where}",
            expected=f"{home.name}/gemm/{engine}/VERSION/gemm_perf.parquet; GPUs there: {', '.join(gpus) or 'none'}",
        )  # fmt: skip
    return Found(tuple(tables), source, tuple(left_out))


def _root(where: str) -> tuple[Path, str]:
    if where != WORD:
        if not Path(where).is_dir():
            raise InputError("is no folder", where=f"--kernels {where}", expected=f"a folder of tables, or {WORD}")
        return Path(where), f"kernel tables in {Path(where).name or where}"
    spec = importlib.util.find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or ()) if spec else []
    data = Path(places[0]) / "systems" / "data" if places else None
    if data is None or not data.is_dir():
        raise InputError(
            "its tables are not installed", where=f"--kernels {WORD}", expected="pip install aiconfigurator-core"
        )
    return data, f"aiconfigurator-core {importlib.metadata.version('aiconfigurator-core')}"


def _version(folder: Path, file: str, asked: str) -> str:
    """The newest version with that file that is not newer than `asked`, else the oldest; "" without any."""
    if not folder.is_dir():
        return ""
    known = [one.name for one in sorted(folder.iterdir())[:MAX_VERSIONS] if (one / file).is_file()]
    keyed = sorted((version_key(name), name) for name in known)
    fitting = [name for key, name in keyed if key <= version_key(asked)]
    return fitting[-1] if fitting else keyed[0][1] if keyed else ""


def _read(path: Path, kind: str, name: str, version: str) -> Table:
    where = "/".join(path.parts[-5:])
    numbers, words = TABLES[kind, name]
    expected = f"a table with the columns {', '.join((*numbers, *words, 'latency'))}"
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(
            "the package pyarrow is not installed", where=where, expected="pip install linkwise[evidence]"
        ) from None
    broken = (pyarrow.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError)
    if path.stat().st_size > MAX_FILE_BYTES:
        raise InputError(f"{path.stat().st_size} bytes", where=where, expected=f"at most {MAX_FILE_BYTES}")
    try:
        file = pyarrow.parquet.ParquetFile(path)
        there = set(file.schema_arrow.names)
        missing = {*numbers, *words, "latency"} - there - set(LATER)
        if missing:
            raise InputError(f"no column {', '.join(sorted(missing))}", where=where, expected=expected)
        if not 0 < file.metadata.num_rows <= MAX_ROWS:
            raise InputError(f"{file.metadata.num_rows} rows", where=where, expected=f"1..{MAX_ROWS} rows")
        columns = file.read([one for one in (*numbers, *words, "latency") if one in there], use_threads=False)
        none: Floats = np.zeros(file.metadata.num_rows)
        table = Table(
            name, version, {one: _number(columns[one], one, where) if one in there else none for one in numbers},
            {one: np.asarray(columns[one].to_pylist(), np.str_) for one in words},
            _number(columns["latency"], "latency", where) / 1e3,
        )  # fmt: skip
    except InputError:
        raise
    except broken as error:
        reason = clipped(printable(str(error)), 120)
        raise InputError(f"not a readable parquet file: {reason}", where=where, expected=expected) from None
    return table.only((table.seconds > 0) & (table.seconds < LONGEST_MS / 1e3))


def _number(column: Any, name: str, where: str) -> Floats:
    values: Floats = np.asarray(column.to_numpy(), np.float64)
    if not np.isfinite(values).all() or (values < 0).any():
        raise InputError(f"column {name} has cells that are no number", where=where, expected="numbers from 0 on")
    return values

"""Tables of operations per rank (parquet) as ByteDance's study of stragglers published them: one row is one operation
of one step of training on one worker, with a pipeline's stages and data parallel ranks.

Columns: dp_rank, stage, rank, step, optype, start_ts and duration in s, seq_id, mc, mb_id, gmc. Facts:
ByteDance-Seed/StragglerAnalysis readme.md; which stage talks to which: NVIDIA/Megatron-LM core/pipeline_parallel.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from linkwise.core.errors import InputError
from linkwise.core.printable import clipped, printable
from linkwise.core.schema import convert
from linkwise.trace.calls import Calls, Codes, Ints
from linkwise.trace.events import Head, RankTrace
from linkwise.trace.readers.base import Reading, Source

FORMAT = "straggler table (parquet)"

MAX_ROWS = 10_000_000
MAX_PACKED_BYTES = 256 * 2**20
MAX_RANKS = 65_536
MAX_KINDS = 1_000
MAX_S = 1e10  # of a start: Unix seconds are 1.8e9
FIRST_NS = 10**9  # where the first step is laid, so that no known time is 0, which means unknown
_NEEDED = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration")
_TABLE = f"a table with the columns {', '.join(_NEEDED)}"

_GROUPS = ("", "pp", "dp", "embedding")
_NONE, _PP, _DP, _EMBEDDING = range(4)
_WHOLE = ("reduce-scatter", "all-reduce", "all-gather", "all-to-all", "broadcast", "barrier")
# Whom a worker talks to without virtual stages: forward goes to the next stage, backward to the one before.
_TOWARDS = {"forward-send": 1, "forward-recv": -1, "backward-send": -1, "backward-recv": 1}


class Kind(NamedTuple):
    """What an optype is. group: place in _GROUPS; towards: the stage it talks to, from its own, 0 = nobody known."""

    op: str
    role: str
    group: int
    towards: int


class Table(NamedTuple):
    """The columns of the rows that can be used. kind: place in the kinds; begin, end in ns."""

    rank: Ints
    stage: Ints
    dp: Ints
    step: Ints
    kind: Ints
    begin: Ints
    end: Ints


def recognises(source: Source) -> bool:
    """Any parquet file: which columns it has stands at its end."""
    return source.head.startswith(b"PAR1")


def read(source: Source) -> Reading:
    """Every worker's record. Raises InputError without pyarrow, and for a table with other columns or values."""
    columns = _columns(source)
    table, left_out = _usable(columns, source.where)
    notes = ["times are relative: the table has the time within each step"]
    if left_out:
        notes.append(f"{left_out} rows have times that are none, and are left out")
    table, laid = _laid(table, source.where)
    if laid:
        notes.append("steps overlap in the table: they are laid one after another, without the time between them")
    if columns.interleaved:
        notes.append("virtual stages: whom a send or receive is with is not known")
    kinds = [_kind(word, columns.interleaved) for word in columns.words]
    return Reading(ranks=tuple(_ranks(table, kinds, source.where, notes)), notes=tuple(notes))


class Columns(NamedTuple):
    """The columns as they are read. words, codes: optype and where each row's stands in it."""

    numbers: dict[str, npt.NDArray[Any]]
    words: list[str]
    codes: Ints
    interleaved: bool


def _columns(source: Source) -> Columns:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(
            "the package pyarrow is not installed", where=source.where, expected="pip install linkwise[evidence]"
        ) from None
    broken = (pyarrow.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError)
    try:
        with source.open() as file:
            handle = pyarrow.BufferReader(source.bytes(MAX_PACKED_BYTES)) if source.packed else file
            return _read(pyarrow, handle, source.where)
    except InputError:
        raise
    except broken as error:
        reason = clipped(printable(str(error)), 120)
        raise InputError(f"not a readable parquet file: {reason}", where=source.where, expected=_TABLE) from None


def _read(pyarrow: Any, handle: Any, where: str) -> Columns:
    names = set(pyarrow.parquet.ParquetFile(handle).schema_arrow.names)
    missing = [name for name in _NEEDED if name not in names]
    if missing:
        raise InputError(f"no column {', '.join(missing)}", where=where, expected=_TABLE)
    # A dictionary stays one: written out, one long word in every row would take more memory than there is.
    whole = pyarrow.parquet.ParquetFile(handle, read_dictionary=["optype"])
    count = whole.metadata.num_rows
    if not 0 < count <= MAX_ROWS:
        raise InputError(f"{count} rows", where=where, expected=f"at most {MAX_ROWS}")
    table = whole.read([*_NEEDED, *({"mc"} & names)], use_threads=False)
    numbers = {
        name: _numbers(pyarrow.types, table[name], name, where) for name in table.column_names if name != "optype"
    }
    optype = table["optype"].unify_dictionaries().combine_chunks()
    optype = optype.chunk(0) if isinstance(optype, pyarrow.ChunkedArray) else optype
    types = pyarrow.types
    text = types.is_dictionary(optype.type) and types.is_string(optype.type.value_type)
    if not text or optype.null_count or len(optype.dictionary) > MAX_KINDS:
        raise InputError(f"column optype of {optype.type}", where=where, expected=f"at most {MAX_KINDS} words")
    words, codes = optype.dictionary.to_pylist(), np.asarray(optype.indices, np.int64)
    if None in words or ((codes < 0) | (codes >= len(words))).any():
        raise InputError("column optype has empty cells", where=where, expected=_TABLE)
    chunks = numbers.pop("mc", None)
    return Columns(numbers, words, codes, chunks is not None and bool((chunks > 0).any()))


def _numbers(types: Any, column: Any, name: str, where: str) -> npt.NDArray[Any]:
    times = name in {"start_ts", "duration"}
    if column.null_count:
        raise InputError(f"column {name} has {column.null_count} empty cells", where=where, expected=_TABLE)
    if not types.is_integer(column.type) and not (times and types.is_floating(column.type)):
        raise InputError(
            f"column {name} of {column.type}", where=where, expected="numbers" if times else "whole numbers"
        )
    values: npt.NDArray[Any] = column.to_numpy().astype(np.float64 if times else np.int64)
    return values


def _usable(table: Columns, where: str) -> tuple[Table, int]:
    """Rows with times that are times. Ranks, stages and steps must be right in all of them."""
    columns = table.numbers
    for name, most in (("rank", 2**20 - 1), ("stage", 2**20 - 1), ("dp_rank", 2**20 - 1), ("step", 2**62)):
        if ((columns[name] < 0) | (columns[name] > most)).any():
            raise InputError(f"a {name} outside 0 to {most}", where=where, expected=_TABLE)
    start, took = columns["start_ts"], columns["duration"]
    with np.errstate(invalid="ignore"):
        good = (start >= 0) & (start < MAX_S) & (took >= 0) & (took < MAX_S)
    if not good.any():
        raise InputError("no row has a time", where=where, expected=_TABLE)
    begin = np.rint(start[good] * 1e9).astype(np.int64)
    end = begin + np.rint(took[good] * 1e9).astype(np.int64)
    rank, stage, dp, step = (columns[name][good] for name in ("rank", "stage", "dp_rank", "step"))
    return Table(rank, stage, dp, step, table.codes[good], begin, end), int((~good).sum())


def _laid(table: Table, where: str) -> tuple[Table, bool]:
    """Rows by rank and time. Steps whose times overlap each count from their own beginning: they are laid in a row."""
    steps, of = np.unique(table.step, return_inverse=True)
    first, last = np.full(len(steps), np.iinfo(np.int64).max), np.zeros(len(steps), np.int64)
    np.minimum.at(first, of, table.begin)
    np.maximum.at(last, of, table.end)
    laid = bool((first[1:] < last[:-1]).any())
    if laid:
        if float((last - first).astype(np.float64).sum()) > 2.0**61:
            raise InputError("steps of more than 73 years together", where=where, expected=_TABLE)
        shift = FIRST_NS + np.append(0, np.cumsum(last - first)[:-1]) - first
    else:
        shift = np.full(len(steps), FIRST_NS)
    table = table._replace(begin=table.begin + shift[of], end=table.end + shift[of])
    order = np.lexsort((table.begin, table.rank))
    return Table(*(column[order] for column in table)), laid


def _kind(name: str, interleaved: bool) -> Kind:
    role = clipped(name)
    if name in {"forward-compute", "backward-compute"}:
        return Kind("compute", name.removesuffix("-compute"), _NONE, 0)
    for end in ("send", "recv"):
        if name.endswith(f"-{end}"):
            return Kind(end, role, _PP, 0 if interleaved else _TOWARDS.get(name, 0))
    for word in _WHOLE:
        if name.endswith(word):
            # LayerNorm's gradients are summed over a tensor group, of which the table names no other member.
            group = _EMBEDDING if name.startswith("embedding") else _NONE if name.startswith("layernorm") else _DP
            return Kind(word.replace("-", "_"), role, group, 0)
    return Kind("compute", role, _NONE, 0)


def _ranks(table: Table, kinds: list[Kind], where: str, notes: list[str]) -> list[RankTrace]:
    ranks, first = np.unique(table.rank, return_index=True)
    if len(ranks) > MAX_RANKS:
        raise InputError(f"{len(ranks)} ranks", where=where, expected=f"at most {MAX_RANKS}")
    ends = np.append(first[1:], len(table.rank))
    places = [(int(table.stage[at]), int(table.dp[at])) for at in first]
    spans = np.repeat(np.arange(len(ranks)), ends - first)
    if (table.stage != table.stage[first][spans]).any() or (table.dp != table.dp[first][spans]).any():
        raise InputError("a rank is in two stages or data parallel ranks", where=where, expected=_TABLE)
    numbers = [int(rank) for rank in ranks]
    grid = Grid(numbers, places)
    if not grid.unique:
        notes.append("several ranks have one stage and data parallel rank: who passes on to whom is not known")
    sequence = _sequence(table, kinds)
    return [
        RankTrace(
            head=grid.head(number, *place, where),
            calls=_calls(table, slice(begin, end), kinds, sequence, grid, place),
            source=where,
            format=FORMAT,
        )
        for number, place, begin, end in zip(numbers, places, first.tolist(), ends.tolist(), strict=True)
    ]


class Grid:
    """Who is where: ranks by stage and data parallel rank. A table may have every n-th rank only, one of each tensor
    group; the numbers stay as they are, and evenly spaced ones tell the size of the world."""

    def __init__(self, ranks: list[int], places: list[tuple[int, int]]) -> None:
        self._at = dict(zip(places, ranks, strict=True))
        self.unique = len(self._at) == len(ranks)
        gaps = {b - a for a, b in pairwise(ranks)}
        even = len(gaps) == 1 and ranks[0] < min(gaps)
        self.world = ranks[-1] + (min(gaps) if even else 1)
        self._dp: dict[int, list[int]] = {}
        self._pp: dict[int, list[tuple[int, int]]] = {}
        for rank, (stage, dp) in zip(ranks, places, strict=True):
            self._dp.setdefault(stage, []).append(rank)
            self._pp.setdefault(dp, []).append((stage, rank))

    def near(self, place: tuple[int, int], towards: int) -> int:
        """The rank some stages away in the same pipeline; -1 when the table has none."""
        return self._at.get((place[0] + towards, place[1]), -1) if self.unique else -1

    def head(self, rank: int, stage: int, dp: int, where: str) -> Head:
        groups = {"dp": self._dp[stage]}
        if self.unique:
            pipe = [one for _, one in sorted(self._pp[dp])]
            groups["pp"] = pipe
            if rank in {pipe[0], pipe[-1]} and len(pipe) > 1:
                groups["embedding"] = [pipe[0], pipe[-1]]
        value = {
            "rank": rank, "world": self.world, "shard": {"pp": stage, "dp": dp}, "groups": groups
        }  # fmt: skip
        return convert(value, Head, where=where)


def _sequence(table: Table, kinds: list[Kind]) -> Ints:
    """Numbers from 0 on each rank: of a group's collectives together, of each kind of message, of own work together."""
    keys: dict[tuple[Any, ...], int] = {}
    of_kind = np.zeros(max(1, len(kinds)), np.int64)
    for place, kind in enumerate(kinds):
        what = (kind.role,) if kind.op in {"send", "recv"} else (kind.op == "compute", kind.group)
        of_kind[place] = keys.setdefault(what, len(keys))
    key = of_kind[table.kind]
    order = np.lexsort((np.arange(len(key)), key, table.rank))
    new = np.append(True, (np.diff(key[order]) != 0) | (np.diff(table.rank[order]) != 0))
    begins = np.flatnonzero(new)
    number = np.zeros(len(key), np.int64)
    number[order] = np.arange(len(key)) - begins[np.cumsum(new) - 1]
    return number


def _calls(table: Table, rows: slice, kinds: list[Kind], sequence: Ints, grid: Grid, place: tuple[int, int]) -> Calls:
    kind = table.kind[rows]
    ops = tuple(dict.fromkeys(one.op for one in kinds))
    roles = tuple(dict.fromkeys(one.role for one in kinds))

    def codes(values: list[int]) -> Codes:
        return np.asarray(values, np.int32)[kind]

    count = len(kind)
    peers = [grid.near(place, one.towards) if one.towards else -1 for one in kinds]
    return Calls(
        groups=_GROUPS,
        roles=roles,
        ops=ops,
        dtypes=("",),
        group=codes([one.group for one in kinds]),
        role=codes([roles.index(one.role) for one in kinds]),
        op=codes([ops.index(one.op) for one in kinds]),
        dtype=np.zeros(count, np.int32),
        step=table.step[rows],
        sequence=sequence[rows],
        S_bytes=np.zeros(count, np.int64),
        peer=np.asarray(peers, np.int64)[kind],
        created_ns=np.zeros(count, np.int64),
        started_ns=table.begin[rows],
        ended_ns=table.end[rows],
        state=np.zeros(count, np.int8),
    )

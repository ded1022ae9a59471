"""A table of operations becomes every worker's record: own work, messages with their peers, collectives in groups."""

import gzip
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkwise.core.errors import InputError
from linkwise.trace.events import Event, RankTrace
from linkwise.trace.readers import straggler
from linkwise.trace.readers.base import Reading, Source

S = 10**9
# Two stages of two data parallel ranks, of tensor groups of two whose second ranks the table does not have: 0 2 | 4 6.
RANKS = {0: (0, 0), 2: (0, 1), 4: (1, 0), 6: (1, 1)}
TYPES = {
    "dp_rank": pa.int8(), "stage": pa.int8(), "rank": pa.int16(), "step": pa.int64(),
    "optype": pa.dictionary(pa.int8(), pa.string()), "start_ts": pa.float32(), "duration": pa.float32(),
    "seq_id": pa.int32(), "mc": pa.int8(), "mb_id": pa.int8(), "gmc": pa.int16(),
}  # fmt: skip
# One step by stage: forward, its activation to the next stage, backward, the gradient back. As the published tables,
# rows are sorted by operation, not by time, and times begin at 0 in each step.
FIRST = [
    ("backward-compute", 6.0, 1.0), ("backward-recv", 2.0, 4.0), ("forward-compute", 1.0, 1.0),
    ("forward-send", 2.0, 4.0), ("gc", 7.0, 0.0), ("grads-reduce-scatter", 8.0, 0.5), ("params-all-gather", 0.0, 0.5),
    ("layernorm-grads-all-reduce", 7.5, 0.25), ("embedding-grads-all-reduce", 7.75, 0.25), ("optimizer", 8.5, 0.5),
]  # fmt: skip
LAST = [
    ("backward-compute", 4.0, 1.5), ("backward-send", 5.5, 0.5), ("forward-compute", 3.0, 1.0),
    ("forward-recv", 0.5, 2.5), ("grads-reduce-scatter", 8.0, 0.5), ("params-all-gather", 0.0, 0.5),
]  # fmt: skip


def rows(steps: tuple[int, ...] = (7, 9)) -> list[dict[str, Any]]:
    found = []
    for step in steps:
        for rank, (stage, dp) in RANKS.items():
            for name, start, took in LAST if stage else FIRST:
                found.append(
                    {"dp_rank": dp, "stage": stage, "rank": rank, "step": step, "optype": name, "start_ts": start,
                     "duration": took, "seq_id": 0, "mc": 0 if "compute" in name else -1, "mb_id": 0, "gmc": 0}
                )  # fmt: skip
    return found


def written(folder: Path, table: list[dict[str, Any]], **types: Any) -> Source:
    kinds = {name: types.get(name, kind) for name, kind in TYPES.items() if name in (table[0] if table else TYPES)}
    path = folder / "trace.parquet"
    pq.write_table(pa.Table.from_pylist(table, schema=pa.schema(list(kinds.items()))), path)
    return Source(path)


def read(folder: Path, table: list[dict[str, Any]], **types: Any) -> Reading:
    source = written(folder, table, **types)
    assert straggler.recognises(source)
    return straggler.read(source)


def of(reading: Reading, rank: int) -> RankTrace:
    return next(one for one in reading.ranks if one.head.rank == rank)


def test_workers_and_their_groups(tmp_path: Path) -> None:
    reading = read(tmp_path, rows())
    assert [one.head.rank for one in reading.ranks] == [0, 2, 4, 6]
    assert {one.head.world for one in reading.ranks} == {8}  # every second rank is in the table
    assert of(reading, 0).head.groups == {"dp": (0, 2), "pp": (0, 4), "embedding": (0, 4)}
    assert of(reading, 6).head.groups == {"dp": (4, 6), "pp": (2, 6), "embedding": (2, 6)}
    assert of(reading, 6).head.shard == {"pp": 1, "dp": 1}
    assert reading.notes == (
        "times are relative: the table has the time within each step",
        "steps overlap in the table: they are laid one after another, without the time between them",
    )


def test_a_workers_calls(tmp_path: Path) -> None:
    # The first step is laid at 1 s; it lasts 9 s, so that the second, whose times begin at 0 again, is laid at 10 s.
    calls = list(of(read(tmp_path, rows()), 0).calls)
    assert calls[:10] == [
        Event(7, "dp", "params-all-gather", "all_gather", 0, 0, "", -1, 0, 1 * S, S * 3 // 2, "done"),
        Event(7, "", "forward", "compute", 0, 0, "", -1, 0, 2 * S, 3 * S, "done"),
        Event(7, "pp", "backward-recv", "recv", 0, 0, "", 4, 0, 3 * S, 7 * S, "done"),
        Event(7, "pp", "forward-send", "send", 0, 0, "", 4, 0, 3 * S, 7 * S, "done"),
        Event(7, "", "backward", "compute", 1, 0, "", -1, 0, 7 * S, 8 * S, "done"),
        Event(7, "", "gc", "compute", 2, 0, "", -1, 0, 8 * S, 8 * S, "done"),
        Event(7, "", "layernorm-grads-all-reduce", "all_reduce", 0, 0, "", -1, 0, S * 17 // 2, S * 35 // 4, "done"),
        Event(7, "embedding", "embedding-grads-all-reduce", "all_reduce", 0, 0, "", -1, 0, S * 35 // 4, 9 * S, "done"),
        Event(7, "dp", "grads-reduce-scatter", "reduce_scatter", 1, 0, "", -1, 0, 9 * S, S * 19 // 2, "done"),
        Event(7, "", "optimizer", "compute", 3, 0, "", -1, 0, S * 19 // 2, 10 * S, "done"),
    ]
    assert calls[10] == Event(9, "dp", "params-all-gather", "all_gather", 2, 0, "", -1, 0, 10 * S, S * 21 // 2, "done")
    assert [(c.op, c.sequence) for c in calls[12:14]] == [("recv", 1), ("send", 1)]
    last = list(of(read(tmp_path, rows()), 4).calls)
    assert [(c.op, c.peer) for c in last if c.group == "pp"][:2] == [("recv", 0), ("send", 0)]


def test_steps_that_follow_each_other_keep_their_times(tmp_path: Path) -> None:
    table = rows()
    for row in table:
        row["start_ts"] += 100 * row["step"]
    reading = read(tmp_path, table)
    begins = [c.started_ns for c in of(reading, 0).calls if c.op == "all_gather"]
    assert begins == [701 * S, 901 * S]
    assert len(reading.notes) == 1


def test_virtual_stages_leave_peers_open(tmp_path: Path) -> None:
    table = rows()
    table[0]["mc"] = 1
    reading = read(tmp_path, table)
    assert {c.peer for one in reading.ranks for c in one.calls} == {-1}
    assert any("virtual stages" in note for note in reading.notes)


def test_two_ranks_in_one_place(tmp_path: Path) -> None:
    table = rows()
    for row in table:
        row["dp_rank"] = 0
    reading = read(tmp_path, table)
    assert "pp" not in of(reading, 0).head.groups
    assert of(reading, 0).head.groups["dp"] == (0, 2)
    assert any("who passes on to whom is not known" in note for note in reading.notes)


def test_uneven_ranks_tell_no_more_than_the_largest(tmp_path: Path) -> None:
    table = [{**row, "rank": {0: 0, 2: 3, 4: 4, 6: 9}[row["rank"]]} for row in rows()]
    assert {one.head.world for one in read(tmp_path, table).ranks} == {10}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e30])
@pytest.mark.parametrize("name", ["start_ts", "duration"])
def test_rows_without_a_time_are_left_out(tmp_path: Path, name: str, value: float) -> None:
    table = rows()
    table[0][name] = value
    reading = read(tmp_path, table)
    assert len(of(reading, 0).calls) == 19
    assert "1 rows have times that are none, and are left out" in reading.notes


def test_other_widths_and_plain_words_are_read(tmp_path: Path) -> None:
    wide = read(tmp_path, rows(), rank=pa.uint64(), start_ts=pa.float64(), duration=pa.int32(), optype=pa.string())
    assert len(of(wide, 0).calls) == 20


def test_a_packed_table(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet.gz"
    path.write_bytes(gzip.compress(written(tmp_path, rows()).path.read_bytes()))
    assert len(straggler.read(Source(path)).ranks) == 4


@pytest.mark.parametrize(
    ("change", "types", "reason"),
    [
        ({"rank": -1}, {}, "a rank outside"),
        ({"stage": -1}, {}, "a stage outside"),
        ({"step": -5}, {}, "a step outside"),
        ({"rank": None}, {}, "column rank has 1 empty cells"),
        ({"optype": None}, {}, "column optype of"),
        ({"stage": 1}, {}, "in two stages"),
        ({}, {"rank": pa.string()}, "column rank of string"),
        ({}, {"optype": pa.int64()}, "not a readable parquet file|column optype of int64"),
    ],
)
def test_what_is_refused(tmp_path: Path, change: dict[str, Any], types: dict[str, Any], reason: str) -> None:
    table = rows()
    table[0] |= change
    for name, kind in types.items():
        table = [{**row, name: str(row[name]) if kind == pa.string() else 1} for row in table]
    source = written(tmp_path, table, **types)
    with pytest.raises(InputError, match=reason):
        straggler.read(source)


def test_other_tables(tmp_path: Path) -> None:
    pq.write_table(pa.table({"step": [1], "loss": [0.5]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="no column dp_rank, stage, rank, optype"):
        straggler.read(Source(tmp_path / "a.parquet"))
    with pytest.raises(InputError, match="0 rows"):
        straggler.read(written(tmp_path, []))


def test_more_rows_than_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(straggler, "MAX_ROWS", 10)
    with pytest.raises(InputError, match="64 rows"):
        straggler.read(written(tmp_path, rows()))


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = written(tmp_path, rows())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install linkwise\[evidence\]"):
        straggler.read(source)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(4, 6000), st.binary(min_size=1, max_size=4)), max_size=4), st.integers(0, 8000))
def test_changed_bytes(tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes]], end: int) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    data = written(folder, rows((7,))).path.read_bytes()
    for at, new in changes:
        data = data[:at] + new + data[at + len(new) :]
    (folder / "b.parquet").write_bytes(data[:end])
    try:
        reading = straggler.read(Source(folder / "b.parquet"))
    except InputError:
        return
    assert all(len(one.calls) for one in reading.ranks)

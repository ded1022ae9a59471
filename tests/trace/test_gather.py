"""A folder of everything: good files are used, bad ones named, none of them fatal."""

import gzip
import json
import os
import pickle
from pathlib import Path

import pytest

from linkwise.core.errors import InputError
from linkwise.trace import readers
from linkwise.trace.gather import gather
from linkwise.trace.readers.base import MAX_LINE_BYTES, Source


def head(rank: int, world: int = 2, unit: str = "", at: int = 0) -> str:
    groups = {"tp": list(range(world))}
    return json.dumps(
        {"schema": "linkwise.trace/1", "rank": rank, "world": world, "unit": unit, "groups": groups, "anchor": [0, at]},
        separators=(",", ":"),
    )


def call(number: int, begin: int = 10, world: int = 2) -> str:
    times = [begin, begin, begin + 5]
    return json.dumps(["all_reduce", "attn.out", "tp", list(range(world)), number, 64, "float32", -1, *times])


def record(folder: Path, name: str, *lines: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("\n".join(lines) + "\n")


def test_good_files_are_used_and_bad_ones_named(tmp_path: Path) -> None:
    record(tmp_path, "a.rank0.trace.jsonl", head(0), call(0))
    record(tmp_path, "a.rank1.trace.jsonl", head(1), "[1, 2")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "noise").write_bytes(bytes(range(256)) * 10)
    found = gather([tmp_path])
    assert [rank.head.rank for rank in found.trace.ranks] == [0]
    assert [one.path for one in found.used] == ["a.rank0.trace.jsonl"]
    reasons = {one.path: one.reason for one in found.unusable}
    assert set(reasons) == {"a.rank1.trace.jsonl", "empty", "noise"}
    assert "line 2" in reasons["a.rank1.trace.jsonl"]
    assert reasons["empty"].startswith("empty")


def test_packed_files_are_read_as_they_are(tmp_path: Path) -> None:
    text = (head(0) + "\n" + call(0) + "\n" + call(1, 20) + "\n").encode()
    (tmp_path / "a.rank0.trace.jsonl.gz").write_bytes(gzip.compress(text))
    assert [event.sequence for event in gather([tmp_path]).trace.ranks[0].calls] == [0, 1]


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    # 3 GB of zeros in 3 MB.
    with gzip.open(tmp_path / "bomb.gz", "wb", compresslevel=9) as file:
        for _ in range(300):
            file.write(bytes(10**7))
    record(tmp_path, "a.rank0.trace.jsonl", head(0), call(0))
    found = gather([tmp_path])
    assert [one.path for one in found.unusable] == ["bomb.gz"]
    assert len(found.trace.ranks) == 1


def test_a_file_cut_inside_its_packing_is_named(tmp_path: Path) -> None:
    packed = gzip.compress((head(0) + "\n" + "\n".join(call(n) for n in range(5000))).encode())
    (tmp_path / "cut.gz").write_bytes(packed[: len(packed) // 2])
    assert [one.path for one in gather([tmp_path]).unusable] == ["cut.gz"]


def test_a_pickle_runs_nothing(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "ran"),)

    (tmp_path / "_dump_0").write_bytes(pickle.dumps({"version": "2.9", "entries": [Evil()], "pg_config": {}}))
    found = gather([tmp_path / "_dump_0"])
    assert not (tmp_path / "ran").exists()
    assert len(found.unusable) == 1
    assert "mkdir" in found.unusable[0].reason


def test_a_line_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.rank0.trace.jsonl").write_text(head(0) + "\n" + "x" * (MAX_LINE_BYTES + 2))
    assert "bytes" in gather([tmp_path]).unusable[0].reason


def test_a_record_without_a_host_is_of_the_one_its_folder_is_named_after(tmp_path: Path) -> None:
    named = head(2, 4)[:-1] + ',"host":"gpu-7"}'
    record(tmp_path, "node0/a.rank0.trace.jsonl", head(0, 4), call(0, world=4))
    record(tmp_path, "run1/node1/a.rank1.trace.jsonl", head(1, 4), call(0, world=4))
    record(tmp_path, "node1/a.rank2.trace.jsonl", named, call(0, world=4))
    record(tmp_path, "dumps/a.rank3.trace.jsonl", head(3, 4), call(0, world=4))
    assert [rank.head.host for rank in gather([tmp_path]).trace.ranks] == ["node0", "node1", "gpu-7", ""]


def test_ranks_of_two_folders_are_two_jobs(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        record(tmp_path, f"{folder}/a.rank0.trace.jsonl", head(0), call(0))
    assert [rank.head.unit for rank in gather([tmp_path]).trace.ranks] == ["one", "two"]


def test_a_unit_that_was_started_again_is_told_from_its_first_start(tmp_path: Path) -> None:
    for start, at in enumerate((1000, 9000)):
        for rank in (0, 1):
            record(tmp_path, f"u.rank{rank}.{start}.trace.jsonl", head(rank, unit="u", at=at + rank), call(0))
    found = gather([tmp_path]).trace.ranks
    assert [(rank.head.unit, rank.head.rank) for rank in found] == [
        ("u", 0),
        ("u", 1),
        ("u start 2", 0),
        ("u start 2", 1),
    ]


def test_many_large_files_are_read_by_two_processes_as_by_one(tmp_path: Path) -> None:
    rows = [call(number, 10 + number) for number in range(120_000)]
    for rank in range(4):
        record(
            tmp_path,
            f"a.rank{rank}.trace.jsonl",
            head(rank, 4),
            *[row.replace("[0, 1]", "[0, 1, 2, 3]") for row in rows],
        )
    one, two = gather([tmp_path], processes=1), gather([tmp_path], processes=2)
    assert [len(rank.calls) for rank in two.trace.ranks] == [120_000] * 4
    assert one.used == two.used
    for a, b in zip(one.trace.ranks, two.trace.ranks, strict=True):
        assert (a.calls.ended_ns == b.calls.ended_ns).all()
        assert a.head == b.head


def test_what_is_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        gather([tmp_path / "nothing"])


def test_every_reader_has_a_name_and_refuses_what_is_not_its_own(tmp_path: Path) -> None:
    noise = tmp_path / "noise.txt"
    noise.write_text("The quick brown fox jumps over the lazy dog.\n" * 20)
    everyone = readers.READERS + readers.LOGS
    names = [readers.reader(name).FORMAT for name in everyone]
    assert len(set(names)) == len(names)
    assert [name for name in everyone if readers.reader(name).recognises(Source(noise))] == []


def test_a_log_of_several_writers_is_read_by_each(tmp_path: Path) -> None:
    # One file as a launcher collects it: a line of NCCL, one of vLLM.
    lines = (
        "node1:100:100 [0] NCCL INFO ncclCommInitRank comm 0x5 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000"
        " commId 0x7 - Init COMPLETE",
        "node1:100:100 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct",
        "INFO 11-30 10:00:00 [loggers.py:127] Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation"
        " throughput: 5.0 tokens/s, Running: 3 reqs, Waiting: 7 reqs, GPU KV cache usage: 12.3%",
    )
    (tmp_path / "job.log").write_text("\n".join(lines) + "\n")
    found = gather([tmp_path])
    assert found.unusable == ()
    kinds = {(fact.kind, fact.name) for fact in found.facts}
    assert {("transport", "shm"), ("gauge", "serve.waiting")} <= kinds


def test_a_file_that_breaks_the_limits_is_unusable_and_the_rest_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A dict key of tuples, each holding the one before twice: hashing it takes 2**60 turns.
    tuples = b")q\x00" + b"0h\x00h\x00\x86q\x00" * 60
    fields = b"X\x07\x00\x00\x00version" + b"K\x02s" + b"X\x09\x00\x00\x00pg_config" + b"}s"
    (tmp_path / "_dump_1").write_bytes(b"\x80\x02}" + fields + tuples + b"K\x01s.")
    good = {"version": "2.9", "pg_config": {}, "pg_status": {}, "entries": []}
    for rank in (0, 2, 3):
        (tmp_path / f"_dump_{rank}").write_bytes(pickle.dumps({**good, "pad": [f"{n:0>100}" for n in range(9000)]}))
    monkeypatch.setattr("linkwise.trace.gather.FILE_CPU_S", 3)  # processes are forked and keep it
    found = gather([tmp_path])
    assert [(one.path, "processor time" in one.reason) for one in found.unusable] == [("_dump_1", True)]
    assert sorted(rank.head.rank for rank in found.trace.ranks) == [0, 2, 3]


def test_json_that_breaks_off_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text('{"what": {"0": {"name": "0", "ranks": "[0, 1]"}}, "rows": [{"id": 1, "pg_')
    (tmp_path / "whole.json").write_text('{"what": 1}\n')
    half, whole = gather([tmp_path]).unusable
    assert half.reason.startswith("JSON that breaks off; it begins with")
    assert whole.reason.startswith("no format of evidence recognised")

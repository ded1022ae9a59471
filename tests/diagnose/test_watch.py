"""Watching what grows: findings appear when two looks agree, or the driver saw it, and are over when they are gone."""

import json
import os
import time
from pathlib import Path

import pytest

from linkwise.cli import main
from linkwise.core.errors import InputError
from linkwise.diagnose.watch import STALE_S, Watch
from linkwise.trace.events import Anchor, Head
from linkwise.trace.writer import Row, Writer, note_fault, open_writer

GROUPS = {"tp": (0, 1)}


def writers(folder: Path) -> list[Writer]:
    now = Anchor(time.monotonic_ns(), time.time_ns())
    heads = [Head(rank=rank, world=2, unit="u", host="h", groups=GROUPS, anchor=now) for rank in (0, 1)]
    return [open_writer(folder, head, turn_s=0.0) for head in heads]


def play(made: list[Writer], calls: int, late_ms: float, first: int) -> None:
    """Calls of both ranks in which rank 1 comes so much later; 1 ms of own work and 1 ms of moving each."""
    at = 10**9 + first * int((2 + late_ms) * 1e6)
    for number in range(first, first + calls):
        begin = [at + 10**6, at + 10**6 + int(late_ms * 1e6)]
        end = max(begin) + 10**6
        for writer, begun in zip(made, begin, strict=True):
            writer.add(Row("all_reduce", "attn.out", "tp", (0, 1), number, 64, "float32", -1, begun, begun, end))
        at = end
    for writer in made:
        writer.flush()


def test_a_late_rank_is_reported_once_two_looks_agree_and_over_when_it_is_in_time(tmp_path: Path) -> None:
    made, watch = writers(tmp_path), Watch(tmp_path)
    play(made, 100, 8, 0)
    assert watch.turn() == []
    (change,) = watch.turn()
    assert (change.finding.class_, change.finding.original_fault.ranks, change.over) == ("late_rank", (1,), False)
    assert watch.turn() == []
    play(made, 2000, 0, 100)  # beyond what a look reads
    (change,) = watch.turn()
    assert (change.finding.class_, change.over) == ("late_rank", True)


def test_what_the_driver_saw_is_reported_at_once(tmp_path: Path) -> None:
    made, watch = writers(tmp_path), Watch(tmp_path)
    play(made, 50, 0, 0)
    assert watch.turn() == []
    note_fault(tmp_path, "u", (1,), "dead", "rank 1 was ended by SIGKILL")
    found = watch.turn()
    assert [(c.finding.class_, c.finding.original_fault.ranks) for c in found] == [("dead_rank", (1,))]


def test_faults_from_before_it_watched_are_history(tmp_path: Path) -> None:
    note_fault(tmp_path, "u", (1,), "dead", "rank 1 was ended by SIGKILL")
    time.sleep(0.01)
    watch = Watch(tmp_path)
    assert watch.turn() == watch.turn() == []


def test_records_nobody_writes_to_any_more_are_left_alone(tmp_path: Path) -> None:
    made = writers(tmp_path)
    play(made, 100, 8, 0)
    for one in made:
        os.utime(one.path, (time.time() - 2 * STALE_S,) * 2)
    watch = Watch(tmp_path)
    watch.turn()
    assert watch.turn() == []


def test_a_broken_record_and_a_service_that_does_not_answer_are_said_not_fatal(tmp_path: Path) -> None:
    (tmp_path / "u.rank0.x.trace.jsonl").write_text("no record\n")
    watch = Watch(tmp_path, ras="127.0.0.1:9")
    assert watch.turn() == []
    assert [one.path for one in watch.last.unusable] == ["u.rank0.x.trace.jsonl", "127.0.0.1:9"]


def test_a_folder_that_is_gone_ends_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        Watch(tmp_path / "gone").turn()


def ras_report(counts: list[int]) -> bytes:
    """A report of one communicator of so many ranks, each with what it launched."""
    ranks = [
        {
            "rank": rank, "host": "a", "pid": 100 + rank, "cuda_dev": rank, "nvml_dev": rank,
            "status": {"init_state": 0, "async_error": 0}, "collective_counts": {"AllReduce": count},
        }
        for rank, count in enumerate(counts)
    ]  # fmt: skip
    one = {"hash": "0xfa", "size": len(counts), "ranks_count": len(counts), "missing_ranks_count": 0, "ranks": ranks}
    return json.dumps({"nccl_version": "2.28.9", "communicators_count": 1, "communicators": [one]}).encode()


@pytest.mark.parametrize(("second", "decided"), [([30, 30, 3, 30], True), ([30, 30, 29, 30], False)])
def test_of_a_ras_service_two_reports_decide(tmp_path: Path, monkeypatch, second: list[int], decided: bool) -> None:
    # Rank 2 is behind in the first report; in the second it is where it was, or has moved.
    reports = iter([ras_report([10, 10, 3, 10]), ras_report(second), ras_report(second)])
    monkeypatch.setattr("linkwise.diagnose.watch.ask", lambda _: next(reports))
    watch = Watch(None, ras="host:28028")
    watch.turn()
    assert [(one.class_, one.decided) for one in watch.last.findings] == [("undecided", False)]
    watch._asked = -1e9
    watch.turn()
    named = [one.original_fault.ranks for one in watch.last.findings if one.decided]
    assert named == ([(2,)] if decided else [])


def test_where_nothing_is_written_nothing_was_watched(tmp_path: Path, capsys) -> None:
    # A dump of a hang, a log, a record that is no whole one yet: none is what a rank writes now.
    (tmp_path / "nccl_trace_rank_0").write_bytes(b"\x80\x02}.")
    (tmp_path / "vllm.log").write_text("INFO 11-30 10:00:01 started\n")
    assert main(["watch", str(tmp_path), "--for", "10ms"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "nothing was watched" in said.err
    assert "linkwise diagnose" in said.err
    (tmp_path / "u.rank0.x.trace.jsonl").write_text("no record\n")
    assert main(["watch", str(tmp_path), "--for", "10ms"]) == 2
    assert "u.rank0.x.trace.jsonl: " in capsys.readouterr().err


def test_a_record_that_is_written_and_well_is_0(tmp_path: Path, capsys) -> None:
    play(writers(tmp_path), 10, 0, 0)
    assert main(["watch", str(tmp_path), "--for", "10ms"]) == 0
    assert capsys.readouterr().err == ""

"""The commands as a user meets them: exit codes, one screen first, JSON that scripts read."""

import gzip
import json
from pathlib import Path

import msgspec
import pytest
from tests.diagnose.made import Step, run
from tests.trace.test_gather import call, head, record

import linkwise
from linkwise.cli import main
from linkwise.diagnose.diagnose import diagnose, since
from linkwise.report.diagnose import screen
from linkwise.report.text import wrapped
from linkwise.trace.gather import Used


def late_folder(folder: Path, *, late: int = 1, late_ms: int = 8) -> Path:
    """Two ranks; rank `late` comes `late_ms` after the other, in 60 calls."""
    for rank in (0, 1):
        rows = [head(rank)]
        for number in range(60):
            begin = 10**9 + number * 10 * 10**6
            arrive = begin + (late_ms * 10**6 if rank == late else 0)
            times = [arrive, arrive, begin + 9 * 10**6]
            rows.append(json.dumps(["all_reduce", "attn.out", "tp", [0, 1], number, 64, "float32", -1, *times]))
        record(folder, f"u.rank{rank}.trace.jsonl", *rows)
    return folder


def test_a_fault_is_exit_code_1_and_its_json_has_the_fields_scripts_read(tmp_path: Path, capsys) -> None:
    assert main(["diagnose", str(late_folder(tmp_path)), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert set(found) >= {"findings", "unusable"}
    (one,) = found["findings"]
    assert one["class"] == "late_rank"
    assert one["original_fault"]["ranks"] == [1]
    assert set(one["original_fault"]) >= {"ranks", "device", "host", "link"}
    assert set(one) >= {"class", "original_fault", "first_reporter", "confidence", "evidence", "next", "recovery"}
    assert 0 < one["confidence"] <= 1
    assert one["evidence"]


def test_a_rank_that_is_a_little_late_is_json_too(tmp_path: Path, capsys) -> None:
    # 2 ms in calls that are 10 ms apart: a confidence below the highest, and computed.
    assert main(["diagnose", str(late_folder(tmp_path, late_ms=2)), "--json"]) == 1
    (one,) = json.loads(capsys.readouterr().out)["findings"]
    assert (one["class"], one["original_fault"]["ranks"]) == ("late_rank", [1])
    assert one["confidence"] == pytest.approx(0.8, abs=0.01)  # 0.6 and the fifth of the record that is waiting


def test_healthy_is_0_and_unusable_beside_usable_does_not_change_it(tmp_path: Path, capsys) -> None:
    record(tmp_path, "u.rank0.trace.jsonl", head(0), *[call(n, 10 * n + 1) for n in range(9)])
    record(tmp_path, "u.rank1.trace.jsonl", head(1), *[call(n, 10 * n + 1) for n in range(9)])
    (tmp_path / "noise").write_bytes(b"\x00\x01" * 99)
    assert main(["diagnose", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "no fault found in 2 ranks" in said
    assert "unusable: noise" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["diagnose", "nowhere"], "no such file"),
        (["diagnose", "{}"], "the file cannot be used: noise: "),
        (["diagnose", "{}", "--since", "10"], "since"),
        (["trace", "{}", "-o", "{}/x.json"], "cannot be used"),
        (["watch"], "neither a folder nor --ras"),
        (["watch", "--ras", "127.0.0.1:9"], "no answer"),
        (["watch", "{}", "--ras", "127.0.0.1:9", "--for", "10ms"], "no answer"),
    ],
)
def test_bad_input_is_2_with_one_line(tmp_path: Path, capsys, words: list[str], said: str) -> None:
    (tmp_path / "noise").write_bytes(b"\x00\x01" * 99)
    assert main([word.replace("{}", str(tmp_path)) for word in words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_the_first_screen_is_short_and_says_the_rest_is_there(tmp_path: Path) -> None:
    # 200 ranks, one late: one finding, twelve rows of the table.
    groups = {"tp": tuple(range(200))}
    found = diagnose(run(groups, [Step("tp", {**dict.fromkeys(range(200), 1.0), 77: 9.0})] * 30))
    lines = [line for line in screen(found) if isinstance(line, str)]
    assert any("188 more ranks: --all" in line for line in lines)
    assert len(wrapped(lines).split("\n")) + 13 <= 40
    assert "rank 77" in lines[2]


def test_since_keeps_the_newest(tmp_path: Path) -> None:
    found = run({"tp": (0, 1)}, [Step("tp", {0: 1, 1: 9})] * 50)  # 10 ms a call, half a second in all
    kept = since(found, 0.1)
    assert [len(rank.calls) for rank in kept.trace.ranks] == [11, 11]  # those that end within 100 ms of the last end
    assert [len(rank.calls) for rank in since(found, 60).trace.ranks] == [50, 50]


def test_trace_writes_what_perfetto_opens(tmp_path: Path, capsys) -> None:
    folder = late_folder(tmp_path / "evidence")
    assert main(["trace", str(folder), "-o", str(tmp_path / "t.json.gz")]) == 0
    assert "of 2 records" in capsys.readouterr().out
    events = json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 120


def test_from_python(tmp_path: Path) -> None:
    found = linkwise.diagnose(late_folder(tmp_path, late=0))
    assert [one.original_fault.ranks for one in found.findings] == [(0,)]
    with pytest.raises(linkwise.InputError, match="no evidence"):
        linkwise.diagnose()


def test_names_from_files_cannot_write_to_the_terminal(tmp_path: Path, capsys) -> None:
    record(tmp_path, "u.rank0.trace.jsonl", head(0).replace('"unit":""', '"unit":"\\u001b[2J"'), call(0))
    (tmp_path / "x\x1b[31m").write_bytes(b"\x00" * 9)
    main(["diagnose", str(tmp_path), "--all"])
    assert "\x1b" not in capsys.readouterr().out


def test_a_note_that_holds_for_many_files_is_one_line(tmp_path: Path) -> None:
    found = msgspec.structs.replace(
        run({"tp": (0, 1)}, [Step("tp", {0: 1, 1: 1})]),
        used=tuple(Used(f"rank_{rank}", "dump", ("no world", f"{rank} calls")) for rank in range(2)),
    )
    assert diagnose(found).notes == ("rank_0 and 1 more: no world", "rank_0: 0 calls", "rank_1: 1 calls")

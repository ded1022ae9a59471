"""A record comes back as it was given, within its bounds; what nobody of ours wrote is refused."""

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.full_disk import files_end_at

from linkwise.core.errors import InputError
from linkwise.trace.calls import of_events
from linkwise.trace.events import Anchor, Batch, Event, Handoff, Head, RankTrace, request_key
from linkwise.trace.readers import own
from linkwise.trace.readers.base import Source
from linkwise.trace.readers.own import read_file, read_folder
from linkwise.trace.writer import Row, Writer, note_fault, open_writer

HEAD = Head(
    rank=1, world=4, unit="replica 0", pool="prefill", host="node-a", device="H100", uuid="GPU-1", transport="nccl",
    shard={"tp": 1, "pp": 0}, layers=(0, 16), groups={"tp": (0, 1), "pp": (1, 3)}, anchor=Anchor(1_000, 5_000), pid=7,
)  # fmt: skip
HANDOFF = Handoff("ab12", "send", (2, 3), 10, 20, 30, 4096, 3, 2, 0, "prefill")


def row(number: int, axis: str = "tp") -> Row:
    began = 2_000 + number
    return Row("all_reduce", "attn.out", axis, HEAD.groups[axis], number, 4096, "bfloat16", -1, began, began, began + 5)


def writer(folder: Path, **bounds: Any) -> Writer:
    return open_writer(folder, HEAD, **{"turn_s": 0.0, **bounds})


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    made = writer(tmp_path / "a" / "b")
    made.add(row(0))
    made.batch(Batch(3, 2_001, ("ab12", ""), (1, 17)))
    made.add(row(1))
    made.add(Row("send", "pp.hidden", "pp", (1, 3), 0, 512, "float32", 3, 7, 7, 9))
    made.handoff(HANDOFF)
    made.open("mlp.out", 3, 2_500)
    made.close()
    made.close()
    (back,) = read_folder(tmp_path / "a" / "b").ranks
    assert back.head == HEAD
    assert tuple(back.calls) == (
        Event(-1, "tp", "attn.out", "all_reduce", 0, 4096, "bfloat16", -1, 2000, 2000, 2005, "done"),
        Event(3, "tp", "attn.out", "all_reduce", 1, 4096, "bfloat16", -1, 2001, 2001, 2006, "done"),
        Event(3, "pp", "pp.hidden", "send", 0, 512, "float32", 3, 7, 7, 9, "done"),
        Event(3, "", "mlp.out", "", -1, 0, "", -1, 2500, 2500, 0, "started"),
    )
    assert back.batches == (Batch(3, 2_001, ("ab12", ""), (1, 17)),)
    assert back.handoffs == (HANDOFF,)
    assert (back.lost, back.cut) == (0, False)


def test_the_thread_writes_without_being_asked(tmp_path: Path) -> None:
    made = writer(tmp_path, turn_s=0.01)
    made.add(row(0))
    deadline = time.monotonic() + 10
    while len(read_file(made.path).calls) < 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(read_file(made.path).calls) == 1
    made.close()


def test_a_full_buffer_keeps_the_newest_and_says_how_many_are_lost(tmp_path: Path) -> None:
    made = writer(tmp_path, events=10)
    for turn in (range(4), range(4, 40), range(40, 44)):
        for number in turn:
            made.add(row(number))
        made.flush()
    made.close()
    back = read_file(made.path)
    assert [event.sequence for event in back.calls] == [*range(4), *range(30, 40), *range(40, 44)]
    assert back.lost == 26


def test_files_are_bounded_and_keep_the_newest(tmp_path: Path) -> None:
    made = writer(tmp_path, file_bytes=20_000)
    for number in range(2_000):
        if number % 100 == 0:
            made.batch(Batch(number // 100, 1, (), ()))
        made.add(row(number))
        if number % 10 == 0:
            made.flush()
    made.close()
    assert len(list(tmp_path.iterdir())) == 2
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 24_000
    (back,) = read_folder(tmp_path).ranks
    sequences = [event.sequence for event in back.calls]
    assert sequences == list(range(sequences[0], 2_000))
    assert len(sequences) > 80
    inside = [event for event in back.calls if event.step >= 0]
    assert all(event.step == event.sequence // 100 for event in inside)
    assert len(inside) > len(back.calls) - 100


def test_what_a_killed_process_leaves_is_read(tmp_path: Path) -> None:
    made = writer(tmp_path)
    for number in range(3):
        made.add(row(number))
    made.close()
    made.path.write_bytes(made.path.read_bytes()[:-20])
    back = read_file(made.path)
    assert [event.sequence for event in back.calls] == [0, 1]
    assert back.cut


def test_a_disk_that_is_full_costs_events_which_are_counted_and_told(tmp_path: Path) -> None:
    made = writer(tmp_path)
    for number in range(10):
        made.add(row(number))
    made.flush()
    with files_end_at(made.path.stat().st_size + 100):  # one row and a half
        for number in range(10, 20):
            made.add(row(number))
        made.batch(Batch(3, 2_001, ("ab12", ""), (1, 17)))
        made.flush()
        assert (made.trouble, made.unwritten) == ("file too large", 11)
        reading = own.read(Source(made.path))
        (back,) = reading.ranks
        assert [event.sequence for event in back.calls] == [*range(10)]
        assert back.cut
        assert reading.notes == (f"record of rank {HEAD.rank} ends early: the disk took no more",)
        made.add(row(20))
        made.flush()
        assert made.unwritten == 12
    made.add(row(21))
    made.close()
    assert made.trouble == ""
    back = read_file(made.path)
    assert [event.sequence for event in back.calls] == [*range(10), 21]
    assert (back.lost, back.cut) == (11, False)


def test_a_disk_that_is_full_from_the_start_leaves_no_file_without_a_first_line(tmp_path: Path) -> None:
    with files_end_at(10):
        made = writer(tmp_path)
        assert made.trouble == "file too large"
        made.add(row(0))
        made.flush()
        assert list(tmp_path.iterdir()) == []
        assert note_fault(tmp_path, "a", (0,), "dead", "gone") == "file too large"
        assert [path.stat().st_size for path in tmp_path.iterdir()] == [0]
    made.add(row(1))
    made.close()
    back = read_file(made.path)
    assert ([event.sequence for event in back.calls], back.lost) == ([1], 1)


def test_times_of_day() -> None:
    trace = RankTrace(head=HEAD, calls=of_events([]), anchors=(Anchor(1_000, 5_000), Anchor(2_000, 6_010)))
    assert trace.unix_ns(900) == 4_900
    assert trace.unix_ns(1_999) == 5_999
    assert trace.unix_ns(2_500) == 6_510
    assert RankTrace(head=HEAD, calls=of_events([])).unix_ns(1_500) == 5_500


def test_keys_of_requests() -> None:
    key = request_key("req-1", b"secret")
    assert key == hashlib.blake2b(b"req-1", key=b"secret", digest_size=8).hexdigest()
    assert request_key("req-1", b"other") != key
    for bad in (b"", b"x" * 65):
        with pytest.raises(InputError, match="trace key"):
            request_key("req-1", bad)


CALL = ["all_reduce", "attn.out", "tp", [0, 1], 0, 4096, "bfloat16", -1, 5, 5, 6]


@pytest.mark.parametrize(
    "line",
    [
        "nonsense", "", "{}", "[]", '["step"]', "1", "null", '["step", 1, 1, ["ab"], []]',
        '["step", 1, 1, ["AB"], [1]]',
        '["lost", -1]', '["clock", 1]', '["handoff", "ab", "give", [], 1, 1, 1, 1, 1, 1, 1, ""]', "[" * 100_000,
        json.dumps([*CALL[:2], "dp", *CALL[3:]]), json.dumps([*CALL[:3], [0, 2], *CALL[4:]]),
        json.dumps(["prompt", *CALL[1:]]), json.dumps([*CALL[:4], 2**70, *CALL[5:]]), json.dumps([*CALL[:8], 5, 5, 4]),
        json.dumps([CALL[0], "x" * 201, *CALL[2:]]), json.dumps([*CALL, 1]), json.dumps(CALL[:-1]),
        json.dumps([*CALL[:5], -1, *CALL[6:]]),
    ],
)  # fmt: skip
def test_lines_of_others_are_refused(tmp_path: Path, line: str) -> None:
    made = writer(tmp_path)
    made.close()
    with made.path.open("a") as file:
        file.write(json.dumps(CALL) + "\n" + line + "\n")
    with pytest.raises(InputError, match="line 3"):
        read_file(made.path)


@pytest.mark.parametrize(
    "change",
    [{"rank": 4}, {"rank": -1}, {"world": 0}, {"groups": {"tp": [0, 4]}}, {"schema": "linkwise.trace/2"}, {"more": 1},
     {"host": "x" * 201}],
)  # fmt: skip
def test_first_lines_of_others_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    made = writer(tmp_path)
    made.close()
    head = json.loads(made.path.read_text())
    made.path.write_text(json.dumps(head | change) + "\n")
    with pytest.raises(InputError, match=made.path.name):
        read_file(made.path)


def test_folders_without_a_trace(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(InputError, match=folder.name):
            read_folder(folder)
    (tmp_path / "empty.trace.jsonl").write_bytes(b"")
    with pytest.raises(InputError, match="first line"):
        read_folder(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError):
        writer(tmp_path / "file")

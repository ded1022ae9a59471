"""A rank's record ends with the call it was in, however its process ends; and says what time on a core it was given."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from linkwise.trace.events import Event, Head
from linkwise.trace.gather import gather
from linkwise.trace.readers.own import read_file
from linkwise.trace.writer import OPEN, Cpu, Open, Row, Slot, Writer, note_fault, open_writer

HEAD = Head(rank=1, world=2, unit="u", host="h", groups={"tp": (0, 1)})
DONE = Row("all_reduce", "attn.out", "tp", (0, 1), 0, 64, "float32", -1, 10, 10, 12)
UNDER = Open("open", "mlp.out", 4, 20, "all_reduce", "tp", 7, 4096, "bfloat16", -1)
EVENT = Event(4, "tp", "mlp.out", "all_reduce", 7, 4096, "bfloat16", -1, 20, 20, 0, "started")


def begun(folder: Path) -> tuple[Writer, Slot]:
    made = open_writer(folder, HEAD, turn_s=0)
    made.begin_slot()
    made.add(DONE)
    made.flush()
    assert made.slot is not None
    return made, made.slot


def test_the_call_a_killed_process_was_in_is_known_whole(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path; from tests.trace.test_open_call import *;"
        " made, slot = begun(Path(sys.argv[1])); slot.enter(UNDER); os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=Path(__file__).parents[2], check=False)
    assert ended.returncode == -signal.SIGKILL
    (rank,) = gather([tmp_path]).trace.ranks
    assert list(rank.calls)[1:] == [EVENT]


def test_between_calls_there_is_none(tmp_path: Path) -> None:
    made, slot = begun(tmp_path)
    slot.enter(UNDER)
    slot.leave()
    assert len(read_file(made.path).calls) == 1
    assert not gather([tmp_path]).unusable


def test_a_call_that_is_in_the_record_is_not_there_twice(tmp_path: Path) -> None:
    made, slot = begun(tmp_path)
    slot.enter(Open("open", DONE.role, 4, DONE.started_ns, *DONE[0:1], "tp", 0, 64, "float32", -1))
    assert [event.state for event in read_file(made.path).calls] == ["done"]


@pytest.mark.parametrize("bad", [b'["open","mlp.out",4', b'["open",1,2,3]\n', b"[[[[", b"\xff" * 40])
def test_one_that_was_being_written_is_left_out(tmp_path: Path, bad: bytes) -> None:
    made, slot = begun(tmp_path)
    slot._memory[Slot.AT : Slot.AT + len(bad)] = bad
    assert len(read_file(made.path).calls) == 1
    beside = next(tmp_path.glob(f"*{OPEN}"))
    beside.write_bytes(b"")
    assert len(read_file(made.path).calls) == 1


def test_a_rank_that_ends_well_leaves_no_such_file(tmp_path: Path) -> None:
    made, slot = begun(tmp_path)
    slot.remove()
    made.close()
    assert [path.name.endswith(OPEN) for path in tmp_path.iterdir()] == [False]


def test_time_on_a_core_is_read_back_as_counters(tmp_path: Path) -> None:
    made = open_writer(tmp_path, HEAD, turn_s=0)
    made.usage = lambda: Cpu("cpu", 5_000, 7_000, 20, 3, 900, 1_000)
    made.close()
    found = {fact.name: fact.value for fact in gather([tmp_path]).facts if fact.kind == "counter"}
    assert found == {
        "cpu.run_ns": 5_000, "cpu.run_delay_ns": 7_000, "cpu.nr_periods": 20, "cpu.nr_throttled": 3,
        "cpu.throttled_us": 900,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("message", "code"),
    [("rank 1 was ended by SIGABRT", -signal.SIGABRT), ("rank 1 ended with code 70 (words)", 70),
     ("rank 1 was ended by signal 77", -77), ("rank 1 closed its socket", 0), ("rank 11 ended with code 70", 0)],
)  # fmt: skip
def test_how_a_process_ended_is_read_from_what_its_driver_said(tmp_path: Path, message: str, code: int) -> None:
    note_fault(tmp_path, "u", (1,), "dead", message)
    (fact,) = gather([tmp_path]).facts
    assert (fact.kind, fact.rank, fact.value) == ("exit", 1, code)

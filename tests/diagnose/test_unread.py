"""A record that cannot be read, or that ends early, never makes its rank the culprit: what it did is not known."""

import json
import os
from pathlib import Path

import msgspec
import pytest
from tests.diagnose.made import evidence
from tests.diagnose.made_facts import fact
from tests.diagnose.test_hang import FOUR, calls, named
from tests.trace.readers.torch_pickle import dumps

from linkwise.diagnose.diagnose import diagnose
from linkwise.trace.gather import gather
from linkwise.trace.whose import Unusable

WORLD = 4
BEGAN = 1_700_000_000_000_000_000


def dump(calls: int = 5, began: int = BEGAN) -> dict[str, object]:
    """A flight recorder's dump: calls of all four ranks, the last of which nobody left."""
    entries = [
        {
            "record_id": number, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number,
            "p2p_seq_id": 0, "op_id": number, "profiling_name": "nccl:all_reduce",
            "time_created_ns": began + number * 10**8, "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None if number == calls - 1 else began + number * 10**8 + 10**6,
            "duration_ms": None, "input_sizes": [[64]], "input_dtypes": ["BFloat16"], "output_sizes": [[64]],
            "output_dtypes": ["BFloat16"], "state": "scheduled" if number == calls - 1 else "completed",
            "is_p2p": False, "retired": number < calls - 1, "timeout_ms": 600000,
        }
        for number in range(calls)
    ]  # fmt: skip
    return {
        "version": "2.9", "nccl_version": "2.27.3",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}},
        "pg_status": {
            "0": {
                "last_enqueued_collective": calls - 1, "last_started_collective": -1,
                "last_completed_collective": calls - 2,
            }
        },
        "entries": entries,
    }  # fmt: skip


def written(folder: Path, *, as_json: bool = False) -> Path:
    for rank in range(WORLD):
        data = json.dumps(dump()).encode() if as_json else dumps(dump())
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data)
    return folder


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.95])
@pytest.mark.parametrize("as_json", [False, True])
def test_a_dump_cut_anywhere_leaves_it_undecided_and_is_named(tmp_path: Path, share: float, as_json: bool) -> None:
    broken = written(tmp_path, as_json=as_json) / "nccl_trace_rank_2"
    whole = diagnose(gather([tmp_path]))
    assert named(whole) == [("hang", (), False)]  # all four stand in call 4, and nothing says why
    os.truncate(broken, int(share * broken.stat().st_size))
    found = diagnose(gather([tmp_path]))
    assert named(found) == [("hang", (), False)]
    assert found.exit_code == 3
    assert "the record of rank 2 cannot be used" in found.findings[0].summary
    assert found.findings[0].evidence[0].startswith("nccl_trace_rank_2: ")


def test_where_a_pickle_ends_is_said(tmp_path: Path) -> None:
    broken = written(tmp_path) / "nccl_trace_rank_2"
    os.truncate(broken, 500)
    (bad,) = gather([tmp_path]).unusable
    assert bad.reason.startswith("ends in the middle, after 500 bytes")


def test_a_rank_without_any_file_is_named_as_before(tmp_path: Path) -> None:
    (written(tmp_path) / "nccl_trace_rank_2").unlink()
    assert named(diagnose(gather([tmp_path]))) == [("dead_rank", (2,), True)]


def test_its_process_ended_all_the_same(tmp_path: Path) -> None:
    os.truncate(written(tmp_path) / "nccl_trace_rank_2", 500)
    ends = (fact("exit", "dead", -9, rank=2, text="rank 2 was ended by SIGKILL"),)
    found = diagnose(msgspec.structs.replace(gather([tmp_path]), facts=ends))
    assert named(found)[0] == ("dead_rank", (2,), True)


@pytest.mark.parametrize(
    ("bad", "decided"),
    [
        (Unusable("host_12.pt.trace.json", "JSON that breaks off", record=True), False),  # it may be rank 3's
        (Unusable("notes.docx", "no format of evidence recognised"), True),
        (Unusable("x.rank3.json", "empty", record=True, rank=3), False),
        (Unusable("x.rank2.json", "empty", record=True, rank=2), True),  # another record of rank 2 was read
        (Unusable("x.rank3.json", "empty", record=True, rank=3, unit="other"), True),
    ],
)
def test_a_missing_rank_is_named_only_where_no_file_that_was_not_read_can_be_its(bad: Unusable, decided: bool) -> None:
    rows = {rank: calls(6, open_last=True) for rank in (0, 1, 2)}
    found = diagnose(msgspec.structs.replace(evidence(rows, FOUR, world=4), unusable=(bad,)))
    assert named(found) == [("dead_rank", (3,), True) if decided else ("hang", (), False)]


def test_a_record_that_ends_early_does_not_show_that_its_rank_stands() -> None:
    rows = {rank: calls(6, open_last=True) for rank in (0, 1, 3)} | {2: calls(5)}
    made = evidence(rows, FOUR, world=4)
    ranks = tuple(msgspec.structs.replace(rank, cut=rank.head.rank == 2) for rank in made.trace.ranks)
    cut = msgspec.structs.replace(made, trace=msgspec.structs.replace(made.trace, ranks=ranks))
    assert named(diagnose(made)) == [("stopped_rank", (2,), True)]
    assert named(diagnose(cut)) == [("hang", (), False)]
    assert "the record of rank 2 ends early" in diagnose(cut).findings[0].summary


HOUR_NS = 3600 * 10**9


@pytest.mark.parametrize(
    ("calls", "shift_ns", "used"),
    [
        (3, -2 * HOUR_NS, False),  # left over: its last call is over on the others
        (9, -2 * HOUR_NS, False),  # left over from a run that came further
        (9, HOUR_NS, False),  # the other way round
        (5, -2 * HOUR_NS, True),  # in the same call: its clock is wrong, and nothing else
        (3, -2 * 10**9, True),  # seconds: taken a little earlier, or a clock
    ],
)
def test_a_record_of_another_time_and_count_is_left_over(tmp_path: Path, calls: int, shift_ns: int, used: bool) -> None:
    (written(tmp_path) / "nccl_trace_rank_2").write_bytes(dumps(dump(calls, BEGAN + shift_ns)))
    found = diagnose(gather([tmp_path]))
    assert len(found.used) == (4 if used else 3)
    assert len(found.unusable) == (0 if used else 1)
    if not used:
        assert named(found) == [("hang", (), False)]
        assert "the record of rank 2 cannot be used" in found.findings[0].summary
        assert f"{'older' if shift_ns < 0 else 'younger'} than those of the other records" in found.unusable[0].reason
        assert found.exit_code == 3


def test_of_two_halves_neither_is_left_over(tmp_path: Path) -> None:
    for rank in (2, 3):
        (written(tmp_path) if rank == 2 else tmp_path).joinpath(f"nccl_trace_rank_{rank}").write_bytes(
            dumps(dump(3, BEGAN - HOUR_NS))
        )
    assert diagnose(gather([tmp_path])).unusable == ()

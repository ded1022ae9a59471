"""Labelled evidence: exactly the injected ranks, and no other rank blamed.

Labels are those of the shared data's FORMATS.md and of the logs beside the dumps. Nothing of it is copied here.
"""

from pathlib import Path

import pytest

from linkwise.diagnose.diagnose import diagnose
from linkwise.trace.gather import gather

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "diagnosis"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the shared reference data is not beside the repository")

STOPPED = {"stopped_rank", "dead_rank"}
LABELS = [
    ("flight_recorder/gpu_error_1st", {12, 14}, {"device_error"}),  # GPU fault injected on 12 and 14
    ("flight_recorder/lock_gil_1st", {9, 14}, STOPPED),  # Python's lock held on 9 and 14
    ("flight_recorder_gloo/count_mismatch", {2}, {"skipped_collective", "op_mismatch"}),  # 2 skips an all-reduce
    ("flight_recorder_gloo/shape_mismatch", {3}, STOPPED | {"size_mismatch"}),  # 3 brings 512 of 1024; it has no dump
    ("flight_recorder_gloo/late_rank", {2}, {"late_rank"}),  # 2 comes 200 ms late ten times
    ("straggler_bytedance/trace-AR.parquet", {0}, {"late_rank"}),  # one slow worker: rank 0 takes 2.5 times as long
    ("straggler_bytedance/trace-ST.parquet", {6, 7}, {"stage_imbalance"}),  # a long last stage: the fourth, ranks 6, 7
    ("kineto_gloo_generated", {2}, {"late_rank"}),  # 2 sleeps 5 ms before every all-reduce
]


@pytest.mark.parametrize(("folder", "ranks", "classes"), LABELS, ids=[label[0] for label in LABELS])
def test_exactly_the_injected_ranks(folder, ranks, classes):
    found = diagnose(gather([DATA / folder]))
    assert {rank for one in found.findings for rank in one.original_fault.ranks} == ranks
    assert {one.class_ for one in found.findings} <= classes
    assert found.exit_code == 1


@pytest.mark.parametrize("lost", range(16))
@pytest.mark.parametrize(("folder", "ranks"), [("gpu_error_1st", {12, 14}), ("lock_gil_1st", {9, 14})])
def test_a_faulty_rank_whose_dump_is_absent_is_named_all_the_same(tmp_path, folder, ranks, lost):
    # FORMATS.md: the dump of such a rank can be empty or absent. A healthy rank's absent dump blames nobody.
    for dump in (DATA / "flight_recorder" / folder).glob("_dump_*"):
        if dump.name != f"_dump_{lost}":
            (tmp_path / dump.name).symlink_to(dump)
    found = diagnose(gather([tmp_path]))
    assert {rank for one in found.findings for rank in one.original_fault.ranks} == ranks


def test_two_jobs_in_one_folder_stay_apart():
    found = diagnose(gather([DATA / "flight_recorder"]))
    named = {(one.original_fault.unit, rank) for one in found.findings for rank in one.original_fault.ranks}
    assert named == {("gpu_error_1st", 12), ("gpu_error_1st", 14), ("lock_gil_1st", 9), ("lock_gil_1st", 14)}

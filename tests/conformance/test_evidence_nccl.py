"""Readers of flight-recorder dumps, RAS reports and Inspector lines against real ones.

Expected values were worked out by hand from the files: read in a pickle printer (dumps) or as they stand (the rest).
"""

from pathlib import Path

import pytest

from linkwise.trace.events import Mark, RankTrace
from linkwise.trace.facts import Fact
from linkwise.trace.readers import flight_recorder, inspector, ras
from linkwise.trace.readers.base import Reader, Reading, Source

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "diagnosis"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the reference data is not beside the repository")
GPU_ERROR, LOCK_GIL = "flight_recorder/gpu_error_1st", "flight_recorder/lock_gil_1st"


def read(reader: Reader, name: str) -> Reading:
    source = Source(DATA / name, where=name)
    assert reader.recognises(source)
    return reader.read(source)


def dump(name: str) -> RankTrace:
    (rank,) = read(flight_recorder, name).ranks
    return rank


@pytest.mark.parametrize(
    ("folder", "entries"),
    [
        (GPU_ERROR, [20, 20, 20, 20, 8, 8, 8, 8, 19, 19, 19, 19, 27, 16, 43, 15]),
        (LOCK_GIL, [11, 11, 11, 11, 11, 11, 11, 11, 9, 0, 9, 9, 9, 9, 0, 9]),
    ],
)
def test_dumps_of_a_training_job(folder: str, entries: list[int]) -> None:
    """Sixteen ranks of PyTorch, format 2.9, with the calls that were not done alone."""
    ranks = [dump(f"{folder}/_dump_{n}") for n in range(16)]
    assert [rank.head.rank for rank in ranks] == list(range(16))
    assert {rank.head.world for rank in ranks} == {16}
    assert {rank.head.transport for rank in ranks} == {"nccl"}
    assert [len(rank.calls) for rank in ranks] == entries
    assert all(rank.only_open for rank in ranks)
    members: dict[str, tuple[int, ...]] = {}
    for rank in ranks:
        for key, group in rank.head.groups.items():
            assert members.setdefault(key, group) == group
            assert rank.head.rank in group
    assert members["default_pg:0"] == tuple(range(16))


def test_calls_of_rank_0() -> None:
    calls = list(dump(f"{GPU_ERROR}/_dump_0").calls)
    # Rank 0 of [0, 4, 8, 12] sends to rank 3 of them: world rank 12. 4096 x 1 x 5120 bfloat16 are 41,943,040 bytes.
    assert calls[0] == (
        -1, "PIPELINE_MODEL_PARALLEL_GROUP:43|p2p", "", "send", 11981, 41_943_040, "bfloat16", 12,
        1758610505592849034, 0, 0, "scheduled",
    )  # fmt: skip
    assert [(c.op, c.sequence, c.S_bytes, c.dtype) for c in calls if c.group == "TENSOR_MODEL_PARALLEL_GROUP:35"] == [
        ("all_gather", 39407, 83_886_080, "bfloat16"),  # to 8192 x 1 x 5120
        ("reduce_scatter", 39408, 83_886_080, "bfloat16"),  # from 8192 x 1 x 5120
        ("all_gather", 39409, 41_943_040, "uint8"),
        ("all_gather", 39410, 41_943_040, "uint8"),
        ("reduce_scatter", 39411, 83_886_080, "bfloat16"),
        ("broadcast", 39412, 65_536, "int64"),
        ("broadcast", 39413, 65_536, "int64"),
        ("all_gather", 39414, 41_943_040, "uint8"),
        ("reduce_scatter", 39415, 83_886_080, "bfloat16"),
        ("all_gather", 39416, 83_886_080, "bfloat16"),
    ]
    assert [(c.op, c.S_bytes) for c in calls if c.group == "EXPERT_MODEL_PARALLEL_GROUP:71"] == [
        ("all_to_all", 41_943_040), ("all_to_all", 42_055_680), ("all_to_all", 8_214),
    ]  # fmt: skip


def test_how_far_ranks_got_in_the_job_with_device_errors() -> None:
    """12 and 14, where the errors were injected, have completed less than 13 and 15 of the group they share."""
    marks = {n: {mark.group: mark for mark in dump(f"{GPU_ERROR}/_dump_{n}").marks} for n in range(12, 16)}
    key = "EXPERT_MODEL_PARALLEL_GROUP:74"
    assert [(marks[n][key].enqueued, marks[n][key].completed) for n in range(12, 16)] == [
        (20536, 20529), (20538, 20536), (20538, 20529), (20538, 20536),
    ]  # fmt: skip
    # Groups of which no entry is left have their names by the order of their making: equal counts on all members.
    for n in range(16):
        found = dump(f"{GPU_ERROR}/_dump_{n}").marks
        assert Mark("INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP:112", 104, -1, 104) in found
        assert Mark("EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP:95", 26, -1, 26) in found
        assert Mark("default_pg:0", 163, -1, 163) in found
        assert not any(mark.group.startswith("pg ") for mark in found)


def test_how_far_ranks_got_in_the_job_with_held_locks() -> None:
    """9 and 14, whose Python lock was held, have no entry and are five calls behind those of their tensor group."""
    for ranks, name, held in ((range(8, 12), "37", 9), (range(12, 16), "38", 14)):
        key = f"TENSOR_MODEL_PARALLEL_GROUP:{name}"
        marks = {n: next(m for m in dump(f"{LOCK_GIL}/_dump_{n}").marks if m.group == key) for n in ranks}
        assert {n: mark.enqueued for n, mark in marks.items()} == dict.fromkeys(ranks, 88688) | {held: 88683}
        assert {mark.completed for mark in marks.values()} == {88683}
    first = {mark.group: mark for mark in dump(f"{LOCK_GIL}/_dump_0").marks}
    assert first["default_pg:0|p2p"] == Mark("default_pg:0|p2p", 14146, -1, 14145)  # its only entry there is a recv


def test_gloo_a_rank_that_skips_a_call() -> None:
    """count_mismatch: rank 2's sixth call is the all_gather of 4 x 8 floats that comes after the one it skipped."""
    ranks = [dump(f"flight_recorder_gloo/count_mismatch/rank_{n}") for n in range(4)]
    assert [(c.op, c.S_bytes, c.state) for rank in ranks for c in rank.calls if c.sequence == 6] == [
        ("all_reduce", 4096, "done"), ("all_reduce", 4096, "done"), ("all_gather", 128, "scheduled"),
        ("all_reduce", 4096, "done"),
    ]  # fmt: skip
    assert {rank.head.world for rank in ranks} == {4}
    assert ranks[0].head.groups == {"default_pg:0": (0, 1, 2, 3)}
    assert not any(rank.only_open for rank in ranks)
    assert ranks[2].marks == (Mark("default_pg:0", 6, -1, 5),)


def test_gloo_a_rank_with_another_shape() -> None:
    """shape_mismatch: the dumps of 0, 1 and 2, seven calls each; rank 3 left none."""
    for n in range(3):
        calls = list(dump(f"flight_recorder_gloo/shape_mismatch/rank_{n}").calls)
        assert [c.op for c in calls] == ["all_reduce"] * 5 + ["broadcast", "all_reduce"]
        assert {c.S_bytes for c in calls} == {4096}
        assert [c.state for c in calls] == ["done"] * 6 + (["scheduled"] if n == 2 else ["done"])


def test_gloo_a_late_rank() -> None:
    """late_rank: from its sixth call on rank 2 comes some 200 ms after the first of the others, ten times."""
    ranks = [list(dump(f"flight_recorder_gloo/late_rank/rank_{n}").calls) for n in range(4)]
    late = [
        (ranks[2][n].created_ns - min(ranks[other][n].created_ns for other in (0, 1, 3))) / 1e6 for n in range(5, 15)
    ]
    assert all(195 < ms < 215 for ms in late)


@pytest.mark.parametrize("name", ["count_mismatch", "shape_mismatch", "late_rank"])
def test_json_and_pickle_of_a_rank_say_the_same(name: str) -> None:
    """Where they were written at the same moment; the JSON of rank 2 of the mismatches is later: its call had ended."""
    for n in range(3):
        pickled = dump(f"flight_recorder_gloo/{name}/rank_{n}")
        spelled = dump(f"flight_recorder_gloo/{name}/json_rank{n}.json")
        assert spelled.head == pickled.head
        if n < 2 or name == "late_rank":
            assert list(spelled.calls) == list(pickled.calls)
            assert spelled.marks == pickled.marks
        else:
            assert [c.state for c in spelled.calls] == ["done"] * len(pickled.calls)


def told(facts: tuple[Fact, ...], kind: str) -> list[tuple[str, int, float]]:
    return [(fact.name, fact.rank, fact.value) for fact in facts if fact.kind == kind]


def test_ras_healthy() -> None:
    reading = read(ras, "nccl_ras/ray_healthy_2.28.9.json")
    assert told(reading.facts, "launched") == [("all_reduce", 0, 2), ("all_reduce", 1, 2)]
    assert told(reading.facts, "status") == [("ok", -1, 0)]
    assert reading.notes == ()


def test_ras_with_a_dead_rank_and_a_missing_comma() -> None:
    reading = read(ras, "nccl_ras/ray_dead_rank_MALFORMED_2.28.9.json")
    assert told(reading.facts, "missing") == [("unresponsive", 1, 0)]
    assert told(reading.facts, "launched") == [("all_reduce", 0, 4)]
    missing = next(fact for fact in reading.facts if fact.kind == "missing")
    assert (missing.host, missing.label("pid"), missing.label("device")) == ("10.0.77.184", "10017", "gpu1")
    assert len(reading.notes) == 1


def test_ras_with_three_communicators() -> None:
    """Process 10207, rank 1 of the first pair, is rank 3 of all four: it has launched 3 where 10205 has launched 10."""
    facts = read(ras, "nccl_ras/ray_multicomm_mismatch_2.28.9.json").facts
    first = [fact for fact in facts if fact.kind == "launched" and fact.label("communicator") == "0x4e0104c2022fa2f9"]
    assert [(fact.rank, fact.value, fact.label("pid")) for fact in first] == [(2, 10, "10205"), (3, 3, "10207")]
    assert {fact.group for fact in first} == {(2, 3)}
    assert [fact.name for fact in facts if fact.kind == "status"] == ["mismatch", "ok", "ok"]


def test_ras_that_says_ok_and_a_watchdog_that_does_not() -> None:
    facts = read(ras, "nccl_ras/issue_1730_healthy_but_hung.txt").facts
    assert told(facts, "status") == [("ok", -1, 0)]
    assert facts[0].group == tuple(range(256))
    (dog,) = [fact for fact in facts if fact.kind == "watchdog"]
    assert (dog.rank, dog.value, dog.label("op"), dog.label("group")) == (118, 1800.068, "all_reduce", "default_pg:0")
    assert (dog.label("sequence"), dog.label("enqueued"), dog.label("completed")) == ("2398459", "2398578", "2398458")
    assert dog.label("timeout_s") == "1800"


def test_inspector() -> None:
    """5663 us before the dump at 1772585717263338 us."""
    (rank,) = read(inspector, "nccl_inspector/real_worker0_one_line.jsonl").ranks
    assert (rank.head.rank, rank.head.world, rank.head.host, rank.head.pid) == (1, 3, "nanogpt-nccl-test-worker-0", 48)
    (call,) = rank.calls
    assert (call.op, call.sequence, call.S_bytes) == ("all_reduce", 8995, 2_360_832)
    assert (call.started_ns, call.ended_ns) == (1_772_585_717_257_675_000, 1_772_585_717_263_338_000)

"""Published profiler traces, straggler tables and monitors' metrics, read as they are.

Expected values are worked out by hand from the files: a time is the file's `ts` in us plus its `baseTimeNanoseconds`,
a size the elements it names times the bytes of its dtype.
"""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from linkwise.core.errors import InputError
from linkwise.trace.events import Event, RankTrace
from linkwise.trace.readers import kineto, prometheus, straggler
from linkwise.trace.readers.base import Reading, Source

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "diagnosis"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the reference data is not beside the repository")


def read(name: str) -> Reading:
    source = Source(DATA / name)
    assert kineto.recognises(source)
    return kineto.read(source)


def rank(name: str) -> RankTrace:
    return read(name).ranks[0]


def calls(name: str) -> list[Event]:
    return [call for call in rank(name).calls if call.op != "compute"]


def traces() -> list[str]:
    return [
        str(path.relative_to(DATA))
        for folder in ("kineto_hta", "kineto_inference", "kineto_gloo_generated")
        for path in sorted((DATA / folder).glob("*"))
        if path.name != "LICENSE"
    ]


NO_TRACES = {"execution_trace__benchmark_simple_add_et.json.gz": "an execution trace",
             "memory_analysis__memory_timeline.raw.gz": "a memory timeline"}  # fmt: skip


@pytest.mark.parametrize("name", traces())
def test_every_trace_is_read_or_refused_with_a_reason(name: str) -> None:
    why = NO_TRACES.get(name.rpartition("/")[2])
    if why:
        with pytest.raises(InputError, match=why.removeprefix("a").removeprefix("n").strip()):
            read(name)
        return
    (found,) = read(name).ranks
    assert len(found.calls)
    assert not found.cut
    assert found.lost == 0
    assert (found.calls.ended_ns >= found.calls.started_ns)[found.calls.ended_ns > 0].all()


@pytest.mark.parametrize("number", range(4))
def test_gloo_shows_who_came_late(number: int) -> None:
    """Rank 2 sleeps 5 ms before every all-reduce: between the end of its own work and the moment it asks for the call.

    Of 32 all-reduces the others take 0.2 ms at most for it. 4 all-gathers of 64 floats a rank are there too.
    """
    found = rank(f"kineto_gloo_generated/rank{number}.pt.trace.json.gz")
    assert (found.head.rank, found.head.world, found.head.host, found.head.transport) == (number, 4, "vm", "gloo")
    assert found.head.groups == {"default_pg:0": (0, 1, 2, 3)}
    rows = list(found.calls)
    reduces = [call for call in rows if call.op == "all_reduce"]
    assert (len(reduces), {call.S_bytes for call in reduces}) == (32, {65536 * 4})
    assert {call.S_bytes for call in rows if call.op == "all_gather"} == {64 * 4 * 4}
    assert [call.sequence for call in rows if call.group] == list(range(36))
    assert all(0 < call.created_ns <= call.started_ns < call.ended_ns for call in reduces)
    gaps = [b.created_ns - a.ended_ns for a, b in pairwise(rows) if b.op == "all_reduce"]
    assert len(gaps) == 32
    assert min(gaps) >= 5_000_000 if number == 2 else max(gaps) < 200_000
    assert {call.step for call in rows} == {2, 3, 4, 5}


def test_gloo_times() -> None:
    """Rank 2's first all-gather: asked for at 5119062744351.768 us, run from 5119062744407.972 for 1022.132 us."""
    first = next(c for c in calls("kineto_gloo_generated/rank2.pt.trace.json.gz") if c.op == "all_gather")
    base = 1790857026000000000
    assert abs(first.created_ns - (base + 5119062744351768)) <= 1  # a double of us has these to 1 ns
    assert abs(first.started_ns - (base + 5119062744407972)) <= 1
    assert abs(first.ended_ns - first.started_ns - 1022132) <= 1


def test_arguments_of_nccl() -> None:
    """External id 114: a broadcast of 53120 floats, asked for at 4458676423264.031 us, on the device at
    4458676423385.774 for 30.975 us. 6 broadcasts and 15 all-reduces in all."""
    found = rank("kineto_hta/nccl_parser_config__nccl_data.json.gz")
    assert found.head.groups == {"default_pg:0": (0, 1)}
    rows = [call for call in found.calls if call.op != "compute"]
    assert Counter(call.op for call in rows) == {"all_reduce": 15, "broadcast": 6}
    first = rows[0]
    base = 1711964646000000000
    assert (first.op, first.group, first.S_bytes, first.dtype) == ("broadcast", "default_pg:0", 53120 * 4, "float32")
    assert abs(first.created_ns - (base + 4458676423264031)) <= 1
    assert abs(first.started_ns - (base + 4458676423385774)) <= 1
    assert abs(first.ended_ns - first.started_ns - 30975) <= 1
    assert [call.sequence for call in rows] == list(range(21))
    assert {call.step for call in rows} == {4, 5, 6}


def test_an_old_trace_without_arguments() -> None:
    """2020 kernels of AllReduce; the first at 1669783687571046 us for 15 us, launched in the annotation that begins at
    1669783687570242, the last one ends at 1669783689090163."""
    reading = read("kineto_hta/df_index_resolver__df_index_resolver.json.gz")
    rows = [call for call in reading.ranks[0].calls if call.op != "compute"]
    assert Counter((call.op, call.dtype, call.group) for call in rows) == {("all_reduce", "float32", ""): 2020}
    assert rows[0].created_ns == 1669783687570242_000
    assert (rows[0].started_ns, rows[0].ended_ns) == (1669783687571046_000, 1669783687571061_000)
    assert rows[-1].ended_ns == 1669783689090163_000
    assert reading.ranks[0].head.device == "gpu1"
    assert any("process group" in note for note in reading.notes)


def test_sizes_from_recorded_shapes() -> None:
    """Every kernel is called SendRecv; the annotations say what they are: all-reduces of float, all-to-alls of bytes,
    longs and ints, all-gathers of 16777216 bytes a rank into 1073741824."""
    rows = calls("kineto_hta/timeline_analysis__sampled_rank-0.json.gz")
    assert Counter((call.op, call.S_bytes, call.dtype) for call in rows) == {
        ("all_reduce", 19618307 * 4, "float32"): 1,
        ("all_reduce", 26955536 * 4, "float32"): 1,
        ("all_reduce", 26258430 * 4, "float32"): 1,
        ("all_reduce", 5716654 * 4, "float32"): 1,
        ("all_to_all", 384 * 8, "int64"): 1,
        ("all_to_all", 419430400, "uint8"): 2,
        ("all_to_all", 2846720 * 4, "int32"): 1,
        ("all_gather", 1073741824, "int8"): 2,
    }
    assert all(call.started_ns > 0 for call in rows)


def test_collectives_of_one_rank_have_no_kernels() -> None:
    """25 all-reduces and 10 broadcasts in a group of one: NCCL launches nothing. Waits are no calls."""
    reading = read("kineto_hta/ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz")
    rows = [call for call in reading.ranks[0].calls if call.op != "compute"]
    assert Counter(call.op for call in rows) == {"all_reduce": 25, "broadcast": 10}
    assert {call.started_ns for call in rows} == {0}
    assert any(note.startswith("35 calls have no kernel") for note in reading.notes)


def test_a_decode_step_on_amd() -> None:
    """558 kernels and copies of one rank are two rows: one before the step's annotation, which begins at
    4909914216408.42 us, and the step, whose first kernel begins at 4909914679584.875 and last ends at
    4909914690035.167. Most of it is matmul (Cijk_...)."""
    rows = list(rank("kineto_inference/sglang_decode__sglang_Qwen3-8B_decode.json.gz").calls)
    base = 1775078550000000000
    assert [(call.op, call.role, call.step) for call in rows] == [("compute", "other", -1), ("compute", "matmul", 0)]
    assert abs(rows[1].started_ns - (base + 4909914679584875)) <= 1
    assert abs(rows[1].ended_ns - (base + 4909914690035167)) <= 2
    (row,) = rank("kineto_inference/vllm_decode_full__graph_execution.json.gz").calls
    assert (row.role, row.step, row.S_bytes) == ("matmul", 0, 0)


@pytest.mark.parametrize(
    ("name", "world", "stages", "steps", "rows"), [("AR", 64, 4, 44, 117216), ("ST", 8, 4, 32, 6784)]
)
def test_straggler_tables(name: str, world: int, stages: int, steps: int, rows: int) -> None:
    """meta-AR.yaml: a world of 64, dp, pp and tp of 4; the table has the first rank of each tensor group. ST: dp 2."""
    pytest.importorskip("pyarrow")
    reading = straggler.read(Source(DATA / f"straggler_bytedance/trace-{name}.parquet"))
    assert {one.head.world for one in reading.ranks} == {world}
    assert sum(len(one.calls) for one in reading.ranks) == rows
    assert {len(set(one.calls.step.tolist())) for one in reading.ranks} == {steps}
    assert {len(one.head.groups["pp"]) for one in reading.ranks} == {stages}
    first = reading.ranks[0]
    assert first.head.groups["dp"] == ((0, 4, 8, 12) if name == "AR" else (0, 1))
    # A message leaves and arrives at nearly the same moment: the k-th forward send is the next stage's k-th receive.
    sent = [c.ended_ns for c in first.calls if c.role == "forward-send"]
    peer = next(c.peer for c in first.calls if c.role == "forward-send")
    other = next(one for one in reading.ranks if one.head.rank == peer)
    got = [c.ended_ns for c in other.calls if c.role == "forward-recv"]
    assert len(sent) == len(got)
    apart = sorted(abs(a - b) for a, b in zip(sent, got, strict=True))
    assert apart[len(apart) // 2] < 1_000_000


@pytest.mark.parametrize(
    ("name", "hung"),
    [("hang_xpu_timer_metric_some", {0, 2, 5}), ("hang_xpu_timer_metric_all", set(range(8))),
     ("normal_xpu_timer_metric_0", set())],
)  # fmt: skip
def test_flags_of_xputimer(name: str, hung: set[int]) -> None:
    """XPU_TIMER_COMMON_HANG of ranks 0 to 7 on one host; 26 buckets of matmul with a mean and a 99th percentile."""
    source = Source(DATA / "xpu_timer" / name)
    assert prometheus.recognises(source)
    facts = prometheus.read(source).facts
    flags = {fact.rank: fact.value for fact in facts if fact.name == "rank.hang"}
    assert set(flags) == set(range(8))
    assert {one for one, value in flags.items() if value} == hung
    assert {fact.host for fact in facts} == {"11.36.23.0"}
    assert Counter(fact.name for fact in facts) == {
        "rank.hang": 8, "rank.matmul_latency_us": 26, "rank.matmul_latency_p99_us": 26,
    }  # fmt: skip
    slow = next(f for f in facts if f.rank == 2 and f.name == "rank.matmul_latency_us" and f.label("level") == "7")
    assert (slow.value, slow.label("dtype"), slow.label("snapshot")) == (19063.0, "bf16", "")

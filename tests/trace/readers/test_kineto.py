"""A profiler trace's collectives come with the moment they were asked for, and own work comes in bounded rows."""

import contextlib
import gzip
import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkwise.core.errors import InputError
from linkwise.trace.events import Event
from linkwise.trace.readers import kineto, kineto_names
from linkwise.trace.readers.base import Reading, Source

BASE_NS = 1_700_000_000_000_000_000
COMM = {
    "Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024, "Group size": 2, "dtype": "BFloat16",
    "In split size": "[]", "Out split size": "[]", "Process Group Name": "3", "Process Group Description": "tp",
    "Process Group Ranks": "[0, 1]", "Seq": 17,
}  # fmt: skip
INFO = {
    "backend": "nccl", "rank": 1, "world_size": 4, "pg_count": 2,
    "pg_config": [
        {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": 4, "ranks": [0, 1, 2, 3]},
        {"pg_name": "3", "pg_desc": "tp", "backend_config": "cuda:nccl", "pg_size": 2, "ranks": [0, 1]},
    ],
}  # fmt: skip


def x(cat: str, name: str, ts: float, dur: float, *, tid: Any = 70, pid: Any = 70, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def kernel(name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return x("kernel", name, ts, dur, pid=1, tid=7, device=1, stream=7, **args)


# A step as PyTorch 2.6 writes it: 100 us matmul, 40 us other, an all-reduce asked for at 20 us that runs 150 to 180 us,
# 5 us of copying.
STEP = [
    {"ph": "M", "name": "process_name", "ts": 0, "pid": 70, "tid": 0, "args": {"name": "python3"}},
    x("user_annotation", "ProfilerStep#5", 0.5, 90.0),
    x("cpu_op", "aten::mm", 1.0, 8.0, **{"External id": 1}),
    x("cuda_runtime", "cudaLaunchKernel", 5.0, 1.0, correlation=101, **{"External id": 1}),
    x("cpu_op", "c10d::allreduce_", 19.5, 20.0, **{"External id": 2}),
    x("cpu_op", "record_param_comms", 20.25, 15.0, **{"External id": 3}, **COMM),
    x("user_annotation", "nccl:all_reduce", 22.0, 10.0, **{"External id": 4}),
    x("cuda_runtime", "cudaLaunchKernelExC", 25.0, 2.0, correlation=102, **{"External id": 3}),
    x("cpu_op", "record_param_comms", 60.0, 1.0, **{"External id": 5}, **{**COMM, "Collective name": "wait"}),
    kernel("ampere_bf16_s16816gemm_bf16_128x64_tn", 10.0, 100.0, correlation=101, **{"External id": 1}),
    kernel("void at::native::elementwise_kernel<4>()", 110.0, 40.0, correlation=103),
    kernel(
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 150.125, 30.0,
        correlation=102, **{"External id": 3}, **COMM,
    ),
    x("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 200.0, 5.0, pid=1, tid=7),
    {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 300.0},
]  # fmt: skip


def top(events: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    start = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}], "distributedInfo": INFO}
    return {**start, "host_name": "node-a", "baseTimeNanoseconds": BASE_NS, **more, "traceEvents": events}


def written(folder: Path, value: Any, name: str = "a.pt.trace.json") -> Source:
    path = folder / name
    path.write_bytes(value if isinstance(value, bytes) else json.dumps(value, indent=1).encode())
    return Source(path)


def read(folder: Path, value: Any, name: str = "a.pt.trace.json") -> Reading:
    source = written(folder, value, name)
    assert kineto.recognises(source)
    return kineto.read(source)


def ns(us: float) -> int:
    return BASE_NS + round(us * 1000)


def test_a_step_of_nccl(tmp_path: Path) -> None:
    reading = read(tmp_path, top(STEP))
    (rank,) = reading.ranks
    head = rank.head
    assert (head.rank, head.world, head.host, head.device, head.transport) == (1, 4, "node-a", "gpu1", "nccl")
    assert head.groups == {"default_pg:0": (0, 1, 2, 3), "tp:3": (0, 1)}
    assert head.pid == 70
    assert tuple(rank.calls) == (
        Event(5, "", "matmul", "compute", 0, 0, "", -1, 0, ns(10), ns(150), "done"),
        Event(5, "tp:3", "", "all_reduce", 17, 2048, "bfloat16", -1, ns(20.25), ns(150.125), ns(180.125), "done"),
        Event(5, "", "memcpy", "compute", 1, 0, "", -1, 0, ns(200), ns(205), "done"),
    )
    assert (reading.notes, rank.cut, rank.lost) == ((), False, 0)


def test_the_packed_file_says_the_same(tmp_path: Path) -> None:
    plain = read(tmp_path, top(STEP))
    packed = read(tmp_path, gzip.compress(json.dumps(top(STEP)).encode()), "b.json.gz")
    assert tuple(plain.ranks[0].calls) == tuple(packed.ranks[0].calls)


def test_windows_of_any_size_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The fields around the events may come after them, and events may hold lists of objects.
    nested = kernel("k", 400.0, 1.0, extra=[{"a": 1}, {"b": [{"c": 2}, {"d": 3}]}, {"e": "}, {"}])
    value = top([*STEP, nested, *STEP])
    value = {"traceEvents": value.pop("traceEvents"), **value, "deviceProperties": [{"id": n} for n in range(9)]}
    whole = read(tmp_path, value)
    assert len(whole.ranks[0].calls) > 3
    for size in (64, 300, 1000):
        monkeypatch.setattr(kineto, "WINDOW_BYTES", size)
        again = read(tmp_path, value)
        assert tuple(again.ranks[0].calls) == tuple(whole.ranks[0].calls)
        assert (again.ranks[0].head, again.notes) == (whole.ranks[0].head, whole.notes)


def test_an_older_trace_knows_its_calls_by_thread_and_time(tmp_path: Path) -> None:
    # PyTorch 2.0: no arguments, `External id` of a kernel is its correlation, times are Unix us.
    at = 1_680_000_000_000_000
    events = [
        x("cpu_op", "record_param_comms", at + 10, 50, **{"External id": 7}),
        x("user_annotation", "nccl:all_to_all", at + 12, 40, **{"Input Dims": [[8, 16]], "Input type": ["float"]}),
        x("cuda_runtime", "cudaLaunchKernel", at + 20, 5, correlation=900),
        # Another thread asks for an all-gather meanwhile; its annotation has the input, the operator the output.
        x("cpu_op", "c10d::_allgather_base_", at + 14, 40, tid=71,
          **{"Input Dims": [[64], [16], []], "Input type": ["c10::Half", "c10::Half", ""]}),
        x("user_annotation", "nccl:_all_gather_base", at + 15, 30, tid=71,
          **{"Input Dims": [[16]], "Input type": ["c10::Half"]}),
        x("cuda_runtime", "cudaLaunchKernel", at + 21, 5, tid=71, correlation=901),
        kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", at + 100, 9, correlation=900),
        kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", at + 110, 9, correlation=901),
        kernel("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", at + 120, 9, correlation=902),
    ]  # fmt: skip
    reading = read(tmp_path, {"schemaVersion": 1, "traceEvents": events}, "job_rank-3.json")
    (rank,) = reading.ranks
    unix = at * 1000
    assert [(c.op, c.dtype, c.S_bytes, c.created_ns - unix, c.started_ns - unix) for c in rank.calls] == [
        ("all_to_all", "float32", 8 * 16 * 4, 12_000, 100_000),
        ("all_gather", "float16", 64 * 2, 15_000, 110_000),
        ("all_reduce", "float32", 0, -unix, 120_000),  # its launch is not in the trace
    ]
    assert (rank.head.rank, rank.head.world) == (3, 4)
    assert any("rank is that of the file's name" in note for note in reading.notes)
    assert any("process group" in note for note in reading.notes)
    assert not any("relative" in note for note in reading.notes)


def test_gloo_pairs_what_was_asked_for_with_what_a_worker_ran(tmp_path: Path) -> None:
    shape = {"Input Dims": [[256]], "Input type": ["float"]}
    events = [
        x("user_annotation", "gloo:all_reduce", 1.0, 2.0, tid=80, **shape),  # asked for before the record began
        x("cpu_op", "aten::mm", 2.0, 6.0),
        x("cpu_op", "aten::resolve_conj", 3.0, 1.0),
        x("cpu_op", "c10d::allreduce_", 10.0, 1.0),
        x("cpu_op", "c10d::allgather_", 12.0, 1.0),
        x("cpu_op", "aten::add", 13.5, 1.0),
        x("cpu_op", "c10d::allreduce_", 14.0, 1.0),
        # Two workers; the all-gather ends first.
        x("user_annotation", "gloo:all_reduce", 11.0, 20.0, tid=80, **shape),
        x("user_annotation", "gloo:all_gather", 12.5, 3.0, tid=81, **shape),
        x("user_annotation", "gloo:all_reduce", 16.0, 30.0, tid=81, **shape),
        x("cpu_op", "c10d::barrier", 60.0, 1.0),  # not over when the record ends
    ]
    info = {"backend": "gloo", "rank": 0, "world_size": 2, "pg_config": [INFO["pg_config"][1]]}  # type: ignore[index]
    reading = read(tmp_path, top(events, distributedInfo=info))
    calls = [(c.op, c.role, c.group, c.sequence, c.S_bytes) for c in reading.ranks[0].calls]
    assert calls == [
        ("all_reduce", "", "tp:3", 0, 1024),
        ("compute", "matmul", "", 0, 0),
        ("all_reduce", "", "tp:3", 1, 1024),
        ("all_gather", "", "tp:3", 2, 2048),  # two members' shares
        ("compute", "other", "", 1, 0),
        ("all_reduce", "", "tp:3", 3, 1024),
        ("barrier", "", "tp:3", 4, 0),
    ]
    times = [
        (c.created_ns - BASE_NS, c.started_ns - BASE_NS, c.ended_ns - BASE_NS)
        for c in reading.ranks[0].calls
        if c.op != "compute"
    ]
    assert times == [
        (-BASE_NS, 1000, 3000),
        (10_000, 11_000, 31_000),
        (12_000, 12_500, 15_500),
        (14_000, 16_000, 46_000),
        (60_000, -BASE_NS, -BASE_NS),
    ]
    work = [c for c in reading.ranks[0].calls if c.op == "compute"]
    assert [(c.started_ns - BASE_NS, c.ended_ns - BASE_NS) for c in work] == [(2000, 8000), (13_500, 14_500)]
    assert reading.notes == ("1 calls have no kernel or worker's span: when they were asked for is known alone",)


def test_sends_name_their_peer_and_long_lists_of_members_are_kept_by_stride(tmp_path: Path) -> None:
    send = {**COMM, "Collective name": "send", "Dst Rank": 3, "Seq": 4}
    ranks = "[" + ", ".join(str(2 * n) for n in range(30)) + ", ...]"
    far = {
        **COMM, "Process Group Name": "9", "Process Group Ranks": ranks, "Group size": 40, "Global rank start": 0,
        "Global rank stride": 2, "Collective name": "_allgather_base", "Out msg nelems": 4096,
    }  # fmt: skip
    events = [
        x("cpu_op", "record_param_comms", 1.0, 2.0, **{"External id": 3}, **send),
        kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 4.0, 2.0, **{"External id": 3}, **send),
        x("cpu_op", "record_param_comms", 6.0, 2.0, **{"External id": 4}, **far),
    ]
    (rank,) = read(tmp_path, top(events, distributedInfo={"rank": 1, "world_size": 128})).ranks
    assert [(c.op, c.peer, c.S_bytes) for c in rank.calls] == [("send", 3, 2048), ("all_gather", -1, 8192)]
    assert rank.head.groups == {"tp:3": (0, 1), "tp:9": tuple(range(0, 80, 2))}


def test_kernels_of_one_call_are_one_row_and_a_million_others_are_few(tmp_path: Path) -> None:
    many = [kernel("void flash_fwd_kernel<>()", 300.0 + n, 0.5) for n in range(5000)]
    twice = kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL()", 185.0, 10.0, **{"External id": 3}, **COMM)
    (rank,) = read(tmp_path, top([*STEP, twice, *many])).ranks
    assert [(c.op, c.role) for c in rank.calls] == [
        ("compute", "matmul"), ("all_reduce", ""), ("compute", "attention"),
    ]  # fmt: skip
    assert [c.ended_ns for c in rank.calls] == [ns(150), ns(195), ns(5299.5)]
    # 100 + 40 us of kernels; then a copy of 5 us and 5000 kernels of half a us, each with a gap behind it.
    assert rank.busy_ns == (140_000, 2_505_000)


def test_steps_of_engines(tmp_path: Path) -> None:
    events = [
        x("user_annotation", "step[EXTEND bs=15 toks=15360]", 10.0, 20.0),
        x("user_annotation", "execute_15_context_1(sq1)_generation_0()", 11.0, 18.0),
        x("user_annotation", "step[DECODE bs=32]", 40.0, 20.0),
        # The device runs behind: its second kernel begins after the host is through with the step that asked for it.
        kernel("Cijk_Alik_Bljk_BBS_BH_MT64x32x256", 15.0, 5.0),
        kernel("kernel_unified_attention_2d", 75.0, 5.0),
    ]
    (rank,) = read(tmp_path, top(events)).ranks
    assert [(c.step, c.role) for c in rank.calls] == [(0, "matmul"), (1, "attention")]


def test_the_devices_own_annotations_tell_its_steps(tmp_path: Path) -> None:
    events = [
        x("user_annotation", "ProfilerStep#1", 0.0, 10.0),
        x("user_annotation", "ProfilerStep#2", 10.0, 10.0),
        x("gpu_user_annotation", "ProfilerStep#1", 20.0, 10.0, pid=1, tid=7),
        x("gpu_user_annotation", "ProfilerStep#2", 30.0, 10.0, pid=1, tid=7),
        kernel("sm90_xmma_gemm", 21.0, 5.0),
        kernel("sm90_xmma_gemm", 31.0, 5.0),
    ]
    (rank,) = read(tmp_path, top(events)).ranks
    assert [(c.step, c.started_ns) for c in rank.calls] == [(1, ns(21)), (2, ns(31))]


@pytest.mark.parametrize(
    ("name", "rank", "note"),
    [
        ("dp0_pp0_tp2_dcp0_ep2_rank2.1766.pt.trace.json.gz", 2, "the file's name"),
        ("1743735235.37-TP-5-DP-0.trace.json", 5, "the file's name"),
        ("trace.json", 0, "not known"),
    ],
)
def test_the_rank_when_the_trace_has_none(tmp_path: Path, name: str, rank: int, note: str) -> None:
    reading = read(tmp_path, top(STEP, distributedInfo={"backend": "nccl"}), name)
    assert reading.ranks[0].head.rank == rank
    assert any(note in one for one in reading.notes)


def test_relative_times_are_said(tmp_path: Path) -> None:
    value = top(STEP)
    del value["baseTimeNanoseconds"]
    reading = read(tmp_path, value)
    assert "times are relative: the trace names no base" in reading.notes
    assert reading.ranks[0].calls.started_ns.tolist() == [10_000, 150_125, 200_000]


def test_numbers_that_are_none(tmp_path: Path) -> None:
    text = json.dumps(top(STEP), indent=1).replace('"stream": 7', '"stream": 7, "blocks per SM": inf, "warps": -nan')
    assert len(read(tmp_path, text.encode()).ranks[0].calls) == 3


def test_a_cut_file_gives_what_is_whole(tmp_path: Path) -> None:
    text = json.dumps(top(STEP), indent=1).encode()
    begin = text.index(b'"traceEvents"')
    counts = []
    for end in range(begin, len(text), 7):
        source = written(tmp_path, text[:end])
        try:
            reading = kineto.read(source)
        except InputError as error:
            assert "no whole event" in str(error) or "none of a known kind" in str(error) or "ends before" in str(error)
            continue
        assert reading.ranks[0].cut
        assert "cut or broken at line" in reading.notes[0]
        counts.append(len(reading.ranks[0].calls))
    assert counts == sorted(counts)
    assert set(counts) == {1, 2, 3}


def test_of_a_cut_trace_calls_without_numbers_are_held_against_nobody_and_others_up_to_the_first_gap(
    tmp_path: Path,
) -> None:
    # Two calls of a group by kernels of their own stream each, then the third; the second is missing in the file.
    def call(number: int, **more: Any) -> dict[str, Any]:
        return x("kernel", "ncclDevKernel_AllReduce", 10.0 * number, 5.0, **{**COMM, "Seq": number}, **more)

    events = [call(0), call(1), call(3), call(4), kernel("sm90_xmma_gemm", 60.0, 0.5)]
    text = json.dumps(top(events)).encode()
    end = text.index(b"sm90_xmma_gemm")
    cut = read(tmp_path, text[:end]).ranks[0]
    assert cut.head.groups["tp:3"] == (0, 1)
    assert cut.calls.sequence.tolist() == [0, 1]
    assert read(tmp_path, text).ranks[0].calls.sequence.tolist()[:4] == [0, 1, 3, 4]
    for one in events:
        one["args"].pop("Seq", None)
    text = json.dumps(top(events)).encode()
    reading = read(tmp_path, text[: text.index(b"sm90_xmma_gemm")])
    assert reading.ranks[0].head.groups == {}
    assert "carry no numbers" in reading.notes[1]


def test_a_cut_gzip_gives_what_is_whole(tmp_path: Path) -> None:
    events = [kernel("sm90_xmma_gemm", float(n), 0.5, salt=n * 7919 % 10007) for n in range(60_000)]
    packed = gzip.compress(json.dumps(top(events)).encode())
    reading = read(tmp_path, packed[: len(packed) * 3 // 4], "a.json.gz")
    assert reading.ranks[0].cut
    assert ns(10_000) < reading.ranks[0].calls.ended_ns[-1] < ns(60_000)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"schema": "1.0.1", "pid": 7, "nodes": [{"name": "[pytorch]", "id": 1, "ctrl_deps": 1}]}, "execution trace"),
        ([[-1, 1, 37888, 7], [5, 2, 100, 7]], "memory timeline"),
        ({"traceEvents": []}, "no whole event"),
        (
            {"traceEvents": [{"ph": "M", "name": "process_name"}, {"ph": "X", "cat": "fiber", "ts": 1, "dur": 1}]},
            "none",
        ),
        (b'{"schemaVersion": 1, "deviceProperties": [', "ends before its events"),
        (b'{"schemaVersion": 1, "deviceProperties": [}, "traceEvents": [{}]}', "not valid JSON before"),
    ],
)
def test_what_is_refused(tmp_path: Path, value: Any, reason: str) -> None:
    source = written(tmp_path, value)
    assert kineto.recognises(source)
    with pytest.raises(InputError, match=reason):
        kineto.read(source)


@pytest.mark.parametrize("value", [b"", b"{}", b"[1, 2]", b'{"entries": []}', b"PAR1", b"\x00\xff" * 40])
def test_what_is_something_else(tmp_path: Path, value: bytes) -> None:
    assert not kineto.recognises(written(tmp_path, value))


ODD = [None, -1, -5.5, 1e300, 10**40, "x", "\x1b[31m", [], {}, True, [[[1]]], 2**63]


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("field", ["ph", "cat", "name", "pid", "tid", "ts", "dur", "args", *COMM, "External id"])
def test_an_odd_field_costs_its_event_at_most(tmp_path: Path, field: str, value: Any) -> None:
    events = json.loads(json.dumps(STEP))
    odd = events[11]
    (odd if field in odd else odd["args"])[field] = value
    try:
        (rank,) = read(tmp_path, top(events)).ranks
    except InputError:
        pytest.fail("one odd event spoils the file")
    assert 2 <= len(rank.calls) <= 4


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("field", ["distributedInfo", "baseTimeNanoseconds", "host_name", "deviceProperties", *INFO])
def test_an_odd_field_around_the_events_costs_no_event(tmp_path: Path, field: str, value: Any) -> None:
    around = {field: value} if field not in INFO else {"distributedInfo": {**INFO, field: value}}
    assert len(read(tmp_path, top(STEP, **around)).ranks[0].calls) == 3


def test_members_outside_the_world(tmp_path: Path) -> None:
    reading = read(tmp_path, top(STEP, distributedInfo={"rank": 0, "world_size": 1}))
    assert reading.ranks[0].head.groups == {}
    assert any("outside the 1" in note for note in reading.notes)


def test_nesting(tmp_path: Path) -> None:
    deep = b'{"schemaVersion":1,"traceEvents":[' + b"[" * 200_000
    with pytest.raises(InputError):
        kineto.read(written(tmp_path, deep))


TEXT = json.dumps(top(STEP)).encode()


PIECES = [b"[", b"]", b"{", b"}", b'"', b"1e999", b"9" * 25, b"null", b"\xff", b"\x00", b"},{", b"\\u"]
CHANGE = st.tuples(
    st.integers(0, len(TEXT)), st.integers(0, 40), st.binary(max_size=20) | st.sampled_from(PIECES)
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(CHANGE, min_size=1, max_size=6), st.sampled_from([200, kineto.WINDOW_BYTES]))
def test_changed_bytes(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int, bytes]], window: int
) -> None:
    text = TEXT
    for at, length, new in changes:
        text = text[:at] + new + text[at + length :]
    source = written(tmp_path_factory.mktemp("fuzz"), text)
    with contextlib.suppress(InputError), mock.patch.object(kineto, "WINDOW_BYTES", window):
        if kineto.recognises(source):
            kineto.read(source)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    source = written(tmp_path_factory.mktemp("fuzz"), b'{"traceEvents":[' + data)
    with pytest.raises(InputError):
        kineto.read(source)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", ("all_reduce", "bfloat16", "")),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", ("all_reduce", "float32", "")),
        ("ncclDevKernel_ReduceScatter_Sum_f16_RING_LL(", ("reduce_scatter", "float16", "")),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*)", ("broadcast", "", "")),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", ("all_gather", "", "")),
        ("ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16(ncclSymkDevWorkArgs)", ("all_reduce", "bfloat16", "")),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", ("collective", "", "")),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", ("all_reduce", "", "")),
        ("_ZN5aiter26cross_device_reduce_1stageIDF16bLi8EEEv", ("all_reduce", "", "")),
        (
            "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>()",
            ("all_reduce", "", ""),
        ),
        ("void deep_ep::internode_ll::dispatch<true, 7168>(void*, float*)", ("all_to_all", "", "dispatch")),
        ("void deep_ep::intranode::combine<__nv_bfloat16>()", ("all_to_all", "", "combine")),
        ("void at::native::vectorized_gather_kernel<16, long>(char*)", None),
        ("void at::native::reduce_kernel<512, 1>()", None),
        ("reduce_segments", None),
    ],
)
def test_kernels_that_are_collectives(name: str, found: tuple[str, str, str] | None) -> None:
    assert kineto_names.kernel_call(name) == found


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("allreduce", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("c10d::_reduce_scatter_base_", "reduce_scatter"),
        ("allgather_into_tensor_coalesced", "all_gather"),
        ("all_to_allv", "all_to_all"),
        ("_broadcast_oop", "broadcast"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("recvAnySource", "recv"),
        ("My Op!", "my_op"),
        ("", "collective"),
    ],
)
def test_names_of_collectives(name: str, op: str) -> None:
    assert kineto_names.op(name) == op

"""The Inspector's JSON lines: durations and sizes of completed calls, per communicator."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from linkwise.core.errors import InputError
from linkwise.trace.readers import inspector
from linkwise.trace.readers.base import Reading, Source

DUMPED_US = 1_748_030_377_748_202


def line(**parts: Any) -> dict[str, Any]:
    return {
        "header": {"id": "0x7f8c496ae9f661", "rank": 2, "n_ranks": 8, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "profiler_plugin",
            "dump_timestamp_us": DUMPED_US, "hostname": "node-a", "pid": 1639453,
        },
    } | parts  # fmt: skip


def coll(
    op: str = "AllReduce", number: int = 1407, size: int = 1 << 20, took_us: float = 100, **more: Any
) -> dict[str, Any]:
    return {
        "coll": op, "coll_sn": number, "coll_msg_size_bytes": size, "coll_exec_time_us": took_us,
        "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 10.5, "coll_busbw_gbs": 18.3,
    } | more  # fmt: skip


def read(tmp_path: Path, *lines: Any) -> Reading:
    path = tmp_path / "node-a-pid1639453.log"
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines) + "\n")
    source = Source(path, where="inspector.log")
    assert inspector.recognises(source)
    return inspector.read(source)


def test_a_call(tmp_path: Path) -> None:
    reading = read(tmp_path, line(coll_perf=coll()))
    (rank,) = reading.ranks
    assert (rank.head.rank, rank.head.world, rank.head.unit) == (2, 8, "communicator 0x7f8c496ae9f661")
    assert (rank.head.host, rank.head.pid, rank.head.writer) == ("node-a", 1639453, "NCCL Inspector v4.0")
    (call,) = rank.calls
    # The line's time is that of the dump: the call is placed to end there, 100 us long.
    ended = DUMPED_US * 1000
    assert call == (
        -1, "0x7f8c496ae9f661|all_reduce", "", "all_reduce", 1407, 1 << 20, "", -1, 0, ended - 100_000, ended, "done"
    )  # fmt: skip
    assert rank.head.groups == {call.group: tuple(range(8))}
    assert reading.notes == (
        "ranks are those of each communicator, which is a unit of its own",
        "calls are placed at the time of their dump: their durations are measured, their times are not",
    )
    place, busbw = reading.facts
    assert (place.kind, place.host, place.label("pid"), place.label("comm_rank")) == ("place", "node-a", "1639453", "2")
    assert (busbw.kind, busbw.name, busbw.value, busbw.unit) == ("gauge", "rank.busbw_GBps", 18.3, "GB/s")
    assert (busbw.label("op"), busbw.unix_ns) == ("all_reduce", ended)


@pytest.mark.parametrize(
    ("op", "ours", "size"),
    [  # a message of 1000 bytes on 8 ranks: of AllGather and ReduceScatter it is one rank's part
        ("AllReduce", "all_reduce", 1000), ("AllGather", "all_gather", 8000), ("ReduceScatter", "reduce_scatter", 8000),
        ("Broadcast", "broadcast", 1000), ("Reduce", "reduce", 1000), ("SendRecv", "send_recv", 1000),
    ],
)  # fmt: skip
def test_sizes(tmp_path: Path, op: str, ours: str, size: int) -> None:
    (call,) = read(tmp_path, line(coll_perf=coll(op, size=1000))).ranks[0].calls
    assert (call.op, call.S_bytes) == (ours, size)


def test_each_kind_is_counted_apart(tmp_path: Path) -> None:
    """NCCL counts AllReduce 5 and AllGather 5: the same number is not the same call."""
    calls = read(tmp_path, line(coll_perf=coll(number=5)), line(coll_perf=coll("AllGather", 5))).ranks[0].calls
    assert [(call.group[-11:], call.sequence) for call in calls] == [("|all_reduce", 5), ("|all_gather", 5)]


def test_times_of_kernels(tmp_path: Path) -> None:
    traced = {
        "coll_start_ts": 1_000, "coll_stop_ts": 1_001,
        "kernel_events": [
            {"channel_id": 0, "kernel_start_ts": 1_200, "kernel_stop_ts": 1_900, "kernel_record_ts": 1_900},
            {"channel_id": 1, "kernel_start_ts": 1_150, "kernel_stop_ts": 1_800, "kernel_record_ts": 1_800},
        ],
    }  # fmt: skip
    reading = read(tmp_path, line(coll_perf=coll(event_trace_ts=traced)))
    (call,) = reading.ranks[0].calls
    assert (call.created_ns, call.started_ns, call.ended_ns) == (1_000_000, 1_150_000, 1_900_000)
    assert len(reading.notes) == 1


def test_send_and_recv(tmp_path: Path) -> None:
    sent = {
        "p2p": "Send", "p2p_sn": 8, "p2p_peer": 5, "p2p_msg_size_bytes": 524_288, "p2p_exec_time_us": 50,
        "p2p_timing_source": "kernel_gpu", "p2p_algobw_gbs": 30.0, "p2p_busbw_gbs": 30.0,
    }  # fmt: skip
    rank = read(tmp_path, line(p2p_perf=sent), line(coll_perf=coll())).ranks[0]
    first, second = rank.calls
    assert (first.op, first.peer, first.sequence, first.S_bytes) == ("send", 5, 8, 524_288)
    assert (first.group, second.group) == ("0x7f8c496ae9f661|p2p", "0x7f8c496ae9f661|all_reduce")


def test_headers_once_a_dump(tmp_path: Path) -> None:
    """v4.3: the line dump_stats says whose the lines after it are, and how many the ring lost."""
    other = {"id": "0xbeef", "rank": 0, "n_ranks": 2, "nnodes": 1}
    reading = read(
        tmp_path,
        line(dump_stats={"coll_records": 2, "coll_dropped_total": 4096, "p2p_dropped_total": 0}),
        {"coll_perf": coll(number=1)},
        {"coll_perf": coll(number=2)},
        {"proxy_trace": {"record_type": "proxy_op"}},
        line(header=other, dump_stats={"coll_records": 1}),
        {"coll_perf": coll(number=9)},
    )
    first, second = reading.ranks
    assert (first.head.unit, [call.sequence for call in first.calls], first.lost) == (
        "communicator 0x7f8c496ae9f661", [1, 2], 4096
    )  # fmt: skip
    assert (second.head.unit, [call.sequence for call in second.calls], second.lost) == ("communicator 0xbeef", [9], 0)


def test_a_cut_end(tmp_path: Path) -> None:
    whole = json.dumps(line(coll_perf=coll()))
    reading = read(tmp_path, whole, whole[:-30])
    assert len(reading.ranks[0].calls) == 1
    assert reading.ranks[0].cut
    assert "its last line is cut and left out" in reading.notes


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([line(coll_perf=coll()), "{}x", line(coll_perf=coll())], "line 2: not a line of it"),
        ([line(coll_perf=coll(took_us=-1))], "line 1: a duration"),
        ([line(coll_perf=coll(took_us=1e300))], "line 1: a duration"),
        ([line(coll_perf=coll(number=-1))], "line 1: a number of a call"),
        ([line(coll_perf=coll("AllGather", size=2**60))], "line 1: a number of a call"),
        ([line(coll_perf=coll(size=2**80))], "line 1"),
        ([line(coll_perf={"coll": 7, "coll_sn": 1})], "line 1: not a line of it"),
        ([line(header={"id": "x", "rank": 8, "n_ranks": 8}, coll_perf=coll())], "rank 8 of 8"),
        ([line(header={"id": "x", "rank": 0, "n_ranks": 2**40}, coll_perf=coll())], "at most 65536"),
        ([line(coll_perf=coll(f"Op{n}")) for n in range(65)], "too many names"),
    ],
)
def test_what_it_does_not_write(tmp_path: Path, lines: list[Any], says: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, *lines)
    assert says in str(caught.value)


def test_no_header_at_all(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(json.dumps({"coll_perf": coll()}) + "\n")
    assert not inspector.recognises(Source(path))
    with pytest.raises(InputError, match="line 1: no header"):
        inspector.read(Source(path))


WHOLE = "\n".join(map(json.dumps, [line(dump_stats={}), {"coll_perf": coll()}, line(coll_perf=coll("AllGather"))]))


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_changed_bytes(tmp_path: Path, data: st.DataObject) -> None:
    whole = WHOLE.encode()
    at = data.draw(st.integers(0, len(whole) - 1))
    path = tmp_path / "log"
    path.write_bytes(whole[:at] + data.draw(st.binary(max_size=6)) + whole[at + data.draw(st.integers(0, 6)) :])
    with suppress(InputError):
        inspector.recognises(Source(path))
        inspector.read(Source(path))

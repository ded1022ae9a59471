"""Dumps of PyTorch's flight recorder, written here as its pickler and its JSON handler write them."""

import json
import os
import pickle
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.trace.readers import torch_pickle

from linkwise.core.errors import InputError
from linkwise.trace.events import Mark, RankTrace
from linkwise.trace.readers import flight_recorder, unpickle
from linkwise.trace.readers.base import Reading, Source

T = 1_758_610_505_592_849_034
CONFIG = {
    "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"},
    "5": {"name": "5", "desc": "TP", "ranks": "[2, 3]"},
    "12": {"name": "12", "desc": "PP", "ranks": "[2, 6]"},
    "31": {"name": "31", "desc": "undefined", "ranks": "[2, 3, 6, 7]"},
}


def entry(number: int = 0, op: str = "nccl:all_reduce", group: Any = ("5", "TP"), **fields: Any) -> dict[str, Any]:
    """An entry of version 2.9 as it stands in a dump."""
    whole = {
        "record_id": number, "pg_id": 1, "process_group": group, "thread_name": "python", "thread_id": "1401",
        "collective_seq_id": number + 1, "p2p_seq_id": 0, "op_id": number + 1, "profiling_name": op,
        "time_created_ns": T + 1000 * number, "input_sizes": [[4, 8]], "input_dtypes": ["BFloat16"],
        "output_sizes": [[4, 8]], "output_dtypes": ["BFloat16"], "state": "completed",
        "time_discovered_started_ns": T + 1000 * number + 100, "time_discovered_completed_ns": T + 1000 * number + 900,
        "retired": True, "timeout_ms": 600000, "is_p2p": False,
    }  # fmt: skip
    return whole | fields


OPEN: dict[str, Any] = {
    "state": "scheduled", "retired": False, "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
}  # fmt: skip


def dump(*entries: dict[str, Any], **fields: Any) -> dict[str, Any]:
    status = {"0": counts(4, 4), "1": counts(9, 7)}
    return {
        "version": "2.9", "pg_config": CONFIG, "nccl_version": "2.27.3", "pg_status": status, "entries": list(entries),
    } | fields  # fmt: skip


def counts(enqueued: int, completed: int) -> dict[str, int]:
    return {
        "last_enqueued_collective": enqueued, "last_started_collective": -1, "last_completed_collective": completed,
    }  # fmt: skip


def read(tmp_path: Path, value: Any, name: str = "nccl_trace_rank_2") -> Reading:
    path = tmp_path / name
    path.write_bytes(value if isinstance(value, bytes) else torch_pickle.dumps(value))
    source = Source(path, where=name)
    assert flight_recorder.recognises(source)
    return flight_recorder.read(source)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_of_any_protocol_is_read(tmp_path: Path, protocol: int) -> None:
    value = dump(entry(0), entry(1, **OPEN))
    (told,) = read(tmp_path, pickle.dumps(value, protocol)).ranks
    (same,) = read(tmp_path, value).ranks
    assert told.marks == same.marks
    assert list(told.calls) == list(same.calls)


@pytest.mark.parametrize("protocol", [0, 1])
def test_one_that_names_code_is_refused(tmp_path: Path, protocol: int) -> None:
    class Asks:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "ran"),)

    with pytest.raises(InputError, match="mkdir"):
        read(tmp_path, pickle.dumps(dump(entry(0)) | {"more": Asks()}, protocol))
    assert not (tmp_path / "ran").exists()


def rank(tmp_path: Path, *entries: dict[str, Any], **fields: Any) -> RankTrace:
    return read(tmp_path, dump(*entries, **fields)).ranks[0]


def test_a_dump(tmp_path: Path) -> None:
    reading = read(tmp_path, dump(entry(0), entry(1), entry(2, "nccl:broadcast", ("0", "default_pg"), pg_id=0, **OPEN)))
    (found,) = reading.ranks
    assert reading.notes == ()
    assert (found.head.rank, found.head.world, found.head.transport, found.format) == (
        2,
        8,
        "nccl",
        flight_recorder.FORMAT,
    )
    assert found.head.writer == "PyTorch flight recorder 2.9 NCCL 2.27.3"
    assert found.head.groups == {
        "default_pg:0": (0, 1, 2, 3, 4, 5, 6, 7), "TP:5": (2, 3), "PP:12": (2, 6), "31": (2, 3, 6, 7)
    }  # fmt: skip
    first, _, last = found.calls
    # Start and end were found together: the start is not known.
    assert first == (-1, "TP:5", "", "all_reduce", 1, 4 * 8 * 2, "bfloat16", -1, T, 0, T + 900, "done")
    assert last == (-1, "default_pg:0", "", "broadcast", 3, 64, "bfloat16", -1, T + 2000, 0, 0, "scheduled")
    assert (found.only_open, found.lost) == (False, 0)
    assert found.marks == (Mark("default_pg:0", 4, -1, 4), Mark("TP:5", 9, -1, 7))


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "expected"),
    [  # four members of 32 elements of 2 bytes each: S of DESIGN §3
        ("nccl:all_reduce", [[32]], [[32]], ("all_reduce", 64)),
        ("nccl:_all_gather_base", [[32]], [[128]], ("all_gather", 256)),
        ("nccl:all_gather", [[32]], [[32]] * 4, ("all_gather", 256)),
        ("nccl:all_gather", [[32]], [], ("all_gather", 64)),
        ("nccl:_reduce_scatter_base", [[128]], [[32]], ("reduce_scatter", 256)),
        ("nccl:reduce_scatter", [[32]] * 4, [[32]], ("reduce_scatter", 256)),
        ("nccl:all_to_all", [[30, 2]], [[7, 2]], ("all_to_all", 120)),
        ("nccl:alltoall_base", [[30, 2]], [[7, 2]], ("all_to_all", 120)),
        ("nccl:broadcast", [[32]], [[32]], ("broadcast", 64)),
        ("nccl:_broadcast_oop", [], [[32]], ("broadcast", 64)),
        ("nccl:reduce", [[32]], [[32]], ("reduce", 64)),
        ("nccl:gather", [[32]], [], ("gather", 256)),
        ("nccl:gather", [[32]], [[32]] * 4, ("gather", 256)),
        ("nccl:scatter", [[32]] * 4, [[32]], ("scatter", 256)),
        ("nccl:scatter", [], [[32]], ("scatter", 256)),
        ("nccl:all_reduce_barrier", [[1]], [[1]], ("barrier", 2)),
        ("nccl:allreduce_coalesced", [[32], [8]], [[32], [8]], ("all_reduce", 80)),
        ("nccl:all_gather_into_tensor_coalesced", [[8]], [[32]], ("all_gather", 64)),
        ("xccl:all_reduce", [[]], [[]], ("all_reduce", 2)),
        ("gloo:monitored-Barrier", [], [], ("monitored_barrier", 0)),
    ],
)  # fmt: skip
def test_sizes(tmp_path: Path, op: str, inputs: Any, outputs: Any, expected: tuple[str, int]) -> None:
    sizes = {"input_sizes": inputs, "output_sizes": outputs}
    dtypes = {"input_dtypes": ["BFloat16"] * len(inputs), "output_dtypes": ["BFloat16"] * len(outputs)}
    (call,) = rank(tmp_path, entry(0, op, ("31", "undefined"), **sizes, **dtypes)).calls
    assert (call.op, call.S_bytes, call.group) == (*expected, "31")


def test_dtypes(tmp_path: Path) -> None:
    calls = rank(
        tmp_path, *(entry(n, input_dtypes=[d]) for n, d in enumerate(("Float", "Float8_e4m3fn", "Long")))
    ).calls
    assert [(call.dtype, call.S_bytes) for call in calls] == [("float32", 128), ("float8_e4m3fn", 32), ("int64", 256)]
    reading = read(tmp_path, dump(entry(0, input_dtypes=["Float9\x1b[31m"])))
    assert [(call.dtype, call.S_bytes) for call in reading.ranks[0].calls] == [("", 0)]
    assert reading.notes == (r"calls of dtype Float9\x1b[31m have a size of 0: not known here",)


def test_send_and_recv_count_apart_and_their_peers_are_world_ranks(tmp_path: Path) -> None:
    p2p = {"is_p2p": True, "collective_seq_id": 26}
    found = rank(
        tmp_path,
        entry(0, "nccl:send 0->1", ("12", "PP"), p2p_seq_id=11981, pg_id=2, **p2p),
        entry(1, "nccl:recv 0<-1", ("12", "PP"), p2p_seq_id=11982, pg_id=2, **p2p),
        entry(2, "nccl:recv 2<-7", ("0", "default_pg"), p2p_seq_id=3, pg_id=0, **p2p),
        entry(3, "nccl:send 2->9", ("0", "default_pg"), p2p_seq_id=4, pg_id=0, **p2p),
        pg_status={"0": counts(26, 20), "2": counts(11982, 11980)},
    )
    assert [(call.op, call.group, call.sequence, call.peer) for call in found.calls] == [
        ("send", "PP:12|p2p", 11981, 6), ("recv", "PP:12|p2p", 11982, 6), ("recv", "default_pg:0|p2p", 3, 7),
        ("send", "default_pg:0|p2p", 4, -1),
    ]  # fmt: skip
    assert found.head.groups["PP:12|p2p"] == (2, 6)
    # The counts of a group are of whatever came last: of PP its last entry is, of the world it is not.
    assert found.marks == (Mark("default_pg:0", 26, -1, 20), Mark("PP:12|p2p", 11982, -1, 11980))


def test_groups_of_the_status_by_the_order_of_their_making(tmp_path: Path) -> None:
    """A rank that hung has no entry to tell; as many numbers as names between two known ones belong together."""
    status = {"0": counts(1, 1), "3": counts(2, 2), "7": counts(3, 3), "19": counts(4, 4)}
    found = rank(tmp_path, pg_status=status)
    assert [(mark.group, mark.enqueued) for mark in found.marks] == [
        ("default_pg:0", 1), ("TP:5", 2), ("PP:12", 3), ("31", 4)
    ]  # fmt: skip
    assert (found.only_open, len(found.calls), found.head.transport) == (True, 0, "nccl")
    # One number less: it is not certain which. An entry tells of 7, and so of what lies on either side of it.
    del status["19"]
    assert [mark.group for mark in rank(tmp_path, pg_status=status).marks] == ["default_pg:0", "pg 3", "pg 7"]
    told = rank(tmp_path, entry(0, group=("31", "undefined"), pg_id=7), pg_status=status)
    assert [mark.group for mark in told.marks] == ["default_pg:0", "pg 3", "31"]
    told = rank(tmp_path, entry(0, group=("12", "PP"), pg_id=7), pg_status=status)
    assert [mark.group for mark in told.marks] == ["default_pg:0", "TP:5", "PP:12"]
    # Names that are no numbers (use_local_synchronization makes hashes) have no order.
    config = CONFIG | {"f00d": {"name": "f00d", "desc": "x", "ranks": "[2]"}}
    assert [mark.group for mark in rank(tmp_path, pg_status=status, pg_config=config).marks] == [
        "default_pg:0", "pg 3", "pg 7"
    ]  # fmt: skip


def test_states(tmp_path: Path) -> None:
    started = OPEN | {"state": "started", "time_discovered_started_ns": T + 5}
    nccl = rank(tmp_path, entry(0), entry(1, **started), entry(2, **OPEN), entry(3, **(OPEN | {"retired": True})))
    assert [call.state for call in nccl.calls] == ["done", "started", "scheduled", "failed"]  # NCCL: timed out
    reading = read(
        tmp_path, dump(entry(0, "gloo:all_reduce", **(OPEN | {"retired": True})), entry(1, "gloo:all_reduce", **OPEN))
    )
    assert [call.state for call in reading.ranks[0].calls] == ["done", "scheduled"]
    assert reading.notes == (
        "its backend records no completions: a call that is over counts as done, even if it failed",
    )
    assert reading.ranks[0].head.transport == "gloo"


def test_times_of_looking_are_not_taken_for_starts(tmp_path: Path) -> None:
    """FlightRecorderDetail.hpp: the watchdog notes start and end when it finds a call over; a dump those it finds."""
    ms = 1_000_000

    def looked(number: int, at_ms: int, **fields: Any) -> dict[str, Any]:
        times = {"time_discovered_started_ns": T + at_ms * ms, "time_discovered_completed_ns": T + at_ms * ms + 2000}
        return entry(number, **(times | fields))

    over = [looked(0, 100, duration_ms=0.5), looked(1, 100, duration_ms=30)]
    found_by_dump = looked(2, 160, retired=False)
    found = rank(tmp_path, *over, found_by_dump, entry(3, **OPEN))
    assert (found.polled, found.pace, found.taken_ns) == (True, "moving", T + 160 * ms + 2000)
    starts = [call.started_ns - T if call.started_ns else 0 for call in found.calls]
    assert starts == [100 * ms + 2000 - 500_000, 70 * ms + 2000, 0, 0]  # before the end by what the kernel took
    hung = rank(
        tmp_path, *over, entry(3, **(OPEN | {"state": "started", "time_discovered_started_ns": T + 60_000 * ms}))
    )
    assert (hung.polled, hung.pace, hung.taken_ns) == (True, "still", T + 60_000 * ms)
    # A call that its device began, found soon after, shows no end: before a device stops, the last call begins so.
    last = entry(3, **(OPEN | {"state": "started"}))
    soon = rank(tmp_path, *over, last | {"time_discovered_started_ns": last["time_created_ns"] + 1})
    assert soon.pace == ""
    # The dump of a process whose watchdog hangs finds calls, too, but long after the last one was enqueued.
    late = rank(tmp_path, *over, looked(2, 60_000, retired=False))
    assert (late.pace, late.taken_ns) == ("still", T + 60_000 * ms + 2000)
    # Starts and ends of another writer are what they say; one that retires nothing says nothing by it.
    true = [looked(n, 100, time_discovered_completed_ns=T + 101 * ms) for n in range(3)]
    assert not rank(tmp_path, *true).polled
    short = [looked(n, 100, time_discovered_completed_ns=T + 100 * ms + 40_000) for n in range(3)]
    assert not rank(tmp_path, *short).polled  # 40 us: a call of NVLink, and longer than between two queries of events
    # Waited in for longer than from look to look, most calls' starts are noted a look before their ends.
    waited = [looked(n, 100 * n, time_discovered_completed_ns=T + 100 * (n + 1) * ms) for n in range(18)]
    assert not rank(tmp_path, *waited).polled
    assert rank(tmp_path, *waited, looked(18, 1900), looked(19, 1900)).polled
    assert rank(tmp_path, *(looked(n, 100, retired=False) for n in range(3))).pace == ""
    with pytest.raises(InputError, match="duration_ms"):
        rank(tmp_path, looked(0, 100, duration_ms="long"))


def test_only_what_is_open(tmp_path: Path) -> None:
    assert rank(tmp_path, entry(7, **OPEN), entry(9, **OPEN)).only_open  # and 8 was done
    assert rank(tmp_path, entry(7, **OPEN)).only_open
    assert not rank(tmp_path, entry(0, **OPEN), entry(1, **OPEN)).only_open  # all it ever did
    assert not rank(tmp_path, entry(7), entry(8, **OPEN)).only_open
    nothing = {"0": counts(-1, -1)}
    assert not rank(tmp_path, pg_status=nothing).only_open
    assert rank(tmp_path, entry(7), entry(8)).lost == 7  # a ring that turned: the first seven are gone
    assert rank(tmp_path, entry(7, **OPEN)).lost == 0


def test_coalesced_calls_are_as_their_end_is(tmp_path: Path) -> None:
    end = {"input_sizes": [], "output_sizes": [], "input_dtypes": [], "output_dtypes": []}
    p2p = {"is_p2p": True, "p2p_seq_id": 8, "group": ("12", "PP"), "pg_id": 2}
    both = {"collective_seq_id": 5}
    found = rank(
        tmp_path,
        entry(0, "nccl:send 0->1", **(OPEN | p2p)),
        entry(1, "nccl:recv 0<-1", **(OPEN | p2p)),
        entry(2, "nccl:coalesced", **(p2p | end)),
        entry(3, "nccl:_all_gather_base", **(OPEN | both)),
        entry(4, "nccl:_all_gather_base", **(OPEN | both)),
        entry(5, "nccl:ALLGATHER_coalesced", **(both | end)),
        entry(6),
        entry(7, "nccl:_all_gather_base", **(OPEN | {"collective_seq_id": 8})),
        entry(8, "nccl:_all_gather_base", **(OPEN | {"collective_seq_id": 8})),
    )
    rows = [(call.op, call.sequence, call.S_bytes, call.state, call.ended_ns - T) for call in found.calls]
    assert rows[:4] == [
        ("send", 8, 64, "done", 2_900), ("recv", 8, 64, "done", 2_900), ("all_gather", 5, 128, "done", 5_900),
        ("all_reduce", 7, 64, "done", 6_900),
    ]  # fmt: skip
    assert rows[4:] == [("all_gather", 8, 64, "scheduled", -T)] * 2  # not ended yet: as it stands


def test_gloo_names_its_group_in_entries_alone(tmp_path: Path) -> None:
    config = {"": {"name": "", "desc": "", "ranks": "[0, 1, 2, 3]"}}
    found = rank(tmp_path, entry(0, "gloo:all_reduce", ("0", "default_pg"), pg_id=0), pg_config=config, version="2.10")
    assert (found.head.world, found.head.groups) == (4, {"default_pg:0": (0, 1, 2, 3)})
    assert found.marks[0].group == "default_pg:0"
    assert rank(tmp_path, pg_config=config).head.groups == {"default_pg:0": (0, 1, 2, 3)}
    # Two groups under no name: nobody can say whose members these are.
    two = [entry(0, "gloo:all_reduce", ("0", "default_pg")), entry(1, "gloo:all_reduce", ("1", "x"))]
    reading = read(tmp_path, dump(*two, pg_config=config))
    assert (reading.ranks[0].head.world, reading.ranks[0].head.groups) == (4, {"group": (0, 1, 2, 3)})
    assert reading.notes == (
        "its default group is not in it: the world is taken to end with the largest rank that it names",
    )


def test_json(tmp_path: Path) -> None:
    """The handler's JSON: no time is 0, counts are text, keys of other writers begin with a capital."""
    rows = [entry(0, time_discovered_started_ns=0), entry(1, **(OPEN | {"time_discovered_completed_ns": 0}))]
    rows = [row | {"process_group": list(row["process_group"])} for row in rows]
    status = {"0": {"last_completed_collective": "4", "last_enqueued_collective": "4", "last_started_collective": "-1"}}
    value = dump(*rows, pg_status=status)
    plain = read(tmp_path, json.dumps(value).encode(), "json_rank2.json").ranks[0]
    assert [(call.group, call.started_ns, call.ended_ns, call.state) for call in plain.calls] == [
        ("TP:5", 0, T + 900, "done"), ("TP:5", 0, 0, "scheduled"),
    ]  # fmt: skip
    assert plain.marks == (Mark("default_pg:0", 4, -1, 4),)
    spelled = {
        key.title(): [{name.title(): field for name, field in row.items()} for row in part]
        if key == "entries"
        else part
        for key, part in value.items()
    }
    again = read(tmp_path, json.dumps(spelled, indent=1).encode(), "json_rank2.json").ranks[0]
    assert list(again.calls) == list(plain.calls)
    without = {key: part for key, part in value.items() if key != "entries"}  # JSON leaves out what is empty
    assert len(read(tmp_path, json.dumps(without).encode(), "json_rank2.json").ranks[0].calls) == 0


def test_first_versions(tmp_path: Path) -> None:
    """A list of entries, one sequence for all, groups by number or by name alone."""
    old = {
        "pg_id": 0, "seq_id": 3, "profiling_name": "nccl:all_reduce", "time_created_ns": T, "input_sizes": [[4]],
        "output_sizes": [[4]], "state": "completed",
    }  # fmt: skip
    found = read(tmp_path, pickle.dumps([old, old | {"seq_id": 4}], 2)).ranks[0]
    assert [(call.group, call.sequence, call.S_bytes, call.state) for call in found.calls] == [
        ("pg 0", 3, 0, "done"), ("pg 0", 4, 0, "done"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("_dump_12", 12), ("nccl_trace_rank_3", 3), ("rank_0", 0), ("json_rank2.json", 2), ("trace_rank_7.gz", 7),
        ("fr_1024", 1024), ("rank3.pickle", 3), ("job77_rank_5_host2", 5), ("trace.rank-11.pkl", 11), ("4", 4),
    ],
)  # fmt: skip
def test_rank_from_the_name(name: str, expected: int) -> None:
    assert flight_recorder.rank_of(name, name) == expected


@pytest.mark.parametrize("name", ["dump", "dump_rank_x", "trace_20261130141500", "rank_1048576", "dump.json"])
def test_names_that_say_no_rank(name: str) -> None:
    with pytest.raises(InputError, match="says no rank"):
        flight_recorder.rank_of(name, name)


def test_a_rank_that_its_world_does_not_hold(tmp_path: Path) -> None:
    reading = read(tmp_path, dump(entry(0)), "dump_9")
    assert reading.ranks[0].head.world == 10
    assert reading.notes == ("the file's name says rank 9, which its default group does not hold",)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (dump(entry(0, time_created_ns="soon")), "field time_created_ns"),
        (dump(entry(0, time_created_ns=2**62)), "below 2^62"),
        (dump(entry(0, state="lost")), "state 'lost'"),
        (dump(entry(0, input_sizes=[["4"]])), "sizes or dtypes"),
        (dump(entry(0, input_sizes=[[-4]])), "sizes or dtypes"),
        (dump(entry(0, input_sizes=[4])), "sizes or dtypes"),
        (dump(entry(0, input_sizes=[[2**40] * 64])), "2^62 bytes"),
        (dump(entry(0, input_sizes=[[1] * 65])), "sizes or dtypes"),
        (dump(entry(0, input_dtypes=[])), "sizes or dtypes"),
        (dump(entry(0, profiling_name=7)), "field profiling_name"),
        (dump(entry(0), {"record_id": 1}), "entry 1 has no"),
        (dump({}), "entry 0 has no profiling_name and state"),
        (dump(entry(0), pg_config={"0": {"name": "0", "desc": "x", "ranks": "[0, 1, __import__('os')]"}}), "ranks"),
        (dump(entry(0), pg_config={"0": {"name": "0", "desc": "x", "ranks": "[99999999]"}}), "ranks"),
        (dump(entry(0), pg_config=["x"]), "pg_config"),
        ({"entries": {"profiling_name": 1}}, "entries"),
        ({"entries": [1, "profiling_name"]}, "entries"),
    ],
)
def test_what_no_recorder_writes(tmp_path: Path, value: Any, says: str) -> None:
    with pytest.raises(InputError, match="rank_2") as caught:
        read(tmp_path, value)
    assert says in str(caught.value)


def test_a_pickle_that_asks_for_code(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"rank_2: a pickle that asks for 'os\.system'; expected a pickle of plain"):
        read(tmp_path, b"\x80\x02X\x09\x00\x00\x00pg_configcos\nsystem\n.")


def test_what_is_no_dump(tmp_path: Path) -> None:
    for content in (b"\x80\x02N.", b'{"traceEvents": [], "distributedInfo": {"pg_config": []}}', b"pg_config", b""):
        path = tmp_path / "rank_2"
        path.write_bytes(content)
        assert not flight_recorder.recognises(Source(path))


WHOLE = dump(entry(0), entry(1, "nccl:send 0->1", ("12", "PP"), is_p2p=True), entry(2, "nccl:gather", **OPEN))
ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_any_value_anywhere(tmp_path: Path, data: st.DataObject) -> None:
    value = json.loads(json.dumps(WHOLE))
    place: Any = value
    while True:
        keys = list(range(len(place))) if isinstance(place, list) else list(place)
        key = data.draw(st.sampled_from(keys))
        if isinstance(place[key], (dict, list)) and place[key] and data.draw(st.booleans()):
            place = place[key]
            continue
        place[key] = data.draw(ANY)
        break
    for content in (json.dumps(value, allow_nan=False, default=str) if _finite(value) else "{}", None):
        path = tmp_path / "rank_2"
        path.write_bytes(content.encode() if content else pickle.dumps(value, 2))
        with suppress(InputError):
            flight_recorder.read(Source(path))


def _finite(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_changed_bytes(tmp_path: Path, data: st.DataObject) -> None:
    for whole in (torch_pickle.dumps(WHOLE), json.dumps(WHOLE).encode()):
        at = data.draw(st.integers(0, len(whole) - 1))
        changed = whole[:at] + data.draw(st.binary(max_size=6)) + whole[at + data.draw(st.integers(0, 6)) :]
        path = tmp_path / "rank_2"
        path.write_bytes(changed)
        with suppress(InputError):
            flight_recorder.recognises(Source(path))
            flight_recorder.read(Source(path))


ITSELF = """
import sys, torch, torch.distributed as dist
from torch._C import _distributed_c10d as c10d
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)
ones = torch.ones(4, 8)
for _ in range(300):
    dist.all_reduce(ones)
dist.all_gather([torch.empty(4, 8)], ones)
open(f"{sys.argv[1]}/rank_0", "wb").write(c10d._dump_fr_trace())
open(f"{sys.argv[1]}/json_rank0.json", "wb").write(c10d._dump_fr_trace_json())
dist.destroy_process_group()
"""


def test_what_pytorch_itself_writes(tmp_path: Path) -> None:
    """A dump of the installed PyTorch: by the fast road, and the same as its JSON."""
    if find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    command = [sys.executable, "-c", ITSELF, str(tmp_path)]
    environment = os.environ | {"TORCH_FR_BUFFER_SIZE": "2000"}
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)
    data = (tmp_path / "rank_0").read_bytes()
    assert unpickle.is_torch_like(data)
    found = flight_recorder.read(Source(tmp_path / "rank_0")).ranks[0]
    assert (found.head.world, len(found.calls), found.only_open, found.lost) == (1, 301, False, 0)
    calls = list(found.calls)
    assert [(call.op, call.S_bytes) for call in calls[-2:]] == [("all_reduce", 128), ("all_gather", 128)]
    # The last one is marked by another thread, some time after it has returned.
    assert {call.state for call in calls[:-1]} == {"done"}
    spelled = flight_recorder.read(Source(tmp_path / "json_rank0.json")).ranks[0]
    assert list(spelled.calls)[:-1] == calls[:-1]


@pytest.mark.parametrize("field", sorted(entry()))
@pytest.mark.parametrize("inside", [False, True])
def test_a_tuple_shared_sixty_times_over_costs_nothing_in_any_field(tmp_path: Path, field: str, inside: bool) -> None:
    # 2^60 leaves for whoever hashes or shows it: the test would not end.
    deep: Any = ("a", "b")
    for _ in range(60):
        deep = (deep, deep)
    value = dump({**entry(), field: [deep] if inside else deep})
    (tmp_path / "nccl_trace_rank_2").write_bytes(pickle.dumps(value, 4))
    with suppress(InputError):
        flight_recorder.read(Source(tmp_path / "nccl_trace_rank_2"))

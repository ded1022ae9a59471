"""Reports of NCCL's RAS: what it counts, whom it misses, and of which ranks."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from linkwise.core.errors import InputError
from linkwise.core.printable import printable
from linkwise.trace.facts import Fact
from linkwise.trace.readers import ras
from linkwise.trace.readers.base import Reading, Source

OPS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


def one(rank: int, device: int, reduced: int, **status: int) -> dict[str, Any]:
    return {
        "rank": rank, "host": "10.0.0.1", "pid": 100 + device, "cuda_dev": device, "nvml_dev": device,
        "status": {"init_state": 0, "async_error": 0, "finalize_called": False} | status,
        "collective_counts": dict.fromkeys(OPS, 0) | {"AllReduce": reduced},
    }  # fmt: skip


def lost(rank: int, device: int, unresponsive: bool = True, dead: bool = False) -> dict[str, Any]:
    return {
        "rank": rank, "host": "10.0.0.1", "pid": 100 + device, "cuda_dev": device, "nvml_dev": device,
        "status": {"unresponsive": unresponsive, "considered_dead": dead},
    }  # fmt: skip


def communicator(hash: str, size: int, ranks: list[Any], missing: list[Any]) -> dict[str, Any]:
    return {
        "hash": hash, "secondary_hash": "0x1:0x2", "size": size, "ranks_count": len(ranks),
        "missing_ranks_count": len(missing), "ranks": ranks, "missing_ranks": missing,
    }  # fmt: skip


def report(*communicators: Any) -> str:
    value = {
        "nccl_version": "2.29.1", "cuda_runtime_version": 13000, "timestamp": "2026-06-19 06:51:56",
        "communicators_count": len(communicators), "communicators": list(communicators),
        "ras": {"collection_time_sec": 0.0, "timeouts_count": 0},
    }  # fmt: skip
    return json.dumps(value, indent=2) + "\n"


def read(tmp_path: Path, text: str) -> Reading:
    path = tmp_path / "ras"
    path.write_text(text)
    source = Source(path, where="ras")
    assert ras.recognises(source)
    return ras.read(source)


def told(facts: tuple[Fact, ...], kind: str) -> list[tuple[str, int, float]]:
    return [(fact.name, fact.rank, fact.value) for fact in facts if fact.kind == kind]


def test_counts_with_ranks_of_the_world(tmp_path: Path) -> None:
    """The pair 2, 3 is a communicator of its own; the one of all four says which ranks of the world they are."""
    pair = communicator("0xaa", 2, [one(0, 2, 10), one(1, 3, 3)], [])
    world = communicator("0xbb", 4, [one(rank, rank, 1) for rank in range(4)], [])
    facts = read(tmp_path, report(pair, world)).facts
    assert told(facts, "launched") == [("all_reduce", 2, 10), ("all_reduce", 3, 3)] + [
        ("all_reduce", rank, 1) for rank in range(4)
    ]
    assert told(facts, "status") == [("mismatch", -1, 0), ("ok", -1, 0)]
    launched = next(fact for fact in facts if fact.kind == "launched" and fact.rank == 3)
    assert (launched.group, launched.label("communicator"), launched.label("size")) == ((2, 3), "0xaa", "2")
    assert (launched.label("comm_rank"), launched.host, launched.label("pid")) == ("1", "10.0.0.1", "103")
    place = next(fact for fact in facts if fact.kind == "place")
    assert (place.rank, place.host, place.label("device"), place.label("pid")) == (2, "10.0.0.1", "gpu2", "102")


def test_without_a_communicator_of_all_no_rank_is_named(tmp_path: Path) -> None:
    pairs = [communicator(f"0x{n}", 2, [one(0, 2 * n, 1), one(1, 2 * n + 1, 1)], []) for n in range(2)]
    facts = read(tmp_path, report(*pairs)).facts
    assert {fact.rank for fact in facts} == {-1}
    assert [fact.label("comm_rank") for fact in facts if fact.kind == "launched"] == ["0", "1", "0", "1"]
    assert {fact.group for fact in facts} == {()}


def test_missing_ranks(tmp_path: Path) -> None:
    whole = communicator("0xaa", 4, [one(0, 0, 4)], [lost(1, 1), lost(2, 2, dead=True), lost(3, 3, unresponsive=False)])
    facts = read(tmp_path, report(whole)).facts
    assert told(facts, "missing") == [("unresponsive", 1, 0), ("considered_dead", 2, 0), ("not_a_member", 3, 0)]
    assert told(facts, "status") == [("incomplete", -1, 0)]
    assert {fact.label("pid") for fact in facts if fact.kind == "missing"} == {"101", "102", "103"}


def test_errors(tmp_path: Path) -> None:
    """ncclResult_t 3 is an internal error; 7, in progress, is none."""
    whole = communicator("0xaa", 3, [one(0, 0, 4), one(1, 1, 4, async_error=3), one(2, 2, 4, init_state=7)], [])
    facts = read(tmp_path, report(whole)).facts
    assert told(facts, "error") == [("nccl_async_error", 1, 3)]
    assert next(fact for fact in facts if fact.kind == "error").label("reason") == "internal error"
    assert told(facts, "status") == [("error", -1, 0)]


def test_the_comma_that_2_28_9_forgets(tmp_path: Path) -> None:
    text = report(communicator("0xaa", 2, [one(0, 0, 4)], [lost(1, 1)]))
    broken = text.replace('"nvml_dev": 1,', '"nvml_dev": 1')
    assert broken != text
    reading = read(tmp_path, broken)
    assert reading.facts == read(tmp_path, text).facts
    assert reading.notes == ("NCCL 2.28.9 leaves out the comma after nvml_dev of a missing rank: put in",)
    with pytest.raises(InputError, match="not valid JSON at line"):
        read(tmp_path, text.replace('"pid": 101,', '"pid": 101'))


def test_several_reports_and_what_a_watchdog_says_after_them(tmp_path: Path) -> None:
    text = "".join(report(communicator("0xaa", 2, [one(0, 0, count), one(1, 1, 5)], [])) for count in (4, 5))
    said = (
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=6, OpType=ALLREDUCE, NumelIn=8, "
        "NumelOut=8, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n"
    )
    facts = read(tmp_path, text + said).facts
    launched = [(fact.rank, fact.value, fact.label("snapshot")) for fact in facts if fact.kind == "launched"]
    assert launched == [(0, 4, ""), (1, 5, ""), (0, 5, "2"), (1, 5, "2")]
    assert told(facts, "watchdog") == [("collective_timeout", 1, 600.029)]
    assert facts[-1].source == f"ras: line {text.count(chr(10)) + 1}"


HEAD = """NCCL version 2.28.3 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          2            1          8        8

Communicators... (0.01s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""
TAIL = "\nErrors\n======\n\n{errors}Warnings\n========\n\n{warnings}"


def text(rows: str, errors: str = "", warnings: str = "") -> str:
    return HEAD + rows + TAIL.format(errors=errors, warnings=warnings)


WORLD = "    0         1         4         2         8         8   RUNNING  {}\n"


def test_text_that_says_ok(tmp_path: Path) -> None:
    facts = read(tmp_path, text(WORLD.format("    OK"))).facts
    assert told(facts, "status") == [("ok", -1, 0)]
    assert facts[0].group == tuple(range(8))
    assert (facts[0].label("size"), facts[0].label("state")) == ("8", "running")


def test_the_minority_that_text_lists_may_be_ahead(tmp_path: Path) -> None:
    """As in NCCL issue 1911: two ranks are listed, and are one call ahead of the six that are not."""
    facts = read(
        tmp_path,
        text(
            WORLD.format("MISMATCH"),
            warnings="#0-0 (27a079b828ff1a75) MISMATCH\n"
            "  Communicator ranks have different AllGather operation counts\n"
            "  6 ranks have launched up to operation 640\n"
            "  2 ranks have launched up to operation 641\n"
            "  Rank 2 -- GPU 0 managed by process 483072 on node 172.16.64.210\n"
            "  Rank 3 -- GPU 1 managed by process 483073 on node 172.16.64.210\n\n",
        ),
    ).facts
    launched = {fact.rank: fact.value for fact in facts if fact.kind == "launched"}
    assert launched == {2: 641, 3: 641} | dict.fromkeys((0, 1, 4, 5, 6, 7), 640)
    assert {fact.name for fact in facts if fact.kind == "launched"} == {"all_gather"}
    assert {fact.label("listed") for fact in facts if fact.kind == "launched" and fact.rank in (2, 3)} == {""}
    assert {fact.label("listed") for fact in facts if fact.kind == "launched" and fact.rank not in (2, 3)} == {"no"}
    assert {fact.label("communicator") for fact in facts if fact.kind == "launched"} == {"0x27a079b828ff1a75"}
    assert [(fact.rank, fact.host, fact.label("pid")) for fact in facts if fact.kind == "place"] == [
        (2, "172.16.64.210", "483072"), (3, "172.16.64.210", "483073"),
    ]  # fmt: skip
    assert told(facts, "status") == [("mismatch", -1, 0)]


def test_one_that_is_behind(tmp_path: Path) -> None:
    facts = read(
        tmp_path,
        text(
            WORLD.format("MISMATCH"),
            warnings="#0-0 (78db921d1c117b4a) MISMATCH\n"
            "  Communicator ranks have different AllReduce operation counts\n"
            "  7 ranks have launched up to operation 64\n"
            "  Rank 7 has launched up to operation 60 -- GPU 3 managed by process 1650386 on node node1\n\n"
            "  Communicator ranks have different Broadcast operation counts\n"
            "  7 ranks have launched up to operation 2\n"
            "  Rank 7 has not launched any operations -- GPU 3 managed by process 1650386 on node node1\n\n",
        ),
    ).facts
    launched = {(fact.name, fact.rank): fact.value for fact in facts if fact.kind == "launched"}
    assert launched == {("all_reduce", rank): 64 for rank in range(7)} | {("all_reduce", 7): 60} | {
        ("broadcast", rank): 2 for rank in range(7)
    } | {("broadcast", 7): 0}


def test_counts_of_which_nobody_is_listed(tmp_path: Path) -> None:
    facts = read(
        tmp_path,
        text(
            WORLD.format("MISMATCH"),
            warnings="#0-0 (78db921d1c117b4a) MISMATCH\n"
            "  Communicator ranks have different collective operation counts\n"
            "  4 ranks have launched up to operation 9\n  4 ranks have launched up to operation 8\n",
        ),
    ).facts
    assert [(f.name, f.rank, f.value, f.label("ranks")) for f in facts if f.kind == "launched"] == [
        ("collective", -1, 9, "4"), ("collective", -1, 8, "4"),
    ]  # fmt: skip


def test_missing_processes_and_ranks(tmp_path: Path) -> None:
    facts = read(
        tmp_path,
        text(
            WORLD.format("INCOMPLETE"),
            errors="INCOMPLETE\n  Missing communicator data from 1 job process\n"
            "  Process 3487984 on node 172.16.64.213 managing GPU 5\n\n"
            "DEAD\n  1 job process is considered dead (unreachable via the RAS network)\n"
            "  Process 3487985 on node 172.16.64.213 managing GPU 6 (NVML 7)\n\n"
            "#0-0 (cf264af53edbe986) INCOMPLETE\n  Missing communicator data from 2 ranks\n"
            "  Rank 5 -- GPU 5 managed by process 3487984 on node 172.16.64.213\n"
            "  Rank 6 -- [process information not found]\n\n",
            warnings="TIMEOUT\n  Encountered 2 communication timeouts while gathering communicator data\n\n",
        ),
    ).facts
    assert told(facts, "missing") == [
        ("unresponsive", -1, 0), ("considered_dead", -1, 0), ("unresponsive", 5, 0), ("unresponsive", 6, 0),
    ]  # fmt: skip
    first = next(fact for fact in facts if fact.kind == "missing")
    assert (first.host, first.label("pid"), first.label("device")) == ("172.16.64.213", "3487984", "gpu5")


def test_older_and_other_words(tmp_path: Path) -> None:
    """2.24 lists missing ranks in one line; a communicator that is not the whole job's has ranks of its own."""
    rows = "    0         2         2         2         4         8   RUNNING  INCOMPLETE,ERROR\n"
    facts = read(
        tmp_path,
        text(
            rows,
            errors="#0-1 (cf264af53edbe986) INCOMPLETE\n  Missing communicator data from 2 ranks\n"
            "  The missing ranks: 1, 3\n\n#0-1 (cf264af53edbe986) ERROR\n  Asynchronous errors on 2 ranks\n"
            "  Rank 0 reported Internal error -- GPU 0 managed by process 7 on node n1\n"
            "  Rank 2 reported Remote process error -- [process information not found]\n\n",
        ),
    ).facts
    assert [(f.rank, f.label("comm_rank")) for f in facts if f.kind == "missing"] == [(-1, "1"), (-1, "3")]
    assert [(f.name, f.label("comm_rank"), f.label("reason")) for f in facts if f.kind == "error"] == [
        ("nccl_error", "0", "Internal error"), ("nccl_error", "2", "Remote process error"),
    ]  # fmt: skip
    assert told(facts, "status") == [("incomplete", -1, 0), ("error", -1, 0)]


def test_monitoring(tmp_path: Path) -> None:
    facts = read(
        tmp_path,
        "RAS Monitor Mode - watching for peer changes (Ctrl+C to exit)...\n"
        "================================================================\n\n"
        " [2025-12-19 13:07:07] PEER_DEAD: Process 1524345 on node 172.16.64.245 managing GPU 1\n",
    ).facts
    assert [(f.name, f.host, f.label("pid")) for f in facts] == [("considered_dead", "172.16.64.245", "1524345")]


def test_what_says_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no communicator"):
        read(tmp_path, HEAD.split("Group", maxsplit=1)[0])


def test_terminals_are_safe(tmp_path: Path) -> None:
    evil = one(0, 0, 4) | {"host": "\x1b[31mred\u202e"}
    for fact in read(tmp_path, report(communicator("0x\x07", 1, [evil], []))).facts:
        assert all(printable(text) == text for text in (fact.host, fact.text, *(value for _, value in fact.labels)))


@pytest.mark.parametrize(
    "change",
    [
        {"size": "2"}, {"size": 2**40}, {"ranks": {}}, {"ranks": [1]}, {"ranks": [one(5, 0, 1)]},
        {"ranks": [one(0, 0, -1)]}, {"ranks": [one(0, 0, 2**63)]}, {"ranks": [one(0, 0, 1) | {"status": 3}]},
        {"missing_ranks": [lost(0, 0) | {"pid": "7"}]},
    ],
)  # fmt: skip
def test_what_it_does_not_write(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="ras: communicator 0"):
        read(tmp_path, report(communicator("0xaa", 2, [one(0, 0, 4)], []) | change))


WHOLE = (
    report(communicator("0xaa", 4, [one(0, 0, 4)], [lost(1, 1)])).replace('"nvml_dev": 1,', '"nvml_dev": 1'),
    text(
        WORLD.format("INCOMPLETE,MISMATCH"), "DEAD\n  Process 1 on node n managing GPU 5\n",
        "#0-0 (27a079b828ff1a75) MISMATCH\n  Communicator ranks have different AllGather operation counts\n"
        "  6 ranks have launched up to operation 640\n"
        "  Rank 2 has launched up to operation 3 -- GPU 0 managed by process 1 on node n\n",
    ),
)  # fmt: skip


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_changed_bytes(tmp_path: Path, data: st.DataObject) -> None:
    for part in WHOLE:
        whole = part.encode()
        at = data.draw(st.integers(0, len(whole) - 1))
        path = tmp_path / "ras"
        path.write_bytes(whole[:at] + data.draw(st.binary(max_size=6)) + whole[at + data.draw(st.integers(0, 6)) :])
        with suppress(InputError):
            ras.recognises(Source(path))
            ras.read(Source(path))

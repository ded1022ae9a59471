"""Logs of NCCL: ranks, ways, calls and errors, of many ranks in one file or of one."""

import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from linkwise.core.errors import InputError
from linkwise.core.printable import printable
from linkwise.trace.facts import Fact
from linkwise.trace.readers import nccl_lines, nccl_log
from linkwise.trace.readers.base import Reading, Source
from linkwise.trace.readers.watchdog import Watchdog


def read(tmp_path: Path, *lines: str) -> Reading:
    path = tmp_path / "nccl.log"
    path.write_text("\n".join(lines) + "\n")
    source = Source(path, where="nccl.log")
    assert nccl_log.recognises(source)
    return nccl_log.read(source)


def front(rank: int, *, per_host: int = 2, launcher: str = "") -> str:
    host, device = divmod(rank, per_host)
    return f"{launcher}node{host}:{100 + rank}:{200 + rank} [{device}] NCCL INFO "


def init(rank: int, size: int, id: str = "0xabc", pointer: str = "0x1000", of: int | None = None) -> str:
    """Rank `of` of a communicator of `size`, written by rank `rank` of the world."""
    own = rank if of is None else of
    bus = ["1b000", "43000"][rank % 2]
    return (
        f"ncclCommInitRankConfig comm {pointer} rank {own} nranks {size} cudaDev {rank % 2} nvmlDev {rank % 2} "
        f"busId {bus} commId {id} - Init START"
    )


def call(
    op: str, turn: int, count: int = 1024, dtype: int = 9, root: int = 0, pointer: str = "0x1000", n: int = 4
) -> str:
    return (
        f"{op}: opCount {turn:x} sendbuff 0x7f0000000000 recvbuff 0x7f0000000000 count {count} datatype {dtype} op 0 "
        f"root {root} comm {pointer} [nranks={n}] stream 0x55955"
    )


def of_kind(facts: tuple[Fact, ...], kind: str) -> list[Fact]:
    return [fact for fact in facts if fact.kind == kind]


def test_where_ranks_run_and_how_they_reach_each_other(tmp_path: Path) -> None:
    lines = ["node0:100:100 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>"]
    lines += [front(rank) + init(rank, 4) for rank in range(4)]
    lines += [
        front(0) + "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
        front(0) + "Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
        front(2) + "Channel 00 : 2[0] -> 3[1] via SHM/direct/direct",
        front(1) + "Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA",
        front(2) + "Channel 00/0 : 1[1] -> 2[0] [receive] via NET/IB/1",
        front(3) + "Channel 00/0 : 3[1] -> 0[0] [send] via NET/Socket/0",
        front(3) + "CollNet 00/0 : 3 [send] via COLLNET/SHARP/0/GDRDMA",
        front(0) + "Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->1",
        front(0) + "16 coll channels, 16 collnet channels, 12 nvls channels, 32 p2p channels, 32 p2p channels per peer",
        front(1) + "16 coll channels, 16 collnet channels, 0 nvls channels, 32 p2p channels, 32 p2p channels per peer",
        front(1) + "NCCL_IB_HCA set by environment to mlx5_0.",
    ]
    reading = read(tmp_path, *lines)
    places = [
        (f.rank, f.host, f.device, f.label("device"), f.label("pid")) for f in of_kind(reading.facts, "place")[:4]
    ]
    assert places == [
        (0, "node0", "0000:1b:00.0", "gpu0", "100"), (1, "node0", "0000:43:00.0", "gpu1", "101"),
        (2, "node1", "0000:1b:00.0", "gpu0", "102"), (3, "node1", "0000:43:00.0", "gpu1", "103"),
    ]  # fmt: skip
    ways = [(f.name, f.rank, f.peer, f.value) for f in of_kind(reading.facts, "transport")]
    assert ways == [
        ("p2p", 0, 1, 2), ("shm", 2, 3, 1), ("net.ib.gdr", 1, 2, 1), ("net.ib", 2, 1, 1), ("net.socket", 3, 0, 1),
        ("coll.sharp", 3, -1, 1), ("coll.tree", 0, -1, 0), ("coll.nvls", 0, -1, 12),
    ]  # fmt: skip
    nics = [(f.host, f.device, f.label("link")) for f in of_kind(reading.facts, "place") if f.name == "nic"]
    assert nics == [("node0", "mlx5_0:1", "InfiniBand"), ("node0", "mlx5_1:1", "RoCE")]
    (setting,) = of_kind(reading.facts, "setting")
    assert (setting.name, setting.label("value"), setting.host) == ("NCCL_IB_HCA", "mlx5_0", "node0")
    assert reading.ranks == ()
    assert reading.notes == ("ranks are those of its largest communicator, of 4",)


@pytest.mark.parametrize(
    ("bus", "address"),
    [("1b000", "0000:1b:00.0"), ("101d0", "0000:10:1d.0"), ("f01000", "000f:01:00.0"), ("57001", "0000:57:00.1")],
)
def test_bus(bus: str, address: str) -> None:
    assert nccl_lines.pci_address(bus) == address


@pytest.mark.parametrize(
    ("op", "ours", "size"),
    [  # 1024 elements of bfloat16 on 4 ranks; of these NCCL counts one rank's part
        ("AllReduce", "all_reduce", 2048), ("AllGather", "all_gather", 8192), ("ReduceScatter", "reduce_scatter", 8192),
        ("AlltoAll", "all_to_all", 8192), ("Gather", "gather", 8192), ("Scatter", "scatter", 8192),
        ("Broadcast", "broadcast", 2048), ("Reduce", "reduce", 2048),
    ],
)  # fmt: skip
def test_calls_and_their_sizes(tmp_path: Path, op: str, ours: str, size: int) -> None:
    reading = read(
        tmp_path, *(front(r) + init(r, 4) for r in range(4)), *(front(r) + call(op, 0x11D) for r in range(4))
    )
    assert [rank.head.rank for rank in reading.ranks] == [0, 1, 2, 3]
    head = reading.ranks[2].head
    assert (head.world, head.unit, head.host, head.pid, head.device) == (4, "", "node1", 102, "0000:1b:00.0")
    assert head.groups == {"0xabc": (0, 1, 2, 3)}
    (found,) = reading.ranks[2].calls
    assert (found.op, found.S_bytes, found.dtype, found.sequence, found.group) == (ours, size, "bfloat16", 285, "0xabc")
    assert found.state == "done"
    assert reading.notes[-1] == "it tells when calls are enqueued, not when they end: they count as done"


def test_groups_of_a_file_that_holds_them_whole(tmp_path: Path) -> None:
    """Two communicators of two below one of four: their members and peers are ranks of the world."""
    lines = [front(rank) + init(rank, 4) for rank in range(4)]
    for rank in range(4):
        lines.append(front(rank) + init(rank, 2, f"0x{rank % 2}", "0x2000", rank // 2))
    lines += [
        front(3) + call("AllReduce", 7, pointer="0x2000", n=2),
        front(3) + call("Send", 8, root=0, pointer="0x2000", n=2),
    ]
    lines += [front(3) + call("Recv", 8, root=0, pointer="0x2000", n=2)]
    (rank,) = read(tmp_path, *lines).ranks
    assert rank.head.groups == {"0x1": (1, 3), "0x1|p2p": (1, 3)}
    assert [(c.op, c.group, c.sequence, c.peer) for c in rank.calls] == [
        ("all_reduce", "0x1", 7, -1), ("send", "0x1|p2p", 0, 1), ("recv", "0x1|p2p", 1, 1),
    ]  # fmt: skip


def test_a_communicator_whose_other_ranks_are_elsewhere_is_a_unit(tmp_path: Path) -> None:
    reading = read(
        tmp_path,
        front(3) + init(3, 4),
        front(3) + init(3, 2, "0xd0", "0x2000", 1),
        front(3) + call("AllReduce", 0),
        front(3) + call("AllReduce", 5, pointer="0x2000", n=2),
    )
    whole, part = reading.ranks
    assert (whole.head.unit, whole.head.rank, whole.head.world, len(whole.calls)) == ("", 3, 4, 1)
    assert (part.head.unit, part.head.rank, part.head.world, part.head.groups) == (
        "communicator 0xd0", 1, 2, {"0xd0": (0, 1)}
    )  # fmt: skip


def test_split_communicators_have_the_same_name_on_all_members(tmp_path: Path) -> None:
    lines = [front(rank) + init(rank, 4, pointer=f"0x1{rank}00") for rank in range(4)]
    for rank in range(4):
        lines.append(
            front(rank)
            + f"ncclCommSplit comm 0x2{rank}00 rank {rank // 2} nranks 2 cudaDev {rank % 2} nvmlDev {rank % 2} busId"
            f" 1b000 parent 0x1{rank}00 splitCount 1 color {rank % 2} key 0- Init START"
        )
        lines.append(front(rank) + call("AllReduce", 0, pointer=f"0x2{rank}00", n=2))
    ranks = read(tmp_path, *lines).ranks
    assert [rank.head.groups for rank in ranks] == [
        {"0xabc split 1 color 0": (0, 2)}, {"0xabc split 1 color 1": (1, 3)},
    ] * 2  # fmt: skip


def test_calls_alone_with_a_launchers_ranks(tmp_path: Path) -> None:
    """NCCL_DEBUG_SUBSYS=COLL leaves out the making of communicators; mpirun, torchrun and srun say the rank."""
    for mark in ("[1,{}]<stdout>:", "[rank{}]: ", "{}: ", "[prterun-head-77@1,{}]<stderr>: "):
        lines = [front(r, launcher=mark.format(r)) + call("AllReduce", t) for t in range(2) for r in range(4)]
        ranks = read(tmp_path, *lines).ranks
        assert [(rank.head.rank, rank.head.world, len(rank.calls)) for rank in ranks] == [(r, 4, 2) for r in range(4)]
        assert ranks[1].head.groups == {"4 ranks #0": (0, 1, 2, 3)}
    reading = read(tmp_path, *(front(r, launcher="[default0]:") + call("AllReduce", 0) for r in range(4)))
    assert reading.ranks == ()
    assert reading.notes[-1] == "calls on 4 communicators are left out: nothing says of which rank they are"


def test_rccl_says_the_rank(tmp_path: Path) -> None:
    (rank,) = read(tmp_path, front(3) + call("AllGather", 2) + " task 0 globalrank 3").ranks
    assert (rank.head.rank, rank.head.world) == (3, 4)


def test_repeated_counts(tmp_path: Path) -> None:
    """Calls between ncclGroupStart and ncclGroupEnd share an opCount: their order is their number."""
    lines = [front(0) + init(0, 4)] + [front(0) + call("AllReduce", turn) for turn in (3, 3, 4)]
    reading = read(tmp_path, *lines)
    assert [c.sequence for c in reading.ranks[0].calls] == [0, 1, 2]
    assert "opCount repeats, as in grouped calls: there calls are numbered in their order instead" in reading.notes


def test_several_communicators_of_the_largest_size(tmp_path: Path) -> None:
    """Two groups of two and nothing above them: whose rank 0 is rank 0? A launcher may say."""
    lines = [front(r) + init(r, 2, f"0x{r // 2}", of=r % 2) for r in range(4)]
    reading = read(tmp_path, *lines)
    assert [fact.rank for fact in reading.facts] == [-1] * 4
    assert reading.notes == (
        "no communicator holds all processes: ranks are those that a launcher put before the lines",
    )
    marked = [front(r, launcher=f"[1,{r}]<stdout>:") + init(r, 2, f"0x{r // 2}", of=r % 2) for r in range(4)]
    marked.append(front(3, launcher="[1,3]<stdout>:") + "Channel 00/0 : 1[1] -> 0[0] via P2P/IPC")
    facts = read(tmp_path, *marked).facts
    assert [fact.rank for fact in of_kind(facts, "place")] == [0, 1, 2, 3]
    (way,) = of_kind(facts, "transport")
    assert (way.rank, way.peer) == (3, 2)


COMPLETIONS = {
    "NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129": ("12.129", "", "", ""),
    "NET/IB : Got completion from peer 10.0.1.1<33092> with error 12, opcode 0, len 0, vendor err 129 (Recv)": (
        "12.129", "", "10.0.1.1", "recv"
    ),
    "NET/IB: Got completion from peer 10.0.1.1<51161> with status=4 opcode=32614 len=32614 vendor err 81 (Send) "
    "localGid ::ffff:10.0.0.9 remoteGids::ffff:10.0.1.9 hca mlx5_1": ("4.81", "mlx5_1", "10.0.1.1", "send"),
    "NET/IB: Got completion from peer 10.0.1.1<40554> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_RDMA_WRITE(1) "
    "vendor_err=129 localGid ::ffff:1.1.2.2 remoteGids::ffff:1.1.1.4 hca mlx5_1": ("12.129", "mlx5_1", "10.0.1.1", ""),
    "NET/IB : Got completion from peer 10.0.1.1<4> with error 5, opcode 0, len 0": ("5", "", "10.0.1.1", ""),
}  # fmt: skip


@pytest.mark.parametrize("said", COMPLETIONS)
def test_completions_with_errors(tmp_path: Path, said: str) -> None:
    status, device, peer, side = COMPLETIONS[said]
    lines = [front(r, per_host=1) + init(r, 2) for r in range(2)]
    lines += [front(r, per_host=1) + f"NET/Socket : Using [0]eth0:10.0.{r}.1<0>" for r in range(2)]
    lines.append("[2026-03-03 12:11:38] node0:100:909 [0] transport/net_ib.cc:2453 NCCL WARN " + said)
    (fact,) = of_kind(read(tmp_path, *lines).facts, "network")
    assert (fact.name, fact.device, fact.rank) == (f"ib.completion.{status}", device, 0)
    assert (fact.label("peer"), fact.label("side")) == (peer, side)
    assert (fact.peer, fact.label("peer_host")) == ((1, "node1") if peer else (-1, ""))
    assert fact.unix_ns == 1_772_539_898 * 10**9
    assert fact.source == "nccl.log: line 5"


def test_events_and_warnings(tmp_path: Path) -> None:
    warn = "3: [2026-02-11 16:02:37] node1:103:720 [1] transport/net_ib.cc:253 (ncclIbAsyncThread) NCCL WARN "
    facts = read(
        tmp_path,
        front(3) + init(3, 4),
        warn + "NET/IB : mlx5_1:1 Got non-fatal async event: port error(10)",
        warn + "NET/IB : mlx5_1:1 Got async event : port active",
        warn + "NET/IB : mlx5_3:1 async fatal event on QP (0x732d78661238): invalid request local work queue error",
        warn + "Mismatched collective detected, please check your collective calls at and around rank 3. You can use",
        warn + "socketProgress: Connection closed by remote peer node0<54321>",
        warn + "Cuda failure 'out of memory'",
        warn + "Call to bind failed: Address already in use",
        warn + "Call to bind failed: Address already in use",
    ).facts
    assert [(f.kind, f.name, f.device, f.label("event")) for f in facts[1:]] == [
        ("network", "ib.async_event", "mlx5_1:1", "port error(10)"),
        ("notice", "ib.async_event", "mlx5_1:1", "port active"),
        ("network", "ib.async_event", "mlx5_3:1", "invalid request local work queue error"),
        ("error", "nccl_mismatch", "", ""), ("error", "peer_closed", "", ""), ("error", "cuda", "", ""),
        ("notice", "nccl_warning", "", ""),
    ]  # fmt: skip
    assert {fact.rank for fact in facts} == {3}


DOG = "[rank118]:[E603 17:48:01.005271823 ProcessGroupNCCL.cpp:632] "
TIMEOUT = (
    DOG + "[Rank 118] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2398459, OpType=_ALLGATHER_BASE, "
    "NumelIn=8652160, NumelOut=8652160, Timeout(ms)=1800000) ran for 1800068 milliseconds before timing out."
)
STATUS = (
    DOG
    + "[PG ID 0 PG GUID 0(default_pg) Rank 118]  failure detected by watchdog at work sequence id: 2398459 PG status: "
    "last enqueued work: 2398578, last completed work: 2398458"
)


def test_a_watchdog_says_one_thing_in_two_lines(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    path.write_text(f"{TIMEOUT}\n{STATUS}\n{TIMEOUT}\n")
    os.utime(path, (1_790_000_000, 1_790_000_000))  # 21 September 2026: the lines have no year
    reading = nccl_log.read(Source(path, where="nccl.log"))
    (fact,) = reading.facts
    assert (fact.kind, fact.name, fact.rank, fact.value, fact.unit) == (
        "watchdog",
        "collective_timeout",
        118,
        1800.068,
        "s",
    )
    assert dict(fact.labels) == {
        "op": "all_gather", "sequence": "2398459", "timeout_s": "1800", "numel_in": "8652160", "numel_out": "8652160",
        "enqueued": "2398578", "completed": "2398458", "group": "default_pg:0",
    }  # fmt: skip
    assert fact.unix_ns // 10**9 == 1_780_508_881  # 3 June 2026, 17:48:01, taken as UTC
    assert fact.source == "nccl.log: line 1"


@pytest.mark.parametrize(
    ("line", "rank", "seconds"),
    [
        (
            "[rank6]:[E429 13:55:49.384372190 ProcessGroupNCCL.cpp:1743] [PG ID 2 PG GUID 4(tp:0) Rank 0] "
            "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued",
            6,
            480,
        ),
        (
            "[rank0]:[E ProcessGroupNCCL.cpp:1316] [PG 2 Rank 0] Heartbeat monitor timed out! Process will be "
            "terminated after dumping debug info. workMetaList_.size()=9",
            0,
            0,
        ),
        (
            "[F930 15:23:07.686401350 ProcessGroupNCCL.cpp:1309] [PG ID 6 PG GUID  Rank 3] [PG ID 6 PG GUID  Rank 3] "
            "Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.",
            3,
            0,
        ),
    ],
)
def test_the_watchdogs_own_thread_stands(tmp_path: Path, line: str, rank: int, seconds: int) -> None:
    """Wordings of torch 2.3 to 2.7. Behind PG the rank is that of the group, in front that of the world."""
    path = tmp_path / "job.log"
    path.write_text(line + "\n")
    source = Source(path)
    assert nccl_log.recognises(source)
    (fact,) = nccl_log.read(source).facts
    assert (fact.kind, fact.name, fact.rank, fact.value) == ("watchdog", "heartbeat", rank, seconds)


def test_a_rank_that_ends_because_of_a_call_and_says_no_more() -> None:
    ends = "[rank3]:[F930 15:23:07.6 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0(default_pg) Rank 3] Terminating the "
    ends += "process after attempting to dump debug info, due to collective timeout or exception."
    dog = Watchdog("log")
    assert dog.take(1, ends)
    assert [(fact.name, fact.rank, fact.source) for fact in dog.facts()] == [("collective_timeout", 3, "log: line 1")]
    assert dog.take(2, "[rank3]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, Timeout(ms)=600000)")
    assert [fact.source for fact in dog.facts()] == ["log: line 2"]


@pytest.mark.parametrize(
    ("line", "rank", "labels"),
    [
        (
            "[PG ID 1 PG GUID 1 Rank 2] Exception (either an error or timeout) detected by watchdog at work: 500045, "
            "last enqueued NCCL work: 500047, last completed NCCL work: 500044.",
            2,
            {"sequence": "500045", "enqueued": "500047", "completed": "500044", "group": "1"},
        ),
        (
            "[PG 2 Rank 3] Timeout at NCCL work: 31, last enqueued NCCL work: 58, last completed NCCL work: 30.",
            3,
            {"sequence": "31", "enqueued": "58", "completed": "30", "group": "2"},
        ),
        (
            "[rank7]: Watchdog caught collective operation timeout: WorkNCCL(OpType=REDUCE_SCATTER, "
            "Timeout(ms)=600000)",
            7,
            {"op": "reduce_scatter", "timeout_s": "600"},
        ),
    ],
)
def test_other_words_of_the_watchdog(line: str, rank: int, labels: dict[str, str]) -> None:
    dog = Watchdog("log")
    assert dog.take(1, line)
    (fact,) = dog.facts()
    assert (fact.kind, fact.name, fact.rank, dict(fact.labels)) == ("watchdog", "collective_timeout", rank, labels)


def test_a_rank_that_only_heard_of_it() -> None:
    """It tells how far it had got: it did not time out itself, so that it is no reporter."""
    dog = Watchdog("log")
    assert dog.take(
        1,
        "[PG ID 0 PG GUID 0(default_pg) Rank 0] Received a dump signal due to a collective timeout from rank 1. "
        "Last enqueued NCCL work: 3, last completed NCCL work: 1.This is most likely caused by",
    )
    assert dog.take(
        2, "[PG ID 0 PG GUID 0(default_pg) Rank 9] ProcessGroupNCCL's watchdog got stuck for 480 seconds without"
    )
    assert not dog.take(3, "the watchdog of this engine is on")
    signal, stuck = dog.facts()
    assert (signal.kind, signal.name, signal.value, signal.rank) == ("launched", "work", 3, 0)
    assert dict(signal.labels) == {"enqueued": "3", "completed": "1", "group": "default_pg:0", "told_by": "rank 1"}
    assert (stuck.kind, stuck.name, stuck.value, stuck.rank) == ("watchdog", "heartbeat", 480, 9)


def test_a_few_lines_in_the_log_of_something_else_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("INFO 11-30 engine started\n" * 20 + front(0) + init(0, 2) + "\n")
    assert nccl_log.recognises(Source(path))
    with pytest.raises(InputError, match="no line of it is understood"):
        path.write_text(front(0) + "Bootstrap timings total 0.1\n")
        nccl_log.read(Source(path))


def test_lines_are_found_wherever_they_begin() -> None:
    for before in ("", "(EngineCore_DP0 pid=742) (RayWorkerWrapper pid=927) ", "2026-11-30T01:02:03Z worker-3 | "):
        found = nccl_lines.parsed(before + front(3) + init(3, 4))
        assert found is not None
        assert found[:4] == ("node1", 103, 203, 1)
    for line in ("NCCL INFO x", "a b NCCL INFO x", "h:1:2 [x] NCCL INFO y", "h:1:2 [0] NCCL CALL ncclAllReduce()"):
        assert nccl_lines.parsed(line) is None


WHOLE = "\n".join(
    [front(0) + init(0, 4), front(0) + call("AllGather", 3), front(1) + "Channel 00/0 : 0[0] -> 1[1] via NET/IB/0",
     front(0) + call("Send", 3), "node0:100:909 [0] x.cc:1 NCCL WARN " + list(COMPLETIONS)[2], TIMEOUT, STATUS]
)  # fmt: skip


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_changed_bytes(tmp_path: Path, data: st.DataObject) -> None:
    whole = WHOLE.encode()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole = whole[:at] + data.draw(st.binary(max_size=6)) + whole[at + data.draw(st.integers(0, 6)) :]
    path = tmp_path / "log"
    path.write_bytes(whole)
    with suppress(InputError):
        nccl_log.recognises(Source(path))
        reading = nccl_log.read(Source(path))
        assert all(printable(text) == text for fact in reading.facts for text in (fact.text, fact.host))


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    log = nccl_log.Log("log")
    for n, line in enumerate((text, front(0) + text, "[Rank 1] Watchdog " + text, front(0) + "comm 0x1 rank " + text)):
        log.take(n, line)
    log.reading()

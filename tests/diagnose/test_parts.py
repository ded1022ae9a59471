"""Who is late, where hosts' clocks are bound by orders alone and calls are enqueued ahead. Expected values: by hand."""

import msgspec
import numpy as np
import pytest
from tests.diagnose.made import BASE, MS, Step, run

from linkwise.diagnose.case import Case
from linkwise.diagnose.diagnose import diagnose
from linkwise.trace.gather import Evidence

EIGHT = tuple(range(8))
HOSTS = {rank: f"node{rank // 4}" for rank in EIGHT}
# Tensor groups inside two hosts, data groups across them.
ACROSS = {"t0": (0, 1, 2, 3), "t1": (4, 5, 6, 7), **{f"d{rank}": (rank, rank + 4) for rank in range(4)}}


def looked(found: Evidence, *, ahead: int = 1, every_ms: int = 100) -> Evidence:
    """As a watchdog's dump without timing has it: ends when it next looked, no starts. ahead: so many calls of a group
    are enqueued together, when the first of them is."""
    ranks = []
    for rank in found.trace.ranks:
        calls, phase = rank.calls, rank.head.rank * 23 * MS
        ended = -(-(calls.ended_ns - BASE - phase) // (every_ms * MS)) * every_ms * MS + BASE + phase
        created = calls.created_ns[calls.sequence // ahead * ahead] + calls.sequence % ahead if ahead > 1 else None
        seen = msgspec.structs.replace(
            calls, created_ns=calls.created_ns if created is None else created, started_ns=ended * 0, ended_ns=ended
        )
        head = msgspec.structs.replace(rank.head, transport="nccl")
        ranks.append(msgspec.structs.replace(rank, head=head, calls=seen, polled=True))
    return msgspec.structs.replace(found, trace=msgspec.structs.replace(found.trace, ranks=tuple(ranks)))


def late_by(ms: float, count: int = 200, takes_ms: float = 0.1) -> list[Step]:
    """Rank 3 of eight works 1 ms and `ms` more before each call, the others 1 ms."""
    return [Step("tp", {rank: 1 + ms * (rank == 3) for rank in EIGHT}, takes_ms) for _ in range(count)]


def test_a_wait_of_calls_enqueued_ahead_counts_once():
    # Eight calls a step are enqueued at its beginning, by rank 3 6 ms later than by the others: they wait 6 ms a step,
    # in its first call, and not in each of eight.
    steps = [Step("tp", {rank: 1 + 6 * (rank == 3 and n % 8 == 0) for rank in EIGHT}, 0.1) for n in range(80)]
    case = Case(looked(run({"tp": EIGHT}, steps, hosts=dict.fromkeys(EIGHT, "node0")), ahead=8))
    waited = [row.waited_s for row in diagnose(case.evidence).ranks]
    assert waited == [pytest.approx(0 if rank == 3 else 10 * 0.006, abs=1e-6) for rank in EIGHT]
    assert case.timing.own_ns[3] / MS == pytest.approx(10 * 6 * 7, rel=1e-3)
    assert max(waited) < case.timing.elapsed_ns / 1e9


def test_ranks_of_one_host_share_a_clock_and_the_late_one_is_named():
    found = diagnose(looked(run({"tp": EIGHT}, late_by(6), hosts=dict.fromkeys(EIGHT, "node0"))))
    assert [(one.class_, one.original_fault.ranks, one.decided) for one in found.findings] == [
        ("late_rank", (3,), True)
    ]
    assert found.clocks == "one clock"


def test_lateness_within_what_clocks_are_bound_by_is_said_and_not_decided():
    # No host is known, so each record has a clock of its own; orders bind each of them within some 7 ms.
    found = diagnose(looked(run({"tp": EIGHT}, late_by(6), hosts=dict.fromkeys(EIGHT, ""))))
    (one,) = found.findings
    assert (one.class_, one.original_fault.ranks, one.decided) == ("late_rank", (3,), False)
    assert found.exit_code == 3
    assert "as clocks are written" in one.summary and "its clock is ahead" in one.summary
    assert found.ranks[3].late_s == 0  # what is not known is not in the table


@pytest.mark.parametrize("ahead_ms", [0, 2, 40, 7000])
def test_a_hosts_clock_that_is_ahead_makes_none_of_its_ranks_late(ahead_ms):
    """Every rank pauses for 3 ms in one step of ten, as chance has it."""
    chance = np.random.default_rng(5)
    steps: list[Step] = []
    for _ in range(100):
        pause = {rank: 3.0 * (chance.random() < 0.1) for rank in EIGHT}
        steps += [Step(name, {rank: 0.5 + pause[rank] for rank in ACROSS[name]}, 0.05) for name in ("t0", "t1")]
        steps += [Step(f"d{rank}", {rank: 0.2, rank + 4: 0.2}, 0.05) for rank in range(4)]
    clocks = {rank: float(ahead_ms) for rank in EIGHT if rank >= 4}
    found = diagnose(looked(run(ACROSS, steps, hosts=HOSTS, ahead_ms=clocks)))
    assert not {rank for one in found.findings for rank in one.original_fault.ranks}
    assert [one.class_ for one in found.findings] == ["rotating_straggler"]


def test_a_late_rank_of_one_host_is_told_whatever_the_others_clock_says():
    for ahead_ms in (0, 2, 7000):
        steps = [
            step
            for _ in range(100)
            for step in (
                *(Step(name, {rank: 0.5 + 5 * (rank == 6) for rank in ACROSS[name]}, 0.05) for name in ("t0", "t1")),
                *(Step(f"d{rank}", {rank: 0.2, rank + 4: 0.2}, 0.05) for rank in range(4)),
            )
        ]
        clocks = {rank: float(ahead_ms) for rank in EIGHT if rank >= 4}
        found = diagnose(looked(run(ACROSS, steps, hosts=HOSTS, ahead_ms=clocks)))
        assert {one.original_fault.ranks for one in found.findings} == {(6,)}, ahead_ms


def test_a_group_whose_calls_take_longer_is_not_made_of_late_ranks():
    # All work for as long, but calls of "t1" take 1 ms more: its members come late to the data groups by its moving.
    groups = {f"t{n}": tuple(range(4 * n, 4 * n + 4)) for n in range(4)}
    groups |= {f"d{rank}": tuple(range(rank, 16, 4)) for rank in range(4)}
    steps: list[Step] = []
    for _ in range(60):
        for name in [f"t{n}" for n in range(4)] * 4:
            steps.append(Step(name, dict.fromkeys(groups[name], 0.2), 1.04 if name == "t1" else 0.04))
        steps += [Step(f"d{rank}", dict.fromkeys(groups[f"d{rank}"], 0.1), 0.04) for rank in range(4)]
    found = diagnose(run(groups, steps, hosts={rank: f"node{rank // 4}" for rank in range(16)}))
    assert not {rank for one in found.findings for rank in one.original_fault.ranks}


def test_a_rank_whose_host_waits_in_the_same_calls_is_named_though_clocks_are_loose():
    # Rank 3 of node0 comes 150 ms late to calls of all eight, whose other members wait as its neighbours do: whatever
    # node1 did, they would have waited for it as well. Orders bind the two clocks within some 150 ms.
    groups = {"all": EIGHT, "t0": (0, 1, 2, 3), "t1": (4, 5, 6, 7)}
    one = [Step("all", dict.fromkeys(EIGHT, 1.0), 0.1), Step("t0", {0: 1, 1: 1, 2: 1, 3: 151}, 0.1),
           Step("t1", dict.fromkeys((4, 5, 6, 7), 1.0), 0.1)]  # fmt: skip
    found = diagnose(looked(run(groups, one * 100, hosts=HOSTS, ahead_ms=dict.fromkeys((4, 5, 6, 7), 3200))))
    assert [(one.class_, one.original_fault.ranks, one.decided) for one in found.findings] == [
        ("late_rank", (3,), True)
    ]
    late = {row.rank: row.late_s for row in found.ranks}
    assert late[3] == max(late.values())
    assert sum(time for rank, time in late.items() if rank != 3) < 0.1 * late[3]

"""Lateness told by how long calls ran on each device, of dumps whose times are when somebody looked."""

import msgspec
from tests.diagnose.made import BASE, MS, Step, run

from linkwise.diagnose.diagnose import diagnose
from linkwise.trace.calls import DONE
from linkwise.trace.gather import Evidence

TP = {"tp": (0, 1, 2, 3)}


def looked(found: Evidence, *, every_ms: int = 100) -> Evidence:
    """The same as a watchdog's dump has it: a call's end when it next looked, its start as long before as it ran; each
    rank's watchdog looks at times of its own. Hosts enqueue early: all calls of a step of ten at its beginning."""
    ranks = []
    for rank in found.trace.ranks:
        calls = rank.calls
        ran = calls.ended_ns - calls.started_ns
        phase = rank.head.rank * 23 * MS
        ended = -(-(calls.ended_ns - BASE - phase) // (every_ms * MS)) * every_ms * MS + BASE + phase
        created = calls.created_ns[calls.sequence // 10 * 10] + calls.sequence % 10
        seen = msgspec.structs.replace(calls, created_ns=created, started_ns=ended - ran, ended_ns=ended)
        ranks.append(msgspec.structs.replace(rank, calls=seen, polled=True))
    return msgspec.structs.replace(found, trace=msgspec.structs.replace(found.trace, ranks=tuple(ranks)))


def steps(late_ms: float, count: int = 120) -> list[Step]:
    """Rank 2 works 2 ms and `late_ms` more before each call, the others 2 ms and a little that goes around."""
    return [
        Step("tp", {rank: 2 + 0.1 * ((rank + n) % 4) + (late_ms if rank == 2 else 0) for rank in range(4)})
        for n in range(count)
    ]


def test_the_rank_whose_device_is_in_each_call_for_the_shortest_is_late():
    (one,) = diagnose(looked(run(TP, steps(6)))).findings
    assert (one.class_, one.original_fault.ranks, one.decided) == ("late_rank", (2,), True)
    # It comes 6 ms after the others, give or take what goes around: 119 calls follow another of their group.
    assert 119 * 5.6 < one.waited_s * 1e3 < 119 * 6.4


def test_equal_ranks_and_watchdogs_that_look_at_different_times_are_no_lateness():
    assert diagnose(looked(run(TP, steps(0)))).findings == ()


def test_who_is_late_because_it_waited_in_another_group_is_not_named():
    # Rank 2 keeps rank 3 in their own group, and so both come late to the data groups; only rank 2 is charged.
    groups = {"t0": (0, 1), "t1": (2, 3), "d0": (0, 2), "d1": (1, 3)}
    one = [Step(name, {0: 2, 1: 2, 2: 8, 3: 2}) for name in ("t0", "t1") * 3]
    other = [Step(name, dict.fromkeys(range(4), 0.2)) for name in ("d0", "d1")]
    found = diagnose(looked(run(groups, (one + other) * 20)))
    assert {rank for told in found.findings for rank in told.original_fault.ranks} == {2}


def test_without_how_long_calls_ran_nobody_is_late():
    given = looked(run(TP, steps(6)))
    calls = [rank.calls for rank in given.trace.ranks]
    ranks = tuple(
        msgspec.structs.replace(rank, calls=msgspec.structs.replace(mine, started_ns=mine.started_ns * 0))
        for rank, mine in zip(given.trace.ranks, calls, strict=True)
    )
    assert all((mine.state == DONE).all() for mine in calls)
    assert (
        diagnose(msgspec.structs.replace(given, trace=msgspec.structs.replace(given.trace, ranks=ranks))).findings == ()
    )

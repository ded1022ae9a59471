"""A rank is late: its host or its device? Four ranks whose calls run on devices, with times by hand.

In each of 40 calls rank 2 comes 6 ms after the others, and one of its stages is why.
"""

from typing import NamedTuple

import msgspec
import pytest
from tests.diagnose.made import BASE, MS, evidence

from linkwise.diagnose.diagnose import diagnose
from linkwise.trace.events import Event

LATE = 2
GROUP = {"tp": (0, 1, 2, 3)}


class Case(NamedTuple):
    """Of the usual and of the late rank, in ms of each round of 10 (usual) or 16: when a call is enqueued (-1 = not
    recorded), when its kernels run, and how long of that they are busy. Usual calls start at 3, the late one at 9."""

    enqueued: tuple[float, float]
    work: tuple[tuple[float, float], tuple[float, float]] | None = None
    busy: tuple[float, float] | None = None


def made(case: Case, transport: str = "nccl"):
    rows = {rank: [] for rank in range(4)}
    busy = {rank: [] for rank in range(4)}
    for number in range(40):
        at = BASE + number * 10 * MS
        for rank in range(4):
            late = rank == LATE
            created = at + round(case.enqueued[late] * MS) if case.enqueued[late] >= 0 else 0
            begin, end = at + (9 if late else 3) * MS, at + 10 * MS
            if case.work:
                a, b = (at + round(edge * MS) for edge in case.work[late])
                rows[rank].append(Event(0, "", "matmul", "compute", number, 0, "", -1, 0, a, b, "done"))
                busy[rank].append(round((case.busy[late] * MS) if case.busy else b - a))
            rows[rank].append(
                Event(0, "tp", "", "all_reduce", number, 4096, "bfloat16", -1, created, begin, end, "done")
            )
    found = evidence(rows, GROUP, world=4, transport=transport)
    ranks = [msgspec.structs.replace(rank, busy_ns=tuple(busy[rank.head.rank])) for rank in found.trace.ranks]
    return msgspec.structs.replace(found, trace=msgspec.structs.replace(found.trace, ranks=tuple(ranks)))


CASES = {
    # Enqueued as early as by the others; its kernel starts 6 ms later than theirs.
    "its device is late": (Case((0.5, 0.5)), "device"),
    # Enqueued 6 ms later, started as soon as the others start theirs.
    "its host is late": (Case((2.0, 8.0)), "host"),
    # It waits for its kernels, which take 8.5 ms and not 2.5, before it enqueues the call.
    "its host waits for its device": (Case((2.9, 8.9), ((0.5, 2.9), (0.4, 8.9))), "device"),
    # Its kernels do no more than the others', but 6 ms later: nobody launched them.
    "its device waits for its host": (Case((2.9, 8.9), ((0.5, 2.9), (0.4, 8.9)), (2.4, 2.5)), "host"),
    # When calls were enqueued is not recorded; the kernels are.
    "only kernels, longer": (Case((-1, -1), ((0.5, 2.9), (0.4, 8.9))), "device"),
    "only kernels, alike": (Case((-1, -1), ((0.5, 2.9), (6.4, 8.8))), "host"),
    # Neither is recorded.
    "nothing that tells": (Case((-1, -1)), ""),
}


@pytest.mark.parametrize("name", CASES)
def test_host_or_device(name):
    case, cause = CASES[name]
    findings = diagnose(made(case)).findings
    assert [(one.class_, one.original_fault.ranks, one.cause) for one in findings] == [("late_rank", (LATE,), cause)]
    if not cause:
        assert "does not say which" in findings[0].summary


def test_calls_that_run_on_the_host_are_late_by_their_host():
    (one,) = diagnose(made(Case((-1, -1)), transport="gloo")).findings
    assert one.cause == "host"

"""How signs of an end become one fault, without processes: stopped ranks, and whose account counts."""

import pytest

from linkwise.runtime.control import Trouble
from linkwise.runtime.ends import Ends, Over
from linkwise.runtime.health import View
from linkwise.supervise.types import Fault


class Processes:
    """What the system says of the ranks' processes."""

    def __init__(self) -> None:
        self.stopped: list[int] = []
        self.codes: dict[int, int] = {}

    def start(self, host: str, port: int, token: str) -> None: ...

    def ended(self) -> dict[int, int]:
        return self.codes

    def halted(self) -> list[int]:
        return list(self.stopped)

    def last_words(self, rank: int) -> str:
        return "out of memory"

    def kill(self) -> None: ...

    def reap(self, grace_s: float = 0.0) -> None: ...


@pytest.fixture
def processes() -> Processes:
    return Processes()


@pytest.fixture
def views() -> list[View]:
    return [View(rank, 100.0, 100.0) for rank in range(3)]


@pytest.fixture
def ends(views: list[View], processes: Processes) -> Ends:
    return Ends(views, processes, 6.0)


def fault(ends: Ends, now: float, *, ready: bool = True) -> Fault:
    with pytest.raises(Over) as over:
        ends.look(now, ready=ready)
    return over.value.fault


def looks(ends: Ends, views: list[View], processes: Processes, stops: list[bool], first: float = 100.0) -> int:
    """Looks until rank 1 is named, 0.05 s apart; 0 when it never is. It is heard of whenever it is not stopped."""
    for number, stopped in enumerate(stops):
        now = first + number * 0.05
        processes.stopped = [1] if stopped else []
        if not stopped:
            views[1].heard = now
        try:
            ends.look(now, ready=True)
        except Over as over:
            assert (over.fault.ranks, over.fault.kind) == ((1,), "stopped")
            return number
    return 0


def test_a_rank_that_stays_stopped_is_named(ends: Ends, views: list[View], processes: Processes) -> None:
    found = looks(ends, views, processes, [False] + [True] * 40)
    assert 0.4 <= found * 0.05 <= 0.55


def test_one_that_is_hardly_ever_let_go_is_named_too(ends: Ends, views: list[View], processes: Processes) -> None:
    found = looks(ends, views, processes, [False, *[True] * 7] * 10)
    assert 0 < found * 0.05 < 1.5


def test_one_that_works_half_of_the_time_is_not(ends: Ends, views: list[View], processes: Processes) -> None:
    assert not looks(ends, views, processes, [False, True] * 200)
    # It may be seen stopped at every look: what it says shows that it is not.
    processes.stopped = [1]
    for tick in range(200):
        now = 200.0 + tick * 0.05
        if tick % 2:
            views[1].heard = now
        ends.look(now, ready=True)


def test_ranks_stopped_together_are_named_together(ends: Ends, processes: Processes) -> None:
    processes.stopped = [0, 2]
    for now in (100.0, 100.2):
        ends.look(now, ready=True)
    ends.look(100.35, ready=True)
    assert fault(ends, 100.5).ranks == (0, 2)


def test_a_dead_rank_is_named_and_not_those_that_miss_it(ends: Ends, processes: Processes) -> None:
    ends.trouble(0, Trouble("a call failed", "", "", False, 1), 100.0)
    ends.trouble(2, Trouble("a call failed", "", "", False, 1), 100.01)
    ends.look(100.02, ready=True)
    processes.codes = {1: -9}
    assert (found := fault(ends, 100.1)).ranks == (1,)
    assert (found.kind, found.message) == ("dead", "rank 1 was ended by SIGKILL")


def test_a_rank_that_leaves_is_told_with_its_last_words(ends: Ends, processes: Processes) -> None:
    processes.codes = {2: 3}
    ends.look(100.0, ready=False)
    found = fault(ends, 100.1, ready=False)
    assert (found.ranks, found.kind, found.message) == ((2,), "start", "rank 2 ended with code 3 (out of memory)")


def test_a_ranks_own_error_counts_before_all(ends: Ends, processes: Processes) -> None:
    ends.trouble(0, Trouble("a call failed", "", "", False, 1), 100.0)
    ends.lost(2, "its socket is closed", 100.0)
    ends.trouble(1, Trouble("no such tensor", "file", "all tensors", True, 2), 100.01)
    found = fault(ends, 100.1)
    assert (found.ranks, found.kind) == ((1,), "error")
    assert found.message == "file: no such tensor; expected all tensors"


def test_complaints_alone_name_nobody(ends: Ends, views: list[View]) -> None:
    ends.trouble(0, Trouble("a call failed", "", "", False, 1), 100.0)
    ends.look(100.5, ready=True)
    for view in views:
        view.heard = 101.0
    found = fault(ends, 101.1)
    assert (found.ranks, found.kind) == ((), "error") and "calls of rank 0 failed" in found.message

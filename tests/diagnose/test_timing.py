"""Times taken apart and waits followed, against what a person computes from the same lines."""

import pytest
from tests.diagnose.made import MS, Step, run

from linkwise.diagnose.case import Case
from linkwise.diagnose.diagnose import diagnose

PAIR = {"tp": (0, 1)}


def seconds(value):
    return pytest.approx(value, rel=1e-6, abs=1e-9)


def test_a_late_rank_is_charged_with_what_its_peer_waits():
    # Rank 1 takes 5 ms of its own, rank 0 takes 2: rank 0 waits 3 ms in each of ten calls.
    case = Case(run(PAIR, [Step("tp", {0: 2, 1: 5})] * 10))
    t = case.timing
    assert t.own_ns.tolist() == [0, 10 * 3 * MS]
    assert t.own_calls.tolist() == [0, 10]
    assert (t.wait == 3 * MS).all()
    assert (t.moved == 1 * MS).all()
    # First call: nothing came before it. Then own times as given.
    assert sorted(t.gap.tolist()) == [-1, -1, *[2 * MS] * 9, *[5 * MS] * 9]


def test_the_ranks_table_says_the_same():
    # Rank 0: late 0, waits 30 ms, own 9 x 2 ms (the first is not known), moves 10 x 1 ms; rank 1: late 30 ms.
    rows = diagnose(run(PAIR, [Step("tp", {0: 2, 1: 5})] * 10)).ranks
    assert [(r.late_s, r.waited_s, r.own_s, r.moved_s) for r in rows] == [
        (seconds(0), seconds(0.030), seconds(0.018), seconds(0.010)),
        (seconds(0.030), seconds(0), seconds(0.045), seconds(0.010)),
    ]
    assert [(r.calls, r.bytes) for r in rows] == [(10, 40_960), (10, 40_960)]


def test_a_wait_is_followed_through_another_group_to_where_it_begins():
    # Rank 2 is slow (9 ms). Rank 1 waits for it in "b" and so comes late to "a", where rank 0 waits: rank 2's doing.
    groups = {"a": (0, 1), "b": (1, 2)}
    steps = [Step("b", {1: 1, 2: 9}), Step("a", {0: 1, 1: 1})] * 10
    case = Case(run(groups, steps))
    # "b" of round one: rank 1 waits 9 - 1 = 8 ms, all of it rank 2's own time. "a": rank 1 arrives at 9 + 1 + 1 =
    # 11 ms, rank 0 at 1 ms: a wait of 10 ms = 1 of rank 1's own + 1 of "b" moving + 8 of rank 2.
    t = case.timing
    total = t.own_ns / MS
    assert total[1] == pytest.approx(10 * 1.0)  # its own 1 ms before "a"
    assert t.moved_ns.sum() / MS == pytest.approx(10 * 1.0)  # "b" moving
    assert total[0] == 0
    # Rank 2 begins its 9 ms when it leaves "b", 2 ms before rank 1 leaves "a": from round two on rank 1 waits 9 - 2 -
    # 1 = 6 ms in "b", and rank 0's wait in "a" has as much of rank 2 in it: 8 + 8 first, then 9 x (6 + 6).
    assert total[2] == pytest.approx((8 + 8) + 9 * (6 + 6))


def test_what_is_still_open_makes_nobody_late():
    found = run(PAIR, [Step("tp", {0: 2, 1: 5})] * 10, ends=False)
    for rank in found.trace.ranks:
        rank.calls.state[:] = 2
    assert Case(found).timing.own_ns.tolist() == [0, 0]


def test_without_ends_a_call_ends_no_earlier_than_its_last_arrival():
    case = Case(run(PAIR, [Step("tp", {0: 2, 1: 5}, takes_ms=0)] * 10, ends=False))
    assert case.timing.own_ns.tolist() == [0, 30 * MS]


def test_late_to_the_fault_and_healthy_to_none():
    late = [Step("tp", {0: 1, 1: 1, 2: 7, 3: 1})] * 40
    found = diagnose(run({"tp": (0, 1, 2, 3)}, late))
    assert [(one.class_, one.original_fault.ranks) for one in found.findings] == [("late_rank", (2,))]
    assert found.exit_code == 1
    # Each of four ranks is last in its turn by a little.
    even = [Step("tp", {rank: 1 + 0.1 * (rank == turn % 4) for rank in range(4)}) for turn in range(40)]
    assert diagnose(run({"tp": (0, 1, 2, 3)}, even)).findings == ()


def test_the_victim_of_a_late_rank_is_not_named():
    groups = {"a": (0, 1), "b": (1, 2)}
    steps = [Step("b", {1: 0.5, 2: 9}), Step("a", {0: 0.5, 1: 0.5})] * 40
    found = diagnose(run(groups, steps))
    assert [one.original_fault.ranks for one in found.findings] == [(2,)]


def test_a_few_long_pauses_that_fall_on_equal_ranks_name_nobody():
    # Eight equal ranks, eighty calls, twelve pauses of 20 ms that fall where chance has it: four of them on rank 3.
    on = {5: 3, 11: 0, 17: 6, 23: 3, 29: 1, 36: 3, 42: 7, 48: 5, 55: 3, 61: 2, 67: 0, 73: 4}
    ranks = tuple(range(8))
    steps = [Step("tp", {rank: 1 + (20 if on.get(turn) == rank else 0) for rank in ranks}) for turn in range(80)]
    assert not [one for one in diagnose(run({"tp": ranks}, steps)).findings if one.original_fault.ranks]
    # All twelve on one rank is no chance: 8 x 8^-12.
    steps = [Step("tp", {rank: 1 + (20 if turn in on and rank == 3 else 0) for rank in ranks}) for turn in range(80)]
    assert [one.original_fault.ranks for one in diagnose(run({"tp": ranks}, steps)).findings] == [(3,)]


def test_waiting_is_summed_over_all_who_wait_and_a_share_of_the_record_is_below_all_of_it():
    # Rank 0 of two groups comes 9 ms after the others: 27 ms of waiting in "a" a round, summed, and in "b" for as long
    # as "a" kept it.
    groups = {"a": (0, 1, 2, 3), "b": (0, 4, 5, 6)}
    steps = [Step("a", {0: 10, 1: 1, 2: 1, 3: 1}), Step("b", {0: 1, 4: 1, 5: 1, 6: 1})] * 20
    case = Case(run(groups, steps))
    t = case.timing
    assert t.held_ns[0] == pytest.approx(20 * 10 * MS, rel=0.1)  # 9 ms before "a", 1 ms before "b"
    assert t.held_ns[0] < t.elapsed_ns
    rows = diagnose(run(groups, steps)).ranks
    moved = 0.001 * 3 * 20  # of "b" waiting while "a" moves
    assert sum(row.late_s for row in rows) == pytest.approx(sum(row.waited_s for row in rows) - moved, rel=0.05)


def test_one_long_stop_is_of_the_rank_it_was_followed_to_and_of_the_time_of_its_clocks():
    # Rank 1 stands still for 5 s before "b"; rank 0, which waits for it there, is the last to "a".
    groups = {"b": (0, 1), "a": (0, 2, 3)}
    usual = [Step("b", {0: 1, 1: 1}), Step("a", {0: 1, 2: 1, 3: 1})]
    steps = [*usual * 10, Step("b", {0: 1, 1: 5000}), usual[1], *usual * 10]
    found = diagnose(run(groups, steps)).findings
    assert [(one.class_, one.original_fault.ranks) for one in found] == [("stopped_rank", (1,))]
    # Another host's clock is ahead by an hour, and nothing binds it: 5 s are most of either host's record.
    apart = run({"a": (0, 1), "c": (2, 3)}, _stop_of_two(), hosts={0: "x", 1: "x", 2: "y", 3: "y"}, ahead_ms=_HOUR)
    found = diagnose(apart).findings
    assert [(one.class_, one.original_fault.ranks) for one in found] == [("stopped_rank", (1,))]


_HOUR = {2: 3.6e6, 3: 3.6e6}


def _stop_of_two():
    usual = [Step("a", {0: 1, 1: 1}), Step("c", {2: 1, 3: 1})]
    return [*usual * 10, Step("a", {0: 1, 1: 5000}), *usual * 10]


@pytest.mark.parametrize(("pause_ms", "named"), [(20, [("rotating_straggler", ())]), (1, [])])
def test_a_rank_that_is_late_in_its_turn_is_none_of_them(pause_ms, named):
    # Before each of 80 calls one of eight ranks takes 20 ms more than the 2 ms of all: 7 of 8 wait, 20 of 23 ms. With 1
    # ms more they wait a quarter of the time at most, as equal ranks do to each other.
    ranks = tuple(range(8))
    steps = [Step("tp", {rank: 2 + pause_ms * (turn * 3 % 8 == rank) for rank in ranks}) for turn in range(80)]
    found = diagnose(run({"tp": ranks}, steps)).findings
    assert [(one.class_, one.original_fault.ranks) for one in found] == named

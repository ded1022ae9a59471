"""Who is at fault, from what ranks reported: worked by hand, times in seconds of one clock."""

import pytest

from linkwise.runtime.arrivals import CALM_S, IN_A_ROW, QUIET_S, Arrival, Arrivals, Laggards
from linkwise.runtime.control import Beat
from linkwise.runtime.health import View, judge

TIMEOUT = 12.0  # silent after 3 s, slow after 6


def view(
    rank: int, *, heard: float = 100.0, changed: float = 100.0, owes: int = 1, done: int = 5, waiting: str = ""
) -> View:
    return View(rank, heard, changed, given=done + owes, done=done, waiting=waiting)


def verdict(*views: View, now: float = 100.0) -> tuple[tuple[int, ...], str] | None:
    fault = judge(views, now, TIMEOUT)
    return (fault.ranks, fault.kind) if fault else None


def test_healthy_ranks_are_left_alone() -> None:
    assert verdict(view(0), view(1, waiting="attn.out")) is None
    assert verdict(view(0, owes=0, changed=0.0), view(1, owes=0, changed=0.0)) is None


def test_no_heartbeat_is_stopped_whoever_else_hangs() -> None:
    hung = view(0, changed=90.0, waiting="attn.out")
    assert verdict(hung, view(1, heard=96.5, changed=90.0, waiting="mlp.out")) == ((1,), "stopped")


def test_ranks_stopped_together_are_named_together() -> None:
    assert verdict(view(0), view(1, heard=96.9), view(2, heard=97.5)) == ((1, 2), "stopped")


def test_who_waits_for_nobody_while_others_wait_is_slow() -> None:
    waits = {"changed": 93.5, "waiting": "attn.out"}
    assert verdict(view(0, **waits), view(1, changed=93.0), view(2, **waits)) == ((1,), "slow")


def test_nobody_is_slow_before_the_time() -> None:
    assert verdict(view(0, changed=95.0, waiting="attn.out"), view(1, changed=95.0)) is None


def test_of_two_that_do_not_move_the_one_behind_holds_the_other_up() -> None:
    """A stage that cannot hand on waits for its next one, which waits for nobody."""
    ahead, behind = view(0, changed=93.0, done=7), view(1, changed=93.0, done=5, owes=3)
    assert verdict(ahead, behind, view(2, changed=93.0, waiting="pp.hidden")) == ((1,), "slow")


def test_an_idle_rank_that_does_not_answer_is_slow() -> None:
    assert verdict(view(0, owes=0, changed=10.0), view(1, changed=93.0)) == ((1,), "slow")


def test_all_waiting_names_nobody() -> None:
    stuck = {"changed": 89.0, "waiting": "attn.out"}
    assert verdict(view(0, **stuck), view(1, **stuck)) == ((), "slow")
    assert verdict(view(0, **stuck), view(1, **stuck), now=97.0) is None


def test_a_single_rank_is_named_when_it_does_not_move() -> None:
    assert verdict(view(0, changed=89.0)) == ((0,), "slow")
    assert verdict(view(0, changed=91.0)) is None


def test_who_has_waited_long_for_one_that_is_just_done_is_not_late() -> None:
    waits = view(1, changed=80.0, waiting="pp.hidden")
    assert verdict(view(0, owes=0, changed=99.0), waits) is None
    assert verdict(view(0, changed=99.0), waits) is None
    assert verdict(view(0, owes=0, changed=89.0), waits) == ((), "slow")


def test_who_computes_at_one_piece_is_left_alone_up_to_ten_times_the_limit() -> None:
    waits = view(1, changed=90.0, waiting="pp.hidden")
    assert verdict(view(0, changed=90.0), waits) == ((0,), "slow")
    works = view(0, changed=90.0)
    works.busy = 99.9
    assert verdict(works, waits) is None
    works.changed = waits.changed = 100.0 - 10 * TIMEOUT - 5.9
    assert verdict(works, waits) is None
    works.changed = waits.changed = 100.0 - 10 * TIMEOUT - 6.1
    assert verdict(works, waits) == ((0,), "slow")


def test_a_rank_computes_when_its_thread_has_the_processor_for_a_tenth_of_the_time() -> None:
    one = view(0)
    second = 1_000_000_000
    for at, cpu, busy in ((1, 5.0, 0.0), (2, 5.05, 0.0), (3, 5.16, 3.0), (4, 5.16, 3.0), (5, 5.96, 5.0)):
        one.beat(Beat(-1, 0, "", at * second, int(cpu * second)), float(at))
        assert one.busy == busy
    silent = view(0)  # a rank whose device computes says nothing of its thread
    for at in range(5):
        silent.beat(Beat(-1, 0, "", at * second), float(at))
    assert silent.busy == 0.0


def test_progress_is_a_change_of_any_kind() -> None:
    one = view(0, changed=0.0)
    one.beat(Beat(-1, 0, "", 0), 50.0)
    assert one.changed == 0.0
    one.beat(Beat(-1, 1, "", 0), 51.0)
    assert one.changed == 51.0
    one.finish(52.0)
    assert (one.changed, one.done, one.given) == (52.0, 6, 6)
    one.give(60.0)
    assert one.changed == 60.0


def test_arrivals_compare_a_rank_with_its_stage() -> None:
    arrivals = Arrivals([(0, 1), (2,)])
    for step in range(10):
        for rank, own_ms in ((0, 10), (1, 90), (2, 500)):
            arrivals.began(rank, step, 1_000_000 * (rank * 3))
            arrivals.ended(rank, step, own_ms * 1_000_000)
    table = arrivals.table()
    assert [table[rank].lagging for rank in range(3)] == [False, True, False]
    assert table[1].late_s == pytest.approx(0.003) and table[0].late_s == 0
    assert (table[1].own_s, table[1].others_s) == (pytest.approx(0.09), pytest.approx(0.01))
    assert table[2].steps == 10


def test_few_steps_prove_nothing() -> None:
    arrivals = Arrivals([(0, 1)])
    for step in range(4):
        arrivals.ended(0, step, 1_000_000)
        arrivals.ended(1, step, 900_000_000)
    assert not any(one.lagging for one in arrivals.table().values())


def compared(laggards: Laggards, late: list[set[int]], ranks: int = 3, at: int = 0) -> list[str]:
    """What is said over comparisons a second apart; in each of them these ranks are late, after ten more steps."""
    lines = []
    for second, some in enumerate(late, at):
        table = {rank: Arrival(0.0, 0.09 if rank in some else 0.01, 0.01, 10 * (second + 1)) for rank in range(ranks)}
        lines += [f"{second}: {line.partition(':')[0]}" for line in laggards.compare(table, 1000.0 + second)]
    return lines


def test_a_rank_that_is_late_again_and_again_is_named_once_and_taken_back_when_it_keeps_up() -> None:
    laggards = Laggards([(0, 1, 2)])
    assert compared(laggards, [{1}] * (IN_A_ROW - 1)) == []
    assert compared(laggards, [{1}] * 13, at=7) == ["7: rank 1 holds the others up"]
    assert compared(laggards, [set()] * 7 + [{1}] + [set()] * 8, at=20) == ["35: rank 1 keeps up again"]
    # Late at once again: told when the last line about it is old enough.
    assert compared(laggards, [{1}] * 60, at=36) == [f"{7 + int(QUIET_S)}: rank 1 holds the others up"]


def test_two_that_are_late_together_are_both_named() -> None:
    lines = compared(Laggards([(0, 1, 2)]), [{0, 2}] * IN_A_ROW)
    assert lines == ["7: rank 0 holds the others up", "7: rank 2 holds the others up"]


def test_ranks_that_take_turns_at_being_late_are_a_busy_machine() -> None:
    turns = [{second // 5 % 2} for second in range(60)]
    assert compared(Laggards([(0, 1)]), turns, ranks=2) == []
    laggards = Laggards([(0, 1)])
    assert compared(laggards, [{1}, {0}, set()], ranks=2) == []
    assert compared(laggards, [{0}] * 40, ranks=2, at=3) == [f"{int(CALM_S)}: rank 0 holds the others up"]


def test_no_new_step_tells_nothing() -> None:
    laggards = Laggards([(0, 1)])
    table = {0: Arrival(0.0, 0.01, 0.09, 20), 1: Arrival(0.0, 0.09, 0.01, 20)}
    assert [laggards.compare(table, float(second)) for second in range(20)] == [[]] * 20

"""What must not change a verdict: more healthy ranks, other numbers for ranks, a host's clock, events that are lost."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.diagnose.made import Step, evidence, run

from linkwise.diagnose.diagnose import diagnose
from linkwise.trace.events import Event

ROUNDS = 60


def late_run(world, late, *, hosts=None, ahead_ms=None, numbers=None, ends=True, seed=0):
    """Tensor pairs inside one group of all, and one rank 6 ms late; every other rank varies by a tenth of 1 ms."""
    draw = np.random.default_rng(seed)
    numbers = numbers or list(range(world))
    groups = {f"tp{place}": (numbers[2 * place], numbers[2 * place + 1]) for place in range(world // 2)}
    groups["dp"] = tuple(sorted(numbers))
    steps = []
    for _ in range(ROUNDS):
        own = {rank: 1 + 0.1 * draw.random() + 6 * (rank == late) for rank in numbers}
        steps += [Step(name, own, takes_ms=0.5) for name in groups if name != "dp"]
        steps += [Step("dp", dict.fromkeys(numbers, 0.2), takes_ms=0.5)]
    groups = {("tp" if name != "dp" else "dp", members): members for name, members in groups.items()}
    named = {f"{key[0]}:{'-'.join(map(str, key[1]))}": members for key, members in groups.items()}
    words = dict(zip([f"tp{place}" for place in range(world // 2)] + ["dp"], named, strict=True))
    return run(
        named, [step._replace(group=words[step.group]) for step in steps], hosts=hosts, ahead_ms=ahead_ms, ends=ends
    )


def verdict(found):
    return [(one.class_, one.original_fault.ranks) for one in diagnose(found).findings]


@settings(max_examples=25, deadline=None)
@given(late=st.integers(0, 3), more=st.integers(0, 6))
def test_healthy_ranks_beside_do_not_change_it(late, more):
    assert verdict(late_run(4 + 2 * more, late)) == [("late_rank", (late,))]


@settings(max_examples=25, deadline=None)
@given(order=st.permutations(range(8)), late=st.integers(0, 7))
def test_other_numbers_move_the_verdict_with_the_rank(order, late):
    assert verdict(late_run(8, order[late], numbers=list(order))) == [("late_rank", (order[late],))]


@settings(max_examples=40, deadline=None)
@given(late=st.integers(0, 3), ahead=st.floats(-3_600_000, 3_600_000), host=st.integers(0, 1), ends=st.booleans())
def test_a_hosts_clock_does_not_change_it(late, ahead, host, ends):
    hosts = {0: "a", 1: "a", 2: "b", 3: "b"}
    shifted = {rank: ahead for rank, name in hosts.items() if name == "ab"[host]}
    found = verdict(late_run(4, late, hosts=hosts, ahead_ms=shifted, ends=ends))
    # Without ends the order of calls may leave clocks too open for a verdict; it never moves to another rank.
    assert found == [("late_rank", (late,))] or (not ends and found == [])


@settings(max_examples=40, deadline=None)
@given(late=st.integers(0, 3), seed=st.integers(0, 2**32 - 1))
def test_lost_events_do_not_move_it_to_another_rank(late, seed):
    draw = np.random.default_rng(seed)
    whole = late_run(4, late)
    ranks = tuple(
        msgspec.structs.replace(rank, calls=rank.calls.take(draw.random(len(rank.calls)) >= 0.05))
        for rank in whole.trace.ranks
    )
    found = verdict(msgspec.structs.replace(whole, trace=msgspec.structs.replace(whole.trace, ranks=ranks)))
    assert found == [("late_rank", (late,))]


def stopped_run(world, stopped, lost=None):
    """Five rounds of one group; in the last one a rank does not come. lost: events that are not in the record."""
    rows = {}
    for rank in range(world):
        count = 50 if rank == stopped else 51
        rows[rank] = [
            Event(
                0, "tp", "", "all_reduce", number, 64, "float32", -1, 10**9 + number, 10**9 + number,
                0 if number == 50 else 10**9 + number + 1, "started" if number == 50 else "done",
            )
            for number in range(count)
            if lost is None or number >= 50 or lost.random() >= 0.05
        ]  # fmt: skip
    return evidence(rows, {"tp": tuple(range(world))}, world=world)


@settings(max_examples=40, deadline=None)
@given(world=st.integers(2, 12), data=st.data())
def test_a_stopped_rank_among_any_number_and_with_lost_events(world, data):
    stopped = data.draw(st.integers(0, world - 1))
    lost = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    assert verdict(stopped_run(world, stopped)) == [("stopped_rank", (stopped,))]
    assert verdict(stopped_run(world, stopped, lost)) == [("stopped_rank", (stopped,))]


@pytest.mark.parametrize("ends", [True, False])
def test_nobody_late_is_nobody_named_whatever_the_clocks_say(ends):
    hosts = {0: "a", 1: "a", 2: "b", 3: "b"}
    assert verdict(late_run(4, None, hosts=hosts, ahead_ms={2: 5e3, 3: 5e3}, ends=ends)) == []

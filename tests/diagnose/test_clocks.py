"""Clocks brought together on common ends, or bound by the order of beginnings and of messages."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.diagnose.made import BASE, MS, Step, evidence, run

from linkwise.diagnose.diagnose import diagnose
from linkwise.trace.clocks import align
from linkwise.trace.events import Event

GROUP = {"tp": (0, 1, 2, 3)}
STEPS = [Step("tp", {0: 1, 1: 2, 2: 1, 3: 1})] * 12
TWO = {0: "a", 1: "a", 2: "b", 3: "b"}


def test_a_host_ahead_is_brought_back_by_common_ends():
    # Host b is 250 ms ahead of host a, which has as many entries and comes first.
    found = align(run(GROUP, STEPS, hosts=TWO, ahead_ms={2: 250, 3: 250}).trace)
    assert found.by_ends
    assert [found.shift_ns[place] for place in range(4)] == [0, 0, -250 * MS, -250 * MS]
    assert found.residual_s == 0
    assert found.apart == ()


def test_one_host_has_one_clock():
    assert align(run(GROUP, STEPS).trace).shift_ns == {}


def test_without_ends_clocks_move_only_as_far_as_the_order_of_calls_asks():
    # In step: nothing moves, although rank 1 is late by 1 ms each time.
    assert set(align(run(GROUP, STEPS, hosts=TWO, ends=False).trace).shift_ns.values()) == {0}
    # Host b 250 ms ahead: the next call of rank 0 begins 1 + 1 ms after the last arrival of this one, so b may be at
    # most that far ahead; it is moved by the rest or more, never the other way.
    found = align(run(GROUP, STEPS, hosts=TWO, ends=False, ahead_ms={2: 250, 3: 250}).trace)
    assert not found.by_ends
    assert found.residual_s is None
    assert found.shift_ns[0] == found.shift_ns[1] == 0
    assert found.shift_ns[2] == found.shift_ns[3]
    assert found.shift_ns[2] == pytest.approx(-248 * MS, abs=2.5 * MS)


def test_records_without_a_call_in_common_stay_apart():
    groups = {"x": (0, 1), "y": (2, 3)}
    steps = [Step("x", {0: 1, 1: 1}), Step("y", {2: 1, 3: 1})] * 6
    found = align(run(groups, steps, hosts=TWO, ahead_ms={2: 99, 3: 99}).trace)
    assert found.apart == (2, 3)


def message(src, dst, number, sent_ms, took_ms, ahead_ms=None):
    """A message's two ends, by rank: the send returns at once, the receive began 1 ms before it. Each on its clock."""
    ahead = ahead_ms or {}
    sent, got = sent_ms + ahead.get(src, 0), sent_ms + took_ms + ahead.get(dst, 0)
    times = {src: (sent, sent + 0.01), dst: (sent_ms - 1 + ahead.get(dst, 0), got)}
    rows = {}
    for rank, (begin, end) in times.items():
        op, peer = ("send", dst) if rank == src else ("recv", src)
        at = [BASE + round(time * MS) for time in (begin, begin, end)]
        rows[rank] = Event(0, "pp", "", op, number[rank], 4096, "bfloat16", peer, *at, "done")
        number[rank] += 1
    return rows


def passed(ways, hosts, *, ahead_ms=None, rounds=10, took_ms=2.0):
    """Messages along some ways, over and over; each takes as long."""
    world = len(hosts)
    events, number = {rank: [] for rank in range(world)}, dict.fromkeys(range(world), 0)
    at = 10.0
    for _ in range(rounds):
        for src, dst in ways:
            for rank, event in message(src, dst, number, at, took_ms, ahead_ms).items():
                events[rank].append(event)
            at += 5
    return evidence(events, {"pp": tuple(range(world))}, world=world, hosts=hosts)


def test_messages_both_ways_bound_two_clocks():
    # Host b is 250 ms ahead. A message takes 2 ms each way: b is ahead by 250 - 2 at least and 250 + 2 at most. It is
    # moved as far as that asks, and what is left open is 4 ms.
    found = align(passed([(0, 1), (1, 0)], {0: "a", 1: "b"}, ahead_ms={1: 250}).trace)
    assert not found.by_ends
    assert found.shift_ns == {0: 0, 1: -248 * MS}
    assert found.unsure_ns == {0: 0, 1: 4 * MS}
    assert found.apart == ()


def test_messages_one_way_leave_clocks_apart_and_the_answer_says_which():
    given = passed([(0, 1)], {0: "a", 1: "b"}, ahead_ms={1: 250})
    assert align(given.trace).apart == align(given.trace).one_way == (1,)
    assert "apart: b (rank 1): calls and messages go one way" in diagnose(given).clocks
    # Where nothing goes at all, that is said.
    groups = {"a": (0, 1), "b": (2, 3)}
    alone = run(groups, [Step(name, {}) for name in ("a", "b") * 5], hosts={0: "a", 1: "a", 2: "b", 3: "b"})
    assert align(alone.trace).one_way == ()
    assert "apart: b (ranks 2, 3): nothing binds" in diagnose(alone).clocks


def test_a_ring_of_stages_bounds_all_of_its_clocks():
    # 0 -> 1 -> 2 -> 0: each is bound from one side by the way there, from the other by the way round. 2 ms a message:
    # rank 1 is ahead by 100 + 2 at most, by 100 - 4 at least; rank 2 by -30 + 4 at most, by -30 - 2 at least.
    hosts = {0: "a", 1: "b", 2: "c"}
    found = align(passed([(0, 1), (1, 2), (2, 0)], hosts, ahead_ms={1: 100, 2: -30}).trace)
    assert found.apart == ()
    assert found.shift_ns == {0: 0, 1: -96 * MS, 2: 26 * MS}
    assert found.unsure_ns == {0: 0, 1: 6 * MS, 2: 6 * MS}


def test_hosts_apart_from_the_rest_may_be_bound_to_each_other():
    # a and b exchange messages, c and d do; nothing goes between the pairs. Only a and b are 60 messages.
    given = passed([(0, 1), (1, 0), (0, 1), (2, 3), (3, 2)], {0: "a", 1: "b", 2: "c", 3: "d"}, ahead_ms={3: 77})
    found = align(given.trace)
    assert found.apart == (2, 3)
    assert found.island[0] == found.island[1] != found.island[2] == found.island[3]
    assert found.shift_ns[3] == -75 * MS


def test_messages_that_cannot_be_told_apart_bind_nothing():
    # Rank 0's fourth send is lost from its record: from there on its k-th send is not rank 1's k-th receive.
    given = passed([(0, 1), (1, 0)], {0: "a", 1: "b"}, ahead_ms={1: 250})
    calls = given.trace.ranks[0].calls
    cut = msgspec.structs.replace(given.trace.ranks[0], calls=calls.take([n for n in range(len(calls)) if n != 6]))
    assert align(msgspec.structs.replace(given.trace, ranks=(cut, given.trace.ranks[1]))).apart == (
        0,
    )  # 1 has the most entries


def test_records_of_one_machine_have_one_clock_whatever_their_hosts_are_called():
    given = passed([(0, 1)], {0: "pod-a", 1: "pod-b"})
    same = tuple(
        msgspec.structs.replace(rank, head=msgspec.structs.replace(rank.head, clock="boot"))
        for rank in given.trace.ranks
    )
    assert align(msgspec.structs.replace(given.trace, ranks=same)).apart == ()
    assert align(given.trace).apart == (1,)


def test_what_came_first_on_clocks_that_nothing_binds_is_not_compared():
    # Two calls in common are too few to bring clocks together. Host b's is 5 s ahead, which is no pause of rank 1.
    given = run({"tp": (0, 1)}, [Step("tp", {0: 1, 1: 1})] * 2, hosts={0: "a", 1: "b"}, ahead_ms={1: 5000})
    found = diagnose(given)
    assert found.findings == ()
    assert "apart: b (rank 1)" in found.clocks
    assert [row.waited_s for row in found.ranks] == [0.0, 0.0]


def test_the_clock_text_counts():
    two = diagnose(run(GROUP, STEPS, hosts=TWO, ahead_ms={2: 250, 3: 250})).clocks
    assert two.startswith("2 clocks moved by up to 250 ms; in step to 0 ns (median)")
    one = diagnose(
        run({"tp": (0, 1)}, [Step("tp", {0: 1, 1: 2})] * 9, hosts={0: "a", 1: "b"}, ahead_ms={1: 250})
    ).clocks
    assert one.startswith("1 clock moved by up to 250 ms")
    assert diagnose(run(GROUP, STEPS)).clocks == "one clock"


@settings(max_examples=40, deadline=None)
@given(
    ahead=st.lists(st.integers(-3_600_000, 3_600_000), min_size=2, max_size=5),
    took=st.floats(0.1, 50),
    both=st.booleans(),
)
def test_what_is_left_open_always_holds_the_truth(ahead, took, both):
    """Rings of stages, or pairs that answer each other, on clocks that are off by up to an hour."""
    world = len(ahead)
    ways = [(rank, (rank + 1) % world) for rank in range(world)]
    ways += [(b, a) for a, b in ways] if both and world > 2 else []
    off = {rank: ahead[rank] - ahead[0] for rank in range(world)}
    found = align(passed(ways, {rank: f"h{rank}" for rank in range(world)}, ahead_ms=off, took_ms=took).trace)
    assert found.apart == ()
    for rank in range(world):
        left = found.shift_ns[rank] + off[rank] * MS - (found.shift_ns[0])
        assert abs(left) <= found.unsure_ns[rank] + 2  # each time is a whole ns
        assert found.unsure_ns[rank] <= world * took * MS + 2 * world


LATE = [Step("tp", {0: 5, 1: 5, 2: 25, 3: 5})] * 40  # rank 2 works five times as long as its peers


@pytest.mark.parametrize("host", ["localhost", "localhost.localdomain", "LocalHost", "gpu-a"])
def test_several_machines_of_one_name_are_told_by_calls_that_contradict_one_clock(host):
    # Two machines, the second 4.2 s ahead. By one clock ranks 1 and 3 would come 4.2 s after the others had left.
    made = run(GROUP, LATE, hosts=dict.fromkeys(range(4), host), ahead_ms={1: 4200, 3: 4200})
    found = align(made.trace)
    assert len(set(found.clock)) == 4
    assert [found.shift_ns[place] - found.shift_ns[0] for place in range(4)] == [0, -4200 * MS, 0, -4200 * MS]
    assert found.refuted == ((0, 1, 2, 3) if host == "gpu-a" else ())
    answer = diagnose(made)
    assert [(one.class_, one.original_fault.ranks) for one in answer.findings] == [("late_rank", (2,))]
    assert ("on the clock they share" in answer.clocks) == (host == "gpu-a")


def test_one_machine_keeps_its_clock_whatever_its_ranks_do():
    # One stands still for 4 s once; another is late each time: both are seen by the one clock.
    pause = Step("tp", {0: 5, 1: 5, 2: 5, 3: 4200})
    for steps in (LATE, [*LATE[:20], pause, *LATE[:20]]):
        assert align(run(GROUP, steps, hosts=dict.fromkeys(range(4), "gpu-a")).trace).refuted == ()

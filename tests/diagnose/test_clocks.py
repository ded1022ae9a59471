"""Clocks brought together on common ends, or by the order of beginnings."""

import pytest
from tests.diagnose.made import MS, Step, run

from linkwise.trace.clocks import align

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

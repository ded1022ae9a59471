"""Loads beyond what is served: worked out by hand, and against queues whose capacity is known (Lindley's recursion)."""

import numpy as np
import pytest

pytest.importorskip("numba")

from linkwise.simulate import state
from linkwise.simulate.saturation import saturation
from linkwise.workload.arrivals import Arrivals, times


def table(arrival, start, source=None) -> np.ndarray:
    every = np.zeros(len(arrival), state.REQUEST)
    every["arrival"], every["start"], every["status"] = arrival, start, state.DONE
    every["input"], every["output"], every["source"] = 10, 10, -1
    return every


def queue(rate: float, number: int, seed: int, kind: str = "poisson") -> np.ndarray:
    """A server of one request a second under drawn arrivals: wait = max(0, wait before + 1 - gap)."""
    arrival = times(Arrivals(rate_per_s=rate, kind=kind), number, seed)
    start, free = np.empty(number), 0.0
    for i, at in enumerate(arrival):
        start[i] = max(at, free)
        free = start[i] + 1.0
    return table(arrival, start)


def test_a_queue_that_grows_is_told_with_its_figures() -> None:
    # One request a second, one served every two: at arrival i, of the i + 1 that came i // 2 + 1 have started, so that
    # ceil(i / 2) wait. Their median over the first fifty is 12.5; as few wait for the last time at i = 24. Of the 75
    # that come after it 38 more wait, 12 to 50, in 75 s: 37 / 75 = 0.493/s are served.
    at = np.arange(100.0)
    said = saturation(table(at, 2 * at), 1.0)
    assert "over the last 75 arrivals those waiting grew from 12 to 50, 0.493/s were served" in said
    assert "the load of 1/s is about 2.03 times" in said
    assert saturation(table(at, at), 1.0) == ""
    assert saturation(table(at, 2 * at)) != "", "a trace names no rate: its own is taken"


def test_prompts_that_wait_between_pools_wait() -> None:
    at = np.arange(100.0)
    every = table(at, at)
    every["source"], every["prefilled"], every["reserved"] = 0, at, 2 * at
    assert "grew from" in saturation(every, 1.0)


def test_who_is_not_started_waits() -> None:
    at = np.arange(100.0)
    start = np.where(at < 10, at, -1.0)
    assert "nothing was served" in saturation(table(at, start), 1.0)


@pytest.mark.parametrize(("kind", "most_missed"), [("poisson", 0), ("gamma", 2)])
def test_chance_is_told_from_load(kind: str, most_missed: int) -> None:
    """Forty seeds of 2,000 requests: none is called saturated at 90 % load, and at 120 % all but the odd one are."""
    calm = [saturation(queue(0.9, 2000, seed, kind), 0.9) for seed in range(40)]
    assert calm == [""] * 40
    beyond = [saturation(queue(1.2, 2000, seed, kind), 1.2) for seed in range(40)]
    assert sum(not said for said in beyond) <= most_missed


def test_a_burst_at_the_end_is_no_saturation() -> None:
    # A hundred seconds of one request in two seconds, then ten at once: the queue is new, and short.
    at = np.concatenate([np.arange(0.0, 200.0, 2.0), np.full(10, 200.0)])
    start, free = np.empty(len(at)), 0.0
    for i, moment in enumerate(at):
        start[i] = max(moment, free)
        free = start[i] + 1.0
    assert saturation(table(at, start), 0.5) == ""

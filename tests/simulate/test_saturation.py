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


def rows(number: int, stay: float, arrival: np.ndarray) -> np.ndarray:
    """So many servers that each keep a request for `stay` seconds: who comes takes the one that is free first."""
    free, start = np.zeros(number), np.empty(len(arrival))
    for i, at in enumerate(arrival):
        first = int(free.argmin())
        start[i] = max(at, free[first])
        free[first] = start[i] + stay
    every = table(arrival, start)
    every["end"] = start + stay
    return every


def test_a_burst_that_fills_all_rows_is_no_saturation_before_one_stay_is_over() -> None:
    # 100 rows of 50 s serve 2/s. A request in two seconds for 100 s, then 8/s: 25 rows are taken when the burst comes,
    # and all after 11 s of it. Most of them are given back 39 s later: until then next to nothing is served.
    calm, burst = np.arange(0.0, 100.0, 2.0), 100 + np.arange(200) / 8
    every = rows(100, 50.0, np.concatenate([calm, burst]))
    assert saturation(every, 1.5) == ""
    # It goes on at that rate: after two stays 2/s are served, and the load is called what it is.
    long = rows(100, 50.0, np.concatenate([calm, 100 + np.arange(800) / 8]))
    assert "the load of 8/s is about" in saturation(long, 8.0)
    assert saturation(long, 1.5) == "", "drawn at a rate that is served, and a burst so far"

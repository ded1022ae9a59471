"""The stretch in which more came than was served: one seat that serves a request a second, worked out by hand."""

import numpy as np
import pytest

pytest.importorskip("numba")

from linkwise.simulate.rules import Pool, Rules
from linkwise.simulate.run import simulate
from linkwise.simulate.tables import constant
from linkwise.simulate.types import Summary
from linkwise.workload.requests import requests
from linkwise.workload.types import Targets


def ran(gaps: list[tuple[int, float]], ttft_s: float | None = None) -> Summary:
    """gaps: so many requests, each so long after the one before. A step takes 1 s, an answer is one token."""
    at = np.cumsum(np.concatenate([np.full(count, gap) for count, gap in gaps])) - gaps[0][1]
    load = requests(at, np.full(len(at), 10), np.full(len(at), 1))
    seat = Pool(Rules(max_seqs=1, prefix_cache=False), constant(1.0))
    return simulate([seat], load, targets=Targets(ttft_s=ttft_s)).summary


def test_a_rush_hour_is_beyond_what_is_served_though_the_day_is_not() -> None:
    # 100 requests, one in 2 s, until 198 s; 200, two a second, until 298 s; then one in 4 s. From 198 s on 200 come in
    # 100 s and 100 are served: 100 wait at 298 s. The i-th of them waits i / 2 s, 50 s on average; chance would have
    # let the queue grow by 5 x 200 ** 0.5 = 71 at most.
    found = ran([(100, 2.0), (200, 0.5), (100, 4.0)], ttft_s=10.0)
    assert not found.saturated
    assert found.served == 400
    seen = found.stretch
    assert seen is not None
    assert seen.start_s == pytest.approx(198.0, abs=4)
    assert seen.end_s == pytest.approx(298.0, abs=1)
    assert seen.offered_per_s == pytest.approx(2.0, rel=0.02)
    assert seen.served_per_s == pytest.approx(1.0, rel=0.03)
    assert seen.most == pytest.approx(100, abs=2)
    assert seen.wait_s == pytest.approx(50.0, rel=0.03)
    assert seen.late
    assert not found.holds


def test_it_is_said_and_no_negative_answer_where_nobody_waits_longer_than_asked() -> None:
    for target in (None, 60.0):
        found = ran([(100, 2.0), (200, 0.5), (100, 4.0)], ttft_s=target)
        assert found.stretch is not None
        assert not found.stretch.late
        assert found.holds


def test_a_burst_of_few_requests_is_said_and_is_no_negative_answer() -> None:
    # 40 at once of 10,040, more than 5 x 40 ** 0.5 = 32, wait 20 s on average: fewer than 1 % of all.
    found = ran([(5000, 2.0), (40, 0.001), (5000, 2.0)], ttft_s=1.5)
    assert found.stretch is not None
    assert found.stretch.wait_s > 15
    assert not found.stretch.late
    assert found.holds


def test_a_short_burst_is_chance() -> None:
    # 20 at once wait for each other: fewer than the 5 x 20 ** 0.5 = 22 by which chance may let a queue grow.
    assert ran([(100, 2.0), (20, 0.01), (100, 2.0)]).stretch is None


def test_a_steady_load_has_no_such_stretch() -> None:
    # Poisson arrivals at 0.9 of what is served (M/D/1): none of 20 runs of 2,000 requests.
    for seed in range(20):
        draws = np.random.default_rng(seed).exponential(1 / 0.9, 2000)
        load = requests(np.cumsum(draws), np.full(2000, 10), np.full(2000, 1))
        seat = Pool(Rules(max_seqs=1, prefix_cache=False), constant(1.0))
        assert simulate([seat], load, targets=Targets(ttft_s=1.5)).summary.stretch is None, seed

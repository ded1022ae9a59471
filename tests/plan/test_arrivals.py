"""Arrivals at one of several replicas against renewal theory: Erlang times between them (Cox, Renewal Theory, 1962)."""

import math

import numpy as np
import pytest

from linkwise.plan.arrivals import after, beside, none, queues, stages


def counted(expected: float, stages: int) -> float:
    """Renewals of Erlang times in a time after one: every `stages`-th event of a Poisson process is one."""
    rate, term, below, total = expected * stages, math.exp(-expected * stages), 0.0, 0.0
    for n in range(400):
        total += (n // stages) * term
        below += term
        term *= rate / (n + 1)
    assert below == pytest.approx(1, abs=1e-9)
    return total


def test_a_replica_by_itself_is_fed_at_random() -> None:
    assert stages(1, 3.0) == 1
    for expected in (0.1, 1.0, 4.0):
        assert none(expected, 1) == pytest.approx(math.exp(-expected))
        assert after(expected, 1) == beside(expected, 1) == expected
    assert queues(0.7, 1) == 1
    # An array of replicas in which some are alone says the same of those.
    k = stages(np.array([1.0, 2.0]), np.array([0.2, 0.2]))
    assert none(0.5, k)[0] == pytest.approx(math.exp(-0.5))
    assert (after(0.5, k)[0], beside(0.5, k)[0], queues(0.7, k)[0]) == pytest.approx((0.5, 0.5, 1.0))


@pytest.mark.parametrize("expected", [0.05, 0.5, 1.0, 3.0])
def test_two_replicas_in_turn_get_every_second_request(expected: float) -> None:
    # From any moment on: e^-2x (1 + x). After one came: x - (1 - e^-4x) / 4 (Cox, section 4.2).
    assert none(expected, 2) == pytest.approx(math.exp(-2 * expected) * (1 + expected))
    assert after(expected, 2) == pytest.approx(counted(expected, 2))
    # In the same time, at any moment of it: twice the mean of `after` over it.
    moments = np.linspace(0, expected, 4001)
    mean = float(np.trapezoid([after(x, 2) for x in moments], moments) / expected)
    assert beside(expected, 2) == pytest.approx(2 * mean, rel=1e-4)


def test_more_replicas_are_as_fewer_after_a_long_time_as_theory_has_it() -> None:
    # m(t) -> x - (1 - 1 / k) / 2 (Cox): 4 of 5 expected for ten stages, less 0.45.
    assert after(5.0, 10) == pytest.approx(counted(5.0, 10), abs=1e-3)
    assert after(5.0, 2.5) == pytest.approx(5 - (1 - 1 / 2.5) / 2, abs=1e-6)


def test_evenness_ends_where_requests_crowd() -> None:
    assert stages(2, 0.5) == 2
    assert stages(64, 0.5) == stages(3, 0.5) == 2.5
    assert stages(2, 2.0) == 1 + 1 / 16
    assert stages(64, 50.0) == pytest.approx(1, abs=1e-5)


def test_a_queue_of_even_arrivals_is_shorter() -> None:
    # Kraemer and Langenbach-Belz at load 0.8 for E2/D/1: 1/2 exp(-2 x 0.2 / 2.4 x 1/4 / (1/2)) = 0.460.
    assert queues(0.8, 2) == pytest.approx(0.460, abs=5e-4)

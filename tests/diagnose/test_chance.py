"""Charges held against chance. Expected values by hand: binomial tails."""

import numpy as np
import pytest

from linkwise.diagnose import chance


@pytest.mark.parametrize(("count", "ranks"), [(4, 2), (8, 2), (5, 4)])
def test_all_of_equal_charges_on_one_rank(count: int, ranks: int) -> None:
    """Any of the ranks may be the one: ranks x (1 / ranks) ** count, which the bound reaches."""
    expected = ranks * (1 / ranks) ** count
    assert chance.charged(np.ones(count), count, ranks) == pytest.approx(expected, rel=1e-3)


def test_it_is_a_bound_on_the_binomial_tail() -> None:
    """15 or more of 20 on one of two ranks: 2 x 21,700 / 2 ** 20 = 0.0414."""
    assert 0.0414 <= chance.charged(np.ones(20), 15, 2) < 0.3


def test_a_few_large_charges_prove_little() -> None:
    charges = np.asarray([1000.0] + [1.0] * 20)
    assert chance.charged(charges, 1010.0, 2) > 0.5


def test_no_charge_is_chance() -> None:
    assert chance.charged(np.zeros(0), 0.0, 2) == 1.0
    assert chance.charged(np.ones(10), 0.0, 2) == 1.0

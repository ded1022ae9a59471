"""Draws: greedy, by temperature, from the smallest set; the same seed and position draw the same."""

from collections import Counter
from math import exp

import pytest

torch = pytest.importorskip("torch")

from linkwise.core.errors import InputError  # noqa: E402
from linkwise.runtime.sampling import chance, draw  # noqa: E402
from linkwise.supervise.types import Sampling  # noqa: E402

LOGITS = torch.log(torch.tensor([0.1, 0.5, 0.3, 0.1]))


def shares(how: Sampling, n: int = 4000) -> dict[int, float]:
    drawn = draw(LOGITS.repeat(n, 1), [how] * n, list(range(n)))
    return {token: count / n for token, count in Counter(drawn).items()}


def test_greedy_takes_the_most_likely() -> None:
    assert draw(torch.stack([LOGITS, -LOGITS]), [Sampling(), Sampling()], [1, 2]) in ([1, 0], [1, 3])
    assert draw(torch.empty(0, 4), [], []) == []


def test_frequencies_are_the_softmax() -> None:
    for token, share in {0: 0.1, 1: 0.5, 2: 0.3, 3: 0.1}.items():
        assert shares(Sampling(1.0))[token] == pytest.approx(share, abs=0.03)


def test_temperature_sharpens() -> None:
    # p ** (1 / T), normalised: 0.25, 0.09 and twice 0.01 at T = 0.5.
    assert shares(Sampling(0.5))[1] == pytest.approx(0.25 / 0.36, abs=0.03)


@pytest.mark.parametrize(("top_p", "kept"), [(0.01, {1}), (0.49, {1}), (0.7, {1, 2}), (0.79, {1, 2})])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, kept: set[int]) -> None:
    found = shares(Sampling(1.0, top_p), 1000)
    assert set(found) == kept
    if len(kept) == 2:
        assert found[1] == pytest.approx(0.625, abs=0.05)


def test_top_p_of_a_flat_vocabulary_looks_beyond_the_likely_ones() -> None:
    flat = torch.zeros(3000, 3000)
    drawn = draw(flat, [Sampling(1.0, 0.9)] * 3000, list(range(3000)))
    assert len(set(drawn)) > 1500


def test_seed_and_position_decide_alone() -> None:
    many = LOGITS.repeat(64, 1)
    one = draw(many, [Sampling(1.0, 1.0, 7)] * 64, list(range(64)))
    again = draw(many.flip(0)[:10], [Sampling(1.0, 1.0, 7)] * 10, list(range(20, 30)))
    assert again == one[20:30]
    assert one != draw(many, [Sampling(1.0, 1.0, 8)] * 64, list(range(64)))
    assert len(set(one)) > 1
    draw(many[:1], [Sampling(1.0, 1.0, 2**63 - 1)], [10**6])


def test_all_64_bits_of_a_seed_count() -> None:
    """In 40 draws from 1000 equal tokens two independent sequences agree in 0.04 places on average."""
    many = torch.zeros(40, 1000)
    seeds = [3, 3 + 2**31, 3 + 2**32, 3 + 2**48, 3 + 2**63, 2**64 - 1, 0]
    drawn = [draw(many, [Sampling(1.0, 1.0, seed)] * 40, list(range(40))) for seed in seeds]
    for at, one in enumerate(drawn):
        for other in drawn[:at]:
            assert sum(a == b for a, b in zip(one, other, strict=True)) < 4


def test_chances_are_even() -> None:
    found = [chance(seed, position) for seed in range(100) for position in range(100)]
    assert all(0.0 <= value < 1.0 for value in found)
    # The mean of n even numbers lies within 5 standard deviations, 1 / sqrt(12 n) each, of a half.
    assert abs(sum(found) / len(found) - 0.5) < 5 / (12 * len(found)) ** 0.5
    assert len(set(found)) == len(found)


def test_neighbouring_seeds_and_positions_are_independent() -> None:
    """Seed s at position p is not seed s + 1 at p - 1."""
    many = torch.zeros(40, 1000)
    one = draw(many, [Sampling(1.0, 1.0, 1)] * 40, list(range(40)))
    other = draw(many, [Sampling(1.0, 1.0, 2)] * 40, list(range(40)))
    for shift in range(-3, 4):
        same = sum(one[i] == other[i + shift] for i in range(5, 35))
        assert same < 4


def test_certain_logits_survive_any_temperature() -> None:
    logits = torch.tensor([[0.0, exp(5), -exp(5)]])
    for temperature in (1e-3, 1.0, 1e3):
        assert draw(logits, [Sampling(temperature, 0.5)], [3])[0] in {0, 1}


@pytest.mark.parametrize("temperature", [1e-320, 5e-324, 1e-30, 9e-6])
@pytest.mark.parametrize("top_p", [1.0, 0.5])
def test_tiny_temperatures_are_greedy(temperature: float, top_p: float) -> None:
    logits = torch.randn(40, 500, generator=torch.Generator().manual_seed(0)) * 30
    drawn = draw(logits, [Sampling(temperature, top_p, 3)] * 40, list(range(40)))
    assert drawn == draw(logits, [Sampling()] * 40, list(range(40)))


def test_large_logits_over_a_small_temperature_do_not_overflow() -> None:
    logits = torch.tensor([[3e38, 2e38, 1e38]])
    assert draw(logits, [Sampling(1e-5)], [0]) == [0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("how", [Sampling(), Sampling(1.0, 0.9)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_logits_that_are_not_finite_are_an_error(bad: float, how: Sampling, dtype: torch.dtype) -> None:
    logits = torch.zeros(3, 1000, dtype=dtype)
    assert len(draw(logits, [how] * 3, [0, 1, 2])) == 3
    logits[1, 700] = bad
    with pytest.raises(InputError, match="logits are not finite"):
        draw(logits, [how] * 3, [0, 1, 2])


def test_a_masked_token_is_no_error() -> None:
    logits = torch.tensor([[0.0, -float("inf"), 1.0]])
    assert draw(logits, [Sampling()], [0]) == [2]
    assert draw(logits, [Sampling(1.0)], [0])[0] != 1
    with pytest.raises(InputError):
        draw(torch.full((1, 3), -float("inf")), [Sampling()], [0])

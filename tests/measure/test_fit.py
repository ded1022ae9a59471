"""Fits of times made by hand from known figures, and the rule that says who differs."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkwise.core.errors import InputError
from linkwise.measure.fit import Point, compare, fit_line

SIZES = [1e3, 1e4, 1e5, 1e6, 1e7, 1e8]


def points(base: float, step: float, efficiency: float, steps=(1, 2, 6, 14), rate: float = 50e9) -> list[Point]:
    """Exact times of calls over links of 50 GB/s."""
    return [Point(n, size / rate, base + step * n + size / rate / efficiency) for n in steps for size in SIZES]


def test_exact_times_give_the_figures_back() -> None:
    line = fit_line(points(10e-6, 2e-6, 0.8))
    assert line.base_s.value == pytest.approx(10e-6, rel=1e-6)
    assert line.step_s.value == pytest.approx(2e-6, rel=1e-6)
    assert line.efficiency.value == pytest.approx(0.8, rel=1e-6)
    assert line.residual < 1e-6
    assert line.points == 24
    # By hand: 10 us + 3 x 2 us + 40 us / 0.8.
    assert line.seconds(3, 40e-6) == pytest.approx(66e-6)


@given(st.floats(1e-6, 1e-3), st.floats(1e-7, 1e-4), st.floats(0.01, 1.0))
@settings(deadline=None, max_examples=30)
def test_any_figures_come_back_and_predictions_grow_with_size(base: float, step: float, efficiency: float) -> None:
    line = fit_line(points(base, step, efficiency))
    assert line.efficiency.value == pytest.approx(efficiency, rel=1e-3)
    times = [line.seconds(2, size / 50e9) for size in SIZES]
    assert times == sorted(times)


def test_calls_that_were_disturbed_lose_their_weight() -> None:
    clean = points(10e-6, 2e-6, 0.8)
    noisy = [p._replace(seconds=p.seconds * (1 + 0.01 * (-1) ** i)) for i, p in enumerate(clean)]
    noisy[3] = noisy[3]._replace(seconds=5 * noisy[3].seconds)
    noisy[17] = noisy[17]._replace(seconds=3 * noisy[17].seconds)
    line = fit_line(noisy)
    assert line.outliers >= 2
    assert line.efficiency.value == pytest.approx(0.8, rel=0.02)
    assert abs(line.efficiency.value - 0.8) < 4 * line.efficiency.error, "the error stated covers the error made"
    assert 0 < line.base_s.error < 1e-6


def test_few_points_do_not_claim_to_be_sure() -> None:
    """Four calls, two unknowns, one of them 20 % late: what is left must not look exact."""
    late = [
        p._replace(seconds=p.seconds * (1.2 if i == 2 else 1.0)) for i, p in enumerate(points(1e-5, 0, 0.8, (1,))[1:5])
    ]
    line = fit_line(late)
    assert line.outliers == 0
    assert line.base_s.error > 0.01 * line.base_s.value


def test_standard_errors_are_those_of_least_squares_by_hand() -> None:
    """Four calls of 2 s per second at full rate and 1, 1, -1, -1 per mille of noise, all about 1 us + 2 x.

    Relative errors: a = 1/t, b = x/t, sum (a base + b slope - 1)^2 least. The normal equations, as fractions: with
    saa = sum a^2, sab, sbb, sa, sb: base = (sbb sa - sab sb)/det, slope = (saa sb - sab sa)/det, det = saa sbb - sab^2;
    variance = rest / (4 - 2); error of base = sqrt(variance sbb / det), of slope = sqrt(variance saa / det).
    """
    x = [Fraction(1, 10**7), Fraction(1, 10**5), Fraction(1, 10**3), Fraction(1, 10)]
    noise = [1, 1, -1, -1]
    t = [(Fraction(1, 10**6) + 2 * one) * (1 + Fraction(sign, 1000)) for one, sign in zip(x, noise, strict=True)]
    a, b = [1 / one for one in t], [one / time for one, time in zip(x, t, strict=True)]
    saa, sbb = sum(one * one for one in a), sum(one * one for one in b)
    sab, sa, sb = sum(one * other for one, other in zip(a, b, strict=True)), sum(a), sum(b)
    det = saa * sbb - sab * sab
    base, slope = (sbb * sa - sab * sb) / det, (saa * sb - sab * sa) / det
    rest = sum((one * base + other * slope - 1) ** 2 for one, other in zip(a, b, strict=True))
    errors = [float(rest / 2 * own / det) ** 0.5 for own in (sbb, saa)]
    line = fit_line([Point(1, float(one), float(time)) for one, time in zip(x, t, strict=True)])
    assert line.base_s == pytest.approx((float(base), errors[0]), rel=1e-6)
    # Efficiency is 1 / slope, so its error is the slope's divided by the slope's square.
    assert line.efficiency == pytest.approx((float(1 / slope), errors[1] / float(slope) ** 2), rel=1e-6)
    assert 1e-10 < errors[0] < 1e-8, "about a per mille of a microsecond"
    assert 1e-4 < line.efficiency.error < 1e-3, "about a per mille of one half"


def test_one_number_of_steps_gives_one_latency() -> None:
    """Steps never differ: 10 us + 2 x 2 us cannot be told apart from 14 us."""
    line = fit_line(points(10e-6, 2e-6, 0.8, steps=(2,)))
    assert line.base_s.value == pytest.approx(14e-6, rel=1e-6)
    assert line.step_s is None
    assert line.seconds(2, 0) == pytest.approx(14e-6, rel=1e-6)


def test_no_part_takes_less_than_no_time() -> None:
    """Times that fall with the number of steps: the step is left out, not negative."""
    falling = [Point(n, s / 50e9, 20e-6 - 1e-6 * n + s / 50e9) for n in (1, 2, 6) for s in SIZES]
    step = fit_line(falling).step_s
    assert step.value == 0
    assert step.error > 0, "left out is not known exactly"


@pytest.mark.parametrize(
    "bad",
    [
        [],
        [Point(1, 1e-6, 1e-5)] * 2,
        [Point(1, 1e-6, 0.0)] * 3,
        [Point(1, 1e-6, float("nan"))] * 3,
        [Point(1, -1.0, 1e-5)] * 3,
    ],
)
def test_what_cannot_be_fitted_is_refused(bad: list[Point]) -> None:
    with pytest.raises(InputError, match="fit: "):
        fit_line(bad)


def test_one_of_four_at_half_speed_is_named() -> None:
    found = compare({"a": 100, "b": 99, "c": 101, "d": 50})
    assert [one.name for one in found.odd] == ["d"]
    assert found.odd[0].ratio == pytest.approx(50 / 99.5)
    assert not found.unsure


@pytest.mark.parametrize(
    ("values", "unsure"),
    [
        ({"a": 100, "b": 50}, ["b"]),  # either could be the odd one
        ({"a": 100, "b": 99, "c": 50, "d": 51}, ["c", "d"]),  # half and half
        ({"a": 100, "b": 80, "c": 60, "d": 75, "e": 95, "f": 130}, ["c"]),  # all differ: 60 is among others' spread
    ],
)
def test_what_does_not_decide_names_nobody(values: dict[str, float], unsure: list[str]) -> None:
    found = compare(values)
    assert found.odd == ()
    assert [one.name for one in found.unsure] == unsure


def test_small_differences_and_single_values_say_nothing() -> None:
    assert compare({"a": 100, "b": 95, "c": 103, "d": 90}) == ((), ())
    assert compare({"a": 100}) == ((), ())
    assert compare({}) == ((), ())
    assert compare({"a": 100, "b": 85}) == ((), ())

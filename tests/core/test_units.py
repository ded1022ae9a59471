"""Quantities as people write them. Expected values are the SI and IEC definitions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkwise.core import units
from linkwise.core.errors import InputError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("40ms", 0.040),
        ("1s", 1.0),
        ("250 us", 250e-6),
        ("1.5 µs", 1.5e-6),
        ("2min", 120.0),
        ("1h", 3600.0),
        ("3ns", 3e-9),
    ],
)
def test_time_has_a_unit(text: str, seconds: float) -> None:
    assert units.parse_time(text) == pytest.approx(seconds, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "per_second"),
    [("6/s", 6.0), ("90/min", 1.5), ("6 req/s", 6.0), ("3600 requests/h", 1.0), ("1_000/s", 1000)],
)
def test_rate_is_per_something(text: str, per_second: float) -> None:
    assert units.parse_rate(text) == pytest.approx(per_second, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("16GB", 16 * 10**9),
        ("24 GiB", 24 * 2**30),
        ("512MiB", 512 * 2**20),
        ("1.5kB", 1500),
        ("0B", 0),
        ("1,024 B", 1024),
    ],
)
def test_bytes_keep_decimal_and_binary_apart(text: str, count: int) -> None:
    assert units.parse_bytes(text) == count


@pytest.mark.parametrize("text", ["40", "", "ms", "-40ms", "0s", "40 parsecs", "nan s", "1e999s", "inf s", "4 0ms"])
def test_a_time_that_is_not_one_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(InputError, match=r"^--ttft: .*expected a positive time with a unit"):
        units.parse_time(text, where="--ttft")


@pytest.mark.parametrize("text", ["6", "6/", "6s", "-6/s", "0/s", "6/fortnight", "x/s"])
def test_a_rate_that_is_not_one_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^rate: .*expected a positive rate with a unit"):
        units.parse_rate(text)


@pytest.mark.parametrize("text", ["16", "16 G", "-1GB", "GB", "1e400GB"])
def test_a_size_that_is_not_one_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"expected a size with a unit"):
        units.parse_bytes(text)


@given(st.text(max_size=20))
def test_no_text_crashes_a_parser(text: str) -> None:
    for parse in (units.parse_time, units.parse_rate, units.parse_bytes):
        try:
            value = parse(text)
        except InputError:
            continue
        assert value >= 0


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (512, "512 B"),
        (16384, "16.4 kB"),
        (101.5e9, "101.5 GB"),
        (2.684e9, "2.68 GB"),
        (-2.14e9, "-2.14 GB"),
        (1e12, "1.00 TB"),
    ],
)
def test_bytes_are_shown_decimal(count: float, shown: str) -> None:
    assert units.show_bytes(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (1.5, "1.5 s"),
        (0.0133, "13.3 ms"),
        (1e-5, "10 us"),
        (3e-8, "30 ns"),
        (0.0, "0 ns"),
        # 1450 / 60 = 24.17, 25,920 / 3600 = 7.2; no exponent, and the unit is that of the rounded figure.
        (622.0, "622 s"),
        (999.4, "999 s"),
        (999.6, "16.7 min"),
        (1450.0, "24.2 min"),
        (3599.9, "1 h"),
        (25_920.0, "7.2 h"),
        (3600 * 2345.0, "2,340 h"),
        (999.6e-6, "1 ms"),
        (0.9996, "1 s"),
        (-1450.0, "-24.2 min"),
        (999.6e-9, "1 us"),
    ],
)
def test_times_are_shown_in_the_unit_people_say(seconds: float, shown: str) -> None:
    assert units.show_time(seconds) == shown


def test_times_of_few_digits_have_no_exponent() -> None:
    assert units.show_time(150.0, 2) == "150 s"
    assert units.show_time(151e-6, 2) == "150 us"
    assert units.show_time(996e-6, 2) == "1 ms"


def test_gb_is_not_gib() -> None:
    assert (units.GB, units.GiB) == (1_000_000_000, 1_073_741_824)


@pytest.mark.parametrize(
    ("need", "have", "shown"),
    [
        # 8.487 - 7.464 is 1.023, but 8.49 - 7.46 is 1.03: what is printed subtracts.
        (8.487e9, 7.464e9, ("8.49 GB", "7.46 GB", "1.03 GB")),
        (101.467e9, 78.22e9, ("101.5 GB", "78.2 GB", "23.3 GB")),
        (1.71e9, 390.1e6, ("1.71 GB", "0.39 GB", "1.32 GB")),
        (500, 0, ("500 B", "0 B", "500 B")),
    ],
)
def test_need_have_and_lack_subtract_as_printed(need: float, have: float, shown: tuple[str, str, str]) -> None:
    assert units.show_lack(need, have) == shown


@pytest.mark.parametrize(
    ("value", "digits", "shown"),
    [
        (1_234_567.0, 3, "1,234,567"),  # a counter: all of it
        (120.4, 2, "120"),
        (1234.5, 3, "1,230"),
        (0.98765, 3, "0.988"),
        (2.0, 2, "2"),
        (float("inf"), 3, "inf"),
    ],
)
def test_figures_have_no_exponent(value: float, digits: int, shown: str) -> None:
    assert units.show_figure(value, digits) == shown

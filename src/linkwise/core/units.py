"""Quantities as people write and read them. GB = 10^9 bytes, GiB = 2^30; never one for the other."""

import math
import re

from linkwise.core.errors import InputError

GB = 10**9
GiB = 2**30

_TIME = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_BYTES |= {"tib": 2**40}
_TIMES = ((1e-9, "ns", 1000), (1e-6, "us", 1000), (1e-3, "ms", 1000), (1.0, "s", 1000), (60.0, "min", 60))
_SCALES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_NUMBER = re.compile(r"([+-]?\d+(?:[_,]?\d+)*(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(\S*)", re.ASCII)


def _split(text: str, where: str, expected: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text.strip())
    if not match:
        raise InputError(f"{text!r} is not a quantity", where=where, expected=expected)
    value = float(match[1].replace("_", "").replace(",", ""))
    if not math.isfinite(value):
        raise InputError(f"{text!r} is not finite", where=where, expected=expected)
    return value, match[2]


def parse_time(text: str, *, where: str = "time") -> float:
    """Seconds from "40ms", "1s", "250 us". A bare number is refused: its unit would be a guess."""
    expected = "a positive time with a unit, such as 40ms or 1s"
    value, unit = _split(text, where, expected)
    if unit not in _TIME or value <= 0:
        raise InputError(f"{text!r}", where=where, expected=expected)
    return value * _TIME[unit]


def parse_rate(text: str, *, where: str = "rate") -> float:
    """Requests per second from "6/s", "90/min", "6 req/s"."""
    expected = "a positive rate with a unit, such as 6/s or 90/min"
    value, unit = _split(text, where, expected)
    unit = unit.removeprefix("requests").removeprefix("req")
    if not unit.startswith("/") or unit[1:] not in _TIME or value <= 0:
        raise InputError(f"{text!r}", where=where, expected=expected)
    return value / _TIME[unit[1:]]


def parse_bytes(text: str, *, where: str = "size") -> int:
    """Bytes from "16GB", "24 GiB", "512MiB"."""
    expected = "a size with a unit, such as 24GB or 24GiB"
    value, unit = _split(text, where, expected)
    if unit.lower() not in _BYTES or value < 0:
        raise InputError(f"{text!r}", where=where, expected=expected)
    return round(value * _BYTES[unit.lower()])


def show_bytes(count: float) -> str:
    """Decimal bytes to three or four significant digits: 101.5 GB, 16.4 kB, 512 B."""
    for scale, unit in _SCALES:
        if abs(count) >= scale * 0.9995:
            value = count / scale
            return f"{value:.1f} {unit}" if abs(value) >= 10 else f"{value:.2f} {unit}"
    return f"{count:.0f} B"


def show_lack(need: float, have: float) -> tuple[str, str, str]:
    """(need, have, what is missing) in one unit and to the same digits, so that the figures shown subtract exactly."""
    scale, unit = next(((s, u) for s, u in _SCALES if abs(need) >= s * 0.9995), (1.0, "B"))
    lack = abs(need - have) / scale
    digits = 0 if unit == "B" else 2 if need / scale < 10 or lack < 1 else 1
    shown = [round(x / scale, digits) for x in (need, have)]
    return tuple(f"{x:,.{digits}f} {unit}" for x in (*shown, shown[0] - shown[1]))  # type: ignore[return-value]


def show_time(seconds: float, digits: int = 3) -> str:
    """A duration in the unit people would say it in, in plain digits: 250 us, 40 ms, 622 s, 24.2 min, 7.2 h.

    Minutes from 1000 s on; the unit is that of the rounded figure: 1 ms, not 1000 us.
    """
    for scale, unit, most in _TIMES:
        shown = _plain(seconds / scale, digits)
        if abs(float(shown.replace(",", ""))) < most:
            return f"{shown} {unit}"
    return f"{_plain(seconds / 3600, digits)} h"


def show_figure(value: float, digits: int = 3) -> str:
    """A figure of any size in plain digits: a whole one as it is, others to so many: 1,048,576, 12.3, 1,450."""
    return f"{value:,.0f}" if float(value).is_integer() else _plain(value, digits)


def _plain(value: float, digits: int) -> str:
    """So many significant digits, never an exponent where the figure is 1 or more: 1,450, not 1.45e+03."""
    shown = f"{value:.{digits}g}"
    return f"{float(shown):,.0f}" if "e+" in shown else shown


def show_apart(a: float, b: float) -> tuple[str, str]:
    """Two durations to as many digits, up to nine, as it takes to tell them apart: 500.2 ms, 500 ms."""
    shown = [(show_time(a, digits), show_time(b, digits)) for digits in range(3, 10)]
    return next((pair for pair in shown if pair[0] != pair[1]), shown[0])


def show_count(count: float) -> str:
    """A large count with thousands separators, rounded to an integer."""
    return f"{count:,.0f}"


def counted(count: int, word: str) -> str:
    """1 rank; 2 ranks; 1,024 ranks."""
    return f"{show_count(count)} {word}{'' if count == 1 else 's'}"

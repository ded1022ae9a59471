"""Latency and bandwidth from measured times: a robust line with uncertainty, and values that differ from their peers.

A call takes  base + per step x steps + (seconds its bytes take at full rate) / efficiency,  the form in which
plan/collective_time.py predicts it. Errors are relative, so that a call of 10 us counts as much as one of 10 ms; points
that do not follow the line lose their weight (Tukey's biweight), since a machine makes calls slower at random, never
faster. Standard errors are those of the weighted least squares at the scale of the residuals that remain.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from linkwise.core.errors import InputError

Array = npt.NDArray[np.float64]

# Tukey's constant: 95 % as efficient as least squares on clean data.
BIWEIGHT = 4.685
ROUNDS = 50
LEAST_SPARE = 4  # points beyond the unknowns, from which on single ones may be left out
# A link differs from its class when it is this share slower, and this many robust standard deviations away.
SLOWER = 0.8
SIGMAS = 4.0
LEAST_PEERS = 3


class Point(NamedTuple):
    """One measured call. steps: sequential steps of its algorithm. full_rate_s: its bytes at the links' spec rate."""

    steps: float
    full_rate_s: float
    seconds: float


class Figure(NamedTuple):
    """A fitted value and its standard error; None where the points do not say how sure it is."""

    value: float
    error: float | None


class Line(NamedTuple):
    """The fit. base_s, step_s: seconds. efficiency: share of the spec rate; None when no point says (all too small).

    step_s: None when all calls had one number of steps: base_s is then base and steps together, at that number. A part
    that came out below nothing is 0, with the error it had then.
    residual: median relative error of the points; outliers: how many had no weight.
    """

    base_s: Figure
    step_s: Figure | None
    efficiency: Figure | None
    residual: float
    points: int
    outliers: int

    def seconds(self, steps: float, full_rate_s: float) -> float:
        """What the line predicts."""
        moving = full_rate_s / self.efficiency.value if self.efficiency else 0.0
        return self.base_s.value + (self.step_s.value * steps if self.step_s else 0.0) + moving


def fit_line(points: Sequence[Point]) -> Line:
    """Latency and efficiency of calls over one kind of link. Raises InputError with fewer than three points, or times
    that are no positive numbers."""
    if len(points) < 3:
        raise InputError(f"{len(points)} measured calls", where="fit", expected="at least 3, of different sizes")
    data = np.array(points, dtype=np.float64)
    seconds = data[:, 2]
    if not (np.isfinite(data).all() and (seconds > 0).all() and (data >= 0).all()):
        raise InputError("a time that is no positive number", where="fit", expected="seconds above 0")
    names = ["base", "step", "rate"]
    columns = np.stack([np.ones(len(data)), data[:, 0], data[:, 1]], axis=1) / seconds[:, None]
    told_apart = np.ptp(data[:, 0]) > 0
    if not told_apart:
        names.remove("step")
    if np.ptp(data[:, 1]) == 0:
        names.remove("rate")
    nothing: dict[str, Figure] = {}
    while True:
        chosen = columns[:, [("base", "step", "rate").index(name) for name in names]]
        values, errors, weights = _robust(chosen)
        below = [name for name, value in zip(names, values, strict=True) if value < 0]
        if not below:
            break
        # No part of a call takes less than no time: the part that would is left out, steps before the base.
        out = "step" if "step" in below else below[0]
        nothing[out] = Figure(0.0, float(errors[names.index(out)]))
        names.remove(out)
        if not names:
            raise InputError("times do not grow with size", where="fit", expected="calls of different sizes")
    found = nothing | {name: Figure(float(v), float(e)) for name, v, e in zip(names, values, errors, strict=True)}
    efficiency = None
    if "rate" in names and found["rate"].value > 0:
        at = names.index("rate")
        efficiency = Figure(1 / float(values[at]), float(errors[at] / values[at] ** 2))
    relative = np.abs(chosen @ values - 1)
    return Line(
        found["base"],
        found["step"] if told_apart else None,
        efficiency,
        float(np.median(relative)),
        len(data),
        int((weights < 1e-3).sum()),
    )


def _robust(columns: Array) -> tuple[Array, Array, Array]:
    """Solve columns @ x = 1 by iteratively reweighted least squares: (x, standard errors, weights)."""
    ones = np.ones(len(columns))
    # Least absolute deviations first: a start that outliers do not pull.
    weights, values = ones, np.zeros(columns.shape[1])
    for _ in range(ROUNDS):
        values = _solve(columns, weights)
        weights = 1 / np.maximum(np.abs(columns @ values - 1), 1e-6)
    count, unknowns = columns.shape
    # The first fit goes through as many points as it has unknowns, so the median residual is too small: Rousseeuw's
    # factor for least median of squares (1984). Of very few points none can be called the one that does not fit.
    few = 1.4826 * (1 + 5 / max(1, count - unknowns))
    for _ in range(ROUNDS):
        residual = columns @ values - 1
        scale = max(few * float(np.median(np.abs(residual))), 1e-9)
        weights = np.maximum(0.0, 1 - (residual / (BIWEIGHT * scale)) ** 2) ** 2
        if count - unknowns < LEAST_SPARE or 2 * np.count_nonzero(weights > 1e-3) < count + unknowns:
            weights = ones
        after = _solve(columns, weights)
        if np.allclose(after, values, rtol=1e-10, atol=0):
            break
        values = after
    residual = columns @ values - 1
    free = max(1.0, float((weights > 1e-3).sum()) - unknowns)
    variance = float((weights * residual**2).sum()) / free
    scaled, size = _scaled(columns, np.sqrt(weights))
    inverse = np.linalg.pinv(scaled.T @ scaled)
    return values, np.sqrt(np.maximum(np.diag(inverse) * variance, 0.0)) / size, weights


def _solve(columns: Array, weights: Array) -> Array:
    root = np.sqrt(weights)
    scaled, size = _scaled(columns, root)
    found, *_ = np.linalg.lstsq(scaled, root, rcond=None)
    return np.asarray(found / size, dtype=np.float64)


def _scaled(columns: Array, root: Array) -> tuple[Array, Array]:
    """Weighted columns of length 1, and what each was divided by: they differ by so many orders of magnitude that the
    small ones would be taken for zero."""
    weighted = columns * root[:, None]
    size = np.linalg.norm(weighted, axis=0)
    size[size == 0] = 1.0
    return weighted / size, size


class Odd(NamedTuple):
    """A value that differs from its peers. ratio: to their median. sigmas: robust standard deviations away."""

    name: str
    value: float
    usual: float
    ratio: float
    sigmas: float


class Compared(NamedTuple):
    """What values of things that should be alike say. odd: surely worse; unsure: worse, but not surely, or too few
    peers to say which of them is wrong."""

    odd: tuple[Odd, ...]
    unsure: tuple[Odd, ...]


def compare(values: Mapping[str, float], *, noise: float = 0.02, clear: float = SLOWER) -> Compared:
    """Which of these rates (more is better) are worse than their peers.

    Surely: below `clear` of the median and `SIGMAS` robust standard deviations below it, the spread counting at least
    as `noise` of the median, with `LEAST_PEERS` values or more, and only while the odd ones are fewer than half of
    them. Where values differ as much but these conditions do not hold, nobody is named: all of them are `unsure`.
    """
    if len(values) < 2:
        return Compared((), ())
    numbers = np.array(list(values.values()), dtype=np.float64)
    usual = float(np.median(numbers))
    spread = max(1.4826 * float(np.median(np.abs(numbers - usual))), noise * usual, 1e-300)
    judged = [
        Odd(name, value, usual, value / usual if usual else 0.0, (usual - value) / spread)
        for name, value in values.items()
    ]
    worse = [one for one in judged if one.ratio < clear]
    if len(values) < LEAST_PEERS:
        best = float(numbers.max())
        apart = [one for one in judged if one.value < clear * best]
        return Compared((), tuple(apart))
    sure = [one for one in worse if one.sigmas >= SIGMAS]
    if 2 * len(sure) >= len(values):
        return Compared((), tuple(worse))
    return Compared(tuple(sure), tuple(one for one in worse if one not in sure))

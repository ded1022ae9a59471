"""Constants that no row of an engine tells of: how far a plan's times hang on them.

They are taken over from a count, so that their error is no measured spread. Each is moved to either end of its own 80 %
interval, and the closed form of a replica says what that does to TPOT and TTFT with as many requests at hand.
"""

import math
from typing import NamedTuple

from msgspec.structs import replace

from linkwise.engine.step_constants import Z80, Spread, StepCalibration, StepConstants
from linkwise.plan.figures import Subject
from linkwise.plan.operate import operation

_FELT = 0.03  # of a time, as a logarithm: what moves it by less is not named


class Hangs(NamedTuple):
    """What one constant may do to the means: logarithms, lowest and highest, at the ends of its 80 % interval."""

    name: str
    error: float
    tpot: tuple[float, float]
    ttft: tuple[float, float]

    @property
    def felt(self) -> bool:
        """Whether it is worth a word; it counts in any case."""
        return max(self.tpot[1] - self.tpot[0], self.ttft[1] - self.ttft[0]) > _FELT

    def words(self, engine: str) -> str:
        def moves(ends: tuple[float, float]) -> str:
            low, high = (100 * math.expm1(end) for end in ends)
            return f"{low:+.0f} to {high:+.0f} %"

        factor = math.exp(Z80 * self.error)
        return (
            f"{self.name}: no row of {engine} tells of it; {factor:.2g} times more or less moves TTFT by"
            f" {moves(self.ttft)}, TPOT by {moves(self.tpot)}"
        )


def hangs_on(about: Subject, calibration: StepCalibration) -> tuple[Hangs, ...]:
    """The assumed constants a plan's times hang on, with what they may do to them."""
    assumed = {name: one.error for name, one in calibration.constants.items() if one.assumed and one.error}
    if not assumed:
        return ()
    usual = about.engine.step_constants(about.cluster)
    first, found = _times(about, usual), []
    for name, error in assumed.items():

        def logs(sign: int, name: str = name, far: float = Z80 * error) -> tuple[float, float]:
            times = _times(about, replace(usual, **{name: getattr(usual, name) * math.exp(sign * far)}))
            return math.log(times[0] / first[0]), math.log(times[1] / first[1])

        if any(more := logs(1)):  # a model without such layers moves not at all
            tpot, ttft = ((min(0.0, *ends), max(0.0, *ends)) for ends in zip(more, logs(-1), strict=True))
            found.append(Hangs(name, error, tpot, ttft))
    return tuple(found)


def wider(spread: Spread, moves: list[tuple[float, float]]) -> Spread:
    """A spread beside errors that have nothing to do with it, or with each other: squares add up."""
    below, above = max(0.0, -spread.low), max(0.0, spread.high)
    return Spread(
        low=max(-10.0, spread.low + below - math.hypot(below, *(low for low, _ in moves))),
        high=min(10.0, spread.high - above + math.hypot(above, *(high for _, high in moves))),
    )


def _times(s: Subject, constants: StepConstants) -> tuple[float, float]:
    """TPOT and TTFT of a replica."""
    at = operation(
        s.model, s.layout, s.engine.with_constants(constants), s.cluster, s.workload, s.options, s.at_hand or s.batch,
        s.places, alike=s.replicas,
    )  # fmt: skip
    return float(at.tpot), float(at.ttft)

"""A calibration from a fit: values with errors, the range they were fitted on, how far measurements spread."""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from linkwise.engine.step_constants import (
    Constant,
    Range,
    Spread,
    Spreads,
    StepCalibration,
    Version,
)
from linkwise.engine.versions import version_key
from linkwise.plan.interval import quantisation_of
from linkwise.simulate.calibrate.case import Case
from linkwise.simulate.calibrate.fit import Fitted
from linkwise.simulate.calibrate.priors import FIXED, NAMES, unit_of
from linkwise.simulate.tables import Floats

SET = "set, not fitted: the norm in which reading and computing add up; reading a cache and attending to it add up"
_FEW = 20  # rows below which percentiles of their own residuals mean little
KNOWN_AS = 8  # rows that a spread known before counts as, beside new ones
_NINE_TENTHS = 1.2816  # standard deviations of a normal above which one of ten lies
_DIGITS = 4


def calibration_of(
    fitted: Fitted, engine: str, cases: Sequence[Case], spreads: Spreads, *, label: str, made: str, source: str,
    notes: tuple[str, ...] = (),
) -> StepCalibration:  # fmt: skip
    """An engine's constants as a file has them. cases: its own among those fitted."""
    errors = fitted.errors[engine]
    older = fitted.constants(engine, newer=False)
    why = f"fitted to {len(cases)} rows"
    untold = fitted.untold[engine]
    constants = {
        name: Constant(
            value=_rounded(getattr(older, name)),
            unit=unit_of(name),
            source=_not_fitted(name, engine, untold[name]) if name in untold else why,
            error=_rounded(float(errors[place]), 2),
            assumed=name in untold,
        )
        for place, name in enumerate(NAMES)
    }
    constants |= {name: Constant(value=value, unit=unit_of(name), source=SET) for name, value in FIXED.items()}
    since = fitted.space.since.get(engine)
    versions = () if since is None else (
        Version(since=since[0], capability=since[1], overheads=_rounded(fitted.space.factor(fitted.at, engine)),
                source=why, error=_rounded(float(errors[-1]), 2)),
    )  # fmt: skip
    return StepCalibration(
        engine=engine, label=label, made=made, source=source, constants=constants, range=range_of(cases),
        spreads=spreads, versions=versions, notes=notes,
    )  # fmt: skip


def _not_fitted(name: str, engine: str, others: Sequence[str]) -> str:
    before = "a count of kernels" if unit_of(name) == "us" else "what published kernels do"
    also = f", drawn towards what rows of {' and '.join(others)} say" if others else ""
    return f"not fitted, no row of {engine} tells of it: {before}{also}"


def range_of(cases: Sequence[Case]) -> Range:
    """What some runs cover, users a group that decodes. A version that nobody says is not covered."""
    versions = sorted({c.served.engine.version for c in cases if c.version_said}, key=version_key)

    def ends(values: list[float]) -> tuple[float, float]:
        return min(values), max(values)

    return Range(
        models=tuple(sorted({c.served.model.family for c in cases})),
        gpus=tuple(sorted({c.served.cluster.accelerator.name for c in cases})),
        quantisations=tuple(sorted({quantisation_of(c.served.model) for c in cases})),
        versions=tuple(versions) if len(versions) < 3 else (versions[0], versions[-1]),
        isl=ends([c.isl for c in cases]), osl=ends([c.osl for c in cases]),
        concurrency=ends([c.users / (c.split.replicas[1] if c.split else 1) for c in cases]), rows=len(cases),
    )  # fmt: skip


def spread_of(logs: Floats, before: Spread | None = None, *, narrower: bool = True) -> Spread:
    """The 10th and 90th percentile of log(measured / predicted).

    before: a spread known from others, which few rows widen and never narrow: it counts as KNOWN_AS rows beside them.
    narrower: whether many rows may; they stand for themselves then.
    """
    known = logs[np.isfinite(logs)]
    if before is None:
        low, high = np.quantile(known, (0.1, 0.9)) if len(known) else (-0.7, 0.7)
        return Spread(low=_rounded(float(low)), high=_rounded(float(high)))
    if len(known) >= _FEW and narrower:
        return spread_of(known)
    low, high = np.quantile(np.concatenate((known, _like(before))), (0.1, 0.9))
    return Spread(low=_rounded(float(min(low, before.low))), high=_rounded(float(max(high, before.high))))


def _like(spread: Spread) -> Floats:
    """KNOWN_AS values with these percentiles: a normal on either side of 0."""
    at = np.array([NormalDist().inv_cdf((place + 0.5) / KNOWN_AS) for place in range(KNOWN_AS)]) / _NINE_TENTHS
    return np.where(at < 0, -at * min(spread.low, 0.0), at * max(spread.high, 0.0))


def _rounded(value: float, digits: int = _DIGITS) -> float:
    return float(f"{value:.{digits}g}")

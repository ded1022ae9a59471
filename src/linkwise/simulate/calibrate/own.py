"""A user's results: the shipped constants moved by as much as the rows determine, and how far to trust what comes out.

The constants known before are the prior, so that a few rows move what they tell of and leave the rest.
"""

import datetime
import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from linkwise.core.errors import InputError
from linkwise.core.schema import Frozen
from linkwise.engine.step_constants import Constant, Range, Spreads, StepCalibration
from linkwise.engine.versions import version_key
from linkwise.simulate.calibrate.case import Case
from linkwise.simulate.calibrate.fit import (
    Fitted,
    Parts,
    Space,
    descend,
    fit,
    grouped,
    measured,
    predicted,
    simulated,
)
from linkwise.simulate.calibrate.made import calibration_of, range_of, spread_of
from linkwise.simulate.calibrate.priors import NAMES, PRIORS, TPOT_SIGMA, TTFT_SIGMA, unit_of
from linkwise.simulate.calibrate.split import DOUBT
from linkwise.simulate.tables import Floats
from linkwise.workload.results import LeftOut

_CLOSE, _WIDE = 0.1, 0.5  # how far one deployment's constants lie from those of all, as logarithms
_FOLDS = 10
_HALF = 0.5  # of what was open about a constant: one that no row told of before stays assumed until rows decide it
ENOUGH = 8  # rows from which on an error of rows left out means something
Verdict = Literal["better", "worse", "undecided"]


class Moved(Frozen, frozen=True, kw_only=True):
    """A constant before and after. determined: share of what was open about it that the rows decide."""

    name: str
    before: float
    after: float
    unit: str
    error: float
    determined: float


class Error(Frozen, frozen=True, kw_only=True):
    """Median |predicted / measured - 1| of TPOT and TTFT; None where none was measured."""

    tpot: float | None
    ttft: float | None


class Outcome(Frozen, frozen=True, kw_only=True):
    """What calibrating to results came to. before, after: with the constants there were and the fitted ones; left_out:
    each row predicted by constants fitted without it (or without its tenth). explained: rows inside the 80 % interval
    there was, by the fitted constants or by those fitted without it; only they extend the range. verdict: whether rows
    left out are predicted better (or no worse) than before; undecided where there are too few; trust: it in words.
    rows_not_used: of the files, each with its line and the reason."""

    engine: str
    base: str
    rows: int
    moved: tuple[Moved, ...]
    before: Error
    after: Error
    left_out: Error
    explained: int
    verdict: Verdict
    trust: str
    calibration: StepCalibration
    rows_not_used: tuple[LeftOut, ...] = ()


def calibrate(
    cases: Sequence[Case], base: StepCalibration | None, *, source: str, told: Callable[[int, int], None] | None = None
) -> Outcome:
    """Fit one engine's constants to its runs. base: the constants known before; None = the priors alone."""
    names = {case.served.engine.name for case in cases}
    if len(names) != 1:
        raise InputError(
            f"results of {', '.join(sorted(names)) or 'no engine'}", where="calibrate", expected="rows of one engine",
            hint="--engine NAME takes that engine's rows only",
        )  # fmt: skip
    engine = names.pop()
    space = _space(engine, base)
    truth = measured(cases)
    begin = simulated(cases, space, space.centre)
    fitted = fit(cases, space, rounds=3, doubt=_doubt(cases), told=told)
    steps = simulated(cases, space, fitted.at)
    after = predicted(grouped(steps, space), space, fitted.at, len(cases))
    without = _left_out(cases, steps, fitted)
    first = predicted(grouped(begin, space), space, space.centre, len(cases))
    errors = [_error(of, truth) for of in (first, after, without)]
    explained = _explained(truth - after, truth - without, base)
    off = np.where(np.isfinite(without), truth - without, truth - after)
    # A prompt step of a pool is no TTFT, whose interval it would narrow.
    off[len(cases) :][[case.split is not None for case in cases]] = np.nan
    made = _file(fitted, engine, cases, base, off, explained, source)
    verdict = _verdict(len(cases), explained, errors)
    return Outcome(
        engine=engine, base=base.label if base else "no results: what published kernels do", rows=len(cases),
        moved=_moved(fitted, engine), before=errors[0], after=errors[1], left_out=errors[2],
        explained=int(explained.sum()), verdict=verdict, trust=_words(verdict, explained), calibration=made,
    )  # fmt: skip


def _explained(after: Floats, without: Floats, base: StepCalibration | None) -> npt.NDArray[np.bool_]:
    """Of each row, whether all of it that was measured lies inside the interval known before: with all rows fitted, or
    with itself left out. after, without: log(measured / predicted) of TPOT, then of TTFT."""
    number = len(after) // 2
    if base is None:
        return np.ones(number, dtype=bool)
    spreads = (base.spreads.tpot, base.spreads.ttft)
    found = np.zeros(number, dtype=bool)
    for off in (after, without):
        inside = [
            (part >= spread.low) & (part <= spread.high) | np.isnan(part)
            for part, spread in zip((off[:number], off[number:]), spreads, strict=True)
        ]
        seen = np.isfinite(off[:number]) | np.isfinite(off[number:])
        found |= inside[0] & inside[1] & seen
    return found


def _space(engine: str, base: StepCalibration | None) -> Space:
    centre = np.log([PRIORS[name].centre for name in NAMES])
    spread = np.array([PRIORS[name].spread for name in NAMES])
    since: dict[str, tuple[str, int]] = {}
    factors: dict[str, float] = {}
    if base is not None:
        known = base.constants
        for place, name in enumerate(NAMES):
            if name in known and 0 < known[name].value < math.inf:
                centre[place] = np.log(known[name].value)
        spread = np.clip(spread / 2, _CLOSE, _WIDE)
        for place, name in enumerate(NAMES):
            if name in known and known[name].assumed:
                spread[place] = max(spread[place], known[name].error or 0.0)
        for version in base.versions[-1:]:
            since[engine], factors[engine] = (version.since, version.capability), version.overheads
    return Space((engine,), since, centre, spread, factors)


def _left_out(cases: Sequence[Case], steps: Sequence[Parts], fitted: Fitted) -> Floats:
    """Each row by constants fitted to others, the events as all rows have them."""
    number, folds = len(cases), min(_FOLDS, len(cases))
    truth, found = measured(cases), np.full(2 * len(cases), np.nan)
    if folds < 2:
        return found
    groups = grouped(steps, fitted.space)
    for fold in range(folds):
        mine = np.arange(number) % folds == fold
        rest = np.where(np.concatenate((mine, mine)), np.nan, truth)
        if not np.isfinite(rest).any():
            continue
        at, _ = descend(groups, rest, fitted.space, fitted.at, doubt=_doubt(cases))
        values = predicted(groups, fitted.space, at, number)
        found[np.concatenate((mine, mine))] = values[np.concatenate((mine, mine))]
    return found


def _doubt(cases: Sequence[Case]) -> Floats:
    return np.array([1.0 if case.split is None else DOUBT for case in cases])


def _error(found: Floats, truth: Floats) -> Error:
    number = len(truth) // 2
    medians = []
    for part in (slice(0, number), slice(number, 2 * number)):
        off = (found - truth)[part]
        off = off[np.isfinite(off)]
        medians.append(float(np.median(np.abs(np.expm1(off)))) if len(off) else None)
    return Error(tpot=medians[0], ttft=medians[1])


def _moved(fitted: Fitted, engine: str) -> tuple[Moved, ...]:
    logs, before = fitted.space.logs(fitted.at, engine), fitted.space.centre
    return tuple(
        Moved(
            name=name, before=float(np.exp(before[i])), after=float(np.exp(logs[i])), unit=unit_of(name),
            error=float(fitted.errors[engine][i]),
            determined=_determined(fitted, engine, name),
        )
        for i, name in enumerate(NAMES)
    )  # fmt: skip


def _determined(fitted: Fitted, engine: str, name: str) -> float:
    """Share of what was open about a constant that the rows decide."""
    place = NAMES.index(name)
    return float(max(0.0, 1 - (fitted.errors[engine][place] / fitted.space.spread[place]) ** 2))


def _stays_assumed(fitted: Fitted, engine: str, name: str, base: StepCalibration) -> bool:
    assumed = name in base.constants and base.constants[name].assumed
    return assumed and _determined(fitted, engine, name) < _HALF


def _file(
    fitted: Fitted, engine: str, cases: Sequence[Case], base: StepCalibration | None, off: Floats,
    explained: npt.NDArray[np.bool_], source: str,
) -> StepCalibration:  # fmt: skip
    """off: log(measured / predicted), of rows left out where that is known. Rows widen the spread outside the range as
    well: a row that the constants do not explain is there."""
    number, today = len(cases), datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%dT%H:%MZ")
    usual = base.spreads if base is not None else None
    tpot, ttft = off[:number], off[number:]
    spreads = Spreads(
        tpot=spread_of(tpot), ttft=spread_of(ttft), tpot_outside=spread_of(off[:0]), ttft_outside=spread_of(off[:0])
    ) if usual is None else Spreads(
        tpot=spread_of(tpot, usual.tpot), ttft=spread_of(ttft, usual.ttft),
        tpot_outside=spread_of(tpot, usual.tpot_outside, narrower=False),
        ttft_outside=spread_of(ttft, usual.ttft_outside, narrower=False),
    )  # fmt: skip
    made = calibration_of(
        fitted, engine, cases, spreads, label=f"{engine} on {source[:80]}, {today}", made=today, source=source
    )
    if base is None:
        return replace(made, versions=())
    kept = base.constants | {
        name: replace(
            one, source=f"{one.source}; before: {base.label}", assumed=_stays_assumed(fitted, engine, name, base)
        )
        for name, one in made.constants.items()
        if name not in base.constants or name not in fitted.untold[engine]
    }  # fmt: skip
    inside = [case for case, fits in zip(cases, explained, strict=True) if fits]
    seen = _joined(base.range, range_of(inside)) if inside else base.range
    return replace(made, constants=_known(kept), versions=base.versions, range=seen)


def _known(constants: dict[str, Constant]) -> dict[str, Constant]:
    return {name: constants[name] for name in (*NAMES, *(n for n in constants if n not in NAMES))}


def _joined(a: Range, b: Range) -> Range:
    """What either covers."""
    versions = sorted({*a.versions, *b.versions}, key=version_key)
    return Range(
        models=tuple(sorted({*a.models, *b.models})), gpus=tuple(sorted({*a.gpus, *b.gpus})),
        quantisations=tuple(sorted({*a.quantisations, *b.quantisations})),
        versions=tuple(versions) if len(versions) < 3 else (versions[0], versions[-1]),
        isl=(min(a.isl[0], b.isl[0]), max(a.isl[1], b.isl[1])),
        osl=(min(a.osl[0], b.osl[0]), max(a.osl[1], b.osl[1])),
        concurrency=(min(a.concurrency[0], b.concurrency[0]), max(a.concurrency[1], b.concurrency[1])),
        rows=a.rows + b.rows,
    )  # fmt: skip


def _verdict(rows: int, explained: npt.NDArray[np.bool_], errors: Sequence[Error]) -> Verdict:
    before, _, without = errors
    if not explained.any():
        return "worse"
    if rows < ENOUGH:
        return "undecided"
    return "worse" if _loss(without) > _loss(before) else "better"


def _words(verdict: Verdict, explained: npt.NDArray[np.bool_]) -> str:
    """How far the fitted constants can be trusted, in a sentence."""
    rows, fits = len(explained), int(explained.sum())
    if not fits:
        return (
            "the fitted constants explain none of the rows: keep the constants there were, and look for a setting the"
            " rows do not say"
        )
    many = (
        ""
        if fits == rows
        else f"; {rows - fits} of {rows} rows are not explained: they widen the intervals and extend no range"
    )
    if verdict == "undecided":
        return f"undecided: {rows} rows say what happens near them, {ENOUGH} or more how others would fare{many}"
    if verdict == "worse":
        return f"rows left out are predicted worse than before: keep the constants there were{many}"
    return f"rows left out are predicted no worse than before: use it for runs like these{many}"


def _loss(error: Error) -> float:
    """Both errors in units of what is usual of each."""
    return (error.tpot or 0.0) / TPOT_SIGMA + (error.ttft or 0.0) / TTFT_SIGMA

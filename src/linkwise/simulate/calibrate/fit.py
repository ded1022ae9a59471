"""Constants of a step fitted to measured runs: simulate, step towards what was measured, simulate again.

Minimised is a robust sum of log(predicted / measured) and what is known before (priors.py): pseudo-Huber, linear beyond
some 6 % of TPOT and 15 % of TTFT, since rows with unsaid settings are among any results. Constants are logarithms:
common to all engines, and a difference of each engine.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from linkwise.core.errors import InputError
from linkwise.engine.step_constants import OVERHEADS, StepConstants
from linkwise.engine.versions import version_key
from linkwise.plan.step_work import Work
from linkwise.simulate.calibrate import split, untold
from linkwise.simulate.calibrate.case import Case
from linkwise.simulate.calibrate.priors import FIXED, NAMES, PRIORS, TPOT_SIGMA, TTFT_SIGMA, VERSION_SPREAD
from linkwise.simulate.calibrate.steps import Steps, run_of
from linkwise.simulate.calibrate.work import Runs, means, together, unpacks, work_of_steps
from linkwise.simulate.tables import Floats

_STEP = 1e-4  # of a logarithm, for derivatives
_LONGEST = 1.0  # a move of a logarithm in one step


class Space(NamedTuple):
    """The parameters of a fit: their prior, and which engines have constants of their own.

    Parameters are the constants common to all, then each engine's differences, then each engine's version factor.
    since: of an engine, the version from which on its factor holds, and the least compute capability of devices it
    holds on (0 = any). factors: fixed ones where they are not fitted.
    """

    engines: tuple[str, ...]
    since: dict[str, tuple[str, int]]
    centre: Floats
    spread: Floats
    factors: dict[str, float] = {}

    @property
    def own(self) -> bool:
        return len(self.centre) > len(NAMES)

    def logs(self, at: Floats, engine: str) -> Floats:
        """Logarithms of an engine's constants."""
        k = len(NAMES)
        if not self.own:
            return at[:k]
        first = k * (1 + self.engines.index(engine))
        found: Floats = at[:k] + at[first : first + k]
        return found

    def factor(self, at: Floats, engine: str) -> float:
        """What overheads of newer versions are times of older ones'."""
        if not self.own:
            return self.factors.get(engine, 1.0)
        return float(np.exp(at[len(NAMES) * (1 + len(self.engines)) + self.engines.index(engine)]))


def pooled(engines: Sequence[str], since: dict[str, tuple[str, int]]) -> Space:
    """Every engine's constants at once, from the priors alone."""
    names = tuple(sorted(set(engines)))
    centre = np.log([PRIORS[n].centre for n in NAMES])
    spread = np.array([PRIORS[n].spread for n in NAMES])
    own = np.array([PRIORS[n].own for n in NAMES])
    more = len(names) * len(NAMES) + len(names)
    return Space(
        names, since, np.concatenate((centre, np.zeros(more))),
        np.concatenate((spread, np.tile(own, len(names)), np.full(len(names), VERSION_SPREAD))),
    )  # fmt: skip


class Group(NamedTuple):
    """Runs of one engine that are evaluated at once. newer: of the versions its factor holds for."""

    engine: str
    newer: bool
    runs: Runs


class Fitted(NamedTuple):
    """at: the parameters. errors: standard errors of the logarithms of each engine's constants, and of its factor.
    untold: of each engine the constants none of its rows tells of, with the engines whose rows do (untold.py)."""

    space: Space
    at: Floats
    errors: dict[str, Floats]
    untold: dict[str, dict[str, tuple[str, ...]]]

    def constants(self, engine: str, *, newer: bool) -> StepConstants:
        return constants(self.space, self.at, engine, newer=newer)


def constants(space: Space, at: Floats, engine: str, *, newer: bool) -> StepConstants:
    """An engine's constants at some parameters."""
    values = dict(zip(NAMES, map(float, np.exp(space.logs(at, engine))), strict=True))
    if newer:
        factor = space.factor(at, engine)
        for name in OVERHEADS:
            values[name] *= factor
    return replace(StepConstants(), **values, **FIXED)


def is_newer(space: Space, case: Case) -> bool:
    """Whether a run is of a version, and on a device, the engine's factor holds for."""
    engine, device = case.served.engine, case.served.cluster.accelerator
    if engine.name not in space.since:
        return False
    version, capability = space.since[engine.name]
    return version_key(engine.version) >= version_key(version) and device.capability >= capability


Parts = tuple[tuple[Case, Steps], ...]  # the steps of a run, with the group that makes them


def simulated(
    cases: Sequence[Case], space: Space, at: Floats, told: Callable[[int], None] | None = None
) -> list[Parts]:
    """Every run with the constants at some parameters; what was measured of a split one (split.py)."""
    found: list[Parts] = []
    for number, case in enumerate(cases):
        if case.split is not None:
            found.append(split.parts_of(case))
        else:
            engine = case.served.engine
            values = constants(space, at, engine.name, newer=is_newer(space, case))
            run = run_of(case._replace(served=case.served._replace(engine=engine.with_constants(values))))
            found.append(((case, run),))
        if told is not None:
            told(number + 1)
    return found


def grouped(runs: Sequence[Parts], space: Space) -> list[Group]:
    """Runs by what they are evaluated with."""
    found: dict[tuple[str, bool, bool], list[tuple[int, Steps, Work]]] = {}
    for number, parts in enumerate(runs):
        for case, steps in parts:
            work = work_of_steps(case, steps)
            key = case.served.engine.name, is_newer(space, case), unpacks(work)
            found.setdefault(key, []).append((number, steps, work))
    return [Group(engine, newer, together(members)) for (engine, newer, _), members in found.items()]


def predicted(groups: Sequence[Group], space: Space, at: Floats, number: int) -> Floats:
    """log of mean TPOT of every run, then of mean TTFT; NaN where no step tells of it."""
    found = np.zeros(2 * number)
    for group in groups:
        _add(found, group, means(group.runs, constants(space, at, group.engine, newer=group.newer)))
    return np.log(np.where(found > 0, found, np.nan))


def _add(found: Floats, group: Group, values: tuple[Floats, Floats]) -> None:
    """The parts of each run, into TPOT of every run, then TTFT."""
    runs = group.runs.cases.astype(np.int64)
    for first, part in zip((0, len(found) // 2), values, strict=True):
        np.add.at(found, first + runs, part)


def measured(cases: Sequence[Case]) -> Floats:
    """log of measured mean TPOT of every run, then of mean TTFT (of a split run: what split.py says of its prompts);
    NaN where it was not measured."""
    ttft = [c.ttft_s if c.split is None else split.told(c).prompt_s for c in cases]
    found: Floats = np.log(np.array([c.tpot_s for c in cases] + ttft))
    return found


def descend(
    groups: Sequence[Group], truth: Floats, space: Space, at: Floats, *, most: int = 12, doubt: Floats | None = None
) -> tuple[Floats, Floats]:
    """Gauss-Newton with damping from `at`: (parameters, curvature there). The order of events is held.

    doubt: of each run, times the usual error at which its loss turns from square to linear; None = 1 of all.
    """
    number = len(truth) // 2
    known = np.isfinite(truth)
    if not known.any():
        raise InputError("no measured time", where="calibrate", expected="TPOT or TTFT of some run")
    each = np.ones(number) if doubt is None else doubt
    sigma = np.concatenate((each * TPOT_SIGMA, each * TTFT_SIGMA))[known]

    def off(x: Floats) -> Floats:
        found: Floats = (predicted(groups, space, x, number) - truth)[known]
        return found

    def cost(off_by: Floats, x: Floats) -> float:
        z = off_by / sigma
        return float(2 * (np.sqrt(1 + z * z / 2) - 1).sum() + 0.5 * (((x - space.centre) / space.spread) ** 2).sum())

    now = off(at)
    best, damping = cost(now, at), 1e-2
    curvature = np.eye(len(at))
    for _ in range(most):
        slope = _slopes(groups, space, at, number)[known]
        weight = 1 / np.sqrt(1 + (now / sigma) ** 2 / 2) / sigma**2
        curvature = slope.T @ (slope * weight[:, None]) + np.diag(1 / space.spread**2)
        pull = slope.T @ (weight * now) + (at - space.centre) / space.spread**2
        for _ in range(8):
            damped = curvature + damping * np.diag(np.diag(curvature))
            move = np.clip(-np.linalg.solve(damped, pull), -_LONGEST, _LONGEST)
            there = off(at + move)
            reached = cost(there, at + move)
            if reached < best:
                break
            damping *= 5
        else:
            break
        gained, at, now, best, damping = best - reached, at + move, there, reached, damping / 5
        if gained < 1e-3 * max(1.0, best):
            break
    return at, curvature


def _slopes(groups: Sequence[Group], space: Space, at: Floats, number: int) -> Floats:
    """Derivatives of `predicted` by every parameter."""
    found = np.zeros((2 * number, len(at)))
    k, whole = len(NAMES), np.exp(predicted(groups, space, at, number))
    for group in groups:
        base = means(group.runs, constants(space, at, group.engine, newer=group.newer))

        def slope(
            place: int, group: Group = group, base: tuple[Floats, Floats] = base
        ) -> Floats:  # fmt: skip
            there, moved = at.copy(), np.zeros(2 * number)
            there[place] += _STEP
            values = means(group.runs, constants(space, there, group.engine, newer=group.newer))
            _add(moved, group, (values[0] - base[0], values[1] - base[1]))
            return moved / whole / _STEP

        for place in range(k):
            found[:, place] += (one := slope(place))
            if space.own:
                found[:, k * (1 + space.engines.index(group.engine)) + place] += one
        if space.own and group.newer:
            last = k * (1 + len(space.engines)) + space.engines.index(group.engine)
            found[:, last] += slope(last)
    return found


def fit(
    cases: Sequence[Case], space: Space, *, rounds: int = 4, start: Floats | None = None, doubt: Floats | None = None,
    told: Callable[[int, int], None] | None = None,
) -> Fitted:  # fmt: skip
    """The constants that explain the runs best. doubt: see descend. told: (round, runs simulated in it) as it goes."""
    at = space.centre.copy() if start is None else start
    truth = measured(cases)
    curvature = np.eye(len(at))
    for turn in range(rounds):
        steps = simulated(cases, space, at, None if told is None else partial(told, turn))
        before = at
        at, curvature = descend(grouped(steps, space), truth, space, at, doubt=doubt)
        if float(np.abs(at - before).max()) < 0.01:
            break
    return finished(space, at, curvature)


def finished(space: Space, at: Floats, curvature: Floats) -> Fitted:
    """Of what `descend` found: with what is taken for constants that no row of an engine tells of."""
    if space.own:
        found = untold.taken(space.engines, space.centre, space.spread, at, curvature)
        return Fitted(space, found.at, found.errors, found.untold)
    k = len(NAMES)
    errors = np.append(np.sqrt(np.diag(np.linalg.inv(curvature))[:k]), 0.0)
    silent = (np.diag(curvature)[:k] * space.spread**2 - 1) < untold.NOTHING
    names: dict[str, tuple[str, ...]] = {name: () for name, none in zip(NAMES, silent, strict=True) if none}
    return Fitted(space, at, dict.fromkeys(space.engines, errors), dict.fromkeys(space.engines, names))

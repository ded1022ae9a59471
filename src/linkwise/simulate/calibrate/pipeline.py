"""Which stages' times the means of a run are made of, where several batches are in flight.

A step waits for a stage that another batch is in, so a request's time is no sum over its own steps. It is one over the
path behind its last token. A stage began when its step had left the stage before, or when the step ahead had left this
one, whichever was later; the first stage also when its slot's last step was over, or when a request came. Walked back
from every step that counts, this gives the derivative of both means by every stage's time of every step, as long as
the order of events stays: half a step more of the busiest stage counts for every batch that waits for it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np

from linkwise.simulate.state import Array
from linkwise.simulate.tables import Floats

_FIRST_STAGE, _ALONE = -1, -2
F = TypeVar("F", bound=Callable[..., Any])


def _kept(function: F) -> F:
    """Compiled, once."""
    return cast(F, numba.njit(error_model="numpy", cache=True)(function))


class Starts(NamedTuple):
    """When steps, or requests, come. after: the step under way then (_FIRST_STAGE: as the step ahead leaves the first
    stage; _ALONE: none is). share: of that step that had passed, 1 at its end. at: the time itself, seconds."""

    after: Array
    share: Floats
    at: Floats


def weights(log: Array, every: Array, stage_s: Floats, slots: int) -> tuple[Floats, Floats]:
    """Weights (step, stage) that make mean TPOT of the stages' times, and mean TTFT after the requests were taken in.

    log: steps in the order they began in (state.LOG), of one replica with so many slots. every: requests that were
    served. stage_s: seconds of every step's stages.
    """
    number, stages = stage_s.shape
    ends, last = log["end"], stages - 1
    every = every[every["end"] <= ends[-1]]  # those beyond the steps that are known count for nothing
    first, end = np.searchsorted(ends, every["first"]), np.searchsorted(ends, every["end"])
    came = _placed(log, every["entered"], slots)
    weight, at_start = np.zeros((number, stages, 2)), np.zeros((number, 2))
    several = every["output"] > 1
    each = 1.0 / (every["output"][several] - 1) / max(1, int(several.sum()))
    np.add.at(weight[:, last, 0], end[several], each)
    np.add.at(weight[:, last, 0], first[several], -each)
    np.add.at(weight[:, last, 1], first, 1.0 / len(every))
    under = came.after >= 0
    np.add.at(weight[:, last, 1], came.after[under], -came.share[under] / len(every))
    np.add.at(at_start[:, 1], came.after[under], -(1 - came.share[under]) / len(every))
    begun = _starts(log, every, slots)
    start_s, end_s = np.zeros(number), np.zeros((number, stages))
    _forward(stage_s, begun.after, begun.share, begun.at, start_s, end_s)
    _back(begun.after, begun.share, start_s, end_s, weight, at_start)
    return weight[:, :, 0], weight[:, :, 1]


def _starts(log: Array, every: Array, slots: int) -> Starts:
    """What every step began with: the end of another, a request that came, or else the first stage that became free."""
    found = _placed(log, log["start"], slots)
    known = (found.share == 1) | np.isin(log["start"], every["entered"])
    after = np.where(known, found.after, _FIRST_STAGE)
    after[0] = _ALONE
    return found._replace(after=after)


def _placed(log: Array, at: Floats, slots: int) -> Starts:
    """Which step's end each time is (times of events are exact), or else the last one begun before that is still under
    way: who comes in the middle of it keeps that place in it."""
    starts, ends = log["start"], log["end"]
    after, share = np.full(len(at), _ALONE), np.zeros(len(at))
    newest = np.searchsorted(starts, at) - 1
    for back in range(slots):
        step = np.maximum(newest - back, 0)
        found = (after == _ALONE) & (newest >= back) & (ends[step] > at)
        after[found] = step[found]
        share[found] = ((at - starts[step]) / (ends[step] - starts[step]))[found]
    by = np.minimum(np.searchsorted(ends, at), len(ends) - 1)
    ended = ends[by] == at
    return Starts(np.where(ended, by, after), np.where(ended, 1.0, share), at)


@_kept
def _forward(stage_s: Floats, after: Array, share: Floats, at: Floats, start_s: Floats, end_s: Floats) -> None:
    """start_s, end_s: when steps begin and their stages are over, by these times of stages."""
    number, stages = stage_s.shape
    for k in range(number):
        now = at[k]
        if after[k] == _FIRST_STAGE:
            now = end_s[k - 1, 0]
        elif after[k] >= 0:
            begun = start_s[after[k]]
            now = begun + share[k] * (end_s[after[k], stages - 1] - begun)
        start_s[k] = now
        for s in range(stages):
            if k > 0:
                now = max(now, end_s[k - 1, s])
            now += stage_s[k, s]
            end_s[k, s] = now


@_kept
def _back(after: Array, share: Floats, start_s: Floats, end_s: Floats, weight: Floats, at_start: Floats) -> None:
    """weight: of the ends of stages, which becomes that of their times; at_start: of the steps' starts."""
    number, stages = end_s.shape
    for k in range(number - 1, -1, -1):
        for s in range(stages - 1, -1, -1):
            before = start_s[k] if s == 0 else end_s[k, s - 1]
            for i in range(2):
                if k > 0 and end_s[k - 1, s] > before:
                    weight[k - 1, s, i] += weight[k, s, i]
                elif s > 0:
                    weight[k, s - 1, i] += weight[k, s, i]
                else:
                    at_start[k, i] += weight[k, s, i]
        for i in range(2):
            if after[k] == _FIRST_STAGE:
                weight[k - 1, 0, i] += at_start[k, i]
            elif after[k] >= 0:
                weight[after[k], stages - 1, i] += share[k] * at_start[k, i]
                at_start[after[k], i] += (1 - share[k]) * at_start[k, i]

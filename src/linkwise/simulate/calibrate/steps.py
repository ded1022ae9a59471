"""The steps of a simulated run by what they hold, each kind with its weight in the mean TPOT and TTFT.

A request's TPOT is the time of the steps it decodes in over its tokens, its TTFT the time of those from its arrival to
its first token. So both means are sums over steps of weight x duration, and their derivative by a constant is the same
sum over the derivative of a step's duration, as long as the order of events stays; the fit simulates again after every
move (fit.py). Stages of a pipeline wait for each other: pipeline.py weighs them.
"""

from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from linkwise.core.errors import InputError
from linkwise.simulate.calibrate.case import Case
from linkwise.simulate.calibrate.work import Carried, stage_seconds_of
from linkwise.simulate.of_plan import rules_for, tables_for
from linkwise.simulate.rules import Pool, Rules, Run
from linkwise.simulate.run import simulate
from linkwise.simulate.state import DONE, Array
from linkwise.simulate.tables import Floats

MOST_STEPS = 3_000_000
_PROMPT_BIN, _CONTEXT_BIN = 192, 1024  # tokens: steps alike within these are one kind


class Steps(NamedTuple):
    """Kinds of step of one run: so many of each stage, what they carry, their weights in mean TPOT and TTFT.

    carried, tpot_weight, ttft_weight: stage after stage.
    front: mean times of the thread that takes requests in: (1, requests it took in before and with one, their tokens).
    rest_s: of TTFT that no step explains. tpot_s, ttft_s: as simulated.
    """

    carried: Carried
    stages: tuple[int, ...]
    tpot_weight: Floats
    ttft_weight: Floats
    front: tuple[float, float, float]
    rest_s: float
    tpot_s: float
    ttft_s: float


def rules_of(case: Case) -> Rules:
    """How its engine batched."""
    return replace(rules_for(case.served)[0], prefix_cache=case.prefix_hit > 0, **case.rules)


def run_of(case: Case, *, coarse: bool = True) -> Steps:
    """Simulate a run with the constants its engine has."""
    rules, load = rules_of(case), case.load
    pool = Pool(rules, tables_for(case.served, rules, load, coarse=coarse))
    most = min(MOST_STEPS, int(load.output_tokens.sum()) + 64 * load.number + 1000)
    found = simulate([pool], load, Run(users=case.users, steps_kept=most))
    every = found.requests[found.requests["status"] == DONE]
    if not len(every):
        raise InputError("no request was served", where=case.name, expected="a run that ends")
    log, users = found.steps, max(1, case.users)
    if rules.slots == 1 and pool.tables.stages == 1:
        stage_s, weights = (log["end"] - log["start"])[:, None], _in_turn(log, every)
    else:
        from linkwise.simulate.calibrate import pipeline  # numba: half a second, for few

        stage_s = stage_seconds_of(case, _carried(log, rules))
        weights = pipeline.weights(log, every, stage_s, rules.slots)
    return _summed(log, stage_s, weights, every, rules, users)


def _in_turn(log: Array, every: Array) -> tuple[Floats, Floats]:
    """Weights of steps (of their one stage) that follow each other."""
    starts, ends = log["start"], log["end"]
    last = np.searchsorted(ends, every["end"], "right")
    first = np.searchsorted(ends, every["first"], "right")
    several = every["output"] > 1
    tpot = np.zeros(len(log) + 1)
    each = 1.0 / (every["output"][several] - 1) / max(1, int(several.sum()))
    np.add.at(tpot, first[several], each)
    np.add.at(tpot, last[several], -each)
    # From the step under way when a request was taken in, a part of it, to the one that gave its first token.
    number = len(every)
    came = np.searchsorted(ends, every["entered"], "right")
    inside = np.minimum(came, len(log) - 1)
    late = np.clip(every["entered"] - starts[inside], 0, None) / np.maximum(ends[inside] - starts[inside], 1e-12)
    ttft = np.zeros(len(log) + 1)
    np.add.at(ttft, came, 1.0 / number)
    np.add.at(ttft, first, -1.0 / number)
    tpot_weight, ttft_weight = np.cumsum(tpot)[:-1], np.cumsum(ttft)[:-1]
    np.subtract.at(ttft_weight, inside, np.minimum(late, 1.0) / number)
    return tpot_weight[:, None], ttft_weight[:, None]


def _carried(log: Array, rules: Rules) -> Carried:
    """What every step carries."""
    everyone = log["rows"] * rules.verify + log["prefill"]
    return Carried(log["drew"], log["prompts"], log["fresh"], log["behind"] - log["fresh"], log["cached"], everyone)


def _summed(
    log: Array, stage_s: Floats, weights: tuple[Floats, Floats], every: Array, rules: Rules, users: int
) -> Steps:  # fmt: skip
    """Steps that are alike as one kind, and what is left of the means. stage_s, weights: by step and stage."""
    carried, kind = _carried(log, rules), _kind(log, users)
    found = [_alike(carried, kind, *one) for one in zip(*(w.T for w in weights), strict=True)]
    several = every["output"] > 1
    tpot_s = float(np.mean((every["end"] - every["first"])[several] / (every["output"][several] - 1)))
    ttft_s = float(np.mean(every["first"] - every["arrival"]))
    waited = every["entered"] - every["arrival"] - rules.front_s
    each = rules.front_each_s + rules.front_prompt_s * every["input"]
    ahead = np.where(each > 0, waited / np.maximum(each, 1e-12), 0.0)
    front = (1.0, float(ahead.mean()), float((ahead * every["input"]).mean()))
    explained = float((weights[1] * stage_s).sum()) + float(np.mean(every["entered"] - every["arrival"]))
    return Steps(
        Carried(*(np.concatenate(parts) for parts in zip(*(one[0] for one in found), strict=True))),
        tuple(len(one[1]) for one in found), np.concatenate([one[1] for one in found]),
        np.concatenate([one[2] for one in found]), front, ttft_s - explained, tpot_s, ttft_s,
    )  # fmt: skip


def _kind(log: Array, users: int) -> Array:
    """A number for every step, the same for those that are alike."""
    rows, fresh, prompts = log["drew"], log["fresh"], log["prompts"]
    wide = max(1.0, users / 32)
    near = np.where(rows <= 32, rows, np.round(rows / wide) * wide).astype(np.int64)
    mean = (log["cached"] / np.maximum(rows, 1) / _CONTEXT_BIN).astype(np.int64)
    key = ((near * 4096 + -(-fresh // _PROMPT_BIN)) * 1024 + np.minimum(mean, 1023)) * 64 + np.minimum(prompts, 63)
    kind: Array = np.unique(key, return_inverse=True)[1]
    return kind


def _alike(
    carried: Carried, kind: Array, tpot_weight: Floats, ttft_weight: Floats
) -> tuple[Carried, Floats, Floats]:  # fmt: skip
    """Each kind of step of a stage: what it carries on average, its weights."""
    total = max(float(np.abs(ttft_weight).sum()), 1e-12)
    weight = np.abs(tpot_weight) + np.abs(ttft_weight) * (float(np.abs(tpot_weight).sum()) / total) + 1e-15
    whole = np.bincount(kind, weight)
    mean = Carried(*(np.bincount(kind, weight * values) / whole for values in carried))
    tpot, ttft = (np.asarray(np.bincount(kind, one), dtype=float) for one in (tpot_weight, ttft_weight))
    return mean, tpot, ttft

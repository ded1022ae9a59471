"""Runs whose prompts are computed by groups of their own: what their two means say of each side's step.

A closed loop of two pools near balance is ill-conditioned: a step a tenth longer moves a queue of seconds from one pool
to the other. But by Little's law the means say how many requests were on either side, and so each side is fitted by
itself. TPOT is the step of as many rows as there were. TTFT is how long a full step of prompts takes where such steps
had a queue before them (M/D/1), and says nothing where there was none, or where prompts waited for a seat to decode.
"""

import math
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from linkwise.core.errors import InputError
from linkwise.simulate.calibrate.case import Case, Split
from linkwise.simulate.calibrate.steps import Steps
from linkwise.simulate.calibrate.work import Carried
from linkwise.simulate.of_plan import rules_for, tables_for
from linkwise.simulate.rules import Pool, Rules, Run
from linkwise.simulate.run import simulate
from linkwise.simulate.types import Simulated

DOUBT = 1.5  # times the usual error of a row: Little's law reads one of a run near balance
QUEUED = 2.0  # full steps of prompts on a lane, under way and waiting, from which on its time is told by the queue
_TAKEN = 0.9  # share of the seats to decode from which on prompts wait for one


class Told(NamedTuple):
    """What a run's means say. rows: on a lane that decodes, on average. prompts: of a full step of a lane; prompt_s:
    seconds of such a step, NaN where that is not told."""

    rows: float
    prompts: int
    prompt_s: float


def told(case: Case) -> Told:
    """What was measured, by Little's law at the mean lengths."""
    split, (prefill, decode) = split_of(case), rules_of(case)
    isl, osl = _mean(case, case.isl), _mean(case, case.osl)
    rate = case.users / (case.ttft_s + case.tpot_s * (osl - 1)) if case.users else case.rate_per_s
    rows = rate * case.tpot_s * osl / (split.replicas[1] * decode.lanes)
    prompts, lanes = max(1, int(prefill.budget // isl)), split.replicas[0] * prefill.lanes
    steps = rate * case.ttft_s / (lanes * prompts)
    if rows > _TAKEN * decode.max_seqs or not steps >= QUEUED:
        return Told(min(rows, float(decode.max_seqs)), prompts, math.nan)
    # Utilisation of an M/D/1 queue with so many in it: steps = busy + busy^2 / (2 (1 - busy)).
    busy = steps + 1 - math.sqrt((steps + 1) ** 2 - 2 * steps)
    return Told(rows, prompts, busy * prompts * lanes / rate)


def parts_of(case: Case) -> tuple[tuple[Case, Steps], ...]:
    """The step of either side that the means tell of, with the group that makes it."""
    split, said = split_of(case), told(case)
    isl, osl = _mean(case, case.isl), _mean(case, case.osl)
    rows, lanes = said.rows, case.served.layout.dp_attn
    found = [(case, _steps({"rows": rows, "cached": rows * (isl + osl / 2), "everyone": rows * lanes}, tpot=1.0))]
    if math.isfinite(said.prompt_s):
        fresh = said.prompts * isl
        full = {"prompts": said.prompts, "fresh": fresh, "everyone": fresh * split.served.layout.dp_attn}
        found.append((case._replace(served=split.served), _steps(full, ttft=1.0)))
    return tuple(found)


def _steps(carried: dict[str, float], tpot: float = 0.0, ttft: float = 0.0) -> Steps:
    """One step with its weights."""
    one = Carried(*(np.array([carried.get(name, 0.0)]) for name in Carried._fields))
    return Steps(one, (1,), np.array([tpot]), np.array([ttft]), (0.0, 0.0, 0.0), 0.0, 0.0, 0.0)


def _mean(case: Case, nominal: int) -> float:
    """Of lengths around a nominal one, as workload/lengths.py draws them."""
    return 0.9 * nominal if case.spread == "uniform" else float(nominal)


def split_of(case: Case) -> Split:
    if case.split is None:
        raise InputError("one pool", where=case.name, expected="prompts on groups of their own")
    return case.split


def rules_of(case: Case) -> tuple[Rules, Rules]:
    """How either side batches. A prompt holds no room for its answer where it is computed alone."""
    split = split_of(case)
    prefill = replace(rules_for(split.served)[0], prefix_cache=case.prefix_hit > 0, reserve=0.0, **split.rules)
    prefill = replace(prefill, front_s=prefill.front_s + split.handshake_s)
    decode = replace(
        rules_for(case.served)[0], prefix_cache=False, front_s=0.0, front_each_s=0.0, front_prompt_s=0.0, **case.rules
    )
    return prefill, decode


def run(case: Case, *, coarse: bool = True, seed: int = 0) -> Simulated:
    """A split run with the constants its engine has."""
    split, load = split_of(case), case.load
    sides = zip((split.served, case.served), rules_of(case), split.replicas, ("prefill", "decode"), strict=True)
    pools = [Pool(rules, tables_for(what, rules, load, coarse=coarse), n, role) for what, rules, n, role in sides]
    return simulate(pools, load, Run(users=case.users, seed=seed, transfer=split.transfer, router=split.router))

"""What a run of two pools says of either side's step. Expected values: hand calculation with Little's law."""

import math

import numpy as np
import pytest

pytest.importorskip("numba")

from linkwise.cluster import presets
from linkwise.core.layout import Layout
from linkwise.engine import registry
from linkwise.engine.base import Options
from linkwise.engine.step_constants import StepConstants
from linkwise.model import read
from linkwise.plan.batch import Batch, Part, decode_batch
from linkwise.plan.time import group_seconds
from linkwise.simulate.calibrate import split
from linkwise.simulate.calibrate.case import Case, Split, serving
from linkwise.simulate.calibrate.fit import Space, fit, grouped, measured, predicted, simulated
from linkwise.simulate.calibrate.priors import NAMES
from linkwise.simulate.of_plan import pool_for
from linkwise.simulate.rules import Transfer

MODEL, DEVICES = read.load("llama-3.1-8b"), presets.shorthand("1xh100-sxm")
CONSTANTS = StepConstants(layer_us=50, hbm_efficiency=0.8, bf16_efficiency=0.6, request_us=10)


def served(options: Options):
    engine = registry.get("trtllm", "1.2").with_constants(CONSTANTS)
    return serving(MODEL, DEVICES, engine, Layout(), options, 1000, 100)


def case(ttft_s: float, tpot_s: float, users: int = 40, seats: int = 64, spread: str = "fixed") -> Case:
    """Two groups that compute prompts of 1,000 tokens, two at once, and four that decode answers of 100."""
    prompts, drawn = served(Options(max_batched_tokens=2000)), served(Options(max_seqs=seats))
    beside = Split(prompts, {"ahead": False}, (2, 4), Transfer(), "round-robin")
    return Case(drawn, 1000, 100, spread, users, 0.0, 10 * users, ttft_s, tpot_s, "llama", "made", {}, beside)


def test_rows_are_those_that_little_s_law_says():
    # 40 users a cycle of 1 s + 99 x 10 ms: 20.1 requests/s, each 1 s of decoding: 20.1 rows on four groups
    said = split.told(case(1.0, 0.01))
    assert said.rows == pytest.approx(40 / 1.99 * 0.01 * 100 / 4)
    assert said.prompts == 2
    # 20.1 prompts on two groups are 5.025 full steps on each: busy + busy^2 / (2 (1 - busy)) of 0.9015
    busy = 0.9015
    assert busy + busy**2 / (2 * (1 - busy)) == pytest.approx(40 / 1.99 * 1.0 / (2 * 2), rel=1e-3)
    assert said.prompt_s == pytest.approx(busy * 2 * 2 / (40 / 1.99), rel=1e-3)


def test_the_mean_lengths_are_nine_tenths_where_they_are_spread():
    assert split.told(case(1.0, 0.01, spread="uniform")).rows == pytest.approx(40 / (1 + 0.01 * 89) * 0.01 * 90 / 4)


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (case(0.05, 0.01), "no queue"),
        (case(1.0, 0.01, seats=5), "a seat each of 20 rows: who waits does so for one of them"),
        (case(math.nan, 0.01), "no TTFT"),
    ],
)
def test_prompts_say_nothing(one: Case, why: str):
    assert math.isnan(split.told(one).prompt_s), why


def layer_open(factor: float) -> Space:
    """A start where a layer takes so many times what it does, and all else is known."""
    centre = np.log([min(1e9, max(1e-9, getattr(CONSTANTS, name))) for name in NAMES])
    place = NAMES.index("layer_us")
    centre[place] += math.log(factor)
    return Space(("trtllm",), {}, centre, np.where(np.arange(len(NAMES)) == place, 10.0, 1e-6))


def test_the_time_of_a_layer_that_made_tpot_comes_back():
    # 40 users who wait for nothing: 10 rows on each group, of 1,050 cached tokens in the middle of their answers
    engine = case(1, 1).served.engine
    step = float(group_seconds(MODEL, Layout(), engine, DEVICES, decode_batch(10, 1049), Options()).token)
    one = case(0.4 / 40 * step * 100, step)
    said = split.told(one)
    assert said.rows == pytest.approx(10)
    assert math.isnan(said.prompt_s)
    assert fit([one], layer_open(1.5)).constants("trtllm", newer=False).layer_us == pytest.approx(50, rel=0.01)


def test_a_full_step_of_prompts_is_what_the_queue_says():
    space = layer_open(1.0)
    one = case(1.0, 0.01)
    found = np.exp(predicted(grouped(simulated([one], space, space.centre), space), space, space.centre, 1))
    full = Batch("prefill", (Part(2, 1000, 0, prompt=True),), 2)
    step = group_seconds(MODEL, Layout(), one.served.engine, DEVICES, full, Options()).token
    # A fit has the norm in which reading and computing add up at 2.5, the constants here take the longer of both.
    assert found[1] == pytest.approx(float(step), rel=0.01)
    assert measured([one])[1] == pytest.approx(math.log(split.told(one).prompt_s))


def test_a_split_run_is_simulated_with_its_router_and_transfer():
    found = split.run(case(1.0, 0.01)).summary
    assert found.tpot is not None
    assert found.ttft is not None
    assert found.tpot.mean > 0


def test_prompts_hold_no_room_for_answers_that_are_drawn_elsewhere():
    # TensorRT-LLM admits a request only where all of its answer fits (reserve 1): on the side that draws it
    one = case(1.0, 0.01)
    both, prompts, drawn = (
        pool_for(one.served, one.load, role=role, replicas=1)[0].rules.reserve for role in ("both", "prefill", "decode")
    )
    assert (both, prompts, drawn) == (1.0, 0.0, 1.0)
    assert [rules.reserve for rules in split.rules_of(one)] == [0.0, 1.0]

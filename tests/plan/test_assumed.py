"""Intervals of what hangs on constants that no row of an engine tells of. Expected values: by hand."""

import math

import pytest
from msgspec.structs import replace

from linkwise import api
from linkwise.api_task import cluster_of
from linkwise.core.layout import Layout
from linkwise.engine import registry
from linkwise.engine.base import Options
from linkwise.engine.step_calibrations import shipped
from linkwise.engine.step_constants import Z80, Spread, StepCalibration
from linkwise.model import read
from linkwise.plan.agree import agree
from linkwise.plan.assumed import hangs_on, wider
from linkwise.plan.figures import Subject, step_times
from linkwise.plan.interval import trust
from linkwise.plan.inventory import inventory, stages
from linkwise.workload.types import Workload


def calibration(**errors: float) -> StepCalibration:
    """vLLM's, with nothing assumed but these."""
    found = shipped("vllm")
    assert found is not None
    constants = {
        name: replace(one, assumed=name in errors, error=errors.get(name, one.error))
        for name, one in found.constants.items()
    }
    return replace(found, constants=constants)


def about(made: StepCalibration, model: str = "llama-3.1-8b") -> Subject:
    """One user, whom no other's prompt holds up: TPOT is a decode step."""
    workload = Workload(isl_tokens=1000, osl_tokens=200, concurrency=1)
    engine = registry.get("vllm", "0.18").calibrated(made)
    return Subject(read.load(model), cluster_of("1xh100-sxm"), engine, Layout(), Options(), workload, 1, 1)


def test_a_constant_moves_a_time_by_its_share():
    what = about(calibration(layer_us=0.5))
    (found,) = hangs_on(what, calibration(layer_us=0.5))
    step_s = step_times(what)[0].step_s
    layer_s = 32 * what.engine.step_constants(what.cluster).layer_us * 1e-6
    for end, sign in zip(found.tpot, (-1, 1), strict=True):
        assert end == pytest.approx(math.log(1 + layer_s / step_s * math.expm1(sign * 0.5 * Z80)), rel=1e-6)
    assert found.felt
    assert "layer_us: no row of vllm tells of it; 1.9 times more or less moves TTFT" in found.words("vllm")


def test_what_a_model_has_no_layer_of_moves_nothing():
    made = calibration(prompt_linear_layer_us=0.8, linear_layer_us=0.8, mla_layer_us=0.8)
    assert hangs_on(about(made), made) == ()
    assert {one.name for one in hangs_on(about(made, "nemotron-3-nano-30b-a3b"), made)} == {
        "prompt_linear_layer_us", "linear_layer_us",
    }  # fmt: skip


def test_errors_that_have_nothing_to_do_with_each_other_add_as_squares():
    found = wider(Spread(low=-0.3, high=0.4), [(-0.4, 0.3), (0.0, 1.2)])
    assert (found.low, found.high) == (pytest.approx(-0.5), pytest.approx(1.3))
    assert wider(Spread(low=0.1, high=0.2), [(-0.4, 0.0)]) == Spread(low=0.1 - 0.4, high=0.2)


def test_an_interval_widens_and_says_why():
    narrow, wide = (about(calibration(**errors)) for errors in ({}, {"layer_us": 0.5}))
    usual, found = trust(0.01, 0.1, narrow, 8), trust(0.01, 0.1, wide, 8)
    assert usual.tpot is not None
    assert found.tpot is not None
    assert usual.extrapolated == ()
    assert found.extrapolated[0].startswith("layer_us: no row of vllm")
    assert found.tpot.high_s > 1.1 * usual.tpot.high_s
    assert found.tpot.low_s < 0.95 * usual.tpot.low_s


@pytest.mark.parametrize(("name", "layers"), [("llama-3.1-8b", 32), ("nemotron-3-nano-30b-a3b", 26)])
def test_a_layer_that_is_a_mixer_or_a_feed_forward_is_half_of_one(name: str, layers: int):
    """Nemotron 3 Nano's config names 52 layers: 23 Mamba-2, 6 attention, 23 of experts."""
    model = read.load(name)
    (stage,) = stages(model, Layout(), registry.get("vllm"))
    assert inventory(model).whole_layers(stage) == layers


def test_a_plan_that_hangs_on_such_a_constant_agrees_with_itself():
    made = api.plan(
        "nemotron-3-nano-30b-a3b", "1xh200-sxm", engine="vllm", isl=1000, osl=200, concurrency=16, weights="fp8"
    )
    for copies in (1, 3):  # a program may ask for a plan with more replicas
        agree(replace(made, replicas=copies, rank_grid=made.rank_grid * copies), "plan")
    assert any("prompt_linear_layer_us" in why for why in made.trust.extrapolated)

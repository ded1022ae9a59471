"""The step model under stated constants. Expected values: hand calculation."""

import math

import pytest
from tests.plan.test_step import tiny, tiny_mla

from linkwise.cluster.read import load as cluster
from linkwise.core.chain import chain_of
from linkwise.core.layout import Layout
from linkwise.core.quantity import Quantity, pnorm, value_of
from linkwise.engine import registry
from linkwise.engine.base import Options
from linkwise.engine.step_constants import StepConstants
from linkwise.plan.batch import decode_batch, mixed_batch, prefill_batch
from linkwise.plan.step_work import Block, Work, seconds
from linkwise.plan.time import group_seconds

TEXTBOOK = registry.get("textbook")


def work(**changes: object) -> Work:
    """A step of 3 GB and 2 TFLOP of dense weights on a device of 1 TB/s and 100 TFLOP/s."""
    made = Work(
        kind="decode", blocks={"mlp": Block(3e9, {"bf16": 2e12}, {})}, hbm_Bps=1e12,
        peaks={"bf16": 100e12, "unpacked": 100e12, "attention": 100e12}, kv_bytes=1e9, attention_flops=0.1e12,
        layers={"all": 10, "moe": 4, "shared": 3, "mla": 0, "linear": 0, "qk-norm": 2, "block-fp8": 0, "unpacked": 0},
        calls=20, comm_s=1e-3, prompt_tokens=0, prompts=0,
    )  # fmt: skip
    return made._replace(**changes)


def test_without_constants_a_part_takes_the_longer_of_reading_and_computing():
    found = seconds(work(), StepConstants())
    assert found.parts == {"mlp": pytest.approx(20e-3), "kv": pytest.approx(1e-3)}  # 3 ms read, 20 ms computed
    assert (found.comm, found.engine) == (1e-3, 0)


def test_a_part_is_a_norm_of_reading_and_computing_at_their_efficiencies():
    c = StepConstants(hbm_efficiency=0.5, bf16_efficiency=0.8, sharpness=2.0)
    # 3 GB at 0.5 TB/s: 6 ms; 2 TFLOP at 80 TFLOP/s: 25 ms
    assert seconds(work(), c).parts["mlp"] == pytest.approx(math.hypot(6e-3, 25e-3))


def test_a_cache_is_read_and_attended_to_one_after_the_other_where_the_constants_say_so():
    c = StepConstants(kv_efficiency=0.5, attention_efficiency=0.5, kv_sharpness=1.0)
    assert seconds(work(), c).parts["kv"] == pytest.approx(2e-3 + 2e-3)


def test_layers_calls_and_the_engine_add_their_constants():
    c = StepConstants(
        step_us=300, layer_us=50, moe_layer_us=20, shared_layer_us=10, qk_norm_layer_us=5, mla_layer_us=1000,
        collective_us=2, collective_share=0.5,
    )  # fmt: skip
    found = seconds(work(), c)
    assert found.parts["kernels"] == pytest.approx((10 * 50 + 4 * 20 + 3 * 10 + 2 * 5) * 1e-6)
    assert found.comm == pytest.approx(0.5e-3 + 20 * 2e-6)
    assert found.engine == pytest.approx(300e-6)


def test_only_a_step_that_holds_a_prompt_pays_for_it():
    c = StepConstants(prompt_step_us=1000, prompt_layer_us=200, prompt_token_us=0.5)
    assert "prompt" not in seconds(work(), c).parts
    held = seconds(work(prompts=1, prompt_tokens=512), c)
    assert held.parts["prompt"] == pytest.approx((1000 + 10 * 200 + 512 * 0.5) * 1e-6)


def test_experts_that_are_unpacked_and_filled_up():
    # 2 TFLOP of rows and 0.5 GFLOP for each further row of a touched expert
    block = Block(3e9, {"unpacked": 2e12}, {"unpacked": 0.5e9})
    c = StepConstants(dequant_hbm_efficiency=0.25, dequant_efficiency=0.2, expert_rows=32, expert_efficiency=0.1)
    found = seconds(work(blocks={"experts": block}), c)
    # read: 12 ms; computed: (2e12 + 32 * 0.5e9) / 20e12 = 100.8 ms, of the 16-bit rate whatever experts reach
    assert found.parts["experts"] == pytest.approx(0.1008)
    c = StepConstants(expert_rows=32, expert_efficiency=0.1, bf16_efficiency=0.5, expert_hbm_efficiency=0.5)
    block = Block(3e9, {"bf16": 2e12}, {"bf16": 0.5e9})
    assert seconds(work(blocks={"experts": block}), c).parts["experts"] == pytest.approx(2.016e12 / 5e12)


def test_only_experts_that_are_picked_are_read_and_filled_up():
    # 64 tokens pick one of 32 experts each: alike ones are missed with chance (31/32)^64 = 0.1311. Where some are
    # picked more often, by chances that are spread exponentially (shape 1), 1 / (1 + 64/32) of them are: 2/3 are read.
    block = Block(3e9, {"bf16": 1e12}, {"bf16": 3e12}, met=64, pick=1 / 32)
    alike = seconds(work(blocks={"experts": block}), StepConstants(bf16_efficiency=1e3, sharpness=1.0))
    assert alike.parts["experts"] == pytest.approx(3e-3 * (1 - 0.13112) + 1e12 / 100e15, rel=1e-4)
    c = StepConstants(expert_evenness=1.0, expert_rows=2, expert_hbm_efficiency=0.5, sharpness=1.0)
    uneven = seconds(work(blocks={"experts": block}), c)
    # read: 2 GB at 0.5 TB/s; computed: 1 TFLOP and two more rows of 2/3 of the experts, 3 TFLOP each
    assert uneven.parts["experts"] == pytest.approx(4e-3 + (1e12 + 2 * 2e12) / 100e12)


def test_experts_whose_tokens_came_by_a_direct_exchange_compute_at_a_rate_of_their_own():
    c = StepConstants(expert_efficiency=0.5, grouped_efficiency=2.0)
    here, grouped = Block(3e9, {"bf16": 2e12}, {}), Block(3e9, {"bf16": 2e12}, {}, grouped=1)
    assert seconds(work(blocks={"experts": here}), c).parts["experts"] == pytest.approx(40e-3)
    assert seconds(work(blocks={"experts": grouped}), c).parts["experts"] == pytest.approx(20e-3)
    assert seconds(work(blocks={"mlp": grouped}), c).parts["mlp"] == pytest.approx(20e-3)  # no expert: the plain rate


@pytest.mark.parametrize(("p", "expected"), [(1, 7.0), (2, 5.0), (math.inf, 4.0)])
def test_norms(p: float, expected: float):
    assert pnorm(3.0, 4.0, p) == pytest.approx(expected)
    recorded = pnorm(Quantity.given("a", 3.0), Quantity.given("b", 4.0), p)
    assert value_of(recorded) == pytest.approx(expected)
    assert pnorm(0.0, 0.0, 2.5) == 0


def calibrated(**values: float):
    return TEXTBOOK.with_constants(StepConstants(**values))


def test_a_whole_step_takes_what_its_constants_say():
    where = cluster("1xh100-sxm")
    plain = group_seconds(tiny(), Layout(), calibrated(), where, decode_batch(4, 99), Options())
    more = group_seconds(tiny(), Layout(), calibrated(step_us=100, layer_us=10), where, decode_batch(4, 99), Options())
    assert more.token - plain.token == pytest.approx((100 + 4 * 10) * 1e-6, rel=1e-9)  # tiny has four layers
    # 3 of its 4 layers have experts, all have latent attention
    one = group_seconds(tiny_mla(), Layout(), calibrated(moe_layer_us=7, mla_layer_us=3), where, decode_batch(4, 9),
                        Options())  # fmt: skip
    two = group_seconds(tiny_mla(), Layout(), calibrated(), where, decode_batch(4, 9), Options())
    assert one.token - two.token == pytest.approx((3 * 7 + 4 * 3) * 1e-6, rel=1e-9)


def test_attention_replicas_that_share_experts_cost_more_a_layer():
    where, four = cluster("4xh100-sxm"), decode_batch(4, 9)
    for layout, layers in ((Layout(dp_attn=4, ep=4), 3), (Layout(tp=4, ep=4), 0)):  # 3 of its 4 layers have experts
        plain, more = (
            group_seconds(tiny_mla(), layout, calibrated(dp_layer_us=us), where, four, Options()).token for us in (0, 7)
        )
        assert more - plain == pytest.approx(layers * 7e-6, rel=1e-9)


def test_a_mixed_step_pays_for_its_prompt_once_and_for_each_token_of_it():
    where, engine = cluster("1xh100-sxm"), calibrated(prompt_step_us=1000, prompt_token_us=2)
    (stage,) = group_seconds(tiny(), Layout(), engine, where, mixed_batch(100, 4, 50), Options()).stages
    assert stage.parts["prompt"] == pytest.approx((1000 + 200) * 1e-6)
    (stage,) = group_seconds(tiny(), Layout(), engine, where, prefill_batch(10), Options()).stages
    assert stage.parts["prompt"] == pytest.approx((1000 + 20) * 1e-6)


def test_a_chain_reaches_the_constants_with_their_source():
    engine = registry.get("vllm", "0.18")
    at = group_seconds(tiny(), Layout(), engine, cluster("1xh100-sxm"), decode_batch(4, 99), Options(),
                       given=Quantity.given)  # fmt: skip
    chain = chain_of(at.token)
    layer = next(step for step in chain.inputs if step.name == "layer")
    assert engine.calibration is not None
    factor = engine.calibration.factor("0.18")
    assert layer.value == pytest.approx(engine.calibration.constants["layer_us"].value * factor * 1e-6)
    assert "fitted to" in layer.source
    assert "within" in layer.source

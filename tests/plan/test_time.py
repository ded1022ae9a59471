"""Step times. Expected values: hand calculation from the constants of a cluster made for the test."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plan.test_step import tiny, tiny_mla

from linkwise.cluster.read import load as cluster
from linkwise.cluster.types import Tier
from linkwise.core.layout import Layout
from linkwise.core.quantity import Quantity, plain, value_of
from linkwise.engine import registry
from linkwise.engine.base import Options
from linkwise.plan.batch import Batch, Part, decode_batch, prefill_batch
from linkwise.plan.operate import MAX_PROMPT_LOAD, _mean_step, decode_step, kept, operation, prompt_chunks
from linkwise.plan.time import Span, group_seconds, port_bandwidth, span, spans
from linkwise.workload.types import Workload

VLLM = registry.get("vllm")
TEXTBOOK = registry.get("textbook")


def ideal(text, **changes):
    """A cluster whose constants add nothing: efficiency 1, latency and overheads 0."""
    where = cluster(text)
    quiet = msgspec.structs.replace(
        where.constants, hbm_efficiency=1.0, flops_efficiency=1.0, kernel_us_per_layer=0.0, step_overhead_us=0.0,
        link_efficiency=dict.fromkeys(where.constants.link_efficiency, 1.0),
        latency_us=dict.fromkeys(where.constants.latency_us, (0.0, 0.0)),
    )  # fmt: skip
    return msgspec.structs.replace(where, constants=msgspec.structs.replace(quiet, **changes))


def test_a_decode_step_of_one_rank_reads_every_weight_but_the_embedding_and_the_cache_once():
    where = ideal("1xh100-sxm")
    at = group_seconds(tiny(), Layout(), TEXTBOOK, where, decode_batch(1, 99), Options())
    # per layer: attention 2·256² + 2·256·128, MLP 3·256·512, two norms; head 1024·256; final norm; bf16
    weights = 2 * (4 * (2 * 256**2 + 2 * 256 * 128 + 3 * 256 * 512 + 2 * 256) + 1024 * 256 + 256)
    cache = 100 * 4 * 2 * 4 * 32 * 2
    assert at.token == pytest.approx((weights + cache) / where.accelerator.hbm_Bps, rel=1e-12)


def test_a_long_prompt_is_limited_by_arithmetic():
    where = ideal("1xh100-sxm")
    tokens = 1_000_000
    (stage,) = group_seconds(tiny(), Layout(), TEXTBOOK, where, prefill_batch(tokens), Options()).stages
    peak = where.accelerator.flops["bf16"]
    assert stage.parts["mlp"] == pytest.approx(2 * tokens * 4 * 3 * 256 * 512 / peak, rel=1e-12)
    # causal attention: tokens·(tokens+1)/2 pairs, 2·heads·(k + v) FLOPs each
    assert stage.parts["kv"] == pytest.approx(4 * tokens * (tokens + 1) / 2 * 2 * 8 * 64 / peak, rel=1e-12)


def test_experts_read_are_the_distinct_ones_a_batch_touches():
    where = ideal("1xh100-sxm")
    (stage,) = group_seconds(tiny_mla(), Layout(), TEXTBOOK, where, decode_batch(3, 10), Options()).stages
    # 3 MoE layers, 16 experts of 3·512·128 bf16 values; top-4 of 16: 1 - (3/4)^3 of them read
    held = 3 * 16 * 3 * 512 * 128 * 2
    assert stage.parts["experts"] == pytest.approx(held * (1 - 0.75**3) / where.accelerator.hbm_Bps, rel=1e-12)


def test_all_reduce_time_is_latency_and_ring_bytes():
    where = ideal("2xh100-sxm", latency_us={"nccl.island": (10.0, 2.0)})
    (stage,) = group_seconds(tiny(), Layout(tp=2), TEXTBOOK, where, decode_batch(1, 10), Options()).stages
    # 8 calls: 10 us and two steps of 2 us, and 512 B over NVLink
    assert stage.comm == pytest.approx(8 * (14e-6 + 512 / where.accelerator.scaleup_Bps), rel=1e-9)


def test_a_ring_over_nodes_pools_the_nics_of_a_node():
    where = ideal("2x8xh100-sxm")
    place = span(Layout(tp=16), "tp", where)
    assert place == Span(Tier.CLUSTER, 8, nodes=2)
    assert port_bandwidth(where, place, "all_reduce", 16) == pytest.approx(min(8 * 50e9, 450e9))
    assert port_bandwidth(where, place, "all_to_all", 16) == pytest.approx(50e9)


def test_innermost_ranks_are_neighbours_so_tp_stays_in_the_node_and_pp_crosses():
    where = cluster("2x8xh100-sxm")
    found = spans(Layout(tp=8, pp=2), where)
    assert (found["tp"].tier, found["pp"].tier) == (Tier.ISLAND, Tier.CLUSTER)


def test_a_token_visits_all_stages_and_batches_follow_the_slowest():
    where = ideal("4xh100-sxm")
    at = group_seconds(tiny(), Layout(pp=4), TEXTBOOK, where, decode_batch(1, 10), Options())
    assert at.token == pytest.approx(sum(s.step for s in at.stages))
    assert at.interval == pytest.approx(max(s.step for s in at.stages))


def test_eager_launch_bounds_a_small_step():
    where = cluster("1xh100-sxm")
    graph, eager = (
        group_seconds(tiny(), Layout(), VLLM, where, decode_batch(1, 10), Options(eager=e)).token for e in (False, True)
    )
    assert eager >= 4 * where.constants.host_us_per_layer * 1e-6 > graph - where.constants.step_overhead_us * 1e-6


def test_prompts_are_cut_into_equal_chunks_within_the_limit():
    assert prompt_chunks(Workload(isl_tokens=4000), 8192) == (4000, 1, 0)
    assert prompt_chunks(Workload(isl_tokens=10_000), 4096) == (3334, 3, (10_000 - 4096) // 2)


def test_the_steady_state_balances_arrivals_and_completions():
    # One finishes for each that arrives: requests in flight = rate x time in the replica (Little's law)
    load = Workload(isl_tokens=512, osl_tokens=128)
    for batch in (1, 2, 16, 300):
        at = operation(tiny(), Layout(tp=2), VLLM, cluster("2xh100-sxm"), load, Options(), batch)
        assert at.rate * (at.ttft + (load.osl_tokens - 1) * at.tpot) == pytest.approx(batch, rel=1e-9)


def test_one_request_alone_waits_for_nobody():
    load = Workload(isl_tokens=8000, osl_tokens=50, concurrency=1)
    plain = VLLM.calibrated(None)  # a roofline: no time from the client to the queue
    at = operation(tiny(), Layout(tp=2), plain, cluster("2xh100-sxm"), load, Options(), 1)
    alone = group_seconds(tiny(), Layout(tp=2), plain, cluster("2xh100-sxm"), prefill_batch(8000), Options())
    assert at.ttft == pytest.approx(alone.token, rel=1e-9)
    assert at.tpot == pytest.approx(at.decode.token, rel=1e-9)
    assert at.rate == pytest.approx(1 / (at.ttft + 49 * at.tpot), rel=1e-9)


def test_drafted_tokens_are_verified_in_the_step_and_kept_by_chance():
    # one drafted token: two tokens and two logits rows a request; 1 + 0.85 tokens kept a round
    load, options = Workload(isl_tokens=512, osl_tokens=128), Options(mtp_tokens=1)
    step = decode_step(load, Layout(), options, 8)
    assert (step.tokens, step.sampled) == (16, 16)
    assert kept(options) == pytest.approx(1.85)
    assert kept(Options(mtp_tokens=2, mtp_acceptance=0.5)) == pytest.approx(1 + 0.5 + 0.25)


def test_prompts_never_fill_a_replica():
    load = Workload(isl_tokens=8192, osl_tokens=1)
    at = operation(tiny(), Layout(), VLLM, cluster("1xh100-sxm"), load, Options(), 64)
    others = 63 / 64 * at.rate * at.mixed.interval * prompt_chunks(load, 8192)[1]
    assert others <= MAX_PROMPT_LOAD * (1 + 1e-9)


LAYOUTS = [Layout(), Layout(tp=2), Layout(pp=2), Layout(pp=2, tp=2), Layout(dp_attn=2, tp=2, ep=4), Layout(tp=4, ep=4)]


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from(LAYOUTS), st.lists(st.integers(1, 512), min_size=2, max_size=6), st.integers(1, 20_000),
    st.integers(1, 4_000), st.booleans(), st.sampled_from(["vllm", "sglang", "trtllm", "linkwise", "textbook"]),
)  # fmt: skip
def test_recorded_equals_float_equals_array(layout, batches, isl, osl, eager, engine):
    load, where = Workload(isl_tokens=isl, osl_tokens=osl), cluster("8xh100-sxm")
    rest = (layout, registry.get(engine), where, load, Options(eager=eager))
    arrays = operation(tiny_mla(), *rest, np.array(batches))
    for i, batch in enumerate(batches):
        bare = operation(tiny_mla(), *rest, batch)
        kept = operation(tiny_mla(), *rest, batch, given=Quantity.given)
        for field in ("tpot", "ttft", "rate"):
            value = getattr(bare, field)
            assert value_of(getattr(kept, field)) == pytest.approx(value, rel=1e-12)
            assert np.broadcast_to(getattr(arrays, field), len(batches))[i] == pytest.approx(value, rel=1e-12)


DEGREES = [
    Layout(tp=tp, pp=pp, cp=cp, dp_attn=dp, dcp=dcp, ep=ep)
    for tp, pp, cp, dp in ((4, 1, 1, 1), (4, 1, 1, 2), (2, 2, 1, 2), (2, 1, 2, 1), (2, 2, 2, 1), (2, 1, 2, 2))
    for dcp in (1, 2, 4) if tp % dcp == 0
    for ep in (1, tp * cp * dp)
]  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(DEGREES), st.lists(st.floats(0.01, 12.0), min_size=1, max_size=4), st.integers(1, 9_000),
    st.integers(1, 400), st.sampled_from([0, 1]), st.sampled_from(["vllm", "sglang", "trtllm", "linkwise"]),
)  # fmt: skip
def test_requests_at_hand_that_are_no_whole_number_take_as_long_alone_as_in_an_array(
    layout, at_hand, isl, osl, drafts, engine
):
    """What a search finds on arrays is what a plan says: also beside steps with no rows (0.01), or many (300)."""
    load, where = Workload(isl_tokens=isl, osl_tokens=osl), cluster("8xh100-sxm")
    rest = (layout, registry.get(engine), where, load, Options(mtp_tokens=0 if engine == "linkwise" else drafts))
    every = [*at_hand, 0.01, 1.0, 300.0]
    arrays = operation(tiny_mla(), *rest, np.array(every))
    for i, batch in enumerate(every):
        bare = operation(tiny_mla(), *rest, batch)
        kept = operation(tiny_mla(), *rest, batch, given=Quantity.given)
        for field in ("tpot", "ttft", "rate", "round", "spread"):
            value = getattr(bare, field)
            assert value_of(getattr(kept, field)) == pytest.approx(value, rel=1e-9)
            assert np.broadcast_to(getattr(arrays, field), len(every))[i] == pytest.approx(value, rel=1e-9)
        for step in ("decode", "mixed"):
            one, found = getattr(bare, step).token, getattr(arrays, step).token
            assert np.broadcast_to(found, len(every))[i] == pytest.approx(one, rel=1e-12)


@pytest.mark.parametrize("layout", [Layout(tp=4, dcp=4), Layout(cp=2, tp=2, dcp=2), Layout(cp=4)])
def test_steps_of_an_array_take_as_long_as_each_alone(layout):
    """Two steps, of which one has no rows that decode, or no prompt: calls for those are the other's alone."""
    where = cluster("8xh100-sxm")

    def step(prompts, rows):
        return Batch("mixed", (Part(prompts, 64, 32, prompt=True), Part(rows, 1, 100)), rows + prompts)

    for cases in ([(1, 0), (1, 3)], [(0, 3), (1, 3)]):
        prompts, rows = (np.array(column, dtype=float) for column in zip(*cases, strict=True))
        both = group_seconds(tiny_mla(), layout, TEXTBOOK, where, step(prompts, rows), Options()).stages[0].comm
        for i, (some, beside) in enumerate(cases):
            parts = tuple(part for part in step(some, beside).parts if part.requests)
            alone = Batch("mixed", parts, beside + some)
            seconds = group_seconds(tiny_mla(), layout, TEXTBOOK, where, alone, Options()).stages[0].comm
            assert both[i] == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("layout", "at_hand", "rows"),
    [
        (Layout(tp=2), 2.25, 2.25),  # one batch, one attention replica: a mean
        (Layout(pp=2), 3, 1.5),  # two batches in flight hold one and two
        (Layout(dp_attn=8), 3, 1.0),  # the fullest of eight attention replicas has a whole request
        (Layout(dp_attn=8), 8.5, 1.5),  # eight and nine: one and two on the fullest
        (Layout(dp_attn=2, pp=2), 5, 1.5),  # two and three a batch: one and two on the fullest
    ],
)  # fmt: skip
def test_a_mean_step_lies_between_those_of_whole_requests(layout, at_hand, rows):
    step = _mean_step(Workload(isl_tokens=100, osl_tokens=10), layout, Options(), at_hand, plain)
    assert step.parts[0].requests == pytest.approx(rows, rel=1e-12)

"""Questions people asked in public threads, answered in time by the event loop (decision cases 1, 5, 7, 8, 11, 21, 23).

Step times are roofline and latency, so what is asserted is what the threads establish: which of two ways is faster, and
by what kind of margin, under a load that both meet. Closed loops of so many users, lengths lognormal around the mean.
"""

from typing import Any

import pytest
from msgspec.structs import replace

pytest.importorskip("numba")

import linkwise
from linkwise.api_simulate import played
from linkwise.plan.types import Plan
from linkwise.simulate.types import Summary


def planned(model: str, on: str, **words: Any) -> Plan:
    made = linkwise.plan(model, on, pareto=False, **words)
    assert isinstance(made, Plan), made
    return made


def closed(plan: Plan, users: int, each: int = 6, **words: Any) -> Summary:
    return played(plan, concurrency=users, requests=each * users, lengths="lognormal", **words).summary


def test_case_1_two_tp4_serve_more_than_one_tp8() -> None:
    # vllm#8089: Llama-3-70B in FP8 on 8 x H100, tp8 slower in total throughput
    words = {"weights": "fp8", "isl": 1024, "osl": 256}
    two, one = (closed(planned("llama-3.3-70b", "8xh100-sxm", tp=tp, **words), 256) for tp in (4, 8))
    assert two.output_tokens_per_s > one.output_tokens_per_s
    assert two.tpot is not None
    assert one.tpot is not None
    assert two.tpot.mean < one.tpot.mean


def test_case_5_two_pcie_cards_are_no_faster_than_one() -> None:
    # vllm#732, #367 (2023: no CUDA graphs), one request at a time: tp2 does not gain more than 10 %
    for card in ("l4", "a10", "rtx-4090"):
        words = {"isl": 128, "osl": 128, "eager": True, "pp": 1}
        one, two = (closed(planned("llama-2-7b", f"2x{card}", tp=tp, **words), 1, replicas=1) for tp in (1, 2))
        assert one.e2e is not None
        assert two.e2e is not None
        assert one.e2e.mean / two.e2e.mean < 1.10, card


def test_case_7_tensor_is_quicker_over_nvlink_and_pipeline_serves_more_over_pcie() -> None:
    # TensorRT-LLM#1144, #563: LLaMA-13B on 4 x A100, p90 6.4 s with tp4 and 10.2 s with pp2 x tp2, a ratio of 1.6
    words = {"isl": 512, "osl": 512}
    for users in (1, 4):
        tensor = closed(planned("llama-2-13b", "4xa100-80gb-sxm", tp=4, **words), users)
        pipeline = closed(planned("llama-2-13b", "4xa100-80gb-sxm", tp=2, pp=2, **words), users)
        assert tensor.e2e is not None
        assert pipeline.e2e is not None
        assert 1.3 < pipeline.e2e.p90 / tensor.e2e.p90 < 2.0
    tensor = closed(planned("llama-2-13b", "4xa100-80gb-pcie", tp=4, **words), 256)
    pipeline = closed(planned("llama-2-13b", "4xa100-80gb-pcie", tp=1, pp=4, **words), 256)
    assert pipeline.output_tokens_per_s > tensor.output_tokens_per_s


def test_case_8_replicas_serve_more_than_a_pipeline_across_nodes() -> None:
    # vllm#6938: a 70B model on 64 GPUs as tp8 x pp8 gave about 6 times one node's throughput for 8 times the GPUs
    words = {"isl": 1024, "osl": 256}
    across = closed(planned("llama-3.3-70b", "8x8xh100-sxm", tp=8, pp=8, **words), 512)
    inside = closed(planned("llama-3.3-70b", "8x8xh100-sxm", tp=8, **words), 512)
    assert inside.output_tokens_per_s > 8 / 6 * across.output_tokens_per_s


def test_case_11_attention_replicas_hold_what_tensor_parallel_makes_wait() -> None:
    # vllm#51454: attention data parallel 8 with experts parallel holds 7.7 times the KV of tp8 + ep8, which replicates
    # MLA's one latent head. Here the weights of 8 attention replicas take some of it.
    words = {"isl": 2000, "osl": 500}
    tensor = planned("deepseek-v3", "8xh200-sxm", tp=8, ep=8, dcp=1, **words)
    data = planned("deepseek-v3", "8xh200-sxm", tp=1, dp_attn=8, ep=8, **words)
    assert tensor.ledger.kv_tokens is not None
    assert data.ledger.kv_tokens is not None
    assert 5 < data.ledger.kv_tokens / tensor.ledger.kv_tokens < 8
    # A thousand users: one waits for blocks, the other holds them all.
    waits, holds = closed(tensor, 1024, each=4), closed(data, 1024, each=4)
    assert waits.pools[0].kv_peak > 0.99
    assert holds.pools[0].kv_peak < 0.95
    assert waits.ttft is not None
    assert holds.ttft is not None
    assert waits.ttft.mean > 5 * holds.ttft.mean


def test_case_21_one_prefill_and_one_decode_group_starve_away_from_one_to_one() -> None:
    # vllm#11345, Mooncake#5: nothing over two mixed instances unless prefill and decode time per request are near 1:1
    for isl, osl, idle in ((8000, 20, "decode"), (200, 800, "prefill")):
        one = planned("llama-3.3-70b", "8xh100-sxm", tp=4, isl=isl, osl=osl)
        half = replace(one, replicas=1, rank_grid=one.rank_grid[:1])
        mixed = closed(one, 32, each=15)
        apart = closed(half, 32, each=15, prefill=half)
        assert apart.rate_per_s < mixed.rate_per_s
        # Prompts queue before prefill while decode has room; 32 users fill no decode group, but prefill is idle then.
        assert apart.starving == ("decode" if idle == "decode" else "")
        assert idle == "decode" or apart.pools[0].busy < 0.2


def test_case_23_the_verdict_turns_with_the_target() -> None:
    # MoRI-IO on 8 x MI300X and GB200 against B200: which way serves best depends on the tokens/s a user asks for.
    modes = {}
    for tpot in ("100ms", "20ms"):
        found = linkwise.plan("llama-3.3-70b", "2x8xh100-sxm", isl=4000, osl=500, ttft="2s", tpot=tpot).frontier
        assert found is not None
        assert found.choice is not None
        best = found.offers[found.choice]
        assert best.simulated_tpot_s is not None
        assert best.simulated_tpot_s * 1e3 <= float(tpot.removesuffix("ms"))
        modes[tpot] = best.mode
    assert modes == {"100ms": "mixed", "20ms": "separate"}

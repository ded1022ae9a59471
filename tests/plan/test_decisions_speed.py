"""Questions people asked in public threads and the answer that held (decision cases 1, 3, 5, 7, 8)."""

from linkwise.cluster.read import load as cluster
from linkwise.core.layout import Layout
from linkwise.engine import registry
from linkwise.engine.base import Options
from linkwise.model.read import load as model
from linkwise.plan.build import plan
from linkwise.plan.evaluate import evaluate
from linkwise.plan.ledger import ledger
from linkwise.plan.operate import operation
from linkwise.plan.search import search
from linkwise.plan.types import Candidate, Plan
from linkwise.workload.types import Workload

VLLM = registry.get("vllm")


def candidate(name, on, layout, workload, options=None, weight_dtype=None) -> Candidate:
    what, where, options = model(name, weight_dtype=weight_dtype), cluster(on), options or Options()
    memory = ledger(what, where, VLLM, layout, options, workload)
    found = evaluate(what, where, VLLM, options, workload, layout, memory)
    assert isinstance(found, Candidate), found
    return found


def at(name, on, layout, workload, batch, options=None):
    return operation(model(name), layout, VLLM, cluster(on), workload, options or Options(), batch)


def test_case_1_two_tp4_carry_more_than_one_tp8():
    # vllm#8089: Llama-3-70B FP8 on 8 x H100
    load = Workload(isl_tokens=1024, osl_tokens=256)
    four = candidate("llama-3.3-70b", "8xh100-sxm", Layout(tp=4), load, weight_dtype="fp8")
    eight = candidate("llama-3.3-70b", "8xh100-sxm", Layout(tp=8), load, weight_dtype="fp8")
    assert 2 * four.max_rate_per_s > eight.max_rate_per_s


def test_case_3_replicas_hold_the_weights_twice_so_kv_shrinks():
    # vllm#16011: at length 32,000 tp8 has room for more requests than two tp4 together
    load = Workload(isl_tokens=31_000, osl_tokens=1_000)
    four = candidate("llama-3.3-70b", "8xh100-sxm", Layout(tp=4), load)
    eight = candidate("llama-3.3-70b", "8xh100-sxm", Layout(tp=8), load)
    assert eight.requests > 2 * four.requests
    what, where = model("llama-3.3-70b"), cluster("8xh100-sxm")
    found = search(what, where, VLLM, Options(), load)
    made = plan(what, where, VLLM, Options(), load)
    assert isinstance(made, Plan)
    assert found.candidates
    trade = [d for d in made.decisions if "or one" in d.question]
    assert any("full sharded copy of the weights" in b for d in trade for b in d.because)
    assert any("separate KV" in b for d in trade for b in d.because)


def test_case_5_a_7b_model_on_two_pcie_cards_gains_nothing_from_tp2():
    # vllm#732, #367 (2023: no CUDA graphs): tp2 does not beat one card by more than 10 %
    load = Workload(isl_tokens=128, osl_tokens=128)
    for card in ("l4", "a10", "rtx-4090"):
        one = at("llama-2-7b", f"2x{card}", Layout(tp=1), load, 1, Options(eager=True))
        two = at("llama-2-7b", f"2x{card}", Layout(tp=2), load, 1, Options(eager=True))
        assert one.round / two.round < 1.10, card
        # ... and the reason is latency: bytes alone would take less than a tenth of the collectives' time
        (stage,) = two.decode.stages
        sent = 64 * 2 * 4096
        assert stage.comm > 10 * sent / cluster(f"2x{card}").bandwidth(cluster(f"2x{card}").tier((0, 1)))


def test_case_7_pipeline_needs_batch_and_tensor_needs_bandwidth():
    # TensorRT-LLM#1144, #563: LLaMA-13B on 4 x A100, p90 10.2 s with pp2 x tp2 and 6.4 s with tp4
    load = Workload(isl_tokens=512, osl_tokens=512)
    small_pp = at("llama-2-13b", "4xa100-80gb-sxm", Layout(tp=2, pp=2), load, 1)
    small_tp = at("llama-2-13b", "4xa100-80gb-sxm", Layout(tp=4), load, 1)
    assert small_tp.round < small_pp.round
    # over PCIe, with many prompts in flight, activations cost tp more than stages cost pp
    large_pp = at("llama-2-13b", "4xa100-80gb-pcie", Layout(pp=4), load, 128)
    large_tp = at("llama-2-13b", "4xa100-80gb-pcie", Layout(tp=4), load, 128)
    assert large_pp.rate > large_tp.rate


def test_case_8_replicas_of_the_smallest_fitting_group_beat_pipelines_across_nodes():
    # vllm#6938: a 70B model on 64 GPUs as tp8 x pp8 gave about 6x for 8x the GPUs
    load = Workload(isl_tokens=1024, osl_tokens=256)
    across = candidate("llama-3.3-70b", "8x8xh100-sxm", Layout(tp=8, pp=8), load)
    inside = candidate("llama-3.3-70b", "8x8xh100-sxm", Layout(tp=8), load)
    smallest = candidate("llama-3.3-70b", "8x8xh100-sxm", Layout(tp=4), load)
    assert 8 * inside.max_rate_per_s > across.max_rate_per_s
    assert 16 * smallest.max_rate_per_s > across.max_rate_per_s

"""Decision cases about memory: questions people asked in public threads, and the answer that held.

Figures in comments are those of the threads.
"""

import pytest

from linkwise.cluster.read import load as load_cluster
from linkwise.core.layout import Layout
from linkwise.core.units import GiB
from linkwise.engine.base import Options
from linkwise.engine.registry import get
from linkwise.model.read import load as load_model
from linkwise.plan.fit import fit
from linkwise.plan.ledger import ledger
from linkwise.workload.types import Workload

LOAD = Workload(isl_tokens=2048, osl_tokens=256)
PLAIN = Options()


def judge(model, on, *, layout=None, options=PLAIN, load=LOAD, engine="vllm", version=None):
    return fit(load_model(model), load_cluster(on), get(engine, version), options, load, layout=layout)


def test_11_attention_data_parallel_multiplies_the_latent_cache():
    # vllm#51454: MLA on 8 GPUs, 7.7 times the KV capacity: tp replicates the one latent head.
    tensor = judge("deepseek-v3", "8xb200-sxm", layout=Layout(tp=8, ep=8)).ledger
    data = judge("deepseek-v3", "8xb200-sxm", layout=Layout(dp_attn=8, ep=8)).ledger
    one, other = tensor.ranks[0], data.ranks[0]
    assert one.bytes_per_token == other.bytes_per_token == 61 * 576 * 2
    # Eight pools in place of one, each smaller by what is now replicated.
    assert data.kv_tokens / tensor.kv_tokens == pytest.approx(8 * other.kv_bytes / one.kv_bytes, rel=1e-3)
    assert 6.5 < data.kv_tokens / tensor.kv_tokens < 8
    replicated = other.bytes_of("weights") - one.bytes_of("weights")
    attention = other.bytes_of("weights.attn") - one.bytes_of("weights.attn")
    assert attention == max(
        other.bytes_of(f"weights.{role}") - one.bytes_of(f"weights.{role}")
        for role in ("attn", "embed", "head", "mlp", "moe.shared", "norm")
    )
    working = sum(other.bytes_of(name) - one.bytes_of(name) for name in ("activations", "logits"))
    assert one.kv_bytes - other.kv_bytes == replicated + working


def test_15_the_default_is_refused_for_its_activation_peak_and_a_larger_share_is_accepted():
    # vllm#23278: weights 65.97 GiB, KV left -2.14 GiB. vllm#27508: 1.71 GiB of KV at 0.95 with 1,024 batched tokens.
    default = judge("gpt-oss-120b", "1xh100-sxm", version="0.11.0")
    short = default.ledger.shortfall
    assert short.resource == "workspace"
    assert "activation peak" in short.reason
    assert default.ledger.ranks[0].kv_bytes / GiB == pytest.approx(-2.14, abs=0.05)
    works = judge(
        "gpt-oss-120b", "1xh100-sxm", version="0.11.0",
        options=Options(memory_utilization=0.95, max_batched_tokens=1024),
    )  # fmt: skip
    assert works.fits
    # A small rest of 75.2 GiB: 0.15 GiB is 0.2 % of the budget.
    assert works.ledger.ranks[0].kv_bytes / GiB == pytest.approx(1.71, abs=0.16)
    # Today's defaults refuse it as well, and what would help has been run.
    today = judge("gpt-oss-120b", "1xh100-sxm")
    assert today.ledger.shortfall.resource == "workspace"
    assert any("max_seqs" in change for change in today.nearest)


@pytest.mark.parametrize(
    ("on", "layout", "fits", "resource"),
    [
        # DeepSeek-V3#205: out of memory. 671 GB of FP8 leave nothing for the activations of 24 GB cards.
        ("4x8xrtx-4090", Layout(tp=8, pp=4), False, "workspace"),
        # 8 x 80 GB is less than the weights.
        ("8xh800-sxm", None, False, "weights"),
        ("2x8xh100-sxm", None, True, ""),
    ],
)
def test_16_where_deepseek_v3_fits(on, layout, fits, resource):
    found = judge("deepseek-v3", on, layout=layout)
    assert found.fits is fits
    assert (found.ledger.shortfall.resource if found.ledger.shortfall else "") == resource
    if not fits:
        assert found.nearest


def test_17_each_stage_keeps_its_own_layers_and_the_engine_may_refuse():
    # vllm#34076: whole-model bytes per token (98,304) against one stage's memory; 48 layers, 2,048 B a layer and token.
    found = judge(
        "qwen3-coder-30b-a3b-fp8", "2x1xrtx-5090", layout=Layout(pp=2), version="0.15.1",
        options=Options(max_model_len=100_000),
    )  # fmt: skip
    assert [rank.bytes_per_token for rank in found.ledger.ranks] == [24 * 2048, 24 * 2048]
    assert judge("qwen3-coder-30b-a3b-fp8", "1xrtx-5090").ledger.ranks[0].bytes_per_token == 98_304
    assert found.fits
    assert any("34076" in w and "may refuse" in w and "--max-model-len" in w for w in found.ledger.warnings)


def test_18_activations_follow_batched_tokens_not_context_length():
    # vllm#10517, 24 GB card: peaks of 17.06, 17.98 and 15.05 GiB at 20k, 29k and 35k over 14.9888 GiB of weights (and
    # rotary tables), the last with steps of 512 tokens. The 35k peak leaves room for sampling a few requests only.
    model, on, engine = load_model("llama-3.1-8b"), load_cluster("1xrtx-3090"), get("vllm", "0.6.4")
    peaks, resources = [], []
    for length in (20_000, 29_000, 35_000):
        options = Options(max_model_len=length, memory_utilization=0.9, max_seqs=4)
        memory = ledger(model, on, engine, Layout(), options, Workload(isl_tokens=64, osl_tokens=64))
        rank = memory.ranks[0]
        peaks.append((rank.bytes_of("activations") + rank.bytes_of("logits")) / GiB)
        resources.append(memory.shortfall.resource if memory.shortfall else "")
    assert peaks == pytest.approx([17.06 - 14.9888, 17.98 - 14.9888, 15.05 - 14.9888], abs=0.015)
    # 20k accepted, 29k refused for its KV, 35k accepted.
    assert resources == ["", "kv", ""]

"""Engine memory constants against logged memory of real vLLM servers (memory/kv_capacity.csv)."""

import csv
from pathlib import Path

import pytest

from linkwise.engine import registry

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "memory" / "kv_capacity.csv"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the reference data is not beside the repository")
GiB = 2**30

# Vocabulary and hidden size by model name, from the models' config.json.
SHAPES = {
    "gpt-oss-20b": (201_088, 2880),
    "gpt-oss-120b": (201_088, 2880),
    "Llama-3.3-70B-FP8": (128_256, 8192),
    "Llama-3.1-8B": (128_256, 4096),
    "Qwen3-0.6B": (151_936, 1024),
    "Qwen3-32B": (151_936, 5120),
}


def rows(source):
    with DATA.open(encoding="utf-8") as file:
        return [r for r in csv.DictReader(file) if source in r["source"]]


def sampler_gib(engine, vocab, hidden, requests, tokens):
    memory = engine.memory
    return (memory.sampler_copies * requests * vocab * 4 + memory.sampler_hidden * tokens * hidden * 2) / GiB


def test_sampler_peak_of_vllm_on_h100():
    # The rows the two constants were fitted on, all with the H100 defaults (1024 requests, 8192 tokens); logged to
    # 0.01 GiB. Mistral-Small logs 2.12 GiB and follows another rule: it is left out, as the facts say.
    engine = registry.get("vllm")
    seen = 0
    for row in rows("llm-d-planner"):
        if row["model"] not in SHAPES or not row["activation_gib"]:
            continue
        vocab, hidden = SHAPES[row["model"]]
        assert sampler_gib(engine, vocab, hidden, 1024, 8192) == pytest.approx(float(row["activation_gib"]), abs=0.012)
        seen += 1
    assert seen == 7


def test_non_torch_memory_of_vllm_on_h100():
    engine = registry.get("vllm")
    seen = 0
    for row in rows("llm-d-planner"):
        if not row["non_torch_gib"]:
            continue
        expected = engine.memory.runtime_bytes + (engine.memory.collective_bytes if row["tp"] == "2" else 0)
        assert expected / GiB == pytest.approx(float(row["non_torch_gib"]), abs=0.012)
        seen += 1
    assert seen == 8


def test_the_refusal_of_gpt_oss_120b_was_never_fitted():
    # vllm#23278: weights 65.9651 GiB on one H100 at the then default 0.9 leave -2.14 GiB for KV.
    (row,) = rows("#23278")
    engine = registry.get("vllm", "0.11")
    left = engine.defaults.memory_utilization * 79.18 - float(row["weights_gib_per_gpu"])
    left -= engine.memory.runtime_bytes / GiB + sampler_gib(engine, *SHAPES["gpt-oss-120b"], 1024, 8192)
    assert left == pytest.approx(float(row["kv_avail_gib_per_gpu"]), abs=0.1)


def test_old_vllm_layer_peak_grows_with_batched_tokens():
    # vllm#10517, Llama-3.1-8B: 17.06 and 17.98 GiB peak over 14.9888 GiB of weights at 20,000 and 29,000 tokens.
    engine = registry.get("vllm", "0.6.4")
    memory = engine.memory
    per_token = 2 * (memory.activation_hidden * 4096 + memory.activation_intermediate * 14_336)
    assert per_token == 110_592
    for tokens, peak in ((20_000, 17.06), (29_000, 17.98)):
        assert 14.9888 + tokens * per_token / GiB == pytest.approx(peak, abs=0.02)
    assert memory.runtime_bytes / GiB == pytest.approx(0.35, abs=0.005)

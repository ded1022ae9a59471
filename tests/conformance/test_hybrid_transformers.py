"""Families whose collection configs transformers cannot read as they are: the same architecture, put as it reads it.

test_models_transformers.py covers every family whose configs it can read. MTP layers are not compared: transformers
does not build them with the model.
"""

from collections import Counter
from typing import Any

import pytest
from tests.conformance import roles

from linkwise.model.read import from_config

transformers = pytest.importorskip("transformers", reason="the oracle extra is not installed")

_needs_data = pytest.mark.skipif(not roles.MODELS.is_dir(), reason=roles.ABSENT)

# Kimi-Linear's fields at sizes of our own; the checkpoint counts layers from 1.
KIMI_LINEAR: dict[str, Any] = {
    "model_type": "kimi_linear",
    "torch_dtype": "bfloat16",
    "vocab_size": 1000,
    "hidden_size": 192,
    "intermediate_size": 320,
    "moe_intermediate_size": 80,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 48,
    "q_lora_rank": None,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "num_experts": 12,
    "num_experts_per_token": 3,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "num_expert_group": 1,
    "topk_group": 1,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "linear_attn_config": {
        "full_attn_layers": [4],
        "kda_layers": [1, 2, 3, 5],
        "head_dim": 16,
        "num_heads": 8,
        "short_conv_kernel_size": 4,
    },
}


def _merged(counts: dict[str, int]) -> dict[str, int]:
    """Both kinds of mixer under one word: transformers calls KDA and MLA modules self_attn alike."""
    result = Counter(counts)
    result["attn"] += result.pop("linear", 0)
    return dict(result)


def _built(module: Any, head: int) -> dict[str, int]:
    """Parameters by role of a text model without its head, and a head of that size."""
    return roles.counted(module) | {"head": head}


def test_kimi_linear() -> None:
    model = from_config(KIMI_LINEAR, None, name="kimi-linear", source="test")
    assert _merged(roles.ours(model)) == _merged(roles.theirs(KIMI_LINEAR))


@_needs_data
def test_deepseek_ref_is_deepseek_v4_with_its_defaults() -> None:
    config, quant = roles.load_pair(roles.MODELS / "sgl-project--DeepSeek-V4-Flash-FP8_config.json")
    model = from_config(config, quant, name="deepseek_ref", source="test")
    assert roles.ours(model) == roles.theirs(config | {"model_type": "deepseek_v4"})


@_needs_data
def test_minimax_m3_text_only() -> None:
    import torch

    config, quant = roles.load_pair(roles.MODELS / "MiniMaxAI--MiniMax-M3_config.json")
    built = transformers.AutoConfig.for_model(**(config | {"model_type": "minimax_m3_vl_text"}))
    with torch.device("meta"):
        text = transformers.AutoModel.from_config(built)
    model = from_config(config, quant, name="m3", source="test")
    assert roles.ours(model) == _built(text, config["vocab_size"] * config["hidden_size"])


@_needs_data
@pytest.mark.parametrize("heads", [64, 96])
def test_step_flash_with_its_sliding_heads_named(heads: int) -> None:
    """The collection's config lacks the sliding layers' head count; with it named, transformers and we agree."""
    import torch

    config, quant = roles.load_pair(roles.MODELS / "stepfun-ai--Step-3.7-Flash_config.json")
    config["attention_other_setting"] = {"num_attention_heads": heads}
    text = {k: v for k, v in config.items() if k not in ("architectures", "model_type", "num_experts")}
    text |= {"n_routed_experts": config["num_experts"]}
    built = transformers.AutoConfig.for_model("step3p7", text_config=text)
    with torch.device("meta"):
        language = transformers.AutoModel.from_config(built).language_model
    model = from_config(config, quant, name="step", source="test")
    assert roles.ours(model) == _built(language, config["vocab_size"] * config["hidden_size"])


@_needs_data
def test_gemma_4_as_the_small_models_have_it() -> None:
    """Keys shared by late layers, twice as wide MLPs there, a per-layer embedding, clipped vision projections."""
    config, _ = roles.load_pair(roles.MODELS / "google--gemma-4-26B-A4B_config.json")
    config["text_config"] |= {
        "num_kv_shared_layers": 6,
        "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 64,
        "vocab_size_per_layer_input": 5000,
        "enable_moe_block": False,
    }
    config["vision_config"] |= {"use_clipped_linears": True}
    model = from_config(config, None, name="gemma", source="test")
    assert roles.ours(model) == roles.theirs(config)

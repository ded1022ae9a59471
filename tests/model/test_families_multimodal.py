"""Language models inside multimodal configs, with their vision towers, at released sizes.

Totals as the model cards state them; role by role they are compared with transformers in
tests/conformance/test_models_written.py.
"""

from typing import Any

import pytest

from linkwise.core.errors import NotUnderstood
from linkwise.model.read import from_config
from linkwise.model.types import Model

GEMMA_3_27B: dict[str, Any] = {
    "model_type": "gemma3",
    "torch_dtype": "bfloat16",
    "boi_token_index": 255_999,
    "image_token_index": 262_144,
    "mm_tokens_per_image": 256,
    "text_config": {
        "model_type": "gemma3_text",
        "head_dim": 128,
        "hidden_size": 5376,
        "intermediate_size": 21_504,
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "query_pre_attn_scalar": 168,
        "sliding_window": 1024,
    },
    "vision_config": {
        "model_type": "siglip_vision_model",
        "hidden_size": 1152,
        "image_size": 896,
        "intermediate_size": 4304,
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "patch_size": 14,
        "vision_use_head": False,
    },
}
# The released config is flat: the language model's fields stand at the top.
QWEN_2_5_VL_7B: dict[str, Any] = {
    "model_type": "qwen2_5_vl",
    "torch_dtype": "bfloat16",
    "vocab_size": 152_064,
    "hidden_size": 3584,
    "intermediate_size": 18_944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128_000,
    "max_window_layers": 28,
    "sliding_window": 32_768,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "vision_config": {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "in_chans": 3,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "temporal_patch_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "tokens_per_second": 2,
    },
}

LLAMA_4_SCOUT: dict[str, Any] = {
    "model_type": "llama4",
    "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "llama4_text",
        "vocab_size": 202_048,
        "hidden_size": 5120,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16_384,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_local_experts": 16,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 1,
        "attention_chunk_size": 8192,
        "max_position_embeddings": 10_485_760,
    },
    "vision_config": {
        "model_type": "llama4_vision_model",
        "hidden_size": 1408,
        "image_size": 336,
        "intermediate_size": 5632,
        "num_attention_heads": 16,
        "num_channels": 3,
        "num_hidden_layers": 34,
        "patch_size": 14,
        "pixel_shuffle_ratio": 0.5,
        "projector_input_dim": 4096,
        "projector_output_dim": 4096,
        "vision_output_dim": 4096,
    },
}


def read(config: dict[str, Any], **changes: Any) -> Model:
    return from_config(config | changes, None, name="test", source="test")


def _named(model: Model, name: str) -> tuple[int, ...]:
    return next(t.shape for t in model.tensors if t.name == name)


def test_gemma_3_27b() -> None:
    model = read(GEMMA_3_27B)
    assert model.parameters / 1e9 == pytest.approx(27.43, abs=0.005)
    assert (model.tied, model.max_len) == (True, 131_072)
    # One layer in six attends to everything: 10 of 62, keys and values x 16 heads x 128.
    full = [s.per_token for layer in model.layers for s in layer.states if s.window is None]
    assert full == [2 * 16 * 128] * 10
    assert _named(model, "language_model.model.layers.61.self_attn.k_norm") == (128,)
    assert _named(model, "vision_tower.vision_model.embeddings.position_embedding") == (64 * 64, 1152)
    assert _named(model, "multi_modal_projector.mm_input_projection_weight") == (1152, 5376)


def test_llama_4_scout() -> None:
    model = read(LLAMA_4_SCOUT)
    assert model.parameters / 1e9 == pytest.approx(108.64, abs=0.005)
    tower = [t for t in model.tensors if t.role.startswith("vision")]
    # 34 layers: attention 4·1408², feed-forward 2·1408·5632, biases 5·1408 + 5632, norms 4·1408. Around them: class
    # and 577 positions, patches 1408·588, two norms, adapter 4096·5632 and 4096², projection 5120·4096.
    layer = 4 * 1408**2 + 2 * 1408 * 5632 + 5 * 1408 + 5632 + 4 * 1408
    around = 1408 * (1 + 577 + 588 + 4) + 4096 * 5632 + 4096**2 + 5120 * 4096
    assert sum(t.parameters for t in tower) == 34 * layer + around


def test_qwen_2_5_vl_7b() -> None:
    model = read(QWEN_2_5_VL_7B)
    assert model.parameters / 1e9 == pytest.approx(8.29, abs=0.005)
    assert not model.notes
    # Keys and values x 4 heads x 128 x 28 layers, in two bytes.
    assert 2 * sum(s.per_token for layer in model.layers for s in layer.states) == 2 * 2 * 4 * 128 * 28
    assert _named(model, "model.layers.27.self_attn.q_proj.bias") == (3584,)
    assert _named(model, "visual.blocks.31.mlp.gate_proj") == (3420, 1280)
    # Four patches of 1280 make one token.
    assert _named(model, "visual.merger.mlp.2") == (3584, 5120)


def test_the_same_model_with_its_language_model_in_a_section() -> None:
    """As transformers writes it since 4.52."""
    outer = ("model_type", "torch_dtype", "tie_word_embeddings", "vision_config")
    text = {k: v for k, v in QWEN_2_5_VL_7B.items() if k not in outer} | {"model_type": "qwen2_5_vl_text"}
    nested = {k: v for k, v in QWEN_2_5_VL_7B.items() if k in outer} | {"text_config": text}
    assert read(nested).tensors == read(QWEN_2_5_VL_7B).tensors


@pytest.mark.parametrize(
    "config", [GEMMA_3_27B, QWEN_2_5_VL_7B, LLAMA_4_SCOUT], ids=lambda config: config["model_type"]
)
def test_what_is_not_known_of_a_tower_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(NotUnderstood, match="num_spirals"):
        read(config, vision_config=config["vision_config"] | {"num_spirals": 3})

"""Dense families at their released sizes: parameters as their cards state them, keys and values by hand.

Every family is compared with transformers tensor by tensor in tests/conformance/test_models_written.py.
"""

from typing import Any

import pytest

from linkwise.core.errors import NotUnderstood
from linkwise.model.read import from_config
from linkwise.model.types import Model

GEMMA_2_9B: dict[str, Any] = {
    "model_type": "gemma2",
    "torch_dtype": "bfloat16",
    "vocab_size": 256_000,
    "hidden_size": 3584,
    "intermediate_size": 14_336,
    "num_hidden_layers": 42,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "sliding_window": 4096,
    "sliding_window_size": 4096,
    "query_pre_attn_scalar": 256,
    "max_position_embeddings": 8192,
}
GEMMA_3_1B: dict[str, Any] = {
    "model_type": "gemma3_text",
    "torch_dtype": "bfloat16",
    "vocab_size": 262_144,
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "num_hidden_layers": 26,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "rope_local_base_freq": 10_000,
    "max_position_embeddings": 32_768,
}
PHI_4: dict[str, Any] = {
    "model_type": "phi3",
    "torch_dtype": "bfloat16",
    "vocab_size": 100_352,
    "hidden_size": 5120,
    "intermediate_size": 17_920,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "num_key_value_heads": 10,
    "attention_bias": False,
    "sliding_window": None,
    "original_max_position_embeddings": 16_384,
    "max_position_embeddings": 16_384,
}
OLMO_2_32B: dict[str, Any] = {
    "model_type": "olmo2",
    "torch_dtype": "bfloat16",
    "vocab_size": 100_352,
    "hidden_size": 5120,
    "intermediate_size": 27_648,
    "num_hidden_layers": 64,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "max_position_embeddings": 4096,
}
SMOLLM_3: dict[str, Any] = {
    "model_type": "smollm3",
    "torch_dtype": "bfloat16",
    "vocab_size": 128_256,
    "hidden_size": 2048,
    "intermediate_size": 11_008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "layer_types": ["full_attention"] * 36,
    "no_rope_layers": [1, 1, 1, 0] * 9,
    "no_rope_layer_interval": 4,
    "max_window_layers": 28,
    "sliding_window": None,
    "use_sliding_window": False,
    "max_position_embeddings": 65_536,
}
COMMAND_R: dict[str, Any] = {
    "model_type": "cohere",
    "torch_dtype": "float16",
    "vocab_size": 256_000,
    "hidden_size": 8192,
    "intermediate_size": 22_528,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "use_qk_norm": False,
    "logit_scale": 0.0625,
    "max_position_embeddings": 8192,
}
COMMAND_R7B: dict[str, Any] = {
    "model_type": "cohere2",
    "torch_dtype": "bfloat16",
    "vocab_size": 256_000,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "layer_switch": 4,
    "order_of_interleaved_layers": "local_attn_first",
    "sliding_window": 4096,
    "cache_implementation": "hybrid",
    "use_embedding_sharing": True,
    "use_gated_activation": True,
    "use_parallel_block": True,
    "use_parallel_embedding": False,
    "logit_scale": 0.25,
    "max_position_embeddings": 132_096,
}

# As released, bookkeeping aside.
PHI_4_MINI = PHI_4 | {
    "vocab_size": 200_064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 32,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
    "sliding_window": 262_144,
    "full_attn_mod": 1,
    "interpolate_factor": 1,
    "lm_head_bias": False,
    "mlp_bias": False,
    "partial_rotary_factor": 0.75,
}
GLM_4_32B: dict[str, Any] = {
    "model_type": "glm4",
    "torch_dtype": "bfloat16",
    "vocab_size": 151_552,
    "hidden_size": 6144,
    "intermediate_size": 23_040,
    "num_hidden_layers": 61,
    "num_attention_heads": 48,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "attention_bias": False,
    "max_position_embeddings": 32_768,
}
SEED_OSS_36B: dict[str, Any] = {
    "model_type": "seed_oss",
    "torch_dtype": "bfloat16",
    "vocab_size": 155_136,
    "hidden_size": 5120,
    "intermediate_size": 27_648,
    "num_hidden_layers": 64,
    "num_attention_heads": 80,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "attention_bias": True,
    "attention_out_bias": False,
    "residual_dropout": 0.1,
    "max_position_embeddings": 524_288,
}
EXAONE_4_32B: dict[str, Any] = {
    "model_type": "exaone4",
    "torch_dtype": "bfloat16",
    "vocab_size": 102_400,
    "hidden_size": 5120,
    "intermediate_size": 27_392,
    "num_hidden_layers": 64,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "sliding_window": 4096,
    "sliding_window_pattern": "LLLG",
    "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 16,
    "max_position_embeddings": 131_072,
}
STARCODER_2_15B: dict[str, Any] = {
    "model_type": "starcoder2",
    "torch_dtype": "bfloat16",
    "vocab_size": 49_152,
    "hidden_size": 6144,
    "intermediate_size": 24_576,
    "num_hidden_layers": 40,
    "num_attention_heads": 48,
    "num_key_value_heads": 4,
    "sliding_window": 4096,
    "use_bias": True,
    "tie_word_embeddings": False,
    "max_position_embeddings": 16_384,
}


def read(config: dict[str, Any], **changes: Any) -> Model:
    return from_config(config | changes, None, name="test", source="test")


def kv_elements(model: Model, *, windowed: bool = False) -> int:
    """Elements a token adds: in layers that keep every token, or in those with a window."""
    found = (state for layer in model.layers for state in layer.states)
    return sum(state.per_token for state in found if (state.window is not None) == windowed)


@pytest.mark.parametrize(
    ("config", "billions"),
    [  # as the model cards state them
        (GEMMA_2_9B, 9.24),
        (GEMMA_3_1B, 1.00),
        (PHI_4, 14.66),
        (PHI_4_MINI, 3.84),
        (OLMO_2_32B, 32.23),
        (SMOLLM_3, 3.08),
        (COMMAND_R, 34.98),
        (COMMAND_R7B, 8.03),
        (GLM_4_32B, 32.57),
        (SEED_OSS_36B, 36.15),
        (EXAONE_4_32B, 32.00),
        (STARCODER_2_15B, 15.96),
    ],
)
def test_parameters(config: dict[str, Any], billions: float) -> None:
    model = read(config)
    assert model.parameters / 1e9 == pytest.approx(billions, abs=0.005)
    assert not model.notes


@pytest.mark.parametrize(
    ("config", "full", "windowed"),
    [  # keys and values x heads x width x layers of each kind
        (GEMMA_2_9B, 2 * 8 * 256 * 21, 2 * 8 * 256 * 21),
        (GEMMA_3_1B, 2 * 1 * 256 * 4, 2 * 1 * 256 * 22),
        (PHI_4, 2 * 10 * 128 * 40, 0),
        (PHI_4_MINI, 0, 2 * 8 * 128 * 32),  # a window of 262,144 tokens, twice the model's length
        (OLMO_2_32B, 2 * 8 * 128 * 64, 0),
        (SMOLLM_3, 2 * 4 * 128 * 36, 0),
        (COMMAND_R, 2 * 64 * 128 * 40, 0),
        (COMMAND_R7B, 2 * 8 * 128 * 8, 2 * 8 * 128 * 24),
        (GLM_4_32B, 2 * 2 * 128 * 61, 0),
        (SEED_OSS_36B, 2 * 8 * 128 * 64, 0),
        (EXAONE_4_32B, 2 * 8 * 128 * 16, 2 * 8 * 128 * 48),
        (STARCODER_2_15B, 0, 2 * 4 * 128 * 40),
    ],
)
def test_keys_and_values_of_a_token(config: dict[str, Any], full: int, windowed: int) -> None:
    model = read(config)
    assert kv_elements(model) == full
    assert kv_elements(model, windowed=True) == windowed


def test_where_layers_slide() -> None:
    gemma2, gemma3, cohere2 = (read(c) for c in (GEMMA_2_9B, GEMMA_3_1B, COMMAND_R7B))
    assert [layer.attends for layer in gemma2.layers[:3]] == [4096, None, 4096]
    assert [i for i, layer in enumerate(gemma3.layers) if layer.mixer == "full"] == [5, 11, 17, 23]
    assert {layer.attends for layer in gemma3.layers} == {512, None}
    assert [layer.mixer for layer in cohere2.layers[:4]] == ["sliding"] * 3 + ["full"]


def test_flops_of_a_gemma_3_token() -> None:
    model = read(GEMMA_3_1B)
    # 4 heads x (256 + 256) x 2 a pair; a sliding layer attends to its last 512 keys.
    assert {layer.attn_flops_per_pair for layer in model.layers} == {4 * 512 * 2}
    assert sum(layer.context_flops(10_000) for layer in model.layers) == 4 * 512 * 2 * (4 * 10_000 + 22 * 512)


def test_fused_projections_are_slices_of_one_stored_tensor() -> None:
    model = read(PHI_4)
    qkv = [t for t in model.tensors if t.name == "model.layers.0.self_attn.qkv_proj"]
    assert [(t.role, t.shape, t.split.value, t.units) for t in qkv] == [
        ("attn.q", (5120, 5120), "column", 40),
        ("attn.k", (1280, 5120), "kv", 10),
        ("attn.v", (1280, 5120), "kv", 10),
    ]
    halves = [t.role for t in model.tensors if t.name == "model.layers.0.mlp.gate_up_proj"]
    assert halves == ["mlp.gate", "mlp.up"]


def test_a_fused_tensor_has_one_set_of_fixed_scales() -> None:
    own = {"quant_method": "fp8", "activation_scheme": "static"}
    model = read(PHI_4, quantization_config=own)
    scales = [t.scale_bytes for t in model.tensors if t.name == "model.layers.0.self_attn.qkv_proj"]
    # One weight scale and one input scale, float32 each.
    assert scales == [8, 0, 0]


def test_what_gemma_3_leaves_to_its_class_is_said() -> None:
    """The released 4B's text section: heads, head size, vocabulary and length are Gemma3TextConfig's."""
    small = {k: GEMMA_3_1B[k] for k in ("model_type", "torch_dtype")} | {
        "hidden_size": 2560,
        "intermediate_size": 10_240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    model = read(small)
    assert (model.heads, model.kv_heads, model.head_dim, model.vocab, model.max_len) == (8, 4, 256, 262_208, 131_072)
    assert any("Gemma3TextConfig" in note and "head_dim 256" in note for note in model.notes)


@pytest.mark.parametrize(
    ("config", "change"),
    [
        (GEMMA_3_1B, {"use_bidirectional_attention": True}),
        (GEMMA_2_9B, {"sliding_window": None}),
        (PHI_4, {"attention_bias": True}),
        (COMMAND_R7B, {"use_parallel_block": False}),
        (COMMAND_R7B, {"order_of_interleaved_layers": "global_attn_first"}),
        (OLMO_2_32B, {"num_experts": 8}),
    ],
)
def test_what_is_not_known_is_refused_by_name(config: dict[str, Any], change: dict[str, Any]) -> None:
    with pytest.raises(NotUnderstood, match=next(iter(change))):
        read(config, **change)

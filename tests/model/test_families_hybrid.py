"""Granite 4, Falcon-H1, Jamba and Phi-3.5-MoE at released sizes: totals as cards state them, states and FLOPs by hand.

They are compared with transformers in tests/conformance/test_models_written.py.
"""

from typing import Any

import pytest

from linkwise.core.errors import NotUnderstood
from linkwise.model.read import from_config
from linkwise.model.types import Model

GRANITE_4_H_SMALL: dict[str, Any] = {
    "model_type": "granitemoehybrid",
    "torch_dtype": "bfloat16",
    "vocab_size": 100_352,
    "hidden_size": 4096,
    "intermediate_size": 768,
    "shared_intermediate_size": 1536,
    "num_hidden_layers": 40,
    "layer_types": ["attention" if i in {5, 15, 25, 35} else "mamba" for i in range(40)],
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 72,
    "num_experts_per_tok": 10,
    "mamba_n_heads": 128,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 256,
    "embedding_multiplier": 12,
    "position_embedding_type": "nope",
    "tie_word_embeddings": True,
    "max_position_embeddings": 131_072,
}
FALCON_H1_34B: dict[str, Any] = {
    "model_type": "falcon_h1",
    "torch_dtype": "bfloat16",
    "vocab_size": 261_120,
    "hidden_size": 5120,
    "intermediate_size": 21_504,
    "num_hidden_layers": 72,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "mamba_d_ssm": 4096,
    "mamba_n_heads": 32,
    "mamba_d_head": 128,
    "mamba_d_state": 256,
    "mamba_n_groups": 2,
    "mamba_d_conv": 4,
    "mamba_rms_norm": False,
    "ssm_multipliers": [0.2, 0.2, 0.2, 0.2, 0.2],
    "mlp_expansion_factor": 8,
    "tie_word_embeddings": False,
    "max_position_embeddings": 262_144,
}
PHI_3_5_MOE: dict[str, Any] = {
    "model_type": "phimoe",
    "torch_dtype": "bfloat16",
    "vocab_size": 32_064,
    "hidden_size": 4096,
    "intermediate_size": 6400,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 16,
    "num_experts_per_tok": 2,
    "attention_bias": True,
    "lm_head_bias": True,
    "sliding_window": 131_072,
    "max_position_embeddings": 131_072,
}

JAMBA_MINI: dict[str, Any] = {
    "model_type": "jamba",
    "torch_dtype": "bfloat16",
    "vocab_size": 65_536,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "attn_layer_period": 8,
    "attn_layer_offset": 4,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_dt_rank": 256,
    "tie_word_embeddings": False,
    "max_position_embeddings": 262_144,
}


def read(config: dict[str, Any], **changes: Any) -> Model:
    return from_config(config | changes, None, name="test", source="test")


@pytest.mark.parametrize(
    ("config", "billions"),
    [(GRANITE_4_H_SMALL, 32.21), (FALCON_H1_34B, 33.64), (PHI_3_5_MOE, 41.87), (JAMBA_MINI, 51.57)],
)
def test_parameters(config: dict[str, Any], billions: float) -> None:
    assert read(config).parameters / 1e9 == pytest.approx(billions, abs=0.005)


def test_granite_4_keeps_keys_in_four_layers_and_states_in_the_others() -> None:
    model = read(GRANITE_4_H_SMALL)
    assert [layer.index for layer in model.layers if layer.mixer == "full"] == [5, 15, 25, 35]
    # Keys and values x 8 heads x 128.
    assert [s.per_token for layer in model.layers for s in layer.states if s.per_token] == [2 * 8 * 128] * 4
    x, b_and_c, recurrent = model.layers[0].states
    # The last three inputs of 8192 channels that divide with 128 heads, and of B and C of the one group, 128 each.
    assert (x.per_request, x.heads) == (8192 * 3, 128)
    assert (b_and_c.per_request, b_and_c.heads) == (2 * 128 * 3, 1)
    assert (recurrent.per_request, recurrent.heads, recurrent.dtype) == (128 * 64 * 128, 128, "bfloat16")
    assert any("recurrent state" in note for note in model.notes)
    assert model.moe is not None
    assert (model.moe.experts, model.moe.top_k, model.moe.intermediate) == (72, 10, 768)


def test_gate_and_up_of_granite_s_experts_are_one_stored_tensor() -> None:
    layer = [t for t in read(GRANITE_4_H_SMALL).tensors if t.layer == 0 and t.name.endswith("input_linear")]
    assert [(t.name.removeprefix("model.layers.0."), t.role, t.shape, t.count) for t in layer] == [
        ("block_sparse_moe.input_linear", "moe.experts.gate", (768, 4096), 72),
        ("block_sparse_moe.input_linear", "moe.experts.up", (768, 4096), 72),
        ("shared_mlp.input_linear", "moe.shared.gate", (1536, 4096), 1),
        ("shared_mlp.input_linear", "moe.shared.up", (1536, 4096), 1),
    ]


def test_granite_4_without_experts_is_dense() -> None:
    model = read(GRANITE_4_H_SMALL, num_local_experts=0)
    assert model.moe is None
    assert {layer.ffn for layer in model.layers} == {"dense"}
    assert sum(t.parameters for t in model.tensors if t.role.startswith("mlp.")) == 40 * 3 * 1536 * 4096


def test_each_layer_of_falcon_h1_has_both_mixers() -> None:
    model = read(FALCON_H1_34B)
    assert {layer.mixers for layer in model.layers} == {("full", "mamba")}
    kv, x, b_and_c, recurrent = model.layers[0].states
    assert kv.per_token == 2 * 4 * 128
    # 4096 inner channels, B and C of two groups of 256.
    assert (x.per_request, b_and_c.per_request, b_and_c.heads) == (4096 * 3, 2 * 2 * 256 * 3, 2)
    assert recurrent.per_request == 32 * 128 * 256
    layer = model.layers[0]
    # Convolution 5120 channels x 4 taps x 2; recurrence 5 for each element of 32 states of 128 x 256; 20 heads attend.
    assert layer.mixer_flops_per_token == 5120 * 4 * 2 + 5 * 32 * 128 * 256
    assert layer.context_flops(1000) == 2 * 20 * (128 + 128) * 1000


def test_jamba_has_states_a_channel_and_attention_in_one_layer_of_eight() -> None:
    model = read(JAMBA_MINI)
    assert [layer.index for layer in model.layers if layer.mixer == "full"] == [4, 12, 20, 28]
    assert [layer.ffn for layer in model.layers[:2]] == ["dense", "moe"]
    conv, recurrent = model.layers[0].states
    # 8192 channels: their last three inputs, and 16 elements of state each.
    assert (conv.per_request, recurrent.per_request, recurrent.heads) == (8192 * 3, 8192 * 16, 8192)
    # Convolution 8192 channels x 4 taps x 2; recurrence 5 for each element of the state.
    assert model.layers[0].mixer_flops_per_token == 8192 * 4 * 2 + 5 * 8192 * 16
    # in_proj 16384·4096, x_proj 288·8192, dt_proj 8192·256 + 8192, out_proj 4096·8192, A_log 8192·16, conv 8192·4 and
    # 8192, D 8192, norms 256 + 16 + 16.
    one = 16384 * 4096 + 288 * 8192 + 8192 * 257 + 4096 * 8192 + 8192 * (16 + 5 + 1) + 288
    assert sum(t.parameters for t in model.tensors if t.role.startswith("mamba.")) == 28 * one


def test_what_jamba_s_decay_is_stored_in_is_no_matter_of_quantisation() -> None:
    own = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    by_role = {t.role: t.dtype for t in read(JAMBA_MINI, quantization_config=own).tensors}
    assert (by_role["mamba.decay"], by_role["mamba.x"]) == ("bfloat16", "float8_e4m3")


def test_phi_3_5_moe_has_biases_on_norms_attention_and_head() -> None:
    tensors = {t.name: t.shape for t in read(PHI_3_5_MOE).tensors}
    assert tensors["lm_head.bias"] == (32_064,)
    assert tensors["model.norm.bias"] == (4096,)
    assert tensors["model.layers.31.input_layernorm.bias"] == (4096,)
    assert tensors["model.layers.0.self_attn.o_proj.bias"] == (4096,)


@pytest.mark.parametrize(
    ("config", "change"),
    [
        (GRANITE_4_H_SMALL, {"layer_types": None}),
        (GRANITE_4_H_SMALL, {"layer_types": ["spiral"] * 40}),
        (GRANITE_4_H_SMALL, {"mamba_n_heads": 96}),
        (FALCON_H1_34B, {"mamba_use_mlp": False}),
        (JAMBA_MINI, {"attn_layer_period": None}),
        (JAMBA_MINI, {"sliding_window": 4096}),
    ],
)
def test_what_is_not_known_is_refused_by_name(config: dict[str, Any], change: dict[str, Any]) -> None:
    with pytest.raises(NotUnderstood, match=next(iter(change))):
        read(config, **change)

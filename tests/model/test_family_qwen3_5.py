"""Qwen3.5: weights, states and FLOPs of a small config, by hand. Role totals of the released sizes are compared with
transformers in tests/conformance."""

from typing import Any

import pytest

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Fields
from linkwise.model.families import qwen3_5

BASE: dict[str, Any] = {
    "torch_dtype": "bfloat16",
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32",
    "intermediate_size": 48,
}
MOE = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 20,
    "mtp_num_hidden_layers": 1,
}


def _read(**changes: Any) -> Any:
    fields = Fields({**BASE, **changes}, "test")
    draft = qwen3_5.read(fields)
    fields.refuse_leftovers()
    return draft


def _parameters(draft: Any, prefix: str) -> int:
    return sum(t.parameters for t in draft.tensors if t.role.startswith(prefix))


def test_a_delta_net_layer_has_the_gated_delta_net_s_weights() -> None:
    # q, k: 2 heads x 8 each; v: 4 x 16 = 64; so qkv 16 + 16 + 64 = 96 channels.
    # qkv 96·32, z 64·32, b and a 4·32 each, conv 96·4, dt_bias 4, A_log 4, norm 16, out 32·64; three layers.
    one = 96 * 32 + 64 * 32 + 2 * 4 * 32 + 96 * 4 + 4 + 4 + 16 + 32 * 64
    assert one == 7832
    assert _parameters(_read(), "linear.") == 3 * one


def test_the_query_projection_of_full_attention_makes_its_gate_too() -> None:
    q = next(t for t in _read().tensors if t.role == "attn.q")
    assert q.shape == (2 * 4 * 8, 32)


def test_states_of_a_delta_net_layer_are_per_request_and_float32_where_the_config_says_so() -> None:
    conv, recurrent = _read().layers[0].states
    # 96 channels x (4 - 1) inputs; 4 value heads x an 8 x 16 matrix.
    assert (conv.name, conv.per_request, conv.per_token, conv.dtype, conv.heads) == ("conv", 288, 0, "bfloat16", 2)
    assert (recurrent.name, recurrent.per_request, recurrent.dtype) == ("recurrent", 512, "float32")
    (kv,) = _read().layers[3].states
    # 2 heads x 8, keys and values.
    assert (kv.name, kv.per_token, kv.per_request, kv.window) == ("kv", 32, 0, None)


def test_flops_beside_the_weights() -> None:
    linear, full = _read().layers[0], _read().layers[3]
    # Convolution: 96 channels x 4 taps x (multiply, add). Recurrence: 4 heads x 8 x 16 x (decay 1, old value 2, write
    # 2, read 2).
    assert linear.mixer_flops_per_token == 96 * 4 * 2 + 4 * 8 * 16 * 7
    assert linear.context_flops(1000) == 0
    # Scores and values: 4 heads x (8 + 8) x 2 a pair.
    assert full.attn_flops_per_pair == 128
    assert full.context_flops(1000) == 128_000


def test_experts_share_one_gated_expert_and_the_mtp_layer_repeats_a_full_attention_layer() -> None:
    draft = _read(**MOE)
    assert draft.moe.top_k == 2
    assert draft.moe.shared_experts == 1
    # Router 6·32, six experts of 3·12·32, shared expert 3·20·32, its gate 32.
    one = 6 * 32 + 6 * 3 * 12 * 32 + 3 * 20 * 32 + 32
    assert _parameters(draft, "moe.") == 4 * one
    # MTP: fc 32 x 64, norms of both inputs, final norm; attention q 64·32, k and v 16·32, o 32·32, q/k norms 8; two
    # norms of the layer.
    attention = 64 * 32 + 2 * 16 * 32 + 32 * 32 + 2 * 8
    assert _parameters(draft, "mtp.") == 32 * 64 + 3 * 32 + attention + one + 2 * 32
    assert {t.layer for t in draft.tensors if t.role.startswith("mtp.")} == {4}
    assert draft.mtp_layers == 1


def test_layer_kinds_follow_the_interval_where_they_are_not_listed() -> None:
    draft = _read(layer_types=None, full_attention_interval=2)
    assert [layer.mixer for layer in draft.layers] == ["linear", "full", "linear", "full"]


@pytest.mark.parametrize(
    "change",
    [
        {"mtp_use_dedicated_embeddings": True, "mtp_num_hidden_layers": 1},
        {"attn_output_gate": False},
        {"layer_types": ["windmill"] * 4},
        {"linear_num_latent_heads": 3},
    ],
)
def test_what_would_change_weights_in_unknown_ways_is_refused_by_name(change: dict[str, Any]) -> None:
    with pytest.raises(NotUnderstood, match=next(iter(change))):
        _read(**change)

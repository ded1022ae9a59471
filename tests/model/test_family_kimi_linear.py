"""Kimi Linear and Kimi-K3: weights, states and FLOPs of a small config, by hand. Shapes follow K3's headers."""

from typing import Any

import pytest

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Fields
from linkwise.model.families import kimi_linear

BASE: dict[str, Any] = {
    "torch_dtype": "bfloat16",
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "kv_lora_rank": 16,
    "q_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "intermediate_size": 48,
    "num_experts": 6,
    "num_experts_per_token": 2,
    "num_shared_experts": 2,
    "moe_intermediate_size": 12,
    "first_k_dense_replace": 1,
    "linear_attn_config": {
        "full_attn_layers": [2],
        "kda_layers": [1, 3],
        "head_dim": 8,
        "num_heads": 3,
        "short_conv_kernel_size": 4,
    },
}
K3 = {
    "mla_use_output_gate": True,
    "routed_expert_hidden_size": 16,
    "latent_moe_use_norm": True,
    "attn_res_block_size": 2,
    "linear_attn_config": {**BASE["linear_attn_config"], "use_full_rank_gate": True},
}


def _read(**changes: Any) -> Any:
    fields = Fields({**BASE, **changes}, "test")
    draft = kimi_linear.read(fields)
    fields.refuse_leftovers()
    return draft


def _parameters(draft: Any, prefix: str) -> int:
    return sum(t.parameters for t in draft.tensors if t.role.startswith(prefix))


def test_layers_are_counted_from_one() -> None:
    assert [layer.mixer for layer in _read().layers] == ["linear", "mla", "linear"]


def test_kda_weights() -> None:
    # Three heads of 8: q, k, v, o 24·32 each, three convolutions 24·4, decay 8·32 + 24·8 with 24 biases, A_log padded
    # from 3 to 4, beta 3·32, norm 8; the gate 8·32 + 24·8 (low rank) or 24·32 (full).
    rest = 4 * 24 * 32 + 3 * 24 * 4 + 8 * 32 + 24 * 8 + 24 + 4 + 3 * 32 + 8
    assert _parameters(_read(), "linear.") == 2 * (rest + 8 * 32 + 24 * 8)
    assert _parameters(_read(**K3), "linear.") == 2 * (rest + 24 * 32)


def test_mla_weights() -> None:
    # q_a 12·32 and norm 12, q_b 3·12·12, kv_a (16 + 4)·32 and norm 16, kv_b 3·16·16, o 32·24; K3 adds a gate 24·32.
    plain = 12 * 32 + 12 + 36 * 12 + 20 * 32 + 16 + 48 * 16 + 32 * 24
    assert _parameters(_read(), "attn.") == plain
    assert _parameters(_read(**K3), "attn.") == plain + 24 * 32


def test_k3_s_experts_work_in_a_latent_space() -> None:
    draft = _read(**K3)
    assert (draft.moe.hidden, draft.moe.shared_experts) == (16, 2)
    # Router 6·32 + 6, experts 3·12·16, down 16·32, up 32·16, norm 16, shared 3·24·32; two layers.
    assert _parameters(draft, "moe.") == 2 * (198 + 6 * 3 * 12 * 16 + 2 * 16 * 32 + 16 + 3 * 24 * 32)


def test_k3_s_attention_over_residuals_is_two_pairs_a_layer_and_one_at_the_end() -> None:
    extra = _parameters(_read(**K3), "norm.") - _parameters(_read(), "norm.")
    assert extra == (3 * 2 + 1) * (32 + 32)


def test_states_and_flops() -> None:
    kda, mla, _ = _read().layers
    conv, recurrent = kda.states
    assert (conv.per_request, recurrent.per_request, recurrent.dtype) == (3 * 24 * 3, 3 * 8 * 8, "float32")
    assert kda.mixer_flops_per_token == 3 * 24 * 4 * 2 + 3 * 8 * 8 * 7
    (latent,) = mla.states
    assert (latent.name, latent.per_token, latent.heads) == ("latent", 20, 1)
    assert mla.attn_flops_per_pair == 2 * 3 * (12 + 8)


def test_a_layer_named_twice_or_never_is_refused() -> None:
    linear = {**BASE["linear_attn_config"], "kda_layers": [1, 2]}
    with pytest.raises(NotUnderstood, match="kda_layers"):
        _read(linear_attn_config=linear)


def test_the_vision_tower() -> None:
    config = {
        "vision_config": {
            "vt_hidden_size": 8,
            "qkv_hidden_size": 12,
            "vt_intermediate_size": 20,
            "text_hidden_size": 32,
            "patch_size": 2,
            "init_pos_emb_height": 4,
            "init_pos_emb_width": 4,
            "init_pos_emb_time": 4,
            "merge_kernel_size": [2, 2],
            "vt_num_hidden_layers": 2,
            "vt_num_attention_heads": 2,
            "norm_type": "rmsnorm",
            "mlp_type": "mlp2",
            "mm_projector_type": "patchmergerv2",
            "pos_emb_type": "divided_fixed",
        }
    }
    draft = _read()
    before = len(draft.tensors)
    kimi_linear.vision(Fields(config, "test"), draft)
    added = draft.tensors[before:]
    assert all(t.role.startswith("vision.") for t in added)
    # Patches 8·3·2·2, positions 4·4·8; a block: norms 2·8, wqkv 36·8, wo 8·12, MLP 2·20·8; last norm 8; four merged
    # patches 32 wide: 32·32, 32·32, norm 32.
    block = 16 + 36 * 8 + 96 + 320
    assert sum(t.parameters for t in added) == 96 + 128 + 2 * block + 8 + 2 * 1024 + 32

"""Nemotron-H: weights, states and FLOPs of a small config, by hand."""

from typing import Any

import pytest

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Fields
from linkwise.model.families import nemotron_h

BASE: dict[str, Any] = {
    "torch_dtype": "bfloat16",
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "hybrid_override_pattern": "ME*-",
    "mamba_num_heads": 8,
    "mamba_head_dim": 4,
    "ssm_state_size": 16,
    "n_groups": 2,
    "conv_kernel": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "n_shared_experts": 1,
    "moe_shared_expert_intermediate_size": 20,
}


def _read(**changes: Any) -> Any:
    fields = Fields({**BASE, **changes}, "test")
    draft = nemotron_h.read(fields)
    fields.refuse_leftovers()
    return draft


def _parameters(draft: Any, prefix: str) -> int:
    return sum(t.parameters for t in draft.tensors if t.role.startswith(prefix))


def test_each_sign_of_the_pattern_is_a_layer() -> None:
    kinds = [(layer.mixer, layer.ffn) for layer in _read().layers]
    assert kinds == [("mamba", "none"), ("none", "moe"), ("full", "none"), ("none", "dense")]


def test_a_listed_pattern_reads_like_the_signs() -> None:
    listed = _read(hybrid_override_pattern=None, layers_block_type=["mamba", "moe", "attention", "mlp"])
    assert listed.layers == _read().layers
    assert listed.tensors == _read().tensors


def test_mamba_weights() -> None:
    # Inner width 8·4 = 32; convolved x, B, C: 32 + 2·2·16 = 96; in_proj makes gate 32, the 96 and dt 8.
    expected = (32 + 96 + 8) * 32 + 96 * 4 + 96 + 3 * 8 + 32 + 32 * 32
    assert _parameters(_read(), "mamba.") == expected == 5912


def test_mlps_have_no_gate() -> None:
    draft = _read()
    assert _parameters(draft, "mlp.") == 2 * 48 * 32
    # Router 6·32 and its bias 6, six experts 2·12·32, shared 2·20·32.
    assert _parameters(draft, "moe.") == 6 * 32 + 6 + 6 * 2 * 12 * 32 + 2 * 20 * 32


def test_a_latent_size_narrows_the_experts_and_what_is_sent_to_them() -> None:
    draft = _read(moe_latent_size=16)
    assert draft.moe.hidden == 16
    # Experts between 16 and 12; down to 16 and up to 32 outside them; router and shared expert keep the full width.
    expected = 6 * 32 + 6 + 6 * 2 * 12 * 16 + 2 * 16 * 32 + 2 * 20 * 32
    assert _parameters(draft, "moe.") == expected


def test_states_and_flops() -> None:
    mamba, _, attention, _ = _read(mamba_ssm_cache_dtype="float32").layers
    x, b_and_c, recurrent = mamba.states
    # 96 channels: 32 of 8 heads, and B and C of two groups of 16.
    assert (x.per_request, x.heads, x.dtype) == (32 * 3, 8, "bfloat16")
    assert (b_and_c.per_request, b_and_c.heads) == (64 * 3, 2)
    assert (recurrent.per_request, recurrent.dtype, recurrent.heads) == (8 * 4 * 16, "float32", 8)
    # Convolution 96·4·2; per state element decay 1, add dt·B·x 2, read 2.
    assert mamba.mixer_flops_per_token == 768 + 5 * 512
    assert attention.states[0].per_token == 2 * 2 * 8
    assert attention.attn_flops_per_pair == 2 * 4 * (8 + 8)


def test_mtp_layers_follow_their_own_pattern() -> None:
    draft = _read(num_nextn_predict_layers=1, mtp_hybrid_override_pattern="*E")
    # First: norms of both inputs and a 32 x 64 projection; each: its norm; last: a final norm.
    attention = 32 * 32 + 2 * 16 * 32 + 32 * 32
    moe = 6 * 32 + 6 + 6 * 2 * 12 * 32 + 2 * 20 * 32
    assert _parameters(draft, "mtp.") == 2 * 32 + 32 * 64 + attention + moe + 2 * 32 + 32
    names = {t.name for t in draft.tensors if t.role.startswith("mtp.")}
    assert {"mtp.layers.0.eh_proj", "mtp.layers.1.final_layernorm", "mtp.layers.1.mixer.experts.*.up_proj"} <= names


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"hybrid_override_pattern": "ME*?"}, r"\?"),
        ({"num_hidden_layers": 5}, "num_hidden_layers"),
        ({"hybrid_override_pattern": None}, "hybrid_override_pattern"),
        ({"sliding_window": 64}, "sliding_window"),
    ],
)
def test_refusals_name_the_field(change: dict[str, Any], word: str) -> None:
    with pytest.raises(NotUnderstood, match=word):
        _read(**change)

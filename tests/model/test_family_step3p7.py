"""Step-Flash: weights of a small config, by hand, and the guesses for abbreviated configs."""

from typing import Any

from linkwise.model.draft import Fields
from linkwise.model.families import step3p7

BASE: dict[str, Any] = {
    "torch_dtype": "bfloat16",
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    "num_nextn_predict_layers": 1,
    "sliding_window": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "attention_other_setting": {"num_attention_heads": 6, "num_attention_groups": 2, "head_dim": 8},
    "use_head_wise_attn_gate": True,
    "intermediate_size": 48,
    "moe_layers_enum": "1",
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "share_expert_dim": 20,
}


def _read(**changes: Any) -> Any:
    fields = Fields({**BASE, **changes}, "test")
    draft = step3p7.read(fields)
    fields.refuse_leftovers()
    return draft


def _parameters(draft: Any, prefix: str, layer: int) -> int:
    return sum(t.parameters for t in draft.tensors if t.role.startswith(prefix) and t.layer == layer)


def test_sliding_layers_have_their_own_query_heads_and_every_head_a_gate() -> None:
    draft = _read()
    # q and o 8·32 a head, k and v 16·32, norms 8 + 8, a gate of 32 a head.
    assert _parameters(draft, "attn.", 0) == 2 * 4 * 8 * 32 + 2 * 16 * 32 + 16 + 4 * 32
    assert _parameters(draft, "attn.", 1) == 2 * 6 * 8 * 32 + 2 * 16 * 32 + 16 + 6 * 32
    assert draft.layers[1].attn_flops_per_pair == 4 * 6 * 8
    assert draft.heads == 6
    assert draft.notes == []


def test_experts_and_the_shared_one() -> None:
    draft = _read()
    assert _parameters(draft, "mlp.", 0) == 3 * 48 * 32
    assert _parameters(draft, "moe.", 1) == 6 * 32 + 6 + 6 * 3 * 12 * 32 + 3 * 20 * 32


def test_an_mtp_layer_has_a_dense_mlp_and_its_own_head() -> None:
    sliding = 2 * 6 * 8 * 32 + 2 * 16 * 32 + 16 + 6 * 32
    # Norms: both inputs, two of the layer, one before the head.
    assert _parameters(_read(), "mtp.", 2) == 32 * 64 + sliding + 3 * 48 * 32 + 5 * 32 + 100 * 32


def test_what_an_abbreviated_config_lacks_is_guessed_and_named() -> None:
    draft = _read(attention_other_setting=None, use_head_wise_attn_gate=None, layer_types=BASE["layer_types"][:2])
    assert draft.heads == 4
    for word in ("attention_other_setting", "use_head_wise_attn_gate", "layer_types"):
        assert any(word in note for note in draft.notes), word


def test_the_released_shape_is_taken_to_have_the_released_heads() -> None:
    # 96 query heads in sliding layers beside 64: stepfun-ai/Step-3.5-Flash and 3.7-Flash, config.json.
    draft = _read(
        attention_other_setting=None,
        hidden_size=4096,
        num_attention_heads=64,
        num_hidden_layers=45,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"] * 16,
        num_nextn_predict_layers=3,
    )
    assert draft.heads == 96

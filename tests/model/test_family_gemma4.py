"""Gemma 4: weights and states of a small config, by hand."""

from typing import Any

import pytest

from linkwise.core.errors import InputError, NotUnderstood
from linkwise.model.draft import Fields
from linkwise.model.families import gemma4

BASE: dict[str, Any] = {
    "torch_dtype": "bfloat16",
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_global_key_value_heads": 1,
    "head_dim": 8,
    "global_head_dim": 16,
    "attention_k_eq_v": True,
    "intermediate_size": 48,
    "hidden_size_per_layer_input": 0,
}
MOE = {"enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 12}


def _read(**changes: Any) -> Any:
    fields = Fields({**BASE, **changes}, "test")
    draft = gemma4.read(fields)
    fields.refuse_leftovers()
    return draft


def _parameters(draft: Any, prefix: str, layer: int | None = None) -> int:
    return sum(t.parameters for t in draft.tensors if t.role.startswith(prefix) and layer in (None, t.layer))


def test_global_layers_have_wider_heads_and_no_value_projection() -> None:
    draft = _read()
    # Sliding: q 32·32, k and v 16·32, o 32·32, norms 8 and 8. Global: q 64·32, k 16·32, o 32·64, norms 16 and 16.
    assert _parameters(draft, "attn.", 0) == 2 * 32 * 32 + 2 * 16 * 32 + 16
    assert _parameters(draft, "attn.", 1) == 2 * 64 * 32 + 16 * 32 + 32


def test_keys_and_values_are_both_kept_even_where_they_share_a_projection() -> None:
    sliding, full = _read().layers
    assert (sliding.states[0].per_token, sliding.states[0].window, sliding.attends) == (2 * 2 * 8, 64, 64)
    assert (full.states[0].per_token, full.states[0].window, full.attends) == (2 * 1 * 16, None, None)
    assert (sliding.keys(1000), full.keys(1000)) == (64, 1000)
    assert full.attn_flops_per_pair == 4 * 4 * 16


def test_embedding_and_head_are_one_tensor_by_default() -> None:
    draft = _read()
    assert draft.tied
    assert _parameters(draft, "head") == 0


def test_experts_stand_beside_the_dense_mlp() -> None:
    draft = _read(**MOE)
    assert _parameters(draft, "mlp.") == 2 * 3 * 48 * 32
    # Router 6·32, a scale per feature and per expert, six experts.
    assert _parameters(draft, "moe.") == 2 * (6 * 32 + 32 + 6 + 6 * 3 * 12 * 32)
    # Four norms and a scalar, three more with experts; the final norm.
    assert _parameters(draft, "norm.") == 2 * (7 * 32 + 1) + 32
    assert _parameters(_read(), "norm.") == 2 * (4 * 32 + 1) + 32


def test_layers_that_reuse_keys_have_none_of_their_own() -> None:
    draft = _read(num_kv_shared_layers=1, use_double_wide_mlp=True)
    assert draft.layers[1].states == ()
    assert _parameters(draft, "attn.", 1) == 2 * 64 * 32 + 16
    assert _parameters(draft, "mlp.", 1) == 3 * 96 * 32


def test_the_per_layer_embedding_of_small_models() -> None:
    draft = _read(hidden_size_per_layer_input=4, vocab_size_per_layer_input=50)
    # 2 layers x 4 features: table 50·8, projection 8·32, norm 4; a layer: 4·32 down, 32·4 up, norm 32.
    assert _parameters(draft, "embed.per_layer") == 400
    assert _parameters(draft, "mlp.per_layer") == 8 * 32 + 2 * 2 * 4 * 32
    assert _parameters(draft, "norm.per_layer") == 4 + 2 * 32


def test_a_layer_kind_not_known_is_refused() -> None:
    with pytest.raises(NotUnderstood, match="layer_types"):
        _read(layer_types=["sliding_attention", "spiral"])


# As transformers writes it: what a global layer has of its own is a change to that layer.
WRITTEN = {
    "global_head_dim": None,
    "num_global_key_value_heads": None,
    "per_layer_config": {"01": {"head_dim": 16, "num_key_value_heads": 1}},
}


def test_changes_of_single_layers_are_the_same_model() -> None:
    written, plain = _read(**WRITTEN), _read()
    assert (written.tensors, written.layers) == (plain.tensors, plain.layers)


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"02": {"head_dim": 16}}, "02"), ({"one": {}}, "one"), ({"01": {"num_spirals": 2}}, "num_spirals")],
)
def test_a_change_of_no_layer_or_of_nothing_known_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises((InputError, NotUnderstood), match=named):
        _read(**{**WRITTEN, "per_layer_config": changes})


@pytest.mark.parametrize("changes", ["01", [1], {"01": 3}])
def test_changes_that_are_no_object_are_refused(changes: Any) -> None:
    with pytest.raises(InputError, match="per_layer_config"):
        _read(**{**WRITTEN, "per_layer_config": changes})

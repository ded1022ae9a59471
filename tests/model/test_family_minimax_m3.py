"""MiniMax-M3: weights, states and FLOPs of a small config, by hand."""

from typing import Any

import pytest

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Fields
from linkwise.model.families import minimax_m3

SPARSE = {
    "use_sparse_attention": True,
    "sparse_attention_freq": [0, 1],
    "sparse_disable_index_value": [0, 1],
    "sparse_block_size": 4,
    "sparse_topk_blocks": 3,
    "sparse_num_index_heads": 2,
    "sparse_index_dim": 8,
}
BASE: dict[str, Any] = {
    "torch_dtype": "bfloat16",
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "dense_intermediate_size": 48,
    "intermediate_size": 12,
    "shared_intermediate_size": 20,
    "n_shared_experts": 1,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "moe_layer_freq": [0, 1],
    "use_qk_norm": True,
    "sparse_attention_config": SPARSE,
}


def _read(**changes: Any) -> Any:
    fields = Fields({**BASE, **changes}, "test")
    draft = minimax_m3.read(fields)
    fields.refuse_leftovers()
    return draft


def _parameters(draft: Any, prefix: str, layer: int) -> int:
    return sum(t.parameters for t in draft.tensors if t.role.startswith(prefix) and t.layer == layer)


def test_weights_of_a_dense_and_of_a_sparse_layer() -> None:
    draft = _read()
    attention = 2 * 32 * 32 + 2 * 16 * 32 + 16
    assert _parameters(draft, "attn.", 0) == attention
    # Index queries 2·8·32, one index key 8·32, a norm of 8 for each.
    assert _parameters(draft, "attn.", 1) == attention + 16 * 32 + 8 * 32 + 16
    assert _parameters(draft, "mlp.", 0) == 3 * 48 * 32
    assert _parameters(draft, "moe.", 1) == 6 * 32 + 6 + 6 * 3 * 12 * 32 + 3 * 20 * 32


def test_a_sparse_layer_attends_the_chosen_blocks_and_scores_every_key() -> None:
    full, sparse = _read().layers
    kv, index = sparse.states
    assert (full.mixer, sparse.mixer) == ("full", "sparse")
    assert (kv.per_token, index.name, index.per_token, index.heads) == (32, "index", 8, 1)
    assert (sparse.keys(5), sparse.keys(1000)) == (5, 12)
    # 12 keys of 4·4·8 FLOPs; 1000 scores of 2 heads x (2·8 and a comparison).
    assert sparse.context_flops(1000) == 12 * 128 + 1000 * 34
    assert full.context_flops(1000) == 128_000


def test_announced_mtp_modules_are_noted_not_counted() -> None:
    draft = _read(num_mtp_modules=7, num_nextn_predict_layers=1)
    assert draft.mtp_layers == 0
    assert any("num_mtp_modules" in note for note in draft.notes)


def test_index_values_are_refused() -> None:
    with pytest.raises(NotUnderstood, match="index values"):
        _read(sparse_attention_config={**SPARSE, "sparse_disable_index_value": [0, 0]})

"""DeepSeek-V4: weights, states and FLOPs of a small config, by hand. Shapes follow the published headers."""

from typing import Any

import numpy as np
import pytest

from linkwise.core.errors import NotUnderstood
from linkwise.core.quantity import Quantity, value_of
from linkwise.model.draft import Fields
from linkwise.model.families import deepseek_v4

BASE: dict[str, Any] = {
    "torch_dtype": "bfloat16",
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "compress_ratios": [0, 4, 128, 0],
    "num_nextn_predict_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 80,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 12,
    "o_lora_rank": 6,
    "o_groups": 2,
    "sliding_window": 16,
    "index_n_heads": 2,
    "index_head_dim": 8,
    "index_topk": 5,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 12,
    "num_hash_layers": 1,
    "hc_mult": 4,
    "expert_dtype": "fp4",
}


def _read(**changes: Any) -> Any:
    fields = Fields({**BASE, **changes}, "test")
    draft = deepseek_v4.read(fields)
    fields.refuse_leftovers()
    return draft


def _parameters(draft: Any, prefix: str, layer: int) -> int:
    return sum(t.parameters for t in draft.tensors if t.role.startswith(prefix) and t.layer == layer)


# wq_a 12·32 and norm 12, wq_b 320·12, wkv 80·32 and norm 80, wo_a 12·160 (two groups of 160), wo_b 32·12, four sinks.
ATTENTION = 12 * 32 + 12 + 320 * 12 + 80 * 32 + 80 + 12 * 160 + 32 * 12 + 4
# Hyper-connections: (2 + 4)·4 = 24 mixes from 4·32 features, their base, three scales; twice a layer; two norms.
NORMS = 2 * (24 * 128 + 24 + 3) + 2 * 32


def test_weights_by_compression() -> None:
    draft = _read()
    assert _parameters(draft, "attn.", 0) == ATTENTION
    # 128: keys and gates 80·32 each, a position table 128·80, a norm.
    assert _parameters(draft, "attn.", 2) == ATTENTION + 2 * 80 * 32 + 128 * 80 + 80
    # 4: two overlapping series, so twice as wide; the indexer has queries 2·8·12, head weights 2·32 and a compressor of
    # its own, 16 wide.
    compressor = 2 * 160 * 32 + 4 * 160 + 80
    indexer = 16 * 12 + 2 * 32 + 2 * 16 * 32 + 4 * 16 + 8
    assert _parameters(draft, "attn.", 1) == ATTENTION + compressor + indexer
    assert _parameters(draft, "norm.", 1) == NORMS


def test_the_first_layers_choose_experts_by_token_id() -> None:
    draft = _read()
    experts = 6 * 32 + 7 * 3 * 12 * 32
    assert _parameters(draft, "moe.", 0) == experts + 100 * 2
    assert _parameters(draft, "moe.", 1) == experts + 6
    table = next(t for t in draft.tensors if t.name == "layers.0.ffn.gate.tid2eid")
    assert (table.dtype, table.bytes) == ("int64", 100 * 2 * 8)


def test_the_mtp_layer() -> None:
    # e_proj and h_proj 32·32, three norms, the streams' collapse 4·128 + 4 + 1, and a window-only block.
    block = ATTENTION + NORMS + 6 * 32 + 6 + 7 * 3 * 12 * 32
    assert _parameters(_read(), "mtp.", 3) == 2 * 32 * 32 + 3 * 32 + 517 + block


def test_each_cache_is_a_state_with_its_stride_window_and_storage() -> None:
    window_only, sparse, heavy = _read().layers
    (kv,) = window_only.states
    # 64 FP8 + 16 bfloat16 + one scale + one byte of padding = 98 bytes: 18 beside the 80 elements.
    assert (kv.name, kv.per_token, kv.window, kv.dtype) == ("kv", 80, 16, "float8_e4m3")
    assert kv.per_token + kv.extra_bytes_per_token == 64 + 2 * 16 + 2
    assert [(s.name, s.per_token, s.stride, s.window) for s in heavy.states] == [
        ("kv", 80, 1, 16),
        ("compressed", 80, 128, None),
        ("compressor", 160, 1, 128),
    ]
    assert [(s.name, s.per_token, s.stride, s.window) for s in sparse.states] == [
        ("kv", 80, 1, 16),
        ("compressed", 80, 4, None),
        ("compressor", 320, 1, 8),
        ("index", 8, 4, None),
        ("compressor", 32, 1, 8),
    ]


def test_the_published_entry_is_584_bytes() -> None:
    # vLLM's and FlashMLA's record: 448 FP8 + 64 bfloat16 + 7 scales + 1.
    kv = _read(head_dim=512, qk_rope_head_dim=64).layers[0].states[0]
    assert kv.per_token + kv.extra_bytes_per_token == 584


def test_attended_keys_and_flops() -> None:
    window_only, sparse, heavy = _read().layers
    assert [x.keys(1024) for x in (window_only, sparse, heavy)] == [16, 16 + 5, 16 + 8]
    assert [x.keys(12) for x in (window_only, sparse, heavy)] == [12, 12 + 3, 12 + 0]
    pair = 4 * 4 * 80
    assert heavy.context_flops(1024) == 24 * pair
    # 256 index keys, two heads of 2·8 + 3.
    assert sparse.context_flops(1024) == 21 * pair + 256 * 2 * 19


def test_figures_of_a_layer_are_the_same_recorded_plain_and_in_arrays() -> None:
    for layer in _read().layers:
        plain = [layer.context_flops(context) for context in (12, 1024)]
        recorded = [value_of(layer.context_flops(Quantity.given("context", context))) for context in (12, 1024)]
        assert plain == recorded == layer.context_flops(np.array([12, 1024])).tolist()


def test_storage_the_config_does_not_spell_out() -> None:
    draft = _read()
    assert draft.role_schemes["moe.experts"] == "mxfp4"
    assert draft.role_schemes["attn.compressor"] == ""
    assert draft.fp8_scale_dtype == "float8_e8m0"
    assert "moe.experts" not in _read(expert_dtype=None).role_schemes


@pytest.mark.parametrize(
    "change",
    [
        {"compress_ratios": [0, 4, 64]},
        {"num_key_value_heads": 2},
        {"expert_dtype": "int3"},
        {"o_groups": 3},
    ],
)
def test_refusals_name_the_field(change: dict[str, Any]) -> None:
    with pytest.raises(NotUnderstood, match=next(iter(change))):
        _read(**change)


def test_kinds_of_layers_as_transformers_writes_them_are_the_same_model() -> None:
    written = _read(
        compress_ratios=None,
        layer_types=["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
        compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": 128},
        mlp_layer_types=["hash_moe", "moe", "moe"],
        num_hash_layers=None,
        qk_rope_head_dim=None,
        partial_rotary_factor=0.2,  # 16 of 80
    )
    assert (written.tensors, written.layers) == (_read().tensors, _read().layers)


def test_other_compressions_than_the_released_ones_are_refused() -> None:
    kinds = ["compressed_sparse_attention"] * 3
    with pytest.raises(NotUnderstood, match="compress_ratios"):
        _read(compress_ratios=None, layer_types=kinds, compress_rates={"compressed_sparse_attention": 8})

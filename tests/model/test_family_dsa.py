"""DeepSeek-V3.2 and GLM-5: weights, states and FLOPs of a small config, by hand."""

from typing import Any

import pytest

from linkwise.core.errors import NotUnderstood
from linkwise.core.layout import Layout
from linkwise.model import catalogue
from linkwise.model.draft import Fields
from linkwise.model.families import deepseek_v32, glm_moe_dsa
from linkwise.model.families.common import kv_state, latent_state
from linkwise.model.read import from_config
from linkwise.plan.inventory import token_bytes

BASE: dict[str, Any] = {
    "torch_dtype": "bfloat16",
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 12,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "index_n_heads": 2,
    "index_head_dim": 6,
    "index_topk": 10,
    "intermediate_size": 48,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 12,
    "num_nextn_predict_layers": 1,
}
# q_a 12·32 and norm 12, q_b 4·12·12, kv_a 20·32 and norm 16, kv_b 4·16·16, o 32·32.
MLA = 12 * 32 + 12 + 48 * 12 + 20 * 32 + 16 + 64 * 16 + 32 * 32
# Index queries 2·6·12 from the query latent, keys 6·32, a layer norm of 6 (weight and bias), head weights 2·32.
INDEXER = 12 * 12 + 6 * 32 + 2 * 6 + 2 * 32
# Router 8·32 and its bias, eight experts, a shared one.
MOE = 8 * 32 + 8 + 9 * 3 * 12 * 32


def _read(module: Any, **changes: Any) -> Any:
    fields = Fields({**BASE, **changes}, "test")
    draft = module.read(fields)
    fields.refuse_leftovers()
    return draft


def _parameters(draft: Any, prefix: str, layer: int) -> int:
    return sum(t.parameters for t in draft.tensors if t.role.startswith(prefix) and t.layer == layer)


def test_weights_of_a_layer() -> None:
    draft = _read(deepseek_v32)
    assert _parameters(draft, "attn.", 0) == MLA + INDEXER
    assert _parameters(draft, "mlp.", 0) == 3 * 48 * 32
    assert _parameters(draft, "moe.", 1) == MOE
    assert (draft.moe.groups, draft.moe.top_groups) == (4, 2)


def test_the_mtp_layer_of_deepseek_stores_embedding_and_head_and_glm_s_does_not() -> None:
    # eh_proj 32·64; norms: both inputs, two of the layer, one before the head.
    one = 32 * 64 + MLA + INDEXER + MOE + 5 * 32
    assert _parameters(_read(deepseek_v32), "mtp.", 3) == one + 2 * 100 * 32
    assert _parameters(_read(glm_moe_dsa), "mtp.", 3) == one


def test_latent_and_index_keys_are_states_of_their_own() -> None:
    latent, index = _read(deepseek_v32).layers[0].states
    assert (latent.name, latent.per_token, latent.dtype) == ("latent", 20, "kv")
    # vLLM: one FP8 byte a feature and a float32 scale.
    assert (index.name, index.per_token, index.dtype, index.extra_bytes_per_token) == ("index", 6, "float8_e4m3", 4)


def test_attention_stops_growing_at_the_top_k_and_scoring_does_not() -> None:
    layer = _read(deepseek_v32).layers[0]
    assert (layer.keys(7), layer.keys(1000)) == (7, 10)
    # A pair: 2·4·(12 + 8). A score: 2 heads x (2·6 + ReLU, weight, sum).
    assert layer.context_flops(1000) == 10 * 160 + 1000 * 2 * 15


def test_glm_s_shared_layers_have_neither_indexer_nor_index_keys() -> None:
    draft = _read(glm_moe_dsa, indexer_types=["full", "shared", "full"])
    assert _parameters(draft, "attn.", 1) == MLA
    assert [s.name for s in draft.layers[1].states] == ["latent"]
    assert draft.layers[1].context_flops(1000) == 10 * 160


def test_the_schedule_of_indexers_where_kinds_are_not_listed() -> None:
    # Every fourth layer after the offset: transformers' GlmMoeDsaConfig, and the layers GLM-5.2's checkpoint has.
    draft = _read(glm_moe_dsa, num_hidden_layers=11, index_topk_freq=4, index_skip_topk_offset=3)
    full = [i for i, layer in enumerate(draft.layers) if len(layer.states) == 2]
    assert full == [0, 1, 2, 6, 10]
    assert len(_read(glm_moe_dsa, index_topk_pattern="FSF").layers[1].states) == 1


def test_a_first_layer_without_an_indexer_is_refused() -> None:
    with pytest.raises(NotUnderstood, match="first layer"):
        _read(glm_moe_dsa, indexer_types=["shared", "full", "full"])


def test_an_fp8_entry_below_a_sparse_index_is_656_bytes() -> None:
    # vLLM's fp8_ds_mla (v1/kv_cache_interface.py: block_size x 656): 512 FP8 values, 4 float32 scales, 64 bfloat16
    # rotary values = 512 + 16 + 128. The indexer keeps 128 + 4. DeepSeek-V3.2: 61 layers of both.
    entry = catalogue.find("deepseek-v3.2")
    assert entry is not None
    model = from_config(entry.config, name="v3.2", source="catalogue")
    sizes = {}
    for dtype in ("float8_e4m3", "bfloat16"):
        sizes[dtype] = sum(token_bytes(s, Layout(tp=8), dtype) for layer in model.layers for s in layer.states)
    assert sizes == {"float8_e4m3": 61 * (656 + 132), "bfloat16": 61 * (2 * 576 + 132)}
    assert sizes["float8_e4m3"] == 48_068


def test_a_plain_latent_has_no_such_entry() -> None:
    # DeepSeek-V3: 576 values, one byte each in FP8 (vLLM's dense MLA cache has one scale a tensor).
    assert token_bytes(latent_state(512, 64), Layout(), "float8_e4m3") == 576


def test_nvfp4_keys_and_values_carry_a_scale_for_each_16() -> None:
    # vLLM: head_size // 2 + head_size // 16 bytes a head: 64 + 8 for 128, keys and values, 8 heads over 4 ranks.
    assert token_bytes(kv_state(8, 128), Layout(tp=4), "float4_e2m1") == 2 * 2 * (64 + 8)

"""MiMo-V2-Flash: weights and states of a small config, by hand."""

from typing import Any

from linkwise.model.draft import Fields
from linkwise.model.families import mimo_v2_flash

BASE: dict[str, Any] = {
    "torch_dtype": "bfloat16",
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "hybrid_layer_pattern": [0, 1],
    "moe_layer_freq": [0, 1],
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 12,
    "v_head_dim": 8,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 12,
    "swa_v_head_dim": 8,
    "sliding_window": 64,
    "sliding_window_size": 64,
    "attention_chunk_size": 64,
    "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False,
    "intermediate_size": 48,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
}


def _read(config: dict[str, Any] = BASE) -> Any:
    fields = Fields(config, "test")
    draft = mimo_v2_flash.read(fields)
    fields.refuse_leftovers()
    return draft


def _parameters(draft: Any, prefix: str, layer: int) -> int:
    return sum(t.parameters for t in draft.tensors if t.role.startswith(prefix) and t.layer == layer)


def test_layers_differ_in_kv_heads_and_sinks() -> None:
    draft = _read()
    # q 48·32, k 12·32 a head, v 8·32 a head, o 32·32; sliding layers have a sink a query head.
    assert _parameters(draft, "attn.", 0) == 48 * 32 + 20 * 32 + 32 * 32
    assert _parameters(draft, "attn.", 1) == 48 * 32 + 2 * 20 * 32 + 32 * 32 + 4
    full, sliding = draft.layers
    assert (full.states[0].per_token, full.states[0].heads, full.attends) == (20, 1, None)
    assert (sliding.states[0].per_token, sliding.states[0].window, sliding.attends) == (40, 64, 64)
    assert full.attn_flops_per_pair == 2 * 4 * (12 + 8)


def test_mtp_layers_are_the_released_three_and_the_guess_is_noted() -> None:
    draft = _read()
    assert draft.mtp_layers == 3
    assert any("MTP" in note for note in draft.notes)
    # eh_proj 32·64, five norms, sliding attention, a dense MLP.
    one = 32 * 64 + 5 * 32 + 48 * 32 + 2 * 20 * 32 + 32 * 32 + 4 + 3 * 48 * 32
    for layer in (2, 3, 4):
        assert _parameters(draft, "mtp.", layer) == one


def test_the_config_transformers_writes_is_the_same_model_and_says_what_its_class_knows() -> None:
    """It lists kinds of layers and leaves the sliding layers' sizes to its class: twice the KV heads, and sinks."""
    own = ("hybrid_layer_pattern", "moe_layer_freq", "sliding_window_size", "attention_chunk_size")
    written = {k: v for k, v in BASE.items() if k not in own and not k.startswith(("swa_", "add_"))}
    written |= {"layer_types": ["full_attention", "sliding_attention"], "mlp_layer_types": ["dense", "sparse"]}
    again, draft = _read(written), _read()
    assert (again.tensors, again.layers) == (draft.tensors, draft.layers)
    fields = Fields(written, "test")
    mimo_v2_flash.read(fields)
    assert fields.assumed == [
        "left to transformers' MiMoV2FlashConfig by the config: swa_num_attention_heads 4, swa_num_key_value_heads 2, "
        "swa_head_dim 12, swa_v_head_dim 8, add_swa_attention_sink_bias True"
    ]

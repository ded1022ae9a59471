"""MiMo-V2-Flash: sliding layers with heads and sinks of their own between full ones; values narrower than keys."""

from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common, states
from linkwise.model.families.parts import Dense, Experts, Gqa, Vector, decoder, mtp, mtp_inputs, norms

# The config has no field for it; the released checkpoint has model.mtp.layers.0 to 2 (one block of 0.33 B each).
_RELEASED_MTP_LAYERS = 3
_KINDS = ("full_attention", "sliding_attention")


def read(fields: Fields) -> Draft:
    """A draft from the config. `hybrid_layer_pattern`: 1 = sliding; `moe_layer_freq`: 1 = experts; or the kinds that
    transformers writes instead."""
    draft, hidden, count = common.start(fields)
    fields.ignore("hybrid_layer_pattern", "moe_layer_freq")  # where the kinds are listed too
    if "layer_types" in fields:
        _as_written(fields)
        sliding = [k == "sliding_attention" for k in common.layer_kinds(fields, count, *_KINDS)]
    else:
        sliding = common.layer_flags(fields, "hybrid_layer_pattern", count)
    if "mlp_layer_types" in fields:
        sparse = [k == "sparse" for k in common.layer_kinds(fields, count, "dense", "sparse", name="mlp_layer_types")]
    else:
        sparse = common.layer_flags(fields, "moe_layer_freq", count)
    window = fields.integer("sliding_window_size", "sliding_window", least=1)
    full, local = _attention(fields, hidden, ""), _attention(fields, hidden, "swa_", window)
    dense = Dense(hidden, common.width(fields, "intermediate_size"))
    routed, top_k = common.expert_counts(fields, "n_routed_experts")
    experts = Experts(
        hidden,
        common.width(fields, "moe_intermediate_size"),
        routed,
        top_k,
        groups=common.expert_groups(fields, routed),
        correction="gate.e_score_correction_bias",
        router_dtype="float32",  # as the released checkpoint stores it
    )
    states.exactly(fields, "n_shared_experts", 0, default=0)
    states.exactly(fields, "attention_bias", False, default=False)
    # Both repeat the window: no implementation chunks attention.
    fields.ignore("sliding_window", "attention_chunk_size")
    layers = [
        (local if sliding[index] else full, experts if sparse[index] else dense, *norms(hidden))
        for index in range(count)
    ]
    decoder(draft, layers)
    # Sliding attention and a dense MLP an MTP layer; embedding and head are the model's own.
    own = (*norms(hidden, "input_layernorm", "pre_mlp_layernorm"), Vector("final_layernorm", "norm.final", hidden))
    mtp(draft, [(*mtp_inputs(hidden), local, dense, *own)] * _RELEASED_MTP_LAYERS, at="model.mtp.layers")
    draft.notes.append(
        f"the config has no count of MTP layers: {_RELEASED_MTP_LAYERS} are taken, as the released checkpoint has"
    )
    return draft


def _as_written(fields: Fields) -> None:
    """Sliding layers have twice the key/value heads of full ones, and sinks, unless the config states their sizes."""
    heads = fields.integer("num_attention_heads", least=1, most=common.MAX_HEADS)
    kv_heads = fields.integer("num_key_value_heads", least=1, most=heads)
    dim = common.width(fields, "head_dim")
    own = {
        "swa_num_attention_heads": heads,
        "swa_num_key_value_heads": 2 * kv_heads,
        "swa_head_dim": dim,
        "swa_v_head_dim": common.width(fields, "v_head_dim", default=dim),
        "add_swa_attention_sink_bias": True,
    }
    fields.assume(own, "transformers' MiMoV2FlashConfig")


def _attention(fields: Fields, hidden: int, prefix: str, window: int | None = None) -> Gqa:
    """Attention of one kind of layer: its own heads, head sizes and sinks."""
    sizes = common.attention_heads(fields, hidden, prefix=prefix)
    v_dim = common.width(fields, f"{prefix}v_head_dim", default=sizes[2])
    sinks = fields.flag(f"add_{'swa' if prefix else 'full'}_attention_sink_bias")
    return Gqa(hidden, *sizes, v_dim=v_dim, sinks="attention_sink_bias" if sinks else "", window=window)

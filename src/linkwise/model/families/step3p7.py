"""Step-3.5/3.7-Flash: sliding layers with more query heads than full ones, a gate per head, experts stored stacked."""

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common, states
from linkwise.model.families.parts import Dense, Experts, Gqa, Linear, Part, Vector, decoder, mtp, mtp_inputs, norms
from linkwise.model.types import Split

# Sliding layers of the released checkpoints (attention_other_setting): 96 query heads beside 64 in full layers.
_RELEASED_SLIDING_HEADS = 96
_RELEASED_SHAPE = (("hidden_size", 4096), ("num_attention_heads", 64), ("num_hidden_layers", 45))


def read(fields: Fields) -> Draft:
    """A draft from the text section, or from an abbreviated config that has its fields at the top."""
    draft, hidden, count = common.start(fields)
    depth = fields.integer("num_nextn_predict_layers", default=0, most=common.MAX_LAYERS)
    kinds = _layer_kinds(draft, fields, count, depth)
    sparse = _sparse(fields, count)
    window = fields.integer("sliding_window", least=1)
    heads = fields.integer("num_attention_heads", least=1, most=common.MAX_HEADS)
    mixers = {
        "full_attention": _attention(fields, hidden, heads),
        "sliding_attention": _attention(fields, hidden, _sliding_heads(draft, fields, heads), window),
    }
    experts, dense = _experts(fields, hidden), Dense(hidden, common.width(fields, "intermediate_size"))
    _considered(draft, fields)
    layers = [
        (*mixers[kind], experts if index in sparse else dense, *norms(hidden)) for index, kind in enumerate(kinds)
    ]
    decoder(draft, layers[:count])
    # Each MTP layer has a dense MLP and a head of its own.
    head = (
        Vector("transformer.shared_head.norm", "norm.final", hidden),
        Linear("transformer.shared_head.output", "head", draft.vocab, hidden, Split.VOCAB),
    )
    mtp(draft, [(*mtp_inputs(hidden), *parts, *head) for parts in layers[count : count + depth]])
    return draft


def _layer_kinds(draft: Draft, fields: Fields, count: int, depth: int) -> list[str]:
    """Kinds of the layers and, after them, of the MTP layers, which abbreviated lists leave out."""
    known = ("full_attention", "sliding_attention")
    if len(fields.sequence("layer_types", count)) >= count + depth:
        return common.layer_kinds(fields, count + depth, *known)
    draft.notes.append("layer_types stops before the MTP layers: they are taken as sliding, as released ones are")
    return [*common.layer_kinds(fields, count, *known), *["sliding_attention"] * depth]


def _sliding_heads(draft: Draft, fields: Fields, heads: int) -> int:
    """Query heads of sliding layers."""
    other = fields.section("attention_other_setting")
    if other is not None:
        # The rest of the section repeats the model's KV heads and head size.
        other.ignore("attention_type", "num_attention_groups", "head_dim", "true_head_dim")
        own = other.integer("num_attention_heads", least=1, most=common.MAX_HEADS)
        other.refuse_leftovers()
        return own
    declared = fields.integer("num_sliding_attention_heads", default=0, most=common.MAX_HEADS)
    if declared:
        return declared
    released = all(fields.raw(name, None) == value for name, value in _RELEASED_SHAPE)
    guess = _RELEASED_SLIDING_HEADS if released else heads
    draft.notes.append(
        f"the config lacks attention_other_setting: sliding layers are taken to have {guess} query heads"
        + (", as the released checkpoint of this shape has" if released else ", as the full ones")
    )
    return guess


def _sparse(fields: Fields, count: int) -> frozenset[int]:
    """Indices of the MoE layers: a list (released configs write it as text), or all from the first after the dense."""
    listed = fields.raw("moe_layers_enum", None)
    if listed is None:
        return frozenset(range(fields.integer("first_k_dense_replace", default=3, most=count), count))
    items = listed.split(",") if isinstance(listed, str) else listed
    words = [str(i).strip() for i in items] if isinstance(items, list) else [""]
    if not all(word.isdecimal() and len(word) < 6 for word in words):
        raise NotUnderstood(f"field 'moe_layers_enum' is {str(listed)[:100]!r}", where=fields.where, expected="1,2,...")
    return frozenset(int(word) for word in words if int(word) < count)


def _considered(draft: Draft, fields: Fields) -> None:
    states.exactly(fields, "attention_bias", False, default=False)
    states.exactly(fields, "mlp_bias", False, default=False)
    states.exactly(fields, "use_head_wise_attn_gate", True, default=True)
    states.exactly(fields, "use_mfa", False, default=False)
    states.exactly(fields, "moe_every_n_layer", 1, default=1)
    # Position scaling, clamps and routing arithmetic; att_impl_type names what num_attention_groups already says.
    fields.ignore("use_rope_layers", "need_fp32_gate", "norm_expert_weight", "use_qk_norm", "zero_centered")
    if fields.raw("use_head_wise_attn_gate", None) is None:
        draft.notes.append(
            "the config lacks use_head_wise_attn_gate: one gate per head is counted, as every released checkpoint has"
        )


def _attention(fields: Fields, hidden: int, heads: int, window: int | None = None) -> tuple[Part, ...]:
    """Grouped-query attention with per-head norms and one gate a head."""
    kv_heads = fields.integer("num_key_value_heads", "num_attention_groups", least=1, most=common.MAX_HEADS)
    head_dim = common.width(fields, "head_dim")
    return (
        Gqa(hidden, heads, kv_heads, head_dim, qk_norm="head", window=window),
        Linear("self_attn.g_proj", "attn.gate", heads, hidden, Split.COLUMN, units=heads),
    )


def _experts(fields: Fields, hidden: int) -> Experts:
    """Router with a selection bias, experts stored as one stacked tensor a projection, one shared expert."""
    # The shared expert is one MLP of share_expert_dim, beside the module of the others.
    states.exactly(fields, "n_shared_experts", 1, default=1)
    shared = common.width(fields, "share_expert_dim", "share_expert_dims", default=0, least=0)
    return Experts(
        hidden,
        common.width(fields, "moe_intermediate_size"),
        *common.expert_counts(
            fields,
            "num_experts",
            "moe_num_experts",
            "n_routed_experts",
            per_token=("num_experts_per_tok", "moe_top_k"),
        ),
        shared=1 if shared else 0,
        shared_inner=shared,
        router="moe.gate",
        correction="moe.router_bias" if fields.flag("use_moe_router_bias", default=True) else "",
        name="",
        routed="moe",
        shared_name="share_expert",
    )

"""Step-3.5/3.7-Flash: sliding layers with more query heads than full ones, a gate per head, experts stored stacked."""

from typing import Any

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common, states
from linkwise.model.families.common import Site
from linkwise.model.types import Layer, Moe, Split

# Sliding layers of the released checkpoints (attention_other_setting): 96 query heads beside 64 in full layers.
_RELEASED_SLIDING_HEADS = 96
_RELEASED_SHAPE = (("hidden_size", 4096), ("num_attention_heads", 64), ("num_hidden_layers", 45))


def read(fields: Fields) -> Draft:
    """A draft from the text section, or from an abbreviated config that has its fields at the top."""
    draft = common.begin(fields)
    hidden = common.embedding(draft, fields)
    count = common.layer_count(fields)
    depth = fields.integer("num_nextn_predict_layers", default=0, most=common.MAX_LAYERS)
    kinds = _layer_kinds(draft, fields, count, depth)
    sparse = _sparse(fields, count)
    window = fields.integer("sliding_window", least=1)
    heads = fields.integer("num_attention_heads", least=1, most=common.MAX_HEADS)
    full = _Attention(fields, hidden, heads)
    local = _Attention(fields, hidden, _sliding_heads(draft, fields, heads), window)
    inner = common.width(fields, "intermediate_size")
    experts = _Experts(fields, hidden)
    _considered(draft, fields)
    for index in range(count):
        site = Site(draft, f"model.layers.{index}", index)
        attention = local if kinds[index] == "sliding_attention" else full
        attention.write(site.at("self_attn"))
        if index in sparse:
            experts.write(site)
        else:
            common.mlp(site.at("mlp"), hidden=hidden, inner=inner)
        common.layer_norms(site, hidden)
        draft.layers.append(attention.layer(index, "moe" if index in sparse else "dense"))
    draft.add("model.norm", "norm.final", hidden)
    for attention in (full, local):
        common.set_heads(draft, attention.heads, attention.kv_heads, attention.head_dim)
    # Each MTP layer has a dense MLP and a head of its own.
    draft.mtp_layers = depth
    for index in range(count, count + depth):
        site = Site(draft, f"model.layers.{index}", index, "mtp.")
        states.mtp_inputs(site, hidden)
        attention = local if kinds[index] == "sliding_attention" else full
        attention.write(site.at("self_attn"))
        common.mlp(site.at("mlp"), hidden=hidden, inner=inner)
        common.layer_norms(site, hidden)
        site.vector("transformer.shared_head.norm", "norm.final", hidden)
        site.linear("transformer.shared_head.output", "head", draft.vocab, hidden, Split.VOCAB)
    return draft


def _layer_kinds(draft: Draft, fields: Fields, count: int, depth: int) -> list[str]:
    """Kinds of the layers and, after them, of the MTP layers, which abbreviated lists leave out."""
    kinds: list[Any] = fields.sequence("layer_types", count)
    unknown = set(map(str, kinds)) - {"full_attention", "sliding_attention"}
    if unknown:
        raise NotUnderstood(f"layer_types has {sorted(unknown)}"[:200], where=fields.where)
    if len(kinds) < count + depth:
        draft.notes.append("layer_types stops before the MTP layers: they are taken as sliding, as released ones are")
        kinds = [*kinds[:count], *["sliding_attention"] * depth]
    return kinds


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


class _Attention:
    """Grouped-query attention with per-head norms and one gate a head."""

    def __init__(self, fields: Fields, hidden: int, heads: int, window: int | None = None) -> None:
        self.hidden, self.heads, self.window = hidden, heads, window
        self.kv_heads = fields.integer("num_key_value_heads", "num_attention_groups", least=1, most=common.MAX_HEADS)
        self.head_dim = common.width(fields, "head_dim")

    def write(self, site: Site) -> None:
        common.gqa(
            site,
            hidden=self.hidden,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            qk_norm="head",
        )
        site.linear("g_proj", "attn.gate", self.heads, self.hidden, Split.COLUMN, units=self.heads)

    def layer(self, index: int, ffn: str) -> Layer:
        return common.attention_layer(
            index,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            ffn=ffn,
            mixer="sliding" if self.window else "full",
            window=self.window,
        )


class _Experts:
    """Router with a selection bias, experts stored as one stacked tensor a projection, one shared expert."""

    def __init__(self, fields: Fields, hidden: int) -> None:
        self.hidden = hidden
        self.experts = fields.integer(
            "num_experts", "moe_num_experts", "n_routed_experts", least=1, most=common.MAX_EXPERTS
        )
        self.top_k = fields.integer("num_experts_per_tok", "moe_top_k", least=1, most=self.experts)
        self.inner = common.width(fields, "moe_intermediate_size")
        self.shared = common.width(fields, "share_expert_dim", "share_expert_dims", default=0, least=0)
        self.correction = fields.flag("use_moe_router_bias", default=True)
        # The shared expert is one MLP of share_expert_dim.
        states.exactly(fields, "n_shared_experts", 1, default=1)

    def write(self, site: Site) -> None:
        experts = site.at("moe")
        experts.linear("gate", "moe.router", self.experts, self.hidden)
        if self.correction:
            experts.vector("router_bias", "moe.router.correction", self.experts, dtype="float32")
        common.mlp(experts, hidden=self.hidden, inner=self.inner, role="moe.experts", count=self.experts)
        if self.shared:
            common.mlp(site.at("share_expert"), hidden=self.hidden, inner=self.shared, role="moe.shared")
        common.record_moe(
            site.draft,
            Moe(
                experts=self.experts,
                top_k=self.top_k,
                hidden=self.hidden,
                intermediate=self.inner,
                shared_experts=1 if self.shared else 0,
            ),
        )

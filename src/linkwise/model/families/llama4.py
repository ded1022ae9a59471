"""Llama 4's language model: chunked attention in three layers of four, dense and MoE layers interleaved."""

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common
from linkwise.model.families.common import Site
from linkwise.model.types import Moe


def read(fields: Fields) -> Draft:
    draft = common.begin(fields)
    hidden = common.embedding(draft, fields)
    layers = common.layer_count(fields)
    heads, kv_heads, head_dim = common.attention_heads(draft, fields)
    inner = common.width(fields, "intermediate_size")
    dense_inner = common.width(fields, "intermediate_size_mlp")
    experts = fields.integer("num_local_experts", least=1, most=common.MAX_EXPERTS)
    top_k = fields.integer("num_experts_per_tok", least=1, most=experts)
    bias = fields.flag("attention_bias")
    fields.ignore("use_qk_norm")  # a norm without weights
    draft.moe = Moe(experts=experts, top_k=top_k, hidden=hidden, intermediate=inner, shared_experts=1)
    moe_layers = _moe_layers(fields, layers)
    for index, chunk in enumerate(_chunks(fields, layers)):
        site = Site(draft, f"model.layers.{index}", index)
        common.layer_norms(site, hidden)
        common.gqa(
            site.at("self_attn"),
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            bias=bias,
            out_bias=bias,
        )
        is_moe = index in moe_layers
        if is_moe:
            common.moe(
                site.at("feed_forward"),
                hidden=hidden,
                inner=inner,
                experts=experts,
                shared_inner=inner,
                shared_name="shared_expert",
                router="router",
            )
        else:
            common.mlp(site.at("feed_forward"), hidden=hidden, inner=dense_inner)
        draft.layers.append(
            common.attention_layer(
                index,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                ffn="moe" if is_moe else "dense",
                mixer="full" if chunk is None else "chunked",
                window=chunk,
            )
        )
    draft.add("model.norm", "norm.final", hidden)
    return draft


def _moe_layers(fields: Fields, layers: int) -> frozenset[int]:
    """`moe_layers` where given, else every `interleave_moe_layer_step`-th layer."""
    step = fields.integer("interleave_moe_layer_step", default=1, least=1, most=common.MAX_LAYERS)
    return common.layer_indices(fields, "moe_layers") or frozenset(range(step - 1, layers, step))


def _chunks(fields: Fields, layers: int) -> list[int | None]:
    """The attention chunk of each layer. Layers without rotary embedding, every fourth by default, see everything."""
    chunk = fields.integer("attention_chunk_size", least=1, most=10**9)
    interval = fields.integer("no_rope_layer_interval", default=4, least=1, most=common.MAX_LAYERS)
    rope = fields.sequence("no_rope_layers", layers, default=None) or [
        int((i + 1) % interval != 0) for i in range(layers)
    ]
    types = fields.sequence("layer_types", layers, default=None)
    if types:
        unknown = sorted({str(t) for t in types} - {"chunked_attention", "full_attention"})
        if unknown:
            raise NotUnderstood(f"layer_types holds {', '.join(unknown)}"[:200], where=fields.where)
        return [chunk if t == "chunked_attention" else None for t in types[:layers]]
    return [chunk if uses else None for uses in rope[:layers]]

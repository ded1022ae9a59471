"""Llama 4's language model: chunked attention in three layers of four, dense and MoE layers interleaved."""

from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common
from linkwise.model.families.parts import Dense, Experts, Gqa, decoder, norms


def read(fields: Fields) -> Draft:
    draft, hidden, count = common.start(fields)
    bias = fields.flag("attention_bias")
    sizes = common.attention_heads(fields, hidden)
    attention = Gqa(hidden, *sizes, bias=bias, out_bias=bias, bounded="chunked")
    dense = Dense(hidden, common.width(fields, "intermediate_size_mlp"), name="feed_forward")
    inner = common.width(fields, "intermediate_size")
    experts = Experts(
        hidden,
        inner,
        *common.expert_counts(fields, "num_local_experts"),
        shared=1,
        shared_inner=inner,
        shared_name="shared_expert",
        router="router",
        name="feed_forward",
    )
    fields.ignore("use_qk_norm")  # a norm without weights
    moe_layers = _moe_layers(fields, count)
    layers = [
        (*norms(hidden), attention.within(chunk), experts if index in moe_layers else dense)
        for index, chunk in enumerate(_chunks(fields, count))
    ]
    return decoder(draft, layers)


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
    types = common.layer_kinds(fields, layers, "chunked_attention", "full_attention")
    if types:
        return [chunk if t == "chunked_attention" else None for t in types]
    return [chunk if uses else None for uses in rope[:layers]]

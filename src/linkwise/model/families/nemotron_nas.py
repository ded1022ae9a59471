"""Llama-Nemotron found by architecture search (DeciLM): `block_configs` say what each layer keeps of a Llama layer."""

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common
from linkwise.model.families.common import Site
from linkwise.model.types import Layer


def read(fields: Fields) -> Draft:
    """Layers may lack attention, lack the feed-forward block, or replace one by a [hidden, hidden] linear."""
    draft = common.begin(fields)
    hidden = common.embedding(draft, fields)
    layers = common.layer_count(fields)
    heads = fields.integer("num_attention_heads", least=1, most=common.MAX_HEADS)
    head_dim = common.head_width(fields, hidden, heads)
    bias, mlp_bias = fields.flag("attention_bias"), fields.flag("mlp_bias")
    fields.ignore("num_key_value_heads", "intermediate_size")
    for index, block in enumerate(fields.sequence("block_configs", layers)[:layers]):
        parts = fields.part(block, f"block_configs[{index}]")
        attention, ffn = parts.section("attention"), parts.section("ffn")
        if attention is None or ffn is None:
            raise NotUnderstood("attention or ffn is missing", where=f"{fields.where}: block_configs[{index}]")
        attention.ignore("unshifted_sink", "use_prefill_window_in_sink_attention")  # of sink tokens, refused below
        site = Site(draft, f"model.layers.{index}", index)
        layer = Layer(index=index, mixer="none", ffn="none")
        if attention.flag("replace_with_linear"):
            site.vector("input_layernorm", "norm.input", hidden)
            site.linear("self_attn.linear_attn", "attn.linear", hidden, hidden)
        elif not attention.flag("no_op"):
            group = attention.integer("n_heads_in_group", least=1, most=heads)
            window = attention.integer("window_length", default=0) or None
            if attention.raw("num_sink_tokens", None) or attention.raw("sparsify", None):
                raise NotUnderstood("attention with sink tokens or sparsity", where=attention.where)
            kv_heads = heads // group
            common.set_heads(draft, heads, kv_heads, head_dim)
            site.vector("input_layernorm", "norm.input", hidden)
            common.gqa(
                site.at("self_attn"),
                hidden=hidden,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                bias=bias,
                out_bias=bias,
            )
            layer = common.attention_layer(
                index,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                ffn="none",
                mixer="full" if window is None else "sliding",
                window=window,
            )
        draft.layers.append(_feed_forward(site, ffn, layer, hidden, mlp_bias))
    draft.add("model.norm", "norm.final", hidden)
    return draft


def _feed_forward(site: Site, ffn: Fields, layer: Layer, hidden: int, bias: bool) -> Layer:
    if ffn.raw("sparsify", None):
        raise NotUnderstood("a sparsified feed-forward block", where=ffn.where)
    if ffn.flag("no_op"):
        return layer
    site.vector("post_attention_layernorm", "norm.post_attn", hidden)
    if ffn.flag("replace_with_linear"):
        site.linear("mlp.linear_mlp", "mlp.linear", hidden, hidden)
    else:
        multiple = ffn.raw("ffn_mult")
        if isinstance(multiple, bool) or not isinstance(multiple, int | float) or not 0 < multiple < 1000:
            raise NotUnderstood(f"ffn_mult is {multiple!r}"[:200], where=ffn.where, expected="a positive number")
        # DeciLM's rule: two thirds of twice the multiple, rounded up to 256.
        inner = -(-int(2 * multiple * hidden / 3) // 256) * 256
        common.mlp(site.at("mlp"), hidden=hidden, inner=inner, bias=bias)
    return common.with_ffn(layer, "dense")

"""Llama-Nemotron found by architecture search (DeciLM): `block_configs` say what each layer keeps of a Llama layer."""

from dataclasses import replace

import msgspec

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common
from linkwise.model.families.parts import Dense, Gqa, Linear, Part, Vector, decoder
from linkwise.model.types import Layer


def read(fields: Fields) -> Draft:
    """Layers may lack attention, lack the feed-forward block, or replace one by a [hidden, hidden] linear."""
    draft, hidden, count = common.start(fields)
    heads = fields.integer("num_attention_heads", least=1, most=common.MAX_HEADS)
    head_dim = common.head_width(fields, hidden, heads)
    bias, mlp_bias = fields.flag("attention_bias"), fields.flag("mlp_bias")
    fields.ignore("num_key_value_heads", "intermediate_size")
    layers = []
    for index, listed in enumerate(fields.sequence("block_configs", count)[:count]):
        parts = fields.part(listed, f"block_configs[{index}]")
        attention, ffn = parts.section("attention"), parts.section("ffn")
        if attention is None or ffn is None:
            raise NotUnderstood("attention or ffn is missing", where=f"{fields.where}: block_configs[{index}]")
        mixer = _attention(attention, Gqa(hidden, heads, heads, head_dim, bias=bias, out_bias=bias))
        layers.append((*mixer, *_feed_forward(ffn, hidden, mlp_bias)))
    return decoder(draft, layers)


def _attention(block: Fields, full: Gqa) -> tuple[Part, ...]:
    """`full`: the attention of a layer as searched, but for its groups and window."""
    block.ignore("unshifted_sink", "use_prefill_window_in_sink_attention")  # of sink tokens, refused below
    norm = Vector("input_layernorm", "norm.input", full.hidden)
    if block.flag("replace_with_linear"):
        return norm, Linear("self_attn.linear_attn", "attn.linear", full.hidden, full.hidden)
    if block.flag("no_op"):
        return ()
    group = block.integer("n_heads_in_group", least=1, most=full.heads)
    window = block.integer("window_length", default=0) or None
    if block.raw("num_sink_tokens", None) or block.raw("sparsify", None):
        raise NotUnderstood("attention with sink tokens or sparsity", where=block.where)
    return norm, replace(full, kv_heads=full.heads // group, window=window)


class _LinearMlp(Linear):
    """A feed-forward block reduced to one matrix."""

    def facts(self, layer: Layer) -> Layer:
        return msgspec.structs.replace(layer, ffn="dense")


def _feed_forward(block: Fields, hidden: int, bias: bool) -> tuple[Part, ...]:
    if block.raw("sparsify", None):
        raise NotUnderstood("a sparsified feed-forward block", where=block.where)
    if block.flag("no_op"):
        return ()
    norm = Vector("post_attention_layernorm", "norm.post_attn", hidden)
    if block.flag("replace_with_linear"):
        return norm, _LinearMlp("mlp.linear_mlp", "mlp.linear", hidden, hidden)
    multiple = block.raw("ffn_mult")
    if isinstance(multiple, bool) or not isinstance(multiple, int | float) or not 0 < multiple < 1000:
        raise NotUnderstood(f"ffn_mult is {multiple!r}"[:200], where=block.where, expected="a positive number")
    # DeciLM's rule: two thirds of twice the multiple, rounded up to 256.
    inner = -(-int(2 * multiple * hidden / 3) // 256) * 256
    return norm, Dense(hidden, inner, bias=bias)

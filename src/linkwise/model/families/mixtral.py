"""Mixtral: Llama's attention, eight experts in every layer."""

from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common
from linkwise.model.families.common import Site
from linkwise.model.families.llama import windows
from linkwise.model.types import Moe

# Mixtral's checkpoint names of an expert's gate, up and down projections.
W1_W3_W2 = ("w1", "w3", "w2")


def read(fields: Fields) -> Draft:
    draft = common.begin(fields)
    hidden = common.embedding(draft, fields)
    layers = common.layer_count(fields)
    heads, kv_heads, head_dim = common.attention_heads(draft, fields, derived_width=True)
    inner = common.width(fields, "intermediate_size")
    experts = fields.integer("num_local_experts", least=1, most=common.MAX_EXPERTS)
    top_k = fields.integer("num_experts_per_tok", least=1, most=experts)
    draft.moe = Moe(experts=experts, top_k=top_k, hidden=hidden, intermediate=inner)
    for index, window in enumerate(windows(fields, layers)):
        site = Site(draft, f"model.layers.{index}", index)
        common.layer_norms(site, hidden)
        common.gqa(site.at("self_attn"), hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
        common.moe(site.at("block_sparse_moe"), hidden=hidden, inner=inner, experts=experts, names=W1_W3_W2)
        draft.layers.append(
            common.attention_layer(
                index,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                ffn="moe",
                mixer="full" if window is None else "sliding",
                window=window,
            )
        )
    draft.add("model.norm", "norm.final", hidden)
    return draft

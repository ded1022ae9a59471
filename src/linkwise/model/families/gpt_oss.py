"""gpt-oss: grouped-query attention with sinks, every other layer sliding, experts with biases."""

from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common
from linkwise.model.families.common import Site
from linkwise.model.families.llama import windows
from linkwise.model.types import Moe


def read(fields: Fields) -> Draft:
    draft = common.begin(fields)
    hidden = common.embedding(draft, fields)
    layers = common.layer_count(fields)
    heads, kv_heads, head_dim = common.attention_heads(draft, fields)
    inner = common.width(fields, "intermediate_size")
    experts = fields.integer("num_local_experts", "num_experts", least=1, most=common.MAX_EXPERTS)
    top_k = fields.integer("num_experts_per_tok", "experts_per_token", least=1, most=experts)
    bias = fields.flag("attention_bias", default=True)
    draft.moe = Moe(experts=experts, top_k=top_k, hidden=hidden, intermediate=inner)
    fields.ignore("initial_context_length", "swiglu_limit", "experts_per_token")
    fields.integer("sliding_window", least=1, most=10**9)  # required: the family has no other form
    kinds = windows(fields, layers)
    if "layer_types" not in fields:
        # The family's default: sliding and full in turn, sliding first.
        kinds = [window if index % 2 == 0 else None for index, window in enumerate(kinds)]
    for index, window in enumerate(kinds):
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
            sinks=True,
        )
        mlp = site.at("mlp")
        mlp.linear("router", "moe.router", experts, hidden, bias=True)
        # The checkpoint fuses gate and up of all experts into one tensor; the bytes are the same.
        common.mlp(mlp.at("experts.*"), hidden=hidden, inner=inner, role="moe.experts", bias=True, count=experts)
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

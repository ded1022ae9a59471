"""Qwen2-MoE and Qwen3-MoE, also inside Qwen3-VL: `decoder_sparse_step` and `mlp_only_layers` say where experts are."""

from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common
from linkwise.model.families.common import Site
from linkwise.model.families.llama import windows
from linkwise.model.types import Moe


def read(fields: Fields) -> Draft:
    """Qwen3-MoE: per-head query and key norms, no shared expert."""
    bias = fields.flag("attention_bias")
    fields.ignore("use_qk_norm")  # some configs say it; the family has no other form
    return _read(fields, bias=bias, out_bias=bias, qk_norm="head", shared=0)


def read_qwen2(fields: Fields) -> Draft:
    """Qwen2-MoE: biases on query, key and value, one gated shared expert."""
    shared = common.width(fields, "shared_expert_intermediate_size")
    return _read(fields, bias=fields.flag("qkv_bias", default=True), out_bias=False, qk_norm="", shared=shared)


def _read(fields: Fields, *, bias: bool, out_bias: bool, qk_norm: str, shared: int) -> Draft:
    draft = common.begin(fields)
    hidden = common.embedding(draft, fields)
    layers = common.layer_count(fields)
    heads, kv_heads, head_dim = common.attention_heads(draft, fields, derived_width=True)
    dense_inner = common.width(fields, "intermediate_size")
    inner = common.width(fields, "moe_intermediate_size")
    experts = fields.integer("num_experts", least=1, most=common.MAX_EXPERTS)
    top_k = fields.integer("num_experts_per_tok", least=1, most=experts)
    step = fields.integer("decoder_sparse_step", default=1, least=1, most=common.MAX_LAYERS)
    dense = common.layer_indices(fields, "mlp_only_layers")
    draft.moe = Moe(experts=experts, top_k=top_k, hidden=hidden, intermediate=inner, shared_experts=1 if shared else 0)
    for index, window in enumerate(windows(fields, layers)):
        site = Site(draft, f"model.layers.{index}", index)
        common.layer_norms(site, hidden)
        common.gqa(
            site.at("self_attn"),
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            bias=bias,
            out_bias=out_bias,
            qk_norm=qk_norm,
        )
        is_moe = index not in dense and (index + 1) % step == 0
        if is_moe:
            common.moe(
                site.at("mlp"),
                hidden=hidden,
                inner=inner,
                experts=experts,
                shared_inner=shared,
                shared_name="shared_expert",
                shared_gate="shared_expert_gate" if shared else "",
            )
        else:
            common.mlp(site.at("mlp"), hidden=hidden, inner=dense_inner)
        draft.layers.append(
            common.attention_layer(
                index,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                ffn="moe" if is_moe else "dense",
                mixer="full" if window is None else "sliding",
                window=window,
            )
        )
    draft.add("model.norm", "norm.final", hidden)
    return draft

"""Qwen2-MoE and Qwen3-MoE, also inside Qwen3-VL: `decoder_sparse_step` and `mlp_only_layers` say where experts are."""

from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common, states
from linkwise.model.families.common import Site
from linkwise.model.families.llama import QWEN_FULL_LAYERS, qwen_window
from linkwise.model.types import Moe


def read(fields: Fields) -> Draft:
    """Qwen3-MoE: per-head query and key norms, no shared expert; a window, where switched on, holds for every layer."""
    window = qwen_window(fields)
    fields.ignore("max_window_layers")  # read by other Qwen families
    return _read_qwen3(fields, window)


def read_vl(fields: Fields) -> Draft:
    """The language model of Qwen3-VL's MoE: Qwen3-MoE without sliding windows."""
    return _read_qwen3(fields, None)


def _read_qwen3(fields: Fields, window: int | None) -> Draft:
    bias = fields.flag("attention_bias")
    fields.ignore("use_qk_norm")  # some configs say it; the family has no other form
    states.exactly(fields, "qkv_bias", False, default=False)
    states.exactly(fields, "shared_expert_intermediate_size", 0, default=0)
    layers = common.layer_count(fields)
    return _read(fields, [window] * layers, bias=bias, out_bias=bias, qk_norm="head", shared=0)


def read_qwen2(fields: Fields) -> Draft:
    """Qwen2-MoE: biases on query, key and value, one gated shared expert; a window, where switched on, holds for every
    other layer below `max_window_layers` (transformers' Qwen2MoeConfig)."""
    shared = common.width(fields, "shared_expert_intermediate_size")
    window, below = qwen_window(fields), fields.integer("max_window_layers", default=QWEN_FULL_LAYERS)
    windows = [window if i % 2 == 0 and i < below else None for i in range(common.layer_count(fields))]
    return _read(fields, windows, bias=fields.flag("qkv_bias", default=True), out_bias=False, qk_norm="", shared=shared)


def _read(fields: Fields, windows: list[int | None], *, bias: bool, out_bias: bool, qk_norm: str, shared: int) -> Draft:
    """windows: of each layer, None where it attends to everything."""
    draft = common.begin(fields)
    hidden = common.embedding(draft, fields)
    heads, kv_heads, head_dim = common.attention_heads(draft, fields, derived_width=True)
    dense_inner = common.width(fields, "intermediate_size")
    inner = common.width(fields, "moe_intermediate_size")
    experts = fields.integer("num_experts", least=1, most=common.MAX_EXPERTS)
    top_k = fields.integer("num_experts_per_tok", least=1, most=experts)
    step = fields.integer("decoder_sparse_step", default=1, least=1, most=common.MAX_LAYERS)
    dense = common.layer_indices(fields, "mlp_only_layers")
    draft.moe = Moe(experts=experts, top_k=top_k, hidden=hidden, intermediate=inner, shared_experts=1 if shared else 0)
    for index, window in enumerate(windows):
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

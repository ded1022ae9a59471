"""MiniMax-M2.x: grouped-query attention with norms over whole projections, experts in every layer."""

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common
from linkwise.model.families.common import Site
from linkwise.model.families.mixtral import W1_W3_W2
from linkwise.model.types import Moe


def read(fields: Fields) -> Draft:
    draft = common.begin(fields)
    hidden = common.embedding(draft, fields)
    layers = common.layer_count(fields)
    heads, kv_heads, head_dim = common.attention_heads(draft, fields)
    inner = common.width(fields, "intermediate_size")
    experts = fields.integer("num_local_experts", least=1, most=common.MAX_EXPERTS)
    top_k = fields.integer("num_experts_per_tok", least=1, most=experts)
    norm = fields.text("qk_norm_type", "per_layer") if fields.flag("use_qk_norm", default=True) else ""
    if norm not in ("", "per_layer"):
        raise NotUnderstood(f"qk_norm_type {norm!r}", where=fields.where, expected="per_layer")
    if any(kind != 1 for kind in fields.sequence("attn_type_list", default=[])):
        raise NotUnderstood("attn_type_list has layers that are not full attention (1)", where=fields.where)
    if fields.integer("shared_intermediate_size", default=0):
        raise NotUnderstood("shared_intermediate_size is not 0", where=fields.where)
    correction = "e_score_correction_bias" if fields.flag("use_routing_bias", default=True) else ""
    _note_mtp(draft, fields)
    draft.moe = Moe(experts=experts, top_k=top_k, hidden=hidden, intermediate=inner)
    for index in range(layers):
        site = Site(draft, f"model.layers.{index}", index)
        common.layer_norms(site, hidden)
        common.gqa(
            site.at("self_attn"),
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            qk_norm="full" if norm else "",
        )
        common.moe(
            site.at("block_sparse_moe"),
            hidden=hidden,
            inner=inner,
            experts=experts,
            # Released checkpoints store it so (github.com/NVIDIA-NeMo/Automodel pull 3674).
            router_dtype="float32",
            correction=correction,
            names=W1_W3_W2,
        )
        draft.layers.append(common.attention_layer(index, heads=heads, kv_heads=kv_heads, head_dim=head_dim, ffn="moe"))
    draft.add("model.norm", "norm.final", hidden)
    return draft


def _note_mtp(draft: Draft, fields: Fields) -> None:
    """The configs announce MTP modules whose weights were never published."""
    fields.ignore("mtp_transformer_layers")
    modules = fields.integer("num_mtp_modules", default=0)
    if fields.flag("use_mtp") and modules:
        draft.notes.append(
            f"the config announces {modules} MTP modules; published checkpoints hold no weights of them "
            "(github.com/MiniMax-AI/MiniMax-M2.7 issue 16), so none are counted"
        )

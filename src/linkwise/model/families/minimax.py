"""MiniMax-M2.x: grouped-query attention with norms over whole projections, experts in every layer."""

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common
from linkwise.model.families.parts import Experts, Gqa, decoder, norms


def read(fields: Fields) -> Draft:
    draft, hidden, count = common.start(fields)
    norm = fields.text("qk_norm_type", "per_layer") if fields.flag("use_qk_norm", default=True) else ""
    if norm not in ("", "per_layer"):
        raise NotUnderstood(f"qk_norm_type {norm!r}", where=fields.where, expected="per_layer")
    if any(kind != 1 for kind in fields.sequence("attn_type_list", default=[])):
        raise NotUnderstood("attn_type_list has layers that are not full attention (1)", where=fields.where)
    if fields.integer("shared_intermediate_size", default=0):
        raise NotUnderstood("shared_intermediate_size is not 0", where=fields.where)
    attention = Gqa(hidden, *common.attention_heads(fields, hidden), qk_norm="full" if norm else "")
    experts = Experts(
        hidden,
        common.width(fields, "intermediate_size"),
        *common.expert_counts(fields, "num_local_experts"),
        # Released checkpoints store it so (github.com/NVIDIA-NeMo/Automodel pull 3674).
        router_dtype="float32",
        correction="e_score_correction_bias" if fields.flag("use_routing_bias", default=True) else "",
        name="block_sparse_moe",
        names=common.W1_W3_W2,
    )
    _note_mtp(draft, fields)
    return decoder(draft, [(*norms(hidden), attention, experts)] * count)


def _note_mtp(draft: Draft, fields: Fields) -> None:
    """The configs announce MTP modules whose weights were never published."""
    fields.ignore("mtp_transformer_layers")
    modules = fields.integer("num_mtp_modules", default=0)
    if fields.flag("use_mtp") and modules:
        draft.notes.append(
            f"the config announces {modules} MTP modules; published checkpoints hold no weights of them "
            "(github.com/MiniMax-AI/MiniMax-M2.7 issue 16), so none are counted"
        )

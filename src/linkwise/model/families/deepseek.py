"""DeepSeek-V2, DeepSeek-V3/R1 and Kimi-K2: latent attention, shared and routed experts, MTP layers; and GLM-4.5 to 4.7,
which have the same layers under grouped-query attention.

The published DeepSeek-V3 checkpoint is 671B parameters of the model and 14B of one MTP module, 685B together (the
model's README_WEIGHTS); the MTP layer stores its own copies of the embedding and of the head.
"""

from collections.abc import Callable

from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common, states
from linkwise.model.families.parts import Dense, Experts, Gqa, Linear, Mla, Part, Vector, mtp, mtp_inputs, norms, stack
from linkwise.model.types import Split


def read(fields: Fields) -> Draft:
    """DeepSeek-V3 and its descendants: sigmoid routing with a float32 correction bias (`topk_method: noaux_tc`)."""
    return _read(fields, _latent(fields), correction=fields.text("topk_method", "noaux_tc") == "noaux_tc")


def read_v2(fields: Fields) -> Draft:
    """DeepSeek-V2 and V2-Lite: softmax routing without a correction bias."""
    return _read(fields, _latent(fields), correction=fields.text("topk_method", "greedy") == "noaux_tc")


def read_glm4_moe(fields: Fields) -> Draft:
    """GLM-4.5 to GLM-4.7: `attention_bias` is of query, key and value; norms of queries and keys where stated."""
    bias, normed = fields.flag("attention_bias"), fields.flag("use_qk_norm")

    def attention(hidden: int) -> Gqa:
        sizes = common.attention_heads(fields, hidden, derived_width=True)
        return Gqa(hidden, *sizes, bias=bias, qk_norm="head" if normed else "")

    return _read(fields, attention, correction=True)


def read_glm4_moe_lite(fields: Fields) -> Draft:
    """GLM-4.7-Flash: latent attention with GLM-4.5's experts."""
    return _read(fields, _latent(fields), correction=True)


def read_dots1(fields: Fields) -> Draft:
    """dots.llm1: norms of queries and keys; windows, which its class knows, are in no release."""
    bias = fields.flag("attention_bias")
    if not common.layer_kinds(fields, common.layer_count(fields), "full_attention"):
        states.exactly(fields, "sliding_window", None)
    fields.ignore("sliding_window", "max_window_layers")

    def attention(hidden: int) -> Gqa:
        sizes = common.attention_heads(fields, hidden, derived_width=True)
        return Gqa(hidden, *sizes, bias=bias, out_bias=bias, qk_norm="head")

    return _read(fields, attention, correction=True)


def _latent(fields: Fields) -> Callable[[int], Mla]:
    fields.ignore("num_key_value_heads", "qk_head_dim", "head_dim")  # they mean nothing for a latent cache
    return lambda hidden: Mla.of(fields, hidden, bias=fields.flag("attention_bias"))


def _read(fields: Fields, attention_of: Callable[[int], Part], *, correction: bool) -> Draft:
    """attention_of: the attention of a model of that hidden size."""
    draft, hidden, count = common.start(fields)
    attention = attention_of(hidden)
    routed, top_k = common.expert_counts(fields, "n_routed_experts")
    inner, shared = common.width(fields, "moe_intermediate_size"), fields.integer("n_shared_experts", most=1024)
    experts = Experts(
        hidden,
        inner,
        routed,
        top_k,
        groups=common.expert_groups(fields, routed, all_unless_stated=True),
        shared=shared,
        shared_inner=shared * inner,
        correction="gate.e_score_correction_bias" if correction else "",
    )
    dense = Dense(hidden, common.width(fields, "intermediate_size"))
    sparse = _sparse(fields, count)
    depth = fields.integer("num_nextn_predict_layers", default=0, most=64)
    layers = [(*norms(hidden), attention, experts if sparse(index) else dense) for index in range(count + depth)]
    stack(draft, layers[:count])
    mtp(draft, [(*parts, *_mtp_wrapping(hidden, draft.vocab)) for parts in layers[count:]])
    draft.add("model.norm", "norm.final", hidden)
    if depth:
        draft.notes.append(
            f"{depth} MTP layer(s) as DeepSeek-V3 stores them, with their own copies of embedding and head; "
            "engines load them only for speculative decoding"
        )
    return draft


def _sparse(fields: Fields, count: int) -> Callable[[int], bool]:
    """Whether a layer has experts: listed, or from one layer on; MTP layers, which lists leave out, have them."""
    kinds = common.layer_kinds(fields, count, "dense", "sparse", name="mlp_layer_types")
    first = fields.integer("first_k_dense_replace", default=0 if kinds else None, most=common.MAX_LAYERS)
    step = fields.integer("moe_layer_freq", default=1, least=1, most=common.MAX_LAYERS)
    if kinds:
        return lambda index: index >= count or kinds[index] == "sparse"
    return lambda index: index >= first and index % step == 0


def _mtp_wrapping(hidden: int, vocab: int) -> tuple[Part, ...]:
    """What a DeepSeek-V3 MTP layer stores around its decoder layer: norms of embedding and hidden state, their joint
    projection, and copies of embedding and head with a norm."""
    return (
        Linear("embed_tokens", "embed", vocab, hidden, Split.VOCAB),
        *mtp_inputs(hidden),
        Vector("shared_head.norm", "norm.head", hidden),
        Linear("shared_head.head", "head", vocab, hidden, Split.VOCAB),
    )

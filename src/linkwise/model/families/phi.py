"""Phi-3, Phi-3.5, Phi-4 (dense) and Phi-3.5-MoE."""

from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common, states
from linkwise.model.families.dense import Names, dense, windows
from linkwise.model.families.parts import Experts, Gqa, decoder, norms
from linkwise.model.types import Split

_FUSED = Names(
    attention=("qkv_proj", "qkv_proj", "qkv_proj", "o_proj"), mlp=("gate_up_proj", "gate_up_proj", "down_proj")
)


def read(fields: Fields) -> Draft:
    """Phi-3 and Phi-4: query, key and value are one stored tensor, gate and up another."""
    states.exactly(fields, "attention_bias", False, default=False)
    states.exactly(fields, "lm_head_bias", False, default=False)
    states.exactly(fields, "full_attn_mod", 1, default=1)
    fields.ignore("interpolate_factor")  # of positions
    return dense(fields, windows(fields), names=_FUSED, same_kv=True)


def read_moe(fields: Fields) -> Draft:
    """Phi-3.5-MoE: experts in every layer, LayerNorms, a bias on attention and head where stated."""
    draft, hidden, _ = common.start(fields)
    bias = fields.flag("attention_bias")
    sizes = common.attention_heads(fields, hidden, same_kv=True, derived_width=True)
    attention = Gqa(hidden, *sizes, bias=bias, out_bias=bias)
    experts = Experts(
        hidden,
        common.width(fields, "intermediate_size"),
        *common.expert_counts(fields, "num_local_experts"),
        name="block_sparse_moe",
        names=common.W1_W3_W2,
    )
    if fields.flag("lm_head_bias"):
        draft.add("lm_head.bias", "head.bias", draft.vocab, split=Split.VOCAB)
    around = norms(hidden, bias=True)
    layers = [(*around, attention.within(window), experts) for window in windows(fields)]
    return decoder(draft, layers, bias=True)

"""OLMoE; OLMo 2 and 3, which norm the outputs of attention and feed-forward. All norm whole queries and whole keys."""

from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common
from linkwise.model.families.dense import OUTPUT_NORMS, Names, dense, windows
from linkwise.model.families.parts import Experts, Gqa, decoder, norms


def read_olmo2(fields: Fields) -> Draft:
    """OLMo 2: every layer attends to everything."""
    return _read(fields, None)


def read_olmo3(fields: Fields) -> Draft:
    """OLMo 3: three sliding layers, then a full one."""
    fields.integer("sliding_window", least=1, most=10**9)  # required: the family has no other form
    return _read(fields, windows(fields, every=4))


def _read(fields: Fields, found: list[int | None] | None) -> Draft:
    bias = fields.flag("attention_bias")
    return dense(fields, found, bias=bias, out_bias=bias, qk_norm="full", same_kv=True, names=Names(norms=OUTPUT_NORMS))


def read_olmoe(fields: Fields) -> Draft:
    """OLMoE: experts in every layer, norms on inputs."""
    draft, hidden, count = common.start(fields)
    bias = fields.flag("attention_bias")
    sizes = common.attention_heads(fields, hidden, same_kv=True, derived_width=True)
    attention = Gqa(hidden, *sizes, bias=bias, out_bias=bias, qk_norm="full")
    experts = Experts(hidden, common.width(fields, "intermediate_size"), *common.expert_counts(fields, "num_experts"))
    fields.ignore("clip_qkv")  # bounds of values
    return decoder(draft, [(*norms(hidden), attention, experts)] * count)

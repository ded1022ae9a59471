"""Mixtral: Llama's attention, eight experts in every layer."""

from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common
from linkwise.model.families.dense import windows
from linkwise.model.families.parts import Experts, Gqa, decoder, norms


def read(fields: Fields) -> Draft:
    draft, hidden, _ = common.start(fields)
    attention = Gqa(hidden, *common.attention_heads(fields, hidden, derived_width=True))
    experts = Experts(
        hidden,
        common.width(fields, "intermediate_size"),
        *common.expert_counts(fields, "num_local_experts"),
        name="block_sparse_moe",
        names=common.W1_W3_W2,
    )
    layers = [(*norms(hidden), attention.within(window), experts) for window in windows(fields)]
    return decoder(draft, layers)

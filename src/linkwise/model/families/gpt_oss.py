"""gpt-oss: grouped-query attention with sinks, every other layer sliding, experts with biases."""

from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common
from linkwise.model.families.dense import windows
from linkwise.model.families.parts import Experts, Gqa, decoder, norms


def read(fields: Fields) -> Draft:
    draft, hidden, _ = common.start(fields)
    bias = fields.flag("attention_bias", default=True)
    attention = Gqa(hidden, *common.attention_heads(fields, hidden), bias=bias, out_bias=bias, sinks="sinks")
    # The checkpoint fuses gate and up of all experts into one tensor; the bytes are the same.
    experts = Experts(
        hidden,
        common.width(fields, "intermediate_size"),
        *common.expert_counts(
            fields, "num_local_experts", "num_experts", per_token=("num_experts_per_tok", "experts_per_token")
        ),
        router="router",
        router_bias=True,
        bias=True,
    )
    fields.ignore("initial_context_length", "swiglu_limit", "experts_per_token")
    fields.integer("sliding_window", least=1, most=10**9)  # required: the family has no other form
    # Sliding and full in turn, sliding first.
    return decoder(draft, [(*norms(hidden), attention.within(window), experts) for window in windows(fields, every=2)])

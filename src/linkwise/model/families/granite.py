"""Granite 4 (hybrid): Mamba-2 layers with an attention layer now and then, experts beside an MLP that every token
takes, or that MLP alone."""

from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common, states
from linkwise.model.families.mamba import Mamba2
from linkwise.model.families.parts import Dense, Experts, Gqa, Part, decoder, norms

# Gate and up are one stored tensor, of each expert and of the shared MLP.
_FUSED = ("input_linear", "input_linear", "output_linear")
_MAMBA = ("mamba", "linear_attention")


def read(fields: Fields) -> Draft:
    """A draft from the config. `layer_types` is required; transformers writes other words for the same kinds."""
    draft, hidden, count = common.start(fields)
    kinds = common.layer_kinds(fields, count, *_MAMBA, "attention", "full_attention")
    if not kinds:
        fields.raw("layer_types")
    bias = fields.flag("attention_bias")
    sizes = common.attention_heads(fields, hidden, same_kv=True, derived_width=True)
    attention: Part = Gqa(hidden, *sizes, bias=bias, out_bias=bias)
    mamba: Part = attention
    if any(kind in _MAMBA for kind in kinds):
        mamba = Mamba2.of(fields, hidden, draft.dtype)
        states.note_recurrent(draft, fields)
    states.scaled(fields)
    fields.ignore("position_embedding_type", "normalization_function", "init_method")
    ffn = _feed_forward(fields, hidden)
    return decoder(draft, [(mamba if kind in _MAMBA else attention, ffn, *norms(hidden)) for kind in kinds])


def read_moe(fields: Fields) -> Draft:
    """Granite 3 MoE: attention in every layer; an MLP that every token takes only where stated."""
    draft, hidden, count = common.start(fields)
    bias = fields.flag("attention_bias")
    sizes = common.attention_heads(fields, hidden, same_kv=True, derived_width=True)
    states.scaled(fields)
    layer = (Gqa(hidden, *sizes, bias=bias, out_bias=bias), _feed_forward(fields, hidden), *norms(hidden))
    return decoder(draft, [layer] * count)


def _feed_forward(fields: Fields, hidden: int) -> Part:
    shared = common.width(fields, "shared_intermediate_size", default=0, least=0)
    if not fields.integer("num_local_experts", default=0, most=common.MAX_EXPERTS):
        fields.ignore("num_experts_per_tok", "intermediate_size")
        return Dense(hidden, common.width(fields, "shared_intermediate_size"), name="shared_mlp", names=_FUSED)
    return Experts(
        hidden,
        common.width(fields, "intermediate_size"),
        *common.expert_counts(fields, "num_local_experts"),
        shared=1 if shared else 0,
        shared_inner=shared,
        router="block_sparse_moe.router.layer",
        name="",
        routed="block_sparse_moe",
        shared_name="shared_mlp",
        names=_FUSED,
        shared_names=_FUSED,
    )

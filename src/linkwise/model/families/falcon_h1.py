"""Falcon-H1: attention and Mamba-2 beside each other in every layer, on the same input."""

from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common, states
from linkwise.model.families.mamba import Mamba2
from linkwise.model.families.parts import Dense, Gqa, decoder, norms


def read(fields: Fields) -> Draft:
    """A draft from the config. Its many multipliers change no shape."""
    draft, hidden, count = common.start(fields)
    bias = fields.flag("attention_bias")
    sizes = common.attention_heads(fields, hidden, same_kv=True, derived_width=True)
    attention = Gqa(hidden, *sizes, bias=bias, out_bias=bias)
    inner = common.width(fields, "mamba_d_ssm", default=0, least=0)
    out_bias, normed = fields.flag("projectors_bias"), fields.flag("mamba_rms_norm")
    mamba = Mamba2.of(fields, hidden, draft.dtype, inner=inner, out_bias=out_bias, normed=normed)
    states.note_recurrent(draft, fields)
    states.scaled(fields)
    states.exactly(fields, "mamba_use_mlp", True, default=True)
    # How a norm is applied, which layers have attention (all), the feed-forward's width in other words.
    fields.ignore("mamba_norm_before_gate", "mlp_expansion_factor")
    fields.ignore("attn_layer_indices", "layers_block_type", "layer_types")
    ffn = Dense(hidden, common.width(fields, "intermediate_size"), bias=fields.flag("mlp_bias"), name="feed_forward")
    around = norms(hidden, "input_layernorm", "pre_ff_layernorm")
    return decoder(draft, [(attention, mamba, ffn, *around)] * count, final="model.final_layernorm")

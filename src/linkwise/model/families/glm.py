"""GLM-4 (dense): gate and up are one stored tensor; from GLM-4-0414 on norms on outputs too."""

from linkwise.model.draft import Draft, Fields
from linkwise.model.families.dense import Names, dense

_MLP = ("gate_up_proj", "gate_up_proj", "down_proj")
_NORMS = ("input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm")


def read(fields: Fields) -> Draft:
    """GLM-4-9B: two norms a layer."""
    return _read(fields, ())


def read_glm4(fields: Fields) -> Draft:
    """GLM-4-0414 and GLM-Z1: four."""
    return _read(fields, _NORMS)


def _read(fields: Fields, norms: tuple[str, ...]) -> Draft:
    bias = fields.flag("attention_bias", default=True)
    return dense(fields, bias=bias, derived_width=False, names=Names(norms=norms, mlp=_MLP))

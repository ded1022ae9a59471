"""Phi-3, Phi-3.5, Phi-4 (dense) and Phi-3.5-MoE."""

from linkwise.model.draft import Draft, Fields
from linkwise.model.families import states
from linkwise.model.families.dense import Names, dense, windows

_FUSED = Names(
    attention=("qkv_proj", "qkv_proj", "qkv_proj", "o_proj"), mlp=("gate_up_proj", "gate_up_proj", "down_proj")
)


def read(fields: Fields) -> Draft:
    """Phi-3 and Phi-4: query, key and value are one stored tensor, gate and up another."""
    states.exactly(fields, "attention_bias", False, default=False)
    fields.ignore("original_max_position_embeddings")  # of the rotary scaling
    return dense(fields, windows(fields), names=_FUSED, same_kv=True)

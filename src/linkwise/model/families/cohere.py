"""Command-R (Cohere), Command-R7B and Command-A (Cohere 2): attention and feed-forward work beside each other on one
normed input; embedding and head are one tensor."""

from linkwise.model.draft import Draft, Fields
from linkwise.model.families import states
from linkwise.model.families.dense import Names, dense, windows

_ONE_NORM = Names(norms=("input_layernorm",))


def read(fields: Fields) -> Draft:
    """Command-R: full attention; Command-R+ norms each head of queries and keys by its own vector."""
    return _read(fields, None, qk_norm="each" if fields.flag("use_qk_norm") else "")


def read_cohere2(fields: Fields) -> Draft:
    """Command-R7B and Command-A: three sliding layers, then a full one without positions."""
    states.exactly(fields, "order_of_interleaved_layers", "local_attn_first", default="local_attn_first")
    states.exactly(fields, "use_qk_norm", False, default=False)
    # The pattern under its old name; each repeats what this family is.
    every = fields.integer("layer_switch", default=4, least=1, most=1000)
    return _read(fields, windows(fields, every=every))


def _read(fields: Fields, found: list[int | None] | None, *, qk_norm: str = "") -> Draft:
    for name in ("use_parallel_block", "use_gated_activation", "use_embedding_sharing"):
        states.exactly(fields, name, True, default=True)
    states.exactly(fields, "use_parallel_embedding", False, default=False)
    fields.ignore("position_embedding_type", "cache_implementation")
    bias = fields.flag("attention_bias")
    return dense(fields, found, bias=bias, out_bias=bias, qk_norm=qk_norm, same_kv=True, tied=True, names=_ONE_NORM)

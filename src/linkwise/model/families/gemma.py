"""Gemma 1 to 3: embedding and head are one tensor, heads of their own width; from Gemma 2 on four norms a layer and
sliding layers between full ones; from Gemma 3 on norms of queries and keys."""

from linkwise.model.draft import Draft, Fields
from linkwise.model.families import states
from linkwise.model.families.dense import FOUR_NORMS, Names, dense, windows

# What released Gemma 3 configs leave to transformers' Gemma3TextConfig.
_GEMMA3 = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
}


def read(fields: Fields) -> Draft:
    """Gemma: Llama's layer."""
    bias = fields.flag("attention_bias")
    return dense(fields, bias=bias, out_bias=bias, derived_width=False, tied=True)


def read_gemma2(fields: Fields) -> Draft:
    """Gemma 2: every other layer slides, the first one too."""
    fields.ignore("sliding_window_size")  # early configs write the window twice
    return _read(fields, every=2)


def read_gemma3(fields: Fields) -> Draft:
    """Gemma 3: five sliding layers, then a full one."""
    fields.assume(_GEMMA3, "transformers' Gemma3TextConfig")
    return _read(fields, qk_norm="head", every=6)


def _read(fields: Fields, *, every: int, qk_norm: str = "") -> Draft:
    bias = fields.flag("attention_bias")
    # True makes an encoder of it (EmbeddingGemma).
    states.exactly(fields, "use_bidirectional_attention", False, default=False)
    fields.integer("sliding_window", least=1, most=10**9)  # required: the family has no other form
    return dense(
        fields,
        windows(fields, every=every),
        bias=bias,
        out_bias=bias,
        qk_norm=qk_norm,
        derived_width=False,
        tied=True,
        names=Names(norms=FOUR_NORMS),
    )

"""What hybrid and sparse families keep and compute beside plain attention: recurrent states, index keys, FLOPs."""

from linkwise.core import dtypes
from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Draft, Fields
from linkwise.model.types import State

# How configs name the dtype of a recurrent state.
STATE_DTYPES = ("mamba_ssm_cache_dtype", "mamba_ssm_dtype")


def conv_state(channels: int, kernel: int, *, heads: int, dtype: str) -> State:
    """The last inputs of a causal depthwise convolution: channels x (kernel - 1), once per request."""
    return State(name="conv", per_request=channels * (kernel - 1), heads=heads, dtype=dtype)


def recurrent_state(heads: int, rows: int, columns: int, *, dtype: str) -> State:
    """A linear-attention or state-space memory: one rows x columns matrix a head, once per request."""
    return State(name="recurrent", per_request=heads * rows * columns, heads=heads, dtype=dtype)


def conv_flops(channels: int, kernel: int) -> int:
    """FLOPs of a token in a depthwise convolution: a multiply and an add per tap and channel."""
    return 2 * channels * kernel


def delta_flops(heads: int, key_dim: int, value_dim: int) -> int:
    """FLOPs of a token in a gated delta rule (arXiv 2412.06464; KDA decays per channel at the same cost).

    Per element of the key_dim x value_dim state of a head: decay 1, read the old value 2, write the correction 2, read
    the output 2. A chunked prefill does more arithmetic for the same result; this is the recurrence itself.
    """
    return 7 * heads * key_dim * value_dim


def ssd_flops(heads: int, head_dim: int, state: int) -> int:
    """FLOPs of a token in Mamba-2 (arXiv 2405.21060): per state element decay 1, add dt·B·x 2, read C·h 2."""
    return 5 * heads * head_dim * state


def index_state(dim: int, *, stride: int = 1) -> State:
    """Index keys of DeepSeek's lightning indexer, one vector per kept token, whole on every tensor-parallel rank.

    Engines keep them in FP8 with a float32 scale whatever the KV-cache dtype is (vLLM's DeepseekV32IndexerCache:
    128 + 4 bytes).
    """
    return State(name="index", per_token=dim, heads=1, stride=stride, dtype="float8_e4m3", extra_bytes_per_token=4)


def index_flops(heads: int, dim: int) -> int:
    """FLOPs of scoring one index key: per head a dot product 2·dim, then ReLU, weight and sum (3)."""
    return heads * (2 * dim + 3)


def state_dtype(fields: Fields, *names: str, default: str) -> str:
    """The storage dtype a config gives its recurrent state."""
    for name in names:
        value = fields.raw(name, None)
        if value is not None:
            return dtypes.canonical(str(value), where=f"{fields.where}: {name}")
    return default


def note_recurrent(draft: Draft, fields: Fields) -> None:
    """Says in which dtype the recurrent state is counted where the config leaves it to the engine."""
    if not any(name in fields for name in STATE_DTYPES):
        draft.notes.append(
            f"the config names no dtype of the recurrent state: {draft.dtype} is counted, as vLLM keeps it by default; "
            "SGLang keeps float32"
        )


def exactly(fields: Fields, name: str, *allowed: object, default: object = None) -> None:
    """A field whose other values would change weights or caches in ways not known here: refused by name."""
    value = fields.raw(name, default)
    if value not in allowed:
        raise NotUnderstood(
            f"field {name!r} is {value!r}"[:200],
            where=fields.where,
            expected=" or ".join(map(repr, allowed)),
        )


def scaled(fields: Fields) -> None:
    """Granite's and Falcon-H1's factors on embeddings, attention, residuals and logits: no weight, no cache."""
    fields.ignore("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
    fields.ignore("lm_head_multiplier", "mlp_multipliers", "key_multiplier", "ssm_multipliers")
    fields.ignore("attention_in_multiplier", "attention_out_multiplier", "ssm_in_multiplier", "ssm_out_multiplier")


def stays(draft: Draft, *roles: str) -> None:
    """Roles the family's checkpoints keep in the model's dtype, though no list in their configs says so."""
    for role in roles:
        draft.role_schemes[role] = ""

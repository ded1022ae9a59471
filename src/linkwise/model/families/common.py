"""The building blocks families share: each writes one module's weights down with names, roles, shapes and splits.

Roles of an attention: attn.q, attn.k, attn.v, attn.o (MLA: attn.q_a, attn.q_b, attn.kv_a, attn.kv_b), their biases
`<role>.bias`, norms inside it attn.q_norm, attn.k_norm, attn.q_a_norm, attn.kv_a_norm, and attn.sinks. Of a layer:
norm.input, norm.post_attn, ...; of the stack: norm.final, embed, head.
"""

from typing import NamedTuple

import msgspec

from linkwise.core import dtypes
from linkwise.core.errors import InputError, NotUnderstood
from linkwise.model.draft import Draft, Fields
from linkwise.model.types import Split, State

# Bounds beyond which a config is absurd rather than large.
MAX_LAYERS = 2_000
MAX_WIDTH = 4_000_000
MAX_VOCAB = 100_000_000
MAX_HEADS = 65_536
MAX_EXPERTS = 100_000
# Names of a feed-forward block's gate, up and down projections: the usual ones, and Mixtral's.
GATE_UP_DOWN = ("gate_proj", "up_proj", "down_proj")
W1_W3_W2 = ("w1", "w3", "w2")
# Names of an attention's projections.
QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")


class Site(NamedTuple):
    """A module of the checkpoint being written down: its name, its layer, and what stands before its roles."""

    draft: Draft
    name: str
    layer: int = -1
    under: str = ""  # "" or "mtp."

    def at(self, child: str) -> "Site":
        """A submodule."""
        return self._replace(name=f"{self.name}.{child}")

    def linear(
        self,
        child: str,
        role: str,
        outputs: int,
        inputs: int,
        split: Split = Split.NONE,
        *,
        units: int = 0,
        bias: bool = False,
        count: int = 1,
        dtype: str | None = None,
    ) -> None:
        """A projection, output features first; a bias splits with the outputs (whole when the inputs are split)."""
        name, role = f"{self.name}.{child}", self.under + role
        self.draft.add(
            name, role, outputs, inputs, layer=self.layer, split=split, units=units, count=count, dtype=dtype
        )
        if bias:
            kind = Split.NONE if split is Split.ROW else split
            of = 0 if kind is Split.NONE else units
            self.draft.add(f"{name}.bias", f"{role}.bias", outputs, layer=self.layer, split=kind, units=of, count=count)

    def vector(
        self,
        child: str,
        role: str,
        size: int,
        *,
        split: Split = Split.NONE,
        units: int = 0,
        dtype: str | None = None,
        bias: bool = False,
    ) -> None:
        """A norm, a set of sinks, a router's correction bias; `bias` for a LayerNorm's second vector."""
        name, role = f"{self.name}.{child}", self.under + role
        self.draft.add(name, role, size, layer=self.layer, split=split, units=units, dtype=dtype)
        if bias:
            self.draft.add(
                f"{name}.bias", f"{role}.bias", size, layer=self.layer, split=split, units=units, dtype=dtype
            )


def begin(fields: Fields) -> Draft:
    """An empty draft in the config's dtype. A config without one gets bfloat16 and a note that says so."""
    fields.raw("torch_dtype", None)
    name = fields.raw("dtype", None) or fields.raw("torch_dtype", None)
    if name is None:
        draft = Draft("bfloat16")
        draft.notes.append("the config names no torch_dtype: unquantised weights are taken to be bfloat16")
        return draft
    return Draft(dtypes.canonical(str(name), where=f"{fields.where}: torch_dtype"))


def start(fields: Fields, *, tied_default: bool = False) -> tuple[Draft, int, int]:
    """A draft with its embedding and head; the hidden size; the number of layers."""
    draft = begin(fields)
    return draft, embedding(draft, fields, tied_default=tied_default), layer_count(fields)


def layer_count(fields: Fields) -> int:
    return fields.integer("num_hidden_layers", least=1, most=MAX_LAYERS)


def layer_indices(fields: Fields, name: str) -> frozenset[int]:
    """A list of layer numbers; empty when absent."""
    listed = fields.sequence(name, default=[])
    if any(isinstance(i, bool) or not isinstance(i, int) or i < 0 for i in listed):
        raise InputError(f"field {name!r} is {listed!r}"[:200], where=fields.where, expected="a list of layer numbers")
    return frozenset(listed)


def layer_flags(fields: Fields, name: str, layers: int, default: list[int] | None = None) -> list[bool]:
    """A list of 0 or 1 for each layer; required where there is no default."""
    values = (fields.sequence(name, layers) if default is None else fields.sequence(name, layers, default))[:layers]
    if any(v not in (0, 1) for v in values):
        raise NotUnderstood(f"field {name!r} is {values!r}"[:200], where=fields.where, expected=f"{layers} of 0 or 1")
    return [bool(v) for v in values]


def layer_kinds(fields: Fields, layers: int, *known: str, name: str = "layer_types") -> list[str]:
    """The kind of each layer, one of `known`; empty when the config does not list them."""
    kinds = [str(kind) for kind in fields.sequence(name, layers, default=None)[:layers]]
    unknown = sorted(set(kinds) - set(known))
    if unknown:
        raise NotUnderstood(f"{name} holds {', '.join(unknown)}"[:200], where=fields.where)
    return kinds


def width(fields: Fields, *names: str, default: int | None = None, least: int = 1) -> int:
    """A size of a tensor's side."""
    return fields.integer(*names, default=default, least=least, most=MAX_WIDTH)


def embedding(draft: Draft, fields: Fields, *, tied_default: bool = False, name: str = "model.embed_tokens") -> int:
    """Embedding and head of a stack, and its final norm's width. Returns the hidden size."""
    hidden = width(fields, "hidden_size")
    vocab = fields.integer("vocab_size", least=1, most=MAX_VOCAB)
    draft.hidden, draft.vocab = hidden, vocab
    draft.tied = fields.flag("tie_word_embeddings", default=tied_default)
    draft.add(name, "embed", vocab, hidden, split=Split.VOCAB)
    if not draft.tied:
        draft.add("lm_head", "head", vocab, hidden, split=Split.VOCAB)
    return hidden


def mlp(
    site: Site,
    *,
    hidden: int,
    inner: int,
    role: str = "mlp",
    gated: bool = True,
    bias: bool = False,
    count: int = 1,
    names: tuple[str, str, str] = GATE_UP_DOWN,
    whole: bool = False,
) -> None:
    """A feed-forward block; `count` equal ones when `site` names experts. `names`: gate, up, down in the checkpoint.
    `whole`: never divided."""
    gate, up, down = names
    column, row = (Split.NONE, Split.NONE) if whole else (Split.COLUMN, Split.ROW)
    if gated:
        site.linear(gate, f"{role}.gate", inner, hidden, column, bias=bias, count=count)
    site.linear(up, f"{role}.up", inner, hidden, column, bias=bias, count=count)
    site.linear(down, f"{role}.down", hidden, inner, row, bias=bias, count=count)


def kv_state(kv_heads: int, k_dim: int, v_dim: int | None = None, *, window: int | None = None) -> State:
    """Keys and values of one layer: kv_heads·(k_dim + v_dim) elements a token.

    In 4 bits (nvfp4) each 16 elements carry a scale byte: 9/16 byte an element. Source: vLLM's
    v1/kv_cache_interface.py (head_size // 2 + head_size // 16 bytes a head).
    """
    v = k_dim if v_dim is None else v_dim
    elements = kv_heads * (k_dim + v)
    packed = (("float4_e2m1", elements * 9 // 16),) if k_dim % 16 == v % 16 == 0 else ()
    return State(name="kv", per_token=elements, heads=kv_heads, window=window, entry_bytes=packed)


def latent_state(kv_rank: int, rope_dim: int) -> State:
    """MLA's cache of one layer: the latent and the shared rotary key, whole on every tensor-parallel rank."""
    return State(name="latent", per_token=kv_rank + rope_dim, heads=1)


def sparse_latent_state(kv_rank: int, rope_dim: int) -> State:
    """MLA's cache below a sparse index (DeepSeek-V3.2, GLM-5).

    In FP8 an entry is the latent in FP8, one float32 scale for each 128 of it, and the rotary key in bfloat16:
    512 + 16 + 128 = 656 bytes. Source: vLLM's fp8_ds_mla (v1/kv_cache_interface.py, MLAAttentionSpec: block_size x 656;
    its test of concat_and_cache_mla: kv_lora_rank + 4 x 4 + 2 x qk_rope_head_dim); SGLang's sparse backend reads the
    same FlashMLA format.
    """
    plain = latent_state(kv_rank, rope_dim)
    entry = kv_rank + 4 * -(-kv_rank // 128) + 2 * rope_dim
    return msgspec.structs.replace(plain, entry_bytes=(("float8_e4m3", entry),))


def attention_heads(
    fields: Fields, hidden: int, *, prefix: str = "", same_kv: bool = False, derived_width: bool = False
) -> tuple[int, int, int]:
    """Heads, key/value heads and head width, from fields whose names start with `prefix`.

    Where a field is absent transformers falls back on the family's class: to as many key/value heads as heads
    (`same_kv`) or to hidden / heads (`derived_width`), else to one model's own number, which would be a guess: refused.
    """
    heads = fields.integer(f"{prefix}num_attention_heads", least=1, most=MAX_HEADS)
    kv_heads = fields.integer(f"{prefix}num_key_value_heads", default=heads if same_kv else None, least=1, most=heads)
    head_dim = head_width(fields, hidden, heads) if derived_width else width(fields, f"{prefix}head_dim")
    if heads % kv_heads or head_dim < 1:
        raise InputError(
            f"{heads} attention heads, {kv_heads} key/value heads, head width {head_dim}",
            where=fields.where,
            expected="key/value heads that divide the attention heads",
        )
    return heads, kv_heads, head_dim


def kv_heads(fields: Fields, default: int | None = None) -> int:
    return fields.integer("num_key_value_heads", default=default, least=1, most=MAX_HEADS)


def head_width(fields: Fields, hidden: int, heads: int) -> int:
    """`head_dim`, or hidden / heads where the config leaves it out; refused when that is no whole number."""
    if "head_dim" not in fields and hidden % heads:
        raise InputError(
            f"hidden_size {hidden} is not divisible by {heads} attention heads, and there is no head_dim",
            where=fields.where,
            expected=f"a multiple of {heads}, or head_dim",
        )
    return width(fields, "head_dim", default=hidden // heads)


def expert_counts(
    fields: Fields, *names: str, per_token: tuple[str, ...] = ("num_experts_per_tok",)
) -> tuple[int, int]:
    """Routed experts, and how many of them a token uses."""
    experts = fields.integer(*names, least=1, most=MAX_EXPERTS)
    return experts, fields.integer(*per_token, least=1, most=experts)


def expert_groups(
    fields: Fields, experts: int, name: str = "n_group", *, all_unless_stated: bool = False
) -> tuple[int, int]:
    """Group-limited routing: groups, and how many a token may use (one, or all, where the config is silent)."""
    groups = fields.integer(name, default=1, least=1, most=experts)
    return groups, fields.integer("topk_group", default=groups if all_unless_stated else 1, least=1, most=groups)


def set_heads(draft: Draft, heads: int, kv_heads: int, head_dim: int) -> None:
    """The model's attention heads: the largest over its layers."""
    draft.heads, draft.kv_heads = max(draft.heads, heads), max(draft.kv_heads, kv_heads)
    draft.head_dim = max(draft.head_dim, head_dim)

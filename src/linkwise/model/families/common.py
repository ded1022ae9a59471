"""The building blocks families share: each writes one module's weights down with names, roles, shapes and splits.

Roles of an attention: attn.q, attn.k, attn.v, attn.o (MLA: attn.q_a, attn.q_b, attn.kv_a, attn.kv_b), their biases
`<role>.bias`, norms inside it attn.q_norm, attn.k_norm, attn.q_a_norm, attn.kv_a_norm, and attn.sinks. Of a layer:
norm.input, norm.post_attn, ...; of the stack: norm.final, embed, head.
"""

from typing import NamedTuple

import msgspec

from linkwise.core import dtypes
from linkwise.core.errors import InputError
from linkwise.model.draft import Draft, Fields
from linkwise.model.types import Layer, Moe, Split, State

# Bounds beyond which a config is absurd rather than large.
MAX_LAYERS = 2_000
MAX_WIDTH = 4_000_000
MAX_VOCAB = 100_000_000
MAX_HEADS = 65_536
MAX_EXPERTS = 100_000


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


def layer_count(fields: Fields) -> int:
    return fields.integer("num_hidden_layers", least=1, most=MAX_LAYERS)


def layer_indices(fields: Fields, name: str) -> frozenset[int]:
    """A list of layer numbers; empty when absent."""
    listed = fields.sequence(name, default=[])
    if any(isinstance(i, bool) or not isinstance(i, int) or i < 0 for i in listed):
        raise InputError(f"field {name!r} is {listed!r}"[:200], where=fields.where, expected="a list of layer numbers")
    return frozenset(listed)


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


def gqa(
    site: Site,
    *,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    v_dim: int | None = None,
    bias: bool = False,
    out_bias: bool = False,
    qk_norm: str = "",
    gated: bool = False,
    sinks: bool = False,
) -> None:
    """Grouped-query attention: q, k, v, o and what belongs to them. `site` is the attention module.

    qk_norm: "head" (one vector of head_dim shared by heads) or "full" (one element per feature of all heads).
    gated: the query projection also makes an output gate, twice as wide. sinks: one learned logit per head.
    Shapes: q [heads·head_dim, hidden], k [kv_heads·head_dim, hidden], v [kv_heads·v_dim, hidden],
    o [hidden, heads·v_dim].
    """
    v = head_dim if v_dim is None else v_dim
    site.linear(
        "q_proj", "attn.q", heads * head_dim * (2 if gated else 1), hidden, Split.COLUMN, units=heads, bias=bias
    )
    site.linear("k_proj", "attn.k", kv_heads * head_dim, hidden, Split.KV, units=kv_heads, bias=bias)
    site.linear("v_proj", "attn.v", kv_heads * v, hidden, Split.KV, units=kv_heads, bias=bias)
    site.linear("o_proj", "attn.o", hidden, heads * v, Split.ROW, units=heads, bias=out_bias)
    if qk_norm == "head":
        site.vector("q_norm", "attn.q_norm", head_dim)
        site.vector("k_norm", "attn.k_norm", head_dim)
    elif qk_norm == "full":
        site.vector("q_norm", "attn.q_norm", heads * head_dim, split=Split.COLUMN, units=heads)
        site.vector("k_norm", "attn.k_norm", kv_heads * head_dim, split=Split.KV, units=kv_heads)
    if sinks:
        site.vector("sinks", "attn.sinks", heads, split=Split.COLUMN, units=heads)


def mla(
    site: Site,
    *,
    hidden: int,
    heads: int,
    q_rank: int,
    kv_rank: int,
    nope_dim: int,
    rope_dim: int,
    v_dim: int,
    bias: bool = False,
) -> None:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434). `q_rank` 0 = an uncompressed query projection.

    Shapes: q_a [q_rank, hidden], q_b [heads·(nope+rope), q_rank], kv_a [kv_rank+rope, hidden],
    kv_b [heads·(nope+v), kv_rank], o [hidden, heads·v]. The `a` projections are whole on every rank.
    """
    if q_rank:
        site.linear("q_a_proj", "attn.q_a", q_rank, hidden, bias=bias)
        site.vector("q_a_layernorm", "attn.q_a_norm", q_rank)
        site.linear("q_b_proj", "attn.q_b", heads * (nope_dim + rope_dim), q_rank, Split.COLUMN, units=heads)
    else:
        site.linear("q_proj", "attn.q", heads * (nope_dim + rope_dim), hidden, Split.COLUMN, units=heads)
    site.linear("kv_a_proj_with_mqa", "attn.kv_a", kv_rank + rope_dim, hidden, bias=bias)
    site.vector("kv_a_layernorm", "attn.kv_a_norm", kv_rank)
    site.linear("kv_b_proj", "attn.kv_b", heads * (nope_dim + v_dim), kv_rank, Split.COLUMN, units=heads)
    site.linear("o_proj", "attn.o", hidden, heads * v_dim, Split.ROW, units=heads, bias=bias)


def mlp(
    site: Site,
    *,
    hidden: int,
    inner: int,
    role: str = "mlp",
    gated: bool = True,
    bias: bool = False,
    count: int = 1,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
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


def moe(
    site: Site,
    *,
    hidden: int,
    inner: int,
    experts: int,
    shared_inner: int = 0,
    shared_name: str = "shared_experts",
    shared_gate: str = "",
    router: str = "gate",
    router_bias: bool = False,
    router_dtype: str | None = None,
    correction: str = "",
    correction_dtype: str | None = "float32",
    gated: bool = True,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> None:
    """Router, routed experts, shared experts. `site` is the MoE module.

    router_dtype: storage dtype of the router where it differs from the model's (MiniMax-M2, MiMo-V2-Flash: float32).
    shared_inner: total width of the shared experts (they are one MLP in checkpoints); 0 = none.
    shared_gate: name of a [1, hidden] gate on the shared experts (Qwen); correction: name of the router's
    selection bias, kept in float32 by DeepSeek-V3 and its descendants (None = the model's dtype).
    """
    site.linear(router, "moe.router", experts, hidden, bias=router_bias, dtype=router_dtype)
    if correction:
        site.vector(correction, "moe.router.correction", experts, dtype=correction_dtype)
    mlp(site.at("experts.*"), hidden=hidden, inner=inner, role="moe.experts", gated=gated, count=experts, names=names)
    if shared_inner:
        mlp(site.at(shared_name), hidden=hidden, inner=shared_inner, role="moe.shared", gated=gated)
    if shared_gate:
        site.linear(shared_gate, "moe.shared.router", 1, hidden)


def record_moe(draft: Draft, moe_facts: Moe) -> None:
    """The model's routing facts, set once by its first MoE layer."""
    draft.moe = draft.moe or moe_facts


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


def attention_layer(
    index: int,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    v_dim: int | None = None,
    ffn: str = "dense",
    mixer: str = "full",
    window: int | None = None,
) -> Layer:
    """A decoder layer of grouped-query attention; `window` bounds what it attends and what it keeps."""
    v = head_dim if v_dim is None else v_dim
    return Layer(
        index=index,
        mixer=mixer,
        ffn=ffn,
        states=(kv_state(kv_heads, head_dim, v, window=window),),
        attn_flops_per_pair=2 * heads * (head_dim + v),
        attends=window,
    )


def mla_layer(index: int, *, heads: int, nope_dim: int, rope_dim: int, v_dim: int, kv_rank: int, ffn: str) -> Layer:
    """A decoder layer of latent attention. FLOPs are of the expanded heads, as the model defines them."""
    return Layer(
        index=index,
        mixer="mla",
        ffn=ffn,
        states=(latent_state(kv_rank, rope_dim),),
        attn_flops_per_pair=2 * heads * (nope_dim + rope_dim + v_dim),
    )


def layer_norms(
    site: Site, hidden: int, names: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
) -> None:
    """The hidden-sized norms of a layer; their roles follow their order: norm.input, norm.post_attn, then the name."""
    for position, name in enumerate(names):
        role = ("norm.input", "norm.post_attn")[position] if position < 2 else f"norm.{name}"
        site.vector(name, role, hidden)


def attention_heads(
    draft: Draft, fields: Fields, *, same_kv: bool = False, derived_width: bool = False
) -> tuple[int, int, int]:
    """Heads, key/value heads and head width; recorded in the draft.

    Where a field is absent transformers falls back on the family's class: to as many key/value heads as heads
    (`same_kv`) or to hidden / heads (`derived_width`), else to one model's own number, which would be a guess: refused.
    """
    heads = fields.integer("num_attention_heads", least=1, most=MAX_HEADS)
    kv_heads = fields.integer("num_key_value_heads", default=heads if same_kv else None, least=1, most=heads)
    head_dim = head_width(fields, draft.hidden, heads) if derived_width else width(fields, "head_dim")
    if heads % kv_heads or head_dim < 1:
        raise InputError(
            f"{heads} attention heads, {kv_heads} key/value heads, head width {head_dim}",
            where=fields.where,
            expected="key/value heads that divide the attention heads",
        )
    set_heads(draft, heads, kv_heads, head_dim)
    return heads, kv_heads, head_dim


def head_width(fields: Fields, hidden: int, heads: int) -> int:
    """`head_dim`, or hidden / heads where the config leaves it out; refused when that is no whole number."""
    if "head_dim" not in fields and hidden % heads:
        raise InputError(
            f"hidden_size {hidden} is not divisible by {heads} attention heads, and there is no head_dim",
            where=fields.where,
            expected=f"a multiple of {heads}, or head_dim",
        )
    return width(fields, "head_dim", default=hidden // heads)


def with_ffn(layer: Layer, ffn: str) -> Layer:
    """The layer with another feed-forward kind."""
    return msgspec.structs.replace(layer, ffn=ffn)


def set_heads(draft: Draft, heads: int, kv_heads: int, head_dim: int) -> None:
    """The model's attention heads: the largest over its layers."""
    draft.heads, draft.kv_heads = max(draft.heads, heads), max(draft.kv_heads, kv_heads)
    draft.head_dim = max(draft.head_dim, head_dim)

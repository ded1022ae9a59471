"""What a decoder layer is made of: parts that write their weights down and say what they keep and compute.

A family's reader lists the parts of each layer; `decoder` and `mtp` write them down in the order listed. Parts:
`Vector` and `Linear` (one weight), `Gqa` and `Mla` (attention), `Dense` and `Experts` (feed-forward), a family's own.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass

from msgspec.structs import replace

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common
from linkwise.model.families.common import GATE_UP_DOWN, QKVO, Site
from linkwise.model.types import Layer, Moe, Split


class Part(ABC):
    """Something a layer has."""

    @abstractmethod
    def write(self, site: Site) -> None:
        """Its weights; `site` is the layer."""

    def facts(self, layer: Layer) -> Layer:
        """The layer with what this part keeps and computes."""
        return layer


def block(site: Site, parts: Iterable[Part]) -> Layer:
    """Writes one layer down, part by part."""
    layer = Layer(index=site.layer, mixer="none", ffn="none")
    for part in parts:
        part.write(site)
        layer = part.facts(layer)
    return layer


def stack(draft: Draft, layers: Iterable[Iterable[Part]], *, at: str = "model.layers") -> None:
    """Writes every layer of the decoder down."""
    for index, parts in enumerate(layers):
        draft.layers.append(block(Site(draft, f"{at}.{index}", index), parts))


def decoder(draft: Draft, layers: Iterable[Iterable[Part]], *, final: str = "model.norm", bias: bool = False) -> Draft:
    """The decoder stack and its final norm, by name; `bias` where that is a LayerNorm with a second vector."""
    stack(draft, layers)
    draft.add(final, "norm.final", draft.hidden)
    if bias:
        draft.add(f"{final}.bias", "norm.final.bias", draft.hidden)
    return draft


def mtp(draft: Draft, layers: Iterable[Iterable[Part]], *, at: str = "") -> None:
    """Multi-token-prediction layers, after the stack. `at`: where they are numbered from 0; without it their names
    count on from the stack's."""
    first = len(draft.layers)
    for number, parts in enumerate(layers):
        name = f"{at}.{number}" if at else f"model.layers.{first + number}"
        block(Site(draft, name, first + number, "mtp."), parts)
        draft.mtp_layers = number + 1


@dataclass(frozen=True)
class Vector(Part):
    """A norm, a scale or a set of sinks."""

    child: str
    role: str
    size: int
    _: KW_ONLY
    split: Split = Split.NONE
    units: int = 0
    bias: bool = False  # a LayerNorm's second vector

    def write(self, site: Site) -> None:
        site.vector(self.child, self.role, self.size, split=self.split, units=self.units, bias=self.bias)


@dataclass(frozen=True)
class Linear(Part):
    """A projection beside attention and feed-forward, output features first."""

    child: str
    role: str
    outputs: int
    inputs: int
    split: Split = Split.NONE
    units: int = 0

    def write(self, site: Site) -> None:
        site.linear(self.child, self.role, self.outputs, self.inputs, self.split, units=self.units)


def norms(hidden: int, *names: str, bias: bool = False) -> tuple[Part, ...]:
    """The hidden-sized norms of a layer; their roles follow their order: norm.input, norm.post_attn, then the name."""
    names = names or ("input_layernorm", "post_attention_layernorm")
    roles = ("norm.input", "norm.post_attn", *(f"norm.{name}" for name in names[2:]))
    return tuple(Vector(name, role, hidden, bias=bias) for name, role in zip(names, roles, strict=False))


def mtp_inputs(hidden: int, projection: str = "eh_proj", *names: str) -> tuple[Part, ...]:
    """What joins the next token's embedding and the last hidden state: two norms, a [hidden, 2·hidden] projection."""
    joined = [Vector(name, f"norm.{name}", hidden) for name in names or ("enorm", "hnorm")]
    return (*joined, Linear(projection, "eh_proj", hidden, 2 * hidden))


@dataclass(frozen=True)
class Gqa(Part):
    """Grouped-query attention: q, k, v, o and what belongs to them, the keys and values it keeps.

    qk_norm: "head" (one vector of head_dim shared by heads), "full" (one element per feature of all heads) or "each" (a
    vector of head_dim for each head).
    gated: the query projection also makes an output gate, twice as wide. sinks: one learned logit per head, by name.
    window: bounds what it attends and what it keeps; `bounded` names such a mixer.
    Shapes: q [heads·head_dim, hidden], k [kv_heads·head_dim, hidden], v [kv_heads·v_dim, hidden],
    o [hidden, heads·v_dim].
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    _: KW_ONLY
    v_dim: int = 0  # 0 = head_dim
    bias: bool = False
    out_bias: bool = False
    qk_norm: str = ""
    gated: bool = False
    sinks: str = ""
    window: int | None = None
    bounded: str = "sliding"
    name: str = "self_attn"
    names: tuple[str, str, str, str] = QKVO  # equal ones are slices of one stored tensor

    def within(self, window: int | None) -> "Gqa":
        """The same attention under a window, None for none."""
        return dataclasses.replace(self, window=window)

    def write(self, site: Site) -> None:
        common.set_heads(site.draft, self.heads, self.kv_heads, self.head_dim)
        site, heads, kv_heads, hidden = site.at(self.name), self.heads, self.kv_heads, self.hidden
        keys, values = kv_heads * self.head_dim, kv_heads * (self.v_dim or self.head_dim)
        queries = heads * self.head_dim
        outputs = queries * 2 if self.gated else queries
        q, k, v, o = self.names
        site.linear(q, "attn.q", outputs, hidden, Split.COLUMN, units=heads, bias=self.bias)
        site.linear(k, "attn.k", keys, hidden, Split.KV, units=kv_heads, bias=self.bias)
        site.linear(v, "attn.v", values, hidden, Split.KV, units=kv_heads, bias=self.bias)
        inner = heads * (self.v_dim or self.head_dim)
        site.linear(o, "attn.o", hidden, inner, Split.ROW, units=heads, bias=self.out_bias)
        if self.qk_norm == "head":
            site.vector("q_norm", "attn.q_norm", self.head_dim)
            site.vector("k_norm", "attn.k_norm", self.head_dim)
        elif self.qk_norm == "full":
            site.vector("q_norm", "attn.q_norm", queries, split=Split.COLUMN, units=heads)
            site.vector("k_norm", "attn.k_norm", keys, split=Split.KV, units=kv_heads)
        elif self.qk_norm == "each":
            for child, split, units in (("q_norm", Split.COLUMN, heads), ("k_norm", Split.KV, kv_heads)):
                name, role = f"{site.name}.{child}", f"{site.under}attn.{child}"
                site.draft.add(name, role, units, self.head_dim, layer=site.layer, split=split, units=units)
        if self.sinks:
            site.vector(self.sinks, "attn.sinks", heads, split=Split.COLUMN, units=heads)

    def facts(self, layer: Layer) -> Layer:
        v_dim = self.v_dim or self.head_dim
        return replace(
            layer,
            mixer="full" if self.window is None else self.bounded,
            states=(common.kv_state(self.kv_heads, self.head_dim, v_dim, window=self.window),),
            attn_flops_per_pair=2 * self.heads * (self.head_dim + v_dim),
            attends=self.window,
        )


@dataclass(frozen=True)
class Mla(Part):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434). `q_rank` 0 = an uncompressed query projection.

    attends: keys a sparse index chooses for a query; None = every one. FLOPs are of the expanded heads.
    Shapes: q_a [q_rank, hidden], q_b [heads·(nope+rope), q_rank], kv_a [kv_rank+rope, hidden],
    kv_b [heads·(nope+v), kv_rank], o [hidden, heads·v]. The `a` projections are whole on every rank.
    """

    hidden: int
    heads: int
    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    bias: bool = False
    attends: int | None = None

    @classmethod
    def of(cls, fields: Fields, hidden: int, *, bias: bool = False, attends: int | None = None) -> "Mla":
        """From the config's usual names. Whether queries are compressed must be said: a rank, or null."""
        if not fields.states("q_lora_rank"):
            raise NotUnderstood(
                "field 'q_lora_rank' is missing", where=fields.where, expected="a rank, or null for a plain projection"
            )
        return cls(
            hidden=hidden,
            heads=fields.integer("num_attention_heads", least=1, most=common.MAX_HEADS),
            q_rank=common.width(fields, "q_lora_rank", default=0, least=0),
            kv_rank=common.width(fields, "kv_lora_rank"),
            nope_dim=common.width(fields, "qk_nope_head_dim"),
            rope_dim=common.width(fields, "qk_rope_head_dim"),
            v_dim=common.width(fields, "v_head_dim"),
            bias=bias,
            attends=attends,
        )

    def write(self, site: Site) -> None:
        draft, site, heads, hidden = site.draft, site.at("self_attn"), self.heads, self.hidden
        head_dim, kept = self.nope_dim + self.rope_dim, self.kv_rank + self.rope_dim
        common.set_heads(draft, heads, heads, head_dim)
        draft.mla_latent, draft.mla_rope = kept, self.rope_dim
        if self.q_rank:
            site.linear("q_a_proj", "attn.q_a", self.q_rank, hidden, bias=self.bias)
            site.vector("q_a_layernorm", "attn.q_a_norm", self.q_rank)
            site.linear("q_b_proj", "attn.q_b", heads * head_dim, self.q_rank, Split.COLUMN, units=heads)
        else:
            site.linear("q_proj", "attn.q", heads * head_dim, hidden, Split.COLUMN, units=heads)
        site.linear("kv_a_proj_with_mqa", "attn.kv_a", kept, hidden, bias=self.bias)
        site.vector("kv_a_layernorm", "attn.kv_a_norm", self.kv_rank)
        expanded = heads * (self.nope_dim + self.v_dim)
        site.linear("kv_b_proj", "attn.kv_b", expanded, self.kv_rank, Split.COLUMN, units=heads)
        site.linear("o_proj", "attn.o", hidden, heads * self.v_dim, Split.ROW, units=heads, bias=self.bias)

    def facts(self, layer: Layer) -> Layer:
        state = common.latent_state if self.attends is None else common.sparse_latent_state
        return replace(
            layer,
            mixer="mla" if self.attends is None else "sparse",
            states=(state(self.kv_rank, self.rope_dim),),
            attn_flops_per_pair=2 * self.heads * (self.nope_dim + self.rope_dim + self.v_dim),
            attends=self.attends,
        )


@dataclass(frozen=True)
class Dense(Part):
    """One feed-forward block in module `name`."""

    hidden: int
    inner: int
    _: KW_ONLY
    bias: bool = False
    gated: bool = True
    name: str = "mlp"
    names: tuple[str, str, str] = GATE_UP_DOWN  # equal ones are slices of one stored tensor

    def write(self, site: Site) -> None:
        common.mlp(
            site.at(self.name),
            hidden=self.hidden,
            inner=self.inner,
            gated=self.gated,
            bias=self.bias,
            names=self.names,
        )

    def facts(self, layer: Layer) -> Layer:
        return replace(layer, ffn="dense")


@dataclass(frozen=True)
class Experts(Part):
    """Router, routed experts and shared experts in module `name`; "" where they stand in the layer itself.

    groups: how many the experts form, and how many of them a token may use.
    shared, shared_inner: number and total width of the shared experts (they are one MLP in checkpoints); 0 = none.
    shared_gate: name of a [1, hidden] gate on the shared experts (Qwen). routed: module of the routed experts.
    router_dtype: storage dtype of the router where it differs from the model's. correction: name of the router's
    selection bias, float32 in every checkpoint that has one.
    latent: width between projections `latent_names` (down, up) in which routed experts work; 0 = the model's.
    bias: of the routed experts; shared_bias: of the shared ones and the latent projections.
    names, shared_names: gate, up and down in the checkpoint.
    """

    hidden: int
    inner: int
    experts: int
    top_k: int
    _: KW_ONLY
    groups: tuple[int, int] = (1, 1)
    shared: int = 0
    shared_inner: int = 0
    shared_gate: str = ""
    router: str = "gate"
    router_bias: bool = False
    router_dtype: str | None = None
    correction: str = ""
    latent: int = 0
    latent_names: tuple[str, str] = ("", "")
    latent_norm: str = ""
    gated: bool = True
    bias: bool = False
    shared_bias: bool = False
    name: str = "mlp"
    routed: str = "experts.*"
    shared_name: str = "shared_experts"
    names: tuple[str, str, str] = GATE_UP_DOWN
    shared_names: tuple[str, str, str] = GATE_UP_DOWN

    def write(self, site: Site) -> None:
        site.draft.moe = Moe(
            experts=self.experts,
            top_k=self.top_k,
            hidden=self.latent or self.hidden,
            intermediate=self.inner,
            shared_experts=self.shared,
            groups=self.groups[0],
            top_groups=self.groups[1],
        )
        site = site.at(self.name) if self.name else site
        self.write_router(site)
        if self.latent:
            down, up = self.latent_names
            site.linear(down, "moe.latent.down", self.latent, self.hidden, bias=self.shared_bias)
            site.linear(up, "moe.latent.up", self.hidden, self.latent, bias=self.shared_bias)
            if self.latent_norm:
                site.vector(self.latent_norm, "moe.latent.norm", self.latent)
        common.mlp(
            site.at(self.routed),
            hidden=self.latent or self.hidden,
            inner=self.inner,
            role="moe.experts",
            gated=self.gated,
            bias=self.bias,
            count=self.experts,
            names=self.names,
        )
        if self.shared_inner:
            common.mlp(
                site.at(self.shared_name),
                hidden=self.hidden,
                inner=self.shared_inner,
                role="moe.shared",
                gated=self.gated,
                bias=self.shared_bias,
                names=self.shared_names,
            )
        if self.shared_gate:
            site.linear(self.shared_gate, "moe.shared.router", 1, self.hidden)

    def write_router(self, site: Site) -> None:
        """What chooses the experts; `site` is the module."""
        site.linear(
            self.router, "moe.router", self.experts, self.hidden, bias=self.router_bias, dtype=self.router_dtype
        )
        if self.correction:
            site.vector(self.correction, "moe.router.correction", self.experts, dtype="float32")

    def facts(self, layer: Layer) -> Layer:
        return replace(layer, ffn="moe")

"""Gemma 4: sliding layers with a global layer every few, whose heads are wider and may reuse keys as values.

The mixture-of-experts block stands beside the dense MLP of the same layer, each with norms of its own; small models
share keys and values between late layers and add a per-layer embedding.
"""

from msgspec.structs import replace

from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common, states
from linkwise.model.families.common import Site
from linkwise.model.families.parts import Dense, Experts, Linear, Part, Vector, decoder, norms
from linkwise.model.types import Layer, Split

_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
_SLIDING = "sliding_attention"
_MOE_NORMS = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")


def read(fields: Fields) -> Draft:
    """A draft from the text section."""
    draft, hidden, count = common.start(fields, tied_default=True)
    window = fields.integer("sliding_window", least=1)
    kinds = _layer_kinds(fields, count)
    shared = fields.integer("num_kv_shared_layers", default=0, most=count)
    wide = fields.flag("use_double_wide_mlp")
    inner = common.width(fields, "intermediate_size")
    after = (*norms(hidden, *_NORMS), Vector("layer_scalar", "norm.scalar", 1))
    if fields.flag("enable_moe_block"):
        after += (_experts(fields, hidden), *(Vector(name, f"norm.{name}", hidden) for name in _MOE_NORMS))
    else:
        fields.ignore("num_experts", "top_k_experts", "moe_intermediate_size", "expert_intermediate_size")
    after += _per_layer(draft, fields, hidden, count)
    states.exactly(fields, "attention_bias", False, default=False)
    # "vision": images see each other both ways at prefill; no weight, no cache.
    states.exactly(fields, "use_bidirectional_attention", "vision", None)
    layers: list[tuple[Part, ...]] = []
    for index, (kind, own) in enumerate(zip(kinds, _own_sizes(fields, kinds), strict=True)):
        reuses = index >= count - shared
        ffn = Dense(hidden, inner * (2 if wide and reuses else 1))
        layers.append((_Attention(fields, own, hidden, window if kind == _SLIDING else None, reuses), ffn, *after))
    return decoder(draft, layers)


def _own_sizes(fields: Fields, kinds: list[str]) -> list[tuple[int, int]]:
    """Key/value heads and head width of each layer: global ones have their own, which transformers writes as changes
    to single layers."""
    sizes = common.kv_heads(fields), common.width(fields, "head_dim")
    if "per_layer_config" in fields:
        changes = fields.per_layer(len(kinds))
        return [(common.kv_heads(own, sizes[0]), common.width(own, "head_dim", default=sizes[1])) for own in changes]
    wide = common.width(fields, "global_head_dim", default=512)
    few = fields.integer("num_global_key_value_heads", default=sizes[0], least=1, most=common.MAX_HEADS)
    own = few if fields.flag("attention_k_eq_v") else sizes[0], wide
    return [sizes if kind == _SLIDING else own for kind in kinds]


def _layer_kinds(fields: Fields, count: int) -> list[str]:
    kinds = common.layer_kinds(fields, count, _SLIDING, "full_attention")
    return kinds or ["full_attention" if (i + 1) % 6 == 0 else _SLIDING for i in range(count)]


class _Attention(Part):
    """Attention of one kind of layer; one that `reuses` takes keys and values from an earlier layer.

    With `attention_k_eq_v` a global layer has no value projection: values are the unrotated keys under another norm, so
    both are still cached.
    """

    def __init__(self, fields: Fields, sizes: tuple[int, int], hidden: int, window: int | None, reuses: bool) -> None:
        self.reuses, self.hidden, self.window = reuses, hidden, window
        self.heads = fields.integer("num_attention_heads", least=1, most=common.MAX_HEADS)
        self.kv_heads, self.head_dim = sizes
        self.k_is_v = fields.flag("attention_k_eq_v") and window is None

    def write(self, site: Site) -> None:
        common.set_heads(site.draft, self.heads, self.kv_heads, self.head_dim)
        site = site.at("self_attn")
        heads, dim = self.heads, self.head_dim
        site.linear("q_proj", "attn.q", heads * dim, self.hidden, Split.COLUMN, units=heads)
        site.vector("q_norm", "attn.q_norm", dim)
        if not self.reuses:
            site.linear("k_proj", "attn.k", self.kv_heads * dim, self.hidden, Split.KV, units=self.kv_heads)
            if not self.k_is_v:
                site.linear("v_proj", "attn.v", self.kv_heads * dim, self.hidden, Split.KV, units=self.kv_heads)
            site.vector("k_norm", "attn.k_norm", dim)
        site.linear("o_proj", "attn.o", self.hidden, heads * dim, Split.ROW, units=heads)

    def facts(self, layer: Layer) -> Layer:
        kept = () if self.reuses else (common.kv_state(self.kv_heads, self.head_dim, window=self.window),)
        return replace(
            layer,
            mixer="sliding" if self.window else "full",
            states=kept,
            attn_flops_per_pair=4 * self.heads * self.head_dim,
            attends=self.window,
        )


class _Experts(Experts):
    """Experts whose router has a scale per feature and per expert; the layer's dense MLP plays the shared expert."""

    def write_router(self, site: Site) -> None:
        router = site.at("router")
        router.linear("proj", "moe.router", self.experts, self.hidden)
        router.vector("scale", "moe.router.scale", self.hidden)
        router.vector("per_expert_scale", "moe.router.expert_scale", self.experts)


def _experts(fields: Fields, hidden: int) -> _Experts:
    inner = common.width(fields, "moe_intermediate_size", "expert_intermediate_size")
    counts = common.expert_counts(fields, "num_experts", per_token=("top_k_experts",))
    return _Experts(hidden, inner, *counts, name="")


def _per_layer(draft: Draft, fields: Fields, hidden: int, count: int) -> tuple[Part, ...]:
    """The per-layer embedding of the small models: what it adds to the model, and the parts it adds to a layer."""
    width = common.width(fields, "hidden_size_per_layer_input", default=256, least=0)
    vocab = fields.integer("vocab_size_per_layer_input", default=262_144, most=common.MAX_VOCAB)
    if not width:
        return ()
    draft.add("model.embed_tokens_per_layer", "embed.per_layer", vocab, count * width, split=Split.VOCAB)
    draft.add("model.per_layer_model_projection", "mlp.per_layer", count * width, hidden)
    draft.add("model.per_layer_projection_norm", "norm.per_layer", width)
    return (
        Linear("per_layer_input_gate", "mlp.per_layer.gate", width, hidden),
        Linear("per_layer_projection", "mlp.per_layer.up", hidden, width),
        Vector("post_per_layer_input_norm", "norm.per_layer", hidden),
    )


def vision(top: Fields, draft: Draft) -> None:
    """The vision tower: patch projection, positions learned per axis, gated MLP blocks, a projection to text.

    Whole on every rank: vLLM's gemma4_mm.py takes the tower from transformers and its projection is a ReplicatedLinear.
    """
    fields = top.section("vision_config")
    if fields is None:
        return
    width, inner = common.width(fields, "hidden_size"), common.width(fields, "intermediate_size")
    heads = fields.integer("num_attention_heads", least=1, most=common.MAX_HEADS)
    kv_heads = fields.integer("num_key_value_heads", default=heads, least=1, most=common.MAX_HEADS)
    dim, patch = common.width(fields, "head_dim"), common.width(fields, "patch_size")
    states.exactly(fields, "attention_bias", False, default=False)
    clipped = fields.flag("use_clipped_linears")
    tower = Site(draft, "model.vision_tower", under="vision.")
    tower.linear("patch_embedder.input_proj", "patch", width, 3 * patch * patch)
    positions = common.width(fields, "position_embedding_size")
    draft.add("model.vision_tower.patch_embedder.position_embedding_table", "vision.position", 2, positions, width)
    for index in range(common.layer_count(fields)):
        block = tower.at(f"encoder.layers.{index}")
        attention = block.at("self_attn")
        for child, outputs in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            attention.linear(f"{child}_proj.linear", f"attn.{child}", outputs * dim, width)
        attention.linear("o_proj.linear", "attn.o", width, heads * dim)
        attention.vector("q_norm", "attn.q_norm", dim)
        attention.vector("k_norm", "attn.k_norm", dim)
        common.mlp(
            block.at("mlp"),
            hidden=width,
            inner=inner,
            names=("gate_proj.linear", "up_proj.linear", "down_proj.linear"),
            whole=True,
        )
        for name in _NORMS:
            block.vector(name, "norm", width)
        if clipped:
            # Four bounds (inputs and outputs, least and largest) of each of the block's seven projections.
            block.vector("bounds", "bounds", 4 * 7)
    if fields.flag("standardize"):
        tower.vector("std_bias", "standard", width)
        tower.vector("std_scale", "standard", width)
    draft.add("model.embed_vision.embedding_projection", "vision.projector", draft.hidden, width)
    # global_head_dim repeats head_dim here; pooling and soft tokens shorten the sequence, without weights.
    fields.ignore("global_head_dim", "pooling_kernel_size", "max_position_embeddings")
    fields.refuse_leftovers()
    if top.section("audio_config") is not None:
        draft.notes.append("the audio tower is not counted")

"""Gemma 4: sliding layers with a global layer every few, whose heads are wider and may reuse keys as values.

The mixture-of-experts block stands beside the dense MLP of the same layer, each with norms of its own; small models
share keys and values between late layers and add a per-layer embedding.
"""

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common, states
from linkwise.model.families.common import Site
from linkwise.model.types import Layer, Moe, Split

_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
_MOE_NORMS = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")


def read(fields: Fields) -> Draft:
    """A draft from the text section."""
    draft = common.begin(fields)
    hidden = common.embedding(draft, fields, tied_default=True)
    count = common.layer_count(fields)
    window = fields.integer("sliding_window", least=1)
    attention = {kind: _Attention(fields, hidden, kind, window) for kind in ("sliding_attention", "full_attention")}
    kinds = _layer_kinds(fields, count)
    shared = fields.integer("num_kv_shared_layers", default=0, most=count)
    wide = fields.flag("use_double_wide_mlp")
    inner = common.width(fields, "intermediate_size")
    experts = _Experts(fields, hidden) if fields.flag("enable_moe_block") else None
    if experts is None:
        fields.ignore("num_experts", "top_k_experts", "moe_intermediate_size", "expert_intermediate_size")
    per_layer = _per_layer(draft, fields, hidden, count)
    states.exactly(fields, "attention_bias", False, default=False)
    # "vision": images see each other both ways at prefill; no weight, no cache.
    states.exactly(fields, "use_bidirectional_attention", "vision", None)
    for index, kind in enumerate(kinds):
        site = Site(draft, f"model.layers.{index}", index)
        reuses = index >= count - shared
        attention[kind].write(site.at("self_attn"), reuses)
        common.mlp(site.at("mlp"), hidden=hidden, inner=inner * (2 if wide and reuses else 1))
        common.layer_norms(site, hidden, _NORMS)
        site.vector("layer_scalar", "norm.scalar", 1)
        if experts:
            experts.write(site)
        if per_layer:
            site.linear("per_layer_input_gate", "mlp.per_layer.gate", per_layer, hidden)
            site.linear("per_layer_projection", "mlp.per_layer.up", hidden, per_layer)
            site.vector("post_per_layer_input_norm", "norm.per_layer", hidden)
        draft.layers.append(attention[kind].layer(index, "moe" if experts else "dense", reuses))
    draft.add("model.norm", "norm.final", hidden)
    for kind in set(kinds):
        common.set_heads(draft, attention[kind].heads, attention[kind].kv_heads, attention[kind].head_dim)
    return draft


def _layer_kinds(fields: Fields, count: int) -> list[str]:
    kinds = fields.sequence("layer_types", count, default=None)
    if not kinds:
        kinds = ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(count)]
    unknown = set(map(str, kinds)) - {"sliding_attention", "full_attention"}
    if unknown:
        raise NotUnderstood(f"layer_types has {sorted(unknown)}"[:200], where=fields.where)
    return list(kinds[:count])


class _Attention:
    """Attention of one kind of layer. With `attention_k_eq_v` a global layer has no value projection: values are the
    unrotated keys under another norm, so both are still cached."""

    def __init__(self, fields: Fields, hidden: int, kind: str, window: int) -> None:
        full = kind == "full_attention"
        self.hidden, self.window = hidden, None if full else window
        self.heads = fields.integer("num_attention_heads", least=1, most=common.MAX_HEADS)
        self.kv_heads = fields.integer("num_key_value_heads", least=1, most=common.MAX_HEADS)
        self.head_dim = common.width(fields, "head_dim")
        self.k_is_v = fields.flag("attention_k_eq_v") and full
        wide = common.width(fields, "global_head_dim", default=512)
        few = fields.integer("num_global_key_value_heads", default=self.kv_heads, least=1, most=common.MAX_HEADS)
        if full:
            self.head_dim = wide
            self.kv_heads = few if self.k_is_v else self.kv_heads

    def write(self, site: Site, reuses: bool) -> None:
        heads, dim = self.heads, self.head_dim
        site.linear("q_proj", "attn.q", heads * dim, self.hidden, Split.COLUMN, units=heads)
        site.vector("q_norm", "attn.q_norm", dim)
        if not reuses:
            site.linear("k_proj", "attn.k", self.kv_heads * dim, self.hidden, Split.KV, units=self.kv_heads)
            if not self.k_is_v:
                site.linear("v_proj", "attn.v", self.kv_heads * dim, self.hidden, Split.KV, units=self.kv_heads)
            site.vector("k_norm", "attn.k_norm", dim)
        site.linear("o_proj", "attn.o", self.hidden, heads * dim, Split.ROW, units=heads)

    def layer(self, index: int, ffn: str, reuses: bool) -> Layer:
        kept = () if reuses else (common.kv_state(self.kv_heads, self.head_dim, window=self.window),)
        return Layer(
            index=index,
            mixer="sliding" if self.window else "full",
            ffn=ffn,
            states=kept,
            attn_flops_per_pair=4 * self.heads * self.head_dim,
            attends=self.window,
        )


class _Experts:
    """Router (with a scale per feature and per expert) and experts; the layer's dense MLP plays the shared expert."""

    def __init__(self, fields: Fields, hidden: int) -> None:
        self.hidden = hidden
        self.experts = fields.integer("num_experts", least=1, most=common.MAX_EXPERTS)
        self.top_k = fields.integer("top_k_experts", least=1, most=self.experts)
        self.inner = common.width(fields, "moe_intermediate_size", "expert_intermediate_size")

    def write(self, site: Site) -> None:
        router = site.at("router")
        router.linear("proj", "moe.router", self.experts, self.hidden)
        router.vector("scale", "moe.router.scale", self.hidden)
        router.vector("per_expert_scale", "moe.router.expert_scale", self.experts)
        experts = site.at("experts.*")
        common.mlp(experts, hidden=self.hidden, inner=self.inner, role="moe.experts", count=self.experts)
        for name in _MOE_NORMS:
            site.vector(name, f"norm.{name}", self.hidden)
        common.record_moe(
            site.draft,
            Moe(experts=self.experts, top_k=self.top_k, hidden=self.hidden, intermediate=self.inner),
        )


def _per_layer(draft: Draft, fields: Fields, hidden: int, count: int) -> int:
    """The per-layer embedding of the small models; 0 where there is none."""
    width = common.width(fields, "hidden_size_per_layer_input", default=256, least=0)
    vocab = fields.integer("vocab_size_per_layer_input", default=262_144, most=common.MAX_VOCAB)
    if width:
        draft.add("model.embed_tokens_per_layer", "embed.per_layer", vocab, count * width, split=Split.VOCAB)
        draft.add("model.per_layer_model_projection", "mlp.per_layer", count * width, hidden)
        draft.add("model.per_layer_projection_norm", "norm.per_layer", width)
    return width


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

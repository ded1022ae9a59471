"""Kimi Linear and Kimi-K3: delta attention with per-channel decay (KDA), latent attention between, many experts.

KDA: arXiv 2510.26692. K3's extras (output gates of full rank, experts in a latent space, attention over earlier blocks'
residuals) and its vision tower have the names, shapes and float32 parts its published headers have.
"""

from msgspec.structs import replace

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common, states
from linkwise.model.families.common import Site
from linkwise.model.families.parts import Dense, Experts, Linear, Mla, Part, Vector, decoder, norms
from linkwise.model.families.vision import column, row
from linkwise.model.types import Layer, Split


def read(fields: Fields) -> Draft:
    """A draft from the text section of either model."""
    draft, hidden, count = common.start(fields)
    linear = fields.section("linear_attn_config")
    if linear is None:
        raise NotUnderstood("field 'linear_attn_config' is missing", where=fields.where)
    full = _full_layers(linear, count)
    kda, mla = (_Kda(linear, hidden, draft.dtype),), _latent(fields, hidden)
    linear.refuse_leftovers()
    experts, dense = _experts(fields, hidden), Dense(hidden, common.width(fields, "intermediate_size"))
    _considered(fields)
    first = fields.integer("first_k_dense_replace", default=1, most=common.MAX_LAYERS)
    residual = fields.integer("attn_res_block_size", default=0, most=common.MAX_LAYERS)
    after = norms(hidden)
    if residual:
        after += _residual("self_attention_res", hidden) + _residual("mlp_res", hidden)
    decoder(
        draft,
        [(*(mla if index in full else kda), experts if index >= first else dense, *after) for index in range(count)],
    )
    if residual:
        for part in _residual("output_attn_res", hidden):
            part.write(Site(draft, "model"))
    # The released checkpoint quantises routed experts alone, though its ignore list names fewer modules than stay.
    states.stays(draft, "moe.latent")
    return draft


def _full_layers(linear: Fields, count: int) -> frozenset[int]:
    """Indices of the full-attention layers. The config counts from 1 and must name every layer once."""
    full, kda = linear.sequence("full_attn_layers"), linear.sequence("kda_layers")
    if sorted([*full, *kda], key=str) != sorted(range(1, count + 1), key=str):
        raise NotUnderstood(
            "full_attn_layers and kda_layers do not name each layer once", where=linear.where, expected=f"1..{count}"
        )
    return frozenset(i - 1 for i in full)


def _considered(fields: Fields) -> None:
    states.exactly(fields, "moe_layer_freq", 1, default=1)
    states.exactly(fields, "num_nextn_predict_layers", 0, default=0)
    states.exactly(fields, "attention_bias", False, default=False)
    states.exactly(fields, "hidden_act", "silu", "situ", default="silu")
    # How experts are chosen, not what they are; mla_use_nope: no rotation, same shapes. The rest are generation
    # settings every config of this origin repeats.
    fields.ignore("use_grouped_topk", "moe_renormalize", "mla_use_nope", "model_max_length", "head_dim")
    fields.ignore("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "cross_attention_hidden_size")


def _residual(name: str, hidden: int) -> tuple[Part, ...]:
    """Attention over the residuals of earlier blocks (K3): a norm and one direction that scores each of them."""
    return (
        Vector(f"{name}_norm", f"norm.{name}", hidden),
        Linear(f"{name}_proj", f"norm.{name}.direction", 1, hidden),
    )


def _latent(fields: Fields, hidden: int) -> tuple[Part, ...]:
    """Latent attention without rotation; K3 gates its output."""
    mla = Mla.of(fields, hidden)
    states.exactly(fields, "num_key_value_heads", mla.heads, default=mla.heads)
    if not fields.flag("mla_use_output_gate"):
        return (mla,)
    inner = mla.heads * mla.v_dim
    return mla, Linear("self_attn.g_proj", "attn.gate", inner, hidden, Split.COLUMN, units=mla.heads)


def _experts(fields: Fields, hidden: int) -> Experts:
    """Routed experts (K3: between projections into a latent space), shared experts as one MLP at full width."""
    routed, top_k = common.expert_counts(
        fields, "num_experts", per_token=("num_experts_per_token", "num_experts_per_tok")
    )
    inner = common.width(fields, "moe_intermediate_size")
    shared = fields.integer("num_shared_experts", default=0, most=common.MAX_EXPERTS)
    return Experts(
        hidden,
        inner,
        routed,
        top_k,
        groups=common.expert_groups(fields, routed, "num_expert_group"),
        shared=shared,
        shared_inner=shared * inner,
        correction="gate.e_score_correction_bias",
        latent=common.width(fields, "routed_expert_hidden_size", default=0, least=0),
        latent_names=("routed_expert_down_proj", "routed_expert_up_proj"),
        latent_norm="routed_expert_norm" if fields.flag("latent_moe_use_norm") else "",
        name="block_sparse_moe",
        names=common.W1_W3_W2,
    )


class _Kda(Part):
    """Kimi delta attention: q, k, v each convolved; a low-rank decay per channel; an output gate."""

    def __init__(self, linear: Fields, hidden: int, dtype: str) -> None:
        self.hidden, self.dtype = hidden, dtype
        self.heads = linear.integer("num_heads", least=1, most=common.MAX_HEADS)
        self.head_dim = common.width(linear, "head_dim")
        self.kernel = linear.integer("short_conv_kernel_size", least=1, most=1024)
        self.full_gate = linear.flag("use_full_rank_gate")
        self.inner = self.heads * self.head_dim

    def write(self, site: Site) -> None:
        site = site.at("self_attn")
        column, heads, inner, hidden = Split.COLUMN, self.heads, self.inner, self.hidden
        for child in ("q", "k", "v"):
            site.linear(f"{child}_proj", f"linear.{child}", inner, hidden, column, units=heads)
            site.draft.add(
                f"{site.name}.{child}_conv1d",
                "linear.conv",
                inner,
                1,
                self.kernel,
                layer=site.layer,
                split=column,
                units=heads,
                dtype="float32",
            )
        site.linear("f_a_proj", "linear.decay_a", self.head_dim, hidden)
        site.linear("f_b_proj", "linear.decay_b", inner, self.head_dim, column, units=heads)
        site.vector("dt_bias", "linear.dt_bias", inner, split=column, units=heads, dtype="float32")
        # Stored padded to a power of two (K3: 96 heads, 128 values, the last 32 zero).
        site.vector("A_log", "linear.decay", 1 << (heads - 1).bit_length(), dtype="float32")
        site.linear("b_proj", "linear.b", heads, hidden, column, units=heads)
        if self.full_gate:
            site.linear("g_proj", "linear.gate", inner, hidden, column, units=heads)
        else:
            site.linear("g_a_proj", "linear.gate_a", self.head_dim, hidden)
            site.linear("g_b_proj", "linear.gate_b", inner, self.head_dim, column, units=heads)
        site.vector("o_norm", "linear.norm", self.head_dim, dtype="float32")
        site.linear("o_proj", "linear.out", hidden, inner, Split.ROW, units=heads)

    def facts(self, layer: Layer) -> Layer:
        # Three convolutions, kept as one state; the recurrent state is float32 as in the reference kernels.
        channels = 3 * self.inner
        return replace(
            layer,
            mixer="linear",
            states=(
                states.conv_state(channels, self.kernel, heads=self.heads, dtype=self.dtype),
                states.recurrent_state(self.heads, self.head_dim, self.head_dim, dtype="float32"),
            ),
            mixer_flops_per_token=states.conv_flops(channels, self.kernel)
            + states.delta_flops(self.heads, self.head_dim, self.head_dim),
        )


def vision(top: Fields, draft: Draft) -> None:
    """K3's vision tower and projector, as its headers have them: no biases, RMS norms, one fused q/k/v a block."""
    fields = top.section("vision_config")
    if fields is None:
        return
    for flag in ("attn_bias", "linear_bias", "patch_embed_proj_bias"):
        states.exactly(fields, flag, False, default=False)
    states.exactly(fields, "norm_type", "rmsnorm")
    states.exactly(fields, "mlp_type", "mlp2")
    states.exactly(fields, "mm_projector_type", "patchmergerv2")
    states.exactly(fields, "pos_emb_type", "divided_fixed")
    states.exactly(fields, "merge_type", "sd2_tpool", default="sd2_tpool")
    states.exactly(fields, "video_attn_type", "spatial_temporal", default="spatial_temporal")
    heads = fields.integer("vt_num_attention_heads", least=1, most=common.MAX_HEADS)
    width, qkv = common.width(fields, "vt_hidden_size"), common.width(fields, "qkv_hidden_size")
    inner, text = common.width(fields, "vt_intermediate_size"), common.width(fields, "text_hidden_size")
    patch = common.width(fields, "patch_size")
    height, across = common.width(fields, "init_pos_emb_height"), common.width(fields, "init_pos_emb_width")
    merged = width
    for extent in fields.sequence("merge_kernel_size", 2)[:2]:
        if isinstance(extent, bool) or not isinstance(extent, int) or not 1 <= extent <= 64:
            raise NotUnderstood(f"merge_kernel_size has {extent!r}"[:200], where=fields.where, expected="1..64")
        merged *= extent
    tower = Site(draft, "vision_tower", under="vision.")
    draft.add("vision_tower.patch_embed.proj", "vision.patch", width, 3, patch, patch)
    draft.add("vision_tower.patch_embed.pos_emb", "vision.position", height, across, width)
    for index in range(fields.integer("vt_num_hidden_layers", least=1, most=common.MAX_LAYERS)):
        block = tower.at(f"encoder.blocks.{index}")
        block.vector("norm0", "norm", width)
        block.vector("norm1", "norm", width)
        column(block, "wqkv", 3 * qkv, width, heads, role="attn.qkv", bias=False)
        row(block, "wo", width, qkv, heads, role="attn.o", bias=False)
        column(block, "mlp.fc0", inner, width, heads, role="mlp.up", bias=False)
        row(block, "mlp.fc1", width, inner, heads, role="mlp.down", bias=False)
    tower.vector("encoder.final_layernorm", "norm", width)
    projector = Site(draft, "mm_projector", under="vision.")
    projector.linear("proj.0", "projector", merged, merged)
    projector.linear("proj.2", "projector", text, merged)
    projector.vector("post_norm", "norm", text)
    # Frames have a fixed sinusoid, mm_hidden_size repeats the tower's width.
    fields.ignore("init_pos_emb_time", "mm_hidden_size")
    fields.refuse_leftovers()

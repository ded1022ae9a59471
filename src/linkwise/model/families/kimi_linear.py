"""Kimi Linear and Kimi-K3: delta attention with per-channel decay (KDA), latent attention between, many experts.

KDA: arXiv 2510.26692. K3's extras (output gates of full rank, experts in a latent space, attention over earlier blocks'
residuals) and its vision tower have the names, shapes and float32 parts its published headers have.
"""

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common, states
from linkwise.model.families.common import Site
from linkwise.model.families.vision import column, row
from linkwise.model.types import Layer, Moe, Split

# Experts: w1 = gate, w3 = up, w2 = down.
_EXPERT_NAMES = ("w1", "w3", "w2")


def read(fields: Fields) -> Draft:
    """A draft from the text section of either model."""
    draft = common.begin(fields)
    hidden = common.embedding(draft, fields)
    count = common.layer_count(fields)
    linear = fields.section("linear_attn_config")
    if linear is None:
        raise NotUnderstood("field 'linear_attn_config' is missing", where=fields.where)
    full = _full_layers(linear, count)
    kda, mla, experts = _Kda(linear, hidden, draft.dtype), _Mla(fields, hidden, draft), _Experts(fields, hidden)
    linear.refuse_leftovers()
    _considered(fields)
    dense = fields.integer("first_k_dense_replace", default=1, most=common.MAX_LAYERS)
    inner = common.width(fields, "intermediate_size")
    residual = fields.integer("attn_res_block_size", default=0, most=common.MAX_LAYERS)
    for index in range(count):
        site = Site(draft, f"model.layers.{index}", index)
        mixer: _Kda | _Mla = mla if index in full else kda
        mixer.write(site.at("self_attn"))
        sparse = index >= dense
        if sparse:
            experts.write(site.at("block_sparse_moe"))
        else:
            common.mlp(site.at("mlp"), hidden=hidden, inner=inner)
        common.layer_norms(site, hidden)
        if residual:
            _residual(site, "self_attention_res", hidden)
            _residual(site, "mlp_res", hidden)
        draft.layers.append(mixer.layer(index, "moe" if sparse else "dense"))
    draft.add("model.norm", "norm.final", hidden)
    if residual:
        _residual(Site(draft, "model"), "output_attn_res", hidden)
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


def _residual(site: Site, name: str, hidden: int) -> None:
    """Attention over the residuals of earlier blocks (K3): a norm and one direction that scores each of them."""
    site.vector(f"{name}_norm", f"norm.{name}", hidden)
    site.linear(f"{name}_proj", f"norm.{name}.direction", 1, hidden)


class _Kda:
    """Kimi delta attention: q, k, v each convolved; a low-rank decay per channel; an output gate."""

    def __init__(self, linear: Fields, hidden: int, dtype: str) -> None:
        self.hidden, self.dtype = hidden, dtype
        self.heads = linear.integer("num_heads", least=1, most=common.MAX_HEADS)
        self.head_dim = common.width(linear, "head_dim")
        self.kernel = linear.integer("short_conv_kernel_size", least=1, most=1024)
        self.full_gate = linear.flag("use_full_rank_gate")
        self.inner = self.heads * self.head_dim

    def write(self, site: Site) -> None:
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

    def layer(self, index: int, ffn: str) -> Layer:
        # Three convolutions, kept as one state; the recurrent state is float32 as in the reference kernels.
        channels = 3 * self.inner
        return Layer(
            index=index,
            mixer="linear",
            ffn=ffn,
            states=(
                states.conv_state(channels, self.kernel, heads=self.heads, dtype=self.dtype),
                states.recurrent_state(self.heads, self.head_dim, self.head_dim, dtype="float32"),
            ),
            mixer_flops_per_token=states.conv_flops(channels, self.kernel)
            + states.delta_flops(self.heads, self.head_dim, self.head_dim),
        )


class _Mla:
    """Latent attention without rotation; K3 gates its output."""

    def __init__(self, fields: Fields, hidden: int, draft: Draft) -> None:
        self.hidden = hidden
        self.heads = fields.integer("num_attention_heads", least=1, most=common.MAX_HEADS)
        self.q_rank = common.width(fields, "q_lora_rank", default=0, least=0)
        self.kv_rank = common.width(fields, "kv_lora_rank")
        self.nope, self.rope = common.width(fields, "qk_nope_head_dim"), common.width(fields, "qk_rope_head_dim")
        self.v_dim = common.width(fields, "v_head_dim")
        self.gate = fields.flag("mla_use_output_gate")
        states.exactly(fields, "num_key_value_heads", self.heads, default=self.heads)
        draft.mla_latent, draft.mla_rope = self.kv_rank + self.rope, self.rope
        common.set_heads(draft, self.heads, self.heads, self.nope + self.rope)

    def write(self, site: Site) -> None:
        common.mla(
            site,
            hidden=self.hidden,
            heads=self.heads,
            q_rank=self.q_rank,
            kv_rank=self.kv_rank,
            nope_dim=self.nope,
            rope_dim=self.rope,
            v_dim=self.v_dim,
        )
        if self.gate:
            site.linear("g_proj", "attn.gate", self.heads * self.v_dim, self.hidden, Split.COLUMN, units=self.heads)

    def layer(self, index: int, ffn: str) -> Layer:
        return common.mla_layer(
            index,
            heads=self.heads,
            nope_dim=self.nope,
            rope_dim=self.rope,
            v_dim=self.v_dim,
            kv_rank=self.kv_rank,
            ffn=ffn,
        )


class _Experts:
    """Routed experts (K3: between projections into a latent space), shared experts as one MLP at full width."""

    def __init__(self, fields: Fields, hidden: int) -> None:
        self.hidden = hidden
        self.experts = fields.integer("num_experts", least=1, most=common.MAX_EXPERTS)
        self.top_k = fields.integer("num_experts_per_token", "num_experts_per_tok", least=1, most=self.experts)
        self.inner = common.width(fields, "moe_intermediate_size")
        self.shared = fields.integer("num_shared_experts", default=0, most=common.MAX_EXPERTS)
        self.latent = common.width(fields, "routed_expert_hidden_size", default=0, least=0)
        self.latent_norm = fields.flag("latent_moe_use_norm")
        self.groups = fields.integer("num_expert_group", default=1, least=1, most=self.experts)
        self.top_groups = fields.integer("topk_group", default=1, least=1, most=self.groups)

    def write(self, site: Site) -> None:
        site.linear("gate", "moe.router", self.experts, self.hidden)
        site.vector("gate.e_score_correction_bias", "moe.router.correction", self.experts, dtype="float32")
        if self.latent:
            site.linear("routed_expert_down_proj", "moe.latent.down", self.latent, self.hidden)
            site.linear("routed_expert_up_proj", "moe.latent.up", self.hidden, self.latent)
            if self.latent_norm:
                site.vector("routed_expert_norm", "moe.latent.norm", self.latent)
        common.mlp(
            site.at("experts.*"),
            hidden=self.latent or self.hidden,
            inner=self.inner,
            role="moe.experts",
            count=self.experts,
            names=_EXPERT_NAMES,
        )
        if self.shared:
            inner = self.shared * self.inner
            common.mlp(site.at("shared_experts"), hidden=self.hidden, inner=inner, role="moe.shared")
        common.record_moe(
            site.draft,
            Moe(
                experts=self.experts,
                top_k=self.top_k,
                hidden=self.latent or self.hidden,
                intermediate=self.inner,
                shared_experts=self.shared,
                groups=self.groups,
                top_groups=self.top_groups,
            ),
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

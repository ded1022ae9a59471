"""MiniMax-M3, text-only and with vision: block-sparse attention chosen by an indexer, experts beside a shared one."""

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common, states
from linkwise.model.families.common import Site
from linkwise.model.families.vision import column, row
from linkwise.model.types import Layer, Moe, Split, State


def read(fields: Fields) -> Draft:
    """A draft from the text section. Layers are dense or MoE, and full or sparse, by two lists of flags."""
    draft = common.begin(fields)
    hidden = common.embedding(draft, fields)
    count = common.layer_count(fields)
    attention = _Attention(fields, hidden, draft, count)
    dense = common.width(fields, "dense_intermediate_size")
    experts = _Experts(fields, hidden)
    sparse = _flags(fields, "moe_layer_freq", count, [1] * count)
    states.exactly(fields, "attention_output_gate", False, default=False)
    states.exactly(fields, "use_qk_norm", True, default=True)
    states.exactly(fields, "qk_norm_type", "per_head", default="per_head")
    # use_gemma_norm: norms scale by 1 + weight. first_k_dense_replace repeats what moe_layer_freq says.
    fields.ignore("use_gemma_norm", "first_k_dense_replace")
    for index in range(count):
        site = Site(draft, f"model.layers.{index}", index)
        attention.write(site.at("self_attn"), attention.sparse[index])
        if sparse[index]:
            experts.write(site.at("block_sparse_moe"))
        else:
            common.mlp(site.at("mlp"), hidden=hidden, inner=dense)
        common.layer_norms(site, hidden)
        draft.layers.append(attention.layer(index, "moe" if sparse[index] else "dense"))
    draft.add("model.norm", "norm.final", hidden)
    _note_mtp(draft, fields)
    return draft


def _flags(fields: Fields, name: str, count: int, default: list[int]) -> list[bool]:
    values = fields.sequence(name, count, default=default)[:count]
    if any(v not in (0, 1) for v in values):
        raise NotUnderstood(f"field {name!r} is {values!r}"[:200], where=fields.where, expected=f"{count} of 0 or 1")
    return [bool(v) for v in values]


class _Attention:
    """Grouped-query attention; a sparse layer adds index queries (one head a KV head) and one index key a token.

    A query attends `topk_blocks` blocks of `block_size` keys, its own block among them; block scores are the largest
    of their keys' scores, so every earlier key is scored.
    """

    def __init__(self, fields: Fields, hidden: int, draft: Draft, count: int) -> None:
        self.hidden = hidden
        self.heads = fields.integer("num_attention_heads", least=1, most=common.MAX_HEADS)
        self.kv_heads = fields.integer("num_key_value_heads", least=1, most=common.MAX_HEADS)
        self.head_dim = common.width(fields, "head_dim")
        common.set_heads(draft, self.heads, self.kv_heads, self.head_dim)
        self.sparse = [False] * count
        section = fields.section("sparse_attention_config")
        if section is None:
            return
        # Which blocks are always among the chosen: within the top-k, so neither caches nor work change.
        section.ignore("sparse_init_block", "sparse_local_block", "sparse_score_type")
        if not section.flag("use_sparse_attention", default=True):
            section.ignore("sparse_attention_freq", "sparse_num_index_heads", "sparse_index_dim", "sparse_topk_blocks")
            section.ignore("sparse_block_size", "sparse_disable_index_value")
            return
        self.sparse = _flags(section, "sparse_attention_freq", count, [1] * count)
        self.index_heads = section.integer("sparse_num_index_heads", least=1, most=common.MAX_HEADS)
        self.index_dim = common.width(section, "sparse_index_dim")
        blocks = section.integer("sparse_topk_blocks", least=1)
        self.attended = blocks * section.integer("sparse_block_size", least=1)
        # With an index value path there would be more projections: M3 disables it in every sparse layer.
        disabled = _flags(section, "sparse_disable_index_value", count, [1] * count)
        if any(s and not d for s, d in zip(self.sparse, disabled, strict=True)):
            raise NotUnderstood("sparse layers with index values", where=section.where, expected="disabled")
        section.refuse_leftovers()

    def write(self, site: Site, sparse: bool) -> None:
        common.gqa(
            site,
            hidden=self.hidden,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            qk_norm="head",
        )
        if sparse:
            heads, dim = self.index_heads, self.index_dim
            site.linear("index_q_proj", "attn.index.q", heads * dim, self.hidden, Split.KV, units=heads)
            site.linear("index_k_proj", "attn.index.k", dim, self.hidden)
            site.vector("index_q_norm", "attn.index.q_norm", dim)
            site.vector("index_k_norm", "attn.index.k_norm", dim)

    def layer(self, index: int, ffn: str) -> Layer:
        kv = common.kv_state(self.kv_heads, self.head_dim)
        pair = 4 * self.heads * self.head_dim
        if not self.sparse[index]:
            return Layer(index=index, mixer="full", ffn=ffn, states=(kv,), attn_flops_per_pair=pair)
        # vLLM's index-key cache is bfloat16 unless told otherwise (indexer_kv_dtype), whatever the KV-cache dtype.
        keys = State(name="index", per_token=self.index_dim, heads=1, dtype="bfloat16")
        return Layer(
            index=index,
            mixer="sparse",
            ffn=ffn,
            states=(kv, keys),
            attn_flops_per_pair=pair,
            attends=self.attended,
            # A dot product a head; the maximum over a block is a comparison a key.
            index_flops_per_pair=self.index_heads * (2 * self.index_dim + 1),
        )


class _Experts:
    """Router in float32, experts w1/w3/w2, one shared expert."""

    def __init__(self, fields: Fields, hidden: int) -> None:
        self.hidden = hidden
        self.experts = fields.integer("num_local_experts", "n_routed_experts", least=1, most=common.MAX_EXPERTS)
        self.top_k = fields.integer("num_experts_per_tok", least=1, most=self.experts)
        self.inner = common.width(fields, "moe_intermediate_size", "intermediate_size")
        fields.ignore("intermediate_size")
        self.shared = fields.integer("n_shared_experts", default=0, most=common.MAX_EXPERTS)
        self.shared_inner = common.width(fields, "shared_intermediate_size", default=self.inner)
        self.correction = fields.flag("use_routing_bias", default=True)

    def write(self, site: Site) -> None:
        states.matrix(site, "gate", "moe.router", self.experts, self.hidden, dtype="float32")
        if self.correction:
            site.vector("e_score_correction_bias", "moe.router.correction", self.experts, dtype="float32")
        common.mlp(
            site.at("experts.*"),
            hidden=self.hidden,
            inner=self.inner,
            role="moe.experts",
            count=self.experts,
            names=("w1", "w3", "w2"),
        )
        if self.shared:
            inner = self.shared * self.shared_inner
            common.mlp(site.at("shared_experts"), hidden=self.hidden, inner=inner, role="moe.shared")
        common.record_moe(
            site.draft,
            Moe(
                experts=self.experts,
                top_k=self.top_k,
                hidden=self.hidden,
                intermediate=self.inner,
                shared_experts=self.shared,
            ),
        )


def _note_mtp(draft: Draft, fields: Fields) -> None:
    """The configs announce MTP modules; MiniMax's published total (428 B, vision included) has no room for them."""
    steps = fields.integer("num_mtp_modules", default=0, most=common.MAX_LAYERS)
    fields.integer("num_nextn_predict_layers", default=0, most=common.MAX_LAYERS)
    if steps:
        draft.notes.append(
            f"num_mtp_modules is {steps}: the published total leaves MTP weights out, so none are counted"
        )


def vision(top: Fields, draft: Draft) -> None:
    """The vision tower (a CLIP encoder with rotary positions), the projector and the merge of neighbouring patches."""
    fields = top.section("vision_config")
    if fields is None:
        return
    width, inner = common.width(fields, "hidden_size"), common.width(fields, "intermediate_size")
    patch, channels = common.width(fields, "patch_size"), common.width(fields, "num_channels", default=3)
    states.exactly(fields, "position_embedding_type", "rope")
    heads = fields.integer("num_attention_heads", least=1, most=common.MAX_HEADS)
    section = fields.section("img_token_compression_config")
    if section is None:
        raise NotUnderstood("field 'img_token_compression_config' is missing", where=fields.where)
    merge = section.integer("spatial_merge_size", least=1, most=64)
    frames = section.integer("temporal_patch_size", least=1, most=64)
    states.exactly(section, "image_token_compression_method", "patch_merge")
    bias = top.flag("multimodal_projector_bias", default=True)
    middle = common.width(top, "projector_hidden_size", default=draft.hidden)
    text = common.width(fields, "projection_dim", default=draft.hidden)
    # PyTorch's conv3d order: outputs, channels, frames, rows, columns.
    draft.add(
        "vision_tower.vision_model.embeddings.patch_embedding", "vision.patch", width, channels, frames, patch, patch
    )
    tower = Site(draft, "vision_tower.vision_model", under="vision.")
    tower.vector("pre_layrnorm", "norm", width, bias=True)
    for index in range(common.layer_count(fields)):
        block = tower.at(f"encoder.layers.{index}")
        for child in ("q_proj", "k_proj", "v_proj", "out_proj"):
            cut = row if child == "out_proj" else column
            cut(block, f"self_attn.{child}", width, width, heads, role=f"attn.{child[0]}")
        column(block, "mlp.fc1", inner, width, heads, role="mlp.up")
        row(block, "mlp.fc2", width, inner, heads, role="mlp.down")
        block.vector("layer_norm1", "norm", width, bias=True)
        block.vector("layer_norm2", "norm", width, bias=True)
    projector = Site(draft, "multi_modal_projector", under="vision.")
    projector.linear("linear_1", "projector", middle, width, bias=bias)
    projector.linear("linear_2", "projector", text, middle, bias=bias)
    merger = Site(draft, "patch_merge_mlp", under="vision.")
    merger.linear("linear_1", "projector", middle, text * merge * merge, bias=bias)
    merger.linear("linear_2", "projector", text, middle, bias=bias)
    # Image sizes and token counts shape requests, not weights; the tower has no vocabulary (a template's field).
    fields.ignore("image_size", "vocab_size")
    fields.refuse_leftovers()
    top.ignore("img_token_compression_config", "num_reward_heads")

"""MiniMax-M3, text-only and with vision: block-sparse attention chosen by an indexer, experts beside a shared one."""

from dataclasses import dataclass

from msgspec.structs import replace

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common, states
from linkwise.model.families.common import Site
from linkwise.model.families.parts import Dense, Experts, Gqa, Part, decoder, norms
from linkwise.model.families.vision import column, row
from linkwise.model.types import Layer, Split, State


def read(fields: Fields) -> Draft:
    """A draft from the text section. Layers are dense or MoE, and full or sparse, by two lists of flags."""
    draft, hidden, count = common.start(fields)
    attention = Gqa(hidden, *common.attention_heads(fields, hidden), qk_norm="head")
    indexers = _indexers(fields, hidden, count)
    dense = Dense(hidden, common.width(fields, "dense_intermediate_size"))
    experts = _experts(fields, hidden)
    routed = common.layer_flags(fields, "moe_layer_freq", count, [1] * count)
    states.exactly(fields, "attention_output_gate", False, default=False)
    states.exactly(fields, "use_qk_norm", True, default=True)
    states.exactly(fields, "qk_norm_type", "per_head", default="per_head")
    # use_gemma_norm: norms scale by 1 + weight. first_k_dense_replace repeats what moe_layer_freq says.
    fields.ignore("use_gemma_norm", "first_k_dense_replace")
    ffns = [experts if sparse else dense for sparse in routed]
    layers = zip(indexers, ffns, strict=True)
    decoder(draft, [(attention, *indexer, ffn, *norms(hidden)) for indexer, ffn in layers])
    _note_mtp(draft, fields)
    return draft


def _indexers(fields: Fields, hidden: int, count: int) -> "list[tuple[_Indexer, ...]]":
    """The indexer of each layer that attends sparsely."""
    none: list[tuple[_Indexer, ...]] = [()] * count
    section = fields.section("sparse_attention_config")
    if section is None:
        return none
    # Which blocks are always among the chosen: within the top-k, so neither caches nor work change.
    section.ignore("sparse_init_block", "sparse_local_block", "sparse_score_type")
    if not section.flag("use_sparse_attention", default=True):
        section.ignore("sparse_attention_freq", "sparse_num_index_heads", "sparse_index_dim", "sparse_topk_blocks")
        section.ignore("sparse_block_size", "sparse_disable_index_value")
        return none
    sparse = common.layer_flags(section, "sparse_attention_freq", count, [1] * count)
    heads = section.integer("sparse_num_index_heads", least=1, most=common.MAX_HEADS)
    dim = common.width(section, "sparse_index_dim")
    blocks, size = section.integer("sparse_topk_blocks", least=1), section.integer("sparse_block_size", least=1)
    # With an index value path there would be more projections: M3 disables it in every sparse layer.
    disabled = common.layer_flags(section, "sparse_disable_index_value", count, [1] * count)
    if any(s and not d for s, d in zip(sparse, disabled, strict=True)):
        raise NotUnderstood("sparse layers with index values", where=section.where, expected="disabled")
    section.refuse_leftovers()
    indexer = _Indexer(hidden, heads, dim, blocks * size)
    return [(indexer,) if own else () for own in sparse]


@dataclass(frozen=True)
class _Indexer(Part):
    """What a sparse layer adds: index queries (one head a KV head) and one index key a token.

    A query attends `attended` keys in blocks, its own block among them; block scores are the largest of their keys'
    scores, so every earlier key is scored.
    """

    hidden: int
    heads: int
    dim: int
    attended: int

    def write(self, site: Site) -> None:
        site = site.at("self_attn")
        site.linear("index_q_proj", "attn.index.q", self.heads * self.dim, self.hidden, Split.KV, units=self.heads)
        site.linear("index_k_proj", "attn.index.k", self.dim, self.hidden)
        site.vector("index_q_norm", "attn.index.q_norm", self.dim)
        site.vector("index_k_norm", "attn.index.k_norm", self.dim)

    def facts(self, layer: Layer) -> Layer:
        # vLLM's index-key cache is bfloat16 unless told otherwise (indexer_kv_dtype), whatever the KV-cache dtype.
        keys = State(name="index", per_token=self.dim, heads=1, dtype="bfloat16")
        return replace(
            layer,
            mixer="sparse",
            states=(*layer.states, keys),
            attends=self.attended,
            # A dot product a head; the maximum over a block is a comparison a key.
            index_flops_per_pair=self.heads * (2 * self.dim + 1),
        )


def _experts(fields: Fields, hidden: int) -> Experts:
    """Router in float32, experts w1/w3/w2, one shared expert."""
    inner = common.width(fields, "moe_intermediate_size", "intermediate_size")
    fields.ignore("intermediate_size")
    shared = fields.integer("n_shared_experts", default=0, most=common.MAX_EXPERTS)
    return Experts(
        hidden,
        inner,
        *common.expert_counts(fields, "num_local_experts", "n_routed_experts"),
        shared=shared,
        shared_inner=shared * common.width(fields, "shared_intermediate_size", default=inner),
        router_dtype="float32",
        correction="e_score_correction_bias" if fields.flag("use_routing_bias", default=True) else "",
        name="block_sparse_moe",
        names=common.W1_W3_W2,
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

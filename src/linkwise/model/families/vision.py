"""Vision towers that are understood well enough to count.

Projections divide as vLLM's ViT layers do (qwen3_vl.py, pixtral.py, kimi_k25_vit.py): q, k, v and the first MLP matrix
by outputs, their counterparts by inputs, in pieces of whole heads; patch embedding, positions and norms are whole.
Whether an engine divides them at all is its convention's `vision_over`; vLLM keeps a tower whole whose heads do not
divide (vision.py, is_vit_use_data_parallel), see engine/sharding.py.
"""

from math import gcd
from types import MappingProxyType

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Draft, Fields
from linkwise.model.families.common import MAX_HEADS, MAX_LAYERS, Site, head_width, width
from linkwise.model.families.states import exactly
from linkwise.model.types import Split

# Fields of MoonViT: the released name, and transformers'.
_VT = MappingProxyType(
    {
        "hidden": ("vt_hidden_size", "hidden_size"),
        "inner": ("vt_intermediate_size", "intermediate_size"),
        "heads": ("vt_num_attention_heads", "num_attention_heads"),
        "layers": ("vt_num_hidden_layers", "num_hidden_layers"),
        "high": ("init_pos_emb_height", "pos_emb_height"),
        "wide": ("init_pos_emb_width", "pos_emb_width"),
    }
)


def column(site: Site, child: str, outputs: int, inputs: int, heads: int, *, role: str, bias: bool = True) -> None:
    """A projection divided by its outputs, in pieces that go with whole heads."""
    site.linear(child, role, outputs, inputs, Split.COLUMN, units=gcd(outputs, heads), bias=bias)


def row(site: Site, child: str, outputs: int, inputs: int, heads: int, *, role: str, bias: bool = True) -> None:
    """A projection divided by its inputs, in pieces that go with whole heads."""
    site.linear(child, role, outputs, inputs, Split.ROW, units=gcd(inputs, heads), bias=bias)


def _linear(site: Site, child: str, outputs: int, inputs: int, *, bias: bool = True) -> None:
    site.linear(child, "vision", outputs, inputs, bias=bias)


def _norm(site: Site, child: str, size: int, *, bias: bool = True) -> None:
    site.vector(child, "vision.norm", size, bias=bias)


def _section(config: Fields) -> Fields:
    section = config.section("vision_config")
    if section is None:
        raise NotUnderstood("vision_config is missing", where=config.where)
    return section


def qwen3_vl(config: Fields, draft: Draft) -> None:
    """Qwen3-VL and Qwen3.5: a ViT with LayerNorms, a merger to the language model, one more per deep-stack level."""
    fields = _section(config)
    hidden, inner = width(fields, "hidden_size"), width(fields, "intermediate_size")
    out = width(fields, "out_hidden_size")
    merge = fields.integer("spatial_merge_size", least=1, most=64)
    patch = fields.integer("patch_size", least=1, most=1024)
    time = fields.integer("temporal_patch_size", least=1, most=64)
    channels = fields.integer("in_channels", default=3, least=1, most=1024)
    levels = fields.sequence("deepstack_visual_indexes", default=[])
    heads = fields.integer("num_heads", least=1, most=MAX_HEADS)
    tower = Site(draft, "model.visual")
    draft.add("model.visual.patch_embed.proj", "vision.conv", hidden, channels, time, patch, patch)
    draft.add("model.visual.patch_embed.proj.bias", "vision.conv.bias", hidden)
    draft.add("model.visual.pos_embed", "vision.embed", width(fields, "num_position_embeddings"), hidden)
    for index in range(fields.integer("depth", least=1, most=MAX_LAYERS)):
        block = tower.at(f"blocks.{index}")
        _norm(block, "norm1", hidden)
        _norm(block, "norm2", hidden)
        column(block, "attn.qkv", 3 * hidden, hidden, heads, role="vision")
        row(block, "attn.proj", hidden, hidden, heads, role="vision")
        column(block, "mlp.linear_fc1", inner, hidden, heads, role="vision")
        row(block, "mlp.linear_fc2", hidden, inner, heads, role="vision")
    merged = hidden * merge**2
    mergers = [("merger", hidden)] + [(f"deepstack_merger_list.{i}", merged) for i in range(len(levels))]
    for name, norm_size in mergers:
        merger = tower.at(name)
        _norm(merger, "norm", norm_size)
        column(merger, "linear_fc1", merged, merged, heads, role="vision")
        row(merger, "linear_fc2", out, merged, heads, role="vision")
    fields.refuse_leftovers()


def qwen2_5_vl(config: Fields, draft: Draft) -> None:
    """Qwen2.5-VL: a ViT with RMS norms and gated blocks, most under a window; a merger to the language model."""
    fields = _section(config)
    hidden, inner = width(fields, "hidden_size"), width(fields, "intermediate_size")
    blocks, heads = _qwen2_tower(fields, draft, hidden, norm_bias=False)
    for block in blocks:
        for name in ("gate_proj", "up_proj"):
            column(block, f"mlp.{name}", inner, hidden, heads, role="vision")
        row(block, "mlp.down_proj", hidden, inner, heads, role="vision")
    _qwen2_merger(fields, draft, hidden, width(fields, "out_hidden_size"), norm_bias=False)
    # How far a block sees, and how video frames are timed.
    fields.ignore("window_size", "fullatt_block_indexes", "tokens_per_second")
    fields.refuse_leftovers()


def qwen2_vl(config: Fields, draft: Draft) -> None:
    """Qwen2-VL: a ViT with LayerNorms; its `hidden_size` is the language model's, `embed_dim` its own."""
    fields = _section(config)
    hidden = width(fields, "embed_dim")
    inner = hidden * fields.integer("mlp_ratio", default=4, least=1, most=64)
    blocks, heads = _qwen2_tower(fields, draft, hidden, norm_bias=True)
    for block in blocks:
        column(block, "mlp.fc1", inner, hidden, heads, role="vision")
        row(block, "mlp.fc2", hidden, inner, heads, role="vision")
    _qwen2_merger(fields, draft, hidden, width(fields, "hidden_size"), norm_bias=True)
    fields.refuse_leftovers()


def _qwen2_tower(fields: Fields, draft: Draft, hidden: int, *, norm_bias: bool) -> tuple[list[Site], int]:
    """Patch projection, and of each block norms and attention. Returns the blocks, and the heads."""
    patch = fields.integer("patch_size", least=1, most=1024)
    time = fields.integer("temporal_patch_size", default=2, least=1, most=64)
    channels = fields.integer("in_channels", "in_chans", default=3, least=1, most=1024)
    heads = fields.integer("num_heads", least=1, most=MAX_HEADS)
    fields.ignore("in_channels", "in_chans", "spatial_patch_size")  # the last repeats patch_size
    draft.add("visual.patch_embed.proj", "vision.conv", hidden, channels, time, patch, patch)
    tower = Site(draft, "visual")
    blocks = [tower.at(f"blocks.{i}") for i in range(fields.integer("depth", least=1, most=MAX_LAYERS))]
    for block in blocks:
        _norm(block, "norm1", hidden, bias=norm_bias)
        _norm(block, "norm2", hidden, bias=norm_bias)
        column(block, "attn.qkv", 3 * hidden, hidden, heads, role="vision")
        row(block, "attn.proj", hidden, hidden, heads, role="vision")
    return blocks, heads


def _qwen2_merger(fields: Fields, draft: Draft, hidden: int, out: int, *, norm_bias: bool) -> None:
    """Joins spatial_merge_size^2 patches into one token of the language model."""
    heads = fields.integer("num_heads", least=1, most=MAX_HEADS)
    merged = hidden * fields.integer("spatial_merge_size", default=2, least=1, most=64) ** 2
    merger = Site(draft, "visual.merger")
    _norm(merger, "ln_q", hidden, bias=norm_bias)
    column(merger, "mlp.0", merged, merged, heads, role="vision")
    row(merger, "mlp.2", out, merged, heads, role="vision")


def gemma3(config: Fields, draft: Draft) -> None:
    """Gemma 3: a SigLIP tower, and a norm and a projection of pooled patches."""
    fields = _section(config)
    hidden = siglip(fields, draft, "vision_tower.vision_model")
    projector = Site(draft, "multi_modal_projector")
    draft.add(f"{projector.name}.mm_input_projection_weight", "vision.projector", hidden, draft.hidden)
    _norm(projector, "mm_soft_emb_norm", hidden, bias=False)
    config.ignore("mm_tokens_per_image")
    fields.refuse_leftovers()


def llama4(config: Fields, draft: Draft) -> None:
    """Llama 4: a ViT with LayerNorms and a class embedding, an adapter of shuffled patches, a projection."""
    fields = _section(config)
    hidden, inner = width(fields, "hidden_size"), width(fields, "intermediate_size")
    between, adapted = width(fields, "projector_input_dim"), width(fields, "projector_output_dim")
    patch = fields.integer("patch_size", least=1, most=1024)
    channels = fields.integer("num_channels", default=3, least=1, most=1024)
    side = fields.integer("image_size", least=patch, most=65_536) // patch
    heads = fields.integer("num_attention_heads", least=1, most=MAX_HEADS)
    tower = Site(draft, "vision_model")
    draft.add("vision_model.class_embedding", "vision.embed", hidden)
    draft.add("vision_model.positional_embedding_vlm", "vision.embed", side * side + 1, hidden)
    column(tower, "patch_embedding.linear", hidden, channels * patch * patch, heads, role="vision", bias=False)
    _norm(tower, "layernorm_pre", hidden)
    for index in range(fields.integer("num_hidden_layers", least=1, most=MAX_LAYERS)):
        block = tower.at(f"model.layers.{index}")
        for part in ("q_proj", "k_proj", "v_proj"):
            column(block, f"self_attn.{part}", hidden, hidden, heads, role="vision")
        row(block, "self_attn.o_proj", hidden, hidden, heads, role="vision")
        column(block, "mlp.fc1", inner, hidden, heads, role="vision")
        row(block, "mlp.fc2", hidden, inner, heads, role="vision")
        _norm(block, "input_layernorm", hidden)
        _norm(block, "post_attention_layernorm", hidden)
    _norm(tower, "layernorm_post", hidden)
    # Shuffling moves pixel_shuffle_ratio of each side into the width that the adapter's first matrix takes.
    column(tower, "vision_adapter.mlp.fc1", between, inner, heads, role="vision", bias=False)
    row(tower, "vision_adapter.mlp.fc2", adapted, between, heads, role="vision", bias=False)
    seen = width(fields, "vision_output_dim")
    column(Site(draft, "multi_modal_projector"), "linear_1", draft.hidden, seen, heads, role="vision", bias=False)
    exactly(fields, "multi_modal_projector_bias", False, default=False)
    fields.ignore("pixel_shuffle_ratio", "projector_dropout")
    fields.refuse_leftovers()


def siglip(fields: Fields, draft: Draft, name: str) -> int:
    """SigLIP (arXiv 2303.15343): a ViT with LayerNorms and one position per patch, with a pooling head unless
    `vision_use_head` is false. Returns its width."""
    hidden, inner = width(fields, "hidden_size"), width(fields, "intermediate_size")
    patch = fields.integer("patch_size", least=1, most=1024)
    channels = fields.integer("num_channels", default=3, least=1, most=1024)
    side = fields.integer("image_size", least=patch, most=65_536) // patch
    heads = fields.integer("num_attention_heads", least=1, most=MAX_HEADS)
    tower = Site(draft, name)
    draft.add(f"{name}.embeddings.patch_embedding", "vision.conv", hidden, channels, patch, patch)
    draft.add(f"{name}.embeddings.patch_embedding.bias", "vision.conv.bias", hidden)
    draft.add(f"{name}.embeddings.position_embedding", "vision.embed", side * side, hidden)
    for index in range(fields.integer("num_hidden_layers", least=1, most=MAX_LAYERS)):
        block = tower.at(f"encoder.layers.{index}")
        _norm(block, "layer_norm1", hidden)
        for part in ("q_proj", "k_proj", "v_proj"):
            column(block, f"self_attn.{part}", hidden, hidden, heads, role="vision")
        row(block, "self_attn.out_proj", hidden, hidden, heads, role="vision")
        _norm(block, "layer_norm2", hidden)
        column(block, "mlp.fc1", inner, hidden, heads, role="vision")
        row(block, "mlp.fc2", hidden, inner, heads, role="vision")
    _norm(tower, "post_layernorm", hidden)
    if fields.flag("vision_use_head", default=True):
        head = tower.at("head")
        draft.add(f"{head.name}.probe", "vision.embed", 1, 1, hidden)
        draft.add(f"{head.name}.attention.in_proj_weight", "vision", 3 * hidden, hidden)
        draft.add(f"{head.name}.attention.in_proj_bias", "vision.bias", 3 * hidden)
        _linear(head, "attention.out_proj", hidden, hidden)
        _norm(head, "layernorm", hidden)
        _linear(head, "mlp.fc1", inner, hidden)
        _linear(head, "mlp.fc2", hidden, inner)
    return hidden


def mistral3(config: Fields, draft: Draft) -> None:
    """Mistral-Small 3.x: a Pixtral tower and a patch-merging projector."""
    fields = _section(config)
    hidden, inner = width(fields, "hidden_size"), width(fields, "intermediate_size")
    patch = fields.integer("patch_size", least=1, most=1024)
    channels = fields.integer("num_channels", default=3, least=1, most=1024)
    heads = fields.integer("num_attention_heads", least=1, most=MAX_HEADS)
    inside = head_width(fields, hidden, heads) * heads
    tower = Site(draft, "vision_tower")
    draft.add("vision_tower.patch_conv", "vision.conv", hidden, channels, patch, patch)
    _norm(tower, "ln_pre", hidden, bias=False)
    for index in range(fields.integer("num_hidden_layers", least=1, most=MAX_LAYERS)):
        block = tower.at(f"transformer.layers.{index}")
        for name in ("attention_norm", "ffn_norm"):
            _norm(block, name, hidden, bias=False)
        for name in ("q_proj", "k_proj", "v_proj"):
            column(block, f"attention.{name}", inside, hidden, heads, role="vision", bias=False)
        row(block, "attention.o_proj", hidden, inside, heads, role="vision", bias=False)
        for name in ("gate_proj", "up_proj"):
            column(block, f"feed_forward.{name}", inner, hidden, heads, role="vision", bias=False)
        row(block, "feed_forward.down_proj", hidden, inner, heads, role="vision", bias=False)
    merge = config.integer("spatial_merge_size", default=2, least=1, most=64)
    bias = config.flag("multimodal_projector_bias")
    projector = Site(draft, "multi_modal_projector")
    _norm(projector, "norm", hidden, bias=False)
    _linear(projector, "patch_merger.merging_layer", hidden, hidden * merge**2, bias=False)
    column(projector, "linear_1", draft.hidden, hidden, heads, role="vision", bias=bias)
    row(projector, "linear_2", draft.hidden, draft.hidden, heads, role="vision", bias=bias)
    config.ignore("projector_hidden_act", "vision_feature_layer")
    fields.ignore("image_size", "vocab_size")  # the second is of no tensor
    fields.refuse_leftovers()


def kimi_k25(config: Fields, draft: Draft) -> None:
    """Kimi-K2.5's MoonViT with learned positions (time is interpolated, not stored) and a patch-merging projector."""
    fields = _section(config)
    # Released names first, then transformers', which writes both.
    hidden, inner = width(fields, *_VT["hidden"]), width(fields, *_VT["inner"])
    patch = fields.integer("patch_size", least=1, most=1024)
    high = fields.integer(*_VT["high"], least=1, most=65_536)
    wide = fields.integer(*_VT["wide"], least=1, most=65_536)
    fields.ignore(*(name for names in _VT.values() for name in names))
    merge = fields.sequence("merge_kernel_size", 2)
    if fields.text("mm_projector_type", "patchmerger") != "patchmerger" or merge[:2] != [2, 2]:
        raise NotUnderstood("a projector other than a 2x2 patchmerger", where=fields.where)
    heads = fields.integer(*_VT["heads"], least=1, most=MAX_HEADS)
    exactly(fields, "pos_emb_type", "divided_fixed", default="divided_fixed")
    exactly(fields, "video_attn_type", "spatial_temporal", default="spatial_temporal")
    exactly(fields, "merge_type", "sd2_tpool", default="sd2_tpool")
    draft.add("vision_tower.patch_embed.proj", "vision.conv", hidden, 3, patch, patch)
    draft.add("vision_tower.patch_embed.proj.bias", "vision.conv.bias", hidden)
    draft.add("vision_tower.patch_embed.pos_emb", "vision.embed", high, wide, hidden)
    encoder = Site(draft, "vision_tower.encoder")
    for index in range(fields.integer(*_VT["layers"], least=1, most=MAX_LAYERS)):
        block = encoder.at(f"blocks.{index}")
        _norm(block, "norm0", hidden)
        _norm(block, "norm1", hidden)
        column(block, "wqkv", 3 * hidden, hidden, heads, role="vision")
        row(block, "wo", hidden, hidden, heads, role="vision")
        column(block, "mlp.fc0", inner, hidden, heads, role="vision")
        row(block, "mlp.fc1", hidden, inner, heads, role="vision")
    _norm(encoder, "final_layernorm", hidden)
    projector, merged = Site(draft, "mm_projector"), 4 * hidden
    _norm(projector, "pre_norm", hidden)
    _linear(projector, "proj.0", merged, merged)
    _linear(projector, "proj.2", width(fields, "text_hidden_size", default=draft.hidden), merged)
    fields.ignore("mm_hidden_size", "init_pos_emb_time", "pos_emb_time")
    config.ignore("projection_hidden_size", "projection_layer_norm_eps")  # the merger's, which is the tower's width
    fields.refuse_leftovers()

"""Qwen2-MoE and Qwen3-MoE, also inside Qwen3-VL: `decoder_sparse_step` and `mlp_only_layers` say where experts are."""

from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common, states
from linkwise.model.families.dense import QWEN_FULL_LAYERS, qwen_window, windows
from linkwise.model.families.parts import Dense, Experts, Gqa, decoder, norms


def read(fields: Fields) -> Draft:
    """Qwen3-MoE: per-head query and key norms, no shared expert; a window, where switched on, holds for every layer."""
    window = qwen_window(fields)
    fields.ignore("max_window_layers")  # read by other Qwen families
    return _read_qwen3(fields, window)


def read_vl(fields: Fields) -> Draft:
    """The language model of Qwen3-VL's MoE: Qwen3-MoE without sliding windows."""
    return _read_qwen3(fields, None)


def _read_qwen3(fields: Fields, window: int | None) -> Draft:
    bias = fields.flag("attention_bias")
    fields.ignore("use_qk_norm")  # some configs say it; the family has no other form
    states.exactly(fields, "qkv_bias", False, default=False)
    states.exactly(fields, "shared_expert_intermediate_size", 0, default=0)
    layers = common.layer_count(fields)
    return _read(fields, [window] * layers, bias=bias, out_bias=bias, qk_norm="head", shared=0)


def read_qwen2(fields: Fields) -> Draft:
    """Qwen2-MoE: biases on query, key and value, one gated shared expert; a window, where switched on, holds for every
    other layer below `max_window_layers` (transformers' Qwen2MoeConfig)."""
    shared = common.width(fields, "shared_expert_intermediate_size")
    window, below = qwen_window(fields), fields.integer("max_window_layers", default=QWEN_FULL_LAYERS)
    found = [window if i % 2 == 0 and i < below else None for i in range(common.layer_count(fields))]
    if "layer_types" in fields:
        found = windows(fields, switched=True)
    return _read(fields, found, bias=fields.flag("qkv_bias", default=True), out_bias=False, qk_norm="", shared=shared)


def _read(fields: Fields, found: list[int | None], *, bias: bool, out_bias: bool, qk_norm: str, shared: int) -> Draft:
    """found: the window of each layer, None where it attends to everything."""
    draft, hidden, _ = common.start(fields)
    sizes = common.attention_heads(fields, hidden, derived_width=True)
    attention = Gqa(hidden, *sizes, bias=bias, out_bias=out_bias, qk_norm=qk_norm)
    layers = zip(found, feed_forwards(fields, hidden, len(found), shared), strict=True)
    return decoder(draft, [(*norms(hidden), attention.within(window), ffn) for window, ffn in layers])


def feed_forwards(fields: Fields, hidden: int, count: int, shared: int) -> list[Dense | Experts]:
    """The feed-forward of each layer; shared: width of the shared expert, 0 = none."""
    dense = Dense(hidden, common.width(fields, "intermediate_size"))
    experts = gated_experts(fields, hidden, shared)
    step = fields.integer("decoder_sparse_step", default=1, least=1, most=common.MAX_LAYERS)
    listed = common.layer_indices(fields, "mlp_only_layers")
    return [experts if i not in listed and (i + 1) % step == 0 else dense for i in range(count)]


def gated_experts(fields: Fields, hidden: int, shared: int) -> Experts:
    """Qwen's experts: beside them, where `shared` is not 0, one shared expert of that width under a gate."""
    return Experts(
        hidden,
        common.width(fields, "moe_intermediate_size"),
        *common.expert_counts(fields, "num_experts", "num_local_experts"),
        shared=1 if shared else 0,
        shared_inner=shared,
        shared_name="shared_expert",
        shared_gate="shared_expert_gate" if shared else "",
    )

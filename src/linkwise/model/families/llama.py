"""Dense decoders with grouped-query attention: Llama, Mistral, Qwen2, Qwen3, MiMo."""

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common
from linkwise.model.families.parts import Dense, Gqa, Linear, Vector, decoder, mtp, norms

MISTRAL_WINDOW = 4096
# Defaults of transformers' Qwen2Config and Qwen3Config.
QWEN_WINDOW, QWEN_FULL_LAYERS = 4096, 28


def read(fields: Fields) -> Draft:
    """Llama: no query/key norms; `attention_bias` gives all four projections a bias."""
    bias = fields.flag("attention_bias")
    return _dense(fields, bias=bias, out_bias=bias, same_kv=True, windowed=False)


def read_mistral(fields: Fields) -> Draft:
    """Mistral: Llama without biases, with a sliding window unless the config writes null."""
    draft = _dense(fields, bias=False, unstated_window=MISTRAL_WINDOW)
    if not fields.states("sliding_window"):
        draft.notes.append(
            f"sliding_window is not stated: taken as {MISTRAL_WINDOW}, transformers' default for Mistral"
        )
    return draft


def read_qwen2(fields: Fields) -> Draft:
    """Qwen1.5, Qwen2, Qwen2.5: biases on query, key and value always, on the output never."""
    return _dense(fields, bias=fields.flag("attention_bias", "qkv_bias", default=True), switched=True)


def read_qwen3(fields: Fields) -> Draft:
    """Qwen3: per-head query and key norms."""
    bias = fields.flag("attention_bias")
    return _dense(fields, bias=bias, out_bias=bias, qk_norm="head", derived_width=False, switched=True)


def read_qwen3_vl(fields: Fields) -> Draft:
    """The language model of Qwen3-VL: Qwen3 without sliding windows."""
    bias = fields.flag("attention_bias")
    return _dense(fields, bias=bias, out_bias=bias, qk_norm="head", derived_width=False, windowed=False)


def read_mimo(fields: Fields) -> Draft:
    """MiMo-7B: Qwen2 with an MTP layer of its own shape (vLLM's mimo_mtp.py): norms of token and hidden state, a
    [hidden, 2·hidden] projection, a decoder layer, a final norm; embedding and head are the model's."""
    depth = fields.integer("num_nextn_predict_layers", default=0, most=64)
    return _dense(fields, bias=fields.flag("attention_bias", "qkv_bias", default=True), switched=True, mtp_layers=depth)


def _dense(
    fields: Fields,
    *,
    bias: bool,
    out_bias: bool = False,
    qk_norm: str = "",
    same_kv: bool = False,
    derived_width: bool = True,
    windowed: bool = True,
    switched: bool = False,
    unstated_window: int | None = None,
    mtp_layers: int = 0,
) -> Draft:
    """windowed: whether the family's config has a sliding window at all (Llama's has none: transformers ignores one);
    switched, unstated_window: see `windows`; mtp_layers: MiMo's."""
    draft, hidden, count = common.start(fields)
    sizes = common.attention_heads(fields, hidden, same_kv=same_kv, derived_width=derived_width)
    attention = Gqa(hidden, *sizes, bias=bias, out_bias=out_bias, qk_norm=qk_norm)
    ffn = Dense(hidden, common.width(fields, "intermediate_size"), bias=fields.flag("mlp_bias"))
    found = windows(fields, count, switched=switched, unstated=unstated_window) if windowed else [None] * count
    decoder(draft, [(*norms(hidden), attention.within(window), ffn) for window in found])
    around = [Vector(f"{name}_layernorm", f"norm.{name}", hidden) for name in ("token", "hidden", "final")]
    joined = Linear("input_proj", "eh_proj", hidden, 2 * hidden)
    mtp(draft, [(*around, joined, *norms(hidden), attention, ffn)] * mtp_layers, at="model.mtp_layers")
    return draft


def qwen_window(fields: Fields) -> int | None:
    """The window of a Qwen config, None unless `use_sliding_window` is true."""
    window = fields.integer("sliding_window", default=0, most=10**9) or None
    if not fields.flag("use_sliding_window"):
        return None
    return window if fields.states("sliding_window") else QWEN_WINDOW


def windows(fields: Fields, layers: int, *, switched: bool = False, unstated: int | None = None) -> list[int | None]:
    """Sliding window of each layer, None where it attends to everything.

    `layer_types` decides where it is given; without it a `sliding_window` holds for every layer (Mistral, Mixtral).
    `switched`: Qwen's families have a window only where `use_sliding_window` is true (false unless stated), and then
    from layer `max_window_layers` on. `unstated`: the window of a config that does not write the field at all.
    """
    window = fields.integer("sliding_window", default=0, most=10**9) or None
    if not fields.states("sliding_window"):
        window = unstated
    types = common.layer_kinds(fields, layers, "full_attention", "sliding_attention")
    first = 0
    if switched:
        first = fields.integer("max_window_layers", default=QWEN_FULL_LAYERS)
        window = qwen_window(fields)
    if window is None and "sliding_attention" in types:
        missing = "use_sliding_window is not true" if switched else "sliding_window is missing"
        raise NotUnderstood(f"layer_types has sliding_attention but {missing}", where=fields.where)
    if types:
        return [window if kind == "sliding_attention" else None for kind in types]
    return [window if index >= first else None for index in range(layers)]

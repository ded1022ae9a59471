"""Dense decoders with grouped-query attention: Llama, Mistral, Qwen2, Qwen3, MiMo."""

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common
from linkwise.model.families.common import Site
from linkwise.model.types import Split

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
    draft = read_qwen2(fields)
    hidden, heads = draft.hidden, draft.heads
    stack = len(draft.layers)
    for extra in range(fields.integer("num_nextn_predict_layers", default=0, most=64)):
        site = Site(draft, f"model.mtp_layers.{extra}", stack + extra, "mtp.")
        for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
            site.vector(name, f"norm.{name.removesuffix('_layernorm')}", hidden)
        site.linear("input_proj", "eh_proj", hidden, 2 * hidden)
        common.layer_norms(site, hidden)
        common.gqa(
            site.at("self_attn"),
            hidden=hidden,
            heads=heads,
            kv_heads=draft.kv_heads,
            head_dim=draft.head_dim,
            bias=fields.flag("attention_bias", default=True),
        )
        common.mlp(site.at("mlp"), hidden=hidden, inner=common.width(fields, "intermediate_size"))
        draft.mtp_layers += 1
    return draft


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
) -> Draft:
    """windowed: whether the family's config has a sliding window at all (Llama's has none: transformers ignores one);
    switched, unstated_window: see `windows`."""
    draft = common.begin(fields)
    hidden = common.embedding(draft, fields)
    layers = common.layer_count(fields)
    heads, kv_heads, head_dim = common.attention_heads(draft, fields, same_kv=same_kv, derived_width=derived_width)
    inner = common.width(fields, "intermediate_size")
    mlp_bias = fields.flag("mlp_bias")
    found = windows(fields, layers, switched=switched, unstated=unstated_window) if windowed else [None] * layers
    for index, window in enumerate(found):
        site = Site(draft, f"model.layers.{index}", index)
        common.layer_norms(site, hidden)
        common.gqa(
            site.at("self_attn"),
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            bias=bias,
            out_bias=out_bias,
            qk_norm=qk_norm,
        )
        common.mlp(site.at("mlp"), hidden=hidden, inner=inner, bias=mlp_bias)
        draft.layers.append(
            common.attention_layer(
                index,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                mixer="full" if window is None else "sliding",
                window=window,
            )
        )
    draft.add("model.norm", "norm.final", hidden, split=Split.NONE)
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
    types = fields.sequence("layer_types", layers, default=None)
    first = 0
    if switched:
        first = fields.integer("max_window_layers", default=QWEN_FULL_LAYERS)
        window = qwen_window(fields)
    if types:
        known = {"full_attention": None, "sliding_attention": window}
        unknown = sorted({str(t) for t in types[:layers]} - set(known))
        if unknown:
            raise NotUnderstood(f"layer_types holds {', '.join(unknown)}"[:200], where=fields.where)
        if window is None and "sliding_attention" in types:
            missing = "use_sliding_window is not true" if switched else "sliding_window is missing"
            raise NotUnderstood(f"layer_types has sliding_attention but {missing}", where=fields.where)
        return [known[t] for t in types[:layers]]
    return [window if index >= first else None for index in range(layers)]

"""The plain decoder in one function: grouped-query attention and one feed-forward a layer. A dense family is a call of
`dense` that says what is its own: norms, biases, names in the checkpoint, windows."""

from typing import NamedTuple

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common
from linkwise.model.families.common import GATE_UP_DOWN, QKVO
from linkwise.model.families.parts import Dense, Gqa, Linear, Vector, decoder, mtp, norms

# Defaults of transformers' Qwen2Config and Qwen3Config.
QWEN_WINDOW, QWEN_FULL_LAYERS = 4096, 28
# A norm before and after attention and feed-forward each (Gemma 2 and later).
FOUR_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
# Norms of outputs alone (OLMo 2 and 3).
OUTPUT_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")


class Names(NamedTuple):
    """A layer's names in the checkpoint. Projections of one name are slices of one stored tensor."""

    norms: tuple[str, ...] = ()
    attention: tuple[str, str, str, str] = QKVO
    mlp: tuple[str, str, str] = GATE_UP_DOWN


PLAIN_NAMES = Names()


def dense(
    fields: Fields,
    windows: list[int | None] | None = None,
    *,
    bias: bool = False,
    out_bias: bool = False,
    qk_norm: str = "",
    same_kv: bool = False,
    derived_width: bool = True,
    tied: bool = False,
    gated: bool = True,
    mlp_bias: bool = False,
    layer_norms: bool = False,
    names: Names = PLAIN_NAMES,
    mtp_layers: int = 0,
) -> Draft:
    """A draft of a dense decoder.

    windows: of each layer, None where it attends to everything; without it every layer does. bias, out_bias: of query,
    key and value, and of the output. qk_norm: see Gqa. same_kv, derived_width: see common.attention_heads.
    tied: whether embedding and head are one tensor unless the config says. gated, mlp_bias: of the feed-forward.
    layer_norms: norms have a bias. mtp_layers: MiMo's.
    """
    draft, hidden, count = common.start(fields, tied_default=tied)
    sizes = common.attention_heads(fields, hidden, same_kv=same_kv, derived_width=derived_width)
    attention = Gqa(hidden, *sizes, bias=bias, out_bias=out_bias, qk_norm=qk_norm, names=names.attention)
    inner = common.width(fields, "intermediate_size")
    ffn = Dense(hidden, inner, bias=fields.flag("mlp_bias", default=mlp_bias), gated=gated, names=names.mlp)
    around = norms(hidden, *names.norms, bias=layer_norms)
    layers = [(*around, attention.within(window), ffn) for window in windows or [None] * count]
    decoder(draft, layers, bias=layer_norms)
    joined = [Vector(f"{name}_layernorm", f"norm.{name}", hidden) for name in ("token", "hidden", "final")]
    projection = Linear("input_proj", "eh_proj", hidden, 2 * hidden)
    mtp(draft, [(*joined, projection, *around, attention, ffn)] * mtp_layers, at="model.mtp_layers")
    return draft


def qwen_window(fields: Fields) -> int | None:
    """The window of a Qwen config, None unless `use_sliding_window` is true."""
    window = fields.integer("sliding_window", default=0, most=10**9) or None
    if not fields.flag("use_sliding_window"):
        return None
    return window if fields.states("sliding_window") else QWEN_WINDOW


def windows(fields: Fields, *, switched: bool = False, unstated: int | None = None, every: int = 0) -> list[int | None]:
    """Sliding window of each layer, None where it attends to everything.

    `layer_types` decides where it is given; without it a `sliding_window` holds for every layer (Mistral, Mixtral).
    `switched`: Qwen's families have a window only where `use_sliding_window` is true (false unless stated), and then
    from layer `max_window_layers` on. `unstated`: the window of a config that does not write the field at all.
    `every`: without layer_types each layer of that number attends to everything (Gemma: `sliding_window_pattern`).
    """
    layers = common.layer_count(fields)
    window = fields.integer("sliding_window", default=0, most=10**9) or None
    if not fields.states("sliding_window"):
        window = unstated
    types = common.layer_kinds(fields, layers, "full_attention", "sliding_attention")
    first = 0
    if switched:
        first = fields.integer("max_window_layers", default=QWEN_FULL_LAYERS)
        window = qwen_window(fields)
    if every and not types:
        every = fields.integer("sliding_window_pattern", "_sliding_window_pattern", default=every, least=1, most=1000)
    if every:
        # Configs repeat the pattern, some in letters, beside layer_types.
        fields.ignore("sliding_window_pattern", "_sliding_window_pattern")
    if window is None and "sliding_attention" in types:
        missing = "use_sliding_window is not true" if switched else "sliding_window is missing"
        raise NotUnderstood(f"layer_types has sliding_attention but {missing}", where=fields.where)
    if types:
        return [window if kind == "sliding_attention" else None for kind in types]
    if every:
        return [None if (index + 1) % every == 0 else window for index in range(layers)]
    return [window if index >= first else None for index in range(layers)]

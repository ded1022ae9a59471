"""Dense decoders with grouped-query attention: Llama, Mistral, Ministral, Qwen2, Qwen3, MiMo, SmolLM3, Granite."""

from linkwise.model.draft import Draft, Fields
from linkwise.model.families import states
from linkwise.model.families.dense import dense, windows

MISTRAL_WINDOW = 4096


def read(fields: Fields) -> Draft:
    """Llama: no query/key norms; `attention_bias` gives all four projections a bias. Its config has no sliding window:
    transformers ignores one."""
    bias = fields.flag("attention_bias")
    return dense(fields, bias=bias, out_bias=bias, same_kv=True)


def read_mistral(fields: Fields) -> Draft:
    """Mistral: Llama without biases, with a sliding window unless the config writes null."""
    draft = dense(fields, windows(fields, unstated=MISTRAL_WINDOW))
    if not fields.states("sliding_window"):
        draft.notes.append(
            f"sliding_window is not stated: taken as {MISTRAL_WINDOW}, transformers' default for Mistral"
        )
    return draft


def read_ministral3(fields: Fields) -> Draft:
    """Ministral 3: Mistral whose attention is full unless a window is stated."""
    return dense(fields, windows(fields))


def read_qwen2(fields: Fields) -> Draft:
    """Qwen1.5, Qwen2, Qwen2.5: biases on query, key and value always, on the output never."""
    bias = fields.flag("attention_bias", "qkv_bias", default=True)
    return dense(fields, windows(fields, switched=True), bias=bias)


def read_qwen3(fields: Fields) -> Draft:
    """Qwen3: per-head query and key norms."""
    bias = fields.flag("attention_bias")
    found = windows(fields, switched=True)
    return dense(fields, found, bias=bias, out_bias=bias, qk_norm="head", derived_width=False)


def read_qwen3_vl(fields: Fields) -> Draft:
    """The language model of Qwen3-VL: Qwen3 without sliding windows."""
    bias = fields.flag("attention_bias")
    return dense(fields, bias=bias, out_bias=bias, qk_norm="head", derived_width=False)


def read_mimo(fields: Fields) -> Draft:
    """MiMo-7B: Qwen2 with an MTP layer of its own shape (vLLM's mimo_mtp.py): norms of token and hidden state, a
    [hidden, 2·hidden] projection, a decoder layer, a final norm; embedding and head are the model's."""
    depth = fields.integer("num_nextn_predict_layers", default=0, most=64)
    bias = fields.flag("attention_bias", "qkv_bias", default=True)
    return dense(fields, windows(fields, switched=True), bias=bias, mtp_layers=depth)


def read_smollm3(fields: Fields) -> Draft:
    """SmolLM3: Llama with one tensor for embedding and head; every fourth layer is without positions."""
    bias = fields.flag("attention_bias")
    fields.ignore("no_rope_layers", "no_rope_layer_interval")
    found = windows(fields, switched=True)
    return dense(fields, found, bias=bias, out_bias=bias, tied=True)


def read_granite(fields: Fields) -> Draft:
    """Granite 3 and 4 (dense): Llama with scaled embeddings, attention, residuals and logits."""
    bias = fields.flag("attention_bias")
    states.scaled(fields)
    return dense(fields, bias=bias, out_bias=bias, same_kv=True)

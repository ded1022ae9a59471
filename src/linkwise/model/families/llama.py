"""Llama and the dense decoders that differ from it by a few words: Mistral, Ministral, Qwen2, Qwen3, MiMo, SmolLM3,
Granite, Seed-OSS, EXAONE 4, StarCoder2, Arcee."""

from linkwise.model.draft import Draft, Fields
from linkwise.model.families import states
from linkwise.model.families.dense import OUTPUT_NORMS, Names, dense, windows

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
    # How far apart positions of distant chunks are taken to be (the 1M models): every key is kept all the same.
    fields.ignore("dual_chunk_attention_config")
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


def read_seed_oss(fields: Fields) -> Draft:
    """Seed-OSS: biases on query, key and value; one on the output only where stated."""
    bias, out_bias = fields.flag("attention_bias", default=True), fields.flag("attention_out_bias")
    fields.ignore("residual_dropout")
    return dense(fields, bias=bias, out_bias=out_bias)


def read_exaone4(fields: Fields) -> Draft:
    """EXAONE 4: norms on outputs and per head of queries and keys; with a window, three layers of four slide."""
    return dense(fields, windows(fields, every=4), qk_norm="head", names=Names(norms=OUTPUT_NORMS))


def read_starcoder2(fields: Fields) -> Draft:
    """StarCoder2: LayerNorms, a plain feed-forward of two matrices, biases everywhere."""
    bias = fields.flag("use_bias", default=True)
    fields.ignore("norm_epsilon", "norm_type", "mlp_type", "residual_dropout", "embedding_dropout")
    return dense(
        fields,
        windows(fields),
        bias=bias,
        out_bias=bias,
        tied=True,
        gated=False,
        mlp_bias=bias,
        layer_norms=True,
        names=Names(mlp=("", "c_fc", "c_proj")),
    )


def read_arcee(fields: Fields) -> Draft:
    """Arcee (AFM): Llama with a feed-forward that is not gated."""
    bias = fields.flag("attention_bias")
    return dense(fields, bias=bias, out_bias=bias, same_kv=True, gated=False)

"""tokenizer.json and tokenizer_config.json from the vocabulary and merges a GGUF file carries.

Byte-level BPE; how text is cut into words before merging is named in the file and defined by llama.cpp
(`llama_vocab::impl`, the patterns of its pre-tokenizers).
"""

from typing import Any

from linkwise.core.errors import InputError, NotUnderstood
from linkwise.runtime.weights.fields import Fields

NAMES = ("tokenizer.json", "tokenizer_config.json")

# Token types of GGUF.
_CONTROL, _USER_DEFINED = 3, 4
# Digits apart one by one, then GPT-2's pattern.
_DIGITS_APART = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell"})
_GPT2 = frozenset({"gpt-2", "mpt", "olmo", "phi-2", "jina-es", "jina-de"})
_LLAMA3 = frozenset({"llama-bpe", "llama3", "llama-v3"})
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def files(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    """File name -> contents. Raises NotUnderstood for a tokenizer of another kind."""
    try:
        import tokenizers  # noqa: F401
    except ImportError:
        raise InputError("the package tokenizers is not installed", expected="pip install linkwise[run]") from None
    kind = fields.text("tokenizer.ggml.model")
    if kind != "gpt2":
        raise NotUnderstood(f"tokenizer model {kind!r}"[:80], where=fields.where, expected="gpt2 (byte-level BPE)")
    tokens = fields.texts("tokenizer.ggml.tokens")
    if len(set(tokens)) != len(tokens):
        raise InputError("tokenizer.ggml.tokens holds a token twice", where=fields.where)
    tokenizer = _tokenizer(fields, tokens, config)
    return {
        "tokenizer.json": tokenizer.to_str(pretty=True).encode(),
        "tokenizer_config.json": _about(fields, tokens, config),
    }


def _tokenizer(fields: Fields, tokens: list[str], config: dict[str, Any]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, processors
    from tokenizers.models import BPE

    merges = []
    for merge in fields.texts("tokenizer.ggml.merges"):
        left, space, right = merge.partition(" ")
        if not space or " " in right:
            raise InputError(f"merge {merge[:80]!r}", where=fields.where, expected="two words")
        merges.append((left, right))
    style = fields.text("tokenizer.ggml.pre", "default")
    try:
        model = BPE({token: i for i, token in enumerate(tokens)}, merges, ignore_merges=style in _LLAMA3)
    except Exception as error:  # noqa: BLE001 - the library raises Exception itself, for a merge of unknown tokens
        raise InputError(f"vocabulary and merges do not fit: {error}", where=fields.where) from None
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = _words(style, fields.where)
    tokenizer.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, _types(fields, tokens), strict=True):
        if kind in {_CONTROL, _USER_DEFINED}:
            tokenizer.add_tokens([AddedToken(token, special=kind == _CONTROL, normalized=False)])
    bos = config.get("bos_token_id")
    if bos is not None and fields.flag("tokenizer.ggml.add_bos_token", style in _LLAMA3):
        first = tokens[bos]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[first, "$A"], pair=[first, "$A", f"{first}:1", "$B:1"], special_tokens=[(first, bos)]
        )
    return tokenizer


def _types(fields: Fields, tokens: list[str]) -> list[int]:
    types = fields.counts("tokenizer.ggml.token_type")
    if len(types) != len(tokens):
        raise InputError(f"{len(types)} token types of {len(tokens)} tokens", where=fields.where)
    return types


def _words(style: str, where: str) -> Any:
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

    if style in _GPT2:
        return ByteLevel(add_prefix_space=False)
    if style in _DIGITS_APART:
        return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    if style in _LLAMA3:
        return Sequence([Split(Regex(_LLAMA3_WORDS), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])
    known = ", ".join(sorted(_GPT2 | _DIGITS_APART | _LLAMA3))
    raise NotUnderstood(f"pre-tokenizer {style!r}"[:80], where=where, expected=f"one of {known}")


def _about(fields: Fields, tokens: list[str], config: dict[str, Any]) -> dict[str, Any]:
    """tokenizer_config.json."""
    about: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"],
    }
    for name in ("bos", "eos", "pad"):
        if f"{name}_token_id" in config:
            about[f"{name}_token"] = tokens[config[f"{name}_token_id"]]
    unknown = fields.count("tokenizer.ggml.unknown_token_id", -1, least=-1, most=len(tokens) - 1)
    if unknown >= 0:
        about["unk_token"] = tokens[unknown]
    if "tokenizer.chat_template" in fields:
        about["chat_template"] = fields.text("tokenizer.chat_template")
    return about

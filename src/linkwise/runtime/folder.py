"""Whether a folder's weights are those its config.json describes, as far as names tell, before any rank is started."""

import re
from collections.abc import Mapping
from typing import Any

from linkwise.core.errors import InputError
from linkwise.runtime.arch import Arch
from linkwise.runtime.shapes import names
from linkwise.runtime.weights.places import Place

_LAYER = re.compile(r"model\.layers\.(\d{1,9})\.")
_MODULES = re.compile(r"(model\.(layers\.\d+|embed_tokens|norm)|lm_head)\.")
# What a model that is run does not use and is the same without: positions that are computed from the config, scales of
# an 8-bit KV cache, which is not kept here. A tied head is held against the embedding by the rank that has it.
_HARMLESS = re.compile(r"\.rotary_emb\.(inv_freq|cos_cached|sin_cached)$|\.(k|v|kv)_scale$")
_SHOWN = 3  # names in a note


def check_layers(tensors: Mapping[str, Place], fields: Mapping[str, Any], layers: int) -> None:
    """Refuse weights of a layer that the config does not have: it is another model's, or cut short.

    Heads that predict further tokens are stored behind the last layer, and are not run.
    """
    more = fields.get("num_nextn_predict_layers")
    most = layers + (more if type(more) is int else 0)
    for name, place in tensors.items():
        found = _LAYER.match(name)
        if found is not None and int(found[1]) >= most:
            raise InputError(
                f"holds tensor {name[:120]!r}",
                where=str(place.file),
                expected=f"layers 0 to {layers - 1}, as num_hidden_layers in config.json says",
                hint="The config may be another model's",
            )


def check_used(tensors: Mapping[str, Place], arch: Arch) -> str:
    """Refuse a tensor of a module the model has which it does not use: without it the text would be another one.

    Returns a note on what else is there and not used; empty = nothing. Layers behind the last one are `check_layers`'.
    """
    used, others = frozenset(names(arch)), []
    for name, place in sorted(tensors.items()):
        layer = _LAYER.match(name)
        beyond = layer is not None and int(layer[1]) >= arch.layers
        tied = arch.tied and name == "lm_head.weight"
        if name in used or beyond or tied or _HARMLESS.search(name):
            continue
        if _MODULES.match(name):
            raise InputError(
                f"holds tensor {name[:120]!r}, which this model does not use",
                where=str(place.file),
                expected="the tensors that config.json asks for: without this one the text would be another",
                hint="Biases come with attention_bias and mlp_bias in config.json",
            )
        others.append(name)
    if not others:
        return ""
    shown = ", ".join(name[:120] for name in others[:_SHOWN]) + (", ..." if len(others) > _SHOWN else "")
    return f"{len(others):,} tensors of the folder are not used: {shown}"

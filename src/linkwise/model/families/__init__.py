"""Which reader writes a family down. Literal tables, imported lazily: a command pays for the one family it reads.

A reader is `read(fields: Fields) -> Draft` over the text section of a config; it names weights as the bare language
model does (`model.layers.0...`, `lm_head`). What a multimodal wrapper changes is in WRAPPERS.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import NamedTuple, cast

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Draft, Fields

Reader = Callable[[Fields], Draft]
# Adds the vision tower to a draft from the whole config; weights it adds carry their final checkpoint names.
Vision = Callable[[Fields, Draft], None]

_PACKAGE = "linkwise.model.families."

# model_type of the text section (or of the config, where it has none) -> module:function.
FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        "llama": "llama:read",
        "mistral": "llama:read_mistral",
        "qwen2": "llama:read_qwen2",
        "qwen3": "llama:read_qwen3",
        "qwen3_vl_text": "llama:read_qwen3_vl",
        "qwen2_vl": "llama:read_qwen2",
        "qwen2_vl_text": "llama:read_qwen2",
        "qwen2_5_vl": "llama:read_qwen2",
        "qwen2_5_vl_text": "llama:read_qwen2",
        "mimo": "llama:read_mimo",
        "ministral3": "llama:read_ministral3",
        "smollm3": "llama:read_smollm3",
        "granite": "llama:read_granite",
        "seed_oss": "llama:read_seed_oss",
        "exaone4": "llama:read_exaone4",
        "starcoder2": "llama:read_starcoder2",
        "arcee": "llama:read_arcee",
        "glm": "glm:read",
        "glm4": "glm:read_glm4",
        "gemma": "gemma:read",
        "gemma2": "gemma:read_gemma2",
        "gemma3_text": "gemma:read_gemma3",
        "phi3": "phi:read",
        "phimoe": "phi:read_moe",
        "olmoe": "olmo:read_olmoe",
        "olmo2": "olmo:read_olmo2",
        "olmo3": "olmo:read_olmo3",
        "cohere": "cohere:read",
        "cohere2": "cohere:read_cohere2",
        "mixtral": "mixtral:read",
        "qwen2_moe": "qwen_moe:read_qwen2",
        "qwen3_moe": "qwen_moe:read",
        "qwen3_vl_moe_text": "qwen_moe:read_vl",
        "deepseek_v2": "deepseek:read_v2",
        "deepseek_v3": "deepseek:read",
        "kimi_k2": "deepseek:read",
        "glm4_moe": "deepseek:read_glm4_moe",
        "glm4_moe_lite": "deepseek:read_glm4_moe_lite",
        "dots1": "deepseek:read_dots1",
        "gpt_oss": "gpt_oss:read",
        "llama4_text": "llama4:read",
        "minimax_m2": "minimax:read",
        "nemotron-nas": "nemotron_nas:read",
        "qwen3_next": "qwen3_5:read_next",
        "qwen3_5": "qwen3_5:read",
        "qwen3_5_text": "qwen3_5:read",
        "qwen3_5_moe": "qwen3_5:read",
        "qwen3_5_moe_text": "qwen3_5:read",
        "nemotron_h": "nemotron_h:read",
        "granitemoe": "granite:read_moe",
        "granitemoeshared": "granite:read_moe",
        "granitemoehybrid": "granite:read",
        "falcon_h1": "falcon_h1:read",
        "jamba": "jamba:read",
        "kimi_k3": "kimi_linear:read",
        "kimi_linear": "kimi_linear:read",
        "gemma4": "gemma4:read",
        "gemma4_text": "gemma4:read",
        "minimax_m3": "minimax_m3:read",
        "minimax_m3_vl": "minimax_m3:read",
        "minimax_m3_text": "minimax_m3:read",
        "mimo_v2_flash": "mimo_v2_flash:read",
        "step3p5": "step3p7:read",
        "step3p7": "step3p7:read",
        "deepseek_v32": "deepseek_v32:read",
        "deepseek_v4": "deepseek_v4:read",
        "deepseek_ref": "deepseek_v4:read",
        "glm_moe_dsa": "glm_moe_dsa:read",
    }
)


class Wrapper(NamedTuple):
    """What a multimodal config puts around its language model.

    inner, head: checkpoint prefixes that replace `model.` and `lm_head`.
    vision: module:function that counts the vision tower; empty when it is not counted (a note says so).
    ignore: fields of the outer config that change neither weights nor caches of the language model.
    """

    inner: str
    head: str
    vision: str = ""
    ignore: tuple[str, ...] = ()


_QWEN_VL = Wrapper("model.language_model.", "lm_head", "vision:qwen3_vl")

# model_type of the whole config -> its wrapper.
WRAPPERS: Mapping[str, Wrapper] = MappingProxyType(
    {
        "qwen3_vl": _QWEN_VL,
        "qwen3_vl_moe": _QWEN_VL,
        "qwen3_5": _QWEN_VL,
        "qwen3_5_moe": _QWEN_VL,
        # Released checkpoints keep the language model's own names.
        "qwen2_vl": Wrapper("model.", "lm_head", "vision:qwen2_vl"),
        "qwen2_5_vl": Wrapper("model.", "lm_head", "vision:qwen2_5_vl"),
        "gemma3": Wrapper("language_model.model.", "language_model.lm_head", "vision:gemma3"),
        "llama4": Wrapper("language_model.model.", "language_model.lm_head", "vision:llama4"),
        "mistral3": Wrapper("language_model.model.", "language_model.lm_head", "vision:mistral3"),
        "kimi_k25": Wrapper(
            "language_model.model.", "language_model.lm_head", "vision:kimi_k25", ("use_unified_vision_chunk",)
        ),
        "kimi_k3": Wrapper(
            "language_model.model.", "language_model.lm_head", "kimi_linear:vision", ("use_unified_vision_chunk",)
        ),
        "gemma4": Wrapper("model.language_model.", "lm_head", "gemma4:vision"),
        "minimax_m3_vl": Wrapper("language_model.model.", "language_model.lm_head", "minimax_m3:vision"),
    }
)


def reader(model_type: str, *, where: str) -> Reader:
    """The reader of a family. Raises NotUnderstood naming the model_type and the ones that are known."""
    entry = FAMILIES.get(model_type)
    if entry is None:
        raise NotUnderstood(
            f"model_type {model_type!r} is not known",
            where=where,
            expected="one of " + ", ".join(sorted(FAMILIES)),
            hint="Report the model: a new family needs a reader of its own",
        )
    return cast(Reader, _load(entry))


def vision_counter(wrapper: Wrapper) -> Vision | None:
    """The function that counts a wrapper's vision tower, or None when nothing does."""
    return cast(Vision, _load(wrapper.vision)) if wrapper.vision else None


def _load(entry: str) -> object:
    module, _, function = entry.partition(":")
    return getattr(import_module(_PACKAGE + module), function)

"""Parameters by role as transformers builds them, for comparison with ours. Shared by the model conformance tests.

Add a family: if its parameter names fit no rule below, add one to RULES (first match wins).
"""

import copy
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from linkwise.model.types import Model

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
MODELS = DATA / "models"
ABSENT = "the reference data collection is not beside this checkout"

# transformers' parameter name -> our role's general words.
RULES: tuple[tuple[str, str], ...] = (
    (r"(^|\.)visual\.|vision_|embed_vision|multi_modal_projector|mm_projector", "vision"),
    (r"embed_tokens(_per_layer)?\.|\.embeddings\.", "embed"),
    (r"lm_head\.", "head"),
    (r"shared_(experts?|mlp)[._]", "moe.shared"),
    (r"\.experts\.", "moe.experts"),
    (r"\.router\.|mlp\.gate\.|mixer\.gate\.|e_score_correction_bias", "moe.router"),
    # Nemotron-H calls every block a mixer.
    (r"\.mixer\.fc\d_latent_proj\.", "moe.latent"),
    (r"\.mixer\.[qkvo]_proj\.", "attn"),
    (r"\.mixer\.(up|down)_proj\.", "mlp"),
    (r"\.(mixer|mamba)\.", "mamba"),
    # DeepSeek-V4's hyper-connections, Gemma 4's scalar on a layer's output.
    (r"\.(attn_hc|ffn_hc|hc_head)\.|\.layer_scalar$", "norm"),
    (r"per_layer_(input_gate|projection|model_projection)\.", "mlp"),
    (r"\.linear_attn\.", "linear"),
    (r"\.self_attn\.", "attn"),
    (r"\.(mlp|feed_forward)\.", "mlp"),
    (r"norm", "norm"),
)


def config_files() -> list[Path]:
    """Every model config of the collection (quantisation files aside), in order."""
    return sorted(p for p in MODELS.glob("*_config.json") if not p.name.endswith("_hf_quant_config.json"))


def distinct_configs() -> list[Path]:
    """One config of each architecture: those that differ only in quantisation, dtype or bookkeeping build the same
    model, and building is slow."""
    chosen: dict[str, Path] = {}
    for path in config_files():
        config = json.loads(path.read_text())
        for section in (config, config.get("text_config") or {}):
            for field in _NO_ARCHITECTURE:
                section.pop(field, None)
        chosen.setdefault(json.dumps(config, sort_keys=True), path)
    return list(chosen.values())


_NO_ARCHITECTURE = (
    "quantization_config",
    "torch_dtype",
    "dtype",
    "transformers_version",
    "auto_map",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "max_position_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "_name_or_path",
    "use_cache",
)


def load_pair(path: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """A config of the collection and its hf_quant_config, where it has one."""
    quant = path.with_name(path.name.removesuffix("_config.json") + "_hf_quant_config.json")
    return json.loads(path.read_text()), json.loads(quant.read_text()) if quant.exists() else None


def bucket(name: str) -> str:
    """The role of one of transformers' parameters."""
    for pattern, role in RULES:
        if re.search(pattern, name):
            return role
    raise AssertionError(f"no rule gives transformers' parameter {name} a role")


def ours(model: Model) -> dict[str, int]:
    """Our parameters by general role. MTP layers are left out: transformers does not build them."""
    result: Counter[str] = Counter()
    for tensor in model.tensors:
        words = tensor.role.split(".")
        if words[0] != "mtp":
            result[".".join(words[:2]) if words[0] == "moe" else words[0]] += tensor.parameters
    return dict(result)


def theirs(config: dict[str, Any]) -> dict[str, int]:
    """Parameters by role of the unquantised model transformers builds (on the meta device: no memory)."""
    import torch
    import transformers

    plain = copy.deepcopy(config)
    for section in (plain, plain.get("text_config") or {}):
        section.pop("quantization_config", None)
        section.pop("auto_map", None)
    built = transformers.AutoConfig.for_model(**plain)
    with torch.device("meta"):
        if "vision_config" in config:
            model = transformers.AutoModelForImageTextToText.from_config(built)
        else:
            model = transformers.AutoModelForCausalLM.from_config(built)
    return counted(model)


def counted(model: Any) -> dict[str, int]:
    """Parameters and stored buffers of a torch module by role."""
    result: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        result[bucket(name)] += parameter.numel()
    stored = set(model.state_dict())
    for name, buffer in model.named_buffers():
        if name in stored:  # rotary tables are rebuilt, not stored
            result[bucket(name)] += buffer.numel()
    return dict(result)


def known_to_transformers(config: dict[str, Any]) -> bool:
    """Whether the installed transformers can build what `theirs` asks it for."""
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = config["model_type"]
    if "vision_config" in config:
        buildable = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    else:
        buildable = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    text = (config.get("text_config") or {}).get("model_type", kind)
    return kind in buildable and text in CONFIG_MAPPING

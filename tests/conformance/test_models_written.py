"""Configs as transformers writes them (each family's defaults): tensor by tensor against the model it builds.

Its experts are stacked into one tensor a projection; those, and families whose checkpoints have other names than
transformers' modules, are compared by role.
"""

import json
from collections import defaultdict
from typing import Any

import pytest
from tests.conformance import roles

from linkwise.model.read import from_config
from linkwise.model.types import Model

transformers = pytest.importorskip("transformers", reason="the oracle extra is not installed")

# Families whose checkpoints are named as transformers' modules are.
BY_NAME = [
    "llama",
    "mistral",
    "ministral3",
    "qwen2",
    "qwen3",
    "smollm3",
    "granite",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi3",
    "olmo2",
    "olmo3",
    "cohere",
    "cohere2",
    "falcon_h1",
    "glm",
    "glm4",
    "seed_oss",
    "exaone4",
    "starcoder2",
    "arcee",
]
BY_ROLE = [
    "mixtral",
    "gpt_oss",
    "gemma3",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_next",
    "qwen3_vl",
    "qwen3_vl_moe",
    "qwen2_moe",
    "qwen3_moe",
    "qwen3_5",
    "qwen3_5_moe",
    "llama4",
    "llama4_text",
    "gemma4_text",
    "mistral3",
    "mimo_v2_flash",
    "minimax_m2",
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v4",
    "glm_moe_dsa",
    "nemotron_h",
    "granitemoe",
    "granitemoeshared",
    "granitemoehybrid",
    "jamba",
    "olmoe",
    "glm4_moe_lite",
    "phimoe",
    "kimi_k25",
]


def _both(kind: str, **changes: Any) -> tuple[Model, Any]:
    """Our model of a family's default config, and transformers' on the meta device."""
    import torch

    config = transformers.AutoConfig.for_model(kind, **changes)
    written = json.loads(config.to_json_string(use_diff=True)) | {"dtype": "bfloat16"}
    vision = "vision_config" in written
    build = transformers.AutoModelForImageTextToText if vision else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        theirs = build.from_config(config)
    return from_config(written, None, name=kind, source=f"transformers' defaults of {kind}"), theirs


def _shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """Shape by stored name: weights of one name are slices of one tensor, by outputs."""
    slices: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for tensor in model.tensors:
        slices[tensor.name].append(tensor.shape)
    return {name: (sum(shape[0] for shape in found), *found[0][1:]) for name, found in slices.items()}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", BY_NAME)
def test_every_tensor_has_transformers_name_and_shape(kind: str) -> None:
    model, theirs = _both(kind)
    expected = {name.removesuffix(".weight"): tuple(p.shape) for name, p in theirs.named_parameters()}
    assert _shapes(model) == expected


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", BY_ROLE)
def test_parameters_by_role_equal_transformers(kind: str) -> None:
    model, theirs = _both(kind)
    assert roles.ours(model) == roles.counted(theirs)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("changes", [{}, {"use_qk_norm": True, "attention_bias": True, "first_k_dense_replace": 3}])
def test_glm_4_5_by_role(changes: dict[str, Any]) -> None:
    """Its class has no head size of its own: 4096 / 96 heads is no whole number, and every release states 128."""
    model, theirs = _both("glm4_moe", head_dim=128, **changes)
    assert roles.ours(model) == roles.counted(theirs)


@pytest.mark.filterwarnings("default")
def test_dots_llm1_by_role() -> None:
    """Its class leaves the experts empty."""
    experts = {"n_routed_experts": 32, "n_shared_experts": 2, "num_experts_per_tok": 6}
    model, theirs = _both("dots1", **experts, first_k_dense_replace=1, attention_bias=True)
    assert roles.ours(model) == roles.counted(theirs)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("experts", [0, 8])
def test_granite_4_with_attention_layers_and_without_experts(experts: int) -> None:
    kinds = ["linear_attention", "full_attention"]
    changes = {"layer_types": kinds, "num_hidden_layers": 2, "num_local_experts": experts}
    model, theirs = _both("granitemoehybrid", **changes, tie_word_embeddings=True)
    ours, expected = roles.ours(model), roles.counted(theirs)
    if not experts:
        # Without experts the MLP that is shared otherwise is the layer's own.
        expected["mlp"] = expected.pop("moe.shared")
    assert ours == expected


@pytest.mark.filterwarnings("default")
def test_the_biases_of_phi_3_5_moe() -> None:
    model, theirs = _both("phimoe", attention_bias=True, lm_head_bias=True)
    assert roles.ours(model) == roles.counted(theirs)


@pytest.mark.filterwarnings("default")
def test_falcon_h1_with_every_bias_and_norm() -> None:
    flags = ("attention_bias", "mlp_bias", "mamba_proj_bias", "projectors_bias", "mamba_rms_norm")
    model, theirs = _both("falcon_h1", **dict.fromkeys(flags, True), mamba_d_head="auto")
    expected = {name.removesuffix(".weight"): tuple(p.shape) for name, p in theirs.named_parameters()}
    assert _shapes(model) == expected


@pytest.mark.filterwarnings("default")
def test_command_r_plus_norms_each_head_by_its_own_vector() -> None:
    model, theirs = _both("cohere", use_qk_norm=True, num_key_value_heads=8)
    expected = {name.removesuffix(".weight"): tuple(p.shape) for name, p in theirs.named_parameters()}
    assert _shapes(model) == expected

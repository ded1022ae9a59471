"""Hybrid, sparse and compressed families against what was published about the released checkpoints."""

import pytest
from tests.conformance import roles

from linkwise.model.read import from_config
from linkwise.model.types import Model

pytestmark = pytest.mark.skipif(not roles.MODELS.is_dir(), reason=roles.ABSENT)


def _model(name: str) -> Model:
    config, quant = roles.load_pair(roles.MODELS / f"{name}_config.json")
    return from_config(config, quant, name=name, source=name)


def _stored(model: Model, *, mtp: bool) -> int:
    """Tensors of the checkpoint, each scale tensor counted: models here have at most one scale tensor a weight."""
    return sum(t.count * (2 if t.scale_bytes else 1) for t in model.tensors if t.role.startswith("mtp.") == mtp)


def test_glm_5_2_to_the_parameter_and_the_byte() -> None:
    """Sums over the safetensors headers of zai-org/GLM-5.2 (282 shards), as a public audit of it lists them."""
    model = _model("zai-org--GLM-5.2")
    assert model.parameters == 753_329_940_480
    assert model.weight_bytes == 1_506_659_919_872
    assert sum(t.parameters for t in model.tensors if t.role.startswith("mtp.")) == 9_952_920_576
    assert sum(t.parameters for t in model.tensors if t.dtype == "float32") == 19_456


def test_deepseek_v4_flash_to_the_tensor() -> None:
    """The release's index: 67,612 tensors of the model and 1,575 of its MTP layer."""
    model = _model("deepseek-ai--DeepSeek-V4-Flash")
    assert _stored(model, mtp=False) == 67_612
    assert _stored(model, mtp=True) == 1_575


def test_kimi_k3_to_the_tensor_and_the_gigabyte() -> None:
    """The release: 497,220 tensors, vision tower included, 1,561 GB on disk."""
    model = _model("moonshotai--Kimi-K3")
    assert _stored(model, mtp=False) == 497_220
    assert round(model.weight_bytes / 1e9) == 1561


def _history_gib(model: Model, tokens: int) -> float:
    """What a sequence keeps of its past, every element in bfloat16. Not history: tokens not yet compressed."""
    total = 0
    for layer in model.layers:
        for state in layer.states:
            if state.name != "compressor":
                total += state.per_token * 2 * (min(tokens, state.window or tokens) // state.stride)
    return total / 2**30


def test_deepseek_v4_pro_s_cache_at_a_million_tokens() -> None:
    """Published with the release (AINews, 2026-04-25): 9.62 GiB a sequence in bfloat16, 8.7 times less than V3.2's."""
    new = _history_gib(_model("deepseek-ai--DeepSeek-V4-Pro"), 2**20)
    old = _history_gib(_model("deepseek-ai--DeepSeek-V3.2"), 2**20)
    assert round(new, 2) == 9.62
    assert round(old / new, 1) == 8.7


# Totals the models' cards or names give, in billions, MTP aside; rounded by their authors, some of them downwards, so
# each is met within one unit of its last digit. Vision is counted where the card counts it.
TOTALS = [
    ("Qwen--Qwen3.5-397B-A17B", 397, 1, True),
    ("Qwen--Qwen3.5-122B-A10B", 122, 1, True),
    ("Qwen--Qwen3.5-35B-A3B", 35, 1, True),
    ("Qwen--Qwen3.5-27B", 27, 1, True),
    ("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 31.6, 0.1, False),
    ("nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8", 120, 1, False),
    ("nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", 550, 1, False),
    ("nvidia--Nemotron-H-56B-Base-8K", 56, 1, False),
    ("moonshotai--Kimi-K3", 2780, 10, True),
    ("google--gemma-4-26B-A4B", 26, 1, True),
    ("nvidia--Gemma-4-31B-IT-NVFP4", 31, 1, True),
    ("nvidia--MiniMax-M3-NVFP4", 428, 1, True),
    ("XiaomiMiMo--MiMo-V2-Flash", 309, 1, False),
    ("stepfun-ai--Step-3.7-Flash", 196, 1, False),
    ("deepseek-ai--DeepSeek-V3.2", 671, 1, False),
    ("deepseek-ai--DeepSeek-V4-Flash", 284, 1, False),
    ("deepseek-ai--DeepSeek-V4-Pro", 1600, 100, False),
    ("zai-org--GLM-5", 744, 1, False),
]


@pytest.mark.parametrize(("name", "billions", "unit", "vision"), TOTALS, ids=[t[0] for t in TOTALS])
def test_published_totals(name: str, billions: float, unit: float, vision: bool) -> None:
    left_out = ("mtp.",) if vision else ("mtp.", "vision.")
    total = sum(t.parameters for t in _model(name).tensors if not t.role.startswith(left_out))
    assert abs(total / 1e9 - billions) < unit


FAMILIES = (
    "qwen3_5",
    "nemotron_h",
    "kimi_k3",
    "gemma4",
    "minimax_m3",
    "mimo_v2",
    "step3p",
    "deepseek_v32",
    "deepseek_v4",
    "deepseek_ref",
    "glm_moe_dsa",
)


def test_every_config_of_these_families_is_understood() -> None:
    read = 0
    for path in roles.config_files():
        config, quant = roles.load_pair(path)
        if config["model_type"].startswith(FAMILIES):
            model = from_config(config, quant, name=path.stem, source=path.name)
            assert sum(t.parameters for t in model.tensors if t.layer < len(model.layers)) > 0
            assert [layer.index for layer in model.layers] == list(range(len(model.layers)))
            read += 1
    # The collection of 2026-11 holds 46 of them.
    assert read >= 40

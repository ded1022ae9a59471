"""Frequencies, factors and rotations against transformers' own rotary code."""

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from linkwise.core.errors import InputError
from linkwise.runtime.arch import Rope
from linkwise.runtime.attention.rope import Rotary, softmax_scale

_YARN = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096}
KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": _YARN,
    "yarn of DeepSeek-V3": {**_YARN, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
    "yarn of DeepSeek-V2-Lite": {**_YARN, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.9},
    "yarn, factor given": {**_YARN, "attention_factor": 1.25, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn, not truncated": {**_YARN, "truncate": False},
    "yarn, factor null": {**_YARN, "factor": None},
}  # fmt: skip


def _config(scaling: dict[str, Any], theta: float) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=256, num_attention_heads=4, head_dim=64, max_position_embeddings=131_072,
        rope_parameters={"rope_type": "default", **scaling, "rope_theta": theta},
    )  # fmt: skip


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
@pytest.mark.parametrize("kind", KINDS)
def test_angles_equal_transformers(kind: str, theta: float) -> None:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = _config(KINDS[kind], theta)
    theirs = LlamaRotaryEmbedding(config)
    ours = Rotary(Rope(theta=theta, dim=64, scaling=KINDS[kind], max_positions=131_072))
    torch.testing.assert_close(ours.frequencies, theirs.inv_freq, rtol=0, atol=0)
    assert ours.factor == theirs.attention_scaling
    positions = torch.tensor([0, 1, 77, 4095, 130_000])
    cos, sin = theirs(torch.zeros(1), positions[None])
    angles = ours.angles(positions, torch.float32)
    torch.testing.assert_close(angles.cos[:, 0], cos[0], rtol=0, atol=0)
    torch.testing.assert_close(angles.sin[:, 0, 32:], sin[0, :, 32:], rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["default", "yarn of DeepSeek-V2-Lite"])
def test_rotations_equal_transformers(kind: str) -> None:
    """Halves as Llama has them; pairs as DeepSeek-V3's and, in another order of elements, V2's."""
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import apply_rotary_emb
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import apply_rotary_pos_emb_interleave
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    theirs = LlamaRotaryEmbedding(_config(KINDS[kind], 10_000.0))
    positions = torch.tensor([3, 0, 900])
    cos, sin = theirs(torch.zeros(1), positions[None])
    q, k = torch.randn(2, 3, 5, 64, generator=torch.Generator().manual_seed(3))
    for interleaved in (False, True):
        ours = Rotary(Rope(theta=1e4, dim=64, scaling=KINDS[kind], max_positions=131_072, interleaved=interleaved))
        turned = [ours.turn(x, ours.angles(positions, torch.float32)) for x in (q, k)]
        apply = apply_rotary_pos_emb_interleave if interleaved else apply_rotary_pos_emb
        wanted = apply(q[None], k[None], cos, sin, unsqueeze_dim=2)
        torch.testing.assert_close(turned[0], wanted[0][0], rtol=0, atol=1e-6)
        torch.testing.assert_close(turned[1], wanted[1][0], rtol=0, atol=1e-6)
    turns = positions[:, None].float() * theirs.inv_freq
    complex_turns = torch.polar(torch.ones_like(turns), turns) * theirs.attention_scaling
    v2, _ = apply_rotary_emb(q.transpose(0, 1)[None], k.transpose(0, 1)[None], complex_turns[None])
    in_pairs = turned[0].unflatten(-1, (2, 32)).transpose(-1, -2).flatten(-2)
    torch.testing.assert_close(in_pairs, v2[0].transpose(0, 1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_scale_of_mla_equals_transformers(kind: str) -> None:
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import yarn_apply_mscale

    ours = softmax_scale(Rope(theta=1e4, dim=64, scaling=KINDS[kind]), 192)
    assert ours == yarn_apply_mscale({"rope_type": "default", **KINDS[kind]}, 192**-0.5)


@pytest.mark.parametrize(
    "scaling", [{"rope_type": "linear"}, {"rope_type": "linear", "factor": "2"}, {"rope_type": "su"}]
)
def test_a_scaling_that_cannot_be_read(scaling: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="rope_scaling"):
        Rotary(Rope(theta=1e4, dim=64, scaling=scaling))

"""Rotary positions: frequencies of every scaling the runtime reads, and their application to heads.

Frequencies and factors equal transformers' ROPE_INIT_FUNCTIONS, which the tests compare with.
"""

import math
from typing import Any, NamedTuple

import torch

from linkwise.core.errors import InputError
from linkwise.runtime.arch import Rope

Tensor = Any  # torch ships no types this project checks against


class Angles(NamedTuple):
    """Cosines and sines of n rows, [n, 1, width], in the activation dtype.

    Pairs (0, dim/2), (1, dim/2 + 1), ...: width dim, the first half of the sines negated, so that a head is rotated by
    head * cos + (head with swapped halves) * sin. Pairs (0, 1), (2, 3), ...: width dim / 2.
    """

    cos: Tensor
    sin: Tensor


class Rotary:
    """The rotation of one architecture. factor: what cosines and sines are multiplied with."""

    def __init__(self, rope: Rope, device: Any = "cpu") -> None:
        self.interleaved = rope.interleaved
        frequencies, self.factor = _frequencies(rope)
        self.frequencies = frequencies.to(device)

    def angles(self, positions: Tensor, dtype: Any) -> Angles:
        """Of rows at these positions (int64 [n])."""
        turns = positions[:, None].float() * self.frequencies
        cos, sin = turns.cos() * self.factor, turns.sin() * self.factor
        if not self.interleaved:
            cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        return Angles(cos.to(dtype)[:, None], sin.to(dtype)[:, None])

    def turn(self, heads: Tensor, angles: Angles) -> Tensor:
        """Heads [n, heads, dim] rotated. Interleaved heads come out with all first elements before all second ones.

        That order is transformers' for DeepSeek-V3; queries and keys agree in it, so that no product depends on it.
        """
        if self.interleaved:
            first, second = heads[..., 0::2], heads[..., 1::2]
            return torch.cat(
                (first * angles.cos - second * angles.sin, second * angles.cos + first * angles.sin), dim=-1
            )
        half = heads.shape[-1] // 2
        swapped = torch.cat((heads[..., half:], heads[..., :half]), -1)
        return torch.addcmul(heads * angles.cos, swapped, angles.sin)


def softmax_scale(rope: Rope, width: int) -> float:
    """What MLA scores of `width` elements are multiplied with: yarn's mscale_all_dim enters squared."""
    scale = float(width**-0.5)
    every = _number(rope, "mscale_all_dim", 0.0)
    if rope.scaling and every:
        scale *= _mscale(_number(rope, "factor"), every) * _mscale(_number(rope, "factor"), every)
    return scale


def _frequencies(rope: Rope) -> tuple[Tensor, float]:
    """Radians per position of every pair, float32 [dim / 2], and the attention factor."""
    powers = torch.arange(0, rope.dim, 2, dtype=torch.int64).float() / rope.dim
    plain = 1.0 / rope.theta**powers
    kind = rope.scaling.get("rope_type", "default")
    if kind == "default":
        return plain, 1.0
    if kind == "linear":
        return plain / _number(rope, "factor"), 1.0
    if kind == "llama3":
        return _llama3(rope, plain), 1.0
    if kind == "yarn":
        return _yarn(rope, powers)
    raise InputError(f"rope_type {kind!r}"[:80], where="rope_scaling", expected="default, linear, llama3 or yarn")


def _llama3(rope: Rope, plain: Tensor) -> Tensor:
    factor = _number(rope, "factor")
    low, high = _number(rope, "low_freq_factor"), _number(rope, "high_freq_factor")
    length = _number(rope, "original_max_position_embeddings", float(rope.max_positions))
    waves = 2 * math.pi / plain
    scaled = torch.where(waves > length / low, plain / factor, plain)
    smooth = (length / waves - low) / (high - low)
    between = (1 - smooth) * scaled / factor + smooth * scaled
    return torch.where((waves >= length / high) & (waves <= length / low), between, scaled)


def _yarn(rope: Rope, powers: Tensor) -> tuple[Tensor, float]:
    length = _number(rope, "original_max_position_embeddings", float(rope.max_positions))
    factor = _number(rope, "factor", rope.max_positions / length)
    low = _rotations(rope, _number(rope, "beta_fast", 32.0) or 32.0, length)
    high = _rotations(rope, _number(rope, "beta_slow", 1.0) or 1.0, length)
    if rope.scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    if low == high:
        high += 0.001  # the ramp has a width
    ramp = ((torch.arange(rope.dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    waves = rope.theta**powers
    kept = 1 - ramp
    frequencies = 1.0 / (factor * waves) * (1 - kept) + 1.0 / waves * kept
    given = rope.scaling.get("attention_factor")
    if given is not None:
        return frequencies, _number(rope, "attention_factor")
    mscale, every = _number(rope, "mscale", 0.0), _number(rope, "mscale_all_dim", 0.0)
    if mscale and every:
        return frequencies, _mscale(factor, mscale) / _mscale(factor, every)
    return frequencies, _mscale(factor, 1.0)


def _rotations(rope: Rope, count: float, length: float) -> float:
    """The pair that turns `count` times over `length` positions."""
    return rope.dim * math.log(length / (count * 2 * math.pi)) / (2 * math.log(rope.theta))


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _number(rope: Rope, name: str, otherwise: float | None = None) -> float:
    value = rope.scaling.get(name)
    value = otherwise if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        raise InputError(f"{name} is {value!r}"[:80], where="rope_scaling", expected="a number")
    return float(value)

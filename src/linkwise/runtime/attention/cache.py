"""Paged keys and values of one rank: blocks of entries that requests are given and give back."""

import math
from typing import Any

import torch

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.runtime.arch import Arch, Heads

Tensor = Any


def kv_heads_here(heads: int, layout: Layout) -> int:
    """KV heads on one rank: divided over the tensor ranks while they last, then replicated; dcp ranks share theirs."""
    return max(1, -(-heads // (layout.tp // layout.dcp)))


def entry_shapes(arch: Arch, layout: Layout) -> tuple[tuple[int, ...], ...]:
    """Shape of each tensor one entry of one layer has on a rank: keys and values, or MLA's latent."""
    attention = arch.attention
    if isinstance(attention, Heads):
        here = kv_heads_here(attention.kv_heads, layout)
        return ((here, attention.head_dim), (here, attention.head_dim))
    return ((attention.kv_rank + attention.rope_dim,),)


class Cache:
    """blocks: how many, block 0 (steps.SCRATCH) included, which belongs to nobody. block_tokens: entries of a block.

    layers: of each layer of this stage (k, v), each [blocks, block_tokens, kv heads here, head_dim], or MLA's
    (latent,), [blocks, block_tokens, kv_rank + rope_dim]: the normalised latent, then the rotated shared key.
    """

    def __init__(
        self,
        arch: Arch,
        layout: Layout,
        layers: int,
        blocks: int,
        block_tokens: int,
        *,
        dtype: Any,
        device: Any = "cpu",
    ) -> None:
        self.blocks, self.block_tokens = blocks, block_tokens
        # Zeros, not whatever memory holds: entries nobody wrote are read under a mask, and 0 * NaN is NaN.
        try:
            self.layers: list[tuple[Tensor, ...]] = [
                tuple(
                    torch.zeros((blocks, block_tokens, *shape), dtype=dtype, device=device)
                    for shape in entry_shapes(arch, layout)
                )
                for _ in range(layers)
            ]
        except (RuntimeError, MemoryError, OverflowError):  # of whatever kind: the allocator of each device has its own
            entry = sum(math.prod(shape) for shape in entry_shapes(arch, layout))
            size = layers * blocks * block_tokens * entry * dtype.itemsize
            raise InputError(
                f"a KV cache of {size:,} bytes cannot be allocated", where="kv_tokens", expected="fewer tokens of KV"
            ) from None

    @property
    def nbytes(self) -> int:
        """Bytes allocated on this rank."""
        return sum(tensor.numel() * tensor.element_size() for layer in self.layers for tensor in layer)

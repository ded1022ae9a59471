"""The attention of one layer, by the architecture's kind."""

from collections.abc import Callable
from typing import Any

from linkwise.runtime.arch import Arch, Heads
from linkwise.runtime.attention.grouped import Grouped
from linkwise.runtime.attention.latent import LatentHeads
from linkwise.runtime.attention.view import View
from linkwise.runtime.comm import Comm

Tensor = Any
Attention = Callable[[Tensor, View], Tensor]


def build(arch: Arch, weights: Any, layer: int, comm: Comm, cache_layer: tuple[Tensor, ...]) -> Attention:
    """attention(x [n, hidden], view) -> [n, hidden]: summands over tp, which the caller adds up over the group.

    weights: this rank's (runtime.split.tensor.Weights), of layer number `layer` of the whole model. cache_layer: the
    layer's tensors of `Cache.layers`.
    """
    kind = Grouped if isinstance(arch.attention, Heads) else LatentHeads
    return kind(arch, weights, layer, comm, cache_layer)

"""The gated feed-forward block: down(silu(gate(x)) * up(x)), its width divided over tensor ranks."""

import torch
import torch.nn.functional as F

from linkwise.runtime.linear import linear
from linkwise.runtime.split.tensor import Weights


class Mlp:
    """One dense block, or all shared experts of a layer as one. Gate and up are one matmul.

    name: module in the checkpoint. The result is this tensor rank's partial sum.
    """

    def __init__(self, weights: Weights, name: str, *, bias: bool = False) -> None:
        pair = (f"{name}.gate_proj", f"{name}.up_proj")
        self.gate_up = weights.columns([f"{one}.weight" for one in pair])
        self.down = weights.row(f"{name}.down_proj.weight")
        self.gate_up_bias = weights.columns([f"{one}.bias" for one in pair]) if bias else None
        self.down_bias = weights.whole(f"{name}.down_proj.bias") if bias else None
        # Every rank holds the bias of a sum, one adds it.
        self.adds = weights.places["tp"] == 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gated = gate(linear(x, self.gate_up, self.gate_up_bias))
        return linear(gated, self.down, self.down_bias if self.adds else None)


def gate(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(first half) * second half of the last dimension; the argument is used up."""
    half = gate_up.shape[-1] // 2
    return F.silu(gate_up[..., :half]).mul_(gate_up[..., half:])

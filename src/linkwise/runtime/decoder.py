"""One decoder layer: attention and a feed-forward block, each behind a norm and added to the hidden rows."""

from collections.abc import Callable
from typing import Any

import torch

from linkwise.core.errors import NotUnderstood
from linkwise.runtime.arch import Arch
from linkwise.runtime.attention import base
from linkwise.runtime.comm import Comm
from linkwise.runtime.mlp import Mlp
from linkwise.runtime.moe import LocalExperts, Router
from linkwise.runtime.norm import Norm
from linkwise.runtime.shapes import moe_module
from linkwise.runtime.split.data import Gather, OwnRows
from linkwise.runtime.split.expert import Exchange
from linkwise.runtime.split.tensor import Rows, Weights

Block = Callable[[torch.Tensor, int], torch.Tensor]


class Layer:
    """Decoder layer `number` of the model. Hidden rows go in and out as `Rows` keeps them between blocks."""

    def __init__(
        self, arch: Arch, weights: Weights, number: int, comm: Comm, cache_layer: tuple[torch.Tensor, ...]
    ) -> None:
        name = f"model.layers.{number}"
        self.rows = Rows(weights.layout, comm)
        self.before_attention = Norm(weights.whole(f"{name}.input_layernorm.weight"), arch.eps)
        self.attention = base.build(arch, weights, number, comm, cache_layer)
        self.before_block = Norm(weights.whole(f"{name}.post_attention_layernorm.weight"), arch.eps)
        sparse = arch.experts is not None and number in arch.experts.layers
        self.moe = Moe(arch, weights, number, comm) if sparse else None
        self.block: Block = self.moe or Dense(arch, weights, number, comm)

    def attend(self, x: torch.Tensor, view: Any) -> torch.Tensor:
        """The first half. x: hidden rows, changed in place and returned. view: the step's batch, attention/view.py."""
        h = self.rows.enter(self.before_attention(x), view.n, "attn.in")
        return x.add_(self.rows.leave(self.attention(h, view), "attn.out"))

    def feed(self, x: torch.Tensor, total: int) -> torch.Tensor:
        """The second half. total: hidden rows of the step, on all tensor ranks together."""
        return x.add_(self.block(self.before_block(x), total))


class Dense:
    """A dense MLP, split over tp."""

    def __init__(self, arch: Arch, weights: Weights, number: int, comm: Comm) -> None:
        self.rows = Rows(weights.layout, comm)
        self.mlp = Mlp(weights, f"model.layers.{number}.mlp", bias=arch.mlp_bias)

    def __call__(self, x: torch.Tensor, total: int) -> torch.Tensor:
        return self.rows.leave(self.mlp(self.rows.enter(x, total, "mlp.in")), "mlp.out")


class Moe:
    """Routed and shared experts. How rows reach the routed ones depends on where their tokens are:

    on all ranks of the stage (cp and dp_attn 1): nothing travels, each rank adds what its experts contribute;
    on attention replicas, experts sliced over all of them (ep 1): gathered over dp_attn, and scattered back;
    else each tensor rank sends its own rows: to everyone (experts are sliced, moe_tp > 1) or to their experts' ranks.
    """

    def __init__(self, arch: Arch, weights: Weights, number: int, comm: Comm) -> None:
        layout = weights.layout
        if arch.mlp_bias:
            raise NotUnderstood("mlp_bias in a model with experts", where=arch.family, expected="false")
        self.comm, self.rows = comm, Rows(layout, comm)
        self.router = Router(arch, weights, number)
        self.experts = LocalExperts(arch, weights, number)
        shared = arch.experts is not None and arch.experts.shared_intermediate > 0
        self.shared = Mlp(weights, f"{moe_module(arch, number)}.shared_experts") if shared else None
        self.replicas = Gather(comm, "dp_attn")
        self.own = OwnRows(layout, comm)
        sliced = Gather(comm, "stage")
        exchange = Exchange(comm, self.router, self.experts)
        self.exchange = exchange if layout.moe_tp == 1 else lambda x: sliced(x, self._routed)
        if layout.cp * layout.dp_attn == 1:
            self._form = self._replicated
        elif layout.ep == 1 and layout.cp == 1:
            self._form = self._sliced
        else:
            self._form = self._exchanged

    def __call__(self, x: torch.Tensor, total: int) -> torch.Tensor:
        return self._form(x, total)

    def _routed(self, x: torch.Tensor) -> torch.Tensor:
        """What this rank's experts, or slices of experts, add to rows."""
        return self.experts.weighted(x, *self.router(x))

    def _replicated(self, x: torch.Tensor, total: int) -> torch.Tensor:
        x = self.rows.enter(x, total, "moe.in")
        part = self._routed(x)
        if self.shared:
            part.add_(self.shared(x))
        return self.rows.leave(part, "moe.out")

    def _sliced(self, x: torch.Tensor, total: int) -> torch.Tensor:
        part = self.replicas(x, self._routed)
        if self.shared:
            part.add_(self.shared(x))
        summed: torch.Tensor = self.comm.all_reduce("tp", "moe.out", part)
        return summed

    def _exchanged(self, x: torch.Tensor, total: int) -> torch.Tensor:
        shared = self.comm.all_reduce("tp", "moe.shared", self.shared(x)) if self.shared else None
        out = self.own(x, self.exchange)
        return out if shared is None else out + shared

"""Attention data parallelism: replicas of the attention with requests of their own, which share one set of experts.

Outside of the experts a replica's ranks do what they would do alone. At the experts rows of all replicas meet: either
every rank gets all rows and adds what its experts, or slices of experts, make of them (`Gather`, here), or rows travel
to the ranks of their experts (split/expert.py). Replicas' batches are equally long, with filler rows where need be.
"""

from collections.abc import Callable

import torch

from linkwise.core.layout import Layout
from linkwise.runtime.comm import Comm
from linkwise.runtime.split.tensor import pad_rows

Apply = Callable[[torch.Tensor], torch.Tensor]


class Gather:
    """All rows of a group's ranks to each of them, and the sums of what they make of them back to where they belong."""

    def __init__(self, comm: Comm, axis: str) -> None:
        self.comm, self.axis = comm, axis

    def __call__(self, x: torch.Tensor, apply: Apply) -> torch.Tensor:
        """x [n, hidden], n equal on all ranks of the group, to the sum over the group of `apply`'s rows for x."""
        everyone = self.comm.all_gather(self.axis, "moe.dispatch", x)
        mine: torch.Tensor = self.comm.reduce_scatter(self.axis, "moe.combine", apply(everyone))
        return mine


class OwnRows:
    """Each tensor rank's share of rows that all of them hold, so that none is sent to the experts twice."""

    def __init__(self, layout: Layout, comm: Comm) -> None:
        self.comm, self.tp, self.place = comm, layout.tp, comm.place("tp")

    def __call__(self, x: torch.Tensor, exchange: Apply) -> torch.Tensor:
        """x [n, hidden], equal on all tensor ranks, to `exchange`'s rows for x, on all of them again."""
        if self.tp == 1:
            return exchange(x)
        each = -(-x.shape[0] // self.tp)
        own = pad_rows(x, each * self.tp)[self.place * each : (self.place + 1) * each]
        whole: torch.Tensor = self.comm.all_gather("tp", "moe.restore", exchange(own))
        return whole[: x.shape[0]]

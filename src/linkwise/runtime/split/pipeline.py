"""Pipeline parallelism: which layers a stage has, and how hidden rows go from stage to stage.

A stage takes rows, runs its layers and hands on; it does not wait for the next stage to take them, so that several
steps with different requests are under way at once. Each rank talks to the rank of its own place in the next stage.
"""

from collections.abc import Sequence
from typing import Any

import torch

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout, coordinates
from linkwise.engine.rules import even_partition
from linkwise.runtime.comm import Comm


class Pipeline:
    """One rank's stage. place: of the stage; layers: its decoder layers, as numbers of the model."""

    def __init__(self, layout: Layout, rank: int, comm: Comm, depth: int, counts: Sequence[int] | None = None) -> None:
        counts = tuple(even_partition(depth, layout.pp) if counts is None else counts)
        if len(counts) != layout.pp or sum(counts) != depth or min(counts) < 1:
            raise InputError(
                f"layers of stages: {', '.join(map(str, counts[:64]))}",
                where=f"pp {layout.pp}",
                expected=f"{layout.pp} numbers of at least 1 with the sum {depth}",
            )
        self.comm = comm
        self.place = coordinates(layout, rank)["pp"]
        first = sum(counts[: self.place])
        self.layers = range(first, first + counts[self.place])
        self.is_first, self.is_last = self.place == 0, self.place == layout.pp - 1
        self._sent: tuple[Any, torch.Tensor] | None = None

    def take(self, rows: int, hidden: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """The previous stage's hidden rows; waits for them."""
        out = torch.empty((rows, hidden), dtype=dtype, device=device)
        taken: torch.Tensor = self.comm.recv("pp", "pp.hidden", out, self.place - 1)
        return taken

    def hand_on(self, x: torch.Tensor) -> None:
        """Give hidden rows to the next stage; returns once those before them have left. x must not change any more."""
        self.drain()
        x = x.contiguous()
        self._sent = (self.comm.send("pp", "pp.hidden", x, self.place + 1, wait=False), x)

    def drain(self) -> None:
        """Wait until the rows last handed on have left."""
        if self._sent is not None:
            self._sent[0].wait()
            self._sent = None

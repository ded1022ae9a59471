"""Expert parallelism: every expert is on one rank, and rows travel to the ranks of their experts and back.

Three exchanges: how many rows each expert gets; the rows, a copy for each expert they chose; the experts' outputs, back
where they came from and summed there with the router's weights. What ranks send each other is as uneven as the routing.
"""

import torch

from linkwise.runtime.comm import Comm
from linkwise.runtime.moe import LocalExperts, Router, by_expert


class Exchange:
    """Rows to experts over the expert group, whole experts on each rank (moe_tp 1)."""

    def __init__(self, comm: Comm, router: Router, experts: LocalExperts) -> None:
        self.comm, self.router, self.experts = comm, router, experts

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's rows x [n, hidden] to what their experts add to them."""
        factors, chosen = self.router(x)
        order, counts = by_expert(chosen, self.experts.count)
        per_rank = [sum(counts[first:end]) for first, end in self.experts.shares]
        got = self._counts(counts)
        takes = got.sum(1).tolist()
        # Sorted by expert, rows are sorted by rank too.
        sent = x[order // chosen.shape[1]]
        arrived = self.comm.all_to_all("ep", "moe.dispatch", sent, per_rank, takes)
        done = self._apply(arrived, got)
        back = self.comm.all_to_all("ep", "moe.combine", done, takes, per_rank)
        parts = torch.empty_like(back)
        parts[order] = back
        weighted = parts.view(*chosen.shape, -1) * factors.unsqueeze(-1)
        return weighted.sum(1).to(x.dtype)

    def _counts(self, counts: list[int]) -> torch.Tensor:
        """Rows that come from each rank of the group for each expert here, [ranks, experts here]."""
        mine = self.experts.end - self.experts.first
        sends = [end - first for first, end in self.experts.shares]
        numbers = torch.tensor(counts, dtype=torch.int64, device=self.experts.down.device)
        got: torch.Tensor = self.comm.all_to_all("ep", "moe.counts", numbers, sends, [mine] * len(sends))
        return got.view(len(sends), mine)

    def _apply(self, arrived: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
        """Rows that lie by rank and then by expert, to their experts' outputs in the same order."""
        ranks, mine = got.shape
        which = torch.arange(mine, device=got.device).repeat(ranks).repeat_interleave(got.flatten())
        order = which.argsort(stable=True)
        out = torch.empty_like(arrived)
        out[order] = self.experts.sorted_rows(arrived[order], got.sum(0).tolist())
        return out

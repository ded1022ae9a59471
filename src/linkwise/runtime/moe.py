"""Mixture of experts: which experts a row goes to, and what the experts of this rank make of their rows.

Who sends which rows where is split/expert.py and split/data.py.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from linkwise.core.errors import InternalError
from linkwise.runtime.arch import Arch, Experts
from linkwise.runtime.linear import linear
from linkwise.runtime.mlp import gate
from linkwise.runtime.shapes import expert_names, moe_module
from linkwise.runtime.split.tensor import Weights


class Router:
    """Scores in float32, the best `top_k` of them: weights [n, top_k] float32 and expert numbers [n, top_k]."""

    def __init__(self, arch: Arch, weights: Weights, layer: int) -> None:
        self.experts = _of(arch)
        module = moe_module(arch, layer)
        self.weight = weights.whole(f"{module}.gate.weight")
        name = f"{module}.gate.e_score_correction_bias"
        self.correction = weights.whole(name, dtype=torch.float32) if self.experts.corrected else None
        # DeepSeek's logits are float32; the others' are computed in the model's dtype and then widened.
        self.wide = arch.family.startswith("deepseek")

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        of = self.experts
        logits = F.linear(x.float(), self.weight.float()) if self.wide else F.linear(x, self.weight).float()
        scores = logits.sigmoid() if of.scoring == "sigmoid" else logits.softmax(-1)
        ranked = scores if self.correction is None else scores + self.correction
        if of.groups > 1:
            ranked = ranked.masked_fill(self._outside(ranked), float("-inf"))
        chosen = ranked.topk(of.top_k, dim=-1)[1]
        found = scores.gather(1, chosen)
        if of.normalise:
            total = found.sum(-1, keepdim=True)
            found = found / (total + 1e-20 if of.scoring == "sigmoid" else total)
        return (found * of.scale if of.scale != 1.0 else found), chosen

    def _outside(self, ranked: torch.Tensor) -> torch.Tensor:
        """Experts of groups a row may not use, as a mask."""
        of = self.experts
        by_group = ranked.unflatten(1, (of.groups, -1))
        best = by_group.topk(2, dim=-1)[0].sum(-1) if of.group_score == "top2" else by_group.amax(-1)
        closed = torch.ones_like(best, dtype=torch.bool).scatter_(1, best.topk(of.top_groups, dim=-1)[1], False)
        return closed.repeat_interleave(by_group.shape[-1], dim=1)


class LocalExperts:
    """The experts this rank holds, stacked: numbers first..end-1, each a 1/moe_tp slice.

    load: rows each expert of the model has computed here since the start (int64, zeros for those of other ranks).
    """

    def __init__(self, arch: Arch, weights: Weights, layer: int) -> None:
        of, layout = _of(arch), weights.layout
        self.count = of.count
        self.shares = expert_shares(of.count, layout.ep)
        self.first, self.end = self.shares[weights.places["ep"]]
        number, inner = self.end - self.first, of.intermediate // layout.moe_tp
        options = {"dtype": weights.dtype, "device": weights.device}
        self.gate_up = torch.empty((number, 2 * inner, arch.hidden), **options)
        self.down = torch.empty((number, arch.hidden, inner), **options)
        for local in range(number):
            one, two, three = expert_names(arch, layer, self.first + local)
            self.gate_up[local, :inner] = weights.column(one, "moe_tp")
            self.gate_up[local, inner:] = weights.column(two, "moe_tp")
            self.down[local] = weights.row(three, "moe_tp")
        self.load = torch.zeros(of.count, dtype=torch.int64)

    def sorted_rows(self, rows: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """rows [n, hidden] that lie sorted by expert, counts[i] of local expert i, to the experts' outputs."""
        out = torch.empty_like(rows)
        at = 0
        for local, number in enumerate(counts):
            if number:
                part = rows[at : at + number]
                out[at : at + number] = linear(gate(linear(part, self.gate_up[local])), self.down[local])
                self.load[self.first + local] += number
                at += number
        return out

    def weighted(self, x: torch.Tensor, factors: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """What this rank's experts add to rows x [n, hidden]. factors, chosen [n, top_k]: the router's."""
        order, counts = by_expert(chosen, self.count)
        before = sum(counts[: self.first])
        mine = counts[self.first : self.end]
        order = order[before : before + sum(mine)]
        rows = order // chosen.shape[1]
        parts = self.sorted_rows(x[rows], mine)
        parts = (parts * factors.flatten()[order].unsqueeze(1)).to(x.dtype)
        return torch.zeros_like(x).index_add_(0, rows, parts)


def by_expert(chosen: torch.Tensor, count: int) -> tuple[torch.Tensor, list[int]]:
    """Places of the flattened choices in the order of experts, and how many chose each of `count` experts."""
    flat = chosen.flatten()
    return flat.argsort(stable=True), torch.bincount(flat, minlength=count).tolist()


def expert_shares(count: int, ep: int) -> list[tuple[int, int]]:
    """First and end expert of each place on the expert axis: low places hold one more where they do not divide."""
    shares, first = [], 0
    for place in range(ep):
        end = first + count // ep + (place < count % ep)
        shares.append((first, end))
        first = end
    return shares


def _of(arch: Arch) -> Experts:
    if arch.experts is None:
        raise InternalError("a layer of experts in a model without")
    return arch.experts

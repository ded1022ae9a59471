"""Grouped-query attention: KV heads divided over the tensor ranks while they last, then replicated."""

from typing import Any

import torch
from torch.nn.functional import rms_norm

from linkwise.core.errors import InputError
from linkwise.plan.reshard import head_range
from linkwise.runtime.arch import Arch, Heads
from linkwise.runtime.attention import attend, context, shards
from linkwise.runtime.attention.rope import Rotary
from linkwise.runtime.attention.view import View
from linkwise.runtime.comm import Comm
from linkwise.runtime.linear import linear

Tensor = Any


class Grouped:
    """One layer's attention on one rank. weights: runtime.split.tensor.Weights; entries: (k, v) of Cache.layers."""

    def __init__(self, arch: Arch, weights: Any, layer: int, comm: Comm, entries: tuple[Tensor, ...]) -> None:
        heads = arch.attention
        assert isinstance(heads, Heads)  # noqa: S101 - `build` chooses by type
        self.comm, self.eps = comm, arch.eps
        self.width, self.window, self.scale = heads.head_dim, heads.window, heads.head_dim**-0.5
        self.heads, self.kv = _here(heads, comm)
        self.rotary = Rotary(arch.rope, entries[0].device)
        self.keys, self.values = (each.view(-1, *each.shape[2:]) for each in entries)
        name = f"model.layers.{layer}.self_attn."
        kinds = ["weight", "bias"] if heads.qkv_bias else ["weight"]
        # One matrix for queries, keys and values: one read of the activations, one product.
        fused = [
            torch.cat(
                (
                    weights.column(f"{name}q_proj.{kind}", units=heads.heads),
                    weights.kv(f"{name}k_proj.{kind}", heads.kv_heads),
                    weights.kv(f"{name}v_proj.{kind}", heads.kv_heads),
                )
            )
            for kind in kinds
        ]
        self.qkv, self.qkv_bias = fused[0], fused[1] if heads.qkv_bias else None
        self.norms = [weights.whole(f"{name}{which}_norm.weight") for which in ("q", "k")] if heads.qk_norm else []
        self.out = weights.row(f"{name}o_proj.weight")
        bias = weights.whole(f"{name}o_proj.bias") if heads.out_bias else None
        # Ranks' results are summed: all hold the bias, one adds it.
        self.held = bias
        self.out_bias = bias if comm.place("tp") == 0 else None

    def __call__(self, x: Tensor, view: View) -> Tensor:
        """x [n, hidden] -> [n, hidden], this rank's summand of the tensor group's sum."""
        q, k, v = self._project(x, view)
        view.write(self.keys, k)
        view.write(self.values, v)
        if not view.prompts:
            done = self._decode(q, view)
        else:
            done = torch.empty_like(q)
            if view.decode:
                done[: view.decode] = self._decode(q[: view.decode], view)
            self._prompts(q, k, v, view, done)
        return linear(done.view(view.n, -1), self.out, self.out_bias)

    def _project(self, x: Tensor, view: View) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [n, heads, d], keys and values [n, kv heads, d], normalised and rotated."""
        angles = view.once(("angles", x.dtype), lambda: self.rotary.angles(view.positions, x.dtype))
        qkv = linear(x, self.qkv, self.qkv_bias).view(view.n, -1, self.width)
        if not self.norms:
            qk = self.rotary.turn(qkv[:, : self.heads + self.kv], angles)
            return qk[:, : self.heads], qk[:, self.heads :], qkv[:, self.heads + self.kv :]
        q, k, v = qkv.split((self.heads, self.kv, self.kv), 1)
        q = self.rotary.turn(rms_norm(q, (self.width,), self.norms[0], self.eps), angles)
        k = self.rotary.turn(rms_norm(k, (self.width,), self.norms[1], self.eps), angles)
        return q, k, v

    def _decode(self, q: Tensor, view: View) -> Tensor:
        if view.split:
            return shards.decode(self.comm, q, lambda every: self._part(every, view))
        reads = view.reads(q.dtype, self.window, heads=self.kv)
        if len(reads) == 1:
            return self._read(q, reads[0])
        done = torch.empty_like(q)
        for each in reads:
            done[each.rows] = self._read(q[each.rows], each)
        return done

    def _read(self, q: Tensor, reads: Any) -> Tensor:
        k, v = shards.read(self.keys, reads), shards.read(self.values, reads)
        return attend.over_decode(q, k, v, self.scale, reads.mask)

    def _part(self, q: Tensor, view: View) -> attend.Part:
        (reads,) = view.reads(torch.float32, self.window, heads=self.kv)
        k, v = shards.read(self.keys, reads), shards.read(self.values, reads)
        return attend.part_of_decode(q, k, v, self.scale, reads.mask)

    def _prompts(self, q: Tensor, k: Tensor, v: Tensor, view: View, done: Tensor) -> None:
        if not view.split:
            for prompt in view.prompts:
                rows = prompt.rows
                if prompt.start:
                    entries = view.context(prompt)
                    keys, values = self.keys[entries], self.values[entries]
                else:
                    keys, values = k[rows], v[rows]
                mask = view.mask(prompt, q.dtype, self.window)
                done[rows] = attend.over_prompt(q[rows], keys, values, self.scale, mask)
            return
        known = context.assemble(
            self.comm, view, "kv", lambda at: torch.cat((self.keys[at], self.values[at]), -1), torch.cat((k, v), -1)
        )
        context.ring(
            self.comm, view, "kv", q, known, lambda one: one.split(self.width, -1), self.scale, self.window, done
        )


def _here(heads: Heads, comm: Comm) -> tuple[int, int]:
    """Query heads and KV heads on this rank, each KV head with the queries that read it."""
    tp, place = comm.size("tp"), comm.place("tp")
    if heads.heads % tp:
        raise InputError(f"{heads.heads} attention heads", where=f"tp {tp}", expected="heads that tp divides")
    mine, each = heads.heads // tp, heads.heads // heads.kv_heads
    first, end = head_range(heads.kv_heads, tp, place)
    wanted = [(place * mine + i) // each for i in range(mine)]
    group = mine // (end - first)
    if wanted != [first + i // max(1, group) for i in range(mine)]:
        raise InputError(
            f"{heads.kv_heads} KV heads of {each} queries each",
            where=f"tp {tp}",
            expected="KV heads that tp divides, or a tp that is a multiple of them",
        )
    return mine, end - first

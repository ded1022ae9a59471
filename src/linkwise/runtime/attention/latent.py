"""Multi-head latent attention: all heads read one latent per token, which every tensor rank keeps whole.

Decode rows bring their queries into the latent's space (absorbed form), so that the cache is read as it is; prompts
expand latents to keys and values of every head, which takes fewer operations when there are many rows.
"""

from typing import Any

import torch
from torch.nn.functional import rms_norm

from linkwise.core.errors import InputError
from linkwise.runtime.arch import Arch, Latent
from linkwise.runtime.attention import attend, context, shards
from linkwise.runtime.attention.rope import Rotary, softmax_scale
from linkwise.runtime.attention.view import View
from linkwise.runtime.comm import Comm
from linkwise.runtime.linear import linear

Tensor = Any
_EPS = 1e-6  # of the norms inside: transformers' modules take their default there, whatever the config says


class LatentHeads:
    """One layer's attention on one rank. weights: runtime.split.tensor.Weights; entries: (latent,) of Cache.layers."""

    def __init__(self, arch: Arch, weights: Any, layer: int, comm: Comm, entries: tuple[Tensor, ...]) -> None:
        latent = arch.attention
        assert isinstance(latent, Latent)  # noqa: S101 - `build` chooses by type
        if latent.heads % comm.size("tp"):
            raise InputError(
                f"{latent.heads} attention heads", where=f"tp {comm.size('tp')}", expected="heads that tp divides"
            )
        self.comm, self.sizes, self.heads = comm, latent, latent.heads // comm.size("tp")
        self.scale = softmax_scale(arch.rope, latent.nope_dim + latent.rope_dim)
        self.rotary = Rotary(arch.rope, entries[0].device)
        (self.latents,) = (each.view(-1, each.shape[-1]) for each in entries)
        name = f"model.layers.{layer}.self_attn."
        down, bias = weights.whole(f"{name}kv_a_proj_with_mqa.weight"), None
        if latent.bias:
            bias = weights.whole(f"{name}kv_a_proj_with_mqa.bias")
        if latent.q_rank is None:
            self.queries = weights.column(f"{name}q_proj.weight", units=latent.heads)
        else:
            # Both projections read the same activations.
            down = torch.cat((down, weights.whole(f"{name}q_a_proj.weight")))
            if latent.bias:
                bias = torch.cat((bias, weights.whole(f"{name}q_a_proj.bias")))
            self.query_norm = weights.whole(f"{name}q_a_layernorm.weight")
            self.queries = weights.column(f"{name}q_b_proj.weight", units=latent.heads)
        self.down, self.down_bias = down, bias
        self.norm = weights.whole(f"{name}kv_a_layernorm.weight")
        self.up = weights.column(f"{name}kv_b_proj.weight", units=latent.heads)
        by_head = self.up.view(self.heads, latent.nope_dim + latent.v_dim, latent.kv_rank)
        self.to_latent, self.to_value = by_head[:, : latent.nope_dim], by_head[:, latent.nope_dim :].transpose(1, 2)
        self.out = weights.row(f"{name}o_proj.weight")
        out_bias = weights.whole(f"{name}o_proj.bias") if latent.bias else None
        # Ranks' results are summed: all hold the bias, one adds it.
        self.held = out_bias
        self.out_bias = out_bias if comm.place("tp") == 0 else None

    def __call__(self, x: Tensor, view: View) -> Tensor:
        """x [n, hidden] -> [n, hidden], this rank's summand of the tensor group's sum."""
        q, rotated, entries = self._project(x, view)
        view.write(self.latents, entries)
        if not view.prompts:
            done = self._decode(q, rotated, view)
        else:
            done = x.new_empty((view.n, self.heads, self.sizes.v_dim))
            if view.decode:
                done[: view.decode] = self._decode(q[: view.decode], rotated[: view.decode], view)
            self._prompts(torch.cat((q[..., : self.sizes.nope_dim], rotated), -1), entries, view, done)
        return linear(done.reshape(view.n, -1), self.out, self.out_bias)

    def _project(self, x: Tensor, view: View) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [n, heads, nope + rope], their rotated part [n, heads, rope], entries [n, kv_rank + rope]."""
        s = self.sizes
        angles = view.once(("angles", x.dtype), lambda: self.rotary.angles(view.positions, x.dtype))
        down = linear(x, self.down, self.down_bias)
        if s.q_rank is None:
            q = linear(x, self.queries)
        else:
            q = linear(rms_norm(down[:, s.kv_rank + s.rope_dim :], (s.q_rank,), self.query_norm, _EPS), self.queries)
        q = q.view(view.n, self.heads, s.nope_dim + s.rope_dim)
        rotated = self.rotary.turn(q[..., s.nope_dim :], angles)
        key = self.rotary.turn(down[:, None, s.kv_rank : s.kv_rank + s.rope_dim], angles)[:, 0]
        latent = rms_norm(down[:, : s.kv_rank], (s.kv_rank,), self.norm, _EPS)
        return q, rotated, torch.cat((latent, key), -1)

    def _decode(self, q: Tensor, rotated: Tensor, view: View) -> Tensor:
        """[rows, heads, v_dim]"""
        absorbed = torch.bmm(q[..., : self.sizes.nope_dim].transpose(0, 1), self.to_latent).transpose(0, 1)
        q = torch.cat((absorbed, rotated), -1)
        if view.split:
            done = shards.decode(self.comm, q, lambda every: self._part(every, view))
        else:
            done = q.new_empty((len(q), self.heads, self.sizes.kv_rank))
            for reads in view.reads(q.dtype):
                # Values as wide as keys go the fast way on the CPU: cutting the result costs less than cutting them.
                k = shards.read(self.latents[:, None], reads)
                out = attend.over_decode(q[reads.rows], k, k, self.scale, reads.mask)
                done[reads.rows] = out[..., : self.sizes.kv_rank]
        return torch.bmm(done.transpose(0, 1), self.to_value).transpose(0, 1)

    def _part(self, q: Tensor, view: View) -> attend.Part:
        (reads,) = view.reads(torch.float32)
        k = shards.read(self.latents[:, None], reads)
        return attend.part_of_decode(q, k, k[..., : self.sizes.kv_rank], self.scale, reads.mask)

    def _prompts(self, q: Tensor, entries: Tensor, view: View, done: Tensor) -> None:
        if view.split:
            known = context.assemble(self.comm, view, "latent", self.latents.__getitem__, entries)
            context.ring(self.comm, view, "latent", q, known, self._expand, self.scale, None, done)
            return
        for prompt in view.prompts:
            k, v = self._expand(self.latents[view.context(prompt)] if prompt.start else entries[prompt.rows])
            done[prompt.rows] = attend.over_prompt(q[prompt.rows], k, v, self.scale, view.mask(prompt, q.dtype))

    def _expand(self, entries: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [L, heads, nope + rope] and values [L, heads, v_dim] of entries [L, kv_rank + rope]."""
        s = self.sizes
        up = linear(entries[:, : s.kv_rank], self.up).view(len(entries), self.heads, -1)
        shared = entries[:, None, s.kv_rank :].expand(-1, self.heads, -1)
        return torch.cat((up[..., : s.nope_dim], shared), -1), up[..., s.nope_dim :]

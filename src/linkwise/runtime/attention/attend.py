"""Softmax over keys, whole or in parts that are put together by their log-sum-exp.

Heads: m rows of H query heads share KV key-value heads, consecutive groups of G = H / KV; H is KV-major. Keys
[L, KV, d], values [L, KV, e] as they lie in the cache, queries and results row-major [m, H, ...].
"""

from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

Tensor = Any
_SCORES = 1 << 24  # of one piece of a partial softmax: bounds its memory to some 64 MiB and copies


class Part(NamedTuple):
    """Attention over some of the keys. out: float32 [m, H, e], normalised over those keys, 0 without any. lse: float32
    [m, H], log of the sum of exponentials of the scores, -inf without any key."""

    out: Tensor
    lse: Tensor


def over_prompt(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    """Rows of one request over its keys. mask: added to the scores, [m, L]; None: causal, both begin at position 0."""
    rows, heads, width = q.shape
    kv, narrow = k.shape[1], v.shape[-1]
    if narrow < width:  # the CPU's fast way wants values as wide as keys
        v = pad(v, (0, width - narrow))
    # Groups are the attention's heads and KV heads its batch: the keys of a group are then one view, never copied.
    out = scaled_dot_product_attention(
        _grouped(q, kv),
        k.transpose(0, 1)[:, None].expand(-1, heads // kv, -1, -1),
        v.transpose(0, 1)[:, None].expand(-1, heads // kv, -1, -1),
        attn_mask=mask,
        is_causal=mask is None and rows > 1,
        scale=scale,
    )
    return out[..., :narrow].permute(2, 0, 1, 3).reshape(rows, heads, narrow)


def over_decode(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    """One row per request. k, v: [m, KV, L, ...]; mask: added to scores, [m, 1, 1, L], or None."""
    rows, heads, width = q.shape
    kv = k.shape[1]
    # A group's query heads take the place of a sequence: they read the same keys, and nothing is causal.
    out = scaled_dot_product_attention(q.view(rows, kv, heads // kv, width), k, v, attn_mask=mask, scale=scale)
    return out.reshape(rows, heads, -1)


def part_of_prompt(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor) -> Part:
    """Rows of one request over some of its keys, one or more. mask: added to scores, float32 [m, L]."""
    rows, heads, _ = q.shape
    step = max(1, _SCORES // max(1, heads * k.shape[0]))
    parts = [_part_of_rows(q[i : i + step], k, v, scale, mask[i : i + step]) for i in range(0, rows, step)]
    return parts[0] if len(parts) == 1 else Part(*(torch.cat(each) for each in zip(*parts, strict=True)))


def _part_of_rows(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor) -> Part:
    rows, heads, width = q.shape
    kv, keys = k.shape[1], k.shape[0]
    grouped = _grouped(q, kv).reshape(kv, heads // kv * rows, width)
    scores = (grouped @ k.permute(1, 2, 0)).view(kv, heads // kv, rows, keys).float() * scale + mask
    out, lse = _weigh(scores.view(kv, -1, keys), v.transpose(0, 1))
    return Part(
        out.view(kv, heads // kv, rows, -1).permute(2, 0, 1, 3).reshape(rows, heads, -1),
        lse.view(kv, heads // kv, rows).permute(2, 0, 1).reshape(rows, heads),
    )


def part_of_decode(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor) -> Part:
    """One row per request over some of its keys, one or more, which the mask may hide.

    k, v: [m, KV, L, ...]; mask: added to scores, [m, 1, 1, L].
    """
    rows, heads, width = q.shape
    kv = k.shape[1]
    scores = (q.reshape(rows, kv, heads // kv, width) @ k.transpose(-1, -2)).float() * scale + mask
    out, lse = _weigh(scores, v)
    return Part(out.reshape(rows, heads, -1), lse.reshape(rows, heads))


def _weigh(scores: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Values weighted by the softmax of float32 scores over the last dimension, and its log-sum-exp."""
    most = scores.amax(-1, keepdim=True)
    most = torch.where(most == -torch.inf, 0.0, most)
    weights = (scores - most).exp_()
    total = weights.sum(-1, keepdim=True)
    out = (weights.to(v.dtype) @ v).float() / total.clamp(min=torch.finfo(torch.float32).tiny)
    return out, (total.log() + most).squeeze(-1)


def join(one: Part, other: Part) -> Part:
    """Attention over the keys of both."""
    lse = torch.logaddexp(one.lse, other.lse)
    return Part(share(one, lse) + share(other, lse), lse)


def share(part: Part, lse: Tensor) -> Tensor:
    """What a part adds to the whole whose log-sum-exp is given."""
    weight = torch.where(part.lse == -torch.inf, 0.0, part.lse - lse).exp()
    return part.out * torch.where(part.lse == -torch.inf, 0.0, weight)[..., None]


def _grouped(q: Tensor, kv: int) -> Tensor:
    """[m, H, d] as [KV, G, m, d]."""
    rows, heads, width = q.shape
    return q.reshape(rows, kv, heads // kv, width).permute(1, 2, 0, 3)

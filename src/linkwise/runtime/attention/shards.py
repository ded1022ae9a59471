"""Decode rows over a cache whose tokens are spread over ranks: dcp ranks of a tensor group, then cp ranks.

Every rank attends to the entries it keeps and the parts are put together by their log-sum-exp. Ranks of a dcp group
hold the same KV head and different query heads, so each first gets the queries of all of them.
"""

from collections.abc import Callable
from typing import Any

from torch import logsumexp

from linkwise.runtime.attention.attend import Part, share
from linkwise.runtime.attention.view import Reads
from linkwise.runtime.comm import Comm

Tensor = Any


def read(flat: Tensor, reads: Reads) -> Tensor:
    """Entries of a flat cache [slots, heads, width] as [rows, heads, length, width]."""
    heads, width = flat.shape[1:]
    if reads.slots is None:
        return flat[reads.span].transpose(0, 1)[None]
    return flat.view(-1, width).index_select(0, reads.slots).view(reads.number, heads, reads.length, width)


def decode(comm: Comm, q: Tensor, attend: Callable[[Tensor], Part]) -> Tensor:
    """q [rows, heads, width] -> [rows, heads, value width], in q's dtype, equal on all cp ranks.

    attend: this rank's part for queries [rows, any number of heads, width].
    """
    part = attend(_every_query(comm, q))
    if comm.size("dcp") > 1:
        part = _over_dcp(comm, part, q)
    if comm.size("cp") > 1:
        part = _over_cp(comm, part, q)
    return part.out.to(q.dtype)


def _every_query(comm: Comm, q: Tensor) -> Tensor:
    """Queries of the whole dcp group: [rows, dcp * heads, width]."""
    ways = comm.size("dcp")
    if ways == 1:
        return q
    rows, heads, width = q.shape
    every = comm.all_gather("dcp", "dcp.query", q)
    return every.view(ways, rows, heads, width).transpose(0, 1).reshape(rows, ways * heads, width)


def _over_dcp(comm: Comm, part: Part, q: Tensor) -> Part:
    """Parts [rows, dcp * heads] of the ranks added up; each rank gets its own heads back."""
    ways, place = comm.size("dcp"), comm.place("dcp")
    rows, heads, _ = q.shape
    lse = logsumexp(comm.all_gather("dcp", "dcp.lse", part.lse).view(ways, rows, ways * heads), 0)
    shares = share(part, lse).to(q.dtype).view(rows, ways, heads, -1).transpose(0, 1)
    out = comm.reduce_scatter("dcp", "dcp.out", shares.reshape(ways * rows, heads, -1))
    return Part(out.float(), lse.view(rows, ways, heads)[:, place])


def _over_cp(comm: Comm, part: Part, q: Tensor) -> Part:
    """Parts [rows, heads] of the ranks added up."""
    ways = comm.size("cp")
    lse = logsumexp(comm.all_gather("cp", "cp.lse", part.lse).view(ways, *part.lse.shape), 0)
    return Part(comm.all_reduce("cp", "cp.out", share(part, lse).to(q.dtype).contiguous()), lse)

"""gloo over TCP, as torch.distributed runs it on CPU tensors: its own variants, found by counting.

Who sends what to whom was read off the interface counters of a lab (`linkwise lab`), link by link, with torch 2.13.0 on
2, 4 and 5 ranks, and agrees with gloo's source where a line is named:

- all_reduce: a ring, 2S(n-1)/n on every edge, but each rank sends to the one *before* it (NCCL's: to the one after).
- all_gather: a ring to the rank after, S(n-1)/n on every edge (allgather.cc).
- reduce_scatter: an all-reduce of the whole input, of which every rank keeps its part: 2S(n-1)/n where a ring needs
  half, so S and not S/2 between two ranks.
- broadcast: a binomial tree in which rank r has its message from r without its highest bit, so the root sends
  ceil(log2 n) times.
- all_to_all and send/recv are the `direct` ones.
"""

from collections.abc import Iterator

from linkwise.core.quantity import Num
from linkwise.plan.algorithms.base import Call, Send, Site

# What gloo runs for a kind: names of the registry.
NAMES = {
    "all_reduce": "gloo_ring",
    "all_gather": "gloo_ring",
    "reduce_scatter": "gloo_all_reduce",
    "broadcast": "gloo_tree",
    "all_to_all": "direct",
    "send_recv": "direct",
}


def all_reduce(where: Site, call: Call) -> Iterator[Send]:
    """A ring in group order, each member to the one before it: 2S(n-1)/n on every edge."""
    return _around(where, 2 * call.S * (where.size - 1) / where.size, -1)


def all_gather(where: Site, call: Call) -> Iterator[Send]:
    """A ring in group order, each member to the one after it: S(n-1)/n on every edge."""
    return _around(where, call.S * (where.size - 1) / where.size, +1)


reduce_scatter = all_reduce  # an all-reduce of the input, cut afterwards


def broadcast(where: Site, call: Call) -> Iterator[Send]:
    """A binomial tree: in each round every member that has the message sends it to one that has not."""
    n = where.size
    order = [where.devices[(call.root + i) % n] for i in range(n)]
    for place in range(1, n):
        parent = place - (1 << (place.bit_length() - 1))
        yield Send(order[parent], order[place], call.S)


def waits(kind: str, n: int) -> tuple[float, float]:
    """(least, most) times what its busiest link needs for its bytes that a large call takes.

    gloo's notice that a receive is posted travels behind the data on the same connection (transport/tcp/pair.cc: sends
    and notices share one queue), and all_to_all and all_gather post each send before its receive. So when two ranks
    exchange, the one that finds the other's notice already there sends at once, and the other's data wait until those
    are through: an exchange goes one way at a time, or both ways, by who comes first. Counted in a lab, single calls:
    all_to_all of two ranks 1 or 2, of four 1.0 to 1.65; all_gather of two, which goes in two halves, 1.05 to 1.5; of
    more it sends to one rank and receives from another, and is not held up, nor is all_reduce, which posts its receives
    first. A broadcast passes on what has come in whole: one level of its tree after the other, at most.
    """
    if kind == "all_to_all":
        return 1.0, 2.0
    if kind == "all_gather" and n == 2:
        return 1.0, 1.5
    return 1.0, float(max(1, (n - 1).bit_length())) if kind == "broadcast" else 1.0


def _around(where: Site, edge: Num, step: int) -> Iterator[Send]:
    n = where.size
    for i in range(n if n > 1 else 0):
        yield Send(where.devices[i], where.devices[(i + step) % n], edge)

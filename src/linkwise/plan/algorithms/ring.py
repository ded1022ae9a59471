"""Rings: members of a node side by side, one ring per NIC.

Source: the facts on NCCL's topology model. A ring enters a node at the device next to its NIC and leaves for the next
node over the same NIC; the rings of a group share its bytes evenly. On a mesh (xGMI) rings use every link evenly.
"""

from collections.abc import Iterator
from itertools import pairwise

from linkwise.core.quantity import Num
from linkwise.plan.algorithms.base import Call, Send, Site, by_channel, channels_of


def all_reduce(where: Site, call: Call) -> Iterator[Send]:
    """Reduce-scatter then all-gather: every edge carries 2S(n-1)/n."""
    n = where.size
    return around(where, call, 2 * call.S * (n - 1) / n)


def all_gather(where: Site, call: Call) -> Iterator[Send]:
    """Every edge carries S(n-1)/n."""
    n = where.size
    return around(where, call, call.S * (n - 1) / n)


reduce_scatter = all_gather  # the same bytes on the same edges


def rotate(where: Site, call: Call) -> Iterator[Send]:
    """Every member hands its message to the next, the last to the first: one pass of ring attention."""
    devices = where.devices
    if len(devices) > 1:
        yield from (Send(a, b, call.S) for a, b in pairwise((*devices, devices[0])))


def broadcast(where: Site, call: Call) -> Iterator[Send]:
    """From the root along each ring; the edge back into the root stays idle."""
    root, rings = where.devices[call.root], channels_of(where, call)
    for channel in range(rings):
        order = [x for members in by_channel(where, channel) for x in members]
        start = order.index(root)
        for a, b in pairwise(order[start:] + order[:start]):
            yield Send(a, b, call.S / rings)


def around(where: Site, call: Call, edge: Num) -> Iterator[Send]:
    """`edge` bytes on every edge, shared over the rings."""
    n = where.size
    if n == 1:
        return
    if where.mesh and call.channels is None:
        yield from (Send(a, b, edge / (n - 1)) for a in where.devices for b in where.devices if a != b)
        return
    rings = channels_of(where, call)
    for channel in range(rings):
        order = [x for members in by_channel(where, channel) for x in members]
        for a, b in pairwise((*order, order[0])):
            yield Send(a, b, edge / rings if rings > 1 else edge)

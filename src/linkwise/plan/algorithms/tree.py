"""NCCL's double binary tree: two trees over the nodes, each carrying half of the bytes up and down again; a chain of a
node's members hangs from the one next to the NIC. One pair of trees per NIC."""

from collections.abc import Iterator
from itertools import pairwise

from linkwise.plan.algorithms.base import Call, Send, Site, by_channel, channels_of


def all_reduce(where: Site, call: Call) -> Iterator[Send]:
    """Sums go up, results come down. 2S(n-1)/n each way on average over members; inner members carry more."""
    pairs = channels_of(where, call)
    half = call.S / (2 * pairs)
    for channel in range(pairs):
        chains = by_channel(where, channel)
        for tree in (_first, _second):
            edges = [edge for chain in chains for edge in pairwise(chain)]
            for node in range(len(chains)):
                above = tree(node, len(chains))
                if above is not None:
                    edges.append((chains[above][0], chains[node][0]))
            for parent, child in edges:
                yield Send(child, parent, half)
                yield Send(parent, child, half)


def _first(node: int, nodes: int) -> int | None:
    """Parent in the first tree, None for the root, node 0; odd nodes are leaves.

    A node whose lowest set bit is b hangs between node - b and node + b: from the one that is an odd multiple of 2b, or
    from the lower one when the upper does not exist.
    """
    if node == 0:
        return None
    bit = node & -node
    up, down = node + bit, node - bit
    return down if down // (2 * bit) % 2 or up >= nodes else up


def _second(node: int, nodes: int) -> int | None:
    """The same tree mirrored (an even count) or shifted by one (odd), so that a leaf of one is inside the other."""
    if nodes % 2 == 0:
        above = _first(nodes - 1 - node, nodes)
        return None if above is None else nodes - 1 - above
    above = _first((node - 1) % nodes, nodes)
    return None if above is None else (above + 1) % nodes

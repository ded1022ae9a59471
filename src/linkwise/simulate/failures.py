"""What failures take with them: replicas lie on nodes one after the other, and a node takes every replica on it."""

import numpy as np

FAILURE_OF = ("node", "replica")


def lost(replicas: int, size: int, per_node: int, failures: int, of: str) -> int:
    """Replicas that the worst `failures` take, where replicas of `size` devices lie one after the other on nodes."""
    if not failures or of == "replica":
        return min(failures, replicas)
    nodes = -(-replicas * size // per_node)
    if failures >= nodes:
        return replicas
    at = np.arange(nodes)
    first = at * per_node // size
    last = np.minimum((at + 1) * per_node - 1, replicas * size - 1) // size
    # Nodes in order share at most the replica that lies on both: most[j] = taken by nodes of which j is the last.
    own = last - first + 1
    most = own.copy()
    for _ in range(failures - 1):
        before = np.full(nodes, -1)
        shared = (last[:, None] == first[None, :]).astype(int)
        reach = np.where(at[:, None] < at[None, :], most[:, None] - shared, -1)
        before[1:] = reach.max(axis=0)[1:]
        most = np.where(before >= 0, before + own, -1)
    return int(most.max())


def enough(survivors: int, size: int, per_node: int, failures: int, of: str) -> int:
    """The fewest replicas of which so many survive."""
    count = survivors
    while count - lost(count, size, per_node, failures, of) < survivors:
        count += 1
    return count

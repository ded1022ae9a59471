"""Pools of replicas on nodes: what failures take of each, how many survive them, and what the clusters hold.

Replicas lie on nodes one after the other; where nodes fail, each of two pools begins on a node of its own. A node takes
every replica that has a rank on it. Each pool survives all of the failures, in whichever of them they happen.
"""

from typing import NamedTuple

from linkwise.plan.types import Plan
from linkwise.simulate.failures import enough, lost

Counts = tuple[int, ...]  # of replicas, by pool


class Fleet(NamedTuple):
    """plans: of the one pool, or of prefill and decode. failures: of nodes or of single replicas (`of`)."""

    plans: tuple[Plan, ...]
    failures: int
    of: str

    @property
    def roles(self) -> tuple[str, ...]:
        return ("both",) if len(self.plans) == 1 else ("prefill", "decode")

    @property
    def shared(self) -> bool:
        """Whether two pools are on one cluster."""
        return len(self.plans) > 1 and self.plans[0].cluster == self.plans[1].cluster

    def lost(self, counts: Counts) -> Counts:
        """Replicas that the worst failures take of each pool, where they all happen in it."""
        return tuple(
            lost(count, plan.layout.size, plan.cluster.devices_per_node, self.failures, self.of)
            for count, plan in zip(counts, self.plans, strict=True)
        )

    def enough(self, survivors: Counts, failures: int | None = None) -> Counts:
        """The fewest replicas of which so many survive."""
        hurt = self.failures if failures is None else failures
        return tuple(
            enough(count, plan.layout.size, plan.cluster.devices_per_node, hurt, self.of)
            for count, plan in zip(survivors, self.plans, strict=True)
        )

    def devices(self, counts: Counts) -> Counts:
        """By pool."""
        return tuple(count * plan.layout.size for count, plan in zip(counts, self.plans, strict=True))

    def nodes(self, counts: Counts) -> Counts:
        """By pool, each on nodes of its own."""
        return tuple(
            -(-devices // plan.cluster.devices_per_node)
            for devices, plan in zip(self.devices(counts), self.plans, strict=True)
        )

    def left(self, counts: Counts) -> tuple[int, int]:
        """Devices and whole nodes of the clusters beside them; below 0 = so many are missing.

        Of two clusters the sum of both; where one of them is short, what it is short of.
        """
        takes, nodes = self.devices(counts), self.nodes(counts)
        if not self.shared:
            free = [plan.cluster.size - n for plan, n in zip(self.plans, takes, strict=True)]
            whole = [plan.cluster.nodes - n for plan, n in zip(self.plans, nodes, strict=True)]
            at = [i for i, n in enumerate(free) if n < 0] or range(len(free))
            return sum(free[i] for i in at), sum(whole[i] for i in at)
        cluster = self.plans[0].cluster
        if self.failures and self.of == "node":
            whole_nodes = cluster.nodes - sum(nodes)
            return min(cluster.size - sum(takes), whole_nodes * cluster.devices_per_node), whole_nodes
        return cluster.size - sum(takes), cluster.nodes - -(-sum(takes) // cluster.devices_per_node)

    def fits(self, counts: Counts) -> bool:
        return self.left(counts)[0] >= 0

    def most(self, counts: Counts) -> Counts:
        """As many of each pool as the clusters hold, none more than asked; on one cluster as near to that ratio as it
        gets, and then as many of either as there is room for."""
        if not self.shared:
            room = (plan.cluster.size // plan.layout.size for plan in self.plans)
            return tuple(min(pair) for pair in zip(counts, room, strict=True))
        best, most = (0, 0), (0.0, 0.0)
        for first in range(1, counts[0] + 1):
            second = next((n for n in range(counts[1], 0, -1) if self.fits((first, n))), 0)
            less, more = sorted((first / counts[0], second / counts[1]))
            if less > 0 and (less, more) > most:
                best, most = (first, second), (less, more)
        return best

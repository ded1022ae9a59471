"""Where a plan puts ranks, and where they are, in the words of supervise/rank_map.py."""

from collections.abc import Iterable

from linkwise.plan.types import Plan
from linkwise.runtime.control import RankFacts
from linkwise.supervise.rank_map import Found, Put


def planned(plan: Plan, replica: int) -> tuple[Put, ...]:
    """By rank of one of the plan's replicas; empty where the plan has fewer."""
    cluster = plan.cluster
    puts = []
    for device in plan.rank_grid[replica] if replica < len(plan.rank_grid) else ():
        node, index = cluster.node_of(device), device % cluster.devices_per_node
        detail = cluster.detail_of(node)
        # What a cluster does not state is a guess, and nothing to compare with.
        puts.append(Put(node, index, detail.numa[index] if detail and detail.numa else -1))
    return tuple(puts)


def found(facts: Iterable[RankFacts]) -> list[Found]:
    """As the ranks themselves say it."""
    return [
        Found(one.rank, one.host, one.machine, one.device, one.bus, one.numa, one.cores_numa, one.cores, one.transport)
        for one in facts
    ]

"""Which rank drives which device, and which groups there are: from a cluster alone, or from a plan."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from linkwise.cluster.types import Cluster
from linkwise.core.errors import InputError
from linkwise.dist.groups import axis_groups
from linkwise.measure.sweep import tier_groups
from linkwise.plan.types import Plan

Groups = tuple[tuple[str, tuple[tuple[int, ...], ...]], ...]


class Laid(NamedTuple):
    """devices: of each rank. groups: (label, world ranks of each). replicas: of the plan, that take part."""

    cluster: Cluster
    devices: tuple[int, ...]
    groups: Groups
    replicas: int = 1


def on_cluster(cluster: Cluster, ranks: int) -> Laid:
    """Rank r on device r; groups that exercise every tier. Raises InputError when there are more ranks than devices."""
    if not 2 <= ranks <= cluster.size:
        raise InputError(f"{ranks} ranks", where="--ranks", expected=f"2..{cluster.size}, devices of {cluster.name}")
    devices = tuple(range(ranks))
    return Laid(cluster, devices, tuple(tier_groups(cluster, devices)))


def on_plan(plan: Plan, ranks: int, cluster: Cluster | None = None) -> Laid:
    """Ranks where the plan puts them, whole replicas only; the groups of every axis. cluster: in place of the plan's.

    Raises InputError when ranks do not make whole replicas, or the clusters differ in shape.
    """
    size = plan.layout.size
    if ranks % size or not size <= ranks <= size * plan.replicas:
        raise InputError(
            f"{ranks} ranks",
            where="--ranks",
            expected=f"{plan.layout} takes {size} a replica, 1..{plan.replicas} replicas",
        )
    where = cluster or plan.cluster
    if (where.nodes, where.devices_per_node) != (plan.cluster.nodes, plan.cluster.devices_per_node):
        raise InputError(
            f"{where.nodes} nodes of {where.devices_per_node} ({where.name})",
            where="--on",
            expected=f"{plan.cluster.nodes} of {plan.cluster.devices_per_node}, as the plan's {plan.cluster.name}",
        )
    count = ranks // size
    devices = tuple(device for row in plan.rank_grid[:count] for device in row)
    by_axis: dict[str, list[tuple[int, ...]]] = {}
    for axis, members in axis_groups(plan.layout, replicas=count):
        by_axis.setdefault(axis, []).append(members)
    # Axes whose groups have the same members are one set of groups: measured once, under all their names.
    names: dict[tuple[tuple[int, ...], ...], list[str]] = {}
    for axis, teams in by_axis.items():
        names.setdefault(tuple(teams), []).append(axis)
    return Laid(where, devices, tuple(("/".join(axes), teams) for teams, axes in names.items()), count)


def usual_ranks(cluster: Cluster | None, plan: Plan | None, here: int) -> int:
    """How many ranks to start when nobody says: the plan's, else one for each device here, at least two.

    here: GPUs of this machine, or 0.
    """
    if plan is not None:
        return plan.layout.size * plan.replicas
    return max(2, min(cluster.size if cluster else 2, here or 2))


def with_constants(plan: Plan, cluster: Cluster) -> Plan:
    """The plan on a cluster with other constants."""
    return msgspec.structs.replace(plan, cluster=cluster)


def machine_notes(laid: Laid, hosts: Sequence[str]) -> tuple[str, ...]:
    """What the figures are of, where ranks do not sit as the cluster file says."""
    nodes = {laid.cluster.node_of(device) for device in laid.devices}
    if len(set(hosts)) == len(nodes):
        return ()
    return (
        f"{len(hosts)} ranks ran on {len(set(hosts))} machine{'s' * (len(set(hosts)) != 1)},"
        f" the cluster file lays them on {len(nodes)} nodes: links between them are not the ones it means",
    )

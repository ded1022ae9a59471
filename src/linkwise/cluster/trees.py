"""Fabrics that files write as trees: a switch, its child switches, its hosts. From there to tiers and cables."""

from collections.abc import Iterable, Mapping, Sequence

from linkwise.cluster.topology import Port
from linkwise.cluster.types import MAX_DEVICES
from linkwise.core.errors import InputError
from linkwise.core.schema import Frozen


class Branch(Frozen, frozen=True, kw_only=True):
    """One switch of a tree: the switches below it, the hosts on it, and where the file says so."""

    name: str
    switches: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    where: str = ""


def tree(branches: Sequence[Branch]) -> tuple[dict[str, int], tuple[Port, ...], tuple[str, ...]]:
    """Tier of every switch (1 = leaf, 0 = not known), the cables, and the hosts in file order.

    A switch named only as a child is a switch without hosts. Raises InputError for a switch said twice, a host on two
    switches, a switch with two parents, or a switch below itself.
    """
    by_name: dict[str, Branch] = {}
    for branch in branches:
        if branch.name in by_name:
            raise InputError(f"switch {_short(branch.name)} a second time", where=branch.where)
        by_name[branch.name] = branch
    parent: dict[str, str] = {}
    home: dict[str, str] = {}
    for branch in branches:
        for child in branch.switches:
            _once(parent, child, branch, "switch")
        for host in branch.hosts:
            _once(home, host, branch, "host")
    names = dict.fromkeys([*by_name, *parent])
    if both := next((host for host in home if host in names), None):
        raise InputError(f"{_short(both)} is a host and a switch", where=by_name[home[both]].where)
    if len(names) + len(home) > MAX_DEVICES:
        raise InputError(f"{len(names) + len(home)} switches and hosts", expected=f"at most {MAX_DEVICES}")
    cables = [Port(a=host, b=switch) for host, switch in home.items()]
    cables += [Port(a=child, b=above) for child, above in parent.items()]
    return _tiers(names, parent, by_name), tuple(cables), tuple(home)


def _once(seen: dict[str, str], name: str, branch: Branch, kind: str) -> None:
    if name in seen:
        raise InputError(
            f"{kind} {_short(name)} is on {_short(seen[name])} and on {_short(branch.name)}",
            where=branch.where,
            expected=f"each {kind} under one switch",
        )
    seen[name] = branch.name


def _tiers(names: Iterable[str], parent: Mapping[str, str], by_name: Mapping[str, Branch]) -> dict[str, int]:
    """Height above the hosts; a switch with nothing below it stands beside its siblings."""
    names = list(names)
    depth: dict[str, int] = {}
    for name in names:
        way, at = [], name
        while at not in depth and at in parent:
            way.append(at)
            at = parent[at]
            if len(way) > len(names):
                raise InputError(f"switch {_short(name)} is below itself", where=by_name[parent[name]].where)
        depth.setdefault(at, 0)
        for step, below in enumerate(reversed(way), 1):
            depth[below] = depth[at] + step
    tiers = dict.fromkeys(names, 0)
    for name in sorted(names, key=lambda n: -depth[n]):
        if name in by_name and by_name[name].hosts:
            tiers[name] = max(tiers[name], 1)
        if tiers[name] and name in parent:
            tiers[parent[name]] = max(tiers[parent[name]], tiers[name] + 1)
    for name in sorted(names, key=lambda n: depth[n]):
        if not tiers[name] and name in parent and tiers[parent[name]] > 1:
            tiers[name] = tiers[parent[name]] - 1
    return tiers


def around(hosts: Iterable[str], switches: Iterable[str], ports: Iterable[Port]) -> dict[str, int]:
    """Tiers of any graph: 1 = a host is plugged in, then one more for each step away; 0 = not reached."""
    near: dict[str, list[str]] = {}
    for port in ports:
        near.setdefault(port.a, []).append(port.b)
        near.setdefault(port.b, []).append(port.a)
    tiers = dict.fromkeys(switches, 0)
    edge, tier = list(dict.fromkeys(hosts)), 1
    while edge:
        reached = dict.fromkeys(b for a in edge for b in near.get(a, ()) if tiers.get(b) == 0)
        tiers |= dict.fromkeys(reached, tier)
        edge, tier = list(reached), tier + 1
    return tiers


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")

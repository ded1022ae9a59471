"""Findings of a diagnosis as places in the picture: which device, link or node the original fault is."""

import re

from linkwise.cluster.links import links
from linkwise.diagnose.types import Fault as Where
from linkwise.diagnose.types import Finding, Findings
from linkwise.plan.types import Plan
from linkwise.report.page.types import Fault

_REPLICA = re.compile(r"(?:^|/|\b)replica[-_ ]?(\d{1,6})\b")  # as our runs call their units


def faults(found: Findings, plan: Plan) -> tuple[Fault, ...]:
    """Every finding, with what it marks."""
    hosts = _hosts(found, plan)
    return tuple(_fault(one, plan, hosts) for one in found.findings)


def device_of(plan: Plan, unit: str, rank: int) -> int:
    """The device of a rank of a unit; -1 when the plan has none. Without a unit, ranks count through all replicas."""
    match = _REPLICA.search(unit)
    size = plan.layout.size
    replica, place = (int(match[1]), rank) if match else divmod(rank, size)
    if replica >= plan.replicas or not 0 <= place < size:
        return -1
    return plan.rank_grid[replica][place]


def _hosts(found: Findings, plan: Plan) -> dict[str, int]:
    """Nodes by the name their ranks' records give the host; names that two nodes go by are left out."""
    seen: dict[str, set[int]] = {}
    for row in found.ranks:
        device = device_of(plan, row.unit, row.rank)
        if row.host and device >= 0:
            seen.setdefault(row.host, set()).add(plan.cluster.node_of(device))
    return {host: nodes.pop() for host, nodes in seen.items() if len(nodes) == 1}


def _fault(one: Finding, plan: Plan, hosts: dict[str, int]) -> Fault:
    where = one.original_fault
    devices = tuple(d for rank in where.ranks if (d := device_of(plan, where.unit, rank)) >= 0)
    node = hosts.get(where.host, -1)
    marked = _links(where, plan, node)
    return Fault(
        title=one.class_.replace("_", " "),
        summary=one.summary,
        where=_words(where),
        confidence=one.confidence,
        decided=one.decided,
        evidence=one.evidence[:8],
        first_reporter=one.first_reporter,
        next=one.next or one.would_decide,
        devices=devices,
        links=marked,
        # A host is marked as a whole only where nothing on it is.
        nodes=(node,) if node >= 0 and not devices and not marked else (),
    )


def _links(where: Where, plan: Plan, node: int) -> tuple[str, ...]:
    """Links by their own names, or those of the NIC that the host calls so."""
    if not where.link:
        return ()
    names = {f"{link.src}>{link.dst}" for link in links(plan.cluster)}
    said = {word.strip() for word in where.link.split(" or ")}
    direct = tuple(sorted(said & names))
    detail = plan.cluster.detail_of(node) if node >= 0 else None
    if direct or detail is None:
        return direct
    nics = {f"n{node}.nic{place}" for place, name in enumerate(detail.nic_names) if name in said}
    return tuple(sorted(name for name in names if nics & set(name.split(">"))))


def _words(where: Where) -> str:
    """replica-0 ranks 2, 3 on host-a gpu3"""
    ranks = f"{'rank' if len(where.ranks) == 1 else 'ranks'} {', '.join(map(str, where.ranks[:8]))}"
    parts = [where.unit, ranks if where.ranks else "", where.host and f"on {where.host}", where.device, where.link]
    return " ".join(part for part in parts if part) or "not known"

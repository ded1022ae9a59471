"""A node of a cluster as the file it came from would have it, so that one set of rules judges both."""

from linkwise.cluster.topology import Machine, Part, Wire, pair
from linkwise.cluster.types import Cluster


def machine_of(cluster: Cluster, node: int, notes: tuple[str, ...]) -> Machine:
    """A node (-1: the usual one) whose detail is known. notes: of its file, which a cluster does not keep by node."""
    detail = cluster.detail_of(node)
    assert detail is not None  # noqa: S101 - the caller looked
    count = cluster.devices_per_node
    gpus = [
        Part(
            id=f"gpu{at}", kind="gpu", index=at, numa=detail.numa[at] if detail.numa and detail.numa[at] >= 0 else None
        )
        for at in range(count)
    ]
    nics = [Part(id=f"nic{at}", kind="nic", index=at, model=name) for at, name in enumerate(detail.nic_names)]
    paths = {
        pair(f"gpu{at}", f"gpu{to}"): way for at in range(count) for to in range(at) if (way := detail.path(at, to))
    }
    paths |= {
        pair(f"gpu{at}", f"nic{to}"): way
        for at in range(count)
        for to in range(len(nics))
        if (way := detail.path(at, to, nic=True))
    }
    unit = cluster.accelerator.scaleup_Bps / max(1, cluster.accelerator.scaleup_links) or 1.0
    ports = detail.ports_Bps
    if not detail.islands and cluster.island_size > 1:
        ports = (cluster.accelerator.scaleup_Bps,) * count
    islands = detail.islands or tuple(cluster.island_of(at) for at in range(count))
    wires = [
        Wire(a=f"gpu{at}", b=f"nvswitch{islands[at]}", kind="nvlink", count=max(1, round(rate / unit)))
        for at, rate in enumerate(ports)
        if rate
    ]
    wires += [
        Wire(a=f"gpu{s.a}", b=f"gpu{s.b}", kind="nvlink", count=max(1, round(s.spec_Bps / unit)))
        for s in detail.strands
    ]
    switches = [
        Part(id=name, kind="switch") for name in dict.fromkeys(w.b for w in wires if w.b.startswith("nvswitch"))
    ]
    return Machine(
        format="cluster",
        source=cluster.name,
        parts=(*gpus, *nics, *switches),
        wires=tuple(wires),
        paths=paths,
        notes=notes,
        partial=any(" was cut: " in note for note in notes),
    )

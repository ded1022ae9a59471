"""Which wires? Directed links of a cluster, and the route between two devices.

Vertices are `d<device>`, `island<i>` (a scale-up switch), `n<node>.host`, `n<node>.nic<j>`, and the fabric's `rail<j>`
or `leaf<node>` and `core`. Without a topology file this is the usual machine: one host vertex per node (its sockets are
not told apart), and a PCIe switch that gives each device a direct way to its NIC. With one (`Cluster.detail`), NICs and
scale-up links are those of the file: bridged pairs, a hybrid mesh, a device off the switch, a port with links missing.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

import msgspec

from linkwise.cluster.detail import NodeDetail
from linkwise.cluster.types import Cluster, Device, Link, Tier
from linkwise.core.errors import InputError
from linkwise.core.schema import Frozen


class _Shape(Frozen, frozen=True, kw_only=True):
    """What the links depend on, hashable (a Cluster holds dicts). Wires are (kind, spec B/s, effective B/s)."""

    nodes: int
    per_node: int
    island: int
    mesh: bool
    peers: int
    nics: int
    rail: bool
    scaleup: tuple[str, float, float]
    host: tuple[str, float, float]
    direct: tuple[str, float, float]
    nic: tuple[str, float, float]
    oversubscription: float
    detail: NodeDetail | None
    odd_nodes: tuple[tuple[int, NodeDetail], ...]
    measured: tuple[tuple[str, float], ...]

    def detail_of(self, node: int) -> NodeDetail | None:
        """What a topology file says of a node."""
        return dict(self.odd_nodes).get(node, self.detail) if self.odd_nodes else self.detail

    @property
    def shaped(self) -> bool:
        """Scale-up links are as a file says."""
        return self.detail is not None and bool(self.detail.islands)


def _shape(cluster: Cluster) -> _Shape:
    accelerator, share = cluster.accelerator, cluster.constants.link_efficiency

    def wire(kind: str, spec: float) -> tuple[str, float, float]:
        return kind, spec, spec * share.get(kind, 1.0)

    return _Shape(
        nodes=cluster.nodes,
        per_node=cluster.devices_per_node,
        island=cluster.island_size,
        mesh=accelerator.scaleup_mesh,
        peers=max(cluster.island_size - 1, accelerator.scaleup_peers, 1),
        nics=cluster.nics_per_node if cluster.fabric != "none" else 0,
        rail=cluster.fabric == "rail",
        scaleup=wire(accelerator.scaleup_kind, accelerator.scaleup_Bps),
        host=wire(cluster.host_kind, accelerator.pcie_Bps),
        direct=wire(accelerator.host_link, accelerator.pcie_Bps),
        nic=wire("nic", cluster.nic_Bps),
        oversubscription=cluster.oversubscription,
        detail=cluster.detail,
        odd_nodes=tuple(sorted(cluster.odd_nodes.items())),
        measured=tuple(sorted(cluster.constants.link_Bps.items())),
    )


def device(cluster: Cluster, number: int) -> Device:
    """A device's place; NUMA node and NIC as its file says, else evenly spread; nic the first of several."""
    if not 0 <= number < cluster.size:
        raise InputError(f"device {number}", where=f"cluster {cluster.name!r}", expected=f"0..{cluster.size - 1}")
    index = number % cluster.devices_per_node
    nic = next(iter(cluster.nics_of(number)), -1)
    return Device(
        id=number,
        node=cluster.node_of(number),
        index=index,
        island=cluster.island_of(number),
        numa=cluster.numa_of(number),
        nic=nic,
    )


def devices(cluster: Cluster) -> tuple[Device, ...]:
    """Every device in order."""
    return tuple(device(cluster, number) for number in range(cluster.size))


def links(cluster: Cluster) -> tuple[Link, ...]:
    """Every directed link, both directions of each wire. Computed once per shape of cluster."""
    return _all(_shape(cluster))


def route(cluster: Cluster, a: int, b: int, *, relay: bool = True) -> tuple[Link, ...]:
    """The links a message from device a to device b crosses, in order; empty when they are the same device.

    Inside an island over its links; inside a node through the host; between nodes device, NIC, fabric, NIC, device.
    On a rail fabric a message for another rail first moves, where an island allows it, to the neighbour that owns the
    NIC on b's rail (what NCCL calls PXN), else it crosses the core. `reason` says which, in a line. Raises InputError
    for unknown devices.
    """
    shape = _shape(cluster)
    stops = _stops(cluster, shape, device(cluster, a), device(cluster, b), relay)
    return tuple(_link(shape, src, dst) for src, dst in pairwise(stops))


def measured_share(cluster: Cluster, members: tuple[int, ...]) -> float:
    """What single links that were measured leave of the usual bandwidth of a group's slowest tier; 1.0 = all.

    A link counts when the group's traffic crosses it, and its channels wait for the slowest: all links of a kind carry
    the same. Inside a node of a group that spans nodes, a link counts as far as it is slower than the node's NICs.
    """
    if not cluster.constants.link_Bps or len(members) < 2:
        return 1.0
    tier = cluster.tier(members)
    inside = {f"d{number}" for number in members}
    nics = {f"n{cluster.node_of(number)}.nic{nic}" for number in members for nic in cluster.nics_of(number)[:1]}
    share = 1.0
    for link, own in _measured(_shape(cluster)):
        kinds, vertices = {_kind(link.src), _kind(link.dst)}, {link.src, link.dst}
        devices = {end for end in vertices if _kind(end) == "d"}
        if not devices <= inside:
            continue
        scaleup, host = kinds <= {"d", "island"}, kinds == {"d", "host"}
        if tier is not Tier.CLUSTER:
            counts = scaleup if tier is Tier.ISLAND else host
            share = min(share, own / link.effective_Bps) if counts else share
        elif scaleup:
            nodes = [cluster.node_of(number) for number in members]
            share = min(share, own / (cluster.bandwidth(tier, len(members)) * max(map(nodes.count, set(nodes)))))
        elif not host and (devices or vertices & nics or "core" in kinds):
            share = min(share, own / link.effective_Bps)
    return share


@lru_cache(maxsize=32)
def _measured(shape: _Shape) -> tuple[tuple[Link, float], ...]:
    """Links that were measured one by one, as their kind has them, and their own bytes/s."""
    own = dict(shape.measured)
    return tuple(
        (link, own[f"{link.src}>{link.dst}"])
        for link in _all(msgspec.structs.replace(shape, measured=()))
        if f"{link.src}>{link.dst}" in own
    )


def check_measured(cluster: Cluster) -> None:
    """Refuse a measured link that the cluster does not have."""
    known = {f"{link.src}>{link.dst}" for link in links(cluster)} if cluster.constants.link_Bps else set()
    unknown = next((name for name in cluster.constants.link_Bps if name not in known), None)
    if unknown is not None:
        raise InputError(
            f"link_Bps: no link {unknown[:60]!r}",
            where=f"cluster {cluster.name!r}: constants",
            expected="a link as `linkwise traffic --all` names it, such as " + next(iter(known), "d0>island0"),
        )


def reason(cluster: Cluster, a: int, b: int) -> str:
    """One line on why the route from a to b is what it is."""
    source, target = device(cluster, a), device(cluster, b)
    tier = cluster.tier((a, b) if a != b else (a,))
    if tier is Tier.DEVICE:
        return "the same device: nothing moves"
    if tier is Tier.ISLAND:
        detail = cluster.detail_of(source.node)
        direct = bool(detail.strands) if detail and detail.islands else cluster.accelerator.scaleup_mesh
        way = "direct link" if direct else "switch"
        return f"both in island {source.island}: {cluster.accelerator.scaleup_kind} {way}"
    if tier is Tier.NODE:
        if cluster.accelerator.p2p:
            return f"both in node {source.node} but no scale-up link joins them: {cluster.accelerator.host_link}"
        return f"both in node {source.node}, no peer access: copied through host memory"
    if cluster.fabric != "rail":
        return f"nodes {source.node} and {target.node}: each side's NIC, leaf switches and the core"
    if source.nic == target.nic:
        return f"nodes {source.node} and {target.node}, both on rail {source.nic}: one rail switch"
    if _neighbour(cluster, source, target) is not None:
        return f"rail {source.nic} to rail {target.nic}: first over the island to the neighbour on rail {target.nic}"
    return f"rail {source.nic} to rail {target.nic}: across the core, no island neighbour is on rail {target.nic}"


def _stops(cluster: Cluster, shape: _Shape, a: Device, b: Device, relay: bool) -> tuple[str, ...]:
    start, end = f"d{a.id}", f"d{b.id}"
    if a.id == b.id:
        return (start,)
    if cluster.tier((a.id, b.id)) is Tier.ISLAND:
        detail = shape.detail_of(a.node) if shape.shaped else None
        direct = bool(detail.strands) if detail else shape.mesh
        return (start, end) if direct else (start, f"island{a.island}", end)
    if a.node == b.node:
        return start, f"n{a.node}.host", end
    arrive = (f"n{b.node}.nic{b.nic}", end)
    if not shape.rail:
        return start, f"n{a.node}.nic{a.nic}", f"leaf{a.node}", "core", f"leaf{b.node}", *arrive
    if a.nic == b.nic:
        return start, f"n{a.node}.nic{a.nic}", f"rail{a.nic}", *arrive
    neighbour = _neighbour(cluster, a, b) if relay else None
    if neighbour is not None:
        hop = _stops(cluster, shape, a, neighbour, relay)
        return *hop, f"n{a.node}.nic{b.nic}", f"rail{b.nic}", *arrive
    return start, f"n{a.node}.nic{a.nic}", f"rail{a.nic}", "core", f"rail{b.nic}", *arrive


def _neighbour(cluster: Cluster, a: Device, b: Device) -> Device | None:
    """The device of a's node and island whose first NIC is on b's rail."""
    first = a.node * cluster.devices_per_node
    for number in range(first, first + cluster.devices_per_node):
        candidate = device(cluster, number)
        if candidate.island == a.island and candidate.nic == b.nic:
            return candidate
    return None


def _link(shape: _Shape, src: str, dst: str) -> Link:
    """The link between two adjacent vertices."""
    kinds = {_kind(src), _kind(dst)}
    if shape.shaped and kinds <= {"island", "d"}:
        kind, spec, effective = _scaleup(shape, src, dst)
    elif kinds == {"island", "d"}:
        kind, spec, effective = shape.scaleup
    elif kinds == {"d"}:
        kind, spec, effective = shape.scaleup
        spec, effective = spec / shape.peers, effective / shape.peers
    elif kinds == {"d", "host"}:
        kind, spec, effective = shape.host
    elif kinds == {"d", "nic"}:
        kind, spec, effective = shape.direct
    elif "core" in kinds:
        # What a rail or leaf switch can send up: all its NICs' bandwidth, divided by the oversubscription.
        ports = (shape.nodes if shape.rail else shape.nics) / shape.oversubscription
        kind, spec, effective = "fabric", shape.nic[1] * ports, shape.nic[2] * ports
    else:
        kind, spec, effective = shape.nic
    source = _SOURCES[_fact(kinds)]
    if shape.measured and (own := dict(shape.measured).get(f"{src}>{dst}")):
        effective, source = own, "measured on this link; differs from its kind"
    return Link(src=src, dst=dst, kind=kind, spec_Bps=spec, effective_Bps=effective, source=source)


def _scaleup(shape: _Shape, src: str, dst: str) -> tuple[str, float, float]:
    """A scale-up link with the bandwidth its node's detail gives it, and the usual efficiency."""
    kind, spec, effective = shape.scaleup
    first, *other = sorted(int(end[1:]) for end in (src, dst) if _kind(end) == "d")
    node, a = divmod(first, shape.per_node)
    detail = shape.detail_of(node)
    if detail is None:
        return kind, spec, effective
    b = other[0] % shape.per_node if other else -1
    own = sum(s.spec_Bps for s in detail.strands if {s.a, s.b} == {a, b}) if other else detail.ports_Bps[a]
    return kind, own, own * effective / spec


_SOURCES = {
    "scale-up": "accelerator facts; effective = spec x link_efficiency",
    "host": "PCIe or C2C of the accelerator facts; effective = spec x link_efficiency",
    "network": "NIC of the cluster; effective = spec x link_efficiency",
}


def _fact(kinds: set[str]) -> str:
    """Which fact a link between these vertex kinds rests on."""
    if kinds <= {"island", "d"}:
        return "scale-up"
    return "host" if "d" in kinds else "network"


def _kind(vertex: str) -> str:
    """d, island, host, nic, rail, leaf or core."""
    return vertex.rpartition(".")[2].rstrip("0123456789")


@lru_cache(maxsize=32)
def _all(shape: _Shape) -> tuple[Link, ...]:
    return tuple(_link(shape, *ends) for pair in _wires(shape) for ends in (pair, pair[::-1]))


def _wires(shape: _Shape) -> Iterator[tuple[str, str]]:
    """Each wire once, as an unordered pair of vertices."""
    size = shape.nodes * shape.per_node
    if shape.shaped:
        yield from _scaleup_wires(shape)
    elif shape.island > 1:
        for first in range(0, size, shape.island):
            members = range(first, min(first + shape.island, size))
            if shape.mesh:
                yield from ((f"d{a}", f"d{b}") for a in members for b in members if a < b)
            else:
                yield from ((f"d{a}", f"island{first // shape.island}") for a in members)
    for number in range(size):
        if shape.host[1]:
            yield f"d{number}", f"n{number // shape.per_node}.host"
        yield from ((f"d{number}", f"n{number // shape.per_node}.nic{nic}") for nic in _nics_of(shape, number))
    for node in range(shape.nodes):
        for nic in range(shape.nics):
            yield f"n{node}.nic{nic}", f"rail{nic}" if shape.rail else f"leaf{node}"
    if shape.nics:
        switches = [f"rail{nic}" for nic in range(shape.nics)] if shape.rail else []
        yield from ((switch, "core") for switch in switches or [f"leaf{node}" for node in range(shape.nodes)])


def _scaleup_wires(shape: _Shape) -> Iterator[tuple[str, str]]:
    """Each pair of linked devices, and each device with a port into its island's switch."""
    for node in range(shape.nodes):
        detail, first = shape.detail_of(node), node * shape.per_node
        if detail is None:
            continue
        yield from ((f"d{first + a}", f"d{first + b}") for a, b in sorted({(s.a, s.b) for s in detail.strands}))
        for device, rate in enumerate(detail.ports_Bps):
            island = detail.islands[device]
            if rate and detail.islands.count(island) > 1:
                yield f"d{first + device}", f"island{first + island}"


def _nics_of(shape: _Shape, number: int) -> tuple[int, ...] | range:
    """NICs next to a device: those its file calls nearest, else its share of the node's, at least the one it shares."""
    node, index = divmod(number, shape.per_node)
    detail = shape.detail_of(node)
    if shape.nics and detail and (stated := detail.nics_of(index)):
        return stated
    first = index * shape.nics // shape.per_node
    return range(first, max(first + 1, (index + 1) * shape.nics // shape.per_node) if shape.nics else first)

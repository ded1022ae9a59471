"""Which wires? Directed links of a cluster.

Vertices are `d<device>`, `island<i>` (a scale-up switch), `n<node>.host`, `n<node>.nic<j>`, and the fabric's `rail<j>`
or `leaf<node>` and `core`. Without a topology file this is the usual machine: one host vertex per node (its sockets are
not told apart), and a PCIe switch that gives each device a direct way to its NICs. With one (`Cluster.detail`), NICs,
sockets (`n<node>.host<s>`, linked to each other) and scale-up links are those of the file: bridged pairs, a hybrid
mesh, a device off the switch, a port with links missing.

A device has one PCIe slot. Where more than one thing is reached over it (peers in the node and a NIC, or several NICs)
it is a vertex of its own, `n<node>.slot<i>`, and its link `d<device>>n<node>.slot<i>` carries all of that.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations

import msgspec

from linkwise.cluster.detail import NodeDetail
from linkwise.cluster.types import Cluster, Device, Link, Tier
from linkwise.core.errors import InputError
from linkwise.core.schema import Frozen


class Shape(Frozen, frozen=True, kw_only=True):
    """What the links depend on, hashable (a Cluster holds dicts). Wires are (kind, spec B/s, effective B/s); smp: the
    share that a link between sockets reaches."""

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
    smp: float
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


def shape_of(cluster: Cluster) -> Shape:
    """What the links of a cluster depend on."""
    accelerator, share = cluster.accelerator, cluster.constants.link_efficiency

    def wire(kind: str, spec: float) -> tuple[str, float, float]:
        return kind, spec, spec * share.get(kind, 1.0)

    return Shape(
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
        smp=share.get("smp", 1.0),
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
    return _all(shape_of(cluster))


def measured_share(cluster: Cluster, members: tuple[int, ...]) -> float:
    """What single links that were measured leave of the usual bandwidth of a group's slowest tier; 1.0 = all.

    A link counts when the group's traffic crosses it, and its channels wait for the slowest: all links of a kind carry
    the same. Inside a node of a group that spans nodes, a link counts as far as it is slower than the node's NICs.
    """
    if not cluster.constants.link_Bps or len(members) < 2:
        return 1.0
    tier = cluster.tier(members)
    inside = {f"d{number}" for number in members}
    nics = {f"n{cluster.node_of(number)}.nic{nic}" for number in members for nic in cluster.nics_of(number)}
    share, shape = 1.0, shape_of(cluster)
    for link, own in _measured(shape):
        kinds, vertices = {_kind(link.src), _kind(link.dst)}, {link.src, link.dst}
        devices = {owner for end in vertices if (owner := _owner(shape, end))}
        if not devices <= inside:
            continue
        scaleup, host = kinds <= {"d", "island"}, bool(devices) and kinds <= {"d", "slot", "host"}
        host, slot = host and not scaleup, kinds == {"d", "slot"}
        if tier is not Tier.CLUSTER:
            counts = scaleup if tier is Tier.ISLAND else host
            share = min(share, own / link.effective_Bps) if counts else share
        elif scaleup:
            nodes = [cluster.node_of(number) for number in members]
            share = min(share, own / (cluster.bandwidth(tier, len(members)) * max(map(nodes.count, set(nodes)))))
        elif (slot or not host) and (devices or vertices & nics or "core" in kinds):
            share = min(share, own / link.effective_Bps)
    return share


@lru_cache(maxsize=32)
def _measured(shape: Shape) -> tuple[tuple[Link, float], ...]:
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


def link(shape: Shape, src: str, dst: str) -> Link:
    """The link between two adjacent vertices."""
    kinds = {_kind(src), _kind(dst)}
    if shape.shaped and kinds <= {"island", "d"}:
        kind, spec, effective = _scaleup(shape, src, dst)
    elif kinds == {"island", "d"}:
        kind, spec, effective = shape.scaleup
    elif kinds == {"d"}:
        kind, spec, effective = shape.scaleup
        spec, effective = spec / shape.peers, effective / shape.peers
    elif kinds == {"host"}:
        kind, spec, effective = _between_sockets(shape, src)
    elif "host" in kinds:
        kind, spec, effective = shape.host
    elif kinds & {"d", "slot"}:
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


def _between_sockets(shape: Shape, src: str) -> tuple[str, float, float]:
    detail = shape.detail_of(int(src.partition(".")[0][1:]))
    spec = detail.between_sockets_Bps if detail else 0.0
    return "smp", spec, spec * shape.smp


def _scaleup(shape: Shape, src: str, dst: str) -> tuple[str, float, float]:
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
    "sockets": "between sockets: NCCL's figure for the CPU where the file names it, else for an Intel of 2017",
    "network": "NIC of the cluster; effective = spec x link_efficiency",
}


def _fact(kinds: set[str]) -> str:
    """Which fact a link between these vertex kinds rests on."""
    if kinds <= {"island", "d"}:
        return "scale-up"
    if kinds == {"host"}:
        return "sockets"
    return "host" if kinds & {"d", "slot"} else "network"


def _kind(vertex: str) -> str:
    """d, island, slot, host, nic, rail, leaf or core."""
    return vertex.rpartition(".")[2].rstrip("0123456789")


def _owner(shape: Shape, vertex: str) -> str:
    """The device of a device's vertex or slot; "" for anything else."""
    if _kind(vertex) != "slot":
        return vertex if _kind(vertex) == "d" else ""
    node, _, slot = vertex.partition(".slot")
    return f"d{int(node[1:]) * shape.per_node + int(slot)}"


@lru_cache(maxsize=32)
def _all(shape: Shape) -> tuple[Link, ...]:
    return tuple(link(shape, *ends) for pair in _wires(shape) for ends in (pair, pair[::-1]))


def _wires(shape: Shape) -> Iterator[tuple[str, str]]:
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
        *_, start = stem(shape, number)
        if start != f"d{number}":
            yield f"d{number}", start
        if shape.host[1]:
            yield start, host(shape, number)
        yield from ((start, f"n{number // shape.per_node}.nic{nic}") for nic in _nics_of(shape, number))
    for node in range(shape.nodes):
        detail = shape.detail_of(node)
        sockets = sorted(set(detail.sockets)) if detail and shape.host[1] else []
        yield from ((f"n{node}.host{x}", f"n{node}.host{y}") for x, y in combinations(sockets, 2))
    for node in range(shape.nodes):
        for nic in range(shape.nics):
            yield f"n{node}.nic{nic}", f"rail{nic}" if shape.rail else f"leaf{node}"
    if shape.nics:
        switches = [f"rail{nic}" for nic in range(shape.nics)] if shape.rail else []
        yield from ((switch, "core") for switch in switches or [f"leaf{node}" for node in range(shape.nodes)])


def _scaleup_wires(shape: Shape) -> Iterator[tuple[str, str]]:
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


def host(shape: Shape, number: int) -> str:
    """The host vertex of a device: of its socket, where a file tells sockets apart."""
    node, index = divmod(number, shape.per_node)
    detail = shape.detail_of(node)
    return f"n{node}.host{detail.sockets[index]}" if detail and detail.sockets else f"n{node}.host"


def stem(shape: Shape, number: int) -> tuple[str, ...]:
    """The vertices a device's PCIe traffic leaves it over: the device, and its slot where that is a vertex."""
    return _stems(shape)[number]


@lru_cache(maxsize=32)
def _stems(shape: Shape) -> tuple[tuple[str, ...], ...]:
    found = []
    for number in range(shape.nodes * shape.per_node):
        node, index = divmod(number, shape.per_node)
        nics = len(_nics_of(shape, number)) if shape.nodes > 1 else 0
        shared = shape.host[1] and (nics > 1 or (nics and _has_pcie_peers(shape, node, index)))
        found.append((f"d{number}", f"n{node}.slot{index}") if shared else (f"d{number}",))
    return tuple(found)


def _has_pcie_peers(shape: Shape, node: int, index: int) -> bool:
    """Whether some device of the node is reached over PCIe, and not over scale-up links."""
    detail = shape.detail_of(node)
    if not shape.shaped or detail is None:
        return shape.island < shape.per_node
    others = [other for other in range(shape.per_node) if other != index]
    return not all(detail.joined_Bps((index, other)) for other in others)


def _nics_of(shape: Shape, number: int) -> tuple[int, ...] | range:
    """NICs next to a device: those its file calls nearest, else its share of the node's, at least the one it shares."""
    node, index = divmod(number, shape.per_node)
    detail = shape.detail_of(node)
    if shape.nics and detail and (stated := detail.nics_of(index)):
        return stated
    first = index * shape.nics // shape.per_node
    return range(first, max(first + 1, (index + 1) * shape.nics // shape.per_node) if shape.nics else first)

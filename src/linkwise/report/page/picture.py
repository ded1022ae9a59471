"""Ranks, devices, NICs, switches and links as one picture, and what each link carries at every step and batch.

Nodes that carry the same at all of them are drawn once. Links are counted by plan/traffic.py; nothing is added up here
but the links that one line stands for.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from linkwise.cluster.links import links as all_links
from linkwise.cluster.types import Cluster
from linkwise.cluster.types import Link as ClusterLink
from linkwise.plan.link_chain import PREFIX, explain_link
from linkwise.plan.traffic import is_device
from linkwise.plan.traffic_types import LinkLoad
from linkwise.plan.types import Plan
from linkwise.report.page.chains import Writer
from linkwise.report.page.types import Carried, Fault, Link, Load, Node, Picture, Wire

DRAWN = 12  # nodes that carry different bytes, one box each
CHAINED = 64  # devices up to which the chain of every different load is kept at every batch, beyond: at the plan's own
_SWITCHES = ("rail", "leaf")


class Counted(NamedTuple):
    """Links under one step at one batch. over_s: what utilisation is the share of. busiest: by time, `src>dst`.

    plan: as it is at that batch, to explain links by; None where they are explained elsewhere or not at all.
    """

    step: str
    batch: int
    over_s: float
    links: tuple[LinkLoad, ...]
    busiest: str
    plan: Plan | None = None


def picture(plan: Plan, counted: Sequence[Counted], faults: Sequence[Fault], writer: Writer) -> Picture:
    """The drawing of a plan's cluster under its steps."""
    cluster = plan.cluster
    wired = _Wired(cluster)
    loads = [{link.name: link for link in one.links} for one in counted]
    alike = _alike(cluster, wired, loads, _marks(cluster, faults), _ranks(plan))
    drawn, hidden = alike[:DRAWN], alike[DRAWN:]
    links: dict[str, int] = {}
    nodes = tuple(_node(cluster, wired, numbers, links) for numbers in drawn)
    core = tuple(_wire("core", a, "core", [(a, "core")], links) for a in wired.switches)
    names = list(links)
    by_name = {link_name(link): link for link in all_links(cluster)}
    return Picture(
        devices_per_node=cluster.devices_per_node,
        ranks=_ranks(plan),
        nodes=nodes,
        core=core,
        links=tuple(_link(by_name[name]) for name in names),
        loads=tuple(_load(one, load, names, writer) for one, load in zip(counted, loads, strict=True)),
        hidden=sum(map(len, hidden)),
    )


def link_name(link: ClusterLink) -> str:
    """src>dst, as all of linkwise names a link."""
    return f"{link.src}>{link.dst}"


def _ranks(plan: Plan) -> tuple[tuple[int, int], ...]:
    found = [(-1, -1)] * plan.cluster.size
    for replica, devices in enumerate(plan.rank_grid):
        for rank, device in enumerate(devices):
            found[device] = (replica, rank)
    return tuple(found)


class _Wired:
    """The wires of a cluster by node, each once, in the order of its links; and the switches linked to the core."""

    def __init__(self, cluster: Cluster) -> None:
        self.of: dict[int, list[tuple[str, str]]] = {}
        self.switches: list[str] = []
        seen: set[frozenset[str]] = set()
        for link in all_links(cluster):
            ends = frozenset((link.src, link.dst))
            if ends in seen:
                continue
            seen.add(ends)
            if "core" in ends:
                self.switches += sorted(ends - {"core"})
                continue
            for node in sorted({_node_of(cluster, end) for end in ends} - {-1}):
                self.of.setdefault(node, []).append((link.src, link.dst))


def _node_of(cluster: Cluster, vertex: str) -> int:
    """The node of a vertex; -1 of a switch."""
    if is_device(vertex):
        return cluster.node_of(int(vertex[1:]))
    head, dot, _ = vertex.partition(".")
    return int(head[1:]) if dot and head[1:].isdigit() else -1


def _marks(cluster: Cluster, faults: Sequence[Fault]) -> dict[int, tuple[object, ...]]:
    """By node: what findings mark on it, which sets it apart from nodes that carry the same."""
    found: dict[int, list[object]] = {}
    for number, fault in enumerate(faults):
        for device in fault.devices:
            found.setdefault(cluster.node_of(device), []).append((number, device))
        for name in fault.links:
            for end in name.split(">"):
                found.setdefault(_node_of(cluster, end), []).append((number, name))
        for node in fault.nodes:
            found.setdefault(node, []).append((number, node))
    return {node: tuple(marks) for node, marks in found.items()}


def _alike(
    cluster: Cluster,
    wired: _Wired,
    loads: Sequence[Mapping[str, LinkLoad]],
    marks: Mapping[int, tuple[object, ...]],
    ranks: Sequence[tuple[int, int]],
) -> list[list[int]]:
    """Nodes in use by what they carry; marked and busy ones first."""
    per = cluster.devices_per_node
    found: dict[object, list[int]] = {}
    for node in range(cluster.nodes):
        seats = tuple(rank >= 0 for _, rank in ranks[node * per : (node + 1) * per])
        if not any(seats) and node not in marks:
            continue
        ends = [f"{a}>{b}" for pair in wired.of.get(node, ()) for a, b in (pair, pair[::-1])]
        carried = tuple(tuple(_rounded(load, name) for name in ends) for load in loads)
        kinds = tuple(_kind(a) + _kind(b) for a, b in wired.of.get(node, ()))
        found.setdefault((seats, kinds, carried, marks.get(node)), []).append(node)
    return sorted(found.values(), key=lambda nodes: nodes[0] not in marks)


def _rounded(load: Mapping[str, LinkLoad], name: str) -> float:
    return float(f"{load[name].bytes:.6g}") if name in load else 0.0


def _kind(vertex: str) -> str:
    """d, island, slot, host, nic, rail, leaf or core."""
    return vertex.rpartition(".")[2].rstrip("0123456789")


def _node(cluster: Cluster, wired: _Wired, numbers: list[int], links: dict[str, int]) -> Node:
    node = numbers[0]
    first = node * cluster.devices_per_node
    wires: list[Wire] = []
    peers: dict[str, list[tuple[str, str]]] = {}
    vertices: dict[str, None] = {}
    for a, b in wired.of.get(node, ()):
        vertices |= {v: None for v in (a, b) if not is_device(v) and _kind(v) not in _SWITCHES}
        if is_device(a) and is_device(b):
            peers.setdefault(a, []).append((a, b))
            peers.setdefault(b, []).append((b, a))
            continue
        wires.append(_wire(_wire_kind(a, b), a, b, [(a, b)], links))
    # A device's direct links to its peers are one line: what it sends to them, and what they send to it.
    wires += [_wire("peers", device, "peers", pairs, links) for device, pairs in peers.items()]
    return Node(
        nodes=tuple(numbers),
        devices=tuple(range(first, first + cluster.devices_per_node)),
        vertices=tuple(vertices),
        wires=tuple(wires),
    )


def _wire_kind(a: str, b: str) -> str:
    kinds = {_kind(a), _kind(b)}
    if kinds == {"host"}:
        return "sockets"
    if "nic" in kinds and kinds & set(_SWITCHES):
        return "switch"
    return next(kind for kind in ("island", "nic", "host", "slot") if kind in kinds)


def _wire(kind: str, a: str, b: str, pairs: Iterable[tuple[str, str]], links: dict[str, int]) -> Wire:
    pairs = list(pairs)
    out = tuple(links.setdefault(f"{x}>{y}", len(links)) for x, y in pairs)
    back = tuple(links.setdefault(f"{y}>{x}", len(links)) for x, y in pairs)
    return Wire(kind=kind, a=a, b=b, out=out, back=back)


def _link(link: ClusterLink) -> Link:
    return Link(
        name=link_name(link),
        kind=link.kind,
        spec_Bps=link.spec_Bps,
        effective_Bps=link.effective_Bps,
        source=link.source,
    )


def _load(one: Counted, load: Mapping[str, LinkLoad], names: Sequence[str], writer: Writer) -> Load:
    places: dict[object, int] = {}
    carried: list[Carried] = []
    of = []
    for name in names:
        link = load.get(name)
        if link is None:
            of.append(-1)
            continue
        key = link.effective_Bps, tuple((p.role, p.group, float(f"{p.bytes:.9g}")) for p in link.parts)
        if key not in places:
            places[key] = len(carried)
            carried.append(_carried(one, link, writer))
        of.append(places[key])
    return Load(
        step=one.step,
        batch=one.batch,
        over_s=one.over_s,
        carried=tuple(carried),
        of=tuple(of),
        busiest=one.busiest,
        busiest_s=load[one.busiest].busy_s if one.busiest else 0.0,
    )


def _carried(one: Counted, link: LinkLoad, writer: Writer) -> Carried:
    chain = -1
    if one.plan is not None:
        chain = writer.chain(explain_link(one.plan, f"{PREFIX}{one.step}:{link.name}").chain)
    parts = tuple((p.role, p.group, p.bytes) for p in link.parts)
    return Carried(like=link.name, bytes=link.bytes, busy_s=link.busy_s, parts=parts, chain=chain)

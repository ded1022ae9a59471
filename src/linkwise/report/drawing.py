"""What both drawings of traffic show: a machine as nodes, devices with their ranks, and the links of each, loaded.

A link of a device is drawn once with both directions. What only passes a NIC is one line: device, NIC, switch. NICs
that one device spreads its bytes over are one port of it; a PCIe slot is part of every port reached over it.
"""

from collections.abc import Iterable
from typing import NamedTuple

from linkwise.plan.traffic import is_device
from linkwise.plan.traffic_types import LinkLoad, Traffic

_MANY = 8  # lines of NICs that carry the same are one line beyond that
KINDS = ("island", "peers", "host", "nic")  # what a device is linked to, as columns from left to right


class Port(NamedTuple):
    """Both directions of a device (or NIC) and one thing it is linked to. share: busy time against the busiest link's.

    kind: a word of KINDS, or switch. ends: every link that is counted here, as `src>dst`.
    """

    kind: str
    label: str
    out_bytes: float
    in_bytes: float
    share: float
    ends: frozenset[str]


class Seat(NamedTuple):
    """A device of a node: the ranks on it as people say them, and its ports by kind, in the order of KINDS."""

    device: int
    rank: str
    ports: tuple[Port, ...]


class Box(NamedTuple):
    """A node: its devices, and the ports of NICs that several devices share."""

    node: int
    seats: tuple[Seat, ...]
    nics: tuple[Port, ...]

    @property
    def loads(self) -> tuple[object, ...]:
        """What makes two nodes alike: the same bytes at the same places."""
        return (
            tuple(tuple((p.kind, round(p.out_bytes), round(p.in_bytes)) for p in seat.ports) for seat in self.seats),
            tuple((round(p.out_bytes), round(p.in_bytes)) for p in self.nics),
        )

    @property
    def ports(self) -> tuple[Port, ...]:
        return (*(p for seat in self.seats for p in seat.ports), *self.nics)


class Drawing(NamedTuple):
    """Nodes with devices in use, in order, and the ports of switches into the core."""

    boxes: tuple[Box, ...]
    core: tuple[Port, ...]
    by_time: str
    by_bytes: str


def drawing(found: Traffic) -> Drawing:
    """Traffic as boxes and ports."""
    cluster = found.cluster
    near: dict[str, list[LinkLoad]] = {}
    for link in found.links:
        near.setdefault(link.src, []).append(link)
        near.setdefault(link.dst, []).append(link)
    most = max((link.busy_s for link in found.links), default=0.0) or 1.0
    ranks = rank_words(found)
    used = sorted({cluster.node_of(d) for d in found.placement} | {_node(found, v) for v in near} - {-1})
    boxes = []
    for node in used:
        first = node * cluster.devices_per_node
        seats = tuple(
            Seat(number, ranks.get(number, ""), _ports(f"d{number}", near, most))
            for number in range(first, first + cluster.devices_per_node)
        )
        merged = {end for seat in seats for port in seat.ports for end in port.ends}
        nics = sorted((v for v in near if v.startswith(f"n{node}.nic")), key=_number)
        rest = [_port("switch", v, _beyond(v, near), most) for v in nics]
        apart = _sockets(node, near, most)
        boxes.append(Box(node, seats, (*apart, *_alike([p for p in rest if p.ends and not p.ends <= merged]))))
    switches = sorted(
        {link.src for link in near.get("core", ())} | {link.dst for link in near.get("core", ())} - {"core"}
    )
    core = tuple(
        _port("switch", v, [x for x in near[v] if "core" in {x.src, x.dst}], most)
        for v in sorted(switches, key=_number)
        if v != "core"
    )
    return Drawing(tuple(boxes), core, found.busiest_by_time, found.busiest_by_bytes)


def rank_words(found: Traffic) -> dict[int, str]:
    """By device: its rank, with the replica before it where there are several: `rank 3`, `rank 1:3`."""
    size = found.layout.size
    return {
        number: f"rank {found.first_replica + place // size}:{place % size}" if found.replicas > 1 else f"rank {place}"
        for place, number in enumerate(found.placement)
    }


def _node(found: Traffic, vertex: str) -> int:
    if is_device(vertex):
        return found.cluster.node_of(int(vertex[1:]))
    head, dot, _ = vertex.partition(".")
    return int(head[1:]) if dot and head[1:].isdigit() else -1


def _ports(vertex: str, near: dict[str, list[LinkLoad]], most: float) -> tuple[Port, ...]:
    """The ports of a device: its island or peers, its host, and its NICs with what lies behind those nobody shares."""
    sides: dict[str, list[LinkLoad]] = {}
    slot, out = "", list(near.get(vertex, ()))
    for link in out[:]:
        if ".slot" in link.src + link.dst:
            slot = link.dst if link.src == vertex else link.src
            out.remove(link)
    through = [link for link in near.get(vertex, ()) if slot and slot in {link.src, link.dst}]
    out += [link for link in near.get(slot, ()) if vertex not in {link.src, link.dst}]
    for link in out:
        other = link.dst if link.src in {vertex, slot} else link.src
        sides.setdefault(next((k for k in ("island", "host", "nic") if k in other), "peers"), []).append(link)
    made = []
    for kind, links in sides.items():
        at = vertex if kind in {"island", "peers"} or not slot else slot
        others = list(dict.fromkeys(x.dst if x.src == at else x.src for x in links))
        label = _peers(vertex, links) if kind == "peers" else _together([o.rpartition(".")[2] for o in others])
        port = _port(kind, at, links, most, label)
        if kind == "peers":  # a link of two devices belongs to the one that sends
            port = port._replace(ends=frozenset(x.name for x in links if x.src == vertex))
        beyond = [x for other in others for x in _beyond(other, near)] if kind == "nic" else []
        if beyond and sum(x.bytes for x in beyond) <= (port.out_bytes + port.in_bytes) * (1 + 1e-9):
            switches = dict.fromkeys(v for x in beyond for v in (x.src, x.dst) if v not in others)
            share = max(port.share, max(x.busy_s for x in beyond) / most)
            ends = port.ends | {x.name for x in beyond}
            port = port._replace(label=f"{label} {_together(list(switches))}", share=share, ends=ends)
        if at == slot:
            port = port._replace(
                share=max([port.share, *(x.busy_s / most for x in through)]), ends=port.ends | {x.name for x in through}
            )
            through = []
        made.append(port)
    return tuple(sorted(made, key=lambda p: (KINDS.index(p.kind), _number(p.label))))


def _together(names: list[str]) -> str:
    """nic3 / nics 0-7 as nic0-7."""
    if len(names) == 1:
        return names[0]
    numbers = sorted(_number(name)[0] for name in names)
    kind = names[0].rstrip("0123456789")
    whole = numbers == list(range(numbers[0], numbers[-1] + 1))
    return f"{kind}{numbers[0]}-{numbers[-1]}" if whole else f"{len(names)} {kind}s"


def _alike(ports: list[Port]) -> list[Port]:
    """NICs that several devices share; many that carry the same as one."""
    first = ports[0] if ports else None
    same = all((round(p.out_bytes), round(p.in_bytes)) == (round(first.out_bytes), round(first.in_bytes)) for p in ports
               ) if first else False  # fmt: skip
    if first is None or len(ports) <= _MANY or not same:
        return ports
    label = _together([p.label.split(" ")[0] for p in ports]) + " each"
    return [first._replace(label=label, ends=frozenset(end for p in ports for end in p.ends))]


def _sockets(node: int, near: dict[str, list[LinkLoad]], most: float) -> list[Port]:
    """The links between a node's sockets that carry something."""
    hosts = sorted((v for v in near if v.startswith(f"n{node}.host")), key=_number)
    found = []
    for at, host in enumerate(hosts):
        for other in hosts[at + 1 :]:
            both = [x for x in near[host] if other in {x.src, x.dst}]
            if both:
                words = f"{host.rpartition('.')[2]} {other.rpartition('.')[2]}"
                found.append(_port("switch", host, both, most, words))
    return found


def _peers(vertex: str, links: Iterable[LinkLoad]) -> str:
    others = len({v for link in links for v in (link.src, link.dst)} - {vertex})
    return f"{others} peers" if others > 1 else "1 peer"


def _beyond(nic: str, near: dict[str, list[LinkLoad]]) -> list[LinkLoad]:
    """The links of a NIC that lead away from its node."""
    return [x for x in near.get(nic, ()) if not any(is_device(v) or ".slot" in v for v in (x.src, x.dst))]


def _port(kind: str, vertex: str, links: list[LinkLoad], most: float, label: str = "") -> Port:
    others = {x.dst if x.src == vertex else x.src for x in links}
    return Port(
        kind=kind,
        label=label or f"{vertex.rpartition('.')[2]} {'/'.join(sorted(others))}".rstrip(),
        out_bytes=sum(x.bytes for x in links if x.src == vertex),
        in_bytes=sum(x.bytes for x in links if x.dst == vertex),
        share=max((x.busy_s for x in links), default=0.0) / most,
        ends=frozenset(x.name for x in links),
    )


def _number(name: str) -> tuple[int, str]:
    digits = "".join(c for c in name.split(" ", maxsplit=1)[0].rpartition(".")[2] if c.isdigit())
    return int(digits or 0), name

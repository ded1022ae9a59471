"""ibnetdiscover's output (and ibsim's net files, which look the same): switches, adapters, and what is plugged where.

Every cable stands in the file twice, once at each end. A port that leads to a node without a record, or a node without
a port, means the file was cut: refused with its line. Format: the ibnetdiscover(8) manual; speeds: InfiniBand Trade
Association roadmap, data rate of one lane after encoding.
"""

import re
from collections import Counter
from typing import NamedTuple

from linkwise.cluster.topology import Fabric, Port
from linkwise.cluster.trees import around
from linkwise.core.errors import InputError

FORMAT = "ibnetdiscover"

_NODE = re.compile(r'(Switch|Ca|Hca|Rt)\s+(\d{1,3})\s+"([^"]{1,128})"\s*(?:#\s*(?:"([^"]*)")?.*)?', re.IGNORECASE)
_PORT = re.compile(
    r'\[(\d{1,3})\](?:\[ext \d+\])?(?:\([^)]*\))?\s*"([^"]{1,128})"\s*\[(\d{1,3})\](?:\[ext \d+\])?(?:\([^)]*\))?'
    r"\s*(?:w=\d+\s*)?(?:#(.*))?"
)
_FACT = re.compile(r"\w+\s*=\s*\S+")  # vendid=0x2c9, caguid=...
_SPEED = re.compile(r"\b(1|2|4|8|12)x(SDR|DDR|QDR|FDR10|FDR|EDR|HDR|NDR|XDR)\b")
_LANE_GBPS = {"SDR": 2, "DDR": 4, "QDR": 8, "FDR10": 10, "FDR": 13.64, "EDR": 25, "HDR": 50, "NDR": 100, "XDR": 200}
# An adapter's description: the host, then which adapter of the host. A managed switch's: MF0;name:model/unit.
_HOST = re.compile(r"(\S+)\s+(?:HCA-\d+|mlx\d_\d+|ibp\S+|qib\d+|hfi1_\d+|rocep\S+)")
_SWITCH = re.compile(r"\w+;([^:;]+)(?::.*)?")


class _Node(NamedTuple):
    """A record. name: what people call it; host: an adapter's host."""

    kind: str
    ports: int
    line: int
    said: str


def recognises(text: str) -> bool:
    """A node's first line, anywhere in the first 200,000 characters."""
    return re.search(r'^(Switch|Ca|Hca)\s+\d+\s+"[^"]+"', text[:200_000], re.MULTILINE) is not None


def read(text: str, *, where: str) -> Fabric:
    """A fabric from ibnetdiscover's output. Raises InputError with the line when it is malformed or cut."""
    nodes, ends = _records(text, where)
    names, skipped = _names(nodes)
    cables: Counter[tuple[str, str]] = Counter()
    speeds: dict[tuple[str, str], float | None] = {}
    one_sided = 0
    for (node, port), (peer, peer_port, speed, line) in ends.items():
        if peer not in nodes:
            raise InputError(
                f"port {port} of {node!r} leads to {peer!r}, which has no record: the file is cut",
                where=f"{where}: line {line}",
            )
        back = ends.get((peer, peer_port))
        if back is None:
            one_sided += 1
        elif back[:2] != (node, port):
            raise InputError(
                f"port {port} of {node!r} leads to port {peer_port} of {peer!r}, which leads to port {back[1]} of"
                f" {back[0]!r}",
                where=f"{where}: line {line}",
            )
        if back is not None and (node, port) > (peer, peer_port):
            continue  # counted at its other end
        if names.get(node) is None or names.get(peer) is None:
            continue
        # Adapters first: a host's cable reads host, switch.
        a, b = sorted((node, peer), key=lambda n: (nodes[n].kind == "switch", nodes[n].line))
        pair = names[a], names[b]
        cables[pair] += 1
        rates = [rate for rate in (speed, back[2] if back else None) if rate is not None]
        before = speeds.get(pair, 0.0)
        speeds[pair] = None if not rates or before is None else before + min(rates)
    hosts = tuple(dict.fromkeys(names[n] for n, node in nodes.items() if node.kind == "adapter" and n in names))
    ports = tuple(Port(a=a, b=b, count=count, spec_Bps=speeds[a, b]) for (a, b), count in cables.items())
    switches = [names[n] for n, node in nodes.items() if node.kind == "switch"]
    notes = []
    if skipped:
        notes.append(f"{skipped} aggregation nodes inside switches are left out")
    if one_sided:
        notes.append(f"{one_sided} cables stand at one of their ends only")
    return Fabric(
        format=FORMAT, source=where, hosts=hosts, switches=around(hosts, switches, ports), ports=ports,
        notes=tuple(notes),
    )  # fmt: skip


_End = tuple[str, int, float | None, int]


def _records(text: str, where: str) -> tuple[dict[str, _Node], dict[tuple[str, int], _End]]:
    """Nodes by id, and each port with what it leads to: id, port, bytes/s, line."""
    nodes: dict[str, _Node] = {}
    ends: dict[tuple[str, int], _End] = {}
    current = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#") or _FACT.fullmatch(line):
            continue
        here = f"{where}: line {number}"
        if match := _NODE.fullmatch(line):
            _finished(nodes, ends, current, where)
            current = match[3]
            if current in nodes:
                raise InputError(f"{current!r} a second time", where=here, expected="one record a node")
            kind = {"switch": "switch", "rt": "router"}.get(match[1].lower(), "adapter")
            nodes[current] = _Node(kind, int(match[2]), number, (match[4] or "").strip())
        elif (match := _PORT.fullmatch(line)) and current:
            port = int(match[1])
            if not 1 <= port <= nodes[current].ports:
                raise InputError(
                    f"port {port} of {current!r}", where=here, expected=f"1..{nodes[current].ports}, as its record says"
                )
            if (current, port) in ends:
                raise InputError(f"port {port} of {current!r} a second time", where=here)
            ends[current, port] = (match[2], int(match[3]), _speed(match[4] or ""), number)
        else:
            raise InputError(
                f"{line[:80]!r} is no line of ibnetdiscover", where=here, expected='Switch 36 "id", or [1] "id"[2]'
            )
    _finished(nodes, ends, current, where)
    return nodes, ends


def _finished(nodes: dict[str, _Node], ends: dict[tuple[str, int], _End], current: str, where: str) -> None:
    """A record that ended without a port: ibnetdiscover reaches every node through one."""
    if current and not any((current, port) in ends for port in range(1, nodes[current].ports + 1)):
        said = nodes[current].said or current
        raise InputError(
            f"{said!r} has no connected port: the file is cut, or nothing is plugged in",
            where=f"{where}: line {nodes[current].line}",
            expected='a line such as [1] "S-0002c9"[5] below it',
        )


def _speed(comment: str) -> float | None:
    """Bytes/s per direction from `4xHDR` in a port's comment."""
    match = _SPEED.search(comment)
    return int(match[1]) * _LANE_GBPS[match[2]] * 1e9 / 8 if match else None


def _names(nodes: dict[str, _Node]) -> tuple[dict[str, str], int]:
    """Names by id (adapters: of their host), and how many aggregation nodes have none. A name two switches share, or a
    switch and a host, is not used."""
    names: dict[str, str] = {}
    skipped = 0
    switches = Counter(_switch(node) for node in nodes.values() if node.kind == "switch")
    taken = {name for name, count in switches.items() if count == 1}
    for key, node in nodes.items():
        if node.kind == "switch":
            names[key] = _switch(node) if _switch(node) in taken else key
        elif "Aggregation Node" in node.said:
            skipped += 1
        else:
            host = _HOST.fullmatch(node.said)
            name = host[1] if host else node.said or key
            names[key] = name if name not in taken else f"{name} ({key})"
    return names, skipped


def _switch(node: _Node) -> str:
    match = _SWITCH.fullmatch(node.said)
    return match[1].strip() if match else node.said

"""topograph's own files: a simulated network (switches and blocks in YAML), and the graph NetQ answers it with (JSON).

What topograph writes for Slurm and for Kubernetes is read by those two readers. A request to topograph (provider and
engine) holds no topology: it is refused, naming the model it asks for.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from linkwise.cluster.hostlist import expand
from linkwise.cluster.topology import Fabric, Port
from linkwise.cluster.trees import Branch, around, tree
from linkwise.cluster.types import MAX_DEVICES
from linkwise.core.errors import InputError
from linkwise.core.files import parse_json, parse_yaml_object

FORMAT = "topograph"

_MODEL = re.compile(r"^(switches|blocks)[ \t]*:", re.MULTILINE)
_JSON = re.compile(r'"(compounded_nodes|provider)"\s*:')


def recognises(text: str) -> bool:
    """Both keys of a model at the left margin, or the words only topograph's JSON has."""
    if text.lstrip()[:1] in ("{", "["):
        return _JSON.search(text) is not None
    return {"switches", "blocks"} <= set(_MODEL.findall(text))


def read(text: str, *, where: str) -> Fabric:
    """A fabric. Raises InputError naming the line, block or link that is wrong."""
    if text.lstrip()[:1] in ("{", "["):
        value = parse_json(text, where=where)
        if isinstance(value, dict) and "provider" in value:
            raise _request(text, value, where)
        return _netq(value, where)
    return _model(parse_yaml_object(text, where=where), where)


def _request(text: str, value: dict[str, Any], where: str) -> InputError:
    provider = value["provider"]
    params = provider.get("params") if isinstance(provider, dict) else None
    model = params.get("modelFileName") if isinstance(params, dict) else None
    key = '"modelFileName"' if isinstance(model, str) else '"provider"'
    line = text[: text.index(key)].count("\n") + 1
    return InputError(
        "a request to topograph: it names no host and no switch",
        where=f"{where}: line {line}",
        expected="a topology, such as topograph's answer to it",
        hint=f"The model it asks for can be read: {model[:120]}" if isinstance(model, str) else "",
    )


def _model(value: dict[str, Any], where: str) -> Fabric:
    """The simulation's model: a tree of switches, and blocks of nodes that hang on its leaves."""
    switches, blocks = value.get("switches"), value.get("blocks")
    if not isinstance(switches, dict) or not isinstance(blocks, list):
        raise InputError("no switches or no blocks", where=where, expected="switches: a mapping, blocks: a list")
    children = {str(name): _names(entry, "switches", f"{where}: switch {name}") for name, entry in switches.items()}
    hosts: dict[str, list[str]] = {}
    domains: dict[str, list[str]] = {}
    inner = 0
    most = MAX_DEVICES
    for at, block in enumerate(blocks, 1):
        here = f"{where}: block {at}"
        if not isinstance(block, dict) or not isinstance(block.get("switch"), str | int):
            raise InputError("no switch", where=here, expected="switch: the leaf its nodes are on")
        nodes: list[str] = []
        for entry in _names(block, "nodes", here):
            nodes += expand(entry, where=here, most=most - len(nodes))
        most -= len(nodes)
        hosts.setdefault(str(block["switch"]), []).extend(nodes)
        tags = block.get("annotations") or block.get("labels") or {}
        for key, tag in tags.items() if isinstance(tags, dict) else ():
            last = str(key).rpartition("/")[2]
            if last == "domain":
                domains.setdefault(str(tag), []).extend(nodes)
            inner += last == "sub-domain"
    branches = [
        Branch(name=name, switches=children.get(name, ()), hosts=tuple(hosts.get(name, ())), where=where)
        for name in dict.fromkeys([*children, *hosts])
    ]
    tiers, ports, every = tree(branches)
    if not every:
        raise InputError("no node in any block", where=where, expected="nodes: [node[01-18]]")
    idle = [name for name in tiers if name not in hosts and not children.get(name)]
    notes = [f"no node on {', '.join(idle[:8])}{' ...' if len(idle) > 8 else ''}"] if idle else []
    if inner:
        notes.append(f"{inner} sub-domains are not told apart: hosts of one domain share NVLink")
    return Fabric(
        format=FORMAT, source=where, hosts=every, switches=tiers, ports=ports, notes=tuple(notes),
        domains={name: tuple(members) for name, members in domains.items()},
    )  # fmt: skip


def _names(entry: Any, key: str, where: str) -> tuple[str, ...]:
    """A list of names under a key; missing is none."""
    found = entry.get(key) if isinstance(entry, dict) else None
    if found is None and (entry is None or isinstance(entry, dict)):
        return ()
    if not isinstance(found, list) or not all(isinstance(n, str | int) and not isinstance(n, bool) for n in found):
        raise InputError(f"field {key}: {found!r:.60}", where=where, expected="a list of names")
    return tuple(str(name) for name in found)


def _netq(value: Any, where: str) -> Fabric:
    """NetQ's graph: devices in tiers (what it only heard of by LLDP is a host), links with their number of cables."""
    names: dict[str, str] = {}
    tiers: dict[str, int] = {}
    hosts: dict[str, None] = {}
    for device in _devices(value, where):
        key, name = device.get("id"), device.get("name")
        if not isinstance(key, str) or not isinstance(name, str) or not name:
            raise InputError(f"a device without id or name: {device!r:.60}", where=where)
        if key in names or name in tiers or name in hosts:
            raise InputError(f"device {name!r} a second time", where=where)
        names[key] = name
        if device.get("device_type") == "switch":
            tier = device.get("tier")
            tiers[name] = tier if isinstance(tier, int) and 0 < tier < 100 else 0
        else:
            hosts[name] = None
    cables: Counter[tuple[str, str]] = Counter()
    for link in _each(value, "links", where):
        ends = [names.get(end) if isinstance(end, str) else None for end in (link.get("src"), link.get("target"))]
        size = link.get("size", 1)
        if None in ends:
            raise InputError(f"link {link.get('id')!r:.80} leads to a device that is not listed: cut", where=where)
        if not isinstance(size, int) or not 1 <= size <= 10_000:
            raise InputError(f"link {link.get('id')!r:.80}: size {size!r:.20}", where=where, expected="1..10000")
        # Hosts first, then the lower tier.
        a, b = sorted((str(end) for end in ends), key=lambda n: (n in tiers, tiers.get(n) or 99))
        cables[a, b] += size
    if not hosts:
        raise InputError("no host", where=where, expected="a device that is not a switch")
    ports = tuple(Port(a=a, b=b, count=count) for (a, b), count in cables.items())
    by_distance = around(hosts, tiers, ports)
    return Fabric(
        format="topograph-netq", source=where, hosts=tuple(hosts), ports=ports,
        switches={name: tier or by_distance[name] for name, tier in tiers.items()},
        notes=("hosts are what NetQ knows by LLDP only",),
    )  # fmt: skip


def _each(value: Any, key: str, where: str) -> Iterator[dict[str, Any]]:
    for graph in value if isinstance(value, list) else [value]:
        entries = graph.get(key) if isinstance(graph, dict) else None
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise InputError(f"field {key}: no list", where=where, expected="NetQ's topology graph: links and nodes")
        yield from entries


def _devices(value: Any, where: str) -> Iterator[dict[str, Any]]:
    for group in _each(value, "nodes", where):
        inside = group.get("compounded_nodes")
        if group.get("node_type") == "device" or not isinstance(inside, list):
            yield group
        else:
            yield from (device for device in inside if isinstance(device, dict))

"""Slurm's topology.conf and topology.yaml: the tree plugin's switches, the block plugin's blocks.

A block is read as one NVLink domain, which is what the block plugin was made for; a note says so. LinkSpeed has no
unit in Slurm and is not used. Format: the topology.conf(5) and topology.yaml(5) manuals.
"""

import re
from typing import Any

from linkwise.cluster.hostlist import expand
from linkwise.cluster.topology import Fabric
from linkwise.cluster.trees import Branch, tree
from linkwise.cluster.types import MAX_DEVICES
from linkwise.core.errors import InputError
from linkwise.core.files import parse_yaml

FORMAT = "slurm"

_CONF = re.compile(r"^[ \t]*(SwitchName|BlockName)[ \t]*=", re.IGNORECASE | re.MULTILINE)
_YAML = re.compile(r"^-[ \t]+[\"']?topology[\"']?[ \t]*:", re.MULTILINE)
_WORD = re.compile(r"([A-Za-z]+)\s*=\s*(\S+)")
_KEYS = {"switchname", "switches", "nodes", "linkspeed", "blockname", "blocksizes", "comment"}


def recognises(text: str) -> bool:
    """A switch or a block of topology.conf, or the first topology of topology.yaml."""
    return (_CONF.search(text) or _YAML.search(text)) is not None


def read(text: str, *, where: str) -> Fabric:
    """A fabric from either file. Raises InputError with the line (or the topology) when it is malformed."""
    return _conf(text, where) if _CONF.search(text) else _yaml(text, where)


class _Found:
    """What has been read so far, of either file."""

    def __init__(self) -> None:
        self.branches: list[Branch] = []
        self.blocks: dict[str, tuple[str, ...]] = {}
        self.notes: list[str] = []

    def block(self, name: str, hosts: tuple[str, ...], where: str) -> None:
        if name in self.blocks:
            raise InputError(f"block {name!r} a second time", where=where)
        self.blocks[name] = hosts

    def fabric(self, source: str) -> Fabric:
        if not self.branches and not self.blocks:
            raise InputError("no switch and no block", where=source, expected="SwitchName=... or BlockName=... lines")
        switches, ports, hosts = tree(self.branches)
        every = [*hosts, *(host for block in self.blocks.values() for host in block)]
        if len(every) - len(hosts) != len({host for block in self.blocks.values() for host in block}):
            raise InputError("a node is in two blocks", where=source, expected="each node in one block")
        notes = list(dict.fromkeys(self.notes))
        if self.blocks:
            notes.append("blocks are read as NVLink domains")
        if not every:
            raise InputError("no node", where=source, expected="Nodes=... on some switch or block")
        return Fabric(
            format=FORMAT, source=source, hosts=tuple(dict.fromkeys(every)), switches=switches, ports=ports,
            domains=self.blocks, notes=tuple(notes),
        )  # fmt: skip


def _conf(text: str, where: str) -> Fabric:
    found = _Found()
    most = MAX_DEVICES
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        here = f"{where}: line {number}"
        words = {key.lower(): value for key, value in _WORD.findall(line)}
        if _WORD.sub("", line).strip() or not words or words.keys() - _KEYS:
            raise InputError(f"{line[:80]!r} is not understood", where=here, expected="SwitchName=s1 Nodes=n[1-4]")
        nodes = expand(words["nodes"], where=here, most=most) if "nodes" in words else ()
        most -= len(nodes)
        if "linkspeed" in words:
            found.notes.append("LinkSpeed has no unit in Slurm and is not used")
        if "switchname" in words:
            below = expand(words["switches"], where=here, most=most) if "switches" in words else ()
            most -= len(below)
            # A range of switch names (SwitchName=s[1-2]) would not say which node is on which.
            found.branches.append(Branch(name=words["switchname"], switches=below, hosts=nodes, where=here))
        elif "blockname" in words:
            found.block(words["blockname"], nodes, here)
    return found.fabric(where)


def _yaml(text: str, where: str) -> Fabric:
    topologies = parse_yaml(text, where=where)
    if not isinstance(topologies, list) or not all(isinstance(one, dict) for one in topologies) or not topologies:
        raise InputError("no list of topologies", where=where, expected="- topology: name, then tree: or block:")
    chosen = next((one for one in topologies if one.get("cluster_default") is True), topologies[0])
    name = chosen.get("topology")
    here = f"{where}: topology {name!r}"
    found = _Found()
    if len(topologies) > 1:
        found.notes.append(f"of {len(topologies)} topologies, {name!r} is read")
    kinds = [kind for kind in ("tree", "block") if isinstance(chosen.get(kind), dict)]
    if len(kinds) != 1:
        raise InputError(
            f"it is {', '.join(map(str, chosen.keys() - {'topology', 'cluster_default'})) or 'empty'}",
            where=here,
            expected="one of tree: or block: (a flat topology says nothing of the fabric)",
        )
    most = MAX_DEVICES
    body = chosen[kinds[0]]
    entries = body.get("switches" if kinds[0] == "tree" else "blocks")
    for at, entry in enumerate(entries if isinstance(entries, list) else (), 1):
        place = f"{here}, {'switch' if kinds[0] == 'tree' else 'block'} {at}"
        hosts = _expanded(entry, "nodes", place, most)
        most -= len(hosts)
        if kinds[0] == "tree":
            below = _expanded(entry, "children", place, most)
            most -= len(below)
            found.branches.append(Branch(name=_text(entry, "switch", place), switches=below, hosts=hosts, where=place))
        else:
            found.block(_text(entry, "block", place), hosts, place)
    return found.fabric(where)


def _text(entry: Any, key: str, where: str) -> str:
    value = entry.get(key) if isinstance(entry, dict) else None
    if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
        raise InputError(f"field {key}: {value!r:.60}", where=where, expected="a name")
    return str(value)


def _expanded(entry: Any, key: str, where: str, most: int) -> tuple[str, ...]:
    if not isinstance(entry, dict):
        raise InputError(f"{entry!r:.60}", where=where, expected="a mapping")
    return expand(_text(entry, key, where), where=where, most=most) if key in entry else ()

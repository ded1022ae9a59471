"""Kubernetes node labels: `kubectl get nodes -o json` or `-o yaml`, `--show-labels`, or a plain list of labels.

Read are the labels that place a node: topograph's (`fabric.topograph.run/tier-N`, `accelerator.topograph.run/domain`
and the older `network.topology.nvidia.com/*`), `nvidia.com/gpu.clique` of the GPU operator, and Kubernetes' own
`topology.kubernetes.io/network-level-N`. The clique wins over a domain, as topograph itself has it. Of what the nodes
are, `nvidia.com/gpu.product` and `nvidia.com/gpu.count` of GPU feature discovery are read.
Keys: topograph's reference of node labels; clique: <ClusterUUID>.<CliqueID>.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from linkwise.cluster.readers.base import MAX_DEVICES
from linkwise.cluster.topology import Fabric
from linkwise.cluster.trees import Branch, tree
from linkwise.core.errors import InputError
from linkwise.core.files import MAX_YAML_BYTES, parse_json, parse_yaml

FORMAT = "kubernetes"

PRODUCT, COUNT = "nvidia.com/gpu.product", "nvidia.com/gpu.count"

_KEY = re.compile(
    r"topograph\.run/|network\.topology\.nvidia\.com/|nvidia\.com/gpu\.(?:clique|product)|kubernetes\.io/network-level-"
)
_LEVEL = re.compile(r"(?:fabric\.topograph\.run/tier|topology\.kubernetes\.io/network-level)-(\d{1,2})")
_OLD = {"leaf": 1, "block": 1, "spine": 2, "core": 3, "datacenter": 3}
_PREFIX = "network.topology.nvidia.com/"
_DOMAINS = ("nvidia.com/gpu.clique", "accelerator.topograph.run/domain", _PREFIX + "accelerator")
# As long as Kubernetes lets keys and values be; without a bound a long word would be searched from each of its letters.
_PAIR = re.compile(r"([A-Za-z0-9./_-]{1,317})=([A-Za-z0-9._-]{0,63})")
_DESCRIBED = re.compile(r"^Name:[ \t]+\S", re.MULTILINE)
_LABEL_LINE = re.compile(r"^[ \t]*[\w.-]{1,253}(?:/[\w.-]{1,63})?[ \t]*:[ \t]", re.MULTILINE)


def recognises(text: str) -> bool:
    """Any of the keys that place a node, or say what its GPUs are."""
    return _KEY.search(text) is not None


def read(text: str, *, where: str) -> Fabric:
    """A fabric from the labels of nodes. Raises InputError when no node has such a label, or two disagree."""
    seen: set[str] = set()
    above: dict[tuple[int, str], str] = {}
    on: dict[str, list[str]] = {}
    domains: dict[str, list[str]] = {}
    bare: dict[str, dict[str, str]] = {}
    tags: dict[str, dict[str, str]] = {}
    for name, labels in _nodes(text, where):
        if name in seen:
            raise InputError(f"node {name!r} a second time", where=where)
        seen.add(name)
        here = f"{where}: node {name}"
        domain = next((labels[key] for key in _DOMAINS if labels.get(key)), None)
        path = _path(labels)
        if domain is None and not path:
            bare[name] = labels
            continue
        tags[name] = labels
        if domain is not None:
            domains.setdefault(domain, []).append(name)
        for leaf, (_, parent) in pairwise(path):
            if above.setdefault(leaf, parent) != parent:
                raise InputError(
                    f"switch {leaf[1]!r} is under {parent!r}, and under {above[leaf]!r} for another node", where=here
                )
        if path:
            on.setdefault(path[0][1], []).append(name)
    # A list may say what its nodes are, and nothing of where they are.
    tags = tags or {name: labels for name, labels in bare.items() if labels.get(PRODUCT)}
    if not tags:
        raise InputError("no node has a label that places it", where=where, expected=" or ".join(_DOMAINS[:2]))
    children: dict[str, list[str]] = {}
    for (_, switch), parent in above.items():
        children.setdefault(parent, []).append(switch)
    order = dict.fromkeys([*on, *children, *(parent for parent in above.values())])
    branches = [
        Branch(name=n, switches=tuple(children.get(n, ())), hosts=tuple(on.get(n, ())), where=where) for n in order
    ]
    tiers, ports, _ = tree(branches)
    notes = [f"{len(bare)} nodes have no label that places them"] if bare else []
    counts = (_count(labels[COUNT], f"{where}: node {name}") for name, labels in tags.items() if COUNT in labels)
    return Fabric(
        format=FORMAT, source=where, hosts=tuple(tags), switches=tiers, ports=ports,
        domains={name: tuple(members) for name, members in domains.items()}, notes=tuple(notes),
        products=tuple(dict.fromkeys(labels[PRODUCT] for labels in tags.values() if labels.get(PRODUCT))),
        gpus=tuple(dict.fromkeys(counts)),
    )  # fmt: skip


def _count(text: str, where: str) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", text) or not 1 <= int(text) <= MAX_DEVICES:
        raise InputError(f"{COUNT}: {text[:40]!r}", where=where, expected=f"1..{MAX_DEVICES}")
    return int(text)


def _path(labels: dict[str, str]) -> list[tuple[int, str]]:
    """Switches above a node by tier, leaf first."""
    found: dict[int, str] = {}
    for key, value in labels.items():
        if not value:
            continue
        if match := _LEVEL.fullmatch(key):
            # topograph counts from 0 at the leaf, Kubernetes' network levels from 1.
            found.setdefault(int(match[1]) + key.startswith("fabric."), value)
        elif key.startswith(_PREFIX) and key.removeprefix(_PREFIX) in _OLD:
            found.setdefault(_OLD[key.removeprefix(_PREFIX)], value)
    return sorted(found.items())


def _nodes(text: str, where: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Every node's name and labels, whatever the shape of the file."""
    start = text.lstrip()[:1]
    if start in ("{", "["):
        return _objects(parse_json(text, where=where), where)
    if len(text) <= MAX_YAML_BYTES and re.search(r"^(apiVersion|kind|items|metadata)\s*:", text, re.MULTILINE):
        return _objects(parse_yaml(text, where=where), where)
    if not _DESCRIBED.search(text) and _LABEL_LINE.search(text):
        return _mapping(parse_yaml(text, where=where), where)
    return _lines(text, where)


def _objects(value: Any, where: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Kubernetes objects: a list, one node, or a mapping of node names to labels."""
    if isinstance(value, dict) and not {"items", "metadata"} & value.keys():
        yield from _mapping(value, where)
        return
    items = value.get("items", [value]) if isinstance(value, dict) else value
    if not isinstance(items, list):
        raise InputError("items is no list", where=where, expected="the output of kubectl get nodes -o json")
    for at, item in enumerate(items):
        meta = item.get("metadata") if isinstance(item, dict) else None
        name = meta.get("name") if isinstance(meta, dict) else None
        if isinstance(item, dict) and item.get("kind", "Node") != "Node":
            continue
        if not isinstance(meta, dict) or not isinstance(name, str) or not name:
            raise InputError(f"item {at} has no metadata.name", where=where, expected="a Node")
        yield name, _labels(meta.get("labels") or {}, f"{where}: node {name}")


def _mapping(value: Any, where: str) -> Iterator[tuple[str, dict[str, str]]]:
    if not isinstance(value, dict):
        raise InputError(f"a {type(value).__name__}", where=where, expected="node names, each with its labels")
    for name, labels in value.items():
        inside = labels.get("labels") if isinstance(labels, dict) and set(labels) == {"labels"} else labels
        yield str(name), _labels(inside, f"{where}: node {name}")


def _labels(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str | int | bool) for v in value.values()):
        raise InputError(f"labels: {value!r:.60}", where=where, expected="a mapping of keys to text")
    return {str(key): str(tag) for key, tag in value.items()}


def _lines(text: str, where: str) -> Iterator[tuple[str, dict[str, str]]]:
    """`name ... key=value,key=value` a line (--show-labels), or `kubectl describe`: Name:, then Labels: over lines."""
    described = _DESCRIBED.search(text) is not None
    blocks: Iterable[str] = re.split(r"^Name:[ \t]+", text, flags=re.MULTILINE)[1:] if described else text.splitlines()
    for number, block in enumerate(blocks, 1):
        words = block.split(maxsplit=1)
        if not words or words[0].startswith("#") or words[:1] == ["NAME"]:
            continue
        body = (
            re.split(r"^(?:Annotations|Conditions):", block, maxsplit=1, flags=re.MULTILINE)[0] if described else block
        )
        labels = dict(_PAIR.findall(body[len(words[0]) :]))
        if "=" in words[0] or not labels:
            place = f"{where}: node {number}" if described else f"{where}: line {number}"
            raise InputError(f"{block.strip()[:80]!r}", where=place, expected="a node's name, then key=value,key=value")
        yield words[0], labels

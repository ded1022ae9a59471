"""topograph's models, requests and NetQ graphs: small ones written for these tests."""

import json

import pytest

from linkwise.cluster.readers import parse
from linkwise.cluster.topology import Fabric, Port
from linkwise.core.errors import InputError

MODEL = """
switches:
  top:
    labels: {topology.kubernetes.io/zone: z}
    switches: [l1, l2, l3]
blocks:
- switch: l1
  nodes: ["n[1-2]", n5]
  annotations: {x.example/domain: d1, x.example/sub-domain: r1}
- switch: l2
  nodes: ["n[3-4]"]
  annotations: {x.example/domain: d1, x.example/sub-domain: r2}
"""
DEVICES = [
    {"id": "a", "name": "leaf", "device_type": "switch", "tier": 1},
    {"id": "b", "name": "h1", "device_type": "discovered_via_lldp", "tier": -1},
    {"id": "c", "name": "spine", "device_type": "switch", "tier": -1},
]
LINKS = [{"id": "x", "src": "a", "target": "b", "size": 4}, {"id": "y", "src": "c", "target": "a", "size": 2}]


def graph(devices: object = DEVICES, links: object = LINKS) -> str:
    return json.dumps([{"links": links, "nodes": [{"node_type": "tier", "compounded_nodes": devices}]}])


def read(text: str) -> Fabric:
    found = parse(text, where="t")
    assert isinstance(found, Fabric)
    return found


def test_a_model() -> None:
    found = read(MODEL)
    assert found.hosts == ("n1", "n2", "n5", "n3", "n4")
    assert found.switches == {"top": 2, "l1": 1, "l2": 1, "l3": 1}
    assert found.domains == {"d1": ("n1", "n2", "n5", "n3", "n4")}
    assert found.notes == ("no node on l3", "2 sub-domains are not told apart: hosts of one domain share NVLink")


def test_a_netq_graph() -> None:
    found = read(graph())
    assert found.hosts == ("h1",)
    assert found.switches == {"leaf": 1, "spine": 2}  # the spine's tier is not stated: two steps from a host
    assert found.ports == (Port(a="h1", b="leaf", count=4), Port(a="leaf", b="spine", count=2))


def test_a_request_names_the_model_to_read() -> None:
    request = '{\n "provider": {\n  "name": "test",\n  "params": {"modelFileName": "m.yaml"}\n }\n}'
    with pytest.raises(InputError, match="line 4: a request to topograph.*can be read: m.yaml"):
        read(request)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("switches: {a: {switches: [a]}}\nblocks: [{switch: a, nodes: [n1]}]", "below itself"),
        ("switches: {a: {}}\nblocks: [{nodes: [n1]}]", "block 1: no switch"),
        ("switches: {a: {}}\nblocks: [{switch: a, nodes: n1}]", "block 1: field nodes"),
        ("switches: {a: {}}\nblocks: [{switch: a}]", "no node in any block"),
        ("switches: {a: {}}\nblocks: [{switch: a, nodes: ['n[1-9999999]']}]", "too many names"),
        ("switches: [a]\nblocks: []", "no switches or no blocks"),
        (graph(links=[{"id": "x", "src": "a", "target": "zz"}]), "link 'x' leads to a device that is not listed"),
        (graph(links=[{"id": "x", "src": "a", "target": "b", "size": -1}]), "link 'x': size -1"),
        (graph(devices=DEVICES[:1], links=[]), "no host"),
        (graph(devices=[*DEVICES, DEVICES[0]]), "device 'leaf' a second time"),
        (graph(links={}), "field links: no list"),
        ('{"provider": {}}', "a request to topograph"),
        ('{"compounded_nodes": ', "not valid JSON"),
        ('{"compounded_nodes": 1}', "field nodes: no list"),
    ],
)
def test_refused(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": [\n1, 2', "looks like cut or broken JSON: not valid JSON at line 2"),
        (
            "switches:\n  a:\n    switches: [b]\n  b:",
            "looks like cut YAML: it ends at line 4 with switches and no blocks",
        ),
        ("apiVersion: v1\nitems: [{a: 1,\n", "looks like cut or broken YAML: not valid YAML at line"),
    ],
)
def test_a_file_whose_end_is_missing(text: str, says: str) -> None:
    """Cut before the words that tell the format."""
    with pytest.raises(InputError, match=says):
        parse(text, where="t")

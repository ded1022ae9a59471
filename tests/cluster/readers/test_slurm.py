"""Slurm's two topology files, in the forms of the topology.conf(5) and topology.yaml(5) manuals."""

import pytest

from linkwise.cluster.readers import parse
from linkwise.cluster.topology import Fabric, Port
from linkwise.core.errors import InputError

TREE = """# a tree
SwitchName=s0 Nodes=tux[0-2] LinkSpeed=900
switchname=s1 nodes=tux[3-4]   # key names are case insensitive
SwitchName=top Switches=s[0-1]
"""
BLOCKS = "BlockName=b1 Nodes=node[01-02]\nBlockName=b2 Nodes=node[03-04]\nBlockSizes=2,4\n"
YAML = """---
- topology: other
  block:
    block_sizes: [2]
    blocks:
      - block: b1
        nodes: n[1-2]
- topology: main
  cluster_default: true
  tree:
    switches:
      - switch: top
        children: s[1-2]
      - switch: s1
        nodes: n[1-2]
      - switch: s2
        nodes: n3
"""


def read(text: str) -> Fabric:
    found = parse(text, where="t")
    assert isinstance(found, Fabric)
    return found


def test_a_tree() -> None:
    found = read(TREE)
    assert found.hosts == ("tux0", "tux1", "tux2", "tux3", "tux4")
    assert found.switches == {"s0": 1, "s1": 1, "top": 2}
    assert found.ports[0] == Port(a="tux0", b="s0")
    assert found.ports[-2:] == (Port(a="s0", b="top"), Port(a="s1", b="top"))
    assert found.notes == ("LinkSpeed has no unit in Slurm and is not used",)


def test_blocks() -> None:
    found = read(BLOCKS)
    assert found.hosts == ("node01", "node02", "node03", "node04")
    assert found.domains == {"b1": ("node01", "node02"), "b2": ("node03", "node04")}
    assert (found.switches, found.ports) == ({}, ())
    assert found.notes == ("blocks are read as NVLink domains",)


def test_yaml_reads_the_default_topology() -> None:
    found = read(YAML)
    assert found.hosts == ("n1", "n2", "n3")
    assert found.switches == {"top": 2, "s1": 1, "s2": 1}
    assert found.notes == ("of 2 topologies, 'main' is read",)
    other = read(YAML.replace("  cluster_default: true\n", ""))
    assert other.domains == {"b1": ("n1", "n2")}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("SwitchName=s1 Nodes=n[1-2]\nSwitchName=s1 Nodes=n3\n", "line 2: switch 's1' a second time"),
        ("SwitchName=s1 Nodes=n1\nSwitchName=s2 Nodes=n1\n", "line 2: host 'n1' is on 's1' and on 's2'"),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a\n", "is below itself"),
        ("SwitchName=a Switches=a Nodes=n1\n", "is below itself"),
        ("SwitchName=s1 Nodes=n[1-\n", "line 1: .*not a host list"),
        ("SwitchName=s1 Nodes=n1 Color=red\n", "line 1: .* is not understood"),
        ("SwitchName=s1 Nodes=n1\nhello world\n", "line 2: 'hello world' is not understood"),
        ("SwitchName=s1 Nodes=n[1-99999999]\n", "line 1: .*too many names"),
        ("SwitchName=s1\n", "no node"),
        ("SwitchName=s1 Nodes=s1\n", "is a host and a switch"),
        ("BlockName=b1 Nodes=n1\nBlockName=b1 Nodes=n2\n", "line 2: block 'b1' a second time"),
        ("BlockName=b1 Nodes=n1\nBlockName=b2 Nodes=n1\n", "a node is in two blocks"),
        ("- topology: t\n  flat: true\n", "it is flat"),
        ("- topology: t\n  tree:\n    switches:\n      - switch: [1]\n", "switch 1: field switch"),
        ("- topology: t\n  tree:\n    switches: [7]\n", "switch 1: 7"),
        ("- topology: t\n  tree: {switches: []}\n", "no switch and no block"),
        ("- topology: t\n  tree: &a\n    switches: *a\n", "not valid YAML"),
    ],
)
def test_refused(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read(text)

"""Every file of topology/ibnet and topology/topograph, against readings written down by hand from the files.

Counts and names below were taken from the text of each file (records, lists, comments), not from the reader.
"""

from collections import Counter

import pytest
from tests.conformance.roles import ABSENT, DATA

from linkwise.cluster.fabrics import oversubscription
from linkwise.cluster.readers import read
from linkwise.cluster.topology import Fabric, Port
from linkwise.core.errors import InputError

FILES = DATA / "topology"
pytestmark = pytest.mark.skipif(not FILES.is_dir(), reason=ABSENT)


def fabric(name: str) -> Fabric:
    found = read(FILES / name)
    assert isinstance(found, Fabric)
    return found


def test_ibsim_net() -> None:
    """Two switches with two cables between them; both adapters on the first, on its ports 1 and 2."""
    found = fabric("ibnet/ibsim_net")
    assert found.hosts == ("Hca1", "Hca2")
    assert found.switches == {"Switch1": 1, "Switch2": 2}
    assert set(found.ports) == {
        Port(a="Hca1", b="Switch1"),
        Port(a="Hca2", b="Switch1"),
        Port(a="Switch1", b="Switch2", count=2),
    }


def test_ibsim_two_switches_four_adapters() -> None:
    """Hca1 and Hca3 on Switch1, Hca2 and Hca4 on Switch2, ports 3 and 5 of the switches joined: 2 down to 2 across."""
    found = fabric("ibnet/ibsim_net.2sw2path4hca")
    assert found.hosts == ("Hca1", "Hca2", "Hca3", "Hca4")
    assert found.switches == {"Switch1": 1, "Switch2": 1}
    assert set(found.ports) == {
        Port(a="Hca1", b="Switch1"),
        Port(a="Hca3", b="Switch1"),
        Port(a="Hca2", b="Switch2"),
        Port(a="Hca4", b="Switch2"),
        Port(a="Switch1", b="Switch2", count=2),
    }
    assert oversubscription(found) == 1


def test_an_ibnetdiscover_output_cut_after_its_first_line_is_refused() -> None:
    with pytest.raises(InputError, match=r"example-bad.out: line 10: 'dgx-gb200-n01-c1 HCA-1' has no connected port"):
        fabric("ibnet/example-bad.out")


# Requests to topograph: which line names the model, and which model. test-tree.json names none; its provider is line 2.
REQUESTS = {
    "aws-sim-block": (5, "tests/models/medium.yaml"),
    "aws-sim-large-block": (5, "tests/models/nvl72.yaml"),
    "aws-sim-tree": (5, "tests/models/medium.yaml"),
    "dsx-sim-block": (5, "tests/models/medium.yaml"),
    "dsx-sim-tree": (5, "tests/models/medium.yaml"),
    "gcp-sim-block": (5, "tests/models/medium.yaml"),
    "oci-sim-block": (5, "tests/models/medium.yaml"),
    "oci-sim-large-block": (5, "tests/models/large.yaml"),
    "oci-sim-tree": (5, "tests/models/medium.yaml"),
    "test-block": (7, "large.yaml"),
    "test-tree": (2, ""),
    "toposim-block": (5, "medium.yaml"),
    "toposim-tree": (5, "medium.yaml"),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_refused_and_names_its_model(name: str) -> None:
    line, model = REQUESTS[name]
    with pytest.raises(InputError, match=f"{name}.json: line {line}: a request to topograph") as caught:
        fabric(f"topograph/{name}.json")
    assert caught.value.hint.endswith(model)
    assert bool(caught.value.hint) == bool(model)


BOTH = ("topograph", "topograph/models")


def numbered(prefix: str, first: int, last: int) -> tuple[str, ...]:
    return tuple(f"{prefix}{n:04d}" for n in range(first, last + 1))


@pytest.mark.parametrize("folder", BOTH)
def test_small_tree(folder: str) -> None:
    found = fabric(f"{folder}/small-tree.yaml")
    assert found.hosts == ("I21", "I22", "I25", "I34", "I35", "I36")
    assert found.switches == {"S1": 2, "S2": 1, "S3": 1}
    assert found.domains == {"nvl2": ("I21", "I22", "I25"), "nvl3": ("I34", "I35", "I36")}
    assert {(p.a, p.b) for p in found.ports} == {
        ("I21", "S2"), ("I22", "S2"), ("I25", "S2"), ("I34", "S3"), ("I35", "S3"), ("I36", "S3"),
        ("S2", "S1"), ("S3", "S1"),
    }  # fmt: skip


@pytest.mark.parametrize("folder", BOTH)
def test_medium(folder: str) -> None:
    found = fabric(f"{folder}/medium.yaml")
    assert found.hosts == ("1101", "1102", "1201", "1202", "1301", "1302", "1401", "1402")
    assert found.switches == {"sw3": 3, "sw21": 2, "sw22": 2, "sw11": 1, "sw12": 1, "sw13": 1, "sw14": 1}
    assert found.domains == {f"nvl{n}": (f"1{n}01", f"1{n}02") for n in range(1, 5)}
    above = {p.a: p.b for p in found.ports}
    assert (above["sw12"], above["sw13"], above["sw22"], above["1301"]) == ("sw21", "sw22", "sw3", "sw13")


@pytest.mark.parametrize("folder", BOTH)
def test_nvl72(folder: str) -> None:
    """Four racks of 18 trays: leaf-1-1 with 1101-1118, leaf-1-2 with 1201-1218, leaf-2-1, leaf-2-2 likewise."""
    found = fabric(f"{folder}/nvl72.yaml")
    racks = {"nvl-1-1": 1100, "nvl-1-2": 1200, "nvl-2-1": 2100, "nvl-2-2": 2200}
    assert found.domains == {name: numbered("node", n + 1, n + 18) for name, n in racks.items()}
    assert found.hosts == tuple(host for members in found.domains.values() for host in members)
    assert Counter(found.switches.values()) == {3: 1, 2: 2, 1: 4}
    assert found.switches["core"] == 3
    assert len(found.ports) == 72 + 4 + 2


LEAVES = [f"{spine}{side}" for spine in range(1, 7) for side in (1, 2)]


def test_large() -> None:
    """Six spines, two leaves each, eight servers a leaf (srv1101 to srv1108, ...), one NVLink domain a leaf."""
    found = fabric("topograph/models/large.yaml")
    assert found.domains == {f"nvl-{n[0]}-{n[1]}": numbered("srv", int(n) * 100 + 1, int(n) * 100 + 8) for n in LEAVES}
    assert (len(found.hosts), len(found.switches), len(found.ports)) == (96, 19, 96 + 12 + 6)
    assert Counter(found.switches.values()) == {3: 1, 2: 6, 1: 12}


@pytest.mark.parametrize("folder", BOTH)
def test_dual_xclr_regular(folder: str) -> None:
    """The same tree; racks 01-06 are domain nvl-1, racks 07-12 domain nvl-2."""
    found = fabric(f"{folder}/dual-xclr-regular.yaml")
    racks = [numbered("srv", int(n) * 100 + 1, int(n) * 100 + 8) for n in LEAVES]
    assert found.domains == {"nvl-1": sum(racks[:6], ()), "nvl-2": sum(racks[6:], ())}
    assert Counter(found.switches.values()) == {3: 1, 2: 6, 1: 12}


@pytest.mark.parametrize("folder", BOTH)
def test_dual_xclr_irregular(folder: str) -> None:
    """sw-01: 13 racks of 9 and rack-1-04 of 3 + 1 + 3; rack-1-03 and rack-1-13 are empty. sw-02: 14 of 9, one of 5."""
    found = fabric(f"{folder}/dual-xclr-irregular.yaml")
    assert {name: len(members) for name, members in found.domains.items()} == {"domain-01": 124, "domain-02": 131}
    assert found.hosts[:9] == numbered("node", 1, 9)
    assert [h for h in found.hosts if "node0028" <= h <= "node0036"] == [
        "node0028", "node0029", "node0030", "node0032", "node0034", "node0035", "node0036"
    ]  # fmt: skip
    assert found.hosts[-9:] == numbered("node", 280, 288)
    assert Counter(found.switches.values()) == {3: 1, 2: 2, 1: 16 + 15}
    assert found.notes[0] == "no node on rack-1-03, rack-1-13"
    assert found.notes[1].startswith("29 sub-domains")


def test_netq_graph() -> None:
    """dgx-01 to 04 on net-unit-l1, 05 to 08 on net-unit-l2, four cables each; 28 and 19 cables to the spine."""
    found = fabric("topograph/netq/topologyGraph.json")
    assert set(found.hosts) == {f"dgx-0{n}" for n in range(1, 9)}
    assert found.switches == {"net-unit-l1": 1, "net-unit-l2": 1, "net-unit-s1": 2}
    assert set(found.ports) == {
        *(Port(a=f"dgx-0{n}", b="net-unit-l1", count=4) for n in range(1, 5)),
        *(Port(a=f"dgx-0{n}", b="net-unit-l2", count=4) for n in range(5, 9)),
        Port(a="net-unit-l1", b="net-unit-s1", count=28),
        Port(a="net-unit-l2", b="net-unit-s1", count=19),
    }
    assert oversubscription(found) == 1  # 16 cables down, 28 and 19 up


def test_no_file_is_left_out() -> None:
    there = {
        str(p.relative_to(FILES)) for top in ("ibnet", "topograph") for p in (FILES / top).rglob("*") if p.is_file()
    }
    models = {f"{folder}/{n}.yaml" for folder in BOTH for n in ("small-tree", "medium", "nvl72")}
    models |= {f"{folder}/dual-xclr-{n}.yaml" for folder in BOTH for n in ("regular", "irregular")}
    ibnet = {f"ibnet/{name}" for name in ("ibsim_net", "ibsim_net.2sw2path4hca", "example-bad.out")}
    requests = {f"topograph/{name}.json" for name in REQUESTS}
    assert there == models | ibnet | requests | {"topograph/models/large.yaml", "topograph/netq/topologyGraph.json"}

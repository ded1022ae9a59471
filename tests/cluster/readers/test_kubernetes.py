"""Node labels in every form kubectl prints. Keys as topograph's reference of node labels has them."""

import json

import pytest
from tests.cluster.machines import machine, text

from linkwise.cluster.combine import combine
from linkwise.cluster.readers import parse
from linkwise.cluster.topology import Fabric, Port
from linkwise.core.errors import InputError

LABELS = {
    "n1": {"fabric.topograph.run/tier-0": "l1", "fabric.topograph.run/tier-1": "sp", "nvidia.com/gpu.clique": "c.1"},
    "n2": {"fabric.topograph.run/tier-0": "l1", "fabric.topograph.run/tier-1": "sp", "nvidia.com/gpu.clique": "c.1"},
    "n3": {"fabric.topograph.run/tier-0": "l2", "fabric.topograph.run/tier-1": "sp", "nvidia.com/gpu.clique": "c.2"},
}


def node(name: str, labels: dict[str, str]) -> dict[str, object]:
    return {"kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux", **labels}}}


def read(text: str) -> Fabric:
    found = parse(text, where="t")
    assert isinstance(found, Fabric)
    return found


def table(labels: dict[str, dict[str, str]]) -> str:
    rows = [f"{n} Ready <none> 3d v1.31 " + ",".join(f"{k}={v}" for k, v in tags.items()) for n, tags in labels.items()]
    return "\n".join(["NAME STATUS ROLES AGE VERSION LABELS", *rows])


def described(labels: dict[str, dict[str, str]]) -> str:
    return "\n".join(
        f"Name:   {n}\nRoles:  <none>\nLabels: "
        + "\n        ".join(f"{k}={v}" for k, v in tags.items())
        + "\nAnnotations: a=b\n"
        for n, tags in labels.items()
    )


YAML = "apiVersion: v1\nkind: List\nitems:\n" + "".join(
    f"- kind: Node\n  metadata:\n    name: {n}\n    labels:\n" + "".join(f"      {k}: {v}\n" for k, v in tags.items())
    for n, tags in LABELS.items()
)
FORMS = {
    "json list": json.dumps({"kind": "List", "items": [node(n, tags) for n, tags in LABELS.items()]}),
    "yaml list": YAML,
    "json mapping": json.dumps(LABELS),
    "yaml mapping": "".join(
        f"{n}:\n" + "".join(f"  {k}: {v}\n" for k, v in tags.items()) for n, tags in LABELS.items()
    ),
    "show-labels": table(LABELS),
    "describe": described(LABELS),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_reads_the_same(form: str) -> None:
    found = read(FORMS[form])
    assert found.hosts == ("n1", "n2", "n3")
    assert found.switches == {"l1": 1, "l2": 1, "sp": 2}
    assert found.domains == {"c.1": ("n1", "n2"), "c.2": ("n3",)}
    assert set(found.ports) == {
        Port(a="n1", b="l1"), Port(a="n2", b="l1"), Port(a="n3", b="l2"), Port(a="l1", b="sp"), Port(a="l2", b="sp")
    }  # fmt: skip


def test_the_older_keys() -> None:
    prefix = "network.topology.nvidia.com/"
    tags = {prefix + "accelerator": "nvl1", prefix + "leaf": "s1", prefix + "spine": "s2", prefix + "core": "s3"}
    found = read(json.dumps(node("n1", tags)))
    assert found.switches == {"s1": 1, "s2": 2, "s3": 3}
    assert found.domains == {"nvl1": ("n1",)}
    older = {prefix + "block": "s1", prefix + "spine": "s2", prefix + "datacenter": "s3"}
    assert read(json.dumps(node("n1", older))).switches == {"s1": 1, "s2": 2, "s3": 3}


def test_kubernetes_own_levels_count_from_one() -> None:
    tags = {f"topology.kubernetes.io/network-level-{n}": f"s{n}" for n in (1, 2, 3)}
    assert read(json.dumps(node("n1", tags))).switches == {"s1": 1, "s2": 2, "s3": 3}


def test_the_clique_wins_over_topographs_domain() -> None:
    tags = {"nvidia.com/gpu.clique": "u.0", "accelerator.topograph.run/domain": "d"}
    assert read(json.dumps(node("n1", tags))).domains == {"u.0": ("n1",)}


def test_nodes_without_labels_are_counted() -> None:
    items = [node("n1", LABELS["n1"]), node("cpu1", {})]
    found = read(json.dumps({"items": items}))
    assert found.hosts == ("n1",)
    assert found.notes == ("1 nodes have no label that places them",)


MOVED = LABELS["n1"] | {"fabric.topograph.run/tier-1": "other"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (json.dumps({"items": [node("n1", LABELS["n1"]), node("n1", LABELS["n1"])]}), "node 'n1' a second time"),
        (json.dumps({"items": [node("n1", LABELS["n1"]), node("n2", MOVED)]}), "node n2: switch 'l1' is under 'other'"),
        (json.dumps({"items": [node("n1", {"topograph.run/x": "y"})]}), "no node has a label that places it"),
        (json.dumps({"items": 3, "x": "nvidia.com/gpu.clique"}), "items is no list"),
        (json.dumps({"items": [{"kind": "Node", "x": "nvidia.com/gpu.clique"}]}), "item 0 has no metadata.name"),
        (json.dumps({"n1": ["nvidia.com/gpu.clique"]}), "node n1: labels"),
        ("nvidia.com/gpu.clique=a.1\n", "line 1"),
        ("n1 has nvidia.com/gpu.clique\n", "line 1"),
    ],
)
def test_refused(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read(text)


def product(name: str, count: str = "8") -> dict[str, dict[str, str]]:
    more = {"nvidia.com/gpu.product": name, "nvidia.com/gpu.count": count}
    return {node: labels | more for node, labels in LABELS.items()}


def test_product_and_count_say_what_the_nodes_are() -> None:
    net = read(
        json.dumps({"kind": "List", "items": [node(n, tags) for n, tags in product("NVIDIA-H200", "4").items()]})
    )
    assert (net.products, net.gpus) == (("NVIDIA-H200",), (4,))
    found = combine([], fabric=net)
    assert (found.accelerator.name, found.nodes, found.devices_per_node) == ("h200-sxm", 3, 4)
    assert any("the nodes are labelled NVIDIA-H200" in note for note in found.notes)
    with pytest.raises(InputError, match="h100-sxm is given, but t says NVIDIA-H200"):
        combine([], fabric=net, accelerator="h100-sxm")


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (LABELS, "nothing of the machines"),
        (product("Tesla-V100-SXM2-32GB"), "Tesla-V100-SXM2-32GB, which is not in the catalogue"),
        (product("NVIDIA-H200") | {"n4": product("NVIDIA-B200")["n1"]}, "different products: NVIDIA-H200, NVIDIA-B200"),
        (product("NVIDIA-H200") | {"n4": product("NVIDIA-H200", "4")["n1"]}, "different numbers of GPUs: 8, 4"),
        (product("NVIDIA-H200", "many"), "gpu.count: 'many'"),
    ],
)
def test_labels_that_do_not_say_what_the_nodes_are(labels: dict[str, dict[str, str]], says: str) -> None:
    with pytest.raises(InputError, match=says):
        combine([], fabric=read(table(labels)))


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (product("NVIDIA-H200"), "labelled NVIDIA-H200, and the node files say h100-sxm"),
        (product("NVIDIA-H100-80GB-HBM3", "4"), "labelled with 4 GPUs, and the node files say 8 GPUs"),
    ],
)
def test_labels_that_contradict_a_node_file(labels: dict[str, dict[str, str]], says: str) -> None:
    with pytest.raises(InputError, match=says):
        combine([machine(text(8, "NV18"))], fabric=read(table(labels)), accelerator="h100-sxm")
    same = read(table(product("NVIDIA-H100-80GB-HBM3")))
    assert combine([machine(text(8, "NV18"))], fabric=same, accelerator="h100-sxm").nodes == 3


def test_nodes_that_only_say_what_they_are() -> None:
    more = {"nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/gpu.count": "8"}
    net = read(json.dumps({"items": [node("a", more), node("b", more), node("control", {})]}))
    assert (net.hosts, net.switches, net.notes) == (("a", "b"), {}, ("3 nodes have no label that places them",))
    assert combine([], fabric=net).name == "2x8xh200-sxm"
    mixed = LABELS | {"spare": {"nvidia.com/gpu.product": "NVIDIA-B200"}}
    assert read(table(mixed)).products == ()  # a node that is not placed is not a host of this fabric

"""Node files and a fabric to a Cluster. Bandwidths are the accelerators' facts, counts are read off the small files."""

from typing import Literal

import msgspec
import pytest
from tests.cluster.machines import machine, matrix, square, text, without_nics

from linkwise.cluster import presets
from linkwise.cluster.combine import combine
from linkwise.cluster.fabrics import FabricSpec, oversubscription
from linkwise.cluster.identify import product
from linkwise.cluster.lint import lint
from linkwise.cluster.read import dump, parse
from linkwise.cluster.topology import Fabric, Machine, Part, PathClass, Port, Wire
from linkwise.cluster.types import Cluster, Tier
from linkwise.core.errors import InputError
from linkwise.plan.collective_ways import Group, ways

NODE = machine(text(8, "NV18"))
RAIL = FabricSpec(kind="rail")


def tree(hosts: int, per_leaf: int, up: int = 0, **more: object) -> Fabric:
    names = tuple(f"h{n}" for n in range(hosts))
    leaves = [f"l{n // per_leaf}" for n in range(hosts)]
    ports = [Port(a=h, b=leaf) for h, leaf in zip(names, leaves, strict=True)]
    ports += [Port(a=leaf, b="top", count=up) for leaf in dict.fromkeys(leaves) if up]
    switches = dict.fromkeys(leaves, 1) | ({"top": 2} if up else {})
    base = {"format": "ibnetdiscover", "source": "net.txt", "hosts": names, "switches": switches, "ports": tuple(ports)}
    return msgspec.convert(base | more, Fabric)


def test_a_usual_machine_is_the_preset_with_what_the_file_says() -> None:
    found = combine([NODE], accelerator="h200-sxm", nodes=4, fabric=RAIL)
    usual = presets.shorthand("4x8xh200-sxm")
    same = ("accelerator", "nodes", "devices_per_node", "island_size", "nics_per_node", "nic_Bps", "fabric")
    assert [getattr(found, f) for f in same] == [getattr(usual, f) for f in same]
    assert found.detail is not None
    assert found.detail.nic_names[:2] == ("mlx5_0", "mlx5_1")
    assert found.detail.numa == (0, 0, 0, 0, 1, 1, 1, 1)
    assert (found.detail.islands, found.odd_nodes) == ((), {})
    assert [found.nics_of(d) for d in (0, 7, 8)] == [(0,), (7,), (0,)]
    assert parse(dump(found), where="x") == found


def test_what_no_file_states_is_said_in_notes() -> None:
    found = combine([NODE], nodes=2)
    said = "\n".join(found.notes)
    assert "accelerator guessed from link counts: h100-sxm" in said
    assert "--accelerator says which it is" in said
    assert "no NIC speed: 400 Gb/s assumed" in said
    assert "the fabric is not given: rail" in said
    given = combine([NODE], nodes=2, accelerator="h100-sxm", nic_Gbps=200, fabric=FabricSpec(kind="fat-tree"))
    assert not any("assumed" in note or "guessed" in note for note in given.notes)
    assert given.nic_Bps == 25e9
    assert given.fabric == "fat-tree"


@pytest.mark.parametrize(
    ("words", "count", "name"),
    [
        ("NV18", 8, "h100-sxm"),
        ("NV12", 8, "a100-80gb-sxm"),
        ("NV8", 8, "h800-sxm"),
        ("NV6", 4, "h100-sxm"),
        ("NV4", 4, "a100-80gb-sxm"),
    ],
)
def test_link_counts_suggest_an_accelerator(words: str, count: int, name: str) -> None:
    """Links a GPU has: 18, 12, 8 into a switch; 3 x 6 = 18 and 3 x 4 = 12 to three peers."""
    found = combine([machine(text(count, words))])
    assert found.accelerator.name == name
    assert any("guessed" in note for note in found.notes)


def test_nothing_is_guessed_without_links() -> None:
    with pytest.raises(InputError, match="does not say which accelerator.*--accelerator NAME"):
        combine([machine(text(4, "NODE"))])


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb-sxm"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("Tesla V100-SXM2-32GB", None),
    ],
)
def test_products_as_drivers_print_them(said: str, name: str | None) -> None:
    assert product(said) == name


def test_a_mesh_of_four_is_as_fast_as_its_links() -> None:
    """NV6 between four H100: 6 links of 25 GB/s a pair, 18 a GPU; two ranks get a third of what four get."""
    found = combine([machine(text(4, "NV6"))], accelerator="h100-sxm")
    assert found.island_size == 4
    assert found.port(Tier.ISLAND, 4, (0, 1, 2, 3))[1] == pytest.approx(450e9)
    assert found.port(Tier.ISLAND, 2, (0, 3))[1] == pytest.approx(150e9)


def test_bridged_pairs() -> None:
    words = [
        ["X", "SYS", "NV4", "SYS"],
        ["SYS", "X", "SYS", "NV4"],
        ["NV4", "SYS", "X", "SYS"],
        ["SYS", "NV4", "SYS", "X"],
    ]
    found = combine([machine(without_nics(words))], accelerator="a40")
    assert found.accelerator.name == "a40-bridged"
    assert [found.tier((0, 2)), found.tier((1, 3)), found.tier((0, 1))] == [Tier.ISLAND, Tier.ISLAND, Tier.NODE]
    assert found.port(Tier.ISLAND, 2)[1] == pytest.approx(56.25e9)  # 4 links of 14.0625 GB/s
    beside = [words[0], words[1], words[2], words[3]]
    beside = [[beside[a][b] for b in (0, 2, 1, 3)] for a in (0, 2, 1, 3)]
    usual = combine([machine(without_nics(beside))], accelerator="a40")
    assert usual.detail is not None
    assert (usual.island_size, usual.detail.islands) == (2, ())  # neighbours: the preset's own shape


def test_a_gpu_off_nvlink() -> None:
    words = square(8, "NV18")
    for other in range(8):
        words[2][other] = words[other][2] = "X" if other == 2 else "NODE"
    found = combine([machine(without_nics(words))], accelerator="b200-sxm")
    assert found.detail is not None
    assert found.island_size == 7
    assert found.detail.islands == (0, 0, 1, 0, 0, 0, 0, 0)
    assert (found.tier((0, 1)), found.tier((1, 2))) == (Tier.ISLAND, Tier.NODE)
    assert found.port(Tier.ISLAND, 7)[1] == pytest.approx(900e9)


def test_nodes_that_differ_are_kept_apart() -> None:
    words = square(4, "NV18")
    for other in range(4):
        words[3][other] = words[other][3] = "X" if other == 3 else "SYS"
    good, bad = machine(without_nics(square(4, "NV18")), "a.txt"), machine(without_nics(words), "b.txt")
    found = combine([good, bad, good], accelerator="h100-sxm", fabric=RAIL)
    assert (found.nodes, set(found.odd_nodes)) == (3, {1})
    assert [found.tier((4 * n, 4 * n + 3)) for n in range(3)] == [Tier.ISLAND, Tier.NODE, Tier.ISLAND]
    assert parse(dump(found), where="x") == found
    assert [f.what[:8] for f in lint(found) if f.rule == "gpu-off-nvlink"] == ["node 1: "]


def test_one_nvlink_domain_over_trays() -> None:
    tray = machine(text(4, "NV18"))
    found = combine([tray], nodes=18, accelerator="gb200", fabric=FabricSpec(kind="nvl"))
    assert (found.size, found.island_size) == (72, 72)
    assert found.tier((0, 71)) is Tier.ISLAND
    with pytest.raises(InputError, match="not all on NVLink alike"):
        combine([machine(text(4, "NODE"))], nodes=2, accelerator="gb200", fabric=FabricSpec(kind="nvl"))


@pytest.mark.parametrize(("name", "word"), [("l40s", "NODE"), ("h100-sxm", "NV18"), ("b200-sxm", "NV18")])
def test_no_nvlink_domain_over_nodes_of_accelerators_without_it(name: str, word: str) -> None:
    """NVLink leaves the machine in NVL72 racks alone, whose accelerators the refusal names."""
    with pytest.raises(InputError, match=rf"{name} has no NVLink between nodes.*gb200 \(72 GPUs\), gb300 \(72 GPUs\)"):
        combine([machine(text(8, word))], nodes=2, accelerator=name, fabric=FabricSpec(kind="nvl"))


def test_accelerators_given_as_facts_are_held_to_the_same() -> None:
    facts = presets.accelerator("gb200")
    other = msgspec.structs.replace(facts, name="mine")
    tray, nvl = machine(text(4, "NV18")), FabricSpec(kind="nvl")
    assert combine([tray], nodes=2, accelerator=facts, fabric=nvl).island_size == 8
    with pytest.raises(InputError, match="mine has no NVLink between nodes"):
        combine([tray], nodes=2, accelerator=other, fabric=nvl)


def test_a_call_between_nodes_without_nics_is_refused() -> None:
    """All 8 GPUs are one NVLink domain, so the cluster needs no NICs; a call that leaves it has no way."""
    trays = combine(
        [machine(without_nics(square(4, "NV18")))], nodes=2, accelerator="gb200", fabric=FabricSpec(kind="nvl")
    )
    assert (trays.island_size, trays.nics_per_node) == (8, 0)
    for kind in ("all_reduce", "all_to_all"):
        with pytest.raises(InputError, match="cluster: nodes are joined by no NICs; expected nics: {count: 1"):
            ways(kind, Group(Tier.CLUSTER, 8, 4, 2), trays, "nccl")


def test_no_domain_is_larger_than_a_rack() -> None:
    """18 trays of 4 are the 72 GPUs of an NVL72; 19 are 76."""
    tray = machine(text(4, "NV18"))
    with pytest.raises(InputError, match="19 nodes with 4 gb200 each, 76 GPUs; expected at most 72"):
        combine([tray], nodes=19, accelerator="gb200", fabric=FabricSpec(kind="nvl"))
    hosts = tuple(f"h{n}" for n in range(20))
    with pytest.raises(InputError, match="net.txt: an NVLink domain of 20 nodes"):
        combine([tray], accelerator="gb200", fabric=tree(20, 4, domains={"a": hosts}))


def cards(gpus: int, nics: int) -> Machine:
    """GPUs with all NICs under their switch."""
    rows = [["PIX"] * nics for _ in range(gpus)]
    return machine(matrix(square(gpus, "NV6"), rows, [str(n) for n in range(gpus)], ["0"] * gpus))


@pytest.mark.parametrize(
    ("gpus", "nics", "Gbps", "says"),
    [
        # 8 x 400 Gb/s beside 8 GPUs (DGX H100): beside 4 of them 4; 6 in the file are 4 x 400 / 6 each
        (4, 6, 4 * 400 / 6, "266.667 Gb/s assumed (the usual machine of h100-sxm has 4 x 400 Gb/s for 4 GPUs: "
         "4 x 400 / 6 NICs of the file); --nic-gbps says"),
        (4, 2, 400, "400 Gb/s assumed (the usual machine of h100-sxm has 4 x 400 Gb/s for 4 GPUs); --nic-gbps says"),
    ],
)  # fmt: skip
def test_an_assumed_nic_says_what_it_was_computed_from(gpus: int, nics: int, Gbps: float, says: str) -> None:
    found = combine([cards(gpus, nics)], nodes=2, accelerator="h100-sxm", fabric=RAIL)
    assert found.nics_per_node == nics
    assert found.nic_Bps == pytest.approx(Gbps * 1e9 / 8)
    assert any(f"the file has no NIC speed: {says}" in note for note in found.notes)


def test_some_nics_without_a_speed() -> None:
    node = cards(4, 2)
    parts = tuple(msgspec.structs.replace(p, port_Bps=25e9) if p.id == "nic0" else p for p in node.parts)
    found = combine([msgspec.structs.replace(node, parts=parts)], nodes=2, accelerator="h100-sxm", fabric=RAIL)
    assert any("the file has the speed of 1 of 2 NICs alone: 400 Gb/s assumed" in note for note in found.notes)


def test_a_given_nic_rate_is_never_dropped_in_silence() -> None:
    bare = machine(without_nics(square(8, "NV18")))
    given = combine([bare], nodes=2, accelerator="h100-sxm", fabric=RAIL, nic_Gbps=200)
    assert (given.nics_per_node, given.nic_Bps) == (8, 25e9)
    assert any("the file has no NICs: 8 per node of 200 Gb/s assumed (as given)" in note for note in given.notes)
    alone = combine([bare], accelerator="h100-sxm", nic_Gbps=200)
    assert alone.nics_per_node == 0
    assert any("--nic-gbps 200 is not used" in note for note in alone.notes)


def test_domains_of_a_fabric_are_islands_of_trays() -> None:
    domains = {"a": ["h0", "h1"], "b": ["h2", "h3"]}
    tray, net = machine(text(4, "NV18")), tree(4, 2, domains=domains)
    found = combine([tray], accelerator="gb200", fabric=net)
    assert (found.nodes, found.island_size) == (4, 8)
    assert (found.tier((0, 7)), found.tier((7, 8))) == (Tier.ISLAND, Tier.CLUSTER)
    uneven = msgspec.structs.replace(net, domains={"a": ("h0",), "b": ("h1", "h2", "h3")})
    with pytest.raises(InputError, match="domains of 1, 3 hosts for 4 nodes"):
        combine([tray], accelerator="gb200", fabric=uneven)
    partly = msgspec.structs.replace(net, domains={"a": ("h0", "h1")})
    with pytest.raises(InputError, match="2 hosts are in no NVLink domain"):
        combine([tray], accelerator="gb200", fabric=partly)
    mixed = msgspec.structs.replace(net, domains={"a": ("h0", "h2"), "b": ("h1", "h3")})
    assert any("numbered domain by domain" in n for n in combine([tray], accelerator="gb200", fabric=mixed).notes)
    plain = combine([machine(text(8, "NV18"))], accelerator="h100-sxm", fabric=net)
    assert plain.island_size == 8
    assert any("h100-sxm has none" in note for note in plain.notes)


def test_oversubscription_is_counted_in_cables() -> None:
    """Four hosts a leaf: 4 cables down; 2 up makes 2 to 1, 8 up makes 1."""
    assert oversubscription(tree(8, 4, up=2)) == 2
    assert oversubscription(tree(8, 4, up=8)) == 1
    assert oversubscription(tree(4, 4)) == 1
    found = combine([NODE], accelerator="h100-sxm", fabric=tree(8, 4, up=2))
    assert (found.nodes, found.fabric, found.oversubscription) == (8, "fat-tree", 2)
    assert [f.rule for f in lint(found)] == ["oversubscribed"]


def test_rails_are_seen_in_cables() -> None:
    net = tree(2, 2)
    both = tuple(Port(a=h, b=leaf) for h in ("h0", "h1") for leaf in ("r0", "r1"))
    railed = msgspec.structs.replace(net, switches={"r0": 1, "r1": 1}, ports=both)
    assert combine([NODE], accelerator="h100-sxm", fabric=railed).fabric == "rail"


def test_a_scheduler_names_no_cables() -> None:
    found = combine([NODE], accelerator="h100-sxm", fabric=tree(8, 4, up=1, format="slurm"))
    assert found.oversubscription == 1
    assert any("net.txt names no cables" in note for note in found.notes)


def test_hosts_of_a_fabric_alone_are_usual_machines() -> None:
    net = tree(4, 2, format="kubernetes", domains={"a": ["h0", "h1"], "b": ["h2", "h3"]})
    found = combine([], fabric=net, accelerator="gb200")
    assert (found.nodes, found.devices_per_node, found.island_size) == (4, 4, 8)
    assert any("no node file: each host is taken as the usual 4 x gb200" in note for note in found.notes)
    alone = combine([], fabric=tree(4, 2), accelerator="gb200")
    assert alone.island_size == 4
    assert any("names no NVLink domain" in note for note in alone.notes)


def called(model: str, kind: Literal["nvlink", "xgmi"] = "nvlink", gpus: int = 8) -> Machine:
    """GPUs of that name, each with a link to each."""
    parts = tuple(Part(id=f"gpu{n}", kind="gpu", index=n, model=model) for n in range(gpus))
    pairs = [(f"gpu{a}", f"gpu{b}") for a in range(gpus) for b in range(a + 1, gpus)]
    wires = tuple(Wire(a=a, b=b, kind=kind) for a, b in pairs)
    paths = {f"{a} {b}": PathClass.NVL for a, b in pairs}
    return Machine(format="hwloc", source="t.xml", parts=parts, wires=wires, paths=paths)


@pytest.mark.parametrize(
    ("model", "kind", "given", "said"),
    [
        ("gfx942", "xgmi", "h100-sxm", "gfx942"),
        ("gfx942", "xgmi", "mi250x", "gfx942"),
        ("", "xgmi", "h100-sxm", "xGMI between GPUs"),
        ("", "nvlink", "mi300x", "NVLink between GPUs"),
        ("NVIDIA H100 80GB HBM3", "nvlink", "mi300x", "NVIDIA H100 80GB HBM3"),
        ("NVIDIA B200", "nvlink", "h100-sxm", "NVIDIA B200"),
        ("sm80", "nvlink", "h100-sxm", "sm80"),  # H100 is of compute capability 9.0
    ],
)
def test_an_accelerator_that_the_file_contradicts(
    model: str, kind: Literal["nvlink", "xgmi"], given: str, said: str
) -> None:
    for device in (given, presets.accelerator(given)):
        with pytest.raises(InputError, match=f"{given} is given, but t.xml says {said}"):
            combine([called(model, kind)], accelerator=device)


def test_an_accelerator_that_the_file_does_not_contradict() -> None:
    assert combine([called("gfx942", "xgmi")], accelerator="mi325x").accelerator.name == "mi325x"
    assert combine([called("sm90")], accelerator="h20").accelerator.name == "h20"
    bridged = combine([called("NVIDIA A40", gpus=2)], accelerator="a40")
    assert bridged.accelerator.name == "a40-bridged"
    own = msgspec.structs.replace(presets.accelerator("h100-sxm"), name="h100-of-ours")
    assert combine([called("NVIDIA H100 80GB HBM3")], accelerator=own).accelerator == own


def test_a_product_the_catalogue_lacks() -> None:
    with pytest.raises(InputError, match="the file says Tesla V100-SXM3-32GB, which is not in the catalogue"):
        combine([called("Tesla V100-SXM3-32GB")])
    found = combine([called("Tesla V100-SXM3-32GB")], accelerator="a100-80gb-sxm")
    assert any("Tesla V100-SXM3-32GB, which is not in the catalogue: taken as a100" in n for n in found.notes)


def test_switches_of_two_boards_make_one_island_when_the_file_says_so() -> None:
    """Four GPUs on two switches; NVL between all, as hwloc has a DGX-2, or within each board alone."""
    parts = [Part(id=f"gpu{n}", kind="gpu", index=n) for n in range(4)]
    parts += [Part(id=f"nvswitch{n}", kind="switch", index=n) for n in range(2)]
    wires = tuple(Wire(a=f"gpu{n}", b=f"nvswitch{n // 2}", kind="nvlink", count=6) for n in range(4))
    for across, island in ((PathClass.NVL, 4), (PathClass.SYS, 2)):
        paths = {
            f"gpu{a} gpu{b}": PathClass.NVL if a // 2 == b // 2 else across for a in range(4) for b in range(a + 1, 4)
        }
        node = Machine(format="hwloc", source="t.xml", parts=tuple(parts), wires=wires, paths=paths)
        assert combine([node], accelerator="a100-80gb-sxm").island_size == island


def test_a_static_file_without_nvlink_gets_the_usual_islands() -> None:
    static = msgspec.structs.replace(machine(text(8, "NODE")), format="hwloc")
    found = combine([static], accelerator="h100-sxm")
    assert found.island_size == 8
    assert any("does not show NVLink: that of the usual machine of h100-sxm is assumed" in n for n in found.notes)
    shown = combine([machine(text(8, "NODE"))], accelerator="h100-sxm")
    assert shown.island_size == 1
    assert any("topo -mp hides it" in note for note in shown.notes)


def test_nics_no_gpu_is_nearest_to_are_left_out() -> None:
    """Two GPUs with a card each, and a third card that is SYS to both."""
    source = text(2, "NV18").replace("NIC1\t", "NIC1\tNIC2\t").replace("\tPIX\tSYS", "\tPIX\tSYS\tSYS")
    found = combine([machine(source.replace("\tSYS\tPIX", "\tSYS\tPIX\tSYS"))], accelerator="h100-sxm")
    assert found.nics_per_node == 2
    assert any("no GPU is nearest to them: nic2" in note for note in found.notes)


def test_speeds_of_the_file_are_used() -> None:
    def rated(*rates: float) -> Machine:
        parts = [
            msgspec.structs.replace(part, port_Bps=rates[part.index]) if part.kind == "nic" else part
            for part in machine(text(2, "NV18")).parts
        ]
        return msgspec.structs.replace(machine(text(2, "NV18")), parts=tuple(parts))

    assert combine([rated(25e9, 25e9)], accelerator="h100-sxm").nic_Bps == 25e9
    mixed = combine([rated(25e9, 50e9)], accelerator="h100-sxm")
    assert mixed.nic_Bps == 25e9
    assert any("taken as the slowest, 200 Gb/s" in note for note in mixed.notes)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"machines": [], "fabric": None}, "no node file"),
        ({"machines": [], "fabric": tree(2, 2)}, "says nothing of the machines"),
        ({"machines": [NODE, machine(text(4, "NV18"), "b.txt")]}, "b.txt: 4 GPUs; expected 8"),
        ({"machines": [NODE, NODE], "nodes": 3}, "3 nodes, but 2 node files"),
        ({"machines": [NODE], "nodes": 0}, "0 nodes"),
        ({"machines": [NODE], "nodes": 10**9}, "1000000000 nodes"),
        ({"machines": [NODE], "fabric": tree(2, 2), "nodes": 3}, "3 nodes, but 1 node files and 2 hosts"),
        ({"machines": [NODE, NODE], "fabric": tree(3, 3)}, "2 node files and 3 hosts"),
        ({"machines": [NODE], "accelerator": "l40s"}, "l40s has no NVLink, but the file shows links"),
        ({"machines": [NODE], "accelerator": "h999"}, "unknown accelerator"),
        ({"machines": [NODE], "nic_Gbps": -1.0}, "--nic-gbps"),
        ({"machines": [NODE], "nic_Gbps": float("nan")}, "--nic-gbps"),
    ],
)
def test_refused(given: dict[str, object], says: str) -> None:
    machines = given.pop("machines")
    with pytest.raises(InputError, match=says):
        combine(machines, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", ["", "mesh", "fat-tree:", "fat-tree:0.5", "fat-tree:x", "rail:nan", "nvl:2"])
def test_a_fabric_spec_that_is_wrong(spec: str) -> None:
    with pytest.raises(InputError, match="--fabric"):
        FabricSpec.parse(spec)


def test_a_fabric_spec() -> None:
    assert FabricSpec.parse("fat-tree:2") == FabricSpec(kind="fat-tree", oversubscription=2)
    assert FabricSpec.parse("rail") == RAIL


def test_a_machine_without_gpus_is_no_cluster() -> None:
    empty = Machine(format="hwloc", source="h.xml", parts=())
    with pytest.raises(InputError, match="h.xml: no GPU in it"):
        combine([empty], accelerator="l40s")


def test_every_result_is_a_valid_cluster() -> None:
    assert isinstance(
        combine([NODE], nodes=128, accelerator="h100-sxm", fabric=FabricSpec.parse("fat-tree:4")), Cluster
    )


def test_gpus_with_different_numbers_of_nvlinks_are_not_one_accelerator() -> None:
    """12 NVLinks are an A100's, 18 an H100's (accelerators.yaml)."""
    a100, h100 = machine(text(8, "NV12")), machine(text(8, "NV18"))
    for given in (None, "h100-sxm", "a100-80gb-sxm"):
        with pytest.raises(InputError, match="different GPUs: 12 NVLinks a GPU .*, 18 here"):
            combine([a100, h100], accelerator=given, fabric=RAIL)
    with pytest.raises(InputError, match="a100-80gb-sxm is given, but .* says 18 NVLinks a GPU, and it has 12"):
        combine([h100], accelerator="a100-80gb-sxm")
    with pytest.raises(InputError, match="h100-sxm is given, but .* says 12 NVLinks a GPU, and it has 18"):
        combine([a100], accelerator="h100-sxm")
    # Fewer than all, of no other generation: links that are down, or a product with fewer of them (A800: 8).
    assert combine([machine(text(8, "NV17"))], accelerator="h100-sxm").accelerator.name == "h100-sxm"
    assert combine([machine(text(8, "NV8"))], accelerator="a100-80gb-sxm").accelerator.name == "a100-80gb-sxm"
    assert combine([h100, machine(text(8, "NV17"))], accelerator="h100-sxm", fabric=RAIL).nodes == 2


def test_grace_is_asked_for_and_never_guessed() -> None:
    """18 links a GPU into a switch are an H100's too, but the GPUs' memory as NUMA nodes is Grace's alone."""
    source = text(4, "NV18").replace("N/A", "2")
    with pytest.raises(InputError, match="--accelerator gb200 or gb300"):
        combine([machine(source)])
    assert combine([machine(source)], accelerator="gb300").accelerator.name == "gb300"
    other = combine([machine(source)], accelerator="h100-sxm")
    assert any("as beside Grace: taken as h100-sxm" in note for note in other.notes)
    assert combine([machine(text(4, "NV18"))]).accelerator.name == "h100-sxm"

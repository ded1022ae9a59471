"""Irregular nodes. Links and cuts are worked out by hand from the matrices, or by trying every cut."""

from itertools import combinations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cluster.strategies import TRICKY, clusters

from linkwise.cluster import presets
from linkwise.cluster.detail import NodeDetail, Strand
from linkwise.cluster.links import device, links
from linkwise.cluster.read import dump, parse
from linkwise.cluster.routes import reason, route
from linkwise.cluster.types import Accelerator, Cluster, Tier
from linkwise.core.errors import InputError

LINK = 25e9  # NVLink 2, bytes/s per direction of one link (V100 datasheet)
# The hybrid cube mesh of a DGX-1V: links between each pair, as its nvidia-smi topo -m prints them (NV1, NV2).
CUBE = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip
V100 = Accelerator(
    name="v100",
    label="V100 SXM2 32GB",
    memory_bytes=32 * 10**9,
    memory_source="nominal",
    nominal_GB=32,
    hbm_Bps=0.9e12,
    flops={"bf16": 125e12},
    scaleup_Bps=6 * LINK,
    scaleup_links=6,
    scaleup_kind="nvlink2",
    scaleup_mesh=True,
    pcie_Bps=15.75e9,
)


def strands(pairs: dict[tuple[int, int], int], unit: float = LINK) -> tuple[Strand, ...]:
    return tuple(Strand(a=a, b=b, spec_Bps=n * unit) for (a, b), n in pairs.items())


def cluster(
    detail: NodeDetail, accelerator: Accelerator = V100, *, island: int, devices: int = 8, **more: object
) -> Cluster:
    base = {"nodes": 1, "nics_per_node": 0, "nic_Bps": 0.0, "constants": presets.constants()}
    return Cluster(
        name="t", accelerator=accelerator, devices_per_node=devices, island_size=island, detail=detail, **(base | more)
    )


DGX1 = NodeDetail(islands=(0,) * 8, strands=strands(CUBE))


@pytest.mark.parametrize(
    ("members", "links_of_the_cut", "why"),
    [
        ((0, 1), 1, "NV1"),
        ((0, 3), 2, "NV2"),
        ((0, 5), 0, "no link of their own"),
        ((0, 1, 5), 1, "device 0 hangs on device 1 by NV1"),
        ((0, 1, 2, 3), 4, "device 0 has 1 + 1 + 2 links inside its quad; every other cut has 4 or more"),
        ((0, 4), 2, "NV2"),
        (tuple(range(8)), 6, "six links a device; quad against quad 2 + 2 + 1 + 1 as well"),
        ((0, 6), 0, "two hops away"),
        ((0, 1, 6, 7), 0, "two pairs without a link between them"),
    ],
)
def test_a_hybrid_cube_mesh(members: tuple[int, ...], links_of_the_cut: int, why: str) -> None:
    found = cluster(DGX1, island=8)
    assert DGX1.joined_Bps(members) == links_of_the_cut * LINK, why
    assert found.tier(members) is (Tier.ISLAND if links_of_the_cut else Tier.NODE)
    if links_of_the_cut:
        assert found.port(Tier.ISLAND, len(members), members) == ("nvlink2", links_of_the_cut * LINK)


def test_a_mesh_without_members_is_as_slow_as_its_slowest_usual_group() -> None:
    found = cluster(DGX1, island=8)
    assert found.port(Tier.ISLAND)[1] == 6 * LINK
    assert found.port(Tier.ISLAND, 4)[1] == 4 * LINK  # {0,1,2,3} and {4,5,6,7} alike
    assert found.port(Tier.ISLAND, 2)[1] == 1 * LINK  # (0,1) and (4,5) have NV1


def test_pairs_that_are_no_neighbours() -> None:
    bridged = presets.accelerator("a40-bridged")
    detail = NodeDetail(islands=(0, 1, 0, 1), strands=strands({(0, 2): 4, (1, 3): 4}, 14.0625e9))
    found = cluster(detail, bridged, island=2, devices=4)
    assert [found.tier(pair) for pair in ((0, 2), (1, 3), (0, 1), (2, 3))] == [Tier.ISLAND] * 2 + [Tier.NODE] * 2
    assert found.port(Tier.ISLAND, 2, (1, 3)) == ("nvlink-bridge", 56.25e9)
    assert found.tier((0, 1, 2, 3)) is Tier.NODE
    assert [link.dst for link in route(found, 0, 2)] == ["d2"]
    assert [link.dst for link in route(found, 0, 1)] == ["n0.host", "d1"]
    assert reason(found, 0, 2) == "both in island 0: nvlink-bridge direct link"


def test_one_device_off_the_switch_and_one_with_a_link_down() -> None:
    h100 = presets.accelerator("h100-sxm")
    ports = (450e9, 450e9, 0.0, 425e9)  # device 2 off NVLink; device 3 with 17 of 18 links of 25 GB/s
    detail = NodeDetail(islands=(0, 0, 1, 0), ports_Bps=ports)
    found = cluster(detail, h100, island=3, devices=4)
    assert found.tier((0, 1, 3)) is Tier.ISLAND
    assert found.tier((0, 2)) is Tier.NODE
    assert found.port(Tier.ISLAND, 2, (0, 1))[1] == 450e9
    assert found.port(Tier.ISLAND, 3, (0, 1, 3))[1] == 425e9
    assert found.bandwidth(Tier.ISLAND, 3, (0, 1, 3)) == 425e9 * found.constants.link_efficiency["nvlink4"]
    by_ends = {(link.src, link.dst): link.spec_Bps for link in links(found)}
    assert by_ends["d3", "island0"] == by_ends["island0", "d3"] == 425e9
    assert ("d2", "island0") not in by_ends
    assert [link.dst for link in route(found, 2, 0)] == ["n0.host", "d0"]


def test_a_node_that_is_not_like_the_others() -> None:
    whole = NodeDetail(islands=(0, 0), ports_Bps=(450e9, 450e9))
    broken = NodeDetail(islands=(0, 1), ports_Bps=(450e9, 0.0))
    found = cluster(
        whole, presets.accelerator("h100-sxm"), island=2, devices=2, nodes=3, nics_per_node=2, nic_Bps=50e9,
        fabric="rail", odd_nodes={1: broken},
    )  # fmt: skip
    assert [found.tier((2 * node, 2 * node + 1)) for node in range(3)] == [Tier.ISLAND, Tier.NODE, Tier.ISLAND]
    assert len({found.island_of(d) for d in range(6)}) == 4
    assert parse(dump(found), where="x") == found


def test_nics_and_sockets_as_the_file_has_them() -> None:
    paths = ("LOC NVL SYS PIX PHB", "NVL LOC SYS PIX PHB", "SYS SYS LOC SYS PIX")
    detail = NodeDetail(numa=(0, 0, 2), nic_names=("mlx5_0", "mlx5_1"), nic_numa=(0, 2), paths=paths)
    found = cluster(detail, island=1, devices=3, nics_per_node=2, nic_Bps=25e9)
    assert [found.nics_of(d) for d in range(3)] == [(0,), (0,), (1,)]
    assert [found.numa_of(d) for d in range(3)] == [0, 0, 2]
    assert [(device(found, d).nic, device(found, d).numa) for d in range(3)] == [(0, 0), (0, 0), (1, 2)]


def test_devices_with_the_same_choice_of_nics_start_at_different_ones() -> None:
    detail = NodeDetail(nic_names=("a", "b"), paths=("LOC PIX PHB PHB", "PIX LOC PHB PHB"))
    assert [detail.nics_of(d) for d in range(2)] == [(0, 1), (1, 0)]


def test_what_is_not_stated_is_spread_evenly() -> None:
    found = cluster(NodeDetail(numa=(-1,) * 4), island=1, devices=4, nics_per_node=2, nic_Bps=1e9, numa_per_node=2)
    assert [found.numa_of(d) for d in range(4)] == [0, 0, 1, 1]
    assert [found.nics_of(d) for d in range(4)] == [(0,), (0,), (1,), (1,)]


@pytest.mark.parametrize(
    ("detail", "says"),
    [
        (NodeDetail(numa=(0,)), "numa has 1 entries"),
        (NodeDetail(paths=("LOC NVL",)), "paths has 1 entries"),
        (NodeDetail(paths=("LOC NVL", "NVL")), "1 words"),
        (NodeDetail(paths=("LOC XYZ", "NVL LOC")), "'XYZ'"),
        (NodeDetail(islands=(0, 0)), "do not go together"),
        (NodeDetail(strands=(Strand(a=0, b=1, spec_Bps=1.0),)), "do not go together"),
        (NodeDetail(islands=(0, 0), strands=(Strand(a=0, b=2, spec_Bps=1.0),)), "strand 0-2"),
        (NodeDetail(islands=(0, 0), strands=(Strand(a=0, b=1, spec_Bps=-1.0),)), "strand 0-1"),
        (NodeDetail(islands=(0, 0), ports_Bps=(1.0, 0.0)), "not joined"),
        (NodeDetail(islands=(0, 7), ports_Bps=(1.0, 1.0)), r"islands\[1\] is 7; expected 0..1"),
        (NodeDetail(numa=(0, 5_000_000_000)), r"numa\[1\] is 5000000000; expected -1..1023"),
        (NodeDetail(numa=(-2, 0)), r"numa\[0\] is -2"),
        (NodeDetail(nic_names=("a",), nic_numa=(1024,)), r"nic_numa\[0\] is 1024"),
        (NodeDetail(nic_names=("",)), r"nic_names\[0\] is ''"),
        (NodeDetail(nic_names=("a" * 201,)), r"nic_names\[0\] is 'a.*1..200 printable"),
        (NodeDetail(nic_names=("a\x1b[2J",)), r"nic_names\[0\] is .*x1b"),
        (
            NodeDetail(islands=(0, 1), ports_Bps=(1.0, 2e15)),
            r"ports_Bps\[1\] is 2000000000000000.0; expected 0..1e\+15",
        ),
        (NodeDetail(islands=(0, 0), strands=(Strand(a=0, b=1, spec_Bps=1.0),) * 2), r"strands\[1\]: strand 0-1 again"),
        (NodeDetail(islands=(0, 1), ports_Bps=(1.0, float("nan"))), "ports_Bps"),
        (NodeDetail(islands=(0, 1), ports_Bps=(1.0, 1.0)), "island_size is 2"),
    ],
)
def test_a_detail_that_is_wrong_is_refused_by_field(detail: NodeDetail, says: str) -> None:
    with pytest.raises(InputError, match=says):
        cluster(detail, island=2, devices=2)


@pytest.mark.parametrize("node", [-1, 2, 5_000_000_000])
def test_an_odd_node_that_is_none(node: int) -> None:
    with pytest.raises(InputError, match=f"odd_nodes: a node is {node}; expected 0..1"):
        cluster(NodeDetail(), island=1, devices=2, nodes=2, nics_per_node=1, nic_Bps=1e9, fabric="rail",
                odd_nodes={node: NodeDetail(numa=(0, 0))})  # fmt: skip


def test_an_odd_node_is_checked_like_the_others() -> None:
    with pytest.raises(InputError, match=r"odd_nodes.1: numa\[0\] is 1024"):
        cluster(NodeDetail(), island=1, devices=2, nodes=2, nics_per_node=1, nic_Bps=1e9, fabric="rail",
                odd_nodes={1: NodeDetail(numa=(1024, 0))})  # fmt: skip


@st.composite
def details(draw: st.DrawFn, devices: int, nics: int) -> NodeDetail:
    islands: tuple[int, ...] = ()
    ports: tuple[float, ...] = ()
    if draw(st.booleans()):
        islands = tuple(sorted(draw(st.integers(0, devices - 1)) for _ in range(devices)))
        ports = tuple(draw(st.floats(1.0, 1e14)) for _ in range(devices))
    word = st.sampled_from(["LOC", "NVL", "PIX", "PXB", "PHB", "SYS", "-"])
    rows = tuple(" ".join(draw(word) for _ in range(devices + nics)) for _ in range(devices))
    names = tuple(draw(st.sampled_from(["mlx5_0", "eth0", "0", *TRICKY])) for _ in range(nics))
    return NodeDetail(
        numa=tuple(draw(st.integers(-1, 8)) for _ in range(devices)),
        nic_names=names,
        nic_numa=tuple(draw(st.integers(-1, 8)) for _ in range(nics)),
        paths=rows if draw(st.booleans()) else (),
        islands=islands,
        ports_Bps=ports,
    )


@settings(deadline=None)
@given(st.data())
def test_any_detail_round_trips_through_yaml(data: st.DataObject) -> None:
    base = data.draw(clusters(max_nodes=2, max_per_node=4))
    detail = data.draw(details(base.devices_per_node, base.nics_per_node))
    island = max(detail.islands.count(i) for i in detail.islands) if detail.islands else base.island_size
    fields = {f: getattr(base, f) for f in base.__struct_fields__} | {"detail": detail, "island_size": island}
    try:
        made = Cluster(**fields)
    except InputError:  # islands the drawn accelerator cannot have, or nodes without a network
        return
    assert parse(dump(made), where="x.yaml") == made


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 4), min_size=21, max_size=21), st.integers(2, 7))
def test_the_weakest_cut_is_the_least_of_all_cuts(weights: list[int], count: int) -> None:
    pairs = {pair: n for pair, n in zip(combinations(range(7), 2), weights, strict=True) if n}
    detail = NodeDetail(islands=(0,) * 7, strands=strands(pairs, 1.0))
    members = range(count)
    cuts = [
        sum(n for (a, b), n in pairs.items() if a < count and b < count and (a in side) != (b in side))
        for size in range(1, count)
        for side in map(set, combinations(members, size))
    ]
    assert detail.joined_Bps(members) == min(cuts)


def test_the_yaml_of_a_detail_is_plain() -> None:
    found = cluster(DGX1, island=8)
    assert "detail:" in dump(found)
    assert "detail:" not in dump(presets.shorthand("8xh100-sxm"))
    assert msgspec.to_builtins(parse(dump(found), where="x").detail) == msgspec.to_builtins(DGX1)


def two_nodes(detail: NodeDetail, accelerator: Accelerator, island: int) -> Cluster:
    return cluster(detail, accelerator, island=island, nodes=2, nics_per_node=4, nic_Bps=25e9, fabric="rail")


NICS = {
    "nic_names": ("a", "b", "c", "d"),
    "paths": tuple(
        " ".join(["PHB"] * 8 + ["PIX" if nic == device // 2 else "SYS" for nic in range(4)]) for device in range(8)
    ),
}
OFF = NodeDetail(islands=(0, 0, 1, 0, 0, 0, 0, 0), ports_Bps=(450e9,) * 2 + (0.0,) + (450e9,) * 5, **NICS)
MESH = NodeDetail(islands=(0,) * 8, strands=strands(CUBE), **NICS)


@pytest.mark.parametrize(
    "found", [two_nodes(MESH, V100, 8), two_nodes(OFF, presets.accelerator("h100-sxm"), 7)], ids=["mesh", "one off"]
)
def test_every_route_runs_over_links_that_are_there(found: Cluster) -> None:
    there = set(links(found))
    assert len(there) == len(links(found))
    for a in range(found.size):
        for b in range(found.size):
            way = route(found, a, b)
            assert set(way) <= there
            ends = [f"d{a}", *(link.dst for link in way)]
            assert [link.src for link in way] == ends[:-1]
            assert ends[-1] == f"d{b}"
            assert reason(found, a, b)


@pytest.mark.parametrize(
    ("detail", "sockets"),
    [
        # Two pairs under switches of their own, SYS between them; NUMA not stated.
        (NodeDetail(paths=("LOC SYS PIX SYS", "SYS LOC SYS PIX", "PIX SYS LOC SYS", "SYS PIX SYS LOC")), (0, 1, 0, 1)),
        # NVLink says nothing of sockets, NUMA nodes do.
        (NodeDetail(numa=(0, 1), paths=("LOC NVL", "NVL LOC")), (0, 1)),
        (NodeDetail(paths=("LOC NVL", "NVL LOC")), ()),
        # A virtual machine with one NUMA node for all, yet SYS between two: the path is the file's word for it.
        (NodeDetail(numa=(0, 0), paths=("LOC SYS", "SYS LOC")), (0, 1)),
        # PHB joins what two NUMA nodes of one socket would part.
        (NodeDetail(numa=(0, 1), paths=("LOC PHB", "PHB LOC")), ()),
        (NodeDetail(numa=(1, 1, 0, 0)), (0, 0, 1, 1)),
        (NodeDetail(numa=(0, -1)), ()),
        (NodeDetail(), ()),
    ],
)
def test_sockets_are_told_by_paths_then_numa(detail, sockets) -> None:
    assert detail.sockets == sockets

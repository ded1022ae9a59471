"""What is to be built, against the links of clusters small enough to draw by hand."""

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.cluster.strategies import clusters
from tests.plan import handmade

from linkwise.cluster.routes import connection
from linkwise.core.errors import InputError
from linkwise.measure.lab.netns import steps
from linkwise.measure.lab.topology import Wiring, wiring


def station(found: Wiring, device: int):
    return next(one for one in found.stations if one.device == device)


def hops(found: Wiring, device: int) -> dict[str, tuple[str, str]]:
    return {hop.to: (hop.interface, hop.via) for hop in station(found, device).hops}


def test_two_nodes_behind_a_spine() -> None:
    # One device and one NIC of 50 GB/s a node, a leaf switch a node, the spine 2:1. By hand: device, NIC, leaf, core.
    found = wiring(handmade.cluster(nodes=2, devices=1, fabric="fat-tree", oversubscription=2.0), scale=1e-3)
    assert set(found.bridges) == {"n0.nic0", "leaf0", "core", "leaf1", "n1.nic0"}
    assert found.rates == {
        ends: rate
        for a, b, rate in [
            ("d0", "n0.nic0", 64e6), ("n0.nic0", "leaf0", 50e6), ("leaf0", "core", 25e6),
            ("leaf1", "core", 25e6), ("n1.nic0", "leaf1", 50e6), ("d1", "n1.nic0", 64e6),
        ]
        for ends in ((a, b), (b, a))
    }  # fmt: skip
    assert hops(found, 0) == {"10.0.0.2": ("nic0", "")}
    assert (station(found, 1).address, station(found, 1).interface, station(found, 1).node) == ("10.0.0.2", "nic0", 1)


def test_left_out_the_slowest_link_is_200_mbit() -> None:
    found = wiring(handmade.cluster(nodes=2, devices=1, fabric="fat-tree", oversubscription=2.0))
    assert found.scale == pytest.approx(25e6 / 25e9)  # 200 Mbit/s = 25 MB/s over the 25 GB/s of leaf0>core
    assert min(found.rates.values()) == pytest.approx(25e6)


def test_a_message_for_another_rail_is_relayed_by_the_neighbour_on_it() -> None:
    # Two nodes of two devices, device i on rail i. 0 to 3 goes over the island to 1, which is on the rail of 3.
    found = wiring(handmade.cluster(nodes=2, devices=2))
    assert hops(found, 0) == {
        "10.0.0.2": ("island0", ""), "10.0.0.3": ("nic0", ""), "10.0.0.4": ("island0", "10.0.0.2"),
    }  # fmt: skip
    assert hops(found, 1)["10.0.0.4"] == ("nic1", "")
    assert station(found, 0).interface == "nic0"  # and not the island, which comes first in the alphabet


def test_only_what_is_on_a_route_is_built() -> None:
    # Ranks on 0 and 3 alone: 1 and 2 relay, and have no rank.
    found = wiring(handmade.cluster(nodes=2, devices=2), (3, 0))
    assert [(s.device, s.rank) for s in found.stations] == [(0, 1), (1, -1), (2, -1), (3, 0)]
    assert [s.device for s in found.ranks] == [3, 0]
    pair = wiring(handmade.cluster(nodes=2, devices=2), (0, 2))
    assert set(pair.bridges) == {"n0.nic0", "rail0", "n1.nic0"}


@pytest.mark.parametrize(
    ("placement", "scale", "message"),
    [
        ((0,), None, "two or more"),
        ((0, 0), None, "at most once"),
        ((0, 4), None, r"0\.\.3"),
        ((0, 1), 0.0, "on every link"),
        ((0, 1), -1.0, "on every link"),
        ((0, 1), float("nan"), "on every link"),
        ((0, 1), float("inf"), "on every link"),
        ((0, 1), 100.0, "on every link"),
    ],
)
def test_what_cannot_be_built_is_refused(placement, scale, message) -> None:
    with pytest.raises(InputError, match=message):
        wiring(handmade.cluster(nodes=2, devices=2), placement, scale)


def test_too_many_ranks_are_refused() -> None:
    with pytest.raises(InputError, match="128 ranks.*at most 64.*--placement"):
        wiring(handmade.cluster(nodes=16, devices=8))


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(clusters(), st.data())
def test_packets_take_the_planner_s_way(cluster, data) -> None:
    """Following the stations' routes from any rank to any other crosses exactly the links of `connection`."""
    size = min(6, cluster.size)
    assume(size >= 2)
    chosen = tuple(data.draw(st.lists(st.integers(0, cluster.size - 1), min_size=2, max_size=size, unique=True)))
    try:
        found = wiring(cluster, chosen)
    except InputError as error:
        assert "on every link" in str(error)  # a cluster whose links are further apart than a kernel can shape
        return
    at = {one.address: one for one in found.stations}
    leads = {
        (end, interface): other
        for cable in found.cables
        for end, interface, other in (
            (cable.a, cable.a_interface, cable.b), (cable.b, cable.b_interface, cable.a),
        )
    }  # fmt: skip
    for source in found.ranks:
        for target in found.ranks:
            if source is target:
                continue
            here, stops, first = source, [source.name], []
            while here is not target:
                hop = next(hop for hop in here.hops if hop.to == target.address)
                first.append(leads[here.name, hop.interface])
                here = at[hop.via or hop.to]
                stops.append(here.name)
            way = connection(cluster, source.device, target.device)
            vertices = [way[0].src, *(link.dst for link in way)]
            assert stops == [v for v in vertices if v[0] == "d"]
            assert first == [way[0].dst, *(vertices[vertices.index(relay) + 1] for relay in stops[1:-1])]


def test_every_interface_is_named_once_and_shaped() -> None:
    found = wiring(handmade.cluster(nodes=2, devices=4, island=2, pcie_Bps=64e9))
    text = [(step.arguments, line) for step in steps(found) for line in step.text.splitlines()]
    shaped = [(arguments, line.split()[3]) for arguments, line in text if line.startswith("qdisc add")]
    assert len(shaped) == len(set(shaped)) == 2 * len(found.cables)
    assert all(len(name) <= 15 for _, name in shaped)  # IFNAMSIZ, with its zero

"""Links and routes. Expected vertices by hand from the usual machines' wiring."""

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cluster.strategies import clusters

from linkwise.cluster.links import device, devices, links
from linkwise.cluster.presets import shorthand
from linkwise.cluster.routes import reason, route
from linkwise.cluster.types import Cluster, Link, Tier
from linkwise.core.errors import InputError

ORDER = [Tier.DEVICE, Tier.ISLAND, Tier.NODE, Tier.CLUSTER]
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)


def stops(way: tuple[Link, ...]) -> list[str]:
    return [way[0].src, *(link.dst for link in way)]


def test_inside_an_island_through_the_switch() -> None:
    cluster = shorthand("8xh100-sxm")
    way = route(cluster, 0, 7)
    assert stops(way) == ["d0", "island0", "d7"]
    # 18 NVLinks: 450 GB/s by datasheet, 370.8 in NCCL's model; the two are kept apart.
    assert [(link.spec_Bps, round(link.effective_Bps)) for link in way] == [(450e9, 370_800_000_000)] * 2
    assert reason(cluster, 0, 7) == "both in island 0: nvlink4 switch"


def test_a_mesh_joins_each_pair_by_its_own_link() -> None:
    cluster = shorthand("8xmi300x")
    (link,) = route(cluster, 2, 5)
    assert (link.src, link.dst, link.spec_Bps) == ("d2", "d5", 64e9)  # one of seven xGMI links
    assert sum(1 for one in links(cluster) if one.kind == "xgmi") == 8 * 7


def test_without_a_scale_up_link_through_the_host() -> None:
    cluster = shorthand("2xrtx-4090")
    assert stops(route(cluster, 0, 1)) == ["d0", "n0.host", "d1"]
    assert {link.kind for link in route(cluster, 0, 1)} == {"pcie-host"}
    assert "host memory" in reason(cluster, 0, 1)
    bridged = shorthand("4xa40-bridged")
    assert stops(route(bridged, 0, 1)) == ["d0", "d1"]
    assert stops(route(bridged, 1, 2)) == ["d1", "n0.host", "d2"]


def test_between_nodes_on_rails() -> None:
    cluster = shorthand("2x4xh100-sxm")
    assert stops(route(cluster, 1, 5)) == ["d1", "n0.nic1", "rail1", "n1.nic1", "d5"]
    # Another rail: first over NVLink to the neighbour on that rail.
    assert stops(route(cluster, 0, 7)) == ["d0", "island0", "d3", "n0.nic3", "rail3", "n1.nic3", "d7"]
    assert "neighbour on rail 3" in reason(cluster, 0, 7)


def test_between_nodes_on_leaves() -> None:
    cluster = shorthand("2x8xl40s")
    way = route(cluster, 0, 15)
    assert stops(way) == ["d0", "n0.slot0", "n0.nic0", "leaf0", "core", "leaf1", "n1.nic1", "n1.slot7", "d15"]
    assert way[3].spec_Bps == 2 * 25e9  # two NICs of 200 Gb/s share the leaf's way up


def test_a_rack_needs_no_network() -> None:
    assert stops(route(shorthand("gb200-nvl72"), 0, 71)) == ["d0", "island0", "d71"]


def test_places() -> None:
    cluster = shorthand("2x8xh100-sxm")
    place = device(cluster, 13)
    assert (place.node, place.index, place.island, place.numa, place.nic) == (1, 5, 1, 1, 5)
    assert device(shorthand("8xrtx-4090"), 3).nic == -1
    with pytest.raises(InputError, match=r"expected 0\.\.15"):
        route(cluster, 0, 16)
    with pytest.raises(InputError):
        route(cluster, -1, 0)


def test_a_thousand_devices_are_cheap_and_computed_once() -> None:
    cluster = shorthand("128x8xh100-sxm")
    everything = links(cluster)
    # By hand: each device to its switch, host and NIC; each NIC to its rail; eight rails to the core. Both ways.
    assert len(everything) == 2 * (1024 * 3 + 1024 + 8)
    assert links(shorthand("128x8xh100-sxm")) is everything


@relaxed
@given(clusters())
def test_islands_and_nodes_partition_the_devices(cluster: Cluster) -> None:
    places = devices(cluster)
    assert [place.id for place in places] == list(range(cluster.size))
    by_node = {n: sum(1 for p in places if p.node == n) for n in range(cluster.nodes)}
    assert set(by_node.values()) == {cluster.devices_per_node}
    by_island = [sum(1 for p in places if p.island == i) for i in range(places[-1].island + 1)]
    # Only the last island may be part filled: a rack with trays missing.
    assert all(size == cluster.island_size for size in by_island[:-1]) and 0 < by_island[-1] <= cluster.island_size
    assert sum(by_island) == cluster.size
    assert all(0 <= p.numa < cluster.numa_per_node and -1 <= p.nic < cluster.nics_per_node for p in places)


@relaxed
@given(clusters(), st.data())
def test_a_route_is_a_chain_of_real_links(cluster: Cluster, data: st.DataObject) -> None:
    numbers = st.integers(0, cluster.size - 1)
    a, b = data.draw(numbers), data.draw(numbers)
    way = route(cluster, a, b)
    assert reason(cluster, a, b)
    if a == b:
        assert way == ()
        return
    assert (way[0].src, way[-1].dst) == (f"d{a}", f"d{b}")
    assert all(first.dst == second.src for first, second in pairwise(way))
    assert set(way) <= set(links(cluster))
    assert all(0 < link.effective_Bps <= link.spec_Bps for link in way)
    assert len({link.src for link in way}) == len(way)
    crosses = any(link.kind == "nic" for link in way)
    assert crosses == (cluster.tier((a, b)) is Tier.CLUSTER)


@relaxed
@given(clusters(max_nodes=3, max_per_node=4))
def test_every_wire_goes_both_ways_once(cluster: Cluster) -> None:
    ends = [(link.src, link.dst) for link in links(cluster)]
    assert len(ends) == len(set(ends))
    assert {(dst, src) for src, dst in ends} == set(ends)


@relaxed
@given(clusters(), st.data())
def test_a_larger_group_never_has_a_better_tier(cluster: Cluster, data: st.DataObject) -> None:
    members = data.draw(st.lists(st.integers(0, cluster.size - 1), min_size=1, unique=True))
    part = data.draw(st.lists(st.sampled_from(members), min_size=1, unique=True))
    assert ORDER.index(cluster.tier(tuple(part))) <= ORDER.index(cluster.tier(tuple(members)))

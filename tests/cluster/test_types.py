"""What a cluster says of its own shape and ports. Expected values by hand."""

import math

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cluster.strategies import clusters

from linkwise.cluster.links import links
from linkwise.cluster.presets import shorthand
from linkwise.cluster.types import Cluster, Tier
from linkwise.core.errors import InputError
from linkwise.core.schema import decode_json, encode_json


def changed(text: str, **fields: object) -> Cluster:
    return msgspec.structs.replace(shorthand(text), **fields)


def test_a_device_with_two_nics_has_both() -> None:
    # AWS p5en: eight H200, sixteen NICs of 200 Gb/s: 50 GB/s a device.
    cluster = changed("2x8xh200", nics_per_node=16, nic_Bps=25e9)
    assert cluster.port(Tier.CLUSTER) == ("nic", 50e9)
    # Four 400 Gb/s NICs a device exceed its PCIe 5 x16 link.
    assert changed("2x8xh200", nics_per_node=32).port(Tier.CLUSTER) == ("nic", 63e9)


def test_shared_nics_and_oversubscription_divide() -> None:
    assert changed("2x8xh200", nics_per_node=4).port(Tier.CLUSTER) == ("nic", 25e9)
    assert changed("2x8xh200", oversubscription=2.0).port(Tier.CLUSTER) == ("nic", 25e9)


def test_one_device_moves_nothing() -> None:
    cluster = shorthand("8xh100")
    assert cluster.tier((3,)) is Tier.DEVICE
    assert cluster.bandwidth(Tier.DEVICE) == math.inf


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"nodes": 0}, "nodes is 0"),
        ({"island_size": 32}, "1..16"),
        ({"island_size": 3}, "straddles"),
        ({"nics_per_node": 0, "nic_Bps": 0.0}, "without a network"),
        ({"fabric": "none"}, "without a network"),
        ({"nics_per_node": 0}, "both above 0, or both 0"),
        ({"oversubscription": math.nan}, "oversubscription is nan"),
        ({"nodes": 10**400}, "nodes is 1000"),
    ],
)
def test_impossible_clusters_are_refused(fields: dict[str, object], says: str) -> None:
    with pytest.raises(InputError) as caught:
        changed("2x8xh100", **fields)
    assert says in str(caught.value) and len(str(caught.value)) < 400


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(clusters())
def test_json_round_trip(cluster: Cluster) -> None:
    # A plan file embeds its cluster as JSON.
    assert decode_json(encode_json(cluster), Cluster, where="plan.json") == cluster


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(clusters(), st.data())
def test_a_smaller_group_on_an_island_never_has_a_wider_port(cluster: Cluster, data: st.DataObject) -> None:
    small, large = sorted(data.draw(st.tuples(st.integers(2, 32), st.integers(2, 32))))
    assert cluster.bandwidth(Tier.ISLAND, small) <= cluster.bandwidth(Tier.ISLAND, large)
    assert cluster.bandwidth(Tier.ISLAND, large) <= cluster.bandwidth(Tier.ISLAND)


def test_a_mesh_pair_has_its_one_link_however_many_peers_are_present():
    # MI300X: seven links of 64 GB/s, one to each of seven peers (ROCm topology; 448 / 7)
    for text in ("2xmi300x", "4xmi300x", "8xmi300x"):
        cluster = shorthand(text)
        assert cluster.port(Tier.ISLAND, 2)[1] == pytest.approx(64e9)
        assert next(x for x in links(cluster) if (x.src, x.dst) == ("d0", "d1")).spec_Bps == pytest.approx(64e9)
    assert shorthand("8xmi300x").port(Tier.ISLAND, 8)[1] == pytest.approx(448e9)
    assert shorthand("4xmi300x").port(Tier.ISLAND)[1] == pytest.approx(3 * 64e9)

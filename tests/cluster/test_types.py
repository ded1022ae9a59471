"""What a cluster says of its own shape and ports. Expected values by hand."""

import math

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cluster.strategies import clusters

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

"""Handovers between pools, on one cluster or on two. Expected values are hand calculations."""

import importlib.util
from pathlib import Path

import pytest

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.plan.handoff import HandoffOptions, handoff
from linkwise.plan.handoff_pools import Side, handover

_spec = importlib.util.spec_from_file_location("handmade", Path(__file__).with_name("handmade.py"))
handmade = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(handmade)
HandEngine, cluster, kv, model = handmade.HandEngine, handmade.cluster, handmade.kv, handmade.model

TP4 = Layout(tp=4)
# tests/plan/test_handoff.py by hand: each of four ranks sends 671,088,640 B of an 8,192 token prompt, in 81,920
# messages with 2 x 82 B + 16 B around each.
PAYLOAD, WIRE = 671_088_640, 671_088_640 + 81_920 * (2 * 82 + 16)


def moved(prefill: Side, decode: Side, *, shared: bool = False, heads=None):
    return handover(
        model(80, heads or kv()), prefill, decode, shared=shared, prompt_tokens=8192, engine=HandEngine(),
        options=HandoffOptions(prefill_s=0.4),
    )  # fmt: skip


def one(**changes):
    return cluster(**({"nodes": 1, "fabric": "none"} | changes))


def test_two_clusters_are_joined_by_the_slower_sides_nics() -> None:
    # 50 GB/s on one side, 25 GB/s on the other: the same bytes cross both, the slower takes twice as long.
    slow, fast = one(nic_Bps=25e9), one()
    into = moved(Side(fast, TP4), Side(slow, TP4))
    assert into.transfer_s == pytest.approx(WIRE / 25e9)
    assert into.limiting == "network->decode n0.nic0"
    out = moved(Side(slow, TP4), Side(fast, TP4))
    assert out.transfer_s == pytest.approx(WIRE / 25e9)
    assert out.limiting == "prefill n0.nic0->network"


def test_two_machines_alike_are_not_joined_by_their_nvlink() -> None:
    apart = moved(Side(one(), TP4), Side(one(), TP4))
    assert apart.transfer_s == pytest.approx(WIRE / 50e9)
    # On one machine of eight the second group lies behind the first, in the same island of 450 GB/s.
    together = moved(Side(one(), TP4), Side(one(), TP4), shared=True)
    assert together.transfer_s == pytest.approx(PAYLOAD / 450e9)


def test_a_slot_of_two_nics_is_one_way_out() -> None:
    """Two NICs of 50 GB/s on a slot of 64 GB/s: half of the bytes on each, all of the payload in the slot."""
    found = moved(Side(one(nics=16), TP4), Side(one(nics=16), TP4))
    links = {link.link: link for link in found.links}
    assert links["prefill n0.nic0->network"].payload_bytes == PAYLOAD / 2
    assert links["prefill d0->prefill n0.slot0"].payload_bytes == PAYLOAD
    assert found.transfer_s == pytest.approx(PAYLOAD / 64e9)


def test_pools_of_one_cluster_meet_on_the_longest_way() -> None:
    """Nodes of eight, groups of four: one group of each pool fits an island where one node is all there is; with three
    groups the last lies on the second node."""
    two = cluster(nodes=2)
    assert moved(Side(two, TP4, 2), Side(two, TP4, 2), shared=True).transfer_s == pytest.approx(WIRE / 50e9)
    assert moved(Side(two, TP4, 1), Side(two, TP4, 3), shared=True).transfer_s == pytest.approx(WIRE / 50e9)
    # What one pair takes is what the handoff of two groups says.
    pair = handoff(
        model(80, kv()), two, prompt_tokens=8192, rate_per_s=1.0, prefill_tp=4, decode_tp=4, engine=HandEngine(),
        options=HandoffOptions(prefill_s=0.4),
    )  # fmt: skip
    assert moved(Side(two, TP4), Side(two, TP4), shared=True) == pair


def test_one_attention_replica_receives() -> None:
    """A decode group of two attention replicas of four ranks takes what one group of four takes, MLA or not."""
    wide = Layout(tp=4, dp_attn=2)
    for heads in (None, handmade.LATENT):
        narrow = moved(Side(one(), TP4), Side(one(), TP4), heads=heads)
        found = moved(Side(one(), TP4), Side(one(), wide), heads=heads)
        assert (found.transfer_s, found.crossing_bytes) == (narrow.transfer_s, narrow.crossing_bytes)
    # Stages lie dp_attn x tp devices apart: with pp 2, tp 2 and dp_attn 2 the second one's ranks are 4 and 5.
    staged = moved(Side(one(), Layout(tp=2, pp=2, dp_attn=2)), Side(one(), TP4))
    assert [rank.device for rank in staged.ranks if rank.side == "prefill"] == [0, 1, 4, 5]


def test_what_cannot_be_is_refused() -> None:
    bare = one(nics=0, nic_Bps=0.0)
    with pytest.raises(InputError, match="decode side: hand has no NICs") as refused:
        moved(Side(one(), TP4), Side(bare, TP4))
    assert "nics" in (refused.value.hint or "")
    with pytest.raises(InputError, match="at most the 8 devices"):
        moved(Side(one(), TP4, 2), Side(one(), TP4, 1), shared=True)
    with pytest.raises(InputError, match="no cp or dcp"):
        moved(Side(one(), Layout(tp=4, dcp=2)), Side(one(), TP4))

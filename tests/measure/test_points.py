"""From calls made by hand to a calibration: tiers, kinds, and the one link that is slow."""

import pytest
from msgspec.structs import replace
from tests.plan.handmade import cluster

from linkwise.cluster.links import links
from linkwise.cluster.presets import shorthand
from linkwise.cluster.routes import route
from linkwise.core.errors import InputError
from linkwise.measure.calibration import Sample
from linkwise.measure.points import Rate, calibrate, link_fits

SIZES = [2**e for e in range(10, 28, 3)]


def ring(kind: str, ranks: int, nodes: int, tier: str, S: int, *, base: float, step: float, Bps: float) -> Sample:
    """A ring's time by hand: all-reduce 2(n-1) steps and 2S(n-1)/n bytes, all-gather half of both."""
    both = 2 if kind == "all_reduce" else 1
    seconds = base + step * both * (ranks - 1) + both * S * (ranks - 1) / ranks / Bps
    return Sample(kind=kind, group=tier, tier=tier, ranks=ranks, nodes=nodes, S_bytes=S, seconds=seconds)


def test_both_tiers_of_two_nodes_of_four() -> None:
    """Islands of 450 GB/s that give 80 %; four NICs a node of 50 GB/s that give 60 %: a ring over both nodes pools
    them, so its bus gets 4 x 50 x 0.6 = 120 GB/s (less than the island's 360)."""
    kinds = ("all_reduce", "all_gather")
    inside = [ring(k, n, 1, "island", S, base=8e-6, step=1e-6, Bps=360e9) for k in kinds for n in (2, 4) for S in SIZES]
    across = [ring(k, 8, 2, "cluster", S, base=30e-6, step=3e-6, Bps=120e9) for k in kinds for S in SIZES]
    found = calibrate(cluster(2, 4), [*across, *inside], library="nccl 2.27", source="by hand", ranks=8)
    assert list(found.tiers) == ["island", "cluster"]
    island, net = found.tiers["island"], found.tiers["cluster"]
    assert (island.link, net.link) == ("nvlink", "nic")
    assert island.base_us.value == pytest.approx(8, rel=1e-4)
    assert island.step_us.value == pytest.approx(1, rel=1e-4)
    assert island.efficiency.value == pytest.approx(0.8, rel=1e-4)
    assert net.efficiency.value == pytest.approx(0.6, rel=1e-4)
    assert net.base_us.value == pytest.approx(30, rel=1e-3)
    assert set(island.kinds) == {"all_reduce", "all_gather"}
    assert found.links == {}
    assert len(found.samples) == 36


def test_kinds_that_a_library_does_worse_keep_their_own_figures() -> None:
    fast = [ring("all_reduce", 4, 1, "island", S, base=8e-6, step=1e-6, Bps=360e9) for S in SIZES]
    slow = [ring("all_gather", 4, 1, "island", S, base=20e-6, step=0, Bps=90e9) for S in SIZES]
    tier = calibrate(cluster(1, 4), fast + slow, library="gloo", source="by hand", ranks=4).tiers["island"]
    assert tier.kinds["all_reduce"].efficiency.value == pytest.approx(0.8, rel=1e-4)
    assert tier.kinds["all_gather"].efficiency.value == pytest.approx(0.2, rel=1e-4)
    assert tier.kinds["all_gather"].base_us.value == pytest.approx(20, rel=1e-3)
    assert tier.best.value == pytest.approx(0.8, rel=1e-4), "what the links give is what the best kind reaches"


def test_calls_that_are_waited_for_cost_a_launch() -> None:
    many = [ring("all_reduce", 4, 1, "island", S, base=8e-6, step=1e-6, Bps=360e9) for S in SIZES]
    waited = [replace(s, mode="single", seconds=s.seconds + 20e-6) for s in many[:3]]
    found = calibrate(cluster(1, 4), many + waited, library="nccl", source="by hand", ranks=4)
    assert found.tiers["island"].launch_us == pytest.approx(20)
    assert found.tiers["island"].points == 6, "calls that were waited for are no part of the line"


def test_a_rate_above_the_datasheet_is_said() -> None:
    wrong = [ring("all_reduce", 4, 1, "island", S, base=8e-6, step=1e-6, Bps=900e9) for S in SIZES]
    found = calibrate(cluster(1, 4), wrong, library="nccl", source="by hand", ranks=4)
    assert found.tiers["island"].best.value == 1.0
    assert any("2 of the spec rate" in note for note in found.notes)


def test_too_few_calls_are_refused() -> None:
    with pytest.raises(InputError, match="at least 3"):
        calibrate(cluster(1, 4), [], library="nccl", source="by hand", ranks=4)


def pairs(c, slow: dict[str, float]) -> dict[tuple[int, int], Rate]:
    """What every pair reaches when it is as fast as its slowest link, by hand-set rates of slow links."""
    found = {}
    for a in range(c.size):
        for b in range(c.size):
            if a != b:
                way = route(c, a, b)
                found[a, b] = Rate(min(slow.get(f"{x.src}>{x.dst}", x.effective_Bps) for x in way), 5e-6)
    return found


def test_the_slow_link_of_an_island_is_found_and_only_that() -> None:
    c = cluster(1, 4)
    odd, notes = link_fits(c, pairs(c, {"d1>island0": 225e9}))
    assert set(odd) == {"d1>island0"}
    assert odd["d1>island0"].Bps.value == pytest.approx(225e9)
    assert odd["d1>island0"].usual_Bps == 450e9
    assert notes == ()


def test_a_slow_nic_is_found_in_one_direction() -> None:
    """Only pairs of device 2 cross its NIC, so the port of the device and of the rail cannot be told apart from it."""
    c = cluster(2, 4)
    odd, notes = link_fits(c, pairs(c, {"n0.nic2>rail2": 10e9}))
    assert set(odd) == {"n0.nic2>rail2"}
    assert odd["n0.nic2>rail2"].Bps.value == pytest.approx(10e9)
    assert notes == ()


def test_two_ranks_do_not_say_which_link_is_slow() -> None:
    c = cluster(1, 2)
    odd, notes = link_fits(c, {(0, 1): Rate(100e9, 5e-6), (1, 0): Rate(400e9, 5e-6)})
    assert odd == {}
    assert len(notes) == 2
    assert all("do not decide" in note for note in notes)


def test_healthy_links_are_all_alike() -> None:
    for c in (cluster(1, 8), cluster(2, 4), cluster(4, 2, nics=1, fabric="fat-tree")):
        assert link_fits(c, pairs(c, {})) == ({}, ())
        assert links(c)


@pytest.mark.parametrize("busbw", [200e9, 320e9])
def test_two_ordinary_nodes_of_eight_are_bound_by_their_nics(busbw: float) -> None:
    """Eight NICs of 50 GB/s make 400, an island gives 450 by the datasheet and 360 by the catalogue: at the rates that
    were measured the NICs are the slowest, at a share of busbw / 400."""
    calls = [ring("all_reduce", 16, 2, "cluster", S, base=30e-6, step=1e-6, Bps=busbw) for S in SIZES]
    found = calibrate(shorthand("2x8xh100-sxm"), calls, library="nccl", source="by hand", ranks=16)
    assert list(found.tiers) == ["cluster"]
    assert found.tiers["cluster"].efficiency.value == pytest.approx(busbw / 400e9, rel=1e-3)
    assert found.tiers["cluster"].base_us.value == pytest.approx(60, rel=1e-3), "30 us + 30 steps of 1 us"


def test_calls_that_the_island_bounds_are_no_measure_of_the_nics_and_the_refusal_says_so() -> None:
    """Islands that gave 180 of 450 GB/s, a ring over NICs of 400 that gave the same: no word of the NICs."""
    c = shorthand("2x8xh100-sxm")
    inside = [ring("all_reduce", 8, 1, "island", S, base=8e-6, step=0, Bps=180e9) for S in SIZES]
    across = [ring("all_reduce", 16, 2, "cluster", S, base=30e-6, step=0, Bps=179e9) for S in SIZES]
    found = calibrate(c, inside + across, library="nccl", source="by hand", ranks=16)
    assert list(found.tiers) == ["island"]
    words = "cluster: links other than nic bound these calls; its figures stay as they were"
    assert words in found.notes
    # Alone: 445 GB/s over NICs of 800, which is what an island's 450 let through.
    fast = [ring("all_reduce", 16, 2, "cluster", S, base=30e-6, step=0, Bps=445e9) for S in SIZES]
    with pytest.raises(InputError) as caught:
        calibrate(replace(c, nic_Bps=100e9), fast, library="nccl", source="by hand", ranks=16)
    assert words in str(caught.value)

"""Which calls a sweep makes: tiers, sizes, pairs and groups at once, counted by hand."""

import pytest
from tests.plan.handmade import cluster

import linkwise
from linkwise.core.errors import InputError
from linkwise.dist.calls import KINDS
from linkwise.dist.groups import Named
from linkwise.measure.laid import machine_notes, on_cluster, on_plan, usual_ranks
from linkwise.measure.points import Rate
from linkwise.measure.rehearse import callers, ops_of
from linkwise.measure.sweep import Job, collective_jobs, pair_jobs, rates, samples, sizes, tier_groups


def test_sizes_in_factors_of_four() -> None:
    assert sizes("1KiB:64KiB") == (1024, 4096, 16384, 65536)
    assert sizes("1KiB:10KiB") == (1024, 4096, 10240), "the last one is measured too"
    assert sizes("1MiB") == (2**20,)


@pytest.mark.parametrize("text", ["", "4", "4KiB:1KiB", "0B:1KiB", "1KiB:1TiB", "a:b", "1KiB:"])
def test_sizes_that_cannot_be(text: str) -> None:
    with pytest.raises(InputError, match="--sizes"):
        sizes(text)


def test_every_tier_is_exercised() -> None:
    """Two nodes of four, islands of two: pairs in islands, nodes over PCIe, all between nodes, one of each node."""
    c = cluster(2, 4, island=2)
    assert tier_groups(c, tuple(range(8))) == [
        ("island", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("node", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("all", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("one per node", ((0, 4),)),
    ]
    # Ranks on devices 0, 4, 1, 5: rank 2 is beside rank 0.
    assert tier_groups(c, (0, 4, 1, 5)) == [
        ("island", ((0, 2), (1, 3))),
        ("all", ((0, 1, 2, 3),)),
        ("one per node", ((0, 1),)),
    ]
    assert tier_groups(cluster(1, 2), (0, 1)) == [("island", ((0, 1),))]


def test_jobs_are_every_kind_and_size_alone_then_all_groups_at_once() -> None:
    c = cluster(1, 4, island=2)
    devices = tuple(range(4))
    found = collective_jobs(c, devices, tier_groups(c, devices), (1024, 4096), single=False)
    # Islands: one of the two alike, 7 kinds x 2 sizes; both at once at the largest size; the node: 7 x 2.
    assert len(KINDS) == 7
    assert len(found) == 7 * 2 + 7 + 7 * 2
    together = [job for job in found if len(job.teams) == 2]
    assert {job.S_bytes for job in together} == {4096}
    assert {job.kind for job in together} == set(KINDS)
    assert {job.tier for job in found} == {"island", "node"}
    more = collective_jobs(c, devices, tier_groups(c, devices), (1024, 2**20), single=True, kinds=("all_reduce",))
    assert [(j.S_bytes, j.mode) for j in more if j.label == "node"] == [
        (1024, "back_to_back"), (2**20, "back_to_back"), (1024, "single"),
    ]  # fmt: skip


def test_small_calls_are_repeated_large_ones_are_not() -> None:
    assert [Job("all", "node", "all_reduce", ((0, 1),), S).calls for S in (1024, 2**20, 2**22, 2**30)] == [20, 4, 1, 1]
    assert Job("all", "node", "all_reduce", ((0, 1),), 1024, "single").calls == 1


def test_pairs_of_few_ranks_all_and_of_many_the_next() -> None:
    assert len(pair_jobs(cluster(1, 4), tuple(range(4)))) == 4 * 3 * 2
    many = {job.teams[0] for job in pair_jobs(cluster(4, 8), tuple(range(32)))}
    assert len(many) == 32 * 3
    assert {(0, 1), (0, 2), (0, 8), (31, 0)} <= many


def test_times_become_samples_and_rates() -> None:
    c, devices = cluster(1, 4), (2, 3)
    jobs = [
        Job("island", "island", "all_reduce", ((0, 1),), 1024),
        Job("pair", "island", "send_recv", ((0, 1),), 4 * 2**10),
        Job("pair", "island", "send_recv", ((0, 1),), 4 * 2**20),
    ]
    times = [[5e-6, 4e-6, 6e-6, 4e-6, 9e-6], [3e-6] * 5, [40e-6, 42e-6, 41e-6, 44e-6, 41e-6]]
    (one,) = samples(c, devices, jobs, times)
    assert (one.seconds, one.tier, one.ranks, one.nodes) == (4e-6, "island", 2, 1)
    assert one.spread_s == pytest.approx(1e-6), "the median repeat took 5 us"
    ((pair, rate),) = rates(devices, jobs, times).items()
    assert pair == (2, 3)
    assert isinstance(rate, Rate)
    assert (rate.Bps, rate.small_s) == (pytest.approx(2**22 / 40e-6), 3e-6)


def test_ranks_lie_on_the_plans_devices() -> None:
    plan = linkwise.plan("llama-3.1-8b", on="2x2xh100-sxm", tp=2, pp=2, isl=1000, osl=100)
    laid = on_plan(plan, 4)
    assert laid.devices == plan.rank_grid[0]
    assert dict(laid.groups)["pp"] == ((0, 2), (1, 3))
    assert dict(laid.groups)["tp/moe_tp/stage"] == ((0, 1), (2, 3)), "the same groups under three names"
    with pytest.raises(InputError, match="3 ranks; expected pp2 x tp2 takes 4 a replica, 1..1 replicas"):
        on_plan(plan, 3)
    with pytest.raises(InputError, match="expected 2 of 2"):
        on_plan(plan, 4, cluster(1, 4))
    assert usual_ranks(None, plan, 0) == 4
    # Two ranks may be on machines other than the file says; what is measured is then said to be something else.
    assert machine_notes(laid, ("a", "a", "b", "b")) == ()
    assert "4 ranks ran on 1 machine," in machine_notes(laid, ("a",) * 4)[0]


def test_ranks_that_a_cluster_has() -> None:
    with pytest.raises(InputError, match="1 ranks; expected 2..4"):
        on_cluster(cluster(1, 4), 1)
    with pytest.raises(InputError, match="5 ranks; expected 2..4"):
        on_cluster(cluster(1, 4), 5)
    assert usual_ranks(cluster(1, 8), None, 0) == 2
    assert usual_ranks(cluster(1, 8), None, 4) == 4


def test_a_plans_ops_are_called_by_the_groups_of_their_stage() -> None:
    plan = linkwise.plan("llama-3.1-8b", on="2x2xh100-sxm", tp=2, pp=2, isl=1000, osl=100)
    by_role = {(op.role, op.stage): op for op in ops_of(plan, "decode")}
    assert callers(plan, by_role["attn.out", 0], 1) == (Named("tp", (0, 1)),)
    assert callers(plan, by_role["attn.out", 1], 1) == (Named("tp", (2, 3)),)
    assert callers(plan, by_role["pp.hidden", 0], 1) == (Named("pp", (0, 2)), Named("pp", (1, 3)))
    assert callers(plan, by_role["attn.out", 0], 2) == (Named("tp", (0, 1)), Named("tp", (4, 5)))
    with pytest.raises(InputError, match="--step"):
        ops_of(plan, "sleep")
    alone = linkwise.plan("llama-3.1-8b", on="1xh100-sxm", isl=1000, osl=100)
    with pytest.raises(InputError, match="communicates nothing"):
        ops_of(alone, "decode")

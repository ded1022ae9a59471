"""Collective times. Expected values: hand calculation from constants made for the test, or nccl-tests' conventions."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkwise.cluster.presets import accelerator, constants, machines
from linkwise.cluster.read import load as cluster
from linkwise.cluster.types import Cluster, Tier
from linkwise.core.errors import InputError
from linkwise.core.quantity import Quantity, value_of
from linkwise.engine.base import Convention
from linkwise.plan.collective_time import call_seconds, collective_time, estimate
from linkwise.plan.collective_ways import IMPLEMENTATIONS, Group, group_of, on_nic, ways
from linkwise.plan.collectives import wire
from linkwise.plan.time import Span, op_seconds
from linkwise.plan.types import Op

MiB = 2**20


def with_figures(on: str, latency: dict[str, tuple[float, float]], share: dict[str, float] | None = None) -> Cluster:
    """A cluster with these latencies and protocol shares alone; its links reach their datasheet's rate."""
    where = cluster(on)
    kinds = dict.fromkeys(("nvlink3", "nvlink4", "nvlink5", "nic", "pcie", "xgmi"), 1.0)
    known = msgspec.structs.replace(where.constants, latency_us=latency, link_efficiency=kinds | (share or {}))
    return msgspec.structs.replace(where, constants=known)


def test_a_ring_is_latency_by_step_and_the_bus_bytes_of_nccl_tests() -> None:
    where = with_figures("8xh100-sxm", {"nccl.nvlink4": (5.0, 2.0)})
    for kind, steps, bus in (("all_reduce", 14, 2 * 7 / 8), ("all_gather", 7, 7 / 8), ("reduce_scatter", 7, 7 / 8)):
        at = collective_time(kind, MiB, 8, 1, where)
        assert at.seconds == pytest.approx((5 + 2 * steps) * 1e-6 + MiB * bus / 450e9, rel=1e-12)
        assert (at.algorithm, at.protocol) == ("ring", "LL")


def test_the_fastest_protocol_is_taken_size_by_size() -> None:
    # LL: 10 us and a quarter of 450 GB/s; Simple: 40 us and all of it. With 2 ranks S bytes are on the bus:
    # equal at S/450e9 * 3 = 30 us, S = 4.5 MB.
    where = with_figures("2xh100-sxm", {"nccl.nvlink4": (10, 0), "nccl-simple.nvlink4": (40, 0)}, {"nccl": 0.25})
    small, large = (collective_time("all_reduce", size, 2, 1, where) for size in (4.4e6, 4.6e6))
    assert (small.protocol, large.protocol) == ("LL", "Simple")
    assert small.seconds == pytest.approx(10e-6 + 4.4e6 / (450e9 / 4))
    assert large.seconds == pytest.approx(40e-6 + 4.6e6 / 450e9)
    both = collective_time("all_reduce", np.array([4.4e6, 4.6e6]), 2, 1, where)
    assert both.protocol == "by size"
    assert list(both.seconds) == [small.seconds, large.seconds]


def test_nvls_moves_s_and_one_nth_each_way() -> None:
    where = with_figures("8xh100-sxm", {"nccl.nvlink4": (0, 0), "nccl-nvls.nvlink4": (50, 0)}, {"nccl-nvls": 0.8})
    at = collective_time("all_reduce", 2**30, 8, 1, where)
    assert at.algorithm == "nvls"
    assert at.seconds == pytest.approx(50e-6 + 2**30 * (1 + 1 / 8) / (450e9 * 0.8))
    # below: a ring of 2 moves S, NVLS 1.5 S
    assert collective_time("all_reduce", 2**30, 2, 1, where).algorithm == "ring"


def test_nvls_is_not_taken_over_links_that_have_no_such_switch() -> None:
    for on in ("8xa100-80gb-sxm", "8xmi300x", "8xl40s"):
        where = cluster(on)
        group = group_of(where, 8, 1)
        assert all(way.algorithm != "nvls" for way in ways("all_reduce", group, where, "nccl"))


def test_one_shot_reads_every_peer_and_two_shot_a_ring() -> None:
    where = with_figures("4xh100-sxm", {"custom.nvlink4": (7, 0), "custom-two-shot.nvlink4": (15, 0)})
    one, two = (collective_time("all_reduce", MiB, 4, 1, where, name) for name in ("custom", "custom-two-shot"))
    assert one.seconds == pytest.approx(7e-6 + 3 * MiB / 450e9)
    assert two.seconds == pytest.approx(15e-6 + 1.5 * MiB / 450e9)


def test_a_tree_puts_s_on_the_nics_of_two_nodes_and_2s_on_those_of_four() -> None:
    # one device a node, one NIC of 50 GB/s; a ring of 2 moves S, of 4 moves 1.5 S: the tree wins by its fewer steps
    latency = {"nccl.nic": (6.0, 10.0), "nccl.nvlink4": (6.0, 1.0)}
    two, four = (with_figures(f"{n}x1xh100-sxm", latency) for n in (2, 4))
    assert collective_time("all_reduce", 1000, 2, 2, two).seconds == pytest.approx(26e-6 + 1000 / 50e9)
    at = collective_time("all_reduce", 1000, 4, 4, four)
    assert at.algorithm == "tree"
    assert at.seconds == pytest.approx(46e-6 + 2 * 1000 / 50e9)  # 2 log2(4) = 4 steps; the ring has 6
    large = collective_time("all_reduce", 1e9, 4, 4, four)
    assert large.algorithm == "ring"
    assert large.seconds == pytest.approx(66e-6 + 1.5e9 / 50e9)


def test_a_tree_over_nodes_takes_slow_steps_between_and_fast_ones_inside() -> None:
    where = with_figures("4x8xh100-sxm", {"nccl.nic": (6.0, 10.0), "nccl.nvlink4": (5.0, 1.0)})
    at = collective_time("all_reduce", 8, 32, 4, where)
    # chain of 7 in each node, up and down: 14 us; 2 log2(4) = 4 steps of 10 us between nodes
    assert at.seconds == pytest.approx((6 + 14 + 40) * 1e-6, rel=1e-3)


def test_an_exchange_crosses_the_nics_only_with_what_leaves_the_node() -> None:
    where = with_figures("2x8xh100-sxm", {"nccl-p2p.nic": (6, 1), "nccl-p2p.nvlink4": (6, 0.5)})
    at = collective_time("all_to_all", 160e6, 16, 2, where)
    # 8 of 16 shares leave over a NIC of 50 GB/s; 7 peers inside, 8 outside
    assert at.seconds == pytest.approx((6 + 7 * 0.5 + 8) * 1e-6 + 80e6 / 50e9)


def test_an_eager_call_is_never_done_before_the_host_has_launched_it() -> None:
    where = with_figures("8xh100-sxm", {"nccl.nvlink4": (10, 0), "eager.island": (40, 0)})
    small, large = (collective_time("all_reduce", size, 8, 1, where, mode="eager") for size in (8, 64 * MiB))
    assert small.seconds == pytest.approx(40e-6, rel=1e-12)
    assert large.seconds == collective_time("all_reduce", 64 * MiB, 8, 1, where).seconds > 40e-6


def test_what_was_given_for_this_cluster_stands_before_the_catalogue() -> None:
    where = cluster("8xh100-sxm")
    table = where.constants.latency_us | {"nccl.island": (3.0, 0.5)}
    given_here = msgspec.structs.replace(
        where, constants=msgspec.structs.replace(where.constants, latency_us=table, label="measured")
    )
    at = collective_time("all_reduce", MiB, 8, 1, given_here)
    assert at.seconds == pytest.approx((3 + 14 * 0.5) * 1e-6 + MiB * 1.75 / where.bandwidth(Tier.ISLAND))
    assert not at.extrapolated
    assert "measured" in at.source
    # the same figure as the catalogue's, but from another source, was given too
    usual = where.constants
    stated = msgspec.structs.replace(usual, sources=usual.sources | {"latency_us.nccl.island": "given in mine.yaml"})
    (way,) = ways("all_reduce", group_of(where, 8, 1), msgspec.structs.replace(where, constants=stated), "nccl")
    assert way.latency_us == pytest.approx(usual.latency_us["nccl.island"][0] + 14 * usual.latency_us["nccl.island"][1])


def test_a_library_of_the_calibration_needs_no_line_here() -> None:
    where = with_figures("2x1xh100-sxm", {"gloo.cluster": (100.0, 10.0)})
    at = collective_time("all_reduce", 1e6, 2, 2, where, "gloo")
    assert at.seconds == pytest.approx((100 + 2 * 10) * 1e-6 + 1e6 / 50e9)


@pytest.mark.parametrize(
    ("on", "ranks", "nodes", "implementation", "beyond"),
    [
        ("8xh100-sxm", 8, 1, "nccl", False),
        ("8xh100-sxm", 2, 1, "nccl", True),  # fewest measured: 4
        ("8xa100-80gb-sxm", 8, 1, "nccl", True),  # NVLink 3 alone was never measured
        ("8xgaudi3", 8, 1, "nccl", True),
        ("2x8xh200-sxm", 16, 2, "nccl", False),
        ("64x8xh200-sxm", 512, 64, "nccl", True),
        ("8xb300-sxm", 6, 1, "custom", False),
        ("8xb300-sxm", 8, 1, "custom", True),
    ],
)
def test_what_was_never_measured_is_labelled(
    on: str, ranks: int, nodes: int, implementation: str, beyond: bool
) -> None:
    assert collective_time("all_reduce", MiB, ranks, nodes, cluster(on), implementation).extrapolated is beyond


def test_classes_of_nics_are_kept_apart() -> None:
    plain = cluster("2x8xh100-sxm")
    times = [collective_time("all_reduce", 8, 16, 2, on_nic(plain, k)).seconds for k in ("nic", "efa2", "efa1")]
    assert times[0] < times[1] < times[2]
    assert times[0] == collective_time("all_reduce", 8, 16, 2, plain).seconds
    # a class that was not measured takes its relative's figures, and says so
    third = collective_time("all_reduce", 8, 16, 2, on_nic(plain, "efa3"))
    assert (third.seconds, third.extrapolated) == (times[1], True)
    assert not collective_time("all_reduce", 8, 16, 2, on_nic(plain, "efa2")).extrapolated
    with pytest.raises(InputError, match="token-ring"):
        on_nic(plain, "token-ring")
    with pytest.raises(InputError, match="nvlink3"):
        on_nic(plain, "nvlink3")


def test_one_rank_moves_nothing() -> None:
    assert collective_time("all_reduce", MiB, 1, 1, cluster("8xh100-sxm")).seconds == 0
    assert collective_time("all_reduce", MiB, 1, 1, cluster("8xh100-sxm"), mode="eager").seconds == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("all_reduce", 8, 8, 1, "ncl"), "'ncl' has no all_reduce; expected one of nccl"),
        (("all_gather", 8, 8, 1, "custom"), "'custom' has no all_gather"),
        (("all_sum", 8, 8, 1, "nccl"), "unknown collective 'all_sum'"),
        (("all_reduce", 8, 9, 1, "nccl"), "9 ranks on 1 nodes"),
        (("all_reduce", 8, 8, 3, "nccl"), "8 ranks on 3 nodes"),
        (("all_reduce", 8, 8, 0, "nccl"), "8 ranks on 0 nodes"),
        (("all_reduce", 8, 0, 1, "nccl"), "0 ranks on 1 nodes"),
    ],
)
def test_refusals(arguments: tuple[str, int, int, int, str], says: str) -> None:
    kind, size, ranks, nodes, implementation = arguments
    with pytest.raises(InputError) as caught:
        collective_time(kind, size, ranks, nodes, cluster("8xh100-sxm"), implementation)
    assert says in str(caught.value)


def test_a_mode_is_graph_or_eager() -> None:
    with pytest.raises(InputError, match="graph or eager"):
        collective_time("all_reduce", 8, 8, 1, cluster("8xh100-sxm"), mode="lazy")  # type: ignore[arg-type]


def test_a_kernel_that_was_measured_nowhere_near_is_refused() -> None:
    with pytest.raises(InputError, match=r"multimem\.node"):
        collective_time("all_reduce", 8, 8, 1, cluster("8xl40s"), "multimem")


def test_every_line_has_a_figure_and_every_figure_a_line() -> None:
    known = {line.key for lines in IMPLEMENTATIONS.values() for line in lines}
    keys = {key.rpartition(".")[0] for key in constants().latency_us}
    assert known <= keys
    floors = {"eager"} | {f"{name}-eager" for name in IMPLEMENTATIONS}
    assert keys <= known | floors


@settings(deadline=None, max_examples=50)
@given(
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]),
    st.sampled_from([("8xh100-sxm", 8, 1), ("4x8xh200-sxm", 32, 4), ("2x4xl40s", 8, 2), ("gb200-nvl72", 72, 18)]),
    st.lists(st.integers(1, 2**34), min_size=2, max_size=5),
)
def test_recorded_equals_float_equals_array(kind: str, where: tuple[str, int, int], sizes: list[int]) -> None:
    on, ranks, nodes = where
    what = cluster(on)
    found = ways(kind, group_of(what, ranks, nodes), what, "nccl")
    arrays = call_seconds(found, wire(kind, np.array(sizes), ranks).sent, "x")
    for i, size in enumerate(sizes):
        bare = call_seconds(found, wire(kind, size, ranks).sent, "x")
        kept = call_seconds(found, wire(kind, Quantity.given("S", size, "B"), ranks).sent, "x", Quantity.given)
        assert value_of(kept) == bare == estimate(found, wire(kind, size, ranks).sent).seconds
        assert arrays[i] == pytest.approx(bare, rel=1e-12)


@settings(deadline=None, max_examples=50)
@given(
    st.sampled_from(["all_reduce", "all_gather", "all_to_all"]), st.integers(0, 2**33), st.integers(1, 2**20),
    st.sampled_from(["8xh100-sxm", "8xb200-sxm", "8xl40s", "8xmi300x", "8xa100-80gb-sxm"]),
)  # fmt: skip
def test_more_bytes_never_take_less_time(kind: str, size: int, more: int, on: str) -> None:
    what = cluster(on)
    less, greater = (collective_time(kind, s, 8, 1, what).seconds for s in (size, size + more))
    assert 0 < less <= greater


def test_the_domain_over_trays_is_not_the_machine() -> None:
    rack = cluster("gb200-nvl72")
    one = ways("all_reduce", group_of(rack, 4, 1), rack, "nccl")
    whole = ways("all_reduce", group_of(rack, 72, 18), rack, "nccl")
    assert "over nvlink5," in one[0].source
    assert "over nvlink5-multi," in whole[0].source
    assert {way.algorithm for way in whole} >= {"ring", "nvls"}


def test_groups_need_not_fill_their_nodes() -> None:
    what = machines(accelerator("h100-sxm"), 2, 8)
    assert group_of(what, 8, 2) == Group(Tier.CLUSTER, 8, 4, 2)
    # 4 of 8 devices of a node pool their own four NICs only
    half, whole = (ways("all_gather", group_of(what, n, 2), what, "nccl")[-1].bandwidth_Bps for n in (8, 16))
    assert half < whole


def test_a_step_prices_its_ops_so() -> None:
    what = cluster("8xh200-sxm")
    op = Op(
        kind="all_gather", role="moe.dispatch", group="ep", size=8, S_bytes=16 * MiB, repeat=1, stage=0,
        dtype="bfloat16", tokens=1, algorithm="ring", useful_recv_bytes=14 * MiB, wire_sent_bytes=14 * MiB,
        wire_recv_bytes=14 * MiB,
    )  # fmt: skip
    place, convention = Span(Tier.ISLAND, 8), Convention(name="test")
    seconds = op_seconds(op, place, what, convention, eager=False)
    assert seconds == collective_time("all_gather", 16 * MiB, 8, 1, what).seconds
    assert (
        op_seconds(op, place, what, convention, eager=True)
        == collective_time("all_gather", 16 * MiB, 8, 1, what, mode="eager").seconds
    )
    # half of the bytes saved by other means: at the links' effective bandwidth
    less = msgspec.structs.replace(op, wire_sent_bytes=7 * MiB)
    assert op_seconds(less, place, what, convention, eager=False) == pytest.approx(
        seconds - 7 * MiB / what.bandwidth(Tier.ISLAND)
    )

"""Bytes of collectives. Expected values: hand calculation from the algorithms, nccl-tests' busbw factors, a published
worked figure where named."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkwise.core.errors import InputError
from linkwise.plan.collectives import ALGORITHMS, bubble, distinct_nodes, hops, wire


def test_ring_all_reduce_of_16_kib_over_8_ranks():
    # 2 · 16384 · 7/8, by hand
    assert wire("all_reduce", 16384, 8).sent == 28672


def test_one_shot_reads_every_peer():
    assert wire("all_reduce", 1000, 4, "one_shot").recv == 3000


def test_nvls_moves_less_than_a_ring_from_four_ranks_on():
    # S(1 + 1/n) against 2S(n-1)/n: 1.125 against 1.75 at n = 8
    assert wire("all_reduce", 8, 8, "nvls").sent == 9
    assert wire("all_reduce", 8, 8, "ring").sent == 14


def test_all_gather_and_reduce_scatter_keep_their_own_share():
    assert wire("all_gather", 4 * 268435456, 4).recv == 805306368
    assert wire("reduce_scatter", 4 * 268435456, 4).sent == 805306368


@given(st.sampled_from([(k, a) for k, v in ALGORITHMS.items() for a in v]), st.integers(2, 64), st.integers(1, 2**40))
def test_useful_never_exceeds_wire(pair, n, size):
    kind, algorithm = pair
    moved = wire(kind, size, n, algorithm)
    assert moved.useful_recv <= moved.recv * (1 + 1e-12)


@given(st.integers(2, 64), st.integers(1, 2**40))
def test_reduce_scatter_then_all_gather_is_a_ring_all_reduce(n, size):
    parts = wire("reduce_scatter", size, n).sent + wire("all_gather", size, n).sent
    assert math.isclose(parts, wire("all_reduce", size, n).sent, rel_tol=1e-12)


def test_unknown_collective_and_algorithm_are_refused():
    with pytest.raises(InputError, match="all_reduce"):
        wire("allreduce", 1, 2)
    with pytest.raises(InputError, match="ring"):
        wire("all_reduce", 1, 2, "nccl")


def test_steps_of_a_ring_and_of_one_shot():
    assert hops("all_reduce", 8) == 14
    assert hops("all_gather", 8) == 7
    assert hops("all_reduce", 8, "one_shot") == 1
    assert hops("all_reduce", 1) == 0


def test_pipeline_bubble():
    # (p-1)/(m+p-1), by hand: 3/7 and 3/19
    assert bubble(4, 4) == pytest.approx(3 / 7)
    assert bubble(4, 16) == pytest.approx(3 / 19)


def test_distinct_nodes_by_enumeration():
    # 4 experts on 2 nodes, top-2: of the 6 pairs, 2 lie on one node and 4 on two: (2·1 + 4·2)/6
    assert distinct_nodes(2, 4, 2) == pytest.approx(10 / 6)


def test_group_limited_routing_by_enumeration():
    # 4 groups of 2 experts, a token draws 2 groups and then 2 of their 4 experts; 2 nodes of 2 groups. Of the 6 pairs
    # of groups, 2 lie on one node; in the other 4 the 2 experts are of one group (2 of 6 pairs) or of both.
    assert distinct_nodes(2, 8, 2, 4, 2) == pytest.approx((2 * 1 + 4 * (2 * 1 + 4 * 2) / 6) / 6)


def test_group_limited_routing_never_spans_more_nodes_than_groups():
    assert distinct_nodes(8, 256, 8) == pytest.approx(8 * (1 - math.comb(224, 8) / math.comb(256, 8)))
    assert distinct_nodes(8, 256, 8, 8, 4) <= 4

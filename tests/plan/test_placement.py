"""Placements. Expected values: brute force over every permutation, written here and not shared with the search, and
hand calculation. Clusters are built by hand; the times per group are those tests/plan/test_time.py checks."""

from itertools import pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.plan.handmade import cluster

from linkwise.cluster.detail import NodeDetail, Strand
from linkwise.cluster.types import Tier
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout, groups
from linkwise.engine.base import Convention
from linkwise.plan.collectives import default_algorithm, wire
from linkwise.plan.placement import naive_grid, place, step_weights
from linkwise.plan.placement_types import BEST_FOUND, EXHAUSTIVE, MEETS_BOUND
from linkwise.plan.time import Span, group_span, op_seconds, spans, worst_spans
from linkwise.plan.types import Op
from linkwise.workload.types import Workload

MiB = 2**20
PLAIN = Convention(name="plain")
KINDS = {"ep": "all_to_all", "pp": "send_recv"}


def op(axis: str, size: int, S: int, *, repeat: int = 10, stage: int = 0, role: str = "") -> Op:
    kind = KINDS.get(axis, "all_reduce")
    moved = wire(kind, S, size)
    return Op(
        kind=kind, role=role or f"{axis}.x", group=axis, size=size, S_bytes=S, repeat=repeat, stage=stage,
        dtype="bfloat16", tokens=1, algorithm=default_algorithm(kind), useful_recv_bytes=moved.useful_recv,
        wire_sent_bytes=moved.sent, wire_recv_bytes=moved.recv,
    )  # fmt: skip


def ops(layout: Layout, **S: int) -> tuple[Op, ...]:
    """Ten calls a stage on each axis named, and one handover."""
    size = {**layout.degrees(), "moe_tp": layout.moe_tp, "stage": layout.stage_size}
    return tuple(
        op(axis, size[axis], count, stage=stage, repeat=1 if axis == "pp" else 10)
        for stage in range(layout.pp) for axis, count in S.items()
        if size[axis] > 1 and (axis != "pp" or stage < layout.pp - 1)
    )  # fmt: skip


def linked(devices: int, *pairs: tuple[int, int, float]):
    """One node whose devices have these direct links and PCIe."""
    home = list(range(devices))
    for a, b, _ in pairs:
        home = [min(home[a], home[b]) if h in {home[a], home[b]} else h for h in home]
    detail = NodeDetail(islands=tuple(home), strands=tuple(Strand(a=a, b=b, spec_Bps=rate) for a, b, rate in pairs))
    return replace(cluster(1, devices, island=1), detail=detail, island_size=max(map(home.count, home)))


def switched(*on: bool):
    """One node whose devices are on an NVLink switch, or off it."""
    first = on.index(True)
    detail = NodeDetail(
        islands=tuple(first if there else i for i, there in enumerate(on)),
        ports_Bps=tuple(450e9 * there for there in on),
    )
    return replace(cluster(1, len(on), island=1), detail=detail, island_size=sum(on))


class Slow:
    """The cost as docs/placement.md defines it, counted the slow way: op by op, group by group."""

    def __init__(self, where, layout: Layout, listed: tuple[Op, ...]) -> None:
        self.where, self.layout, self.listed = where, layout, listed
        self.known: dict[tuple[int, tuple[int, ...]], float] = {}
        self.sets = []
        for one in listed:
            sets = groups(layout, one.group)
            if one.group == "pp":
                self.sets.append([members[one.stage : one.stage + 2] for members in sets])
            else:
                self.sets.append([m for m in sets if m[0] // layout.stage_size == one.stage])

    def seconds(self, rows) -> float:
        total = sum(
            max(self.group(i, tuple(sorted(row[r] for r in members))) for members in sets)
            for row in rows for i, sets in enumerate(self.sets)
        )  # fmt: skip
        return total / len(rows)

    def group(self, i: int, members: tuple[int, ...]) -> float:
        if (i, members) not in self.known:
            one, lies = self.listed[i], group_span(members, self.where)
            self.known[i, members] = one.repeat * float(op_seconds(one, lies, self.where, PLAIN, eager=False))
        return self.known[i, members]

    def best(self, replicas: int) -> float:
        n = self.layout.size
        return min(
            self.seconds([order[r * n : (r + 1) * n] for r in range(replicas)])
            for order in permutations(range(self.where.size), n * replicas)
        )


def seconds(where, layout: Layout, listed: tuple[Op, ...], rows) -> float:
    return Slow(where, layout, listed).seconds(rows)


BRIDGED = linked(4, (0, 2, 100e9), (1, 3, 100e9))
RING = linked(6, *((i, (i + 1) % 6, 100e9 if i % 2 else 50e9) for i in range(6)))
# Eight V100s of a DGX-1: a cube of single and double links, as its published topology has them.
CUBE = linked(8, *((a, b, 25e9 * n) for a, b, n in (
    (0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2), (2, 6, 1), (3, 7, 1),
    (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2),
)))  # fmt: skip


def sockets(*of: int, rate: float = 10e9):
    """One node of PCIe cards on sockets."""
    paths = tuple(" ".join("LOC" if a == b else "PIX" if x == y else "SYS" for b, y in enumerate(of))
                  for a, x in enumerate(of))  # fmt: skip
    return replace(cluster(1, len(of), island=1), detail=NodeDetail(numa=of, paths=paths, smp_Bps=rate))


def off_in_one_node(nodes: int, per_node: int):
    """NVLink nodes, of which the first has its first device off the switch."""
    usual = NodeDetail(islands=(0,) * per_node, ports_Bps=(450e9,) * per_node)
    odd = NodeDetail(islands=(0, *(1,) * (per_node - 1)), ports_Bps=(0.0, *(450e9,) * (per_node - 1)))
    return replace(cluster(nodes, per_node), detail=usual, odd_nodes={0: odd})


CASES = {
    "two sockets, dealt in turn": (sockets(0, 1, 0, 1), Layout(tp=2), {"tp": 4 * MiB}),
    "two sockets, tp 2 x pp 2": (sockets(0, 1, 1, 0, 0, 1), Layout(tp=2, pp=2), {"tp": MiB, "pp": 4 * MiB}),
    "two sockets, an exchange and a ring": (
        sockets(0, 1, 0, 1), Layout(dp_attn=4, ep=2), {"ep": 4 * MiB, "moe_tp": MiB},
    ),
    "GPU 0 of one node off NVLink": (off_in_one_node(2, 3), Layout(tp=2, cp=2), {"tp": 4 * MiB, "cp": MiB}),
    "GPU 0 of one node off NVLink, tp over nodes": (off_in_one_node(2, 3), Layout(tp=4), {"tp": 4 * MiB}),
    "a hybrid cube mesh of eight": (CUBE, Layout(tp=2, cp=2, pp=2), {"tp": 4 * MiB, "cp": 2 * MiB, "pp": 8 * MiB}),
    "bridged pairs (0,2) (1,3), tp 2": (BRIDGED, Layout(tp=2), {"tp": 4 * MiB}),
    "bridged pairs, tp 2 x pp 2": (BRIDGED, Layout(tp=2, pp=2), {"tp": 4 * MiB, "pp": MiB}),
    "bridged pairs, one replica of two": (BRIDGED, Layout(pp=2), {"pp": MiB}),
    "last GPU off NVLink": (switched(*[True] * 5, False), Layout(tp=2, pp=3), {"tp": 4 * MiB, "pp": 8 * MiB}),
    "first GPU off NVLink, one idle": (switched(False, True, True, True, True), Layout(tp=4), {"tp": MiB}),
    "a ring of unequal links": (RING, Layout(tp=2, pp=3), {"tp": 4 * MiB, "pp": 8 * MiB}),
    "a ring of unequal links, cp outside": (RING, Layout(tp=3, cp=2), {"tp": MiB, "cp": 2 * MiB}),
    "tp 3 over nodes of 2": (cluster(3, 2), Layout(tp=3, pp=2), {"tp": MiB, "pp": MiB}),
    "cp talks, dp does not": (cluster(2, 3), Layout(cp=2, dp_attn=3), {"cp": MiB}),
    "few NICs, experts": (cluster(2, 3, nics=1), Layout(dp_attn=6, ep=3), {"ep": 4 * MiB, "moe_tp": MiB}),
    "an oversubscribed core under rails": (
        cluster(3, 2, island=1, oversubscription=4.0), Layout(pp=3), {"pp": MiB},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_small_cluster_gets_what_brute_force_finds(name):
    where, layout, S = CASES[name]
    listed = ops(layout, **S)
    found = place(layout, where, {"decode": listed}, {"decode": 1.0}, convention=PLAIN)
    assert found.seconds == pytest.approx(Slow(where, layout, listed).best(len(found.rank_grid)), rel=1e-12)
    assert found.seconds == pytest.approx(seconds(where, layout, listed, found.rank_grid), rel=1e-12)
    assert found.proof in {EXHAUSTIVE, MEETS_BOUND}
    assert found.bound_seconds <= found.seconds <= found.naive_seconds <= found.worst_seconds


def test_bridged_pairs_take_the_tensor_groups():
    found = place(Layout(tp=2), BRIDGED, {"decode": ops(Layout(tp=2), tp=4 * MiB)}, {"decode": 1.0})
    assert {frozenset(row) for row in found.rank_grid} == {frozenset({0, 2}), frozenset({1, 3})}
    # Ten calls of 10 us and 4 MiB, over a bridge of 100 GB/s against PCIe of 64 GB/s.
    assert found.seconds == pytest.approx(10 * (10e-6 + 4 * MiB / 100e9), rel=1e-12)
    assert found.naive_seconds == pytest.approx(10 * (10e-6 + 4 * MiB / 64e9), rel=1e-12)
    assert not found.naive


def test_tensor_groups_stay_on_a_socket():
    found = place(Layout(tp=2), sockets(0, 1, 0, 1), {"decode": ops(Layout(tp=2), tp=4 * MiB)}, {"decode": 1.0})
    assert {frozenset(row) for row in found.rank_grid} == {frozenset({0, 2}), frozenset({1, 3})}


def test_what_the_link_between_sockets_leaves_a_group():
    """20 GB/s between sockets of four, ports of 64: a group has as much of it as of a socket's cards."""
    where = sockets(*[0] * 4, *[1] * 4, rate=20e9)
    port = where.bandwidth(Tier.NODE)
    # One of four: a quarter of 20 GB/s. An exchange of two crosses with as much as a ring of two.
    assert group_span((0, 4), where) == Span(Tier.NODE, 2, share=20e9 / 4 / port)
    # All eight: the whole. A ring has 20 GB/s of bus bandwidth; an exchange crosses with 4 x 4 pairs of S/8 where a
    # rank sends 7 S/8, so 7/16 of it.
    assert group_span(tuple(range(8)), where) == Span(Tier.NODE, 8, share=20e9 / port, exchange=20e9 / port * 7 / 16)
    assert group_span((0, 1, 2, 3), where) == Span(Tier.NODE, 4)


def test_the_ranks_of_a_node_talk_over_what_joins_them():
    where = off_in_one_node(2, 3)
    assert group_span((0, 1, 3, 4), where) == Span(Tier.CLUSTER, 2, nodes=2, inner=Tier.NODE)
    assert group_span((1, 2, 3, 4), where) == Span(Tier.CLUSTER, 2, nodes=2)


def test_the_device_off_nvlink_is_left_out():
    where = switched(True, True, False, True, True)
    found = place(Layout(tp=4), where, {"decode": ops(Layout(tp=4), tp=MiB)}, {"decode": 1.0})
    assert set(found.rank_grid[0]) == {0, 1, 3, 4}


def test_a_tensor_group_naive_order_splits_over_nodes_is_put_in_one():
    # Two groups of 6 on nodes of 8: ranks 6..11 in order would take 2 devices of one node and 4 of the next.
    found = place(Layout(tp=6), cluster(), {"decode": ops(Layout(tp=6), tp=4 * MiB)}, {"decode": 1.0})
    assert [{d // 8 for d in row} for row in found.rank_grid] in ([{0}, {1}], [{1}, {0}])
    assert found.proof == MEETS_BOUND
    inside = 10 * (10e-6 + 2 * 4 * MiB * 5 / 6 / 450e9)
    # Pooled NICs of the node that has fewer ranks of the group: 2 of 50 GB/s.
    across = 10 * (10e-6 + 2 * 4 * MiB * 5 / 6 / 100e9)
    assert found.seconds == pytest.approx(inside, rel=1e-12)
    assert found.naive_seconds == pytest.approx((inside + across) / 2, rel=1e-12)


def test_context_parallel_groups_come_inside_when_attention_replicas_need_nothing():
    layout = Layout(tp=4, cp=2, dp_attn=2)
    found = place(layout, cluster(), {"decode": ops(layout, tp=4 * MiB, cp=16 * MiB)}, {"decode": 1.0})
    assert found.proof == MEETS_BOUND
    assert {axis.axis: axis.tier for axis in found.axes} == {"tp": "island", "cp": "island"}
    assert {axis.axis: axis.naive_tier for axis in found.axes} == {"tp": "island", "cp": "cluster"}
    assert found.gain > 4


def test_naive_order_is_kept_when_nothing_beats_it():
    layout = Layout(tp=8, pp=2)
    found = place(layout, cluster(), {"decode": ops(layout, tp=MiB, pp=MiB)}, {"decode": 1.0})
    assert found.naive
    assert found.rank_grid == naive_grid(layout, 1)
    assert found.proof == MEETS_BOUND
    # One handover of 1 MiB over a 50 GB/s NIC, and tensor groups inside: by hand.
    tensor = 2 * 10 * (10e-6 + 2 * MiB * 7 / 8 / 450e9)
    assert found.seconds == pytest.approx(tensor + 10e-6 + MiB / 50e9, rel=1e-12)


def test_a_pipeline_pays_for_the_one_handover_that_leaves_the_node():
    layout = Layout(tp=4, pp=4)
    found = place(layout, cluster(), {"decode": ops(layout, tp=4 * MiB, pp=MiB)}, {"decode": 1.0})
    tensor = 4 * 10 * (10e-6 + 2 * 4 * MiB * 3 / 4 / 450e9)
    handovers = 2 * (10e-6 + MiB / 450e9) + 10e-6 + MiB / 50e9
    assert found.seconds == pytest.approx(tensor + handovers, rel=1e-12)
    assert found.proof == MEETS_BOUND


def test_handovers_stay_on_their_rail():
    where = cluster(3, 2, island=1, oversubscription=4.0)
    found = place(Layout(pp=3), where, {"decode": ops(Layout(pp=3), pp=MiB)}, {"decode": 1.0})
    row = found.rank_grid[0]
    crossing = [(a, b) for a, b in pairwise(row) if a // 2 != b // 2]
    assert all(a % 2 == b % 2 for a, b in crossing)


def test_ranks_that_hand_over_their_cache_get_a_nic_each():
    # Four NICs for eight devices, ranks without other traffic: no two of the four share one.
    where = cluster(1, 8, nics=4)
    where = replace(where, nodes=2)
    listed = (op("stage", 4, 100 * MiB, role="kv.handoff", repeat=1),)
    found = place(Layout(tp=4), where, {"handoff": listed, "decode": ()}, {"handoff": 1.0, "decode": 1.0}, replicas=1)
    nics = [(d // 8, where.nics_of(d)) for d in found.rank_grid[0]]
    assert len(set(nics)) == 4
    assert found.seconds == pytest.approx(10e-6 + 100 * MiB / 50e9, rel=1e-12)
    assert found.naive_seconds == pytest.approx(10e-6 + 2 * 100 * MiB / 50e9, rel=1e-12)


def test_a_split_nothing_can_avoid_is_reported_with_its_bound():
    # Four groups of 6 on three nodes of 8: three fit, one has to lie across; no bound says it all.
    layout = Layout(tp=6, pp=4)
    found = place(layout, cluster(3), {"decode": ops(layout, tp=4 * MiB, pp=MiB)}, {"decode": 1.0})
    assert found.proof == BEST_FOUND
    assert found.bound_seconds < found.seconds < found.naive_seconds
    assert found.gap == pytest.approx(found.seconds / found.bound_seconds - 1)
    inside = 10 * (10e-6 + 2 * 4 * MiB * 5 / 6 / 450e9)
    across = 10 * (10e-6 + 2 * 4 * MiB * 5 / 6 / 100e9)
    assert found.seconds >= 3 * inside + across


def test_spans_of_a_placement_are_those_of_its_devices():
    layout = Layout(tp=4, pp=2)
    swapped = (0, 1, 2, 8, 4, 5, 6, 3)
    assert spans(layout, cluster(), swapped)["tp"] == Span(Tier.CLUSTER, 1, nodes=2)
    assert spans(layout, cluster())["tp"] == Span(Tier.ISLAND, 4)
    assert worst_spans(layout, cluster(), ((0, 1, 2, 3, 4, 5, 6, 7), swapped))["tp"].tier is Tier.CLUSTER


def test_steps_weigh_as_often_as_a_request_runs_them():
    # 100 tokens at 10 requests in a step: 10 rounds between arrivals, 2 of them with a prompt chunk.
    assert step_weights(Workload(osl_tokens=100), Layout(tp=2), 10, 2) == {"decode": 8.0, "mixed": 2.0}


@pytest.mark.parametrize(
    ("layout", "weights", "replicas", "says"),
    [
        (Layout(tp=8), {"decode": 1.0}, 3, "at most 16"),
        (Layout(tp=32), {"decode": 1.0}, None, "at most 16"),
        (Layout(tp=8), {"decode": 0.0}, None, "no step counts"),
        (Layout(tp=8), {"decode": float("nan")}, None, "weight of decode"),
    ],
)
def test_what_cannot_be_placed_is_refused(layout, weights, replicas, says):
    with pytest.raises(InputError, match=says):
        place(layout, cluster(), {"decode": ops(layout, tp=MiB)}, weights, replicas=replicas)


def test_a_replica_of_one_rank_costs_nothing():
    found = place(Layout(), cluster(), {"decode": ()}, {"decode": 1.0})
    assert (found.seconds, found.naive, found.proof) == (0.0, True, MEETS_BOUND)
    assert found.gain == 1.0


@st.composite
def problems(draw):
    """A layout with traffic on any axis, on a regular or an irregular cluster that holds it."""
    devices = draw(st.sampled_from([2, 3, 4, 6, 8]))
    nodes = draw(st.integers(1, 4))
    where = cluster(
        nodes, devices, island=draw(st.sampled_from([d for d in range(1, devices + 1) if devices % d == 0])),
        nics=draw(st.sampled_from([1, devices])), oversubscription=draw(st.sampled_from([1.0, 2.0])),
        fabric=draw(st.sampled_from(["rail", "fat-tree"])),
    )  # fmt: skip
    shape = {name: draw(st.integers(1, 3)) for name in ("tp", "pp", "cp", "dp_attn")}
    layout = Layout(**shape)
    if layout.size > where.size:
        layout = Layout(tp=min(shape["tp"], where.size))
    ep = draw(st.sampled_from([d for d in range(1, layout.stage_size + 1) if layout.stage_size % d == 0]))
    layout = replace(layout, ep=ep)
    S = {axis: draw(st.integers(0, 8)) * MiB // 4 for axis in ("tp", "cp", "pp", "ep", "moe_tp", "stage")}
    return layout, where, ops(layout, **{axis: count for axis, count in S.items() if count})


@settings(max_examples=60, deadline=None)
@given(problems())
def test_a_placement_is_a_permutation_no_worse_than_naive_and_no_better_than_the_bound(problem):
    layout, where, listed = problem
    found = place(layout, where, {"decode": listed}, {"decode": 1.0}, convention=PLAIN)
    used = [device for row in found.rank_grid for device in row]
    assert len(used) == len(set(used)) == layout.size * (where.size // layout.size)
    assert set(used) <= set(range(where.size))
    assert found.seconds <= found.naive_seconds * (1 + 1e-12)
    assert found.bound_seconds <= found.seconds * (1 + 1e-9)
    assert found.seconds == pytest.approx(seconds(where, layout, listed, found.rank_grid), rel=1e-9)
    assert found.bound_seconds <= found.random_seconds * (1 + 1e-9)


LINKS = st.sets(st.sampled_from([(a, b) for a in range(4) for b in range(a)]), min_size=1)


@settings(max_examples=40, deadline=None)
@given(LINKS, st.permutations(range(4)), st.sampled_from([Layout(tp=2, pp=2), Layout(tp=2), Layout(cp=2, tp=2)]))
def test_devices_that_are_relabelled_cost_the_same(links, order, layout):
    listed = ops(layout, tp=4 * MiB, pp=MiB, cp=2 * MiB)
    first = linked(4, *((b, a, 100e9) for a, b in links))
    second = linked(4, *((*sorted((order[a], order[b])), 100e9) for a, b in links))
    one, other = (place(layout, where, {"x": listed}, {"x": 1.0}) for where in (first, second))
    assert one.seconds == pytest.approx(other.seconds, rel=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(3)), st.integers(1, 8), st.integers(1, 8))
def test_nodes_that_are_relabelled_cost_the_same(order, a, b):
    """Three nodes of two: bridged, bridged slower, not bridged, in any order."""
    rates = [100e9, 50e9, 0.0]
    details = [NodeDetail(islands=(0, 0) if rate else (0, 1), ports_Bps=(rate or 1e9, rate or 1e9)) for rate in rates]
    layout = Layout(tp=2, pp=3)
    listed = ops(layout, tp=a * MiB, pp=b * MiB)

    def at(numbers) -> float:
        where = replace(
            cluster(3, 2, island=1), detail=details[numbers[0]], island_size=2,
            odd_nodes={1: details[numbers[1]], 2: details[numbers[2]]},
        )  # fmt: skip
        return place(layout, where, {"x": listed}, {"x": 1.0}).seconds

    assert at(list(order)) == pytest.approx(at([0, 1, 2]), rel=1e-12)

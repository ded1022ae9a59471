"""Collectives as flows on links. Expected bytes from plan/collectives.py (an independent count per rank) and by hand
from the algorithms' definitions; the tree's shape is NCCL's published picture of its 14-rank tree."""

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.cluster.strategies import clusters
from tests.plan import handmade

from linkwise.cluster.detail import NodeDetail
from linkwise.cluster.presets import shorthand
from linkwise.core.errors import InputError
from linkwise.plan.algorithms import ALGORITHMS, SWITCH, Call
from linkwise.plan.algorithms.tree import _first, _second
from linkwise.plan.collectives import wire
from linkwise.plan.flows import Roads, flows, link_bytes, per_device

relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)
ISLAND, RAILS, LEAVES, PCIE, MESH = (
    shorthand(name) for name in ("8xh100-sxm", "2x8xh100-sxm", "2x8xl40s", "4xrtx-4090", "8xmi300x")
)
NODES4 = shorthand("4x1xh100-sxm")
S = 16_000_000


def carried(kind, cluster, devices, call=None, algorithm=""):
    return link_bytes(flows(kind, Roads(cluster), tuple(devices), call or Call(S), algorithm))


EVERY_RANK = [
    ("all_reduce", "ring"), ("all_reduce", "one_shot"), ("all_reduce", "two_shot"), ("all_gather", "ring"),
    ("reduce_scatter", "ring"), ("all_to_all", "direct"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "algorithm"), EVERY_RANK)
@pytest.mark.parametrize("cluster", [ISLAND, RAILS, LEAVES, PCIE, MESH], ids=lambda c: c.name)
def test_every_rank_moves_what_the_collective_says(kind, algorithm, cluster) -> None:
    moved = per_device(flows(kind, Roads(cluster), tuple(range(cluster.size)), Call(S), algorithm))
    expected = wire(kind, S, cluster.size, algorithm)
    assert len(moved) == cluster.size
    for one in moved.values():
        assert one.sent == pytest.approx(expected.sent, rel=1e-12)
        assert one.recv == pytest.approx(expected.recv, rel=1e-12)


def test_nvls_moves_what_the_collective_says() -> None:
    found = flows("all_reduce", Roads(ISLAND), tuple(range(8)), Call(S), "nvls")
    expected = wire("all_reduce", S, 8, "nvls")
    # S (1 + 1/8) by hand: 18 MB of 16 MB.
    assert expected.sent == 18_000_000
    assert {(one.sent, one.recv) for one in per_device(found).values()} == {(18_000_000, 18_000_000)}
    assert all(SWITCH in {flow.src, flow.dst} and len(flow.way) == 1 for flow in found)
    on = link_bytes(found)
    assert len(on) == 16
    assert set(on.values()) == {18_000_000}


@pytest.mark.parametrize("cluster", [ISLAND, RAILS, LEAVES, NODES4], ids=lambda c: c.name)
def test_a_tree_moves_as_much_as_a_ring_on_average(cluster) -> None:
    n = cluster.size
    moved = per_device(flows("all_reduce", Roads(cluster), tuple(range(n)), Call(S), "tree"))
    expected = wire("all_reduce", S, n, "tree").sent
    assert sum(one.sent for one in moved.values()) / n == pytest.approx(expected, rel=1e-12)
    assert sum(one.recv for one in moved.values()) / n == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("kind", "algorithm"), [("broadcast", "ring"), ("gather", "direct")])
def test_one_sided_collectives_by_their_busiest_rank(kind, algorithm) -> None:
    moved = per_device(flows(kind, Roads(RAILS), tuple(range(16)), Call(S, root=5), algorithm))
    assert max(one.recv for one in moved.values()) == pytest.approx(wire(kind, S, 16).recv, rel=1e-12)
    root = moved[5]
    assert (root.sent, root.recv) == ((S, 0) if kind == "broadcast" else (0, S * 15 / 16))


def test_a_message_and_a_pass_around_a_ring() -> None:
    assert carried("send_recv", RAILS, (0, 8)) == dict.fromkeys(
        [("d0", "n0.nic0"), ("n0.nic0", "rail0"), ("rail0", "n1.nic0"), ("n1.nic0", "d8")], S
    )
    passed = per_device(flows("send_recv", Roads(ISLAND), (0, 1, 2), Call(S), "ring"))
    assert set(passed.values()) == {(S, S)}


def test_one_ring_per_nic() -> None:
    on = carried("all_reduce", RAILS, range(16))
    each = 2 * S * 15 / 16
    # Eight rings share the bytes, each crosses between the nodes once in each direction, on its own rail.
    for nic in range(8):
        for ends in ((f"n0.nic{nic}", f"rail{nic}"), (f"rail{nic}", f"n1.nic{nic}")):
            assert on[ends] == pytest.approx(each / 8)
    # Every device sends all it has to send over NVLink: seven rings go on inside the node, and the eighth leaves over
    # the NIC of the neighbour (PXN).
    assert {round(on[f"d{d}", f"island{d // 8}"]) for d in range(16)} == {each}
    assert not any("core" in ends for ends in on)


def test_a_single_ring_uses_one_nic_each_way() -> None:
    on = carried("all_reduce", RAILS, range(16), Call(S, channels=1))
    used = {ends for ends in on if ends[1].startswith("rail")}
    assert used == {("n0.nic0", "rail0"), ("n1.nic0", "rail0")}
    assert on["n0.nic0", "rail0"] == 2 * S * 15 / 16


@pytest.mark.parametrize("nics", [8, 16, 32, 64])
def test_a_device_spreads_its_bytes_over_all_its_nics(nics) -> None:
    """Two nodes of eight with 3,200 Gb/s each, in 8 to 64 NICs: a ring of sixteen takes as long on all of them."""
    one = replace(RAILS, nics_per_node=nics, nic_Bps=400e9 / nics)
    on = carried("all_reduce", one, range(16))
    # Eight rings, one a device; each puts 2 S 15/16 / 8 on the NICs of its device: nics / 8 of them, evenly.
    each = 2 * S * 15 / 16 / 8 / (nics / 8)
    out = {ends: size for ends, size in on.items() if ends[0].startswith("n0.nic") and ends[1].startswith("rail")}
    assert len(out) == nics
    assert all(size == pytest.approx(each) for size in out.values())
    assert max(size / (400e9 / nics) for size in out.values()) == pytest.approx(2 * S * 15 / 16 / 400e9)
    slots = {ends: size for ends, size in on.items() if ends[1].startswith("n0.slot") and ends[0][0] == "d"}
    assert len(slots) == (8 if nics > 8 else 0)  # one NIC alone behind a slot: they are one link
    assert all(size == pytest.approx(2 * S * 15 / 16 / 8) for size in slots.values())


def test_nics_of_unequal_number_carry_their_share() -> None:
    """A leaf a node: the sender's two NICs and the receiver's three carry a half and a third each."""
    detail = NodeDetail(nic_names=("a", "b", "c"), paths=("LOC PIX PIX SYS",))
    odd = NodeDetail(nic_names=("a", "b", "c"), paths=("LOC PIX PIX PIX",))
    pair = replace(handmade.cluster(2, 1, nics=3, island=1, fabric="fat-tree"), detail=detail, odd_nodes={1: odd})
    on = carried("send_recv", pair, (0, 1))
    assert [on[f"n0.nic{nic}", "leaf0"] for nic in (0, 1)] == pytest.approx([S / 2] * 2)
    assert [on["leaf1", f"n1.nic{nic}"] for nic in (0, 1, 2)] == pytest.approx([S / 3] * 3)


def test_peers_and_nic_share_a_pcie_slot() -> None:
    """Two nodes of two cards without NVLink, a NIC each: two rings, each with one edge inside the node and one that
    leaves it for every card. All a card sends, 2 S 3/4, goes over its one slot; half of it to its NIC."""
    cards = replace(shorthand("2x2xl40s"), nics_per_node=2, nic_Bps=25e9, fabric="rail")
    on = carried("all_reduce", cards, range(4))
    assert on["d0", "n0.slot0"] == pytest.approx(2 * S * 3 / 4)
    assert on["n0.slot0", "n0.host"] == on["n0.slot0", "n0.nic0"] == pytest.approx(S * 3 / 4)


def test_a_card_on_nvlink_keeps_its_slot_for_the_nic() -> None:
    on = carried("all_reduce", RAILS, range(16))
    assert not any("slot" in end or "host" in end for ends in on for end in ends)


# Four cards, two a socket: 0 and 2, 1 and 3.
SOCKETS = replace(
    shorthand("4xl40s"),
    detail=NodeDetail(
        numa=(0, 1, 0, 1), paths=("LOC SYS PIX SYS", "SYS LOC SYS PIX", "PIX SYS LOC SYS", "SYS PIX SYS LOC"),
        smp_Bps=20e9,
    ),
)  # fmt: skip


def test_what_crosses_sockets_shares_the_link_between_them() -> None:
    for pair in ((0, 1), (2, 3)):
        on = carried("all_reduce", SOCKETS, pair)  # a ring of two: S each way
        assert on["n0.host0", "n0.host1"] == on["n0.host1", "n0.host0"] == S
    assert not any(ends == ("n0.host0", "n0.host1") for ends in carried("all_reduce", SOCKETS, (0, 2)))
    # A ring of all four goes through one socket after the other, whatever the order of its members.
    ring = carried("all_reduce", SOCKETS, (0, 1, 2, 3))
    assert ring["n0.host0", "n0.host1"] == ring["n0.host1", "n0.host0"] == 2 * S * 3 / 4
    # An exchange crosses with two of each member's four parts.
    exchange = carried("all_to_all", SOCKETS, (0, 1, 2, 3))
    assert exchange["n0.host0", "n0.host1"] == 2 * 2 * S / 4


def test_members_of_a_node_stay_side_by_side_in_a_ring() -> None:
    # Group order alternates between the nodes; the ring must not: two crossings, one each way.
    on = carried("all_gather", RAILS, (0, 8, 1, 9, 2, 10, 3, 11), Call(S, channels=1))
    assert sum(size for ends, size in on.items() if ends[1].startswith("rail")) == 2 * S * 7 / 8


def test_bridged_pairs_are_neighbours_in_a_ring() -> None:
    on = carried("all_gather", shorthand("4xa40-bridged"), (0, 2, 1, 3))
    assert {ends for ends in on if "host" not in ends[0] + ends[1]} == {("d0", "d1"), ("d2", "d3")}


def test_a_mesh_is_used_evenly() -> None:
    on = carried("all_reduce", MESH, range(8))
    assert len(on) == 8 * 7
    assert {round(size, 6) for size in on.values()} == {2 * S / 8}
    assert len(carried("all_reduce", MESH, range(8), Call(S, channels=1))) == 8


def test_the_tree_has_the_published_shape() -> None:
    # NCCL's picture for 14 ranks: 0-8, 8-(4, 12), 4-(2, 6), 12-(10, 13), 2-(1, 3), 6-(5, 7), 10-(9, 11).
    children = {}
    for node in range(14):
        children.setdefault(_first(node, 14), set()).add(node)
    assert children == {None: {0}, 0: {8}, 8: {4, 12}, 4: {2, 6}, 12: {10, 13}, 2: {1, 3}, 6: {5, 7}, 10: {9, 11}}


@given(st.integers(1, 300))
def test_both_trees_hold_everyone(nodes: int) -> None:
    for tree in (_first, _second):
        above = {node: tree(node, nodes) for node in range(nodes)}
        (root,) = (node for node, parent in above.items() if parent is None)
        for start in range(nodes):
            node, steps = start, 0
            while node != root:
                node, steps = above[node], steps + 1
                assert 0 <= node < nodes
                assert steps <= 2 * math.ceil(math.log2(nodes)) + 1


@given(st.integers(2, 150).map(lambda half: 2 * half))
def test_no_node_is_inside_both_trees(nodes: int) -> None:
    # Sanders, Speck, Träff (2009): a leaf of one tree is an inner node of the other, so nobody forwards everything.
    inner = [{tree(node, nodes) for node in range(nodes)} - {None} for tree in (_first, _second)]
    both = inner[0] & inner[1]
    assert len(both) <= 2  # the roots hang above a leaf's place


def test_a_tree_between_single_device_nodes() -> None:
    on = carried("all_reduce", NODES4, range(4), algorithm="tree")
    # Each of two trees has three edges, each edge carries S/2 up and S/2 down: 6 S in all leave the NICs.
    assert sum(size for ends, size in on.items() if ends[1].startswith("rail")) == 6 * S


def test_hierarchical_crosses_with_one_share_per_local_rank() -> None:
    on = carried("all_reduce", RAILS, range(16), algorithm="hierarchical")
    # Between two nodes a ring all-reduce of S/8 sends 2 (S/8) / 2 from each; inside, reduce-scatter and all-gather.
    assert {on[f"n0.nic{i}", f"rail{i}"] for i in range(8)} == {S / 8}
    assert {on[f"d{i}", "island0"] for i in range(8)} == {2 * S * 7 / 8}
    with pytest.raises(InputError, match="1, 3 members"):
        carried("all_reduce", RAILS, (0, 1, 2, 8), algorithm="hierarchical")


def test_nvls_tree_crosses_with_a_tree_per_local_rank() -> None:
    on = carried("all_reduce", RAILS, range(16), algorithm="nvls_tree")
    # Two trees of one edge each, S/8/2 up and down: S/8 a NIC. Inside: as NVLS over eight.
    assert {on[f"n0.nic{i}", f"rail{i}"] for i in range(8)} == {S / 8}
    assert {on[f"d{i}", "island0"] for i in range(8)} == {S * 9 / 8}


def test_nvls_needs_one_switch() -> None:
    for cluster, devices in ((RAILS, range(16)), (MESH, range(8)), (PCIE, range(4))):
        with pytest.raises(InputError, match="share no scale-up switch"):
            carried("all_reduce", cluster, devices, algorithm="nvls")
    with pytest.raises(InputError, match="share no scale-up switch"):
        carried("all_reduce", MESH, range(8), algorithm="nvls_tree")


def test_an_uneven_exchange_and_its_way_back() -> None:
    call = Call(10, sizes=(7, 1, 1, 1))
    there = per_device(flows("all_to_all", Roads(ISLAND), (0, 1, 2, 3), call))
    # Member 0 gets 7 from each of the three others and sends them 1 each.
    assert there[0] == (3, 21)
    assert there[1] == (7 + 1 + 1, 3)
    back = per_device(flows("all_to_all", Roads(ISLAND), (0, 1, 2, 3), call._replace(back=True)))
    assert back[0] == (21, 3)
    with pytest.raises(InputError, match="3 sizes"):
        flows("all_to_all", Roads(ISLAND), (0, 1, 2, 3), Call(10, sizes=(1, 2, 7)))


def test_a_node_limited_exchange_crosses_once_and_fans_out() -> None:
    # Two nodes of two; every member has 1 for each of the four. Half of what goes to the other node travels together.
    two = handmade.cluster(nodes=2, devices=2)
    on = carried("all_to_all", two, range(4), Call(4, crossing=0.5), "node_limited")
    # d0 to d2: 0.5 x 2. Over NVLink: its own 1 for d1, and 1 for d1 of what d2 sent here.
    assert on["d0", "n0.nic0"] == on["n0.nic0", "rail0"] == 1
    assert on["d0", "island0"] == 2
    back = carried("all_to_all", two, range(4), Call(4, crossing=0.5, back=True), "node_limited")
    assert {(b, a): size for (a, b), size in on.items()} == back
    direct = carried("all_to_all", two, range(4), Call(4))
    assert direct["n0.nic0", "rail0"] == 2


def test_a_group_of_one_moves_nothing() -> None:
    for kind, variants in ALGORITHMS.items():
        for algorithm in variants:
            if (kind, algorithm) != ("send_recv", "direct"):
                assert carried(kind, ISLAND, (3,), algorithm=algorithm) == {}


@pytest.mark.parametrize(
    ("kind", "devices", "call", "algorithm", "message"),
    [
        ("all_sum", (0, 1), Call(S), "", "unknown collective"),
        ("all_reduce", (0, 1), Call(S), "butterfly", "no algorithm"),
        ("all_reduce", (0, 0), Call(S), "", "at most once"),
        ("all_reduce", (), Call(S), "", "of nobody"),
        ("all_reduce", (0, 8), Call(S), "", r"0\.\.7"),
        ("broadcast", (0, 1), Call(S, root=2), "", r"0\.\.1"),
        ("send_recv", (0, 1, 2), Call(S), "", "who sends"),
        ("all_reduce", (0, 1), Call(S, channels=0), "", "0 channels"),
    ],
)
def test_what_cannot_be_is_refused(kind, devices, call, algorithm, message) -> None:
    with pytest.raises(InputError, match=message):
        carried(kind, ISLAND, devices, call, algorithm)


@st.composite
def calls(draw: st.DrawFn):
    cluster = draw(clusters())
    members = draw(st.lists(st.integers(0, cluster.size - 1), min_size=1, max_size=12, unique=True))
    kind = draw(st.sampled_from(sorted(ALGORITHMS)))
    algorithm = draw(st.sampled_from(sorted(ALGORITHMS[kind])))
    size = draw(st.integers(1, 10**12))
    channels = draw(st.sampled_from([None, 1, 2, 5]))
    sizes = draw(st.sampled_from([(), tuple(size / len(members) * (1 + i % 2) for i in range(len(members)))]))
    shares = st.floats(0.1, 1.0)
    return cluster, tuple(members), kind, algorithm, Call(
        size, sizes=sizes, channels=channels, root=draw(st.integers(0, len(members) - 1)),
        back=draw(st.booleans()), crossing=draw(shares), fan_out=draw(shares),
    )  # fmt: skip


@relaxed
@given(calls())
def test_bytes_are_conserved(drawn) -> None:
    cluster, members, kind, algorithm, call = drawn
    try:
        found = flows(kind, Roads(cluster), members, call, algorithm)
    except InputError:
        # Only what needs a switch, equal nodes or exactly two members may refuse a valid group.
        assert algorithm in {"nvls", "nvls_tree", "hierarchical"} or (kind, algorithm) == ("send_recv", "direct")
        return
    on = link_bytes(found)
    assert sum(on.values()) == pytest.approx(sum(flow.bytes * len(flow.way) for flow in found), rel=1e-9)
    assert all(flow.way and flow.bytes >= 0 for flow in found)
    for flow in found:
        ends = flow.way[0].src, flow.way[-1].dst
        assert SWITCH in {flow.src, flow.dst} or ends == (f"d{flow.src}", f"d{flow.dst}")
    moved = per_device(found)
    assert set(moved) <= set(members)
    if SWITCH not in {flow.dst for flow in found}:
        assert sum(m.sent for m in moved.values()) == pytest.approx(sum(m.recv for m in moved.values()), rel=1e-9)


@relaxed
@given(calls())
def test_a_rank_receives_at_least_what_it_needs(drawn) -> None:
    cluster, members, kind, algorithm, call = drawn
    n = len(members)
    if n == 1 or kind in {"send_recv", "gather"} or algorithm == "node_limited":
        return
    try:
        found = flows(kind, Roads(cluster), members, call._replace(sizes=()), algorithm)
    except InputError:
        return
    known = (
        "ring"
        if algorithm not in {"one_shot", "nvls", "direct"} or kind in {"all_gather", "reduce_scatter"}
        else algorithm
    )
    useful = wire(kind, call.S, n, known).useful_recv
    got = dict.fromkeys(members, 0.0) | {d: m.recv for d, m in per_device(found).items()}
    if kind == "broadcast":
        del got[members[call.root]]  # it has the message
    assert all(recv >= useful * (1 - 1e-9) for recv in got.values())

"""Bytes per link of a plan's step. Expected figures by hand from the ops of small plans, and from plan/time.py, which
counts an op's time per rank without looking at links."""

from math import comb

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import linkwise
from linkwise.cluster.links import links
from linkwise.cluster.presets import shorthand
from linkwise.core.errors import InputError
from linkwise.core.schema import decode_json, encode_json
from linkwise.engine.registry import get
from linkwise.model.types import Moe
from linkwise.plan.link_chain import explain_link
from linkwise.plan.time import op_seconds, spans
from linkwise.plan.traffic import rank_share, tier_of, traffic
from linkwise.plan.traffic_types import TRAFFIC_SCHEMA, Traffic


def plan(model="llama-3.1-8b", on="2x2xh100-sxm", **rest):
    found = linkwise.plan(model, on=on, **{"cp": 1, **rest})
    assert isinstance(found, linkwise.Plan), found
    return found


@pytest.fixture(scope="module")
def pipeline():
    return plan(tp=2, pp=2)


@pytest.fixture(scope="module")
def experts():
    return plan("deepseek-v3", on="2x8xh200-sxm", tp=1, pp=1, dp_attn=16, ep=16, exchange="all_to_all")


def by_link(found: Traffic) -> dict[str, float]:
    return {link.name: link.bytes for link in found.links}


def test_a_pipeline_by_hand(pipeline) -> None:
    found = traffic(pipeline, "decode")
    on = by_link(found)
    first = [op for op in pipeline.decode if op.stage == 0]
    # Two ranks: a ring all-reduce sends 2 S / 2 = S, an all-gather S / 2, over one NVLink port each way.
    weight = {"all_reduce": 1.0, "all_gather": 0.5}
    inside = sum(op.repeat * op.S_bytes * weight[op.kind] for op in first if op.group == "tp")
    assert on["d0>island0"] == on["island0>d1"] == pytest.approx(inside)
    (handed,) = (op for op in first if op.role == "pp.hidden")
    assert on["d0>n0.nic0"] == on["rail0>n1.nic0"] == handed.repeat * handed.S_bytes
    assert on["d1>n0.nic1"] == on["d0>n0.nic0"]
    assert not any(name.startswith(("d2>n1.nic", "d3>n1.nic")) for name in on)  # the last stage hands nothing over
    assert found.placement == (0, 1, 2, 3)


def test_parts_and_tiers_sum_to_the_links(pipeline) -> None:
    found = traffic(pipeline, "prefill")
    for link in found.links:
        assert sum(part.bytes for part in link.parts) == pytest.approx(link.bytes)
        assert link.busy_s == pytest.approx(link.bytes / link.effective_Bps)
        assert list(link.parts) == sorted(link.parts, key=lambda p: -p.bytes)
    for tier in found.tiers:
        mine = [link for link in found.links if link.tier == tier.tier]
        assert tier.bytes == pytest.approx(sum(link.bytes for link in mine))
        assert tier.busy_s == max(link.busy_s for link in mine)
    assert {tier.tier for tier in found.tiers} == {"island", "cluster"}
    assert found.load(found.busiest_by_time).busy_s == max(link.busy_s for link in found.links)


def test_replicas_add_up_and_can_be_told_apart() -> None:
    made = plan(on="8xh100-sxm", tp=2, pp=1)
    assert made.replicas == 4
    together = by_link(traffic(made))
    alone = [by_link(traffic(made, replica=number)) for number in range(4)]
    assert sum(len(one) for one in alone) == len(together)
    assert {name: size for one in alone for name, size in one.items()} == together
    assert traffic(made, replica=2).placement == (4, 5)


@pytest.mark.parametrize(
    ("model", "on", "degrees"),
    [
        ("llama-3.1-70b", "8xh100-sxm", {"tp": 8, "pp": 1}),
        ("llama-3.1-8b", "4xrtx-4090", {"tp": 4, "pp": 1}),
        ("llama-3.1-70b", "8xmi300x", {"tp": 4, "pp": 1}),
        ("llama-3.1-405b", "2x8xh100-sxm", {"tp": 16, "pp": 1}),
        ("llama-3.1-405b", "2x8xh100-sxm", {"tp": 8, "pp": 2}),
        ("deepseek-v3", "2x8xh200-sxm", {"tp": 1, "pp": 1, "dp_attn": 16, "ep": 16, "exchange": "all_to_all"}),
        ("deepseek-v3", "2x8xh200-sxm", {"tp": 1, "pp": 1, "dp_attn": 16, "ep": 16}),
    ],
)
def test_an_op_takes_what_the_planner_says_where_nothing_else_is_on_its_links(model, on, degrees) -> None:
    made = plan(model, on, **degrees)
    places = spans(made.layout, made.cluster)
    engine = get(made.engine, made.engine_version)
    convention = engine.convention_for(made.model, made.layout, made.options)
    found = {(op.role, op.stage): op for op in traffic(made, replica=0).ops}
    assert len(found) == len(made.decode)
    for op in made.decode:
        seconds = op_seconds(op, places[op.group], made.cluster, convention, eager=False)
        got = found[op.role, op.stage]
        assert got.latency_s + got.transfer_s == pytest.approx(float(seconds), rel=1e-9), op.role
        assert got.step_s == pytest.approx(op.repeat * float(seconds), rel=1e-9)


def test_a_row_is_of_one_algorithm() -> None:
    """A large all-reduce of eight on one switch goes over NVLS, and so do its bytes: S (1 + 1/8). Its latency is NVLS's
    own, which the catalogue has as 72 us for NVLink 4, whatever a ring's would be."""
    made = plan(
        "llama-3.1-405b", on="8xh200-sxm", tp=8, weights="fp8", max_batched_tokens=8192, isl=8192, osl=100
    )  # fmt: skip
    for step in ("prefill", "decode", "mixed"):
        found = traffic(made, step)
        assert all(op.latency_s >= 0 and op.transfer_s >= 0 for op in found.ops), step
    found = traffic(made, "prefill")
    (mlp,) = (op for op in found.ops if op.role == "mlp.out")
    assert mlp.algorithm == "nvls"
    base, step_us = made.cluster.constants.latency_us["nccl-nvls.nvlink4"]
    assert mlp.latency_s == pytest.approx((base + step_us) * 1e-6)
    (part,) = (part for part in found.load("d0>island0").parts if part.role == "mlp.out")
    assert part.bytes == pytest.approx(mlp.calls * mlp.S_bytes * 9 / 8)
    # Asked for a ring, it is a ring: 2 S 7/8, with a ring's latency.
    ring = traffic(made, "prefill", algorithms={"all_reduce": "ring"})
    (other,) = (op for op in ring.ops if op.role == "mlp.out")
    (part,) = (part for part in ring.load("d0>island0").parts if part.role == "mlp.out")
    assert part.bytes == pytest.approx(mlp.calls * mlp.S_bytes * 14 / 8)
    assert other.algorithm == "ring"
    assert 0 < other.latency_s != mlp.latency_s


def test_a_slots_bytes_belong_to_where_they_go() -> None:
    made = plan(on="2x2xl40s", tp=4, pp=1)
    tiers = {tier.tier: tier for tier in traffic(made, algorithms={"all_reduce": "ring"}).tiers}
    reduced = sum(op.repeat * op.S_bytes * (1.5 if op.kind == "all_reduce" else 0.75) for op in made.decode)
    # 2 S 3/4 of a card's bytes leave over its slot: those for its peer, and those for the NIC, add up to all of them.
    assert tiers["node"].sent_bytes + tiers["cluster"].sent_bytes == pytest.approx(reduced)


def test_groups_that_share_a_nic_wait_for_one_another() -> None:
    made = plan(on="2x8xl40s", tp=1, pp=2)
    assert made.replicas == 8
    # Stage 0 of every replica on the first node, stage 1 on the second: eight hand-overs, two NICs a node, one spine
    # port per node with the bandwidth of both.
    apart = tuple(device for replica in range(8) for device in (replica, 8 + replica))
    (sent,) = (op for op in traffic(made, placement=apart).ops if op.role == "pp.hidden")
    assert sent.groups == 8
    nic = next(link for link in links(made.cluster) if link.kind == "nic")
    assert sent.transfer_s == pytest.approx(4 * sent.S_bytes / nic.effective_Bps)
    pcie_Bps = made.cluster.accelerator.pcie_Bps * made.cluster.constants.link_efficiency["pcie"]
    slowest_alone = min(nic.effective_Bps, pcie_Bps)
    assert sent.alone_s == pytest.approx(sent.S_bytes / slowest_alone)
    # In the plan's own order both stages of a replica are in one node.
    assert not any(link.tier == "cluster" for link in traffic(made).links)


def test_a_placement_moves_the_traffic(pipeline) -> None:
    swapped = traffic(pipeline, placement=(2, 3, 0, 1))
    assert by_link(swapped)["d2>n1.nic0"] == by_link(traffic(pipeline))["d0>n0.nic0"]


def test_ops_follow_the_placement(pipeline) -> None:
    # Tensor groups of one device a node: the engine's own one-shot kernel needs an island, so NCCL's ring it is. A ring
    # of two sends S; the hand-over stays inside a node.
    crossed = traffic(pipeline, placement=(0, 2, 1, 3))
    assert {op.algorithm for op in crossed.ops if op.kind == "all_reduce"} == {"ring"}
    assert {op.algorithm for op in traffic(pipeline).ops if op.kind == "all_reduce"} == {"one_shot"}
    weight = {"all_reduce": 1.0, "all_gather": 0.5}
    reduced = [op for op in pipeline.decode if op.stage == 0 and op.group == "tp"]
    moved = sum(op.repeat * op.S_bytes * weight[op.kind] for op in reduced)
    assert by_link(crossed)["d0>n0.nic0"] == pytest.approx(moved)
    (handed,) = (op for op in pipeline.decode if op.role == "pp.hidden")
    assert by_link(crossed)["d0>island0"] == handed.repeat * handed.S_bytes


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ({"step": "warmup"}, "prefill, decode, mixed"),
        ({"placement": (0, 1, 2)}, "3 devices"),
        ({"placement": (0, 1, 2, 2)}, "3 different"),
        ({"placement": (0, 1, 2, 4)}, "device 4"),
        ({"placement": (0, 1, 2, -1)}, "device -1"),
        ({"replica": 1}, "replica 1"),
        ({"algorithms": {"all_reduce": "magic"}}, "no algorithm"),
        ({"algorithms": {"all_smash": "ring"}}, "unknown collective"),
        ({"algorithms": {"send_recv": "ring"}}, "pp.hidden"),
    ],
)
def test_bad_input_is_one_line(pipeline, rest, message) -> None:
    with pytest.raises(InputError, match=message):
        traffic(pipeline, **{"step": "decode", **rest})


def test_another_algorithm_is_counted_and_said(pipeline) -> None:
    ring, shot = traffic(pipeline), traffic(pipeline, algorithms={"all_reduce": "nvls"})
    reduced = sum(op.repeat * op.S_bytes for op in pipeline.decode if op.stage == 0 and op.kind == "all_reduce")
    # NVLS of two: S (1 + 1/2) instead of S.
    assert by_link(shot)["d0>island0"] - by_link(ring)["d0>island0"] == pytest.approx(reduced / 2)
    assert ring.notes == ()
    assert "bytes and latencies are theirs" in shot.notes[0]
    assert "no broadcast in this step" in traffic(pipeline, algorithms={"broadcast": "ring"}).notes[0]


def test_a_node_limited_exchange_by_hand(experts) -> None:
    direct, limited = traffic(experts), traffic(experts, algorithms={"all_to_all": "node_limited"})
    ops = [op for op in experts.decode if op.kind == "all_to_all"]
    total = sum(op.repeat * op.S_bytes for op in ops)
    # Half of what a rank sends is for the other node's eight ranks. 256 experts, 8 per token, at most 4 of 8 groups:
    # a node is missed when j of its 4 groups are drawn and none of their 32 j experts is among the 8 out of 128.
    drawn = [comb(4, j) * comb(4, 4 - j) / comb(8, 4) for j in range(5)]
    miss = sum(chance * comb(128 - 32 * j, 8) / comb(128, 8) for j, chance in enumerate(drawn))
    assert by_link(direct)["n0.nic0>rail0"] == pytest.approx(total / 2)
    assert by_link(limited)["n0.nic0>rail0"] == pytest.approx(total / 2 * 2 * (1 - miss) / 8)


def test_tokens_that_go_to_each_rank_once() -> None:
    made = linkwise.plan("deepseek-v3", on="2x8xh200-sxm", tp=1, pp=1, cp=1, dp_attn=16, ep=16).model.moe
    assert isinstance(made, Moe)
    # A rank for every expert: nothing to share.
    assert rank_share(made, 2, 256) == 1.0
    # One rank with all of them: one copy for eight experts.
    plain = replace(made, groups=1, top_groups=1)
    assert rank_share(plain, 1, 1) == pytest.approx(1 / 8)


def test_an_uneven_exchange_is_limited_by_its_busiest_rank() -> None:
    rest = {"tp": 1, "pp": 1, "dp_attn": 16, "ep": 16, "exchange": "all_to_all"}
    even, skewed = (plan("deepseek-v3", on="2x8xh200-sxm", skew=skew, **rest) for skew in (1.0, 2.0))
    op = next(op for op in skewed.decode if op.role == "moe.dispatch")
    found = traffic(skewed)
    got = next(one for one in found.ops if one.role == "moe.dispatch")
    # Rank 0 receives 2 S/n from each of the eight ranks of the other node, over the NIC of its rail.
    nic = next(link for link in links(skewed.cluster) if link.kind == "nic")
    assert got.transfer_s == pytest.approx(8 * 2 * op.S_bytes / 16 / nic.effective_Bps)
    assert got.link in {"n1.nic0>rail0", "rail0>n0.nic0"}
    assert sum(link.bytes for link in found.links) != sum(link.bytes for link in traffic(even).links)


@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_a_links_chain_ends_in_its_bytes(data, pipeline, experts) -> None:
    made = data.draw(st.sampled_from([pipeline, experts]))
    step = data.draw(st.sampled_from(["prefill", "decode", "mixed"]))
    link = data.draw(st.sampled_from(traffic(made, step).links))
    found = explain_link(made, f"link:{step}:{link.name}")
    assert found.chain.result.value == pytest.approx(link.bytes, rel=1e-12)
    assert {part.role for part in link.parts} == {
        step_.name.removeprefix(f"{step}.").removesuffix(".on_link").partition("#")[0].removesuffix(".on_link")
        for step_ in found.chain.steps
        if step_.name.startswith(f"{step}.") and ".on_link" in step_.name
    }


def test_explain_takes_links(pipeline) -> None:
    found = linkwise.explain(pipeline, "link:d0>island0")
    assert found.chain.result.value == pytest.approx(by_link(traffic(pipeline))["d0>island0"])
    for path, message in (
        ("link:d0", "SRC>DST"),
        ("link:warmup:d0>island0", "SRC>DST"),
        ("link:d0>d9", "no link"),
        ("link:d0>n0.host", "carries nothing"),
    ):
        with pytest.raises(InputError, match=message):
            linkwise.explain(pipeline, path)


def test_one_device_moves_nothing() -> None:
    found = traffic(plan(on="1xh100-sxm", tp=1, pp=1))
    assert (found.links, found.ops, found.tiers, found.busiest_by_time) == ((), (), (), "")


def test_it_is_a_file_and_back(pipeline) -> None:
    found = traffic(pipeline)
    assert decode_json(encode_json(found), Traffic, where="test") == found
    assert msgspec.json.decode(encode_json(found))["schema"] == TRAFFIC_SCHEMA


def test_the_plans_links_table_is_the_same_count(pipeline) -> None:
    import io

    from linkwise.core.units import show_bytes
    from linkwise.report.plan import links as table
    from linkwise.report.text import render

    rows = {line.split()[0]: line for line in render(table(pipeline), io.StringIO()).split("\n") if line.strip()}
    for step in ("prefill", "decode", "mixed"):
        for tier in traffic(pipeline, step).tiers:
            assert show_bytes(tier.sent_bytes) in rows[tier.tier]


def test_every_link_has_a_tier() -> None:
    for name in ("8xh100-sxm", "2x8xl40s", "2x8xmi300x", "2xgb200-nvl72", "2xrtx-4090"):
        for link in links(shorthand(name)):
            expected = "cluster" if {"nic", "fabric"} & {link.kind} or ".nic" in link.src + link.dst else None
            expected = expected or ("island" if {link.src[0], link.dst[0]} <= {"d", "i"} else "node")
            assert tier_of(link) == expected

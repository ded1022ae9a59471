"""Plans as a whole: the choice, its reasons, its file, and the chain behind every figure."""

import math
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkwise import api
from linkwise.cluster.read import load as cluster
from linkwise.core.chain import Chain
from linkwise.core.errors import InputError
from linkwise.core.layout import AXES, Layout, groups
from linkwise.core.schema import decode_json, encode_json
from linkwise.engine import registry
from linkwise.engine.base import Options
from linkwise.model.read import load as model
from linkwise.plan.build import plan
from linkwise.plan.explain import explain, paths
from linkwise.plan.search import WORTH, layouts, search
from linkwise.plan.types import NoPlan, Plan
from linkwise.workload.types import Targets, Workload

VLLM = registry.get("vllm")


def make(name="llama-3.1-8b", on="2x2xh100-sxm", fixed=None, replicas=None, options=None, **load):
    targets = Targets(ttft_s=load.pop("ttft_s", None), tpot_s=load.pop("tpot_s", None))
    work = Workload(targets=targets, **load)
    return plan(model(name), cluster(on), VLLM, options or Options(), work, fixed=fixed, replicas=replicas)


def test_the_smallest_group_that_meets_the_targets_is_replicated_for_the_rate():
    made = make(isl_tokens=512, osl_tokens=128, rate_per_s=20.0, tpot_s=0.05, ttft_s=2.0)
    assert isinstance(made, Plan)
    assert made.layout == Layout()
    assert made.replicas == math.ceil(20.0 / made.chosen.max_rate_per_s - 1e-9)
    assert made.chosen.point.tpot_s <= 0.05
    assert made.rank_grid == tuple((i,) for i in range(made.replicas))


def test_two_tp4_rather_than_tp8_over_two_four_gpu_nodes():
    # the brief's question: fast peer links inside a node, slower between
    made = make(
        "llama-3.3-70b", "2x4xh100-sxm", isl_tokens=4000, osl_tokens=500, rate_per_s=3.0, tpot_s=0.04, ttft_s=1.0
    )
    assert isinstance(made, Plan)
    assert (made.layout, made.replicas) == (Layout(tp=4), 2)
    assert made.rank_grid == ((0, 1, 2, 3), (4, 5, 6, 7))
    shown = " ".join(b for d in made.decisions for b in d.because)
    for cost in (
        "full sharded copy of the weights",
        "separate KV",
        "inside the island tier",
        "only requests are routed",
    ):
        assert cost in shown


def test_every_decision_has_a_break_even_and_a_measurement():
    made = make("llama-3.3-70b", "8xh100-sxm")
    assert made.decisions
    assert all(d.break_even and d.measure and d.because for d in made.decisions)


def test_every_rejected_layout_keeps_its_reason():
    made = make("llama-3.3-70b", "8xh100-sxm")
    every = list(layouts(model("llama-3.3-70b"), cluster("8xh100-sxm"), {}))
    assert made.considered == len(every)
    assert all(r.shortfall.reason for r in made.rejected)
    kept = {r.layout for r in made.rejected}
    assert made.layout not in kept
    assert kept < set(every)


def test_a_plan_survives_its_file():
    made = make("qwen3-30b-a3b", "2xh100-sxm")
    assert decode_json(encode_json(made), Plan, where="test") == made


@pytest.mark.parametrize(
    ("name", "on", "fixed"),
    [
        ("llama-3.1-8b", "4xh100-sxm", {"tp": 2, "pp": 2}),
        ("deepseek-v3", "8xh200-sxm", {"dp_attn": 8, "tp": 1, "pp": 1, "cp": 1, "ep": 8}),
        ("gpt-oss-20b", "2xh100-sxm", {"tp": 2}),
    ],
)
def test_every_figure_explains_itself_and_equals_the_stored_one(name, on, fixed):
    made = make(name, on, fixed=fixed, concurrency=8)
    assert isinstance(made, Plan)
    assert len(paths(made)) > 60
    for path in paths(made):
        found = explain(made, path)
        assert isinstance(found.chain, Chain)
        assert found.chain.result.value == pytest.approx(made.figures[path], rel=1e-12), path


def test_the_chain_of_all_reduce_bytes_starts_from_the_config_and_names_the_difference():
    made = make("llama-3.3-70b", "8xh100-sxm", fixed={"tp": 8}, concurrency=1)
    found = explain(made, "decode.all_reduce.sent_bytes")
    assert {"hidden", "batch"} <= {s.name for s in found.chain.inputs}
    # the textbook's step beside it: 160 calls x 2·16384·7/8 B, by hand
    assert found.beside is not None
    assert found.beside.result.value == 4_587_520
    assert any(line.startswith("embed") for line in found.differences)


def test_an_unknown_figure_is_refused_with_near_ones():
    made = make()
    with pytest.raises(InputError, match=r"tpot_s"):
        explain(made, "tpot")


def test_no_plan_names_the_resource_the_shortage_and_changes_that_were_searched():
    made = make(
        "llama-3.3-70b", "2x4xh100-sxm", isl_tokens=4000, osl_tokens=500, rate_per_s=6.0, tpot_s=0.04, ttft_s=1.0
    )
    assert isinstance(made, NoPlan)
    assert made.nearest.shortfall.resource == "rate"
    assert made.nearest.shortfall.need == 6.0
    assert made.nearest.shortfall.have < 6.0
    assert any("devices" in c for c in made.changes)


def test_no_plan_for_weights_offers_what_the_ledger_accepts():
    made = make("llama-3.1-405b", "8xh100-sxm")
    assert isinstance(made, NoPlan)
    assert made.nearest.shortfall.resource == "weights"
    assert any("fp8" in c for c in made.changes)
    assert any("second node" in c for c in made.changes)


def test_given_degrees_and_replicas_are_kept():
    made = make("llama-3.1-8b", "8xh100-sxm", fixed={"tp": 2, "pp": 1, "cp": 1, "dp_attn": 1}, replicas=3)
    assert isinstance(made, Plan)
    assert (made.layout.tp, made.replicas) == (2, 3)


def test_the_command_of_our_server_starts_all_the_plans_replicas():
    fixed = {"tp": 2, "pp": 1, "cp": 1, "dp_attn": 1}
    ours, load = registry.get("linkwise"), Workload(targets=Targets())
    made = plan(model("llama-3.1-8b"), cluster("8xh100-sxm"), ours, Options(), load, fixed=fixed, replicas=3)
    assert isinstance(made, Plan)
    assert registry.parse_command(list(made.command)).replicas == 3
    theirs = make("llama-3.1-8b", "8xh100-sxm", fixed=fixed, replicas=3)
    assert isinstance(theirs, Plan)
    assert "--data-parallel-size" not in theirs.command  # one command a replica
    apart = plan(model("llama-3.1-8b"), cluster("2x4xh100-sxm"), ours, Options(), load, fixed=fixed, replicas=3)
    assert isinstance(apart, Plan)
    assert registry.parse_command(list(apart.command)).replicas == 1
    assert any("one of 3 replicas" in note for note in apart.notes)


def test_layouts_fill_parts_of_a_node_or_whole_nodes():
    sizes = {x.size for x in layouts(model("llama-3.1-8b"), cluster("3x4xh100-sxm"), {})}
    assert sizes == {1, 2, 4, 8, 12}


def test_unknown_degree_is_refused():
    with pytest.raises(InputError, match="expected tp"):
        list(layouts(model("llama-3.1-8b"), cluster("1xh100-sxm"), {"ttp": 2}))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_every_axis_partitions_the_group(data):
    tp, dcp = data.draw(st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 2), (6, 3), (8, 8)]))
    pp, cp, dp = (data.draw(st.integers(1, 4)) for _ in range(3))
    stage = cp * dp * tp
    ep = data.draw(st.sampled_from([d for d in range(1, stage + 1) if stage % d == 0]))
    layout = Layout(tp=tp, pp=pp, cp=cp, dp_attn=dp, dcp=dcp, ep=ep)
    for axis in AXES:
        members = [r for g in groups(layout, axis) for r in g]
        assert sorted(members) == list(range(layout.size)), axis


def test_a_search_that_another_process_takes_half_of_finds_the_same():
    """Every layout of the experts on 16 devices, in the same order, with the same points told."""
    case = model("deepseek-v3"), cluster("2x8xh200-sxm"), VLLM, Options(), Workload(targets=Targets(tpot_s=0.05))
    told: list[list[object]] = [[], []]
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as other:
        found = [
            search(*case, seen=lambda layout, at, into=into: into.append((layout, at.rate.tolist())), other=process)
            for into, process in zip(told, (None, other), strict=True)
        ]
    assert found[0].considered == found[1].considered > WORTH
    assert found[0] == found[1]
    assert told[0] == told[1] != []


def test_search_is_deterministic():
    args = model("qwen3-30b-a3b"), cluster("4xh100-sxm"), VLLM, Options(), Workload()
    assert search(*args) == search(*args)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize(("name", "on"), [("qwen3-30b-a3b", "4xh100-sxm"), ("llama-3.1-8b", "2x2xh100-sxm")])
def test_every_candidate_can_be_launched_as_its_own_layout(engine, name, on):
    by, what = registry.get(engine), model(name)
    found = search(what, cluster(on), by, Options(), Workload())
    assert found.candidates
    for one in found.candidates:
        words = by.command(name, one.layout, Options())
        files = by.files(one.layout, Options())
        assert registry.parse_command(words, model=what, files=files).layout == one.layout


def test_latency_grows_with_the_rate_without_steps():
    # From a fifteenth of a request at hand to two.
    rates = [0.02, 0.1, 0.2, 0.3, 0.4, 0.5]
    points = [
        make("llama-3.3-70b", "4xh100-sxm", {"tp": 4}, isl_tokens=1000, osl_tokens=200, rate_per_s=rate).chosen.point
        for rate in rates
    ]
    assert [p.batch for p in points] == [-(-p.at_hand // 1) for p in points]
    for rate, p in zip(rates, points, strict=True):
        # Little's law, with the time from the first token to the last.
        assert p.at_hand == pytest.approx(rate * (p.ttft_s + 199 * p.tpot_s), rel=1e-6)
    growth = [b.tpot_s / a.tpot_s - 1 for a, b in pairwise(points)]
    assert all(0 < g < 0.05 for g in growth), growth


def test_a_closed_loop_says_whose_ttft_it_is() -> None:
    said = "TTFT is that of 32 users once they are spread over time"
    words = {"isl": 1000, "osl": 100, "tp": 1}
    closed = api.plan("llama-3.1-8b", "1xh100-sxm", concurrency=32, **words)
    assert any(note.startswith(said) for note in closed.notes)
    for load in ({"concurrency": 1}, {"rate": 2.0}, {"rate": 2.0, "concurrency": 32}):
        other = api.plan("llama-3.1-8b", "1xh100-sxm", **load, **words)
        assert not any(note.startswith("TTFT is that of") for note in other.notes)

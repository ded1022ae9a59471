"""What a rehearsal is held against: calls of the library that runs, not of the kernels an engine would take."""

import pytest
from msgspec.structs import replace

import linkwise
from linkwise.cluster.types import Cluster, Tier
from linkwise.measure.calibration import Calibration, TierFit, Value, apply
from linkwise.measure.rehearse import ops_of, predict, transport_notes, transport_of
from linkwise.plan.time import worst_spans
from linkwise.plan.types import Plan


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Two ranks; vLLM reduces small tensors by its own one-shot kernel."""
    return linkwise.plan("llama-3.1-8b", on="4xh100-sxm", engine="vllm", isl=1000, osl=100, tp=2)


def calibrated(c: Cluster, library: str) -> Cluster:
    """20 us + 2 us a step, half of the spec rate."""
    tier = TierFit(
        link="nvlink4", base_us=Value(value=20), step_us=Value(value=2), efficiency=Value(value=0.5), residual=0,
        points=9,
    )  # fmt: skip
    found = Calibration(
        made="2026-11-29T21:00Z", library=library, source="by hand", cluster=c.name, accelerator=c.accelerator.name,
        nodes=1, devices_per_node=4, ranks=4, tiers={"island": tier},
    )  # fmt: skip
    return apply(found, c)


@pytest.mark.parametrize(("library", "transport"), [("nccl 2.27.3 (torch 2.9)", "nccl"), ("gloo (torch 2.9)", "gloo")])
def test_predicted_is_the_library_that_runs(plan: Plan, library: str, transport: str) -> None:
    """All-reduce of two by hand: 20 us + 2 steps x 2 us + S / 225 GB/s, whatever kernel the plan counts."""
    c = calibrated(plan.cluster, library)
    (op,) = [one for one in ops_of(plan, "decode") if one.role == "attn.out"]
    assert op.algorithm == "one_shot"
    place = worst_spans(plan.layout, c, plan.rank_grid)["tp"]
    assert transport_of(library, c, Tier.ISLAND) == transport
    by_hand = 24e-6 + float(op.S_bytes) / 225e9
    assert predict(op, place, c, transport) == pytest.approx(by_hand)
    assert plan.figures["decode.attn.out.time_s"] / op.repeat < 0.8 * by_hand, "the kernel's"
    # One call alone is waited for: never sooner than its launch, 19.5 us here, which is less.
    assert predict(replace(op, repeat=1), place, c, transport) == pytest.approx(by_hand)


def test_the_answer_names_what_is_predicted_and_what_the_plan_counts(plan: Plan) -> None:
    ops = ops_of(plan, "decode")
    first, *rest = transport_notes(plan, ops, "gloo (torch 2.9)", ["nccl"] * len(ops))
    assert first == "predicted are calls of nccl as torch.distributed makes them (uncalibrated)"
    assert rest[0].startswith("no figures of gloo, which ran")
    assert "all-reduces by vllm's own kernels (custom)" in rest[1]
    own = linkwise.plan("llama-3.1-8b", on="4xh100-sxm", engine="linkwise", isl=1000, osl=100, tp=2)
    assert len(transport_notes(own, ops_of(own, "decode"), "nccl 2.27", ["nccl"])) == 1


def test_a_library_without_figures_is_taken_for_the_planners(plan: Plan) -> None:
    assert transport_of("gloo (torch 2.9)", plan.cluster, Tier.ISLAND) == "nccl"
    c = calibrated(plan.cluster, "gloo")
    assert transport_of("gloo (torch 2.9)", c, Tier.CLUSTER) == "nccl", "only islands were measured"

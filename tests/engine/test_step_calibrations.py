"""Files of calibrations: what is refused, what versions change, what lies outside their range."""

import msgspec
import pytest

from linkwise import api
from linkwise.api_task import cluster_of, model_of
from linkwise.core.errors import InputError
from linkwise.engine import registry
from linkwise.engine.step_calibrations import dump, load, parse, shipped
from linkwise.engine.step_constants import Constant, StepCalibration, Version, roofline
from linkwise.plan.interval import around, outside, quantisation_of
from linkwise.workload.types import Workload

ENGINES = ("vllm", "sglang", "trtllm")


def changed(**changes: object) -> StepCalibration:
    found = shipped("vllm")
    assert found is not None
    return msgspec.structs.replace(found, **changes)


@pytest.mark.parametrize("name", ENGINES)
def test_a_shipped_file_says_where_each_constant_is_from_and_reads_back(name: str):
    found = shipped(name)
    assert found is not None
    assert found.engine == name
    assert all(one.source and (one.error is not None or "set" in one.source) for one in found.constants.values())
    assert parse(dump(found), where="again") == found
    assert registry.get(name).calibration is found


def test_engines_nobody_measured_stay_on_the_roofline():
    where = cluster_of("1xh100-sxm")
    for name in ("textbook", "linkwise"):
        engine = registry.get(name)
        assert engine.calibration is None
        assert engine.step_constants(where) == roofline(where.constants)


def test_a_version_scales_overheads_and_nothing_else():
    some = changed(versions=(Version(since="0.15", overheads=0.5), Version(since="1.0", overheads=0.25)))
    old, new, newest = (some.at(version) for version in ("0.14.2", "0.15", "1.2rc1"))
    assert new.layer_us == old.layer_us / 2
    assert newest.step_us == old.step_us / 4
    assert new.prompt_layer_us == old.prompt_layer_us
    assert new.hbm_efficiency == old.hbm_efficiency


def test_a_version_scales_nothing_on_devices_older_than_those_it_was_measured_on():
    some = changed(versions=(Version(since="1.2", overheads=0.5, capability=100),))
    plain = some.at("1.1").layer_us
    assert some.at("1.2", 100).layer_us == plain / 2
    assert some.at("1.2", 90).layer_us == plain  # Hopper
    for gpu, factor in (("h200-sxm", 1.0), ("b200-sxm", 0.5)):
        engine = registry.get("trtllm", "1.2").calibrated(some)
        assert engine.step_constants(cluster_of(f"1x{gpu}")).layer_us == plain * factor


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": "linkwise.calibration/1"}, "expected linkwise.step-calibration/1"),
        ({"constants": {"layer_ms": Constant(value=1, unit="us", source="x")}}, "unknown constant 'layer_ms'"),
        ({"constants": {"layer_us": Constant(value=-1, unit="us", source="x")}}, "layer_us"),
        ({"constants": {"hbm_efficiency": Constant(value=float("nan"), unit="", source="x")}}, "hbm_efficiency"),
        ({"constants": {"layer_us": Constant(value=1, unit="us", source="x", error=-1)}}, "error -1"),
        ({"constants": {"kv_sharpness": Constant(value=2, unit="", source="x")}}, "1"),
        ({"versions": (Version(since="newest", overheads=1),)}, "newest"),
        ({"versions": (Version(since="1.0", overheads=0),)}, "0.01..100"),
    ],
)
def test_what_no_calibration_can_say_is_refused(changes: dict[str, object], words: str):
    with pytest.raises(InputError) as refused:
        changed(**changes)
    assert words in str(refused.value)


def test_a_file_names_its_field(tmp_path):
    path = tmp_path / "c.yaml"
    text = dump(changed())
    for old, new, words in (
        ("engine: vllm", "motor: vllm", "motor"), ("value: 1.0", "value: many", "value"),
        ("rows: 374", "rows: x", "rows"),
    ):  # fmt: skip
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(InputError) as refused:
            load(path)
        assert str(path) in str(refused.value)
        assert words in str(refused.value)


def test_what_is_outside_the_range_is_named():
    some = changed()
    engine = registry.get("vllm", "0.18").calibrated(some)
    load_ = Workload(isl_tokens=2000, osl_tokens=500)
    model, where = model_of("llama-3.1-8b", {}), cluster_of("1xh100-sxm")
    assert outside(some, model, where, engine, load_, 32) == ()
    other = model_of("qwen3-30b-a3b", {})
    reasons = outside(
        some, other, cluster_of("1xl40s"), registry.get("vllm", "0.32").calibrated(some),
        Workload(isl_tokens=50_000, osl_tokens=4), 5000,
    )  # fmt: skip
    assert len(reasons) == 6
    for word in ("qwen3_moe", "l40s", "0.32", "50,000", "answers of 4", "5,000"):
        assert any(word in reason for reason in reasons), word


def test_a_plan_says_how_far_its_times_can_be_trusted():
    plan = api.plan("llama-3.1-8b", "1xh100-sxm", engine="vllm==0.18", isl=1000, osl=200, tp=1, concurrency=32)
    spread = shipped("vllm").spreads
    assert plan.trust.extrapolated == ()
    assert plan.trust.tpot == around(plan.chosen.point.tpot_s, spread.tpot)
    far = api.plan("llama-3.1-8b", "1xl40s", engine="vllm==0.18", isl=1000, osl=200, tp=1, concurrency=32)
    assert far.trust.ttft == around(far.chosen.point.ttft_s, spread.ttft_outside)
    assert spread.tpot_outside.high - spread.tpot_outside.low > spread.tpot.high - spread.tpot.low


@pytest.mark.parametrize(
    ("weights", "kind"),
    [("fp8", "fp8"), ("nvfp4", "nvfp4"), ("mxfp4", "mxfp4"), ("int4", "int4"), ("bfloat16", "none")],
)
def test_kinds_of_weights(weights: str, kind: str):
    assert quantisation_of(model_of("llama-3.1-8b", {"weights": weights})) == kind

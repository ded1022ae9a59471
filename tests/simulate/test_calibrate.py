"""Fits of constants. Expected values: the constants that made the rows, and hand calculation."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

pytest.importorskip("numba")

from linkwise.cluster import presets
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.engine import registry
from linkwise.engine.base import Options
from linkwise.engine.step_calibrations import load, shipped
from linkwise.engine.step_constants import Spread, StepCalibration, StepConstants
from linkwise.model import read
from linkwise.simulate.calibrate.case import Case, serving
from linkwise.simulate.calibrate.fit import Space, fit, grouped, pooled, predicted, simulated
from linkwise.simulate.calibrate.made import spread_of
from linkwise.simulate.calibrate.own import calibrate
from linkwise.simulate.calibrate.priors import NAMES
from linkwise.simulate.calibrate.rows import Given, cases_of
from linkwise.simulate.calibrate.steps import run_of
from linkwise.workload.results import Row

VERSION = "0.18"


def case(isl: int, osl: int, users: int, gpus: int = 1, spread: str = "uniform", **changes: object) -> Case:
    engine, layout = registry.get("vllm", VERSION), Layout(tp=gpus)
    what = serving(
        read.load("llama-3.1-8b"), presets.shorthand(f"{gpus}xh100-sxm"), engine, layout, Options(), isl, osl
    )
    made = Case(what, isl, osl, spread, users, 0.0, 10 * users, 1.0, 1.0, "llama", f"{isl}/{osl} x{users}")
    return made._replace(**changes)


GRID = [(isl, 64, users, gpus) for isl in (256, 2048) for users in (1, 4, 16) for gpus in (1, 2)]


def measured_with(constants: StepConstants) -> list[Case]:
    """Runs whose TTFT and TPOT are what these constants give."""
    found = []
    for isl, osl, users, gpus in GRID:
        one = case(isl, osl, users, gpus)
        made = run_of(one._replace(served=one.served._replace(engine=one.served.engine.with_constants(constants))))
        found.append(one._replace(ttft_s=made.ttft_s, tpot_s=made.tpot_s))
    return found


def other_than(base: StepCalibration) -> StepConstants:
    """A deployment with 1.4 times the time a layer and 0.8 times the memory rate."""
    usual = base.at(VERSION)
    return replace(usual, layer_us=usual.layer_us * 1.4, hbm_efficiency=usual.hbm_efficiency * 0.8)


def test_the_constants_that_made_the_rows_come_back():
    base = shipped("vllm")
    assert base is not None
    usual, truth = base.at(VERSION), other_than(base)
    # Two of them are open, the others known.
    free = np.array([name in {"layer_us", "hbm_efficiency"} for name in NAMES])
    centre = np.log([getattr(usual, name) for name in NAMES])
    space = Space(("vllm",), {}, centre, np.where(free, 1.0, 1e-6))
    found = fit(measured_with(truth), space, rounds=5).constants("vllm", newer=False)
    # Steps that are alike are one kind, and tables have a few dozen sizes: within two percent.
    assert found.layer_us == pytest.approx(truth.layer_us, rel=0.02)
    assert found.hbm_efficiency == pytest.approx(truth.hbm_efficiency, rel=0.02)
    assert found.kv_efficiency == pytest.approx(usual.kv_efficiency, rel=1e-3)


def test_a_few_rows_move_what_they_determine_and_leave_the_rest():
    base = shipped("vllm")
    assert base is not None
    truth = other_than(base)
    found = calibrate(measured_with(truth), base, source="made")
    assert found.before.tpot > 0.1
    assert found.after.tpot < 0.01
    assert found.left_out.tpot < 0.02
    moved = {one.name: one for one in found.moved}
    # What was known pulls back; more than half of the way is made.
    assert truth.hbm_efficiency < moved["hbm_efficiency"].after < moved["hbm_efficiency"].before * 0.9
    # One model tells a layer's time from a step's only together: 32 layers and one step.
    host = moved["step_us"].after + 32 * moved["layer_us"].after
    assert host * base.factor(VERSION) == pytest.approx(truth.step_us + 32 * truth.layer_us, rel=0.15)
    # Rows of a dense model say nothing of experts.
    assert moved["expert_efficiency"].after == pytest.approx(moved["expert_efficiency"].before, rel=1e-6)
    assert moved["expert_efficiency"].determined < 0.01 < moved["hbm_efficiency"].determined


def test_what_nobody_told_before_stays_as_open_until_rows_tell_of_it():
    base = shipped("vllm")
    assert base is not None
    open_ = {"layer_us": replace(base.constants["layer_us"], assumed=True, error=0.6)}
    assumed = replace(base, constants=base.constants | open_)
    found = calibrate(measured_with(other_than(base)), assumed, source="made")
    # Rows of a dense model say nothing of linear mixers, and all of a layer: with no close prior it is told alone.
    assert found.calibration.constants["prompt_linear_layer_us"] == base.constants["prompt_linear_layer_us"]
    assert base.constants["prompt_linear_layer_us"].assumed
    layer = found.calibration.constants["layer_us"]
    assert not layer.assumed
    assert layer.error < 0.3
    assert layer.value > 1.2 * base.constants["layer_us"].value  # 1.4 times it made the rows
    assert all(not one.assumed for name, one in found.calibration.constants.items() if not base.constants[name].assumed)


def test_weights_times_durations_are_the_simulated_means():
    cases = [case(512, 100, 8), case(1024, 32, 3, 2, "fixed")]
    space = pooled(["vllm"], {})
    steps = simulated(cases, space, space.centre)
    found = np.exp(predicted(grouped(steps, space), space, space.centre, 2))
    runs = [one for ((_, one),) in steps]
    means = [s.tpot_s for s in runs] + [s.ttft_s for s in runs]
    # Kinds of step are alike within 192 prompt and 1,024 cached tokens, and tables have a few dozen sizes.
    assert found == pytest.approx(means, rel=0.01)


def test_nothing_is_left_unexplained_of_ttft():
    space = pooled(["vllm"], {})
    (((_, steps),),) = simulated([case(512, 100, 8)], space, space.centre)
    assert abs(steps.rest_s) < 1e-9
    assert steps.tpot_weight.sum() > 0.99


def row(**changes: object) -> Row:
    usual = {
        "engine": "vllm", "version": VERSION, "model": "llama-3.1-8b", "gpu": "NVIDIA H100 SXM", "tp": 1, "isl": 900,
        "osl": 90, "concurrency": 4, "ttft_s": 0.1, "tpot_s": 0.01, "source": "file: line 2",
    }  # fmt: skip
    return Row(**(usual | changes))


def test_rows_become_runs_and_what_cannot_is_named():
    rows = [
        row(), row(gpu="h100_sxm", gpus=4), row(pp=64, source="a"), row(isl=None, source="b"),
        row(gpu="abacus", source="c"),
        row(model="no-such-model-here", source="d"), row(concurrency=None, source="e"),
        row(ttft_s=None, tpot_s=None, source="f"), row(engine="unheard", source="g"),
    ]  # fmt: skip
    found = cases_of(rows, Given())
    assert [(c.served.layout.tp, c.users, c.isl) for c in found.cases] == [(1, 4, 1000), (1, 1, 1000)]
    words = {one.where: one.reason for one in found.left_out}
    assert sorted(words) == list("abcdefg")
    reasons = {
        "a": "64",
        "b": "isl",
        "c": "abacus",
        "d": "no-such",
        "e": "no load",
        "f": "TTFT",
        "g": "unheard",
    }
    for key, word in reasons.items():
        assert word in words[key], key


def reason(**changes: object) -> str:
    found = cases_of([row(**changes)], Given())
    assert not found.cases
    return found.left_out[0].reason


def test_runs_that_cannot_have_been_are_named():
    # Llama-3.1-8B takes 131,072 tokens (config.json). 70.6 GB of 2-byte weights twice over: 141 GB on a card of 80.
    assert "1,000,000 tokens in and 90 out; expected at most 131,072, what llama-3.1-8b takes" in reason(isl=1_000_000)
    assert "weights" in reason(model="llama-3.1-70b", tp=1)
    assert "KV" in reason(isl=131_072 - 90, gpu="l4")
    assert cases_of([row(model="llama-3.1-70b", tp=4, gpus=4)], Given()).cases


def test_a_ledger_short_by_little_is_taken_for_a_run_that_ran(monkeypatch: pytest.MonkeyPatch):
    from linkwise.plan.types import Shortfall
    from linkwise.simulate.calibrate import rows

    real = rows.ledger
    for need, held in ((1.04, 1), (1.06, 0)):
        short = Shortfall(resource="weights", rank=0, need=need, have=1.0, unit="B", reason="weights do not fit")
        monkeypatch.setattr(rows, "ledger", lambda *given, s=short: replace(real(*given), shortfall=s))
        assert len(cases_of([row()], Given()).cases) == held


def test_a_run_that_drafts_tokens_is_one_or_is_named():
    # Drafted one by one with chance p: 1 + p = 1.85; 1 + p + p^2 = 1.75 at p = 0.5.
    drafts = {"model": "deepseek-v3", "gpu": "h200", "tp": 8, "speculative": True}
    for drafted, accepted, chance in ((1, 1.85, 0.85), (2, 1.75, 0.5)):
        (one,) = cases_of([row(**drafts, drafted=drafted, accepted=accepted)], Given()).cases
        assert one.served.options.mtp_tokens == drafted
        assert one.served.options.mtp_acceptance == pytest.approx(chance, rel=1e-9)
    assert "no layers of its own" in reason(speculative=True, accepted=2.6, drafted=3)
    assert "drafted (tokens a step)" in reason(**drafts, accepted=1.8)
    assert "accepted (tokens a step yields)" in reason(**drafts)
    assert "2 tokens drafted and 3.5 yielded" in reason(**drafts, drafted=2, accepted=3.5)


def test_rows_of_another_engine_than_asked_are_named(tmp_path: Path):
    from linkwise.api_calibrate import fitted

    found = cases_of([row(), row(engine="sglang", source="b")], Given(engine="vllm"))
    assert len(found.cases) == 1
    assert found.left_out[0].reason == "a row of sglang; expected vllm, as --engine says"
    table = tmp_path / "results.csv"
    table.write_text(
        "engine,model,gpu,tp,isl,osl,concurrency,tpot_ms\n" + "sglang,llama-3.1-8b,h100,1,900,90,4,9\n" * 2
    )
    with pytest.raises(InputError, match="line 2 and 1 more: a row of sglang; expected vllm, as --engine says"):
        fitted(table, engine="vllm")


def test_rows_of_two_engines_are_refused():
    found = cases_of([row(), row(engine="sglang")], Given())
    with pytest.raises(InputError, match="rows of one engine"):
        calibrate(found.cases, None, source="x")


def test_the_command_writes_a_file_that_plan_takes(tmp_path: Path):
    from typer.testing import CliRunner

    import linkwise
    from linkwise.cli import app

    table, out = tmp_path / "results.csv", tmp_path / "out.yaml"
    lines = ["engine,engine_version,model,gpu,tp,isl,osl,concurrency,ttft_ms,tpot_ms"]
    lines += [
        f"vllm,{VERSION},llama-3.1-8b,h100,1,1000,100,{c},{60 + 2 * c},{8 + c / 8}"
        for c in (1, 2, 4, 8, 12, 16, 20, 32)
    ]
    table.write_text("\n".join(lines) + "\n")
    done = CliRunner().invoke(app, ["calibrate", str(table), "-o", str(out)])
    assert done.exit_code in {0, 1}, done.output
    assert "median TPOT" in done.output
    made = load(out)
    known = shipped("vllm").range.rows
    assert known < made.range.rows <= known + 8, "times made up: some rows are not explained"
    settings = {"engine": f"vllm=={VERSION}", "isl": 1000, "osl": 100, "tp": 1}
    plan = linkwise.plan("llama-3.1-8b", "1xh100-sxm", calibration=str(out), **settings)
    assert plan.step_calibration == made
    assert plan.calibration == made.label
    linkwise.save(plan, tmp_path / "plan.json")
    assert linkwise.load(tmp_path / "plan.json").step_calibration == made, "the plan file embeds it"
    with pytest.raises(InputError, match="fitted to vllm"):
        linkwise.plan("llama-3.1-8b", "1xh100-sxm", engine="sglang", isl=1000, osl=100, calibration=str(out))


def test_a_row_that_is_not_explained_extends_no_range_and_widens_intervals():
    # One run at a length no row has, a hundred times slower than any engine: the constants cannot explain it.
    base = shipped("vllm")
    assert base is not None
    usual = run_of(case(60_000, 64, 1)._replace())
    slow = case(60_000, 64, 1)._replace(tpot_s=100 * usual.tpot_s, ttft_s=float("nan"))
    found = calibrate([slow], base, source="made")
    assert (found.explained, found.verdict) == (0, "worse")
    assert "explain none" in found.trust
    assert found.calibration.range == base.range
    for name in ("tpot", "tpot_outside"):
        now, before = getattr(found.calibration.spreads, name), getattr(base.spreads, name)
        # Measured is slower: nine values, the ninetieth percentile a fifth of the way from the second largest to it.
        assert now.high > before.high + 0.15 * np.log(found.after.tpot / (1 - found.after.tpot))
        assert now.low <= before.low
    assert found.calibration.spreads.ttft == base.spreads.ttft


def test_few_rows_that_are_explained_are_undecided_and_narrow_nothing():
    base = shipped("vllm")
    assert base is not None
    usual = run_of(case(512, 64, 4))
    found = calibrate([case(512, 64, 4)._replace(tpot_s=usual.tpot_s, ttft_s=usual.ttft_s)], base, source="made")
    assert (found.explained, found.verdict) == (1, "undecided")
    assert found.calibration.spreads == base.spreads
    assert found.calibration.range.rows == base.range.rows + 1


def test_a_spread_known_before_counts_as_eight_rows():
    before = Spread(low=-0.1, high=0.2)
    # Seven rows at 1.0 and eight like the spread: the 90th percentile of fifteen is the thirteenth and a bit, a 1.0.
    assert spread_of(np.full(7, 1.0), before).high == pytest.approx(1.0)
    assert spread_of(np.full(7, 1.0), before).low == pytest.approx(-0.1)
    assert spread_of(np.zeros(7), before) == before, "few rows narrow nothing"
    many = np.linspace(-0.01, 0.01, 21)
    assert spread_of(many, before) == Spread(low=-0.008, high=0.008), "tenths of 21 values in even steps"
    assert spread_of(many, before, narrower=False) == before

"""Runs whose stages wait for each other. Expected values: hand calculation, finite differences of the simulator, and
the constants that made the rows."""

import numpy as np
import pytest

pytest.importorskip("numba")

from msgspec.structs import replace

from linkwise.cluster import presets
from linkwise.core.layout import Layout
from linkwise.engine import registry
from linkwise.engine.base import Options
from linkwise.engine.step_calibrations import shipped
from linkwise.model import read
from linkwise.simulate.calibrate import pipeline
from linkwise.simulate.calibrate.case import Case, serving
from linkwise.simulate.calibrate.fit import Space, fit, grouped, pooled, predicted, simulated
from linkwise.simulate.calibrate.priors import NAMES
from linkwise.simulate.calibrate.rows import Given, cases_of
from linkwise.simulate.calibrate.steps import run_of
from linkwise.simulate.rules import Pool, Rules, Run
from linkwise.simulate.run import simulate
from linkwise.simulate.tables import Tables, constant
from linkwise.workload.requests import requests
from linkwise.workload.results import Row

VERSION = "0.18"


def tables(*stages: float, per_token: float = 0.0) -> Tables:
    """Stages that take so many seconds whatever they hold, and per_token for each token."""
    work = np.array(stages)[:, None] * (1 + per_token * np.arange(8193))
    return constant(0.0, stages=len(stages))._replace(work=work, prompt_work=work)


def ran(
    slots: int, stage: Tables, inputs: list[int], outputs: list[int], users: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps, requests and seconds of stages of a run whose requests all come at once, or in a closed loop."""
    rules = Rules(slots=slots, max_seqs=64, prefix_cache=False)
    load = requests(np.zeros(len(inputs)), np.array(inputs), np.array(outputs))
    found = simulate([Pool(rules, stage)], load, Run(users=users, steps_kept=100_000))
    tokens = found.steps["drew"] + found.steps["fresh"]
    return found.steps, found.requests, stage.work[:, tokens].T


def means(every: np.ndarray) -> tuple[float, float]:
    tpot = (every["end"] - every["first"]) / (every["output"] - 1)
    return float(tpot.mean()), float((every["first"] - every["entered"]).mean())


@pytest.mark.parametrize(
    ("slots", "stages", "tpot", "ttft"),
    [
        # One batch in flight: every token passes both stages, and half of the time of each is bubble.
        (1, (3.0, 1.0), (1, 1), (1, 1)),
        # Two, of a request each: A is in the first stage over 0..3, B over 3..6, A again at 6, though it left the
        # second at 4. So a token takes 6 s, two of the first stage. First tokens: A at 3 + 1, B at 2 x 3 + 1.
        (2, (3.0, 1.0), (2, 0), (1.5, 1)),
        # The other way round: A is in the second over 1..4, B over 4..7, A again (in the first over 4..5) over 7..10.
        (2, (1.0, 3.0), (0, 2), (1, 1.5)),
        # Two through three stages: A is in the first at 0 and at 3, B at 1 and at 4: nobody waits.
        (2, (1.0, 1.0, 1.0), (1, 1, 1), (1.5, 1, 1)),
    ],
)
def test_tokens_by_the_stages_they_wait_for(
    slots: int, stages: tuple[float, ...], tpot: tuple[float, ...], ttft: tuple[float, ...]
) -> None:
    log, every, seconds = ran(slots, tables(*stages), [1, 1][:slots], [6, 6][:slots])
    found = pipeline.weights(log, every, seconds, slots)
    assert means(every) == pytest.approx((np.dot(tpot, stages), np.dot(ttft, stages)))
    assert found[0].sum(axis=0) == pytest.approx(tpot, abs=1e-12)
    assert found[1].sum(axis=0) == pytest.approx(ttft, abs=1e-12)


def test_weights_are_what_the_means_change_by() -> None:
    # A closed loop of unlike requests through unlike stages; each stage's time a millionth longer in turn.
    draw = np.random.default_rng(3)
    inputs, outputs = (draw.integers(2, most, 60).tolist() for most in (90, 12))
    stages = np.array([1.0, 1.3, 0.8])
    log, every, seconds = ran(3, tables(*stages, per_token=0.01), inputs, outputs, users=9)
    found = pipeline.weights(log, every, seconds, 3)
    before = means(every)
    for place in range(3):
        longer = stages.copy()
        longer[place] *= 1 + 1e-6
        _, after, _ = ran(3, tables(*longer, per_token=0.01), inputs, outputs, users=9)
        moved = (np.array(means(after)) - before) / 1e-6
        expected = [(weight * seconds).sum(axis=0)[place] for weight in found]
        assert moved == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_requests_beyond_the_steps_that_are_known_count_for_nothing() -> None:
    # A's and B's answers of two tokens end at 10 and 13; of steps that end at 4, 7 and 10 A's alone is known.
    log, every, seconds = ran(2, tables(3.0, 1.0), [1, 1], [2, 2])
    assert log["end"].tolist() == [4.0, 7.0, 10.0, 13.0]
    found = pipeline.weights(log[:3], every, seconds[:3], 2)
    assert found[0].sum(axis=0) == pytest.approx((2, 0))
    assert found[1].sum(axis=0) == pytest.approx((1, 1))


def case(isl: int, osl: int, users: int, pp: int = 2, tp: int = 1) -> Case:
    gpus = pp * tp
    what = serving(
        read.load("llama-3.1-8b"), presets.shorthand(f"{gpus}xh100-sxm"), registry.get("vllm", VERSION),
        Layout(pp=pp, tp=tp), Options(), isl, osl,
    )  # fmt: skip
    return Case(what, isl, osl, "uniform", users, 0.0, 10 * users, 1.0, 1.0, "llama", f"{isl}/{osl} x{users}")


def test_one_stage_is_weighed_as_steps_in_turn_are() -> None:
    from linkwise.simulate.calibrate.steps import _in_turn

    log, every, seconds = ran(1, tables(1.0, per_token=0.02), [5, 40, 9, 9, 70, 3], [9, 4, 7, 12, 3, 5], users=3)
    for one, other in zip(pipeline.weights(log, every, seconds, 1), _in_turn(log, every), strict=True):
        assert one == pytest.approx(other, abs=1e-12)


def test_weights_times_durations_are_the_simulated_means() -> None:
    cases = [case(512, 100, 8), case(1024, 32, 3), case(300, 50, 16, pp=4)]
    space = pooled(["vllm"], {})
    steps = simulated(cases, space, space.centre)
    found = np.exp(predicted(grouped(steps, space), space, space.centre, 3))
    # Kinds of step are alike within 192 prompt and 1,024 cached tokens, and tables have a few dozen sizes.
    runs = [one for ((_, one),) in steps]
    assert found == pytest.approx([s.tpot_s for s in runs] + [s.ttft_s for s in runs], rel=0.01)


def test_the_constants_that_made_the_rows_come_back() -> None:
    base = shipped("vllm")
    assert base is not None
    usual = base.at(VERSION)
    truth = replace(usual, layer_us=usual.layer_us * 1.4, hbm_efficiency=usual.hbm_efficiency * 0.8)
    rows = []
    # Tensor parallel groups of one and two: they tell reading weights from what every layer takes.
    for isl, users, tp in [(isl, users, tp) for isl in (256, 2048) for users in (2, 8, 24) for tp in (1, 2)]:
        one = case(isl, 64, users, 2, tp)
        made = run_of(one._replace(served=one.served._replace(engine=one.served.engine.with_constants(truth))))
        rows.append(one._replace(ttft_s=made.ttft_s, tpot_s=made.tpot_s))
    # Two of them are open, the others known.
    free = np.array([name in {"layer_us", "hbm_efficiency"} for name in NAMES])
    centre = np.log([getattr(usual, name) for name in NAMES])
    found = fit(rows, Space(("vllm",), {}, centre, np.where(free, 1.0, 1e-6)), rounds=5).constants("vllm", newer=False)
    # Steps that are alike are one kind, and tables have a few dozen sizes: within two percent.
    assert found.layer_us == pytest.approx(truth.layer_us, rel=0.02)
    assert found.hbm_efficiency == pytest.approx(truth.hbm_efficiency, rel=0.02)


def test_a_row_of_a_pipeline_is_a_run() -> None:
    usual = Row(
        engine="vllm", version=VERSION, model="llama-3.1-8b", gpu="h100", isl=900, osl=90, concurrency=4, ttft_s=0.1,
        tpot_s=0.01, source="x",
    )  # fmt: skip
    # Eight devices as two stages: four ranks a stage where nothing is said of tp.
    found = cases_of([replace(usual, pp=2, gpus=8), replace(usual, pp=2, tp=2), replace(usual, pp=64, tp=1)], Given())
    assert [str(one.served.layout) for one in found.cases] == ["pp2 x tp4", "pp2 x tp2"]
    assert len(found.left_out) == 1  # the model has 32 layers

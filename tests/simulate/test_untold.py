"""Constants that no row of an engine tells of. Expected values: by hand."""

import math

import numpy as np
import pytest

pytest.importorskip("numba")


from linkwise.cluster import presets
from linkwise.core.layout import Layout
from linkwise.engine import registry
from linkwise.engine.base import Options
from linkwise.engine.step_constants import Spread, Spreads
from linkwise.model import read
from linkwise.simulate.calibrate.case import Case, serving
from linkwise.simulate.calibrate.fit import finished, pooled
from linkwise.simulate.calibrate.made import calibration_of
from linkwise.simulate.calibrate.priors import NAMES
from linkwise.simulate.calibrate.untold import told

USUAL = Options(), 512, 64
LLAMA = serving(
    read.load("llama-3.1-8b"), presets.shorthand("1xh100-sxm"), registry.get("vllm", "0.18"), Layout(), *USUAL
)
RUN = Case(LLAMA, 512, 64, "uniform", 4, 0.0, 40, 1.0, 1.0, "llama", "a run")
K, NAME = len(NAMES), "prompt_linear_layer_us"
ONE = NAMES.index(NAME)
SPREAD = Spread(low=-0.1, high=0.1)
SPREADS = Spreads(tpot=SPREAD, ttft=SPREAD, tpot_outside=SPREAD, ttft_outside=SPREAD)


def fitted(*tell: int, us: float = 3400.0):
    """Of three engines, those in `tell` say very surely that the constant is so long."""
    space = pooled(["a", "b", "c"], {})
    curvature = np.diag(space.spread**-2.0)
    at = space.centre.copy()
    for engine in tell:
        both = [ONE, K * (1 + engine) + ONE]  # the common value and the engine's difference are told together
        curvature[np.ix_(both, both)] += 1e6
        at[both[1]] = math.log(us) - at[ONE]
    return space, finished(space, at, curvature), curvature


def test_what_one_engine_tells_says_half_of_what_another_takes():
    space, found, curvature = fitted(0)
    assert told(3, space.spread, curvature).sum() == 1
    assert found.constants("a", newer=False).prompt_linear_layer_us == pytest.approx(3400)
    assert found.errors["a"][ONE] == pytest.approx(0.001, rel=0.01)
    # Nine kernels of 25 us within exp 0.7, and an engine that is apart by exp 0.66: weights 1/0.49 and 1/0.4356.
    share = (1 / 0.4356) / (1 / 0.4356 + 1 / 0.49)
    for engine in ("b", "c"):
        value = found.constants(engine, newer=False).prompt_linear_layer_us
        assert value == pytest.approx(225 * (3400 / 225) ** share, rel=1e-4)  # 947 us
        assert found.errors[engine][ONE] == pytest.approx(math.sqrt(1 / (1 / 0.4356 + 1 / 0.49) + 0.4356), rel=1e-4)
        assert found.untold[engine][NAME] == ("a",)
    assert NAME not in found.untold["a"]


def test_two_engines_say_more_than_one_and_none_leaves_the_count():
    _, found, _ = fitted(0, 1)
    share = (2 / 0.4356) / (2 / 0.4356 + 1 / 0.49)
    assert found.constants("c", newer=False).prompt_linear_layer_us == pytest.approx(
        225 * (3400 / 225) ** share, rel=1e-3
    )
    assert found.untold["c"][NAME] == ("a", "b")
    _, found, _ = fitted()
    assert found.constants("c", newer=False).prompt_linear_layer_us == pytest.approx(225)
    assert found.errors["c"][ONE] == pytest.approx(math.hypot(0.7, 0.66), rel=1e-6)
    assert found.untold["c"][NAME] == ()


def test_a_file_says_which_constants_no_row_tells_of():
    _, found, _ = fitted(0)
    made = calibration_of(found, "b", [RUN], SPREADS, label="x", made="x", source="x")
    one = made.constants[NAME]
    assert one.assumed
    assert one.source == "not fitted, no row of b tells of it: a count of kernels, drawn towards what rows of a say"
    assert made.words(NAME).endswith("say, within a factor of 2.3")  # exp 0.817
    mine = calibration_of(found, "a", [RUN], SPREADS, label="x", made="x", source="x").constants[NAME]
    assert not mine.assumed
    assert mine.source == "fitted to 1 rows"

"""Simulated serving against measured points: a sample of one in twenty rows, read in place where the data are there.

benchmarks/serving_accuracy.py does it for all rows, with models and GPUs left out.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba")

ROOT = Path(__file__).resolve().parents[2]
SERVING = ROOT.parent / "shared" / "data" / "serving" / "silicon.csv"
pytestmark = pytest.mark.skipif(not SERVING.is_file(), reason=f"{SERVING} is not there: measured serving points")
EVERY = 20


@pytest.fixture(scope="module")
def errors() -> np.ndarray:
    """log(simulated / measured) of TPOT and TTFT, and whether each lies in the printed interval."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import serving_rows
    finally:
        sys.path.pop(0)
    from linkwise.simulate.calibrate.steps import run_of

    found = []
    for row in serving_rows.rows()[::EVERY]:
        case = serving_rows.case_of(row)
        steps, spreads = run_of(case), case.served.engine.calibration.spreads
        tpot, ttft = np.log(steps.tpot_s / case.tpot_s), np.log(steps.ttft_s / case.ttft_s)
        found.append(
            (tpot, ttft, spreads.tpot.low <= -tpot <= spreads.tpot.high, spreads.ttft.low <= -ttft <= spreads.ttft.high)
        )
    return np.array(found, float)


def test_the_median_row_of_a_sample_is_near(errors: np.ndarray) -> None:
    # Of all rows 5.2 % and 14.5 %; a sample of 56 has a standard error of a sixth of the median.
    assert np.median(np.abs(np.expm1(errors[:, 0]))) < 0.08
    assert np.median(np.abs(np.expm1(errors[:, 1]))) < 0.22


def test_neither_is_biased(errors: np.ndarray) -> None:
    assert abs(np.median(errors[:, 0])) < 0.04
    assert abs(np.median(errors[:, 1])) < 0.12


def test_intervals_hold_what_they_say(errors: np.ndarray) -> None:
    # 80 % of all rows; of 56, within three standard errors of 5.3 %
    assert np.all(np.abs(errors[:, 2:].mean(axis=0) - 0.8) < 0.16)

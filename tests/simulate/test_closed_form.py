"""The closed form of a plan against the event-by-event simulator, its reference, at loads it is meant for."""

import numpy as np
import pytest

pytest.importorskip("numba")

from linkwise import api
from linkwise.api_simulate import played
from linkwise.simulate.trials import measured

ASKED = 0.10  # benchmarks/search_speed.py holds many more layouts against it


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_mean_times_at_a_poisson_rate_are_the_simulated_ones(engine: str, share: float) -> None:
    words = {"engine": engine, "tp": 1, "isl": 1000, "osl": 200}
    rate = share * api.plan("llama-3.1-8b", "1xh100-sxm", **words).chosen.max_rate_per_s
    plan = api.plan("llama-3.1-8b", "1xh100-sxm", rate=rate, **words)
    kept = measured(played(plan, requests=3000, rate=rate, lengths="fixed", seed=1).requests)
    tpot = float(((kept["end"] - kept["first"]) / np.maximum(kept["output"] - 1, 1)).mean())
    ttft = float((kept["first"] - kept["arrival"]).mean())
    assert plan.chosen.point.tpot_s == pytest.approx(tpot, rel=ASKED)
    assert plan.chosen.point.ttft_s == pytest.approx(ttft, rel=ASKED)

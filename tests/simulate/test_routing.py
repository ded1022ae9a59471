"""What routers do to the waits of a real plan's load."""

import pytest

pytest.importorskip("numba")

import linkwise


def test_equal_requests_do_not_march_in_step() -> None:
    """Requests of one length that end together would be followed by as many that start together, each prompt in the
    way of the next, and those again: by counts alone, eight replicas of tp4 gave a mean TTFT of 524 ms under this load
    (2026-11-30), random choice 510 ms, turns 347 ms. A router that looks at load stays near turns."""
    plan = linkwise.plan("llama-3.3-70b", "4x8xh100-sxm", tp=4, isl=4000, osl=500, rate="14/s", pareto=False)
    mean = {
        router: linkwise.simulate(plan, replicas=8, requests=8000, lengths="fixed", router=router).ttft.mean
        for router in ("round-robin", "least", "random")
    }
    assert mean["least"] < 1.2 * mean["round-robin"] < mean["random"]

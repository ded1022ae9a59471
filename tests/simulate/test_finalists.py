"""Finalists of a search: what the event loop says decides, in the order the closed form prefers."""

import pytest
from msgspec.structs import replace

pytest.importorskip("numba")

import numpy as np

import linkwise
from linkwise import api_frontier
from linkwise.cluster.read import load as cluster
from linkwise.core.layout import Layout
from linkwise.engine import registry
from linkwise.engine.base import Options
from linkwise.model.read import load as model
from linkwise.plan.fit import Case
from linkwise.plan.frontier_types import Frontier, Offer
from linkwise.report.frontier import lines
from linkwise.simulate.finalists import simulated
from linkwise.simulate.load import scattered
from linkwise.simulate.served import served
from linkwise.workload.types import Targets, Workload

VLLM = registry.get("vllm")


def case(ttft_s: float = 1.0, tpot_s: float = 0.05) -> Case:
    load = Workload(isl_tokens=1000, osl_tokens=100, targets=Targets(ttft_s=ttft_s, tpot_s=tpot_s))
    return Case(model("llama-3.1-8b"), cluster("4xh100-sxm"), VLLM, Options(), load)


def offer(batch: int, tokens: float, meets: bool = True, **more) -> Offer:
    base = Offer(
        mode="mixed", layout=Layout(tp=1), groups=4, batch=batch, devices=4, tpot_s=0.01, ttft_s=0.1, rate_per_s=10.0,
        tokens_per_s_per_device=tokens, meets=meets, max_batched_tokens=8192,
    )  # fmt: skip
    return replace(base, **more)


def front(*offers: Offer) -> Frontier:
    return Frontier(offers=offers, choice=0, tried=len(offers), devices=4)


def test_the_preferred_offer_that_holds_is_the_choice() -> None:
    found = simulated(front(offer(8, 500.0), offer(16, 900.0), offer(999, 2000.0, meets=False)), case())
    assert found.choice == 1
    chosen = found.offers[1]
    # Sixteen users: as many requests at hand, in the whole time of a stay of each (Little's law), on each of 4 groups.
    stay = chosen.simulated_ttft_s + 99 * chosen.simulated_tpot_s
    assert chosen.simulated_rate_per_s == pytest.approx(4 * 16 / stay, rel=0.05)
    assert found.offers[0].simulated_tpot_s is None, "one that holds is enough"
    assert simulated(front(offer(8, 500.0), offer(16, 900.0)), case()).choice == found.choice, "the same every time"


def test_an_offer_that_does_not_hold_loses_the_choice() -> None:
    # At 256 users a token takes longer than 9 ms; at 1 it does not.
    tight = case(tpot_s=0.009)
    found = simulated(front(offer(256, 900.0), offer(1, 100.0, tpot_s=0.001)), tight)
    assert found.choice == 1
    assert not found.offers[0].meets
    assert found.offers[0].simulated_tpot_s > 0.009
    none = simulated(front(offer(256, 900.0)), tight)
    assert none.choice is None
    assert "none of them meets" in none.notes[-1]


def test_separate_pools_run_as_pools() -> None:
    one = offer(8, 100.0, mode="separate", groups=2, prefill_layout=Layout(tp=1), prefill_groups=2, rate_per_s=20.0)
    found = simulated(front(one), case())
    assert found.choice == 0
    assert found.offers[0].simulated_ttft_s > 0


def long_case() -> Case:
    """Tensor groups of two hold 8,912 tokens: prompts and answers of 8,300 fit, a fifth more does not."""
    load = Workload(isl_tokens=8000, osl_tokens=300, targets=Targets(ttft_s=5.0, tpot_s=0.05))
    return Case(model("llama-3.3-70b"), cluster("2x8xh100-sxm"), VLLM, Options(), load)


def test_finalists_scatter_by_what_their_groups_hold() -> None:
    slow = {"batch": 1, "tokens": 100.0, "tpot_s": 0.03, "ttft_s": 1.0}
    mixed = offer(layout=Layout(tp=2), groups=8, **slow)
    assert simulated(front(mixed), long_case()).offers[0].simulated_tpot_s is not None
    # Prefill groups hold prompts alone, and 9,600 tokens of one are more than they hold.
    pair = offer(mode="separate", layout=Layout(tp=4), groups=1, prefill_layout=Layout(tp=2), prefill_groups=3, **slow)
    found = simulated(front(pair), long_case())
    assert found.offers[0].simulated_tpot_s is not None
    assert "not simulated" not in " ".join(found.notes)


def test_the_scatter_is_what_the_smallest_pool_holds() -> None:
    plan = linkwise.plan("llama-3.3-70b", "8xh200-sxm", tp=2, isl=8000, osl=300)
    large = served(plan)
    small = large._replace(kv_tokens=557 * 16)
    # By hand: 20 % where there is room; one of 557 blocks is spare, 556 x 16 = 8,896 tokens for 8,300 and for 8,000.
    assert scattered(8000, 300, large, None, 9, 0)[2] == 0.2
    assert scattered(8000, 300, small, None, 9, 0)[2] == pytest.approx(8896 / 8300 - 1)
    assert scattered(8000, 300, large, small, 9, 0)[2] == pytest.approx(8896 / 8000 - 1)
    assert scattered(8000, 300, small, small, 9, 0)[2] == pytest.approx(8896 / 8300 - 1)
    inputs, outputs, share = scattered(8900, 12, small, None, 9, 0)
    assert (share, set(inputs), set(outputs)) == (0.0, {8900}, {12}), "no room: all are of the mean length"
    # Both rounded up are a token more than the share says, never more than the context.
    tight = large._replace(resolved=replace(large.resolved, max_model_len=25))
    inputs, outputs, share = scattered(11, 11, tight, None, 1000, 0)
    assert share > 0
    assert np.max(inputs + outputs) <= 25


def test_a_finalist_that_cannot_be_simulated_drops_out() -> None:
    # A handover from cp ranks is not modelled: such a pair cannot be simulated, the mixed groups behind it can.
    pair = offer(8, 900.0, mode="separate", groups=2, prefill_layout=Layout(cp=2), prefill_groups=1)
    found = simulated(front(pair, offer(8, 500.0)), case())
    assert found.choice == 1
    assert found.offers[0].simulated_tpot_s is None
    assert any("one finalist was not simulated" in note and "not modelled" in note for note in found.notes)
    alone = simulated(front(pair), case())
    assert alone.choice is None
    assert "no finalist could be simulated: the choice is open" in alone.notes
    assert "none of them could be simulated: no choice" in " ".join(map(str, lines(alone)))


def test_without_the_event_loop_a_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_frontier, "find_spec", lambda name: None)
    found = linkwise.plan("llama-3.1-8b", "1xh100-sxm", isl=1000, osl=100, tpot="20ms").frontier
    assert found is not None
    assert found.choice is not None
    assert api_frontier.NOT_SIMULATED in found.notes

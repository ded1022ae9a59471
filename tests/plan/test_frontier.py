"""The frontier: pools counted by hand, no offer beaten by another, devices never too many and none left unsaid."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkwise.cluster.read import load as cluster
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.engine import registry
from linkwise.engine.base import Options
from linkwise.model.read import load as model
from linkwise.plan.build import plan
from linkwise.plan.fit import Case
from linkwise.plan.frontier import frontier, priced
from linkwise.plan.frontier_types import Offer
from linkwise.plan.handoff_pools import Moved
from linkwise.plan.offers import Seen, Terms, choose, collect, front
from linkwise.plan.pools import Pool
from linkwise.plan.separate import _for_rate, _Pair, _points, _Side, _whole_pools
from linkwise.plan.types import Plan
from linkwise.workload.types import Targets, Workload

VLLM = registry.get("vllm")


def case(on="4xh100-sxm", name="llama-3.1-8b", **load) -> Case:
    targets = Targets(ttft_s=load.pop("ttft_s", None), tpot_s=load.pop("tpot_s", None))
    return Case(model(name), cluster(on), VLLM, Options(), Workload(targets=targets, **load))


def side(steps, prefill_s=0.1, ranks=1) -> _Side:
    return _Side(Layout(tp=ranks), Pool(ranks=ranks, prefill_s=prefill_s, steps=steps), 8192)


def pair(terms: Terms, moved: Moved | None = None) -> _Pair:
    return _Pair(terms, side(((1, 0.02),)), side(((8, 0.02),)), moved or Moved())


def test_pools_are_split_where_they_serve_most() -> None:
    # A prompt takes a prefill group 0.1 s, at most 0.9 of its time: 9/s. An answer of 100 tokens at batch 8 and 20 ms a
    # step takes 0.25 group-seconds: 4/s. Of 4 devices: 1 + 3 give min(9, 12) = 9/s, 2 + 2 min(18, 8) = 8/s.
    terms = Terms(case(isl_tokens=1000, osl_tokens=100), {"": 3.6}, None)
    (offer,) = _points(pair(terms), exact=True)
    assert [offer] == _whole_pools(pair(terms)), "the only batch is the best one"
    assert (offer.prefill_groups, offer.groups, offer.devices) == (1, 3, 4)
    assert offer.rate_per_s == pytest.approx(9.0)
    assert offer.tokens_per_s_per_device == pytest.approx(9 * 100 / 4)
    assert offer.tpot_s == 0.02
    # Three decode groups at 3/s each, 100 tokens of 20 ms: 6 at hand of the 8 they have room for.
    assert offer.batch == 6
    # TTFT: 0.1 s, M/D/1 at 0.9: 0.9 x 0.1 / (2 x 0.1) = 0.45 s, and the first step.
    assert offer.ttft_s == pytest.approx(0.1 + 0.45 + 0.02)
    # 4 devices at 3.60 USD an hour are 0.004 USD a second for 900 tokens.
    assert offer.usd_per_Mtoken == pytest.approx(0.004 / 900 * 1e6)
    assert offer.starving == "decode"
    # A route that carries 2 prompts/s for each pair of groups, and a handoff of 0.3 s.
    slow = _points(pair(terms, Moved(0.3, 2.0, "nic")))
    assert [x.rate_per_s for x in slow] == [pytest.approx(4.0)]
    assert (slow[0].prefill_groups, slow[0].limiting_link) == (2, "nic")


def test_a_rate_takes_as_many_groups_as_it_needs_and_costs_what_they_do() -> None:
    # A prefill group serves 9 prompts/s, a decode group 4 answers/s: 3/s take one of each, 5/s two decode groups.
    for rate, groups, devices in ((3.0, 1, 2), (5.0, 2, 3), (9.0, 3, 4)):
        terms = Terms(case(on="8xh100-sxm", isl_tokens=1000, osl_tokens=100, rate_per_s=rate), {"": 3.6}, None)
        found = _for_rate(pair(terms))[0]  # smaller batches take more decode groups
        assert (found.prefill_groups, found.groups, found.devices) == (1, groups, devices)
        assert found.for_rate_per_s == found.rate_per_s == rate
        assert found.tokens_per_s_per_device == pytest.approx(rate * 100 / devices)
        assert found.usd_per_Mtoken == pytest.approx(devices * 3.6 / 3600 / (rate * 100) * 1e6)
        # M/D/1 at that rate: a prompt of 0.1 s waits load / (2 (1 - load)) x 0.1 s, load rate x 0.1.
        load = rate * 0.1
        assert found.ttft_s == pytest.approx(0.1 + load / (2 * (1 - load)) * 0.1 + 0.02)
    terms = Terms(case(on="8xh100-sxm", isl_tokens=1000, osl_tokens=100, rate_per_s=1000.0), {}, None)
    assert _for_rate(pair(terms)) == [], "more groups than the devices hold"
    # A route of 2 prompts/s between a pair of groups: 5/s take three of each.
    terms = Terms(case(on="8xh100-sxm", isl_tokens=1000, osl_tokens=100, rate_per_s=5.0), {}, None)
    found = _for_rate(pair(terms, Moved(0.0, 2.0, "nic")))[0]
    assert (found.prefill_groups, found.groups) == (3, 3)


def test_the_choice_for_a_rate_is_the_fewest_devices_that_carry_it() -> None:
    """70B on 64 GPUs at 1/s: one group of four sustains 1.8/s. At 2.5 USD an hour 4 GPUs cost 10 USD for 1.8 M tokens:
    5.56 USD a million."""
    asked = case(
        "8x8xh100-sxm", "llama-3.3-70b", isl_tokens=4000, osl_tokens=500, rate_per_s=1.0, ttft_s=1.0, tpot_s=0.04
    )
    seen: list[Seen] = []
    made = plan(*asked, seen=collect(seen, asked))
    assert isinstance(made, Plan)
    assert made.replicas * made.layout.size == 4
    found = frontier(asked, seen, price={"": 2.5}, own=made.chosen)
    assert found.choice is not None
    chosen = found.offers[found.choice]
    assert chosen.devices <= 4
    assert found.own is not None
    assert found.own.usd_per_Mtoken == pytest.approx(4 * 2.5 / (1 * 500 * 3600 / 1e6), rel=1e-6)


def test_a_ttft_target_leaves_prompts_their_slack() -> None:
    # 0.2 s less 0.1 s of prefill and 0.02 s of a step leave 0.08 s to queue: load 2 x 0.08 / (0.1 + 0.16) = 0.615.
    terms = Terms(case(isl_tokens=1000, osl_tokens=100, ttft_s=0.2), {}, None)
    (offer,) = _points(pair(terms))
    assert offer.ttft_s <= 0.2 + 1e-9
    assert offer.meets
    assert offer.rate_per_s == pytest.approx(min(2 * 6.153846, 8.0))


def test_prefill_groups_on_other_devices() -> None:
    one = case(isl_tokens=1000, osl_tokens=100)
    terms = Terms(one, {"h100-sxm": 3.6, "l40s": 0.9}, one._replace(cluster=cluster("2xl40s")))
    (offer,) = _points(pair(terms))
    # All 4 of the decode devices: 16/s; of 2 prefill devices both: 18/s.
    assert (offer.prefill_groups, offer.groups, offer.rate_per_s) == (2, 4, pytest.approx(16.0))
    assert offer.usd_per_Mtoken == pytest.approx((4 * 3.6 + 2 * 0.9) / 3600 / 1600 * 1e6)


def offer(tpot: float, tokens: float, devices: int = 1, meets: bool = True, usd: float | None = None) -> Offer:
    return Offer(
        mode="mixed", layout=Layout(), groups=1, batch=1, devices=devices, tpot_s=tpot, ttft_s=1.0, rate_per_s=1.0,
        tokens_per_s_per_device=tokens, meets=meets, usd_per_Mtoken=usd,
    )  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from([0.01, 0.02, 0.05]), st.integers(1, 9)), min_size=1, max_size=30))
def test_no_offer_of_a_front_is_beaten(pairs) -> None:
    offers = [offer(tpot, float(tokens)) for tpot, tokens in pairs]
    kept = front(offers)
    assert [x.tpot_s for x in kept] == sorted((x.tpot_s for x in kept), reverse=True)
    for one in offers:
        beaten = any(x.tpot_s <= one.tpot_s and x.tokens_per_s_per_device >= one.tokens_per_s_per_device for x in kept)
        assert beaten, "every offer is on the front or no better than one of it"
    for one in kept:
        others = [x for x in kept if x is not one]
        assert not any(
            x.tpot_s <= one.tpot_s and x.tokens_per_s_per_device >= one.tokens_per_s_per_device for x in others
        )


def test_the_choice_is_the_cheapest_where_there_are_prices() -> None:
    offers = [offer(0.01, 5.0, usd=3.0), offer(0.02, 9.0, usd=4.0), offer(0.03, 20.0, meets=False, usd=1.0)]
    assert choose(offers, priced=True) is offers[0]
    assert choose(offers, priced=False) is offers[1]
    assert choose(offers[2:], priced=False) is None


def test_prices_as_typed() -> None:
    assert priced("") == {}
    assert priced("2.5") == {"": 2.5}
    assert priced("h100-sxm=2.5, h200-sxm=3") == {"h100-sxm": 2.5, "h200-sxm": 3.0}
    for text in ("x", "0", "-1", "nan", "h100-sxm=", "=3", "2,3", "1_0"):
        with pytest.raises(InputError):
            priced(text)


def test_a_price_of_other_devices_is_refused() -> None:
    with pytest.raises(InputError, match="h200-sxm"):
        frontier(case(), [], price={"h200-sxm": 3.0})


CLUSTERS = ("1xh100-sxm", "4xh100-sxm", "2x4xh100-sxm", "3x8xh100-sxm", "2x3xa100-80gb-pcie", "8xl40s")


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(CLUSTERS), st.sampled_from(["llama-3.1-8b", "qwen3-30b-a3b"]), st.integers(100, 4000),
    st.integers(1, 600), st.sampled_from([None, 0.5, 20.0]), st.sampled_from([None, 0.03]),
)  # fmt: skip
def test_a_plan_uses_no_more_devices_than_given_and_leaves_none_unsaid(on, name, isl, osl, rate, tpot) -> None:
    asked = case(on, name, isl_tokens=isl, osl_tokens=osl, rate_per_s=rate, tpot_s=tpot)
    seen: list[Seen] = []
    made = plan(*asked, seen=collect(seen, asked))
    found = frontier(asked, seen, price={"": 2.0})
    if isinstance(made, Plan):
        used = made.replicas * made.layout.size
        assert used <= asked.cluster.size
        assert len({d for row in made.rank_grid for d in row}) == used
        left = asked.cluster.size - used
        assert any(f"{left} of {asked.cluster.size} devices" in note for note in made.notes) == (left > 0)
    for one in found.offers:
        held = one.groups * one.layout.size + one.prefill_groups * (
            one.prefill_layout.size if one.prefill_layout else 0
        )
        assert one.devices == held <= asked.cluster.size
        smallest = min(one.layout.size, one.prefill_layout.size if one.prefill_layout else one.layout.size)
        if one.for_rate_per_s is None:  # what no further group fits into stays
            assert asked.cluster.size - held < max(one.layout.size, smallest)
        else:
            assert one.for_rate_per_s == one.rate_per_s == rate
        # The figures are per device used.
        assert np.isclose(one.tokens_per_s_per_device * held, one.rate_per_s * osl)
    if found.choice is not None:
        assert found.offers[found.choice].meets

"""Counts of pools. Expected values are hand calculations on round numbers; properties hold for any pools."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkwise.plan.pool_counts import Both, Groups, carrying, fullest, latency, limit, most, queued
from linkwise.plan.pools import Pool

# One prompt takes 0.1 s; a decode step 20 ms at 8 requests. Prompts fill at most 0.9 of a group's time: 9/s a group.
# An answer of 100 tokens takes 100 x 0.02 / 8 = 0.25 group-seconds: 4/s a group.
PROMPT = Pool(ranks=1, prefill_s=0.1, steps=((1, 0.02),))
ANSWER = Pool(ranks=1, prefill_s=0.1, steps=((8, 0.02),))


def test_requests_at_hand_are_as_many_as_the_rate_asks_for() -> None:
    # From 8 to 24 requests a step is 4 ms + 0.5 ms x requests. 12/s of 100 tokens: b = 1200 x (0.004 + 0.0005 b): 12.
    growing = Pool(ranks=1, prefill_s=0.1, steps=((8, 0.008), (24, 0.016)))
    both = Both(PROMPT, growing, output_tokens=100, devices=4)
    seen = latency(both, 2, 1, 12.0)
    assert float(seen.batch) == pytest.approx(12)
    assert float(seen.tpot_s) == pytest.approx(0.010)
    # 6 prompts/s a group: load 0.6 of two that share a queue: 0.6^1.449 / (2 x 0.4) x 0.05 s = 29.8 ms.
    assert float(seen.ttft_s) == pytest.approx(0.1 + 0.0298 + 0.010, abs=5e-5)
    # One group at the same load, M/D/1: 0.6 x 0.1 / (2 x 0.4) = 75 ms.
    alone = latency(both, 1, 1, 6.0)
    assert float(alone.ttft_s - alone.tpot_s) == pytest.approx(0.1 + 0.075)
    # Two decode groups: 600 tokens/s each, 600 x 8 ms = 4.8 at hand, below the first point.
    half = latency(both, 2, 2, 12.0)
    assert (float(half.batch), float(half.tpot_s)) == (pytest.approx(4.8), pytest.approx(0.008))
    # 1,500 tokens/s are the most of 24.
    assert float(latency(both, 2, 1, 15.0).batch) == pytest.approx(24)


@pytest.mark.parametrize(("groups", "load"), [(1, 0.5), (2, 0.6), (2, 0.8), (6, 0.8), (6, 0.9), (16, 0.9)])
def test_prompts_wait_as_for_so_many_servers(groups: int, load: float) -> None:
    """M/D/c after Cosmetatos (1975): half of Erlang's M/M/c, corrected; it is within 2 % of exact tables here."""
    erlang, term, below = load * groups, 1.0, 1.0
    for n in range(1, groups):
        term *= erlang / n
        below += term
    last = term * erlang / groups / (1 - load)
    random = last / (below + last) / (groups * (1 - load))
    wait = random / 2 * (1 + (1 - load) * (groups - 1) * ((4 + 5 * groups) ** 0.5 - 2) / (16 * load * groups))
    assert float(queued(1.0, load, groups)) == pytest.approx(wait, rel=0.06)
    assert fullest(1.0, queued(1.0, load, groups), groups) == pytest.approx(load, rel=1e-6)


def test_prefill_groups_on_devices_of_their_own() -> None:
    both = Both(PROMPT, ANSWER, output_tokens=100, devices=3, elsewhere=2)
    # Three decode groups take 12/s; one prefill group gives 9: 2.25/s a device; two give 18: 12 / 5 = 2.4.
    assert most(both, (1.0, 1.0)) == most(both) == Groups(2, 3)
    # Where a prefill group costs ten times a decode group: 9 / 13 against 12 / 23.
    assert most(both, (10.0, 1.0)) == Groups(1, 3)
    assert limit(both, Groups(1, 3)) == (pytest.approx(9.0), 8, pytest.approx(0.1 / 0.9), pytest.approx(0.25))
    assert not both.hold(Groups(3, 3))
    assert most(both._replace(elsewhere=0)) is None


def test_a_rate_takes_the_cheapest_groups() -> None:
    # Steps of 10 ms up to 16 requests: b answers of 100 tokens a second at batch b. 8/s: one decode group at 8 or more.
    flat = Pool(ranks=2, prefill_s=0.1, steps=((1, 0.01), (16, 0.01)))
    both = Both(PROMPT, flat, output_tokens=100, devices=16)
    assert carrying(both, 8.0)[:3] == [Groups(1, 1), Groups(1, 2), Groups(1, 3)]
    assert carrying(both, 20.0)[0] == Groups(3, 2)
    assert carrying(both._replace(tpot_s=0.005), 8.0) == []


seconds = st.floats(0.002, 0.5)
answers = st.builds(
    lambda ranks, first, more, last: Pool(ranks=ranks, prefill_s=0.1, steps=((1, first), (last, first + more))),
    st.integers(1, 8), seconds, seconds, st.integers(2, 400),
)  # fmt: skip
prompts = st.builds(
    lambda ranks, time: Pool(ranks=ranks, prefill_s=time, steps=((1, 1.0),)), st.integers(1, 8), seconds
)


@settings(max_examples=100, deadline=None)
@given(
    prompts, answers, st.integers(2, 64), st.one_of(st.none(), st.integers(1, 32)), st.floats(0.1, 3),
    st.floats(0.01, 1), st.floats(0.05, 50), st.integers(2, 500),
)  # fmt: skip
def test_groups_that_carry_a_rate_do_it_inside_the_targets(
    prefill, decode, devices, elsewhere, ttft, tpot, rate, output
) -> None:
    both = Both(prefill, decode, output, devices, elsewhere, ttft, tpot, exposed_s=0.01, link_rate_per_s=40.0)
    found = carrying(both, rate)
    for groups in found[:5]:
        best = limit(both, groups)
        assert best is not None and best.rate >= rate * (1 - 1e-9)
        seen = latency(both, *groups, rate)
        assert float(seen.ttft_s) <= ttft * (1 + 1e-9)
        assert float(seen.tpot_s) <= tpot * (1 + 1e-9)
    for fewer in (Groups(1, 1), *((g._replace(decode=g.decode - 1)) for g in found[:1] if g.decode > 1)):
        best = limit(both, fewer)
        cheaper = fewer.prefill * prefill.ranks + fewer.decode * decode.ranks
        if found and cheaper < found[0].prefill * prefill.ranks + found[0].decode * decode.ranks:
            assert best is None or best.rate < rate, "no cheaper groups carry it"
    whole = most(both)
    if whole is not None:
        assert both.hold(whole)
        best = limit(both, whole)
        carried = [one for one in found if both.hold(one)]
        if carried:  # up to 128 every batch is looked at, then every 64th part
            assert best is not None and best.rate >= rate * (1 - 1 / 64)

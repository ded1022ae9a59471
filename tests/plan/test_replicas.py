"""So many replicas as asked share the load: each has its part of the rate, or of the users.

Expected values: rate over replicas, and Little's law for a closed loop: users over the time of a stay.
"""

from typing import Any

import pytest

import linkwise
from linkwise.api_simulate import played
from linkwise.plan.agree import agree
from linkwise.simulate.trials import measured

RATE: dict[str, Any] = {
    "on": "4x8xh100-sxm",
    "isl": 4000,
    "osl": 500,
    "rate": "3/s",
    "ttft": "1s",
    "tpot": "40ms",
    "pareto": False,
}
USERS: dict[str, Any] = {"on": "8xh100-sxm", "isl": 1000, "osl": 200}


def planned(*given: Any, **settings: Any) -> linkwise.Plan:
    made = linkwise.plan(*given, **settings)
    assert isinstance(made, linkwise.Plan)
    return made


def of_rate(replicas: int | None, **others: Any) -> linkwise.Plan:
    return planned("llama-3.3-70b", tp=4, replicas=replicas, **{**RATE, **others})


def test_a_rate_is_shared_by_all_replicas_that_were_asked_for() -> None:
    times = []
    for count in (2, 3, 4, 8):
        made = of_rate(count)
        point = made.chosen.point
        assert made.replicas == made.chosen.replicas == count
        assert point.rate_per_s == pytest.approx(3 / count)
        assert point.tokens_per_s == pytest.approx(3 / count * 500)
        assert made.figures["rate_per_s"] == pytest.approx(3 / count, rel=1e-5)
        assert made.figures["deployment_rate_per_s"] == pytest.approx(3, rel=1e-5)
        # A stay is its TTFT and 499 tokens: the requests that a replica has at hand follow from its rate (Little).
        stay = point.ttft_s + 499 * point.tpot_s
        assert point.at_hand == pytest.approx(3 / count * stay, rel=0.02)
        times.append((point.tpot_s, point.ttft_s))
        # One replica at the same load, fed at random, is slower.
        alone = of_rate(1, rate=f"{3 / count}/s").chosen.point
        assert point.ttft_s < alone.ttft_s
        assert point.tpot_s < alone.tpot_s
    assert times == sorted(times, reverse=True)
    assert of_rate(2).chosen == of_rate(None).chosen  # what the rate takes


@pytest.mark.parametrize(("count", "rate"), [(1, 1.2), (2, 2.4), (2, 3.0), (4, 4.8), (8, 12.0)])
def test_replicas_behind_a_router_that_looks_at_load_do_what_the_simulator_says(count: int, rate: float) -> None:
    """The reference is the event loop at the same step times, 20,000 requests; asked: 10 %. 3/s on two: 89 %."""
    made = of_rate(count, rate=f"{rate}/s", tpot=None)
    point = made.chosen.point
    seen = measured(played(made, requests=20_000, rate=rate, lengths="fixed").requests)
    tpot = float(((seen["end"] - seen["first"]) / (seen["output"] - 1)).mean())
    assert point.tpot_s == pytest.approx(tpot, rel=0.10)
    assert point.ttft_s == pytest.approx(float((seen["first"] - seen["arrival"]).mean()), rel=0.10)


def test_a_command_with_more_replicas_than_the_rate_takes_has_its_share_on_each() -> None:
    command = "vllm serve meta-llama/Llama-3.3-70B-Instruct -tp 4 --data-parallel-size 3"
    made = planned(from_command=command, **RATE)
    assert (made.replicas, made.chosen.point.rate_per_s) == (3, pytest.approx(1.0))
    few = planned(from_command=command, **{**RATE, "rate": "0.03/s"}).chosen
    assert few.point.rate_per_s == pytest.approx(0.01)
    assert few.point.at_hand < 1


@pytest.mark.parametrize(("users", "replicas", "each"), [(4, 8, 1), (10, 4, 3), (10, None, 2), (4, None, 1), (8, 4, 2)])
def test_users_of_a_closed_loop_are_no_more_than_they_are(users: int, replicas: int | None, each: int) -> None:
    made = planned("llama-3.1-8b", concurrency=users, replicas=replicas, tp=1, **USERS)
    point, count = made.chosen.point, made.replicas
    total = users / (point.ttft_s + 199 * point.tpot_s)  # Little, everyone's stay that on the fullest replica
    assert point.batch == each
    assert point.rate_per_s * count == pytest.approx(total)
    assert made.figures["deployment_rate_per_s"] == pytest.approx(total)
    shown = " ".join(str(made).split())
    assert ("in flight" in " ".join(made.notes)) == (users != each * count)
    if users < count:
        assert "note: 4 in flight keep 4 of 8 replicas at work, 4 idle: rates are the mean" in shown
    explained = str(linkwise.explain(made, "rate_per_s").chain)
    assert ("users" in explained) == (users != each * count)
    agree(made, "p.json")


def test_the_cost_is_that_of_the_replicas_at_what_they_do() -> None:
    made = planned("llama-3.1-8b", concurrency=4, replicas=8, tp=1, price="2", **USERS)
    assert made.frontier is not None
    own = made.frontier.own
    assert own is not None
    point = made.chosen.point
    # 8 x 2 USD an hour for 4 / (TTFT + 199 TPOT) x 200 tokens a second.
    tokens = 4 / (point.ttft_s + 199 * point.tpot_s) * 200
    assert own.usd_per_Mtoken == pytest.approx(16 / 3600 / tokens * 1e6)
    assert own.usd_per_Mtoken == pytest.approx(7.5, rel=0.01)


def test_more_replicas_than_the_devices_hold_are_the_reason_that_is_given() -> None:
    """32 devices hold eight groups of 4; 1.68 requests/s a group inside the targets: two of them carry 3/s."""
    none = linkwise.plan("llama-3.3-70b", replicas=9, **RATE)
    assert isinstance(none, linkwise.NoPlan)
    assert none.nearest.layout.tp == 4
    assert none.nearest.shortfall.reason == "9 replicas of 4 devices are more than 32 devices"
    assert none.changes == ("fewer replicas: 2 x (tp4) carry the load, 8 fit the devices",)
    none = linkwise.plan("llama-3.3-70b", tp=4, pp=1, cp=1, dp_attn=1, dcp=1, replicas=1, **RATE)
    assert isinstance(none, linkwise.NoPlan)
    assert none.nearest.shortfall.resource == "rate"
    assert none.changes[0] == "more replicas: 2 x (tp4) carry the load, 8 fit the devices"
    assert none.changes[1].startswith("a rate of 1.68/s: 1 x (tp4) carry it")
    none = linkwise.plan("llama-3.1-8b", "4xh100-sxm", tp=2, replicas=4)
    assert isinstance(none, linkwise.NoPlan)
    assert none.changes == ("fewer replicas: 2 x (tp2) fit the devices",)


def test_users_that_so_many_replicas_have_no_memory_for_are_not_served() -> None:
    one = {"tp": 1, "pp": 1, "cp": 1, "dp_attn": 1, "dcp": 1}
    holds = planned("llama-3.1-8b", concurrency=2000, **one, **USERS).ledger.requests
    assert 250 < holds < 1000  # 2,000 users on eight replicas, not on two
    none = linkwise.plan("llama-3.1-8b", concurrency=2000, replicas=2, **one, **USERS)
    assert isinstance(none, linkwise.NoPlan)
    short = none.nearest.shortfall
    assert short.resource == "kv concurrency"
    assert short.need / short.have == pytest.approx(1000 / holds)
    assert short.reason == f"2,000 requests on 2 replica(s) are 1,000 on each; KV holds {holds:,}"
    assert none.changes == ("more replicas: 8 x (tp1) carry the load, 8 fit the devices",)
    assert "no plan    kv concurrency: 2,000 requests on 2 replica(s)" in " ".join(str(none).split(" "))

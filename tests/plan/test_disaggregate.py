"""Mixed against disaggregated. Expected values are hand calculations on round numbers, or facts of public threads."""

import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linkwise
from linkwise.cluster.read import load as load_cluster
from linkwise.core.chain import chain_of
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.core.quantity import Quantity, value_of
from linkwise.engine import registry
from linkwise.engine.base import Options
from linkwise.model.read import load as load_model
from linkwise.plan.disaggregate import NAMES, Disaggregation, compare, verdict, verdict_figures
from linkwise.plan.pool_counts import balance
from linkwise.plan.pools import Pool, Question, pool_of
from linkwise.workload.types import Targets, Workload

# One prompt takes 0.1 s; a decode step 10 ms at any batch up to 100.
FLAT = Pool(ranks=1, prefill_s=0.1, steps=((1, 0.01), (100, 0.01)))
QUIET = {"failures_per_device_hour": 0.0}


def ask(**changes) -> Question:
    base = {"devices": 20, "output_tokens": 500, "mixed": FLAT, "prefill": FLAT, "decode": FLAT, **QUIET}
    return Question(**(base | changes))


def terms(found: Disaggregation) -> dict[str, float]:
    return {t.name: t.per_s for t in found.terms}


def test_without_targets_separation_only_costs() -> None:
    # Mixed, batch 100: a request costs 0.1 + 500 x 0.01 / 100 = 0.15 s, so 20 groups carry 133.3/s; that prompts fill
    # at most 0.9 of the time asks for 0.1 / 0.9 = 0.111 s only.
    found = verdict(ask())
    assert found.mixed_per_s == pytest.approx(20 / 0.15)
    # Apart: prefill 0.111 s, decode 0.05 s of group time: 20 / 0.1611 = 124.1/s; 13 or 14 of 20 groups prefill:
    # min(13 x 9, 7 x 20) = 117, min(14 x 9, 6 x 20) = 120/s.
    assert found.disaggregated_per_s == pytest.approx(120)
    assert (found.prefill_groups, found.decode_groups) == (14, 6)
    assert found.verdict == "mixed"
    assert terms(found)["interference"] == pytest.approx(20 / (0.1 / 0.9 + 0.05) - 20 / 0.15)
    assert terms(found)["capacity"] == pytest.approx(120 - 20 / (0.1 / 0.9 + 0.05))
    assert found.ratio == pytest.approx((0.1 / 0.9) / 0.05)


def test_a_tpot_target_turns_it_round() -> None:
    # TPOT 12 ms: a mixed group holds b with 0.01 + b x 0.1 / 500 <= 0.012, so b = 10: 1 / (0.1 + 500 x 0.01 / 10)
    # = 1.667/s a group, 33.3/s in all. Apart, a step of 10 ms meets the target at any batch: still 120/s.
    found = verdict(ask(tpot_s=0.012))
    assert found.mixed_batch == 10
    assert found.mixed_per_s == pytest.approx(20 / 0.6)
    assert found.disaggregated_per_s == pytest.approx(120)
    assert found.verdict == "disaggregated"
    assert max(terms(found), key=lambda n: terms(found)[n]) == "interference"
    assert "TPOT of a mixed group" in found.measure
    # Decision case 23: the verdict depends on the target and flips with it; mixed gains as the target loosens.
    assert verdict(ask(tpot_s=0.05)).verdict == "mixed"
    loose = verdict(ask(tpot_s=0.05))
    assert "disaggregated wins with a TPOT target of" in loose.break_even


def seconds(text: str) -> list[float]:
    """The times of a break-even: where the answer turns, and where it turns back, as printed."""
    units = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
    return [float(n) * units[u] for n, u in re.findall(r"([\d.]+) (us|ms|s)\b", text.partition(" (now")[0])]


def test_the_break_even_flips_the_verdict_where_it_says() -> None:
    # Mixed groups: TPOT = 0.01 + b / 5000 at batch b; they carry 120/s, what the pools do, at a TPOT of 15 ms:
    # b = 25 gives 20 / (0.1 + 5 / 25) = 66.7/s; b = 75 (25 ms) gives 20 / (0.1 + 5 / 75) = 120/s.
    found = verdict(ask(tpot_s=0.05))
    at, back = seconds(found.break_even)
    assert at == pytest.approx(0.025, rel=0.01)
    assert back == pytest.approx(0.01, rel=0.01), "a step alone takes 10 ms"
    assert verdict(ask(tpot_s=at)).verdict == "disaggregated"
    assert verdict(ask(tpot_s=at * 1.01)).verdict == "mixed"
    assert verdict(ask(tpot_s=back)).verdict == "disaggregated"
    assert verdict(ask(tpot_s=back * 0.99)).verdict != "disaggregated"
    # Without a target the same target is named.
    assert seconds(verdict(ask()).break_even)[0] == pytest.approx(0.025, rel=0.01)
    # And from the other side: a handoff that exposes so much leaves no slack in the TTFT target.
    slow = ask(ttft_s=0.3, tpot_s=0.012)
    (late,) = seconds(verdict(slow).break_even)
    assert verdict(slow).verdict == "disaggregated"
    assert verdict(msgspec.structs.replace(slow, exposed_s=late)).verdict == "mixed"
    assert verdict(msgspec.structs.replace(slow, exposed_s=late * 0.99)).verdict == "disaggregated"


def test_a_break_even_flips_the_verdict_of_the_command() -> None:
    """The review's case: another TPOT target changes which mixed group serves most, and so the verdict."""
    asked = {
        "on": "8xh100-sxm",
        "prompt": 4000,
        "osl": 500,
        "rate": "3/s",
        "prefill_tp": 4,
        "decode_tp": 4,
        "ttft": 2.0,
    }

    def said(tpot: float) -> Disaggregation:
        found = linkwise.handoff("llama-3.3-70b", tpot=tpot, **asked).verdict
        assert found is not None
        return found

    now = said(0.045)
    assert now.verdict == "mixed"
    at, back = seconds(now.break_even)
    for tpot, answer in ((at, True), (at * 1.01, False), (back, True), (back * 0.99, False)):
        assert (said(tpot).verdict == "disaggregated") is answer, tpot


def test_the_mixed_group_that_serves_most_is_compared() -> None:
    # Two ranks that halve everything: TPOT 12 ms then leaves b with 0.005 + b x 0.05 / 500 <= 0.012: b = 70.
    quick = Pool(ranks=2, prefill_s=0.05, steps=((1, 0.005), (100, 0.005)), label="tp2")
    found = verdict(ask(tpot_s=0.012, others=(quick,)))
    assert (found.question.mixed, found.question.others, found.mixed_batch) == (quick, (), 70)
    assert found.mixed_per_s == pytest.approx(10 / (0.05 + 500 * 0.005 / 70))
    assert verdict(ask(tpot_s=0.05, others=(quick,))).mixed_per_s > found.mixed_per_s


def test_pools_that_cannot_serve_the_rate_say_which_is_short() -> None:
    # A prompt costs 0.111 s of a prefill group, its tokens 0.05 s of a decode group. 100/s: 12 and 5 groups of one.
    enough = verdict(ask(rate_per_s=100)).supply
    assert enough is not None
    assert (enough.prefill_needed, enough.decode_needed, enough.devices_needed) == (12, 5, 17)
    assert (enough.serves, enough.short) == (True, "")
    # 200/s: 23 prefill groups, 19 fit beside one decode group; 10 decode groups would fit.
    short = verdict(ask(rate_per_s=200)).supply
    assert short is not None
    assert (short.prefill_needed, short.prefill_most, short.decode_needed) == (23, 19, 10)
    assert (short.serves, short.short) == (False, "prefill")
    assert "the prefill pool is short by 4 groups (19 of 23 fit beside one decode group)" in short.reason
    assert "serve 120/s" in short.reason
    # 130/s: 15 + 7 = 22 devices; each pool alone would fit.
    both = verdict(ask(rate_per_s=130)).supply
    assert both is not None
    assert (both.short, both.devices_needed) == ("devices", 22)
    assert "short by 2 devices" in both.reason
    none = verdict(ask(rate_per_s=1, tpot_s=0.001)).supply
    assert none is not None
    assert not none.serves
    assert verdict(ask()).supply is None


@settings(max_examples=60, deadline=None)
@given(st.floats(0.1, 300), st.integers(2, 40))
def test_a_supply_agrees_with_the_verdict(rate: float, devices: int) -> None:
    found = verdict(ask(devices=devices, rate_per_s=rate))
    assert found.supply is not None
    assert found.supply.serves is (found.disaggregated_per_s >= rate * (1 - 1e-9))


def test_one_to_one_pools_starve_unless_times_match() -> None:
    """Decision case 21 (vllm#11345, Mooncake#5): 1P1D gives nothing over two mixed unless the times are near 1:1."""
    # 0.1 s of prefill against 0.05 s of decode a request: decode waits half its time, and two mixed groups do more.
    even = balance(1, 0.1, 1, 0.05)
    assert (even.starving, even.idle) == ("decode", pytest.approx(0.5))
    assert even.rate == pytest.approx(10)
    assert balance(1, 0.05, 1, 0.1).starving == "prefill"
    assert balance(1, 0.1, 1, 0.1).starving == ""
    # The ratio follows from the times: two prefill groups for one decode group keep both busy.
    assert balance(2, 0.1, 1, 0.05).starving == ""
    pair = verdict(ask(devices=2))
    assert (pair.prefill_groups, pair.decode_groups) == (1, 1)
    assert pair.starving == "decode"
    assert pair.verdict == "mixed"
    assert any("starves" in t.why for t in pair.terms if t.name == "capacity")


def test_a_ttft_target_takes_slack_from_prefill() -> None:
    # TTFT 0.21 s: 0.21 - 0.1 - 0.01 leaves 0.1 s to queue: load 0.2 / (0.1 + 0.2) = 2/3, a prompt costs 0.15 s.
    found = verdict_figures(ask(ttft_s=0.21), given=Quantity.given)
    text = str(chain_of(found["disaggregated"]))
    assert "load.moved = min(2 * slack.moved / (prefill.moved + 2 * slack.moved), 0.9)" in text
    assert "= 0.666667" in text
    # A handoff that exposes all the slack leaves nothing.
    late = verdict(ask(ttft_s=0.21, exposed_s=0.1))
    assert late.disaggregated_per_s == 0
    assert "miss a target" in late.notes[0]
    assert late.verdict == "mixed"


def test_transfer_costs_what_it_exposes_and_what_the_link_carries() -> None:
    free = verdict(ask(ttft_s=0.3, tpot_s=0.012))
    slow = verdict(ask(ttft_s=0.3, tpot_s=0.012, exposed_s=0.1))
    assert terms(free)["transfer"] == 0
    assert terms(slow)["transfer"] < 0
    assert "once a handoff exposes" in slow.break_even
    # A route of 5 handoffs/s a group: prefill groups would do 9, decode groups 20.
    narrow = verdict(ask(link_rate_per_s=5, limiting_link="n0.nic0->rail0"))
    assert narrow.disaggregated_per_s == pytest.approx(50)  # 10 x 5 = 10 x 5
    assert narrow.limiting_link == "n0.nic0->rail0"
    assert any("n0.nic0" in t.why for t in narrow.terms if t.name == "transfer")


def test_device_fit_counts_each_pool_s_own_groups() -> None:
    # A decode layout that halves the step at the same size: decode 0.025 s a request.
    quick = Pool(ranks=1, prefill_s=0.1, steps=((1, 0.005), (100, 0.005)))
    found = verdict(ask(decode=quick))
    assert terms(found)["device fit"] == pytest.approx(20 / (0.1 / 0.9 + 0.025) - 20 / (0.1 / 0.9 + 0.05))


def test_failures_take_running_requests_and_partners_with_them() -> None:
    # One failure a device-hour, 360 s to restart: a mixed group of 1 loses (360 + 100 x 0.1) / 3600 of its time.
    found = verdict(ask(failures_per_device_hour=1.0, restart_s=360.0))
    cost = 0.1 / 0.9
    mixed = 20 / 0.15 * 370 / 3600
    apart = 20 / (cost + 0.05)
    # Prefill group: 360 s. Decode group: 360 s and 100 prompts of 0.111 s, by 0.111 / 0.05 prefill groups each.
    pools = apart * (360 + 360 + 100 * cost * cost / 0.05) / 3600
    assert terms(found)["failure"] == pytest.approx(mixed - pools)


def test_a_prompt_that_rides_costs_less_in_a_mixed_group() -> None:
    riding = Pool(ranks=1, prefill_s=0.1, ride_s=0.05, steps=FLAT.steps)
    assert verdict(ask(mixed=riding, tpot_s=0.012)).mixed_per_s > verdict(ask(tpot_s=0.012)).mixed_per_s


def test_too_few_devices_and_impossible_targets() -> None:
    wide = Pool(ranks=8, prefill_s=0.1, steps=FLAT.steps)
    found = verdict(ask(devices=8, mixed=wide, prefill=wide, decode=wide))
    assert found.disaggregated_per_s == 0
    assert "hold no prefill group" in found.notes[0]
    nothing = verdict(ask(tpot_s=0.001))
    assert nothing.verdict == "neither meets the targets"


def test_every_figure_has_a_chain_and_json() -> None:
    q = ask(ttft_s=0.3, tpot_s=0.012, exposed_s=0.02, link_rate_per_s=50, failures_per_device_hour=1e-4)
    recorded = verdict_figures(q, given=Quantity.given)
    assert set(recorded) == {"mixed", "disaggregated", *NAMES}
    for name, number in verdict_figures(q).items():
        assert isinstance(recorded[name], Quantity)
        assert value_of(recorded[name]) == pytest.approx(number)
        assert chain_of(recorded[name]).inputs
    found = verdict(q)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Disaggregation) == found


times = st.floats(1e-3, 1.0)


def pools() -> st.SearchStrategy:
    return st.builds(
        lambda ranks, p, first, more, most: Pool(ranks=ranks, prefill_s=p, steps=((1, first), (most, first + more))),
        st.integers(1, 8), times, times, st.floats(0, 1), st.integers(2, 64),
    )  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(
    pools(), pools(), pools(), st.integers(1, 64), st.integers(1, 500), st.one_of(st.none(), st.floats(0.01, 3)),
    st.one_of(st.none(), st.floats(0.01, 3)), st.floats(0, 0.5), st.floats(0, 1e-3),
)  # fmt: skip
def test_the_five_terms_add_up(mixed, prefill, decode, devices, output, ttft, tpot, exposed, failures) -> None:
    q = Question(
        devices=devices, output_tokens=output, mixed=mixed, prefill=prefill, decode=decode, ttft_s=ttft, tpot_s=tpot,
        exposed_s=exposed, failures_per_device_hour=failures,
    )  # fmt: skip
    found = verdict(q)
    assert [t.name for t in found.terms] == list(NAMES)
    difference = found.disaggregated_per_s - found.mixed_per_s
    assert sum(t.per_s for t in found.terms) == pytest.approx(difference, rel=1e-9, abs=1e-9)
    assert found.prefill_groups * prefill.ranks + found.decode_groups * decode.ranks <= devices
    assert found.break_even and found.measure
    if found.verdict == "disaggregated":
        assert difference > 0


@pytest.mark.parametrize(
    "build",
    [
        lambda: Pool(ranks=0, prefill_s=1, steps=((1, 1.0),)),
        lambda: Pool(ranks=1, prefill_s=float("nan"), steps=((1, 1.0),)),
        lambda: Pool(ranks=1, prefill_s=1, steps=()),
        lambda: Pool(ranks=1, prefill_s=1, steps=((2, 1.0), (1, 1.0))),
        lambda: Pool(ranks=1, prefill_s=1, steps=((1, -1.0),)),
        lambda: FLAT.step(101),
        lambda: ask(devices=0),
        lambda: ask(tpot_s=float("nan")),
        lambda: ask(failures_per_device_hour=2.0),
    ],
)
def test_bad_input_is_refused(build) -> None:
    with pytest.raises(InputError):
        build()


def test_the_plan_s_own_times_feed_the_verdict() -> None:
    model, cluster, engine = load_model("llama-3.1-8b"), load_cluster("2x8xh100-sxm"), registry.get("vllm")
    workload = Workload(isl_tokens=4000, osl_tokens=200, targets=Targets(ttft_s=1.0, tpot_s=0.02))
    one, four = Layout(tp=1), Layout(tp=4)
    # A step reads 16 GB of weights at 3.35 TB/s at the very least: 4.8 ms; a prompt is 2 x 8e9 x 4000 FLOP at 989e12.
    pool = pool_of(model, cluster, engine, one, workload, Options())
    assert pool.step(1) > 16.06e9 / 3.35e12
    assert pool.prefill_s > 2 * 8.03e9 * 4000 / 989e12
    assert pool.ride < pool.prompt  # a chunk that rides shares the step's reading of the weights
    found = compare(model, cluster, engine, workload, mixed=one, prefill=one, decode=four)
    assert found.verdict in {"mixed", "disaggregated"}
    assert found.limiting_link
    assert sum(t.per_s for t in found.terms) == pytest.approx(found.disaggregated_per_s - found.mixed_per_s)
    assert found.prefill_groups + 4 * found.decode_groups <= 16
    with pytest.raises(InputError, match="does not fit"):
        pool_of(load_model("llama-3.1-405b"), cluster, engine, one, workload, Options())


@settings(max_examples=60, deadline=None)
@given(
    ranks=st.tuples(st.integers(1, 8), st.integers(1, 8)), devices=st.integers(2, 40), ttft=st.floats(0.15, 3),
    last=st.floats(0.011, 0.3), exposed=st.floats(0, 0.05), output=st.integers(5, 2000),
)  # fmt: skip
def test_whole_pools_are_the_best_of_every_split_and_batch(ranks, devices, ttft, last, exposed, output) -> None:
    """Against every split and batch, one by one, each at the load where n groups' queue (Sakasegawa) is the slack."""

    def fullest(slack: float, groups: int) -> float:
        low, high = 0.0, 0.9
        for _ in range(50):
            load = (low + high) / 2
            wait = load ** ((2 * (groups + 1)) ** 0.5 - 1) / (groups * (1 - load)) * 0.05
            low, high = (load, high) if wait <= slack else (low, load)
        return high

    prefill, decode = FLAT, Pool(ranks=ranks[1], prefill_s=0.1, steps=((1, 0.01), (24, last)))
    prefill = msgspec.structs.replace(prefill, ranks=ranks[0])
    q = ask(devices=devices, output_tokens=output, prefill=prefill, decode=decode, ttft_s=ttft, exposed_s=exposed)
    best = 0.0
    for prompts in range(1, devices // ranks[0] + 1):
        answers = (devices - prompts * ranks[0]) // ranks[1]
        for batch in range(1, 25):
            step = decode.step(batch)
            slack = ttft - 0.1 - exposed - step
            if slack > 0 and answers > 0:
                best = max(best, min(prompts * fullest(slack, prompts) / 0.1, answers * batch / (output * step)))
    found = verdict(q)
    assert found.disaggregated_per_s == pytest.approx(best)
    if best:
        at, under = (verdict(msgspec.structs.replace(q, rate_per_s=x * best)).supply for x in (1.001, 0.999))
        assert (at.serves, under.serves) == (False, True)

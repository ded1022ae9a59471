"""The event loop against laws it cannot know: queueing formulas, Little's law, the bubble, conservation.

Where arrivals are random, the tolerance is four standard errors: a right loop fails one run in 16,000, and the seed is
fixed. The standard error of a mean of n correlated waits is estimated from 50 batches of the run (batch means).
"""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

from linkwise.simulate.rules import Fault, Pool, Rules, Run, Transfer
from linkwise.simulate.run import simulate
from linkwise.simulate.tables import constant
from linkwise.workload.arrivals import Arrivals, times
from linkwise.workload.requests import Requests, requests

ONE = Rules(max_seqs=1, prefix_cache=False)


def load(arrivals, inputs=10, outputs=1) -> Requests:
    number = len(arrivals)
    columns = (np.broadcast_to(np.asarray(x, np.int64), number).copy() for x in (inputs, outputs))
    return requests(np.asarray(arrivals, float), *columns)


def batch_error(values, batches=50) -> float:
    """Standard error of the mean of a stationary sequence, by batch means."""
    means = [part.mean() for part in np.array_split(values, batches)]
    return float(np.std(means, ddof=1) / math.sqrt(batches))


def waits(found, skip=2000):
    """Queueing times once the empty start is forgotten."""
    return (found.requests["start"] - found.requests["arrival"])[skip:]


@pytest.mark.parametrize("busy", [0.3, 0.7])
def test_one_request_at_a_time_of_equal_length_is_an_m_d_1_queue(busy: float) -> None:
    found = simulate([Pool(ONE, constant(1.0))], load(times(Arrivals(rate_per_s=busy), 200_000, 1)))
    seen = waits(found)
    # Pollaczek-Khinchine with a constant service time of 1 s: load / (2 (1 - load))
    assert abs(seen.mean() - busy / (2 * (1 - busy))) < 4 * batch_error(seen)


def test_many_single_servers_behind_one_stream_split_at_random_are_m_d_1_queues_each() -> None:
    pools = [Pool(ONE, constant(1.0), replicas=4)]
    found = simulate(pools, load(times(Arrivals(rate_per_s=2.0), 200_000, 2)), Run(router="random", seed=3))
    seen = waits(found)
    # a Poisson stream split at random is four Poisson streams of a quarter: load 0.5 each, 0.5 / (2 · 0.5) s
    assert abs(seen.mean() - 0.5) < 4 * batch_error(seen)


def test_prompts_of_geometric_length_are_close_to_an_m_m_1_queue() -> None:
    # A step of one token a 0.01 s, prompts of geometric length with mean 100: service is exponential but for its grid,
    # mean s = 1 s and E[s²] = (2 - p) / p² ticks², p = 0.01. Pollaczek-Khinchine: rate · E[s²] / (2 (1 - load)).
    draw = np.random.Generator(np.random.Philox(5))
    lengths = draw.geometric(0.01, 100_000)
    one = Rules(max_seqs=1, budget=1, prefix_cache=False)
    found = simulate([Pool(one, constant(0.01, tokens=4))], load(times(Arrivals(rate_per_s=0.5), 100_000, 4), lengths))
    seen = waits(found)
    expected = 0.5 * (2 - 0.01) / 0.01**2 * 0.01**2 / (2 * (1 - 0.5))
    assert abs(seen.mean() - expected) < 4 * batch_error(seen)


def test_servers_that_share_a_queue_are_an_m_m_c_queue() -> None:
    # Rows that decode at a constant step time do not slow each other: max_seqs is the number of servers c. Answers of
    # geometric length with mean 200 steps of 0.005 s are exponential service of 1 s but for its grid, and the step a
    # request waits to be admitted (half of one on average, and one for its prompt). Erlang C: wait = C / (c - a).
    c, a = 4, 3.0
    draw = np.random.Generator(np.random.Philox(6))
    answers = draw.geometric(1 / 200, 150_000)
    found = simulate(
        [Pool(Rules(max_seqs=c, prefix_cache=False), constant(0.005))],
        load(times(Arrivals(rate_per_s=a), 150_000, 7), 1, answers),
    )
    seen = waits(found)
    blocked = a**c / math.factorial(c) * c / (c - a)
    erlang = blocked / (sum(a**k / math.factorial(k) for k in range(c)) + blocked)
    # A request starts with a step: up to one step later than in the formula, and each service ends on the grid.
    grid = 2 * 0.005 * (1 + a / (c - a))
    assert abs(seen.mean() - erlang / (c - a)) < 4 * batch_error(seen) + grid


@pytest.mark.parametrize(("stages", "batches"), [(1, 1), (2, 2), (4, 4), (4, 8), (3, 7)])
def test_the_bubble_of_a_pipeline_is_its_formula(stages: int, batches: int) -> None:
    rules = Rules(slots=batches, max_seqs=batches, prefix_cache=False)
    found = simulate([Pool(rules, constant(1.0, stages=stages))], load(np.zeros(batches)))
    # m batches flow once through p stages: p + m - 1 steps of time, each stage busy for m of them
    assert found.summary.span_s == pytest.approx(stages + batches - 1, rel=1e-12)
    assert found.summary.pools[0].bubble == pytest.approx((stages - 1) / (batches + stages - 1), abs=1e-12)


def test_a_full_pipeline_has_no_bubble_but_at_its_ends() -> None:
    rules = Rules(slots=4, max_seqs=4, prefix_cache=False)
    found = simulate([Pool(rules, constant(1.0, stages=4))], load(np.zeros(4), 1, 100))
    # 4 requests of 100 steps through 4 stages: 400 steps of each stage in 400 + 3 steps of time
    assert found.summary.span_s == pytest.approx(403, rel=1e-12)
    assert found.summary.pools[0].bubble == pytest.approx(3 / 403, abs=1e-12)


def test_attention_replicas_wait_for_the_slowest() -> None:
    # Two lanes of one replica: prompts of 100 and 10 tokens, 1 ms a token. Both end with the longer one's step.
    rules = Rules(lanes=2, prefix_cache=False)
    found = simulate([Pool(rules, constant(0.0, per_token=1e-3))], load([0.0, 0.0], [100, 10]))
    assert found.requests["end"].tolist() == pytest.approx([0.1, 0.1])


def test_a_prompt_is_cut_to_what_the_rows_leave_of_the_budget() -> None:
    # Budget 8: the row takes 1, the prompt of 20 tokens 7, 7 and 6: three steps, its first token with the third.
    rules = Rules(budget=8, prefix_cache=False)
    found = simulate([Pool(rules, constant(1.0))], load([0.0, 1.0], [4, 20], [10, 1]))
    assert found.requests["first"].tolist() == [1.0, 4.0]
    assert found.summary.steps == 10


def test_prompts_first_makes_rows_wait_and_mixed_does_not() -> None:
    # The first prompt ends at 1 s; the second runs alone from 1 s (prefill first) or beside the row (mixed).
    ends = {}
    for policy in ("mixed", "prefill-first"):
        rules = Rules(policy=policy, prefix_cache=False)
        ends[policy] = simulate([Pool(rules, constant(1.0))], load([0.0, 1.0], 4, [3, 1])).requests["end"].tolist()
    assert ends == {"mixed": [3.0, 2.0], "prefill-first": [4.0, 2.0]}


def test_a_whole_prompt_waits_for_a_step_with_room() -> None:
    # Budget 8, one row decoding until 4 s: a prompt of 8 tokens never fits beside it, one of 20 has to be cut anyway.
    whole = Rules(budget=8, chunked=False, prefix_cache=False)
    found = simulate([Pool(whole, constant(1.0))], load([0.0, 1.0], [4, 8], [4, 1]))
    assert found.requests["start"].tolist() == [0.0, 4.0]


def test_drafted_tokens_come_out_as_their_chances_say() -> None:
    rules = Rules(verify=3, acceptance=1.0, prefix_cache=False)
    found = simulate([Pool(rules, constant(1.0))], load([0.0], 1, 10))
    # 1 token with the prompt, then 3 a step: 9 in 3 steps
    assert found.requests["end"].tolist() == [4.0]
    half = Rules(verify=2, acceptance=0.5, prefix_cache=False, max_seqs=1)
    number, tokens = 200, 101
    found = simulate([Pool(half, constant(1.0))], load(np.zeros(number), 1, tokens))
    # Steps that draw 1 or 2 tokens, mean 1.5, variance 0.25: about 100 / 1.5 of them, by renewal theory plus a part of
    # one; variance of the sum 200 · (100 · 0.25 / 1.5³)
    steps = found.summary.steps - number
    assert abs(steps - number * 100 / 1.5) < 4 * math.sqrt(number * 100 * 0.25 / 1.5**3) + number


def test_a_slow_rank_and_a_degraded_link_take_as_long_as_they_say() -> None:
    table = constant(1.0)._replace(prompt_comm=np.full((1, 8193), 0.5))
    faults = (
        Fault(kind="slow", replica=0, start_s=0.0, end_s=1.0, factor=2.0),
        Fault(kind="link", replica=0, start_s=2.0, end_s=4.0, factor=3.0),
    )
    found = simulate([Pool(ONE, table)], load([0.0, 0.0, 0.0]), Run(faults=faults))
    # 2 · 1 + 0.5; then 1 + 3 · 0.5; then 1 + 0.5, started at 5 s when both faults are over
    assert found.requests["end"].tolist() == pytest.approx([2.5, 5.0, 6.5])


@pytest.mark.parametrize(
    ("recovery", "ends", "lost"),
    [("stay", [5.0, 6.0], 0), ("drop", [1.5, 5.0], 1), ("elsewhere", [5.0, 6.0], 0)],
)
def test_a_replica_down_for_a_while(recovery: str, ends: list[float], lost: int) -> None:
    fault = Fault(kind="down", replica=0, start_s=1.5, end_s=4.0)
    found = simulate([Pool(ONE, constant(1.0))], load([0.0, 0.0], 4, [2, 1]), Run(faults=(fault,), recovery=recovery))
    # The first has one token at 1 s; the second step dies at 1.5 s. Back at 4 s: its prompt and token are computed
    # again by 5 s, which draws the second token at 5 s; then the other prompt by 6 s.
    assert found.requests["end"].tolist() == pytest.approx(ends)
    assert found.summary.lost == lost


def test_a_dead_replica_s_requests_go_to_the_one_that_is_up() -> None:
    fault = Fault(kind="down", replica=0, start_s=0.5, end_s=100.0)
    found = simulate(
        [Pool(ONE, constant(1.0), replicas=2)], load([0.0, 0.0]), Run(faults=(fault,), router="round-robin")
    )
    assert found.requests["end"].tolist() == pytest.approx([2.0, 1.0])


def test_kv_moves_between_pools_one_prompt_after_the_other() -> None:
    rules = Rules(prefix_cache=False)
    pools = [Pool(rules, constant(1.0), role="prefill"), Pool(rules, constant(0.25), role="decode")]
    move = Transfer(base_s=0.5, token_s=0.1)
    found = simulate(pools, load([0.0, 0.0], 10, 3), Run(transfer=move))
    # Both prompts end at 1 s; each takes 0.5 + 10 · 0.1 s on the link, one after the other; then three steps.
    assert found.requests["moved"].tolist() == pytest.approx([2.5, 4.0])
    assert found.requests["first"].tolist() == pytest.approx([2.75, 4.25])
    assert found.requests["end"].tolist() == pytest.approx([3.25, 4.75])
    parts = found.summary.split
    assert parts is not None
    total = parts.queue_s + parts.prefill_s + parts.blocks_s + parts.link_s + parts.first_decode_s
    assert found.summary.ttft is not None
    assert total == pytest.approx(found.summary.ttft.mean, rel=1e-12)


def test_a_transfer_that_always_fails_is_repeated_and_given_up() -> None:
    rules = Rules(prefix_cache=False)
    pools = [Pool(rules, constant(1.0), role="prefill"), Pool(rules, constant(1.0), role="decode")]
    found = simulate(pools, load([0.0]), Run(transfer=Transfer(base_s=1.0, fail=1.0, tries=2)))
    assert (found.summary.unmoved, found.summary.retries, found.summary.span_s) == (1, 2, 4.0)


def test_destination_blocks_are_there_before_a_transfer_starts() -> None:
    # The decode side holds one request: the second prompt's transfer starts when the first answer ends.
    rules, small = Rules(prefix_cache=False), Rules(kv_blocks=2, block_tokens=16, prefix_cache=False)
    pools = [Pool(rules, constant(1.0), role="prefill"), Pool(small, constant(1.0), role="decode")]
    found = simulate(pools, load([0.0, 0.0], 20, 5), Run(transfer=Transfer(base_s=1.0)))
    assert found.requests["reserved"].tolist() == [1.0, 7.0]
    assert found.requests["moved"].tolist() == [2.0, 8.0]


COUNTS = st.integers(1, 60)


@st.composite
def worlds(draw):
    number = draw(st.integers(1, 40))
    inputs, outputs = ([draw(COUNTS) for _ in range(number)] for _ in range(2))
    gaps = [draw(st.sampled_from([0.0, 0.5, 3.0])) for _ in range(number)]
    block = draw(st.sampled_from([1, 4, 16]))
    rules = Rules(
        policy=draw(st.sampled_from(["mixed", "prefill-first"])), chunked=draw(st.booleans()),
        budget=draw(st.sampled_from([8, 32, 4096])), max_seqs=draw(st.integers(1, 8)), slots=draw(st.integers(1, 3)),
        lanes=draw(st.integers(1, 2)), block_tokens=block, kv_blocks=-(-130 // block) + 16 + draw(st.integers(0, 20)),
        reserve=draw(st.sampled_from([0.0, 0.5, 1.0])), verify=draw(st.integers(1, 3)), acceptance=0.5,
        part_blocks=draw(st.booleans()),
    )  # fmt: skip
    hashes = None
    if draw(st.booleans()):
        hashes = [[100 * draw(st.integers(0, 2)) + k for k in range(-(-x // 8))] for x in inputs]
    load = requests(
        np.cumsum(gaps), np.array(inputs), np.array(outputs), hashes, 8 if hashes else 0
    )  # fmt: skip
    faults = ()
    if draw(st.booleans()):
        start = draw(st.sampled_from([0.0, 1.5, 7.0]))
        faults = (Fault(kind="down", replica=0, start_s=start, end_s=start + 2.5),)
    run = Run(
        seed=draw(st.integers(0, 9)), users=draw(st.sampled_from([0, 0, 3])),
        router=draw(st.sampled_from(["random", "round-robin", "least"])), faults=faults,
        recovery=draw(st.sampled_from(["elsewhere", "drop", "stay"])),
        max_waiting=draw(st.sampled_from([0, 0, 2])),
    )  # fmt: skip
    stages = draw(st.integers(1, 3))
    return [Pool(rules, constant(1.0, stages=stages), replicas=draw(st.integers(1, 2)))], load, run


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_nothing_appears_and_nothing_is_lost(case) -> None:
    pools, load, run = case
    found = simulate(pools, load, run)
    figures, every, w = found.summary, found.requests, found.world
    assert figures.served + figures.refused + figures.lost == load.number
    assert np.all(every["end"] >= every["arrival"])
    done = every[every["status"] == 1]
    assert np.all(done["start"] >= done["arrival"])
    assert np.all(done["first"] >= done["start"])
    assert np.all(done["end"] >= done["first"])
    # Little's law, exactly: the integral of the number in the system is the sum of the stays.
    assert figures.in_system_s == pytest.approx(float((every["end"] - every["arrival"]).sum()), rel=1e-9, abs=1e-9)
    # Blocks: all are free or kept for a prefix, and as many were given back or evicted as were taken.
    g = w.g[0]
    assert np.all(w.lane["free"] + w.lane["cached"] == pools[0].rules.kv_blocks)
    assert g["taken"] == g["given"] + g["evicted"] + int(w.lane["cached"].sum())
    assert np.all(w.lane["running"] == 0)
    assert np.all(w.lane["waiting"] == 0)
    assert np.all(w.replica["outstanding"] == 0)
    assert np.all(every["blocks"] == 0)
    # Tokens: with nothing lost or done twice, prompts are computed or cached, and answers drawn, once.
    assert int(done["output"].sum()) <= figures.decode_tokens
    if not run.faults and not figures.preemptions:
        assert figures.decode_tokens == int(done["output"].sum())
        assert figures.prefill_tokens + figures.cached_tokens == int(done["input"].sum())
    again = simulate(pools, load, run).requests
    assert again.tobytes() == every.tobytes(), "same seed, same result"


@settings(max_examples=40, deadline=None)
@given(st.permutations(range(6)), st.integers(1, 4))
def test_the_order_of_equal_requests_changes_nothing(order: list[int], seqs: int) -> None:
    lengths = np.array([3, 9, 9, 20, 5, 1])
    pool = [Pool(Rules(max_seqs=8, budget=64, prefix_cache=False), constant(1.0))]
    plain = simulate(pool, load(np.zeros(6), 4, lengths)).requests["end"]
    mixed = simulate(pool, load(np.zeros(6), 4, lengths[order])).requests["end"]
    # All are admitted at once: each ends after its own tokens, whoever came first.
    assert mixed.tolist() == plain[order].tolist() == lengths[order].tolist()


def test_more_replicas_than_load_serve_it_as_one_idle_replica_does() -> None:
    arrivals = np.arange(50) * 10.0
    one = simulate([Pool(ONE, constant(1.0))], load(arrivals)).summary
    many = simulate([Pool(ONE, constant(1.0), replicas=7)], load(arrivals)).summary
    assert one.ttft == many.ttft


def test_a_request_that_waits_counts_as_four_that_run() -> None:
    """Five come at 0 s: three long ones to replica 0, two of one token to replica 1, which is idle at 1 s.

    Of those at 1.5, 1.6 and 1.7 s the first starts there at once and the second has to wait (a load of 1 + 4); the
    third meets three that run on replica 0 (a load of 3) and joins them at 2 s. By counts alone, two against three, it
    would wait too.
    """
    rules = Rules(max_seqs=4, prefix_cache=False)
    arrivals, outputs = [0, 0, 0, 0, 0, 1.5, 1.6, 1.7], [9, 1, 9, 1, 9, 9, 9, 9]
    found = simulate([Pool(rules, constant(1.0), replicas=2)], load(arrivals, 4, outputs)).requests
    assert found["lane"].tolist() == [0, 1, 0, 1, 0, 1, 1, 0]
    assert found["start"].tolist() == [0, 0, 0, 0, 0, 1.5, 2.5, 2.0]

"""How many replicas: against queueing formulas, hand counts of what a node takes, and as people use the command.

The waiting time of an M/D/1 queue is Erlang's of 1909: P(W <= t) = (1 - load) sum over j <= t/D of
e^(rate (t - jD)) (-rate (t - jD))^j / j!. That of an M/M/c queue is P(W > t) = C e^(-(c - a) t / s), C Erlang's.
"""

import json
import math
from fractions import Fraction
from itertools import combinations
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.test_cli import Shell

pytest.importorskip("numba")

from linkwise.cluster.presets import shorthand
from linkwise.core.errors import InputError
from linkwise.plan.types import Plan
from linkwise.simulate.capacity import growth
from linkwise.simulate.failures import enough, lost
from linkwise.simulate.fleet import Fleet
from linkwise.simulate.rules import Pool, Rules, Run
from linkwise.simulate.tables import constant
from linkwise.simulate.trials import Trials, fewest, most_rate, smallest
from linkwise.workload.arrivals import Arrivals, times
from linkwise.workload.requests import Requests, requests
from linkwise.workload.types import Targets

ONE = Rules(max_seqs=1, prefix_cache=False)


def load(number: int, rate: float, outputs=1) -> Requests:
    answers = np.broadcast_to(np.asarray(outputs, np.int64), number).copy()
    return requests(times(Arrivals(rate_per_s=rate), number, 1), np.full(number, 10), answers)


def waits_at_most(t: float, rate: float) -> float:
    """M/D/1 with a service of 1 s. Terms alternate and are large: exact fractions for the powers."""
    total = 0.0
    for j in range(int(t) + 1):
        x = Fraction(rate).limit_denominator(10**6) * (Fraction(t).limit_denominator(10**6) - j)
        total += math.exp(float(x)) * float((-x) ** j / math.factorial(j))
    return (1 - rate) * total


def test_the_fewest_replicas_are_those_of_the_m_d_1_queue() -> None:
    # 4 requests/s split at random over n servers of 1 s; 90 of 100 are to wait at most 3 s, so a TTFT of 4 s.
    share = {n: waits_at_most(3.0, 4.0 / n) for n in (5, 6, 7)}
    assert share[5] < 0.85
    assert 0.90 < share[6] < 0.93
    router = Run(router="random")
    trials = Trials([Pool(ONE, constant(1.0))], load(60_000, 4.0), lambda _: router, Targets(ttft_s=4.0), 0.9)
    for start in (1, 6, 20):
        assert smallest(lambda n: not trials.at((n,), 4.0).missed, start, 100) == 6
    assert "TTFT p90" in " ".join(trials.at((5,), 4.0).missed)


def test_the_rate_one_server_holds_is_the_m_d_1_queue_s() -> None:
    trials = Trials([Pool(ONE, constant(1.0))], load(200_000, 0.5), lambda _: Run(), Targets(ttft_s=4.0), 0.9)
    found = most_rate(lambda rate: not trials.at((1,), rate).missed, 0.5)
    low, high = 0.1, 0.99
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if waits_at_most(3.0, middle) >= 0.9 else (low, middle)
    # To 1 % by the search, and as much again for 200,000 requests of a correlated queue.
    assert found == pytest.approx(low, rel=0.02)


def test_the_rate_servers_that_share_a_queue_hold_is_the_m_m_c_queue_s() -> None:
    # c rows that decode at a constant 5 ms a step, answers of geometric length with mean 200: exponential service of
    # 1 s. 90 of 100 are to wait at most 1 s; a request's own prompt step and half of one under way come on top.
    c, grid = 4, 0.005
    answers = np.random.Generator(np.random.Philox(6)).geometric(1 / 200, 150_000)
    pool = Pool(Rules(max_seqs=c, prefix_cache=False), constant(grid))
    trials = Trials([pool], load(150_000, 2.0, answers), lambda _: Run(), Targets(ttft_s=1.0 + 1.5 * grid), 0.9)
    found = most_rate(lambda rate: not trials.at((1,), rate).missed, 3.0)

    def share_late(a: float) -> float:
        blocked = a**c / math.factorial(c) * c / (c - a)
        erlang = blocked / (sum(a**k / math.factorial(k) for k in range(c)) + blocked)
        return erlang * math.exp(-(c - a) * 1.0)

    low, high = 0.1, 3.99
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if share_late(middle) <= 0.1 else (low, middle)
    assert found == pytest.approx(low, rel=0.02)


@pytest.mark.parametrize(
    ("good", "start", "found"),
    [
        ({5, 8, 9, 10, 11, 12}, 5, 8),  # five hold by chance: six do not
        ({5, 8, 9, 10, 11, 12}, 12, 8),
        ({3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 4, 3),
        ({2, 4, 6, 12}, 2, 12),  # of no other number the next one holds as well; twelve are the most
        ({12}, 1, 12),
        (set(), 3, None),
    ],
)
def test_a_number_counts_when_the_next_one_holds_as_well(good: set[int], start: int, found: int | None) -> None:
    assert smallest(lambda n: n in good, start, 12) == found


def test_a_request_alone_that_is_late_is_seen() -> None:
    trials = Trials([Pool(ONE, constant(1.0))], load(100, 50.0), lambda _: Run(), Targets(ttft_s=0.9), 0.99)
    assert trials.alone().missed == ("TTFT p99 1 s against 900 ms",)
    assert trials.alone().ttft_s == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("replicas", "size", "failures", "of", "taken"),
    [
        (6, 4, 1, "node", 2),  # two of four devices on each node of eight
        (6, 4, 2, "node", 4),
        (5, 4, 1, "node", 2),
        (3, 16, 1, "node", 1),  # each over two nodes of its own
        (4, 6, 1, "node", 2),  # devices 0-5, 6-11, 12-17, 18-23: every node of eight touches two of them
        (4, 6, 2, "node", 4),
        (8, 2, 1, "node", 4),
        (8, 2, 1, "replica", 1),
        (2, 4, 3, "node", 2),
        (4, 4, 0, "node", 0),
    ],
)
def test_what_failures_take(replicas: int, size: int, failures: int, of: str, taken: int) -> None:
    assert lost(replicas, size, 8, failures, of) == taken


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 20), st.integers(1, 8), st.integers(1, 3))
def test_what_failures_take_is_the_worst_of_all_choices(
    replicas: int, size: int, per_node: int, failures: int
) -> None:  # fmt: skip
    nodes = -(-replicas * size // per_node)
    on = [
        {r for r in range(replicas) if r * size < (node + 1) * per_node and (r + 1) * size > node * per_node}
        for node in range(nodes)
    ]
    worst = max(len(set().union(*some)) for some in combinations(on, min(failures, nodes)))
    assert lost(replicas, size, per_node, failures, "node") == worst
    for survivors in (1, 3):
        count = enough(survivors, size, per_node, failures, "node")
        assert count - lost(count, size, per_node, failures, "node") >= survivors
        before = count - 1
        assert before < survivors or before - lost(before, size, per_node, failures, "node") < survivors


def test_growth_as_typed() -> None:
    assert growth("x1.5").factor == 1.5
    assert growth("50%").factor == 1.5
    assert growth("20%/month", 3).factor == pytest.approx(1.728)  # 1.2 cubed
    assert growth("x4/year", 6).factor == pytest.approx(2.0)
    for text, months in (("20", None), ("x0", None), ("-5%", None), ("x2", 3.0), ("20%/month", 0.0), ("x٣", None)):
        with pytest.raises(InputError):
            growth(text, months)


PLAN = "plan llama-3.1-8b --on 2x4xh100-sxm --tp 1 --isl 1000 --osl 100 --rate 5/s --ttft 300ms --tpot 15ms -o p.json"


def test_the_answer_says_what_survives_and_what_decides(linkwise: Shell) -> None:
    ran = linkwise("capacity p.json --rate 40/s --growth x1.5 --requests 2000 --json")
    found = json.loads(ran.out)
    assert ran.code == 0
    assert found["rate_per_s"] == pytest.approx(60.0)
    assert found["failed"]["replicas"] == found["replicas"] - found["lost"]
    assert found["devices"] + found["devices_left"] == 8
    assert found["failed"]["rate_per_s"] >= 60.0
    assert found["normal"]["rate_per_s"] > found["failed"]["rate_per_s"]
    assert "would not do" in found["binding"]
    assert linkwise("capacity p.json --rate 40/s --growth x1.5 --requests 2000 --json").out == ran.out
    screen = linkwise("capacity p.json --rate 40/s --growth x1.5 --requests 2000").out
    assert f"replicas   {found['replicas']} = " in screen
    assert "left: " in screen


def test_more_than_the_cluster_holds_is_refused_with_what_would_help(linkwise: Shell) -> None:
    ran = linkwise("capacity p.json --rate 400/s --requests 3000")
    text = " ".join(ran.out.split())
    assert ran.code == 1
    assert "are needed, the cluster holds 8" in text
    assert "more node" in text
    assert "what the 4 replicas left of 8 hold" in text


def test_a_target_no_number_of_replicas_meets(linkwise: Shell) -> None:
    ran = linkwise("capacity p.json --rate 5/s --ttft 1ms --requests 100")
    text = " ".join(ran.out.split())
    assert ran.code == 1
    assert "no number of replicas helps" in text
    assert "a TTFT target of at least" in text


def test_a_trace_sets_the_rate_and_is_sped_up(linkwise: Shell) -> None:
    rows = "\n".join(f"{i * 0.5},1000,50" for i in range(400))
    (linkwise.folder / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    found = json.loads(linkwise("capacity p.json --workload t.csv --peak-factor 3 --failures 0 --json").out)
    assert (found["rate_today_per_s"], found["rate_per_s"]) == (pytest.approx(2.0), pytest.approx(6.0))
    assert (found["replicas"], found["lost"], found["failing_ttft_s"]) == (1, 0, None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--growth 20", "--growth"),
        ("--growth x2 --months 3", "--months"),
        ("--failures 100", "--failures"),
        ("--failure-of rack", "--failure-of"),
        ("--percentile 100", "--percentile"),
        ("--peak-factor nan", "--peak-factor"),
        ("--isl 200000", "context"),
    ],
)
def test_bad_input_is_named(linkwise: Shell, words: str, said: str) -> None:
    ran = linkwise(f"capacity p.json --rate 5/s {words}")
    assert ran.code == 2
    assert said in ran.err


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ((4, 1), (2, 5)),  # 13 devices; (3, 4) takes 16, (4, 3) 19
        ((1, 4), (4, 3)),  # 16 devices; (3, 4) takes 19, (2, 5) 22
    ],
)
def test_two_pools_take_the_fewest_devices_that_hold(sizes: tuple[int, int], found: tuple[int, int]) -> None:
    def holds(counts: tuple[int, ...]) -> bool:  # two and three at least, and seven together
        return counts[0] >= 2 and counts[1] >= 3 and sum(counts) >= 7

    for start in ((1, 1), (2, 9), (30, 2)):
        assert fewest(holds, start, 50, sizes) == found
    assert fewest(holds, (1, 1), 2, sizes) is None


def test_the_fewest_of_two_pools_are_what_each_serves() -> None:
    # Prompts take a prefill replica 1 s each. Answers of eight tokens at 0.5 s take a row eight steps, and one more
    # until the next prompt's KV has come to it: two rows serve 2 / 4.5 s. Requests come evenly at 2.4/s: three prefill
    # replicas, and 5.4, so six, for decode.
    rows = Rules(max_seqs=2, prefix_cache=False)
    pools = [Pool(ONE, constant(1.0), role="prefill"), Pool(rows, constant(0.5), role="decode")]
    asked = requests(np.arange(600) / 2.4, np.full(600, 10), np.full(600, 8))
    trials = Trials(pools, asked, lambda _: Run(), Targets(), 0.9, 2.4)
    assert fewest(lambda n: not trials.at(n, 2.4).missed, (1, 1), 100, (1, 1)) == (3, 6)
    assert "saturated" in trials.at((2, 6), 2.4).missed[0]
    assert "saturated" in trials.at((3, 5), 2.4).missed[0]
    # A prompt alone takes 1 s, and its first token half a second more.
    assert trials.alone().ttft_s == pytest.approx(1.5)
    # Two of six decode replicas die: what they had goes through prefill again, and TTFT grows.
    assert trials.failing((3, 6), 1, 2, 2.4) > trials.at((3, 6), 2.4).ttft_s


POOLS = "--rate 40/s --requests 1500 --ttft 300ms --tpot 15ms"


def test_a_prefill_and_a_decode_pool_are_both_counted(linkwise: Shell) -> None:
    ran = linkwise(f"capacity p.json --prefill p.json {POOLS} --failure-of replica --json")
    found = json.loads(ran.out)
    prefill, decode = found["pools"]
    assert (prefill["role"], decode["role"]) == ("prefill", "decode")
    assert [pool["lost"] for pool in found["pools"]] == [1, 1]
    assert found["replicas"] == prefill["replicas"] + decode["replicas"] == found["devices"]
    # Without one of a pool the other is whole, and the rate is held.
    assert prefill["failed"]["by_pool"] == [prefill["replicas"] - 1, decode["replicas"]]
    assert decode["failed"]["by_pool"] == [prefill["replicas"], decode["replicas"] - 1]
    assert min(pool["failed"]["rate_per_s"] for pool in found["pools"]) == found["failed"]["rate_per_s"] >= 40
    assert ran.code == (0 if found["devices"] <= 8 else 1)
    screen = " ".join(linkwise(f"capacity p.json --prefill p.json {POOLS} --failure-of replica").out.split())
    assert f"prefill {prefill['replicas']} = {prefill['replicas'] - 1} that carry the load + 1 that go with 1" in screen
    assert f"without 1 decode {prefill['replicas']} + {decode['replicas'] - 1}" in screen
    # Where nodes fail, each pool has nodes of its own: two of four devices each, of which one is left.
    nodes = json.loads(linkwise(f"capacity p.json --prefill p.json {POOLS} --json").out)
    assert [pool["nodes"] for pool in nodes["pools"]] == [2, 2]
    assert (nodes["nodes_left"], nodes["shortfall"]["have"]) == (-2, 8)
    assert nodes["changes"][0] == "2 more nodes of 4 devices"


def test_pools_on_two_kinds_of_hardware_are_counted_on_their_own(linkwise: Shell) -> None:
    plan = "plan llama-3.1-8b --on 4xl40s --tp 1 --isl 1000 --osl 100 --rate 5/s -o l40s.json"
    assert linkwise(plan).code == 0
    words = "capacity p.json --prefill l40s.json --rate 6/s --requests 1000 --failure-of replica"
    found = json.loads(linkwise(f"{words} --json").out)
    assert [pool["cluster"] for pool in found["pools"]] == ["4xl40s", "2x4xh100-sxm"]
    assert found["devices_left"] == 4 + 8 - found["devices"]
    assert "of 4xl40s (1 nodes)" in linkwise(words).out


def fleet(first: int, second: int) -> Fleet:
    """Pools of groups of so many devices on 2 nodes of 8."""
    cluster = shorthand("2x8xh100-sxm")
    pair = (SimpleNamespace(layout=SimpleNamespace(size=size), cluster=cluster) for size in (first, second))
    return Fleet(cast("tuple[Plan, ...]", tuple(pair)), 1, "replica")


@pytest.mark.parametrize(
    ("sizes", "asked", "held"),
    [
        # 16 devices: one decode group of 8 leaves 8, four prefill groups of 2. Half of either ratio is held by 2 + 1
        # too, and more fit.
        ((2, 8), (4, 2), (4, 1)),
        ((2, 8), (5, 2), (4, 1)),
        # The other way round: 8 devices leave room for two decode groups of 4, one of the prefill's.
        ((8, 4), (2, 4), (1, 2)),
        # All that is asked fits, and nothing of one pool does.
        ((2, 8), (3, 1), (3, 1)),
        ((8, 16), (1, 1), (0, 0)),
    ],
)
def test_as_many_of_either_pool_as_there_is_room_for(
    sizes: tuple[int, int], asked: tuple[int, int], held: tuple[int, int]
) -> None:
    assert fleet(*sizes).most(asked) == held

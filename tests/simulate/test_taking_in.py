"""The thread that takes requests in, queues that are polled, prompts that wait for all lanes. By hand, steps of 1 s."""

import numpy as np
import pytest

pytest.importorskip("numba")

from linkwise.simulate.rules import Pool, Rules, Run
from linkwise.simulate.run import simulate
from linkwise.simulate.tables import constant
from linkwise.workload.requests import requests


def firsts(rules: Rules, arrivals: list[float], outputs: list[int], users: int = 0, **tables: int) -> list[float]:
    """When each request's first token came, steps of one second, prompts of 10 tokens."""
    load = requests(np.array(arrivals, float), np.full(len(arrivals), 10), np.array(outputs))
    found = simulate([Pool(rules, constant(1.0, **tables))], load, Run(users=users))
    return [float(x) for x in found.requests["first"]]


def test_one_thread_takes_requests_in_one_after_the_other():
    rules = Rules(prefix_cache=False, front_s=0.05, front_each_s=0.1, front_prompt_s=0.01)
    # Each takes 0.1 + 10 x 0.01 s of the thread, then 0.05 s: in the queue at 0.25, 0.45 and 0.65; a step ends at 1.25
    assert firsts(rules, [0, 0, 0], [1, 1, 1]) == pytest.approx([1.25, 2.25, 2.25])
    # A closed loop's next request is taken in as well: sent at 1.25, in the queue at 1.5.
    assert firsts(rules, [0, 0], [1, 1], users=1) == pytest.approx([1.25, 2.5])


def test_a_queue_that_is_polled_waits_for_its_turn():
    rules = Rules(prefix_cache=False, policy="prefill-first", poll=3)
    # The prompt runs 0..1; looks are at 0 and, after a step with a prompt, at 1, then every third step: at 4.
    # The second request comes at 1.5 and starts at 4.
    assert firsts(rules, [0, 1.5], [9, 1]) == pytest.approx([1, 5])
    assert firsts(Rules(prefix_cache=False, policy="prefill-first"), [0, 1.5], [9, 1]) == pytest.approx([1, 3])
    # Without rows it looks at once.
    assert firsts(rules, [0, 2.5], [1, 1]) == pytest.approx([1, 3.5])


def test_prompts_wait_until_every_lane_has_one():
    rules = Rules(prefix_cache=False, lanes=2, hold=4)
    # Nobody decodes: both start at once. The third comes at 1.5 while rows decode on both lanes: alone it would start
    # at 2; a fourth comes at 2.5, and both start at 3.
    assert firsts(rules, [0, 0, 1.5, 2.5], [9, 9, 1, 1]) == pytest.approx([1, 1, 4, 4])
    # Alone it waits for the fourth step since prompts could start: those from 1, 2, 3 and 4.
    assert firsts(rules, [0, 0, 1.5], [9, 9, 1]) == pytest.approx([1, 1, 5])
    # A lane without rows has nothing to wait for.
    assert firsts(rules, [0, 0, 1.5], [9, 1, 1]) == pytest.approx([1, 1, 3])
    assert firsts(Rules(prefix_cache=False, lanes=2), [0, 0, 1.5], [9, 9, 1]) == pytest.approx([1, 1, 3])


def test_prompts_gather_until_a_step_has_enough_tokens():
    rules = Rules(prefix_cache=False, chunked=False, budget=100, gather=3, gather_tokens=20)
    # The first decodes from 1 on. The second comes at 1.5: 1 + 10 tokens are too few at 2, with the third's (2.5) there
    # are 21 at 3.
    assert firsts(rules, [0, 1.5, 2.5], [9, 1, 1]) == pytest.approx([1, 4, 4])
    # Alone it waits for three steps, those from 2, 3 and 4, and is in the next.
    assert firsts(rules, [0, 1.5], [9, 1]) == pytest.approx([1, 6])
    # Without rows nothing is waited for.
    assert firsts(rules, [0, 2.5], [1, 1]) == pytest.approx([1, 3.5])


def test_a_step_put_together_ahead_lacks_who_came_meanwhile():
    rules = Rules(prefix_cache=False, ahead=True)
    # Steps run 0..1, 1..2, ...; that from 2 was put together at 1, so who came at 1.5 is in the one from 3.
    assert firsts(rules, [0, 1.5], [9, 1]) == pytest.approx([1, 4])
    # The step from 2 is empty without it: an engine with nothing to run takes what is there.
    assert firsts(rules, [0, 1.5], [2, 1]) == pytest.approx([1, 3])
    assert firsts(rules, [0, 5.5], [2, 1]) == pytest.approx([1, 6.5])


def test_experts_serve_the_tokens_of_all_lanes():
    experts = np.arange(8193.0)[None] * 0.01  # 0.01 s for each token of the mean lane
    tables = constant(1.0)._replace(experts=experts)
    load = requests(np.zeros(1), np.array([100]), np.array([1]))
    found = simulate([Pool(Rules(prefix_cache=False, lanes=4), tables)], load, Run())
    assert float(found.requests["first"][0]) == pytest.approx(1 + 25 * 0.01)  # 100 tokens on one of four lanes


def test_what_a_step_with_a_prompt_takes_more():
    tables = constant(1.0)._replace(prompt=np.array([0.5]), prompt_token=np.array([0.01]))
    load = requests(np.zeros(1), np.array([20]), np.array([3]))
    found = simulate([Pool(Rules(prefix_cache=False), tables)], load, Run())
    (one,) = found.requests
    assert float(one["first"]) == pytest.approx(1.7)
    assert float(one["end"]) == pytest.approx(3.7)

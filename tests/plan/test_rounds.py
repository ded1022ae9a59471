"""A replica's steady state against results of queueing theory that hold whatever the engine."""

import numpy as np
import pytest

from linkwise.core.quantity import plain
from linkwise.plan.rounds import Lengths, Load, _fullest, settle, settled, waiting

MANY = 20_000  # rounds of a stay: the wait for the first token does not count


def lengths(**changes):
    """Rounds of 10 ms; a prompt takes 100 ms, beside or before them, and another one as much again."""
    given = {"calm": 0.01, "held": 0.11, "full": 1.01, "prompt": 0.11, "row": 0.0, "shared": 0.0, "room": 10.0}
    return Lengths(**given | changes)


def load(batch, **changes):
    given = {
        "batch": batch, "others": batch, "chunks": 1, "tokens": MANY, "taken_in": 0.0, "alike": 1,
        "flight": 1, "lanes": 1, "alone": False, "ahead": False, "closed": False,
    }  # fmt: skip
    return Load(**given | changes)


def test_a_request_alone_is_held_up_by_nobody():
    found = settle(lengths(), load(1, others=0, tokens=50, taken_in=0.002, closed=True), plain)
    assert found.round == pytest.approx(0.01, rel=1e-9)
    assert found.ttft == pytest.approx(0.002 + 0.11, rel=1e-9)
    assert found.stay == pytest.approx(0.112 + 50 * 0.01, rel=1e-9)


@pytest.mark.parametrize("row", [1e-5, 1e-4])
def test_rows_that_slow_each_other_share_a_processor(row):
    # M/G/1 processor sharing at speed n / (a + b n): the number is negative binomial, the mean stay (a + b) /
    # (1 - rate b) with a, b for a whole stay; a = MANY x the round of no row (Cohen 1979). `calm`: of `batch` rows.
    batch, base = 40, 0.01
    alone = lengths(calm=base + row * batch, held=base + row * batch, full=base + row * batch, prompt=0.0, row=row)
    found = settle(alone, load(batch), plain)
    rate = batch / found.stay
    assert found.stay == pytest.approx(MANY * (base + row) / (1 - rate * MANY * row), rel=2e-3)


@pytest.mark.parametrize("batch", [100, 400, 1000])
def test_prompts_beside_rows_take_their_share_of_time(batch):
    # Each prompt adds 100 ms to the rounds, whichever it rides in: round = 10 ms + prompts a round x 100 ms.
    found = settle(lengths(), load(batch), plain)
    rate = batch / found.stay
    assert found.round == pytest.approx(0.01 / (1 - rate * 0.1), rel=5e-3)


@pytest.mark.parametrize("batch", [100, 400, 1000])
def test_rows_wait_while_prompts_run_first(batch):
    # Prompts of 110 ms with preemptive priority take their share of time from the rows: 10 ms / (1 - share) a token.
    found = settle(lengths(full=1.1), load(batch, alone=True), plain)
    share = batch / found.stay * 0.11
    assert found.round == pytest.approx(0.01 / (1 - share), rel=5e-3)


def test_a_step_put_together_ahead_makes_a_request_wait_a_round_longer():
    # A few rows, prompts of no length: half of a round under way; and one more where the next is put together by then.
    quick = lengths(held=0.01, full=0.01, prompt=0.0)
    now, then = (settle(quick, load(50, tokens=1000, ahead=ahead), plain).ttft for ahead in (False, True))
    assert now == pytest.approx(0.005, rel=1e-3)
    assert then == pytest.approx(0.015, rel=1e-3)


def test_prompts_that_fill_a_step_wait_for_each_other():
    # One prompt a step, nothing to draw after its first token: M/D/1 with one request at hand, load^2 / (2 (1 - load))
    # + load = 1, so load = 2 - sqrt(2) and a stay of 100 ms / load. The closed form is approximate here, within 4 %.
    single = lengths(calm=0.01, held=0.1, full=0.1, prompt=0.1, room=1.0)
    found = settle(single, load(1.0, tokens=0.0), plain)
    assert found.ttft == pytest.approx(0.1 / (2 - 2**0.5), rel=0.04)


def test_chunks_on_many_attention_replicas_meet_by_chance():
    # Two chunks on eight replicas are on one of them in one of eight cases; on a single replica always.
    assert _fullest(1.0, 8) == pytest.approx(1 / 8)
    assert _fullest(3.0, 1) == 3.0
    # Eight hundred on eight: a hundred each, deviation ten, and the largest of eight normals some 1.4 of those above
    # (tables of order statistics: 1.42); sqrt(2 ln 8) = 2.04 is the bound that is taken.
    assert 99 + 14 < _fullest(799.0, 8) < 99 + 21


def test_replicas_settled_together_settle_as_each_alone():
    # Two of one kind with unlike numbers of batches, and one of another kind between them.
    batches = [np.array([1.0, 5.0, 40.0]), np.array([8.0]), np.array([0.5, 300.0])]
    cases = [
        (lengths(), load(batches[0], others=batches[0], tokens=200)),
        (lengths(shared=0.02), load(batches[1], others=batches[1], tokens=100, lanes=4)),
        (lengths(calm=np.array([0.01, 0.03]), row=1e-5), load(batches[2], others=batches[2], tokens=300, chunks=2)),
    ]
    for (length, some), found in zip(cases, settled(cases), strict=True):
        alone = settle(length, some, plain)
        for together, apart in zip(found, alone, strict=True):
            np.testing.assert_allclose(together, np.broadcast_to(apart, together.shape), rtol=1e-12)


@pytest.mark.parametrize(("seats", "load"), [(1, 0.5), (1, 0.8), (4, 0.8), (16, 0.9)])
def test_requests_wait_for_seats_as_in_a_queue_of_so_many_servers(seats, load):
    # Half of Erlang's M/M/c, times the load: a replica with free seats is quicker, so it fills up less often than
    # servers of one speed. Each stays a second, and comes apart from the others.
    erlang, term, below = load * seats, 1.0, 1.0
    for n in range(1, seats):
        term *= erlang / n
        below += term
    last = term * erlang / seats / (1 - load)
    wait = last / (below + last) / (seats * (1 - load)) / 2
    assert waiting(seats * load, 1.0, seats * load, seats, float(seats)) == pytest.approx(load * wait, rel=0.05)


def test_rows_that_prompts_run_ahead_of_wait_for_those_that_came_meanwhile():
    # Prompts of 110 ms at 3/s run first: a row draws a token each 10 ms that they leave, 10 ms / 0.67. At its own first
    # token there are behind it as many as came while it waited and ran (M/D/1: 0.11 s x 0.33 / (2 x 0.67) + 0.11 s),
    # and whom those bring: they are before all of its ten tokens.
    rate, own = 3.0, 0.11
    share = rate * own
    in_queue = own * share / (2 * (1 - share)) + own
    after = (10 * 0.01 + rate * in_queue * own) / (1 - share)
    single = lengths(held=own, full=own, prompt=own, room=1.0)
    at_hand = rate * (in_queue + after)
    found = settle(single, load(at_hand, tokens=10, alone=True), plain)
    assert at_hand / found.stay == pytest.approx(rate, rel=0.03)
    assert 10 * found.round == pytest.approx(after, rel=0.05)


def test_more_requests_at_hand_are_never_served_faster_a_token():
    # Prompts of 200 tokens run before rows on four attention replicas that wait for each other, ten to a step.
    batches = np.geomspace(1, 4000, 60)
    lanes = lengths(
        calm=0.012 + 3e-5 * batches, held=0.06 + 1e-5 * batches, full=0.15, prompt=0.06, row=3e-5, room=10.0
    )
    found = settle(lanes, load(batches, tokens=200, lanes=4, alone=True, ahead=True), plain)
    assert (np.diff(found.round) > 0).all()

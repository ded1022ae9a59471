"""Requests over units that are lost at random: none lost, none twice, every text as without a fault."""

import random
import threading
import time

import pytest
from tests.supervise.bench import DEAD, Bench, Kept
from tests.supervise.fake import FakeUnit, greedy, until

from linkwise.supervise.rules import Rules
from linkwise.supervise.supervisor import Placed, Refused
from linkwise.supervise.types import Event, Failed, Fault, Finished, Job, Token


@pytest.mark.parametrize("rule", ["retry", "restart"])
@pytest.mark.parametrize("seed", [1, 2])
def test_200_requests_and_20_faults_lose_and_repeat_nothing(build, rule: str, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - which faults, not a secret
    units = [FakeUnit("a"), FakeUnit("b")]
    bench = build(*units, on_fault=rule, retries=50)
    faults = 0

    def break_things() -> None:
        nonlocal faults
        while faults < 20:
            time.sleep(chance.uniform(0.0, 0.03))
            kind = chance.choice(["dead", "stopped", "slow"])
            fault = Fault((chance.randrange(2),), kind, kind, 0.1)  # type: ignore[arg-type]
            faults += chance.choice(units).fail(fault, silent=chance.random() < 0.3)

    breaker = threading.Thread(target=break_things)
    breaker.start()
    asked = []
    for number in range(200):
        prompt = tuple(chance.randrange(1, 97) for _ in range(chance.randrange(1, 80)))
        count = chance.randrange(1, 60)
        asked.append((prompt, count, bench.submit(f"r{number}", prompt, count)))
        time.sleep(chance.uniform(0.0, 0.004))
    for prompt, count, kept in asked:
        assert kept.end == Finished(kept.end.id, "length")
        assert kept.tokens == greedy(prompt, count)
    breaker.join()
    assert faults == 20
    assert until(lambda: sum(bench.supervisor.faults.values()) == 20)
    assert bench.supervisor.endings() == {"stop": 0, "length": 200, "cancelled": 0, "failed": 0}
    assert bench.supervisor.live == bench.supervisor.waiting == 0
    assert set(bench.supervisor._outstanding.values()) == {0}
    assert bench.supervisor.retries > 0


def test_a_request_moves_on_behind_the_tokens_it_has_given_out(build) -> None:
    first, second = FakeUnit("a", pace_s=0.005), FakeUnit("b", pace_s=0.005)
    bench = build(first, second)
    kept = bench.submit("r", (5, 6, 7), 40)
    assert until(lambda: len(kept.events) > 10)
    (first if kept.units == ["a"] else second).fail(DEAD)
    assert kept.end == Finished("r", "length")
    assert kept.tokens == greedy((5, 6, 7), 40)
    assert sorted(kept.units) == ["a", "b"]
    moved = next(e for e in kept.events if isinstance(e, Placed) and e.retry)
    assert moved.cause == DEAD
    job = (second if kept.units[0] == "a" else first).accepted[-1]
    given = len(job.prompt) - 3
    assert given > 0
    assert job.max_tokens == 40 - given
    assert list(job.prompt) == [5, 6, 7, *greedy((5, 6, 7), given)]


def test_restart_waits_for_the_same_unit(build) -> None:
    first, second = FakeUnit("a", pace_s=0.005), FakeUnit("b", pace_s=0.005)
    bench = build(first, second, on_fault="restart")
    kept = bench.submit("r", (1,), 30)
    assert until(lambda: len(kept.events) > 5)
    (first if kept.units == ["a"] else second).fail(DEAD)
    assert kept.end == Finished("r", "length")
    assert len(set(kept.units)) == 1
    assert len(kept.units) == 2
    (record,) = bench.supervisor.records
    assert record.fault == DEAD
    assert 0 < record.down_s < 5


def test_reject_ends_requests_with_the_fault_and_refuses_new_ones(build) -> None:
    unit = FakeUnit("a", pace_s=0.005)
    bench = build(unit, on_fault="reject", backoff_s=0.5, backoff_most_s=1.0)
    kept = bench.submit("r", (1,), 1000)
    assert until(lambda: len(kept.events) > 5)
    unit.fail(DEAD)
    assert kept.end == Failed("r", DEAD)
    assert until(lambda: not bench.supervisor.ready)
    with pytest.raises(Refused, match="rank 1 dead") as caught:
        bench.submit("next", (1,), 1)
    assert not caught.value.full
    assert caught.value.retry_s >= 1


def test_a_request_waits_for_a_restart_within_a_bound(build) -> None:
    unit = FakeUnit("a", up_s=0.05)
    bench = build(unit, wait_s=0.3)
    unit.fail(DEAD)
    assert bench.submit("waits", (1, 2), 5).tokens == []
    unit.up_s = 30.0
    assert until(lambda: bench.supervisor.live == 0)
    unit.fail(DEAD)
    kept = bench.submit("gives up", (1, 2), 5)
    began = time.monotonic()
    assert isinstance(kept.end, Failed)
    assert time.monotonic() - began < 2


def test_a_unit_that_fails_too_often_stays_down_and_says_so(build) -> None:
    unit = FakeUnit("a", up_s=0.001)
    bench = build(unit, failures=3)
    unit.refuse_starts = 100
    kept = bench.submit("r", (1,), 10_000)
    unit.fail(DEAD)
    assert isinstance(kept.end, Failed)
    assert bench.supervisor.phases() == {"a": "given up"}
    assert "3 failures within 300 s: it stays down" in bench.said[-1]
    assert "rank 1 start: rank 1 found no weights" in bench.said[-1]
    with pytest.raises(Refused, match="given up"):
        bench.submit("s", (1,), 1)


def test_no_restart_is_promised_before_any_unit_has_served() -> None:
    """Who started them may end them all then, as `serve` does."""
    unit = FakeUnit("a", up_s=0.001)
    unit.refuse_starts = 1
    bench = Bench([unit], Rules(backoff_s=0.01))
    try:
        assert until(lambda: bench.supervisor.ready)
        assert [line for line in bench.said if "restart in" in line] == []
        (record,) = bench.supervisor.records
        assert record.fault.message == "rank 1 found no weights"
        unit.refuse_starts = 1
        unit.fail(DEAD)
        assert until(lambda: len(bench.supervisor.records) == 3 and bench.supervisor.ready)
        assert [line.count("restart in") for line in bench.said if "found no weights" in line] == [1]
    finally:
        bench.supervisor.stop()


def test_retries_of_one_request_are_bounded(build) -> None:
    unit = FakeUnit("a", pace_s=0.01)
    bench = build(unit, retries=2)
    kept = bench.submit("r", (1,), 100_000 - 1)
    for _ in range(3):
        assert until(lambda: unit.state == "ready" and unit.load.running == 1)
        unit.fail(DEAD)
    assert kept.end == Failed("r", DEAD)
    assert len(kept.units) == 3


def test_cancel_ends_at_once_and_frees_the_unit(build) -> None:
    unit = FakeUnit("a")
    bench = build(unit)
    kept = bench.submit("r", (1,), 4000)
    assert until(lambda: len(kept.events) > 5)
    bench.supervisor.cancel("r")
    assert kept.end == Finished("r", "cancelled")
    assert until(lambda: unit.load.running == 0)
    count = len(kept.events)
    time.sleep(0.02)
    assert len(kept.events) == count
    bench.supervisor.cancel("r")
    bench.supervisor.cancel("unknown")


def test_one_more_than_may_wait_is_refused(build) -> None:
    unit = FakeUnit("a")
    bench = build(unit, max_waiting=3)
    unit.frozen = True
    kept = [bench.submit(f"r{n}", (1,), 5) for n in range(3)]
    with pytest.raises(Refused) as caught:
        bench.submit("r3", (1,), 5)
    assert caught.value.full
    unit.frozen = False
    assert [k.end.reason for k in kept] == ["length"] * 3  # type: ignore[union-attr]
    assert bench.submit("r3", (1,), 5).end == Finished("r3", "length")


def test_a_token_lost_with_the_end_of_its_unit_is_not_asked_for_again(build) -> None:
    unit = FakeUnit("a", max_tokens=8)
    bench = build(unit)
    kept = Kept()
    lost = threading.Event()

    def sink(event: Event | Placed) -> None:
        kept(event)
        if isinstance(event, Token) and event.index == 3:
            lost.set()

    bench.supervisor.submit(Job("r", (1, 2, 3, 4), 100), sink)
    assert kept.end == Finished("r", "length")
    assert kept.tokens == greedy((1, 2, 3, 4), 4)


def test_health_by_a_recent_token_by_a_probe_and_within_the_bound(build) -> None:
    unit = FakeUnit("a")
    bench = build(unit, probe_s=0.2)

    def health() -> tuple[object, float]:
        found: list[object] = []
        began = time.monotonic()
        bench.supervisor.probe(found.append)
        assert until(lambda: bool(found))
        return found[0], time.monotonic() - began

    assert health()[0].ok  # by a probe: nothing has run yet
    unit.frozen = True
    answer, took = health()
    assert not answer.ok
    assert answer.reason == "a: no token within 0.2 s"
    assert took < 1
    unit.frozen = False
    assert bench.submit("r", (1,), 3).end == Finished("r", "length")
    unit.frozen = True
    assert health()[0].ok  # a token came within the last second
    unit.up_s = 30
    unit.fail(DEAD)
    assert until(lambda: not bench.supervisor.ready)
    answer, _ = health()
    assert not answer.ok
    assert "rank 1 dead: rank 1 was killed by signal 9" in answer.reason


def test_a_probe_under_way_when_a_rank_is_lost_names_it(build) -> None:
    unit = FakeUnit("a")
    bench = build(unit, probe_s=10.0)
    unit.frozen = True
    found: list[object] = []
    bench.supervisor.probe(found.append)
    assert until(lambda: bool(unit._probes))
    unit.fail(DEAD)
    assert until(lambda: bool(found))
    (answer,) = found
    assert not answer.ok
    assert "rank 1 dead: rank 1 was killed by signal 9" in answer.reason


def test_a_unit_that_says_nothing_and_answers_no_probe_is_lost(build) -> None:
    unit = FakeUnit("a")
    bench = build(unit, silent_s=0.1, probe_s=0.05)
    kept = bench.submit("r", (1, 2), 200)
    assert until(lambda: len(kept.events) > 5)
    unit.frozen = True
    assert kept.end == Finished("r", "length")
    assert kept.tokens == greedy((1, 2), 200)
    assert bench.supervisor.faults["slow"] == 1
    assert unit.starts == 2


def test_stop_drains_then_cancels_and_ends_every_unit(build) -> None:
    units = [FakeUnit("a", pace_s=0.002), FakeUnit("b", pace_s=0.002)]
    bench = build(*units)
    short, long = bench.submit("short", (1,), 20), bench.submit("long", (2,), 3000)
    bench.supervisor.drain(0.5)
    bench.supervisor.stop()
    assert short.end == Finished("short", "length")
    assert long.end == Finished("long", "cancelled")
    assert [u.state for u in units] == ["stopped", "stopped"]
    with pytest.raises(Refused, match="stopping"):
        bench.submit("late", (1,), 1)

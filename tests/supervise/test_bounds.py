"""What bounds a request's way over units: its wait, the units it may cost, and what is said of those that are down."""

import time

import pytest
from tests.supervise.bench import DEAD
from tests.supervise.fake import FakeUnit, greedy, until

from linkwise.supervise.health import Health
from linkwise.supervise.supervisor import Refused
from linkwise.supervise.types import Failed, Fault, Finished


def test_a_prompt_that_makes_two_units_slow_is_tried_on_no_third_one(build) -> None:
    units = [FakeUnit(name, pace_s=0.02) for name in "abc"]
    bench = build(*units, retries=100)
    poison, other = bench.submit("poison", (1, 2, 3), 4000), bench.submit("other", (1,), 4000)
    for lost in (1, 2):
        assert until(lambda lost=lost: len(poison.units) == lost)  # type: ignore[misc]
        unit = next(u for u in units if u.name == poison.units[-1])
        assert until(lambda unit=unit: any(job.id.startswith("poison") for job in unit.accepted))  # type: ignore[misc]
        (job,) = [job.id for job in unit.accepted if job.id.startswith("poison")][-1:]
        unit.fail(Fault((0,), "slow", "rank 0 made no progress for 3 s", 3.0, (job,)))
    assert isinstance(poison.end, Failed)
    assert poison.end.fault.kind == "slow" and len(poison.units) == 2
    assert "2 units were lost while they computed this prompt of 3 tokens" in poison.end.fault.message
    assert not other.over.is_set()
    bench.supervisor.cancel("other")


def test_a_request_that_others_made_slow_moves_on(build) -> None:
    units = [FakeUnit("a", pace_s=0.02), FakeUnit("b", pace_s=0.02)]
    bench = build(*units, retries=100)
    kept = bench.submit("r", (1, 2), 40)
    for lost in range(1, 4):
        assert until(lambda lost=lost: len(kept.units) == lost)  # type: ignore[misc]
        unit = next(u for u in units if u.name == kept.units[-1])
        assert until(lambda unit=unit: unit.state == "ready" and unit.load.running == 1)  # type: ignore[misc]
        unit.fail(Fault((0,), "slow", "rank 0 made no progress for 3 s", 3.0, ("another",)))
    assert kept.end == Finished("r", "length") and kept.tokens == greedy((1, 2), 40)


def test_the_wait_of_a_request_is_bounded_whatever_comes_and_goes(build) -> None:
    """Under `restart` it waits for a; b comes up over and over meanwhile, which is no reason to begin to count anew."""
    units = [FakeUnit("a", pace_s=0.02), FakeUnit("b", pace_s=0.02)]
    bench = build(*units, on_fault="restart", wait_s=1.0)
    kept = bench.submit("r", (1, 2), 4000)
    assert until(lambda: len(kept.tokens) > 0)
    a, b = units if kept.units == ["a"] else units[::-1]
    a.up_s = 1000.0
    a.fail(DEAD)
    ups = 0
    while not kept.over.is_set() and ups < 30:
        assert until(lambda: b.state == "ready" or kept.over.is_set())
        time.sleep(0.1)
        ups += b.fail(DEAD)
    assert isinstance(kept.end, Failed) and 0 < ups < 30
    fault = kept.end.fault
    assert fault.kind == "start"
    assert f"no unit came up within 1 s after {a.name} was lost (rank 1 dead: rank 1 was killed" in fault.message


def test_when_every_unit_stays_down_nobody_is_told_to_come_back(build) -> None:
    unit = FakeUnit("a", up_s=0.001)
    bench = build(unit, failures=1)
    kept = bench.submit("r", (1,), 10_000)
    assert until(lambda: len(kept.tokens) > 0)
    unit.fail(DEAD)
    assert isinstance(kept.end, Failed)
    assert "no unit will serve any more after a was lost (rank 1 dead" in kept.end.fault.message
    with pytest.raises(Refused) as caught:
        bench.submit("s", (1,), 1)
    assert caught.value.retry_s == 0.0 and bench.supervisor.retry_after_s() == 0.0


def test_nothing_is_said_against_a_unit_that_nobody_waited_for(build) -> None:
    slow, quick = FakeUnit("a"), FakeUnit("b")
    bench = build(slow, quick)
    slow.frozen = True
    found: list[Health] = []
    bench.supervisor.probe(found.append)
    assert until(lambda: bool(found))
    assert found[0].ok and found[0].reason == ""


def test_a_unit_whose_ranks_get_on_is_not_taken_for_lost(build) -> None:
    """A step may take longer than any silence that is allowed, and no probe passes it."""
    unit = FakeUnit("a")
    bench = build(unit, silent_s=0.1, probe_s=0.05)
    kept = bench.submit("r", (1, 2), 4000)
    assert until(lambda: len(kept.events) > 5)
    unit.frozen = True
    for _ in range(50):
        unit.progress_s = time.monotonic()
        time.sleep(0.02)
    assert bench.supervisor.faults["slow"] == 0
    bench.supervisor.cancel("r")

"""Groups that do not come back: who waits is told why, nobody is told to try again, and the server ends."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.supervise.fake import FakeUnit, until

pytest.importorskip("fastapi")
pytest.importorskip("httpx")

from linkwise.dist.watch import Lost
from linkwise.runtime.serve.run import _come_up, bind
from linkwise.supervise.rules import Rules
from linkwise.supervise.supervisor import Supervisor
from linkwise.supervise.types import Fault

DEAD = Fault((1,), "dead", "rank 1 was ended by SIGKILL", 0.1)


def test_a_request_that_waits_in_vain_is_told_what_it_waited_for(serve: Callable[..., Any]) -> None:
    unit = FakeUnit("a", pace_s=0.02)
    running = serve(unit, wait_s=0.3)
    found: list[Any] = []
    asking = threading.Thread(target=lambda: found.append(running.ask(count=400)))
    asking.start()
    assert until(lambda: unit.load.running == 1)
    unit.up_s = 1000.0
    unit.fail(DEAD)
    asking.join(20)
    (answer,) = found
    words = answer.json()["error"]["message"]
    assert answer.status_code == 503 and "retry-after" in answer.headers
    assert words.startswith("no unit came up within 0.3 s after a was lost (rank 1 dead: rank 1 was ended by SIGKILL)")


def test_nobody_is_told_to_come_back_where_nothing_comes_up_again(serve: Callable[..., Any]) -> None:
    unit = FakeUnit("a")
    running = serve(unit, failures=1)
    unit.fail(DEAD)
    assert until(lambda: running.supervisor.phases() == {"a": "given up"})
    answer = running.ask()
    assert answer.status_code == 503 and "retry-after" not in answer.headers
    assert "a is given up (rank 1 dead" in answer.json()["error"]["message"]


def test_the_server_ends_when_every_group_stays_down() -> None:
    units = [FakeUnit("a"), FakeUnit("b")]
    supervisor = Supervisor(units, Rules(failures=1))
    said: list[str] = []

    async def live() -> None:
        with bind("127.0.0.1", 0) as listener:
            rising = asyncio.create_task(_come_up(supervisor, said.append, listener))
            while not said or set(supervisor.phases().values()) != {"ready"}:
                await asyncio.sleep(0.01)
            units[0].fail(DEAD)
            await asyncio.sleep(0.6)
            assert not rising.done()
            units[1].fail(DEAD)
            await asyncio.wait_for(rising, 20)

    supervisor.start()
    try:
        with pytest.raises(Lost, match="every group stays down: a is given up .rank 1 dead.*b is given up") as error:
            asyncio.run(live())
        assert error.value.exit_code == 1
    finally:
        supervisor.stop()

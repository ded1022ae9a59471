"""A supervisor over fake units, and sinks that keep what they get."""

import threading

from tests.supervise.fake import FakeUnit

from linkwise.supervise.rules import Rules
from linkwise.supervise.supervisor import Placed, Supervisor
from linkwise.supervise.types import Event, Failed, Fault, Finished, Job, Token

DEAD = Fault((1,), "dead", "rank 1 was killed by signal 9", 0.1)


class Kept:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.events: list[Event | Placed] = []
        self.over = threading.Event()

    def __call__(self, event: Event | Placed) -> None:
        self.events.append(event)
        if isinstance(event, Finished | Failed):
            self.over.set()

    @property
    def tokens(self) -> list[int]:
        found = [e for e in self.events if isinstance(e, Token)]
        assert [e.index for e in found] == list(range(len(found)))
        return [e.token for e in found]

    @property
    def end(self) -> Event | Placed:
        assert self.over.wait(20)
        ends = [e for e in self.events if isinstance(e, Finished | Failed)]
        assert len(ends) == 1
        assert self.events[-1] is ends[0]
        return ends[0]

    @property
    def units(self) -> list[str]:
        return [e.unit for e in self.events if isinstance(e, Placed)]


class Bench:
    """A supervisor over fake units, up and running."""

    def __init__(self, units: list[FakeUnit], rules: Rules) -> None:
        self.units, self.said = units, []
        self.supervisor = Supervisor(units, rules, self.said.append)
        self.supervisor.start()

    def submit(self, id: str, prompt: tuple[int, ...], count: int, **more: object) -> Kept:
        kept = Kept()
        self.supervisor.submit(Job(id, prompt, count, **more), kept)  # type: ignore[arg-type]
        return kept

"""Are the ranks where the plan puts them? Compared when a unit comes up: told, or a reason not to serve."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from linkwise.supervise.types import Event, Fault, Job, Load, State, Unit


class Put(NamedTuple):
    """Where the plan puts a rank: the number of its node, and of its device there."""

    node: int
    device: int


class Found(NamedTuple):
    """Where a rank is. machine: one id per machine. device: the accelerator's name, or cpu; bus: its PCI address."""

    rank: int
    host: str
    machine: str
    device: str
    bus: str = ""


def differences(planned: Sequence[Put], found: Sequence[Found], accelerator: str = "") -> tuple[str, ...]:
    """What differs, in words; empty when nothing does. planned: by rank of the unit. accelerator: the plan's.

    Devices of a node are numbered in the order of their bus addresses.
    """
    said: list[str] = []
    if len(found) != len(planned):
        said.append(f"{len(found)} ranks where the plan has {len(planned)}")
    ranks = [(where, planned[where.rank]) for where in found if where.rank < len(planned)]
    machines: dict[int, Found] = {}
    nodes: dict[str, tuple[int, int]] = {}
    for where, put in ranks:
        first = machines.setdefault(put.node, where)
        if first.machine != where.machine:
            said.append(f"rank {where.rank} is on {where.host}, apart from rank {first.rank} of its node {put.node}")
        node, other = nodes.setdefault(where.machine, (put.node, where.rank))
        if node != put.node:
            said.append(f"rank {where.rank} of node {put.node} shares {where.host} with rank {other} of node {node}")
    said += _devices(ranks)
    wanted = accelerator.partition("-")[0].lower()
    wrong: dict[str, list[int]] = {}
    for where, _ in ranks:
        if where.device == "cpu" or (wanted and wanted not in where.device.lower()):
            wrong.setdefault(where.device, []).append(where.rank)
    for device, numbers in wrong.items():
        shown = ", ".join(map(str, numbers[:8])) + (" ..." if len(numbers) > 8 else "")
        said.append(
            f"rank{'s' * (len(numbers) > 1)} {shown} on {device}; the plan says {accelerator or 'accelerators'}"
        )
    return tuple(said)


def _devices(ranks: Sequence[tuple[Found, Put]]) -> list[str]:
    """Devices that two ranks share, and those that are not in the plan's order."""
    said = []
    by_machine: dict[str, list[tuple[int, str, int]]] = {}
    for where, put in ranks:
        if where.bus:
            by_machine.setdefault(where.machine, []).append((put.device, where.bus, where.rank))
    for devices in by_machine.values():
        devices.sort()
        for (_, bus, rank), (_, after, other) in pairwise(devices):
            if bus == after:
                said.append(f"ranks {rank} and {other} share the device at {bus}")
            elif bus > after:
                words = f"rank {other} is on the device at {after}, before rank {rank}'s at {bus}"
                said.append(f"{words}; the plan has them the other way round")
    return said


class Mapped:
    """A unit whose ranks' places are compared with the plan each time it comes up. Else the unit it is given.

    strict: a difference ends the unit with a fault of kind `map`. A unit that has lost this way is not tried in vain:
    the supervisor's bounds on restarts hold for it too.
    """

    def __init__(
        self,
        unit: Unit,
        planned: Sequence[Put],
        found: Callable[[], Sequence[Found]],
        say: Callable[[str], None],
        *,
        accelerator: str = "",
        strict: bool = False,
    ) -> None:
        self._unit, self._planned, self._found, self._say, self._strict = unit, tuple(planned), found, say, strict
        self._accelerator = accelerator
        self.name, self.max_tokens = unit.name, unit.max_tokens
        self._refused = False

    @property
    def state(self) -> State:
        return "failed" if self._refused else self._unit.state

    @property
    def load(self) -> Load:
        return self._unit.load

    def start(self, watch: Callable[[State, Fault | None], None]) -> None:
        self._refused = False

        def told(state: State, fault: Fault | None) -> None:
            if self._refused:
                return
            said = differences(self._planned, self._found(), self._accelerator) if state == "ready" else ()
            for line in said:
                self._say(f"{self.name}: {line}")
            if said and self._strict:
                self._refused = True
                watch("failed", Fault((), "map", "; ".join(said)[:1000]))
                return
            watch(state, fault)

        self._unit.start(told)

    def submit(self, job: Job, sink: Callable[[Event], None]) -> None:
        if self._refused:
            raise RuntimeError(f"{self.name} is not where the plan puts it")
        self._unit.submit(job, sink)

    def cancel(self, id: str) -> None:
        self._unit.cancel(id)

    def probe(self, answer: Callable[[bool], None]) -> None:
        if self._refused:
            answer(False)
        else:
            self._unit.probe(answer)

    def stop(self) -> None:
        self._unit.stop()

"""Are the ranks where the plan puts them? Compared when a unit comes up: told, or a reason not to serve."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from linkwise.supervise.types import Event, Fault, Job, Load, State, Unit


class Put(NamedTuple):
    """Where the plan puts a rank: number of its node, and of its device there. numa: the device's, -1 = not said."""

    node: int
    device: int
    numa: int = -1


class Found(NamedTuple):
    """Where a rank is. machine: one id per machine. device: the accelerator's name, or cpu; bus: its PCI address.

    numa: NUMA node of its device, or of its cores where it has none; cores_numa: of its cores; -1 = unknown, or
    several. cores: those it may run on. transport: what carries its calls.
    """

    rank: int
    host: str
    machine: str
    device: str
    bus: str = ""
    numa: int = -1
    cores_numa: int = -1
    cores: tuple[int, ...] = ()
    transport: str = ""


def shown(found: Sequence[Found], most: int = 16) -> list[str]:
    """Where ranks are, a line for those that are alike."""
    alike: dict[str, list[int]] = {}
    for where in found:
        parts = [where.device + (f" at {where.bus}" if where.bus else "")]
        parts += [f"NUMA node {where.numa}"] if where.numa >= 0 else []
        parts += [f"cores {_ranges(where.cores)}"] if where.cores else []
        parts += [where.transport] if where.transport else []
        alike.setdefault(f"on {where.host}: {', '.join(parts)}", []).append(where.rank)
    lines = [f"rank{'s' * (len(ranks) > 1)} {_ranges(ranks)} {words}" for words, ranks in alike.items()]
    return lines[:most] + ([f"and {len(lines) - most} more such lines"] if len(lines) > most else [])


def _ranges(numbers: Sequence[int]) -> str:
    """0-3, 8 of ascending numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    words = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:32]]
    return ", ".join(words) + (", ..." if len(runs) > 32 else "")


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
    for where, put in ranks:
        if -1 not in (where.numa, put.numa) and where.bus and where.numa != put.numa:
            said.append(f"rank {where.rank}'s device is at NUMA node {where.numa}; the plan has it at {put.numa}")
        if -1 not in (where.numa, where.cores_numa) and where.numa != where.cores_numa:
            words = f"rank {where.rank} runs on cores of NUMA node {where.cores_numa}"
            said.append(f"{words}, its device is at node {where.numa}")
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
    """A unit whose ranks' places are told, and compared with the plan, each time it comes up. Else the unit given.

    planned None: there is no plan. The same places are told once. strict: a difference ends the unit with a fault of
    kind `map`. A unit that has lost this way is not tried in vain: the supervisor's bounds on restarts hold for it too.
    """

    def __init__(
        self,
        unit: Unit,
        planned: Sequence[Put] | None,
        found: Callable[[], Sequence[Found]],
        say: Callable[[str], None],
        *,
        accelerator: str = "",
        strict: bool = False,
    ) -> None:
        self._unit, self._planned, self._found, self._say, self._strict = unit, planned, found, say, strict
        self._told: list[str] = []
        self._accelerator = accelerator
        self.name, self.max_tokens = unit.name, unit.max_tokens
        self._refused = False

    @property
    def state(self) -> State:
        return "failed" if self._refused else self._unit.state

    @property
    def load(self) -> Load:
        return self._unit.load

    @property
    def progress_s(self) -> float:
        return self._unit.progress_s

    def start(self, watch: Callable[[State, Fault | None], None]) -> None:
        self._refused = False

        def told(state: State, fault: Fault | None) -> None:
            if self._refused:
                return
            said = self._compare() if state == "ready" else ()
            if said and self._strict:
                self._refused = True
                watch("failed", Fault((), "map", "; ".join(said)[:1000]))
                return
            watch(state, fault)

        self._unit.start(told)

    def _compare(self) -> tuple[str, ...]:
        """Tell where the ranks are; returns what differs from the plan."""
        found = self._found()
        places = shown(found)
        for line in places if places != self._told else ():
            self._say(f"{self.name}: {line}")
        self._told = places
        said = () if self._planned is None else differences(self._planned, found, self._accelerator)
        for line in said:
            self._say(f"{self.name}: {line}")
        return said

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

"""Which ranks does a statement speak of? By its own number, by a process id, or by a device on a host."""

from collections.abc import Iterable

from linkwise.core.units import show_figure
from linkwise.diagnose.case import Case
from linkwise.diagnose.types import Fault
from linkwise.trace.facts import Fact


class Places:
    """Where ranks run, from the records' heads and from facts of kind `place`."""

    def __init__(self, case: Case) -> None:
        self._pids: dict[str, set[tuple[str, int]]] = {}
        self._devices: dict[str, set[tuple[str, int]]] = {}
        for rank in case.evidence.trace.ranks:
            head = rank.head
            if head.pid:
                self._pids.setdefault(str(head.pid), set()).add((head.host, head.rank))
            for name in (head.device, head.uuid):
                self._devices.setdefault(_device(name), set()).add((head.host, head.rank))
        places = case.facts("place")
        for fact in places:
            if fact.rank >= 0 and fact.label("pid"):
                self._pids.setdefault(fact.label("pid"), set()).add((fact.host, fact.rank))
        for fact in places:
            ranks = (fact.rank,) if fact.rank >= 0 else self.of_pid(fact.label("pid"), fact.host)
            for name in (fact.device, fact.label("device"), fact.label("bus"), fact.label("uuid")):
                self._devices.setdefault(_device(name), set()).update((fact.host, rank) for rank in ranks)
        self.known = tuple(sorted(_known(case)))

    def of(self, fact: Fact) -> tuple[int, ...]:
        """Ranks of a fact; empty when nothing says."""
        if fact.rank >= 0:
            return (fact.rank,)
        return self.of_pid(fact.label("pid"), fact.host) or self.of_device(fact.device, fact.host)

    def of_pid(self, pid: str, host: str) -> tuple[int, ...]:
        """Ranks of a process of a host; host "": of the only one that has such a process."""
        return _found(self._pids, pid, host) if pid and pid != "0" else ()

    def of_device(self, device: str, host: str) -> tuple[int, ...]:
        """Ranks that run on a device of a host; host "": of the only one that has ranks on such a device."""
        return _found(self._devices, _device(device), host) if device else ()

    def on_device(self, rank: int) -> bool:
        """Whether any device is known to be a rank's."""
        return any(rank == one for name, rows in self._devices.items() if name for _, one in rows)

    def perhaps(self, device: str, host: str) -> tuple[tuple[str, int], ...]:
        """Hosts and ranks of which some run on a device that nothing says the host of: several hosts have one."""
        rows = self._devices.get(_device(device), ()) if device and not host else ()
        return tuple(sorted(rows)) if len({at for at, _ in rows} - {""}) > 1 else ()


def place_of(case: Case, rank: int, fact: Fact | None = None) -> Fault:
    """A rank as the place of a fault: as its record knows it, else as a fact of it does."""
    fact = fact or Fact("place", "rank", rank=rank)
    records = case.records_of(fact._replace(rank=rank))
    if len(records) == 1:
        return case.fault(records[0])
    return Fault(ranks=(rank,), host=fact.host, unit=fact.label("unit"))


def _device(name: str) -> str:
    """A device's name, its PCI function and domain aside where they are 0: one card, one name."""
    return name.lower().removesuffix(".0").removeprefix("0000:")


def _found(rows: dict[str, set[tuple[str, int]]], key: str, host: str) -> tuple[int, ...]:
    """Hosts number their processes and devices alike: without a host, a number that several have is of none."""
    found = rows.get(key, set())
    if not host and len({at for at, _ in found} - {""}) > 1:
        return ()
    return tuple(sorted({rank for at, rank in found if not at or not host or at == host}))


def _known(case: Case) -> set[int]:
    """Every rank that a record, a log or a monitor speaks of."""
    ranks = {rank.head.rank for rank in case.evidence.trace.ranks}
    return ranks | {fact.rank for fact in case.evidence.facts if fact.rank >= 0}


def said(fact: Fact) -> str:
    """A fact as a line of evidence: where it stands, and what stands there."""
    about = [f"rank {fact.rank}"] if fact.rank >= 0 else []
    about += [word for word in (fact.host, fact.device) if word]
    text = fact.text or " ".join([*about, fact.name, show_figure(fact.value, 6), fact.unit]).strip()
    return f"{fact.source}: {text}" if fact.source else text


def lines(facts: Iterable[Fact], most: int = 6) -> tuple[str, ...]:
    """The first of them as lines of evidence, each once."""
    return tuple(dict.fromkeys(map(said, facts)))[:most]


def whole(fact: Fact, label: str, otherwise: int = 0) -> int:
    """A label as a whole number; some labels are whatever a metric's owner wrote."""
    text = fact.label(label)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else otherwise


def one(values: Iterable[str]) -> str:
    """The value that all share; "" when they do not, or there is none."""
    found = set(values)
    return found.pop() if len(found) == 1 else ""

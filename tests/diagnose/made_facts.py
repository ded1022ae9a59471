"""Facts and cases made by hand for tests of rules."""

from collections.abc import Iterable

from linkwise.diagnose.case import Case
from linkwise.diagnose.types import Finding
from linkwise.trace.calls import of_events
from linkwise.trace.events import Event, Head, RankTrace, Trace
from linkwise.trace.facts import Fact
from linkwise.trace.gather import Evidence

SECOND = 10**9


def fact(kind: str, name: str, value: float = 0.0, labels: dict[str, str] | None = None, **fields: object) -> Fact:
    pairs = tuple((labels or {}).items())
    return Fact(kind, name, value, labels=pairs, **fields)  # type: ignore[arg-type]


def case(*facts: Fact, ranks: Iterable[RankTrace] = ()) -> Case:
    return Case(Evidence(facts=facts, trace=Trace(ranks=tuple(ranks))))


def found(module: object, *facts: Fact, ranks: Iterable[RankTrace] = ()) -> list[Finding]:
    return list(module.find(case(*facts, ranks=ranks)))  # type: ignore[attr-defined]


def one(module: object, *facts: Fact, ranks: Iterable[RankTrace] = ()) -> Finding:
    (finding,) = found(module, *facts, ranks=ranks)
    return finding


def hanging(world: int) -> list[RankTrace]:
    """Every rank entered the same call and none left it."""
    members = tuple(range(world))
    call = Event(-1, "tp", "", "all_reduce", 7, 4096, "float32", -1, SECOND, SECOND, 0, "started")
    return [
        RankTrace(head=Head(rank=rank, world=world, groups={"tp": members}), calls=of_events([call]))
        for rank in members
    ]

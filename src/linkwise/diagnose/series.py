"""Gauges over time, one engine each: what their last stretch looks like."""

from typing import NamedTuple

import numpy as np

from linkwise.diagnose.case import Case
from linkwise.diagnose.places import whole
from linkwise.trace.facts import Fact

TAIL = 0.5  # of the points: the last stretch, three of them at least
FEWEST = 3


class Series(NamedTuple):
    """One gauge of one engine in the order of time. source: of its last point."""

    facts: tuple[Fact, ...]

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(fact.value for fact in self.facts)

    @property
    def tail(self) -> tuple[float, ...]:
        """Its last stretch; all of it when it is short."""
        return self.values[-max(FEWEST, int(len(self.facts) * TAIL)) :]

    @property
    def typical(self) -> float:
        """Median of the last stretch."""
        return float(np.median(self.tail))

    @property
    def seconds(self) -> float:
        """Time of the last stretch; 0 where times are not known."""
        times = [fact.unix_ns for fact in self.facts[-len(self.tail) :] if fact.unix_ns]
        return (times[-1] - times[0]) / 1e9 if len(times) > 1 else 0.0

    def stuck(self, least: float = 1.0) -> bool:
        """Not empty and not going down over its last stretch, of points enough to say so."""
        tail = self.tail
        return len(tail) >= FEWEST and min(tail) >= least and tail[-1] >= 0.9 * tail[0] and min(tail) >= 0.5 * max(tail)

    def frozen(self, least: float = 1.0) -> bool:
        """Not empty and the same over its last stretch."""
        tail = self.tail
        return len(tail) >= FEWEST and min(tail) >= least and min(tail) == max(tail)

    def growing(self, least: float = 2.0) -> bool:
        """Higher at its end than at its beginning, by half and by `least` at least, and not falling on the way."""
        values = self.values
        if len(values) < FEWEST:
            return False
        first, last = np.median(values[: len(values) // 3 + 1]), np.median(values[-(len(values) // 3 + 1) :])
        return bool(last - first >= least and last >= 1.5 * first)


class Engine(NamedTuple):
    """One engine, or one rank of it, with its gauges by name. pool: prefill, decode or not said."""

    pool: str
    host: str
    rank: int
    gauges: dict[str, Series]

    def typical(self, name: str, otherwise: float = -1.0) -> float:
        """Median of a gauge's last stretch; `otherwise` where there is none."""
        return self.gauges[name].typical if name in self.gauges else otherwise


# Labels that tell of a figure and not of whose it is.
_OF_FIGURE = {"count", "state", "le", "quantile", "graph", "snapshot", "time"}


def engines(case: Case) -> list[Engine]:
    """All engines whose gauges `serve.*` are there."""
    points: dict[tuple[str, str, int, tuple[tuple[str, str], ...]], dict[str, list[Fact]]] = {}
    for fact in case.facts("gauge", "serve."):
        labels = tuple(sorted(pair for pair in fact.labels if pair[0] not in _OF_FIGURE | {"pool"}))
        key = fact.label("pool"), fact.host, fact.rank, labels
        points.setdefault(key, {}).setdefault(fact.name, []).append(fact)
    found = []
    for (pool, host, rank, _), names in points.items():
        gauges = {name: Series(tuple(sorted(facts, key=_order))) for name, facts in names.items()}
        found.append(Engine(pool, host, rank, gauges))
    return found


def _order(fact: Fact) -> tuple[int, int]:
    return fact.unix_ns, whole(fact, "snapshot")

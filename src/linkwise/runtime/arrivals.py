"""Which rank do the others persistently wait for, while it still comes? Nothing is ended for that; it is said."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

_SMOOTH = 0.2  # weight of the newest step
_STEPS = 8  # before anybody is called persistently slow
_LAG_S = 0.02  # own time beyond the others', from here on worth a name
_LAG_SHARE = 0.5  # and this share of the others' own time
IN_A_ROW = 8  # comparisons, a second apart, that must agree before anything is said
CALM_S = 30.0  # for so long no other rank may have been the late one: on a busy machine they take turns
QUIET_S = 60.0  # between two lines about the same rank


class Arrival(NamedTuple):
    """A rank against the others of its stage, smoothed over steps.

    late_s: begins its steps after the first of them. own_s: time of a step it spends on its own, not waiting.
    others_s: the median of the others' own time. steps: seen.
    """

    late_s: float
    own_s: float
    others_s: float
    steps: int

    @property
    def lagging(self) -> bool:
        """Whether the others persistently wait for this rank."""
        beyond = self.own_s - self.others_s
        return self.steps >= _STEPS and beyond > _LAG_S and beyond > _LAG_SHARE * self.others_s


@dataclass
class Arrivals:
    """Smoothed arrivals of ranks that should keep step. stages: ranks that do the same work, by group and stage."""

    stages: Sequence[tuple[int, ...]]
    _begun: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)
    _ended: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)
    _late: dict[int, float] = field(default_factory=dict)
    _own: dict[int, float] = field(default_factory=dict)
    _steps: dict[int, int] = field(default_factory=dict)

    def began(self, rank: int, step: int, at_ns: int) -> None:
        times = self._whole(self._begun, rank, step, at_ns)
        for number, at in times.items():
            self._late[number] = _smoothed(self._late.get(number), (at - min(times.values())) / 1e9)

    def ended(self, rank: int, step: int, own_ns: int) -> None:
        for number, own in self._whole(self._ended, rank, step, own_ns).items():
            self._own[number] = _smoothed(self._own.get(number), own / 1e9)
            self._steps[number] = self._steps.get(number, 0) + 1

    def _whole(self, kept: dict[tuple[int, int], dict[int, int]], rank: int, step: int, value: int) -> dict[int, int]:
        """The values of a whole stage, once all of its ranks have reported the step."""
        stage = next(i for i, ranks in enumerate(self.stages) if rank in ranks)
        values = kept.setdefault((stage, step), {})
        values[rank] = value
        if len(values) < len(self.stages[stage]):
            return {}
        del kept[stage, step]
        return values

    def table(self) -> dict[int, Arrival]:
        """By rank. A rank alone in its stage has nobody to compare with and is compared with itself."""
        found = {}
        for ranks in self.stages:
            for rank in ranks:
                if rank in self._own:
                    others = [self._own[r] for r in ranks if r != rank and r in self._own] or [self._own[rank]]
                    late = self._late.get(rank, 0.0)
                    found[rank] = Arrival(late, self._own[rank], median(others), self._steps.get(rank, 0))
        return found


def _smoothed(before: float | None, new: float) -> float:
    return new if before is None else before + _SMOOTH * (new - before)


@dataclass
class Laggards:
    """What to say of ranks that hold the others up: the same one in several comparisons in a row, none in between.

    stages: ranks that do the same work. Times are the driver's monotonic clock, in seconds.
    """

    stages: Sequence[tuple[int, ...]]
    behind: set[int] = field(default_factory=set)  # as was said
    _row: dict[int, int] = field(default_factory=dict)  # comparisons in a row: late ones above 0, others below
    _steps: dict[int, int] = field(default_factory=dict)
    _other: dict[int, float] = field(default_factory=dict)  # when another rank of the stage was late and this one not
    _said: dict[int, float] = field(default_factory=dict)

    def compare(self, table: Mapping[int, Arrival], now: float) -> list[str]:
        """Lines to say now. Ranks without a new step since the last comparison tell nothing."""
        lines: list[str] = []
        for ranks in self.stages:
            fresh = [rank for rank in ranks if rank in table and table[rank].steps > self._steps.get(rank, 0)]
            late = {rank for rank in fresh if table[rank].lagging}
            for rank in fresh:
                self._steps[rank] = table[rank].steps
                self._row[rank] = _row(self._row.get(rank, 0), rank in late)
                if late and rank not in late:
                    self._other[rank] = now
                lines += self._changed(rank, table[rank], now)
        return lines

    def _changed(self, rank: int, arrival: Arrival, now: float) -> list[str]:
        row = self._row[rank]
        if rank in self.behind and row <= -IN_A_ROW:
            self.behind.discard(rank)
            return [f"rank {rank} keeps up again"]
        calm = now - self._other.get(rank, -CALM_S) >= CALM_S and now - self._said.get(rank, -QUIET_S) >= QUIET_S
        if rank in self.behind or row < IN_A_ROW or not calm:
            return []
        self.behind.add(rank)
        self._said[rank] = now
        own, others = arrival.own_s * 1e3, arrival.others_s * 1e3
        return [f"rank {rank} holds the others up: {own:.0f} ms a step by itself, the others {others:.0f} ms"]


def _row(before: int, late: bool) -> int:
    return max(before, 0) + 1 if late else min(before, 0) - 1

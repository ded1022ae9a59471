"""Can a token be produced now? A recent one answers yes; else a probe through every rank, bounded in time."""

from collections.abc import Callable
from typing import NamedTuple

from linkwise.supervise.types import Fault

RECENT_S = 1.0


class UnitHealth(NamedTuple):
    """One unit. state: as types.State, or `given up`. token: produced in the last second, or for the probe.
    reason: what is wrong with it; empty = nothing that is known."""

    name: str
    state: str
    token: bool
    reason: str


class Health(NamedTuple):
    """ok: at least one unit produces tokens. units: all of them, so that a lost one is seen while others serve."""

    ok: bool
    units: tuple[UnitHealth, ...]

    @property
    def reason(self) -> str:
        """Why not, or what is lost; empty when every unit is well."""
        return "; ".join(f"{unit.name}: {unit.reason}" for unit in self.units if unit.reason)


def described(fault: Fault) -> str:
    """A fault in words, ranks first."""
    who = {0: "", 1: "rank "}.get(len(fault.ranks), "ranks ") + ", ".join(map(str, fault.ranks))
    return f"{who} {fault.kind}: {fault.message}".strip()


class Round:
    """One health check over the units: yes with the first token, no when all probes are in or the bound is over.

    answer is called once. Not thread-safe: the supervisor's own thread makes every call.
    """

    def __init__(self, states: dict[str, UnitHealth], answer: Callable[[Health], None]) -> None:
        self._units, self._answer = states, answer
        self._open = {name for name, unit in states.items() if unit.state == "ready" and not unit.token}
        self._done = False
        self._settle()

    @property
    def asked(self) -> frozenset[str]:
        """Units whose probe has not answered."""
        return frozenset(self._open)

    def came(self, unit: str, good: bool, state: str = "", reason: str = "") -> None:
        """A probe's answer. state, reason: what is known by now of a unit that cannot."""
        if unit not in self._open:
            return
        self._open.discard(unit)
        before = self._units[unit]
        why = "" if good else reason or "the probe produced no token"
        self._units[unit] = before._replace(state=state or before.state, token=good, reason=why)
        self._settle()

    def over(self, bound_s: float) -> None:
        """The bound is over: whoever has not answered cannot produce a token now."""
        for unit in self._open:
            self._units[unit] = self._units[unit]._replace(reason=f"no token within {bound_s:g} s")
        self._open.clear()
        self._settle()

    def _settle(self) -> None:
        good = any(unit.token for unit in self._units.values())
        if not self._done and (good or not self._open):
            self._done = True
            for name in self._open:  # nobody waited for these: nothing is known against them
                self._units[name] = self._units[name]._replace(reason="")
            self._answer(Health(good, tuple(self._units.values())))

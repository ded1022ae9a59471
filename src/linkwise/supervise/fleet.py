"""The units' lives: brought up, lost, brought up again with a growing pause, or given up for good."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from linkwise.core.errors import InputError
from linkwise.supervise.health import UnitHealth, described
from linkwise.supervise.mailbox import Mailbox
from linkwise.supervise.rules import Rules
from linkwise.supervise.types import Fault, State, Unit

MAX_RECORDS = 10_000

Phase = Literal["stopped", "starting", "ready", "failed", "given up"]


class Record:
    """One loss of a unit. named_s: how long after the last sign of life it was named, as the unit says it.

    at, again: time.monotonic() when it was named and when the unit served again (None: not yet,
    or a restart that failed, which an earlier record covers).
    """

    def __init__(self, unit: str, fault: Fault, at: float) -> None:
        self.unit, self.fault, self.at = unit, fault, at
        self.again: float | None = None

    @property
    def named_s(self) -> float:
        return self.fault.after_s

    @property
    def down_s(self) -> float | None:
        """From naming to serving again."""
        return None if self.again is None else self.again - self.at


class Listener(NamedTuple):
    """Who is told, on the mailbox's thread: a unit serves; a unit and everything on it is lost; a line for people."""

    ready: Callable[[str], None]
    lost: Callable[[str, Fault], None]
    say: Callable[[str], None]


class Life:
    """What is known of one unit. Written by the mailbox's thread; phase and last_s are read by others."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.phase: Phase = "stopped"
        self.generation = 0
        self.in_a_row = 0
        self.failures: deque[float] = deque(maxlen=1 << 20)
        self.fault: Fault | None = None
        self.last_s = 0.0  # time.monotonic() of the last token
        self.ready_s = 0.0  # and of the last time it came up
        self.restarts = 0
        self.record: Record | None = None
        self.work = threading.Lock()  # one start or stop at a time


class Fleet:
    """All units of a service. Every method but `health` and `phases` runs on the mailbox's thread."""

    def __init__(self, units: Sequence[Unit], rules: Rules, mailbox: Mailbox, listener: Listener) -> None:
        names = [unit.name for unit in units]
        if not units or len(set(names)) != len(names):
            raise InputError(
                f"units {names}"[:200], where="supervisor", expected="at least one, each with its own name"
            )
        self.lives = {unit.name: Life(unit) for unit in units}
        self.records: deque[Record] = deque(maxlen=MAX_RECORDS)
        self._rules, self._mailbox, self._listener = rules, mailbox, listener
        self._stopping = False

    def phases(self) -> Mapping[str, Phase]:
        return {name: life.phase for name, life in self.lives.items()}

    @property
    def hopeful(self) -> bool:
        """Will a unit serve, now or after a restart?"""
        return any(life.phase != "given up" for life in self.lives.values())

    def why_down(self) -> str:
        """Every unit's state and last fault, in words."""

        def words(life: Life) -> str:
            return f"{life.unit.name} is {life.phase}" + (f" ({described(life.fault)})" if life.fault else "")

        return "; ".join(words(life) for life in self.lives.values())

    def health(self, recent_s: float) -> dict[str, UnitHealth]:
        """Every unit as far as it is known without asking."""
        now = time.monotonic()
        found = {}
        for name, life in self.lives.items():
            token = life.phase == "ready" and life.last_s > 0 and now - life.last_s <= recent_s
            fault = life.fault
            reason = {"ready": "", "stopped": "stopped", "starting": "starting"}.get(life.phase, life.phase)
            if life.phase != "ready" and fault is not None:
                reason = f"{reason} after {described(fault)}" if life.phase != "failed" else described(fault)
            found[name] = UnitHealth(name, life.phase, token, "" if token else reason or "no answer yet")
        return found

    def start(self) -> None:
        for life in self.lives.values():
            self._bring_up(life, again=False)

    def stop(self) -> None:
        """End all units; returns when none is left. Runs on any thread, after which nothing is brought up again."""
        self._stopping = True
        threads = [threading.Thread(target=self._end, args=(life,), daemon=True) for life in self.lives.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _end(self, life: Life) -> None:
        with life.work:
            life.unit.stop()
            life.phase = "stopped"

    def fail(self, name: str, fault: Fault) -> None:
        """The unit counts as lost, whatever it says itself."""
        life = self.lives[name]
        if life.phase in {"ready", "starting"}:
            self._lost(life, fault)

    def _bring_up(self, life: Life, *, again: bool) -> None:
        if self._stopping:
            return
        life.generation += 1
        life.phase = "starting"
        generation = life.generation

        def told(state: State, fault: Fault | None) -> None:
            self._mailbox.post(lambda: self._changed(life, generation, state, fault))

        def work() -> None:
            # `stop` returns when no process is left, which may take a while; the mailbox must not wait for it.
            with life.work:
                if again:
                    life.unit.stop()
                if self._stopping:
                    return
                try:
                    life.unit.start(told)
                except Exception as error:  # noqa: BLE001 - whatever it was, the unit did not come up
                    fault = Fault((), "start", f"{type(error).__name__}: {error}"[:500])
                    self._mailbox.post(lambda: self._changed(life, generation, "failed", fault))

        threading.Thread(target=work, name=f"linkwise-start-{life.unit.name}", daemon=True).start()
        self._mailbox.after(self._rules.start_s, lambda: self._late(life, generation))

    def _late(self, life: Life, generation: int) -> None:
        if generation == life.generation and life.phase == "starting":
            self._lost(life, Fault((), "start", f"not up within {self._rules.start_s:g} s", self._rules.start_s))

    def _changed(self, life: Life, generation: int, state: State, fault: Fault | None) -> None:
        if generation != life.generation or life.phase not in {"starting", "ready"}:
            return  # of a life that is over
        if state == "ready" and life.phase == "starting":
            life.phase, life.ready_s = "ready", time.monotonic()
            if life.record is not None:
                life.record.again = time.monotonic()
                self._listener.say(f"{life.unit.name} serves again after {life.record.down_s:.1f} s")
                life.record = None
            self._listener.ready(life.unit.name)
        elif state == "failed":
            self._lost(life, fault or Fault((), "error", "ended without a reason"))
        elif state == "stopped" and not self._stopping:
            self._lost(life, fault or Fault((), "dead", "stopped by itself"))

    def _lost(self, life: Life, fault: Fault) -> None:
        now, rules, name = time.monotonic(), self._rules, life.unit.name
        served = life.phase == "ready" and life.last_s > life.ready_s
        life.generation += 1  # nothing this life still says counts
        life.in_a_row = 1 if served else life.in_a_row + 1
        life.failures.append(now)
        while life.failures[0] < now - rules.window_s:
            life.failures.popleft()
        life.fault = fault
        if life.record is None:  # a failed restart is part of the same loss
            life.record = Record(name, fault, now)
        self.records.append(life.record if life.record.fault is fault else Record(name, fault, now))
        many = len(life.failures)
        if many >= rules.failures:
            life.phase = "given up"
            self._listener.say(
                f"{name}: {described(fault)}; {many} failures within {rules.window_s:g} s: it stays down"
            )
            threading.Thread(target=self._end_given_up, args=(life,), daemon=True).start()
        else:
            life.phase = "failed"
            pause = rules.backoff(life.in_a_row)
            # Before any unit has served, whoever started them all may end them: no restart is promised, and the
            # record says what was wrong.
            if fault.kind not in {"start", "map"} or any(other.ready_s for other in self.lives.values()):
                self._listener.say(f"{name}: {described(fault)}; restart in {pause:g} s")
            generation = life.generation
            self._mailbox.after(pause, lambda: self._again(life, generation))
        self._listener.lost(name, fault)

    def _end_given_up(self, life: Life) -> None:
        with life.work:
            life.unit.stop()

    def _again(self, life: Life, generation: int) -> None:
        if generation == life.generation and life.phase == "failed":
            life.restarts += 1
            self._bring_up(life, again=True)

"""Asking units whether they live: when somebody wants to know, and when one with work has been silent for long."""

import time
from collections.abc import Callable
from functools import partial

from linkwise.supervise.fleet import Fleet
from linkwise.supervise.health import RECENT_S, Health, Round, described
from linkwise.supervise.mailbox import Mailbox
from linkwise.supervise.rules import Rules
from linkwise.supervise.types import Fault

WHY_S = 0.1  # from a probe that failed to the unit's own word about it


class Checks:
    """Everything runs on the mailbox's thread. busy: has a unit requests under way?"""

    def __init__(self, fleet: Fleet, rules: Rules, mailbox: Mailbox, busy: Callable[[str], bool]) -> None:
        self._fleet, self._rules, self._mailbox, self._busy = fleet, rules, mailbox, busy

    def probe(self, answer: Callable[[Health], None], bound_s: float) -> None:
        """Answer once: by a token of the last second, by a probe of every ready unit, at the latest after the bound."""
        found = Round(self._fleet.health(RECENT_S), answer)
        for name in found.asked:
            life = self._fleet.lives[name]
            life.unit.probe(partial(self._answered, found, name, life.generation))
        self._mailbox.after(bound_s, lambda: found.over(bound_s))

    def _answered(self, found: Round, name: str, generation: int, good: bool) -> None:
        if good:
            self._mailbox.post(lambda: found.came(name, True))
        else:  # a unit that cannot is about to say why
            self._mailbox.after(WHY_S, lambda: self._cannot(found, name, generation))

    def _cannot(self, found: Round, name: str, generation: int) -> None:
        life = self._fleet.lives[name]
        if life.generation == generation or life.fault is None:
            found.came(name, False)
        else:
            found.came(name, False, life.phase, described(life.fault))

    def watch(self) -> None:
        """A unit with work whose ranks have not got on for long, and that cannot answer a probe, is lost."""
        now = time.monotonic()
        for name, life in self._fleet.lives.items():
            silent = now - max(life.last_s, life.ready_s, life.unit.progress_s)
            if life.phase == "ready" and silent > self._rules.silent_s and self._busy(name):
                self._examine(name)
        self._mailbox.after(self._rules.silent_s / 4, self.watch)

    def _examine(self, name: str) -> None:
        life = self._fleet.lives[name]
        generation, before = life.generation, max(life.last_s, life.unit.progress_s)
        answers: list[bool] = []

        def judge() -> None:
            later = max(life.last_s, life.unit.progress_s)
            if life.generation == generation and later == before and not any(answers):
                words = f"no token for {self._rules.silent_s:g} s and none for a probe"
                self._fleet.fail(name, Fault((), "slow", words, time.monotonic() - max(before, life.ready_s)))

        life.unit.probe(answers.append)
        # A step may be as long as the silence that is allowed: a probe waits for it.
        self._mailbox.after(max(self._rules.probe_s, self._rules.silent_s), judge)

"""How a group's life ends: signs that ranks are gone or in trouble are gathered, and become one fault.

The first sign is seldom the cause: a rank that dies makes the calls of others fail, and those may be heard first.
"""

import signal
from collections.abc import Sequence

from linkwise.core.errors import InputError, LinkwiseError
from linkwise.runtime.control import Trouble
from linkwise.runtime.health import View, judge
from linkwise.runtime.local import Launched
from linkwise.supervise.types import Fault

HALTED_S = 0.4  # stopped by the system for longer is no debugger's glance
SETTLE_S = 0.05  # from the first sign of an end to its verdict, so that ranks that ended together are named together
BLAME_S = 1.0  # the same when so far only ranks have complained that others are gone


class Over(Exception):
    """The group's life ends with a fault. error: the same for a command line, when a rank said what is wrong."""

    def __init__(self, fault: Fault, error: LinkwiseError | None = None) -> None:
        super().__init__(fault.message)
        self.fault, self.error = fault, error


class Ends:
    """What points to an end of these ranks. timeout_s: bound of their calls. Times are the driver's monotonic clock."""

    def __init__(self, views: Sequence[View], launched: Launched, timeout_s: float) -> None:
        self._views, self._launched, self._timeout_s = views, launched, timeout_s
        self._troubles: dict[int, Trouble] = {}
        self._gone: dict[int, str] = {}
        self._halted: dict[int, float] = {}  # seconds by rank
        self._looked = 0.0
        self.sign = 0.0  # when the first sign of an end was seen

    def trouble(self, rank: int, said: Trouble, now: float) -> None:
        """A rank says that it ends."""
        self._troubles.setdefault(rank, said)
        self.sign = self.sign or now

    def lost(self, rank: int, why: str, now: float) -> None:
        """A rank's socket is closed, or its process has ended."""
        self._gone.setdefault(rank, why)
        self.sign = self.sign or now

    def forget_halts(self) -> None:
        """The driver was held up itself: how long a rank was stopped is not known."""
        self._halted.clear()

    def look(self, now: float, *, ready: bool) -> None:
        """Raises Over once it is clear who ended. ready: the group has served before."""
        for rank in self._launched.ended():
            if rank not in self._gone:
                self.lost(rank, "its process has ended", now)
        if self.sign and now - self.sign >= SETTLE_S:
            self._judge(now, ready)
        self._judge_halted(now)

    def _judge(self, now: float, ready: bool) -> None:
        own = {rank: said for rank, said in self._troubles.items() if said.own}
        if own:
            raise _said(*next(iter(own.items())), ready)
        dead = tuple(sorted(rank for rank in self._gone if rank not in self._troubles))
        if dead:
            after = now - max(self._views[rank].heard for rank in dead)
            raise Over(Fault(dead, "dead" if ready else "start", self._obituary(dead), after))
        if now - self.sign < min(BLAME_S, self._timeout_s / 4):
            return
        fault = judge(self._views, now, self._timeout_s)
        rank, said = next(iter(self._troubles.items()))
        words = f"calls of rank {rank} failed, and nothing says whose fault it is: {said.message}"
        raise Over(fault or Fault((), "error", words, now - self.sign))

    def _judge_halted(self, now: float) -> None:
        # Time seen stopped, less time seen at work: one that is let go now and then is slow, unless it is hardly ever.
        halted, before = self._launched.halted(), self._looked
        passed, self._looked = min(now - before, HALTED_S / 2), now
        for view in self._views:
            still = view.rank in halted and view.heard <= before
            seconds = self._halted.get(view.rank, 0.0) + (passed if still else -passed)
            self._halted[view.rank] = max(0.0, seconds)
        if max(self._halted.values()) > HALTED_S:
            after = now - min(self._views[rank].heard for rank in halted)
            raise Over(Fault(tuple(halted), "stopped", f"{_ranks(halted)} stopped by a signal", after))

    def _obituary(self, ranks: tuple[int, ...]) -> str:
        codes = self._launched.ended()
        parts = []
        for rank in ranks:
            code = codes.get(rank)
            how = "closed its socket" if code is None else f"ended with code {code}"
            if code is not None and code < 0:
                how = f"was ended by {_signal(-code)}"
            last = self._launched.last_words(rank) if code is not None and code >= 0 else ""
            parts.append(f"rank {rank} {how}" + (f" ({last})" if last else ""))
        return "; ".join(parts)


def overdue(views: Sequence[View], missing: tuple[int, ...], now: float, *, start_s: float, timeout_s: float) -> Fault:
    """Not ready within start_s: who has not loaded its part (missing), or holds up the first token."""
    held = None if missing else judge(views, now, timeout_s)
    ranks = missing or (held.ranks if held else ())
    who = f": rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:16]))}" if ranks else ""
    return Fault(ranks, "start", f"not ready within {start_s:g} s{who}", start_s)


def _said(rank: int, said: Trouble, ready: bool) -> Over:
    """A rank's own account of its error."""
    kind: type[LinkwiseError] = InputError if said.code == InputError.exit_code else LinkwiseError
    where = f"rank {rank}" + (f": {said.where}" if said.where else "")
    error = kind(said.message, where=where, expected=said.expected)
    error.exit_code = said.code
    # A fault names its ranks itself (supervise.health.described): its words do not name them again.
    words = str(kind(said.message, where=said.where, expected=said.expected))
    return Over(Fault((rank,), "error" if ready else "start", words), error)


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]} is" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} are"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

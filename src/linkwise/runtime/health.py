"""Which rank is at fault? Judged by the driver from what ranks report, while the ranks themselves wait in a collective.

A rank that sends no heartbeat is stopped. One that lives, owes work and waits for nobody while others wait is slow. If
ranks cannot be told apart nobody is named.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from linkwise.runtime.control import Beat
from linkwise.supervise.types import Fault

BEAT_S = 0.15  # between two heartbeats
SILENT_S = 3.0  # without one, at most; a rank whose interpreter is held up for long is not stopped yet
BUSY_SHARE = 0.1  # of the time between two heartbeats, from which on a rank computes
PIECE = 10  # time limits that one piece of a step may compute for: half a layer, for which there is no other sign


@dataclass
class View:
    """What the driver knows of a rank. Times: seconds of the driver's monotonic clock.

    heard: last message. changed: last progress. got_on: the same inside a step, 0 = never. busy: last seen computing.
    given, done: pieces of work. step, calls, waiting, at_ns, cpu_ns, unwritten, trouble: of its last Beat.
    """

    rank: int
    heard: float
    changed: float
    given: int = 0
    done: int = 0
    step: int = -1
    calls: int = 0
    waiting: str = ""
    got_on: float = 0.0
    busy: float = 0.0
    at_ns: int = 0
    cpu_ns: int = 0
    unwritten: int = 0
    trouble: str = ""

    def give(self, now: float) -> None:
        if self.given == self.done:
            self.changed = now
        self.given += 1

    def finish(self, now: float) -> None:
        self.done += 1
        self.changed = now

    def beat(self, beat: Beat, now: float) -> None:
        if (beat.step, beat.calls, beat.waiting) != (self.step, self.calls, self.waiting):
            self.step, self.calls, self.waiting, self.changed = beat.step, beat.calls, beat.waiting, now
            self.got_on = now
        passed, worked = beat.at_ns - self.at_ns, beat.cpu_ns - self.cpu_ns
        if self.cpu_ns and worked >= BUSY_SHARE * passed > 0:
            self.busy = now
        self.at_ns, self.cpu_ns = beat.at_ns, beat.cpu_ns
        self.unwritten, self.trouble = beat.unwritten, beat.trouble

    def alive(self, timeout_s: float) -> float:
        """When it last got on, or computed at something that takes long."""
        return max(self.changed, min(self.busy, self.changed + PIECE * timeout_s))


def judge(views: Sequence[View], now: float, timeout_s: float) -> Fault | None:
    """The fault that what is known amounts to, if any. Named well before a call of `timeout_s` runs out of time."""
    silence = unheard(views, now, min(SILENT_S, timeout_s / 3))
    if silence is not None:
        return silence
    patience = timeout_s / 2
    stuck = [view for view in views if view.given > view.done and now - view.alive(timeout_s) > patience]
    waiters = [view for view in views if view.given > view.done and view.waiting]
    suspects = [view for view in stuck if not view.waiting]
    if suspects and len(suspects) < len(views):
        # Who has done more may itself be held up by one that has done less.
        least = min(view.done for view in suspects)
        slow = [view for view in suspects if view.done == least]
        after = max(now - view.changed for view in slow)
        where = f" while {named(waiters)} waited in {waiters[0].waiting}" if waiters else ""
        return Fault(_numbers(slow), "slow", f"{named(slow)} made no progress for {after:.1f} s{where}", after)
    # Who waits for one that computes for long has waited long when that one is done: nobody may have got on.
    nobody = now - max(view.alive(timeout_s) for view in views) > timeout_s * 0.9
    late = stuck if nobody else []
    if late and len(late) == sum(view.given > view.done for view in views):
        after = max(now - view.changed for view in late)
        ranks = _numbers(late) if len(views) == 1 else ()
        words = f"{named(late)} made no progress for {after:.1f} s"
        places = sorted({view.waiting for view in late} - {""})
        return Fault(ranks, "slow", words + (f", in {', '.join(places)}" if places else ""), after)
    return None


def unheard(views: Sequence[View], now: float, limit_s: float) -> Fault | None:
    """Ranks without a heartbeat for longer than the limit."""
    if not any(now - view.heard > limit_s for view in views):
        return None
    # Of ranks stopped together the first one found must not be named alone.
    silent = [view for view in views if now - view.heard > limit_s * 0.75]
    worst = max(now - view.heard for view in silent)
    return Fault(_numbers(silent), "stopped", f"{named(silent)} sent no heartbeat for {worst:.1f} s", worst)


def named(views: Collection[View]) -> str:
    """rank 3 / ranks 1, 2"""
    return f"rank{'s' * (len(views) > 1)} {', '.join(str(view.rank) for view in views)}"


def _numbers(views: Collection[View]) -> tuple[int, ...]:
    return tuple(view.rank for view in views)

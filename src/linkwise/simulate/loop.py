"""The event loop: whatever comes next, in time order, until nothing does or `most` events are done."""

import math
from collections.abc import Callable
from functools import lru_cache

import linkwise.simulate.arrays as a
from linkwise.simulate.faults import down, up
from linkwise.simulate.handoff import moved
from linkwise.simulate.heap import pop
from linkwise.simulate.jit import compiled, kept, sources
from linkwise.simulate.queues import arrive
from linkwise.simulate.schedule import start
from linkwise.simulate.state import ARRIVE, FAULT, KICK, KIND_BITS, MOVED, STEP, Array, Record
from linkwise.simulate.step import finish


@compiled
def _happens(w: Record, kind: int, number: int, now: float) -> None:
    """One event of the heap."""
    if kind == STEP:
        # A step of a replica that went down since never ends.
        if a.slot(w)[number].busy and a.slot(w)[number].end == now:
            finish(w, number, now)
    elif kind == KICK:
        slot = a.slot(w)[number]
        slot.kicked = 0
        if slot.busy == 0 and a.replica(w)[slot.replica].down == 0:
            start(w, number, now)
    elif kind == MOVED:
        moved(w, number, now)
    elif kind == ARRIVE:
        arrive(w, number, now)
    elif kind == FAULT:
        at = a.fault(w)[number >> 1].replica
        if number & 1:
            up(w, at, now)
        else:
            down(w, at, now)


def made(stamp: str) -> Callable[[Array, int], bool]:
    """The compiled loop. stamp: names the code it is made of, so that a compiled one is not kept beyond it."""

    @kept
    def run(g: Array, most: int) -> bool:
        """True when nothing is left to happen."""
        w, version = g[0], stamp
        for _ in range(most if version else 0):
            soonest = a.heap_s(w)[0] if w.heap > 0 else math.inf
            if w.next < w.open and a.request(w)[w.next].arrival <= soonest:
                # Who arrives at the instant a step ends is there when the next one is put together.
                now = a.request(w)[w.next].arrival
                w.next += 1
                arrive(w, w.next - 1, now)
            elif w.heap > 0:
                now = soonest
                code = pop(w)
                kind, number = code >> KIND_BITS, code & ((1 << KIND_BITS) - 1)
                _happens(w, kind, number, now)
            else:
                return True
            w.now = now
            w.events += 1
        return False

    return run


@lru_cache(maxsize=1)
def loop() -> Callable[[Array, int], bool]:
    """The loop as it is compiled here."""
    return made(sources())

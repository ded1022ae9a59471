"""The event loop: whatever comes next, in time order, until nothing does, `most` events are done, or time is up."""

import math

import linkwise.simulate.arrays as a
from linkwise.simulate.faults import down, up
from linkwise.simulate.handoff import moved
from linkwise.simulate.heap import pop
from linkwise.simulate.jit import compiled
from linkwise.simulate.queues import arrive, enter
from linkwise.simulate.schedule import start
from linkwise.simulate.state import (
    ARRIVE,
    ENTER,
    FAULT,
    KICK,
    KIND_BITS,
    MORE,
    MOVED,
    NOTHING_LEFT,
    STEP,
    TIME_UP,
    Record,
)
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
    elif kind == ENTER:
        enter(w, number, now)
    elif kind == FAULT:
        if number & 1:
            up(w, number >> 1, now)
        else:
            down(w, number >> 1, now)


def run(address: int, most: int) -> int:
    """Why it stopped: NOTHING_LEFT, MORE or TIME_UP. What happens at `until` itself has happened. address: where the
    record is that `state.pointed` wrote. Compiled as a whole (simulate/native.py)."""
    w = a.record(address)
    for _ in range(most):
        soonest = a.heap_s(w)[0] if w.heap > 0 else math.inf
        coming = a.request(w)[w.next].arrival if w.next < w.open else math.inf
        if min(coming, soonest) > w.until:
            return NOTHING_LEFT if min(coming, soonest) == math.inf else TIME_UP
        if w.next < w.open and coming <= soonest:
            # Who arrives at the instant a step ends is there when the next one is put together.
            now = coming
            w.next += 1
            arrive(w, w.next - 1, now)
        elif w.heap > 0:
            now = soonest
            code = pop(w)
            kind, number = code >> KIND_BITS, code & ((1 << KIND_BITS) - 1)
            _happens(w, kind, number, now)
        else:
            return NOTHING_LEFT
        w.now = now
        w.events += 1
    return MORE

"""Events to come, soonest first; at one instant by kind, then by number, so that no order is left to chance."""

import linkwise.simulate.arrays as a
from linkwise.simulate.jit import compiled
from linkwise.simulate.state import KIND_BITS, Record


@compiled
def push(w: Record, at: float, kind: int, number: int) -> None:
    times, codes = a.heap_s(w), a.heap_code(w)
    code = (kind << KIND_BITS) | number
    place = w.heap
    if place >= len(times):
        raise IndexError("more events than requests and slots can make")
    w.heap += 1
    while place > 0:
        above = (place - 1) >> 1
        if times[above] < at or (times[above] == at and codes[above] <= code):
            break
        times[place], codes[place] = times[above], codes[above]
        place = above
    times[place], codes[place] = at, code


@compiled
def pop(w: Record) -> int:
    """The soonest event's code (kind and number); its time was heap_s[0]."""
    times, codes = a.heap_s(w), a.heap_code(w)
    found: int = codes[0]
    w.heap -= 1
    size = w.heap
    at, code = times[size], codes[size]
    place = 0
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        right = below + 1
        if right < size and (
            times[right] < times[below] or (times[right] == times[below] and codes[right] < codes[below])
        ):
            below = right
        if at < times[below] or (at == times[below] and code <= codes[below]):
            break
        times[place], codes[place] = times[below], codes[below]
        place = below
    times[place], codes[place] = at, code
    return found

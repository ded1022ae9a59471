"""Where the answer of mixed against separate pools turns: the whole verdict, asked again at other inputs.

Nothing is extrapolated. A value that is named has been put through the verdict, as printed, and flips it.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from linkwise.core.units import show_time
from linkwise.plan.pools import Question

Winner = Callable[[Question], str]

# How far from its value now an input is looked at, and in how many steps.
_FACTOR, _STEPS, _TOLERANCE = 100.0, 32, 1e-3


class Flip(NamedTuple):
    """`wins` is the answer from `at` on; up to `until`, None when it still is where the search ends."""

    wins: str
    at: float
    until: float | None


def flip(q: Question, field: str, now: float, then: float, winner: Winner) -> Flip | None:
    """The first value of a field on the way from `now` to `then` at which another side wins; None when none does.

    Both ends are rounded to three digits towards the inside, so that the value a person reads flips the answer.
    """

    def at(x: float) -> str:
        return winner(msgspec.structs.replace(q, **{field: x}))

    start = at(now)
    points = [now * math.pow(then / now, i / _STEPS) for i in range(_STEPS + 1)]
    near, wins, first, until = now, "", 0.0, None
    for x in points[1:]:
        found = at(x)
        if not wins and found not in {start, "neither"}:
            wins, first = found, _edge(at, found, near, x)
        elif wins and found != wins:
            until = _edge(at, wins, x, near)
            break
        near = x
    if not wins:
        return None
    up = then > now
    ends = (_rounded(first, up, wins, at), until if until is None else _rounded(until, not up, wins, at))
    return Flip(wins, *ends)


def _edge(at: Callable[[float], str], wins: str, outside: float, inside: float) -> float:
    """The value nearest to `outside` at which `wins` still wins."""
    while max(outside / inside, inside / outside) > 1 + _TOLERANCE:
        middle = math.sqrt(outside * inside)
        outside, inside = (outside, middle) if at(middle) == wins else (middle, inside)
    return inside


def _rounded(x: float, up: bool, wins: str, at: Callable[[float], str]) -> float:
    step = 10.0 ** (math.floor(math.log10(x)) - 2)
    near = (math.ceil(x / step) if up else math.floor(x / step)) * step
    return near if at(near) == wins else x


def break_even(q: Question, winner: Winner) -> str:
    """The nearest input at which the other answer wins: a handoff time, else a TPOT target, else a TTFT target."""
    answer = winner(q)
    if answer == "disaggregated":
        found = flip(q, "exposed_s", max(q.exposed_s, 1e-6), 1e4, winner)
        if found is not None:
            return f"{found.wins} wins once a handoff exposes {_span(found, up=True)} (now {show_time(q.exposed_s)})"
    for name, field, now in (("TPOT", "tpot_s", q.tpot_s), ("TTFT", "ttft_s", q.ttft_s)):
        for up in (False, True) if now is None or field == "ttft_s" else (True, False):
            # Without a target: the same as one that nothing misses; only tighter ones can change the answer.
            start = now if now is not None else _loosest(q)
            if up and now is None:
                continue
            found = flip(q, field, start, start * _FACTOR if up else start / _FACTOR**2, winner)
            if found is not None:
                said = show_time(now) if now is not None else "none"
                return f"{found.wins} wins with a {name} target of {_span(found, up=up)} (now {said})"
    return f"no handoff time, TPOT or TTFT target within a factor of {_FACTOR:g} flips it"


def _loosest(q: Question) -> float:
    """Seconds that no TPOT or TTFT of these pools exceeds by much: every prompt of a full batch in turn."""
    pools = (q.mixed, *q.others, q.prefill, q.decode)
    return min(1e6, max(p.steps[-1][1] + 20 * p.prompt + p.prefill_s for p in pools) + q.exposed_s)


def _span(found: Flip, *, up: bool) -> str:
    if found.until is None:
        return f"{show_time(found.at)} or {'more' if up else 'less'}"
    return f"{show_time(found.at)} {'up' if up else 'down'} to {show_time(found.until)}"

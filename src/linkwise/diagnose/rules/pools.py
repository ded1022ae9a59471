"""Handoffs between pools as our own ranks recorded them, the two sides of each held against each other.

What a rank does in a handoff outside its calls is its own; inside, it waits for the other side. And while a prompt's KV
waits for blocks, the pool that has none free goes on stepping.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from linkwise.core.units import show_time
from linkwise.diagnose.case import Case, ranks_text
from linkwise.diagnose.types import Class, Finding
from linkwise.trace.events import RankTrace

FEWEST = 3  # handoffs
SHARE = 0.5  # of a handoff's time that is one rank's own doing
RATIO = 3.0  # times the own time of the other side
LEAST_NS = 5_000_000  # below it threads and copies decide
STEPS = 8  # of decode between a prompt's end and its transfer: it was not the queue in front of the ranks


class Own(NamedTuple):
    """Of one record, handoff by handoff, in ns: its own time, and the whole."""

    own: np.ndarray
    whole: np.ndarray


def find(case: Case) -> Iterator[Finding]:
    """Slow senders and takers; a decode pool whose blocks are all taken."""
    units: dict[str, list[int]] = defaultdict(list)
    for place, rank in enumerate(case.joined.ranks):
        if len(rank.handoffs) >= FEWEST:
            units[rank.head.unit].append(place)
    for places in units.values():
        slow = list(_slow(case, places))
        yield from slow
        if not slow:
            yield from _full(case, places)


def own_times(rank: RankTrace) -> Own:
    """What a record's handoffs took, and what of that was outside calls."""
    began = np.asarray([one.began_ns for one in rank.handoffs], np.int64)
    ended = np.asarray([one.ended_ns for one in rank.handoffs], np.int64)
    order = np.argsort(began, kind="stable")
    began, ended = began[order], ended[order]
    calls = rank.calls
    place = np.searchsorted(began, calls.started_ns, side="right") - 1
    inside = (place >= 0) & (calls.ended_ns > 0)
    inside &= calls.ended_ns <= ended[np.maximum(place, 0)]
    spent = np.bincount(place[inside], weights=(calls.ended_ns - calls.started_ns)[inside], minlength=len(began))
    whole = (ended - began).astype(np.float64)
    return Own(np.maximum(whole - spent, 0.0), whole)


def _slow(case: Case, places: list[int]) -> Iterator[Finding]:
    times = {place: own_times(case.joined.ranks[place]) for place in places}
    side = {place: case.joined.ranks[place].handoffs[0].side for place in places}
    for place in places:
        mine, others = times[place], [times[other] for other in places if side[other] != side[place]]
        if not others:
            continue
        own, usual = float(np.median(mine.own)), max(float(np.median(other.own)) for other in others)
        if own < LEAST_NS or own < RATIO * usual or mine.own.sum() < SHARE * mine.whole.sum():
            continue
        takes = side[place] == "take"
        kind: Class = "handoff_stalled" if takes else "handoff_slow_sender"
        waits = sum(float((other.whole - other.own).sum()) for other in others) / len(others)
        yield Finding(
            class_=kind,
            summary=f"{case.name(place)} {'takes' if takes else 'sends'} KV slowly by its own doing: the other side"
            " waits for it",
            original_fault=case.fault(place),
            cause="host",
            first_reporter="prefill, whose blocks stay taken" if takes else "decode, which waits for the last piece",
            confidence=0.85,
            waited_s=waits / 1e9,
            evidence=(
                f"{show_time(own / 1e9)} of a handoff (median of {len(mine.own)}) are its own, outside calls; of the"
                f" other side {show_time(usual / 1e9)}",
                f"that is {100 * mine.own.sum() / mine.whole.sum():.0f} % of its time in handoffs",
            ),
            next="py-spy dump of this rank during a handoff: what it does between its messages",
            recovery="none",
        )


def _full(case: Case, places: list[int]) -> Iterator[Finding]:
    """Prompts whose transfer does not begin although decode steps all the while: it has no blocks for them."""
    takers = [place for place in places if case.joined.ranks[place].handoffs[0].side == "take"]
    between: list[int] = []
    waits: list[float] = []
    whole = 0.0
    for place in takers:
        rank = case.joined.ranks[place]
        ends = np.sort(np.asarray([one.ended_ns for one in rank.batches if one.ended_ns], np.int64))
        for one in rank.handoffs:
            if one.queued_ns:
                first, last = np.searchsorted(ends, (one.queued_ns, one.began_ns))
                between.append(int(last - first))
                waits.append(max(0, one.began_ns - one.queued_ns) / 1e9)
                whole += (one.ended_ns - one.queued_ns) / 1e9
    held = [wait for wait, steps in zip(waits, between, strict=True) if steps >= STEPS]
    if len(held) < FEWEST or sum(held) < SHARE * whole:
        return
    ranks = [case.joined.ranks[place].head.rank for place in takers]
    yield Finding(
        class_="decode_starved",
        summary=f"decode ({ranks_text(ranks)}) has too few KV blocks: {len(held)} of {len(waits)} finished prompts"
        f" waited {show_time(float(np.median(held)))} (median) for some",
        original_fault=case.fault(*takers),
        cause="configuration",
        first_reporter="prefill, whose blocks stay taken",
        confidence=0.8,
        waited_s=float(sum(held)) / max(1, len(takers)),
        evidence=(
            f"decode ran {np.median(between):.0f} steps (median) between a prompt's end and its transfer",
            f"{100 * sum(held) / whole:.0f} % of the time from a prompt's end to its KV's arrival was waiting",
        ),
        next="more KV for decode (--kv-tokens, another decode replica), or shorter answers; linkwise handoff",
        recovery="none",
    )

"""What did a rank do itself in a step? The step's time on that rank without what it spent inside calls."""

from typing import NamedTuple

import numpy as np

from linkwise.diagnose.timing import Floats
from linkwise.trace.events import RankTrace

LEAST = 5  # steps, for a middle to mean something


class Own(NamedTuple):
    """Own time of a record's steps in ns, one value a step, by step number."""

    step: np.ndarray
    own_ns: Floats


def own_times(rank: RankTrace) -> Own:
    """Own time of each of a record's whole steps; empty where its steps have no ends."""
    whole = [batch for batch in rank.batches if batch.ended_ns > batch.began_ns]
    if not whole:
        return Own(np.zeros(0, np.int64), np.zeros(0))
    number = np.asarray([batch.step for batch in whole], np.int64)
    length = np.asarray([batch.ended_ns - batch.began_ns for batch in whole], np.float64)
    calls = rank.calls
    inside = np.maximum(calls.ended_ns - calls.started_ns, 0)
    place = np.searchsorted(number, calls.step)
    known = (place < len(number)) & (number[np.minimum(place, len(number) - 1)] == calls.step)
    spent = np.bincount(place[known], weights=inside[known], minlength=len(number))
    return Own(number, np.maximum(length - spent, 0.0))

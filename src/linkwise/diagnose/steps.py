"""What did a rank do itself in a step? The step's time on that rank without what it spent inside calls."""

from typing import NamedTuple

import numpy as np

from linkwise.diagnose.timing import Floats
from linkwise.trace.calls import Ints
from linkwise.trace.events import RankTrace
from linkwise.trace.joined import LOCAL, Joined

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


def work_ns(joined: Joined) -> Ints:
    """How long each row of `Joined.alone` was at work, in ns: without a device's waits for its next launch where the
    record knows them; 0 for rows that are no own work."""
    rows = joined.alone
    work = (rows.op == joined.op(LOCAL)) & (rows.started_ns > 0)
    found: Ints = np.where(work, np.maximum(rows.ended_ns - rows.started_ns, 0), 0)
    for who, rank in enumerate(joined.ranks):
        if rank.busy_ns:
            mine = np.flatnonzero((rows.who == who) & work)
            if len(mine) == len(rank.busy_ns):
                found[mine] = rank.busy_ns
    return found

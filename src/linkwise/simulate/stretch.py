"""The stretch of a run in which more requests came than were served, though the run as a whole serves them all.

It ends where most wait, and begins where few did for the last time before. Chance lets a queue grow as well: what it
grew by must be more than so many arrivals scatter by, wherever in a run one looks.
"""

import numpy as np

from linkwise.core.schema import Frozen
from linkwise.simulate import state
from linkwise.simulate.saturation import LEAST, waiting_at
from linkwise.simulate.state import Array

SURE = 5.0  # standard deviations; the largest of 100,000 stretches of a steady load is about 4.8
FEW = 0.01  # of the most that wait, above the fewest: from here on a queue grows
LATE = 0.01  # of all requests


class Stretch(Frozen, frozen=True, kw_only=True):
    """From start_s to end_s, seconds of the run, offered_per_s requests came and served_per_s began to be served, so
    that those waiting grew from `few` to `most`. wait_s: what requests waited that came then, mean; late: that is more
    than the target of the first token, and they are more than 1 % of all: the p99 misses it."""

    start_s: float
    end_s: float
    offered_per_s: float
    served_per_s: float
    few: int
    most: int
    wait_s: float
    late: bool


def stretch(every: Array, ttft_target_s: float | None) -> Stretch | None:
    """The one with the longest queue; None where chance explains what waits."""
    if len(every) < LEAST:
        return None
    arrivals = np.sort(every["arrival"])
    waiting = waiting_at(every, arrivals)
    top = int(np.argmax(waiting))
    low = int(waiting[: top + 1].min())
    begin = int(np.flatnonzero(waiting[: top + 1] <= low + FEW * (waiting[top] - low))[-1])
    came, took = top - begin, float(arrivals[top] - arrivals[begin])
    grew = int(waiting[top] - waiting[begin])
    if came < LEAST or took <= 0:
        return None
    gaps = np.diff(arrivals[begin : top + 1])
    brings = max(float(np.std(every[field]) / np.mean(every[field])) for field in ("input", "output"))
    noise = max(1.0, float(gaps.var() / gaps.mean() ** 2)) + brings**2
    if grew <= SURE * (noise * came) ** 0.5:
        return None
    inside = (every["arrival"] >= arrivals[begin]) & (every["arrival"] <= arrivals[top])
    those = every[inside & (every["status"] == state.DONE)]
    between = np.where(those["source"] >= 0, those["reserved"] - those["prefilled"], 0.0)
    waited = float(np.mean(those["start"] - those["arrival"] + between)) if len(those) else 0.0
    return Stretch(
        start_s=float(arrivals[begin]), end_s=float(arrivals[top]), offered_per_s=came / took,
        served_per_s=(came - grew) / took, few=int(waiting[begin]), most=int(waiting[top]), wait_s=waited,
        late=ttft_target_s is not None and waited > ttft_target_s and int(inside.sum()) > LATE * len(every),
    )  # fmt: skip

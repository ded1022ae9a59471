"""Is a load beyond what the pools serve? Judged by how many wait, over the stretch since they were few.

The stretch begins where as many waited for the last time as in the middle of the first half of the arrivals. A load
that is served comes back there again and again, so that the stretch is short. What is served while requests wait is
what the pools can serve; the load is beyond that when it was drawn at a higher rate. A burst fills all rows at once,
which are given back a request's stay later, all at once as well: what is served is known from whole stays, and those
after the last arrival count, as long as somebody waits. Error rates: docs/simulate.md.
"""

import numpy as np

from linkwise.core.units import show_time
from linkwise.simulate import state
from linkwise.simulate.state import Array

LEAST = 20  # requests
STRETCH, OF_TRACE = 1 / 5, 1 / 3  # of the arrivals, at least; of a trace, whose rate nobody says
SURE = 2.0  # times what seats can give: a load that much beyond needs no queue to be seen
CHANCE = 1.5  # standard deviations of the count of as many arrivals that what waits has grown by, at least
WINDOWS = 32  # that a trace is counted in


def refusals(every: Array) -> str:
    """Whether queues with a limit were full, in words; "" when they were not."""
    refused = int((every["status"] == state.REFUSED).sum())
    return f"{refused:,} of {len(every):,} requests were refused: queues were full" if refused else ""


def saturation(every: Array, asked_per_s: float | None = None) -> str:
    """What was seen of a load that is beyond what is served; "" when nothing was.

    every: requests as the loop leaves them (state.REQUEST). asked_per_s: the rate that arrivals were drawn at.
    """
    said = refusals(every)
    if said or len(every) < LEAST:
        return said
    arrivals = np.sort(every["arrival"])
    waiting = waiting_at(every, arrivals)
    number = len(arrivals)
    few = np.median(waiting[: number // 2])
    begin = int(np.flatnonzero(waiting <= few)[-1])
    came, seconds = number - 1 - begin, float(arrivals[-1] - arrivals[begin])
    if came < (OF_TRACE if asked_per_s is None else STRETCH) * number or seconds <= 0:
        return ""
    growth, served = int(waiting[-1] - waiting[begin]), _served(every, float(arrivals[begin]), float(arrivals[-1]))
    if served is None:
        return ""
    uneven = max(float(np.std(every[field]) / np.mean(every[field])) for field in ("input", "output"))
    if asked_per_s is None:
        offered = (number - 1) / float(arrivals[-1] - arrivals[0])
        counts = np.histogram(arrivals, WINDOWS)[0]
        noise, error = max(1.0, float(counts.var(ddof=1) / counts.mean())) + uneven**2, 0.0
    else:
        # What is served scatters with what requests bring; the rate asked for does not scatter at all.
        offered, noise, error = asked_per_s, 1.0, 2 * uneven / came**0.5
    if growth <= CHANCE * (noise * came) ** 0.5 or offered <= served * (1 + error):
        return ""
    if served <= 0:
        return f"over the last {came:,} arrivals nothing was served"
    return (
        f"over the last {came:,} arrivals those waiting grew from {int(waiting[begin]):,} to {int(waiting[-1]):,},"
        f" {served:.3g}/s were served: the load of {offered:.3g}/s is about {offered / served:.3g} times what is served"
    )


def beyond(every: Array, seats: int, asked_per_s: float | None) -> str:
    """Whether the rate asked for is more than seats can give, in words; "" when it is not.

    A run of few requests ends before a queue says anything. Seats that are all taken serve one request each in a stay,
    which is no shorter than the stays seen where fewer were taken (Little's law): no pool serves more than that.
    """
    done = every[every["status"] == state.DONE]
    begins = np.where(done["source"] >= 0, done["moved"], done["start"])
    stay = float(np.mean(done["end"] - begins)) if len(done) else 0.0
    if asked_per_s is None or stay <= 0 or asked_per_s <= SURE * seats / stay:
        return ""
    return (
        f"{seats:,} requests at once are the most, and one takes {show_time(stay)} or longer: {seats / stay:.3g}/s at"
        f" most, the load is {asked_per_s:.3g}/s"
    )


def _served(every: Array, since: float, last: float) -> float | None:
    """Requests per second that began to be served while others waited; None where that was for less than a stay.

    since: when the stretch begins. last: the last arrival.
    """
    moved = every["source"] >= 0
    began = np.sort(np.where(moved, every["reserved"], every["start"]))
    done = every["status"] == state.DONE
    between = np.where(moved, every["reserved"] - every["prefilled"], 0.0)
    stay = float(np.mean((every["end"] - every["start"] - between)[done])) if done.any() else 0.0
    if stay <= 0:
        return _rate(began, since, last)
    until = max(last, float(began[-1]))
    whole = (until - since) // stay * stay
    return max(_rate(began, since, since + whole), _rate(began, until - whole, until)) if whole else None


def _rate(at: Array, first: float, last: float) -> float:
    """Events per second after `first` and until `last`."""
    return int(np.searchsorted(at, last, "right") - np.searchsorted(at, first, "right")) / (last - first)


def waiting_at(every: Array, arrivals: Array) -> Array:
    """Requests that wait at each arrival, itself included: for their first step, or between two pools for blocks."""
    waits = [(arrivals, every["start"])]
    if (every["source"] >= 0).any():
        computed = every["prefilled"] >= 0
        waits.append((np.sort(every["prefilled"][computed]), every["reserved"][computed]))
    total = np.zeros(len(arrivals), np.int64)
    for begins, ends in waits:
        over = np.sort(np.where(ends >= 0, ends, np.inf))
        total += np.searchsorted(begins, arrivals, "right") - np.searchsorted(over, arrivals, "right")
    return total

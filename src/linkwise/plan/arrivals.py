"""How evenly requests come to one of several replicas, where a router sends each to where least is under way.

Arrivals are Poisson at the router. A replica that is served in turn with k - 1 others gets every k-th of them: times
between its arrivals are Erlang, of k stages (Cox, Renewal Theory, 1962). A router that looks at load follows who
finishes, not whose turn it is: two replicas come out as even as in turn, more of them hardly more even than that. And
where several requests come while a prompt holds a replica up, those that wait count there, so the next ones go to a
replica whose round just began, several at once. How even that is was chosen by the simulator
(benchmarks/search_speed.py); with one stage, all of this is Poisson.
"""

from linkwise.core.quantity import Num, decay, maximum, minimum

MOST_STAGES = 2.5  # of any number of replicas
NONE = 1e-12


def stages(alike: Num, crowd: Num) -> Num:
    """Stages of the times between arrivals. alike: replicas; crowd: requests that come in a round held up."""
    if isinstance(alike, int) and alike == 1:
        return 1
    crowd = maximum(1, crowd)
    crowd = crowd * crowd
    return 1 + (minimum(alike, MOST_STAGES) - 1) / (crowd * crowd)


def none(expected: Num, k: Num) -> Num:
    """Chance that nobody comes in a time in which so many are expected, from any moment on."""
    if _poisson(k):
        return decay(expected)
    steps = expected * k
    return decay(steps) * (1 + (1 - 1 / k) * steps + maximum(0, 1 - 2 / k) * steps * steps / 2)


def after(expected: Num, k: Num) -> Num:
    """Requests that come in a time after one came, where so many are expected from any moment on.

    Exact for one and two stages; for more, exact for short and for long times.
    """
    if _poisson(k):
        return expected
    less = _less(k)
    return expected - less * (1 - decay(expected / maximum(NONE, less)))


def beside(expected: Num, k: Num) -> Num:
    """Others that come in the same time as a request, at any moment of it: the mean of `after` both ways."""
    if _poisson(k):
        return expected
    less = _less(k)
    gone = 1 - decay(expected / maximum(NONE, less))
    return maximum(0, expected - 2 * less + 2 * less * less / maximum(NONE, expected) * gone)


def queues(load: Num, k: Num) -> Num:
    """What a queue is of that of Poisson arrivals, where service takes a fixed time. load: share of capacity.

    Allen and Cunneen's factor, with Kraemer and Langenbach-Belz's for arrivals more even than chance (8th ITC, 1976).
    """
    if _poisson(k):
        return 1
    even = 1 / k
    return even * decay(2 * (1 - load) / (3 * maximum(NONE, load)) * (1 - even) * (1 - even) / even)


def _less(k: Num) -> Num:
    """By how many fewer come after one came, in a long time (Cox, section 4.2)."""
    return (k - 1) / (2 * k)


def _poisson(k: Num) -> bool:
    return isinstance(k, int) and k == 1

"""Which replica, and which lane of it, serves a request; and the random numbers of the loop.

A random number is a hash of (seed, what it is for, which one): no stream, so no draw moves another, on any machine.
"""

import numpy as np

import linkwise.simulate.arrays as a
from linkwise.simulate import kv
from linkwise.simulate.jit import compiled
from linkwise.simulate.state import PREFIX, RANDOM, ROUND_ROBIN, TICK, Record

_A, _B, _C = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31, _11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
# A router that follows prefixes leaves the replica that has one when it is this much busier than the idlest.
MOST_AHEAD = 8
# Requests that run one that waits is as much as, for a router that looks at load: vLLM's own between the ranks of data
# parallel groups (waiting * 4 + running, v1/engine/core_client.py, 0.9 on; ties in turn).
WAITS = 4


@compiled
def _mixed(x: np.uint64) -> np.uint64:
    """SplitMix64's finalizer (Steele, Lea and Flood, OOPSLA 2014)."""
    x = (x ^ (x >> _30)) * _B
    x = (x ^ (x >> _27)) * _C
    return x ^ (x >> _31)


@compiled
def uniform(w: Record, purpose: int, which: int) -> float:
    """A number in [0, 1)."""
    x = _mixed(w.seed + _A * np.uint64(purpose + 1))
    x = _mixed(x + _A * np.uint64(which + 1))
    return np.float64(x >> _11) * TICK


@compiled
def _takes(w: Record, at: int) -> bool:
    """Whether a replica takes new requests."""
    return bool(a.replica(w)[at].down == 0 and a.replica(w)[at].drain == 0)


@compiled
def _load(w: Record, at: int, lanes: int) -> int:
    """What a replica has to do, in requests that run: one that waits for its turn counts as WAITS of them."""
    one = a.replica(w)[at]
    running = 0
    for i in range(lanes):
        running += a.lane(w)[one.lane0 + i].running
    load: int = one.outstanding + (WAITS - 1) * (one.outstanding - running)
    return load


@compiled
def _least(w: Record, p: int) -> int:
    """The replica with the least load; ties go in turn. -1 when none takes any."""
    pool = a.pool(w)[p]
    number = pool.replica1 - pool.replica0
    start, best, fewest = pool.turn, -1, 1 << 60
    for i in range(number):
        at = start + i
        at = pool.replica0 + (at - number if at >= number else at)
        # Only who has fewer requests than the best one's load can have less.
        if a.replica(w)[at].outstanding < fewest and _takes(w, at):
            load = _load(w, at, pool.lanes)
            if load < fewest:
                best, fewest = at, load
    if best >= 0:
        pool.turn = (best - pool.replica0 + 1) % number
    return best


@compiled
def lane_of(w: Record, replica: int) -> int:
    """The lane with the fewest requests."""
    one = a.replica(w)[replica]
    best, fewest = one.lane0, 1 << 60
    for i in range(a.pool(w)[one.pool].lanes):
        lane = a.lane(w)[one.lane0 + i]
        here = lane.waiting + lane.running + lane.hands
        if here < fewest:
            best, fewest = one.lane0 + i, here
    return int(best)


@compiled
def _prefix(w: Record, p: int, r: int) -> int:
    """The lane with the longest cached part of the prompt among replicas not much busier than the idlest."""
    idlest = _least(w, p)
    if idlest < 0:
        return -1
    best, longest, fewest = lane_of(w, idlest), 0, 1 << 60
    limit = a.replica(w)[idlest].outstanding + MOST_AHEAD
    for at in range(a.pool(w)[p].replica0, a.pool(w)[p].replica1):
        one = a.replica(w)[at]
        if one.outstanding > limit or not _takes(w, at):
            continue
        for i in range(a.pool(w)[p].lanes):
            found = kv.match(w, one.lane0 + i, r)
            if found > longest or (found == longest and found > 0 and one.outstanding < fewest):
                best, longest, fewest = one.lane0 + i, found, one.outstanding
    return best


@compiled
def choose(w: Record, p: int, r: int) -> int:
    """The lane that serves request r in pool p; -1 when no replica of it takes any."""
    pool, rule = a.pool(w)[p], w.router
    if rule == PREFIX and pool.hash_blocks > 0:
        return _prefix(w, p, r)
    number = pool.replica1 - pool.replica0
    if rule == RANDOM:
        start = int(uniform(w, 1 + p, r) * number)
    elif rule == ROUND_ROBIN:
        start = pool.turn
    else:
        best = _least(w, p)
        return lane_of(w, best) if best >= 0 else -1
    for i in range(number):
        at = pool.replica0 + (start + i) % number
        if _takes(w, at):
            if rule == ROUND_ROBIN:
                pool.turn = (start + i + 1) % number
            return lane_of(w, at)
    return -1

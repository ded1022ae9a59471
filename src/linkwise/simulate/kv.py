"""KV blocks of a lane: taken, given back, shared by hash, evicted when nobody uses them; nothing appears or is lost.

free + used by requests + hash_blocks · (hashes in use + hashes kept) = blocks of the lane
"""

import linkwise.simulate.arrays as a
from linkwise.simulate.jit import compiled
from linkwise.simulate.state import Record


@compiled
def note(w: Record, lane: int, now: float) -> None:
    """Integrate what is in use up to now, before it changes."""
    one = a.lane(w)[lane]
    pool = a.pool(w)[a.replica(w)[one.replica].pool]
    used = pool.blocks - one.free - one.cached * pool.hash_blocks
    one.area += used * (now - one.since)
    one.since = now


@compiled
def _unlink(w: Record, lane: int, name: int) -> None:
    before, after = a.before(w)[lane, name], a.after(w)[lane, name]
    a.after(w)[lane, before] = after
    a.before(w)[lane, after] = before


@compiled
def _keep(w: Record, lane: int, name: int) -> None:
    """Behind all others that are kept: the last to be evicted."""
    end = w.names
    last = a.before(w)[lane, end]
    a.after(w)[lane, last], a.before(w)[lane, name] = name, last
    a.after(w)[lane, name], a.before(w)[lane, end] = end, name


@compiled
def take(w: Record, lane: int, count: int) -> None:
    """Blocks for a request; the caller has seen that there are so many. Kept hashes go first in, first out."""
    one = a.lane(w)[lane]
    size, end = a.pool(w)[a.replica(w)[one.replica].pool].hash_blocks, w.names
    while one.free < count:
        oldest = int(a.after(w)[lane, end])
        _unlink(w, lane, oldest)
        a.refs(w)[lane, oldest] = -1
        one.cached -= 1
        one.free += size
        w.evicted += size
    one.free -= count
    one.least_free = min(one.least_free, one.free + one.cached * size)
    w.taken += count


@compiled
def shared(w: Record, lane: int, r: int) -> int:
    """Whole hashed blocks of a request's prompt, where the lane keeps a prefix cache."""
    if a.pool(w)[a.replica(w)[a.lane(w)[lane].replica].pool].hash_blocks == 0:
        return 0
    return int(min(a.first_hash(w)[r + 1] - a.first_hash(w)[r], a.request(w)[r].input // w.hash_tokens))


@compiled
def match(w: Record, lane: int, r: int) -> int:
    """Tokens of a request's prompt that the lane has cached: the longest run from its start; at least one is left."""
    tokens = w.hash_tokens
    first, most = a.first_hash(w)[r], shared(w, lane, r)
    count = 0
    while count < most and a.refs(w)[lane, a.hashes(w)[first + count]] >= 0:
        count += 1
    return int(min(count * tokens, a.request(w)[r].target - 1))


@compiled
def own_blocks(w: Record, lane: int, r: int) -> int:
    """Blocks of its own a request needs to be admitted: what no hash covers of its tokens, and the share reserved."""
    pool, one = a.pool(w)[a.replica(w)[a.lane(w)[lane].replica].pool], a.request(w)[r]
    tokens = one.target - shared(w, lane, r) * w.hash_tokens
    tokens += int(pool.reserve * max(0, one.output - one.produced))
    return int((tokens + pool.block - 1) // pool.block)


@compiled
def fits(w: Record, lane: int, r: int) -> bool:
    """Whether a request can be admitted now."""
    one = a.lane(w)[lane]
    size = a.pool(w)[a.replica(w)[one.replica].pool].hash_blocks
    first, missing, pinned = a.first_hash(w)[r], 0, 0
    for i in range(shared(w, lane, r)):
        refs = a.refs(w)[lane, a.hashes(w)[first + i]]
        missing += refs < 0
        pinned += refs == 0
    return bool(own_blocks(w, lane, r) + missing * size <= one.free + (one.cached - pinned) * size)


@compiled
def hold(w: Record, lane: int, r: int) -> None:
    """Give a request that fits its blocks."""
    first, number = a.first_hash(w)[r], shared(w, lane, r)
    one, req = a.lane(w)[lane], a.request(w)[r]
    pool = a.pool(w)[a.replica(w)[one.replica].pool]
    for i in range(number):  # those that are there first, so that none of them is evicted for the others
        name = a.hashes(w)[first + i]
        if a.refs(w)[lane, name] == 0:
            _unlink(w, lane, name)
            one.cached -= 1
        if a.refs(w)[lane, name] >= 0:
            a.refs(w)[lane, name] += 1
    for i in range(number):  # a prompt names no block twice: workload/requests.py
        name = a.hashes(w)[first + i]
        if a.refs(w)[lane, name] < 0:
            take(w, lane, pool.hash_blocks)
            a.refs(w)[lane, name] = 1
    req.blocks = own_blocks(w, lane, r)
    take(w, lane, req.blocks)
    req.room = req.blocks * pool.block - (req.target - number * w.hash_tokens)


@compiled
def drop(w: Record, lane: int, r: int) -> None:
    """Take a request's blocks back. Hashes stay until somebody needs the room, the ends of prompts going first."""
    one, req = a.lane(w)[lane], a.request(w)[r]
    first, number = a.first_hash(w)[r], shared(w, lane, r)
    for back in range(number):
        name = a.hashes(w)[first + number - 1 - back]
        a.refs(w)[lane, name] -= 1
        if a.refs(w)[lane, name] == 0:
            _keep(w, lane, name)
            one.cached += 1
    one.free += req.blocks
    w.given += req.blocks
    req.blocks = 0


@compiled
def forget(w: Record, lane: int) -> None:
    """A restart: nothing is kept."""
    one, end = a.lane(w)[lane], w.names
    size = a.pool(w)[a.replica(w)[one.replica].pool].hash_blocks
    while one.cached > 0:
        name = int(a.after(w)[lane, end])
        _unlink(w, lane, name)
        a.refs(w)[lane, name] = -1
        one.cached -= 1
        one.free += size
        w.evicted += size

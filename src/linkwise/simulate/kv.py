"""KV blocks of a lane: taken, given back, shared by hash, evicted when nobody uses them; nothing appears or is lost.

free + used by requests + blocks of hashes in use + blocks of hashes kept = blocks of the lane

A hash of a trace covers many tokens, the engine's blocks are small: of a prompt's last hash, which covers what is left
of it, the whole blocks are shared. An engine that copies what is shared of a block (part_blocks) does not compute that
part again; the copy is the request's own. Where prompts part inside a hash, nothing is known of that hash's tokens.
"""

import linkwise.simulate.arrays as a
from linkwise.simulate.jit import compiled
from linkwise.simulate.state import Record


@compiled
def note(w: Record, lane: int, now: float) -> None:
    """Integrate what is in use up to now, before it changes."""
    one = a.lane(w)[lane]
    pool = a.pool(w)[a.replica(w)[one.replica].pool]
    used = pool.blocks - one.free - one.cached
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
    while one.free < count:
        _evict(w, lane)
    one.free -= count
    one.least_free = min(one.least_free, one.free + one.cached)
    w.taken += count


@compiled
def _evict(w: Record, lane: int) -> None:
    """The hash that nobody has used for longest."""
    one, oldest = a.lane(w)[lane], int(a.after(w)[lane, w.names])
    size = a.hash_size(w)[oldest]
    _unlink(w, lane, oldest)
    a.refs(w)[lane, oldest] = -1
    one.cached -= size
    one.free += size
    w.evicted += size


@compiled
def shared(w: Record, lane: int, r: int) -> int:
    """Hashes of a request's prompt, where the lane keeps a prefix cache."""
    if a.pool(w)[a.replica(w)[a.lane(w)[lane].replica].pool].hash_blocks == 0:
        return 0
    return int(a.first_hash(w)[r + 1] - a.first_hash(w)[r])


@compiled
def covered(w: Record, lane: int, r: int, count: int) -> int:
    """Tokens in the whole blocks of the first `count` hashes of a request's prompt."""
    block = a.pool(w)[a.replica(w)[a.lane(w)[lane].replica].pool].block
    tokens, prompt = count * w.hash_tokens, a.request(w)[r].input
    if tokens <= prompt:
        return int(tokens)
    before = tokens - w.hash_tokens
    return int(before + (prompt - before) // block * block)


@compiled
def match(w: Record, lane: int, r: int) -> int:
    """Tokens of a request's prompt that the lane has cached: the longest run from its start, in whole blocks unless the
    engine copies parts of them; at least one token is left to compute. Of a prompt without names: the share that is
    said to be cached."""
    first, most = a.first_hash(w)[r], shared(w, lane, r)
    if most == 0:
        return int(a.request(w)[r].input * a.pool(w)[a.replica(w)[a.lane(w)[lane].replica].pool].cached)
    count = 0
    while count < most and a.refs(w)[lane, a.hashes(w)[first + count]] >= 0:
        count += 1
    pool, one = a.pool(w)[a.replica(w)[a.lane(w)[lane].replica].pool], a.request(w)[r]
    if pool.part_blocks:
        return int(min(count * w.hash_tokens, one.input, one.target - 1))
    return int(min(covered(w, lane, r, count), one.target - 1) // pool.block * pool.block)


@compiled
def own_blocks(w: Record, lane: int, r: int) -> int:
    """Blocks of its own a request needs to be admitted: what no hash covers of its tokens, and the share reserved."""
    pool, one = a.pool(w)[a.replica(w)[a.lane(w)[lane].replica].pool], a.request(w)[r]
    tokens = one.target - covered(w, lane, r, shared(w, lane, r))
    tokens += int(pool.reserve * max(0, one.output - one.produced))
    return int((tokens + pool.block - 1) // pool.block)


@compiled
def fits(w: Record, lane: int, r: int) -> bool:
    """Whether a request can be admitted now."""
    one = a.lane(w)[lane]
    first, missing, pinned = a.first_hash(w)[r], 0, 0
    for i in range(shared(w, lane, r)):
        name = a.hashes(w)[first + i]
        refs = a.refs(w)[lane, name]
        missing += a.hash_size(w)[name] * (refs < 0)
        pinned += a.hash_size(w)[name] * (refs == 0)
    return bool(own_blocks(w, lane, r) + missing <= one.free + one.cached - pinned)


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
            one.cached -= a.hash_size(w)[name]
        if a.refs(w)[lane, name] >= 0:
            a.refs(w)[lane, name] += 1
    for i in range(number):  # a prompt names no block twice: workload/requests.py
        name = a.hashes(w)[first + i]
        if a.refs(w)[lane, name] < 0:
            take(w, lane, a.hash_size(w)[name])
            a.refs(w)[lane, name] = 1
    req.blocks = own_blocks(w, lane, r)
    take(w, lane, req.blocks)
    req.room = req.blocks * pool.block - (req.target - covered(w, lane, r, number))


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
            one.cached += a.hash_size(w)[name]
    one.free += req.blocks
    w.given += req.blocks
    req.blocks = 0


@compiled
def forget(w: Record, lane: int) -> None:
    """A restart: nothing is kept."""
    while a.after(w)[lane, w.names] != w.names:
        _evict(w, lane)

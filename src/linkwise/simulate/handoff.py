"""A prompt's way from its prefill replica to a decode replica: blocks there first, then the links, then its rows.

The prefill side owns the KV until it has arrived: its blocks stay taken, and a transfer that fails is its to repeat.
Each side's route carries one prompt at a time, in order.
"""

import linkwise.simulate.arrays as a
from linkwise.simulate import kv
from linkwise.simulate.heap import push
from linkwise.simulate.jit import compiled
from linkwise.simulate.queues import kick, leave
from linkwise.simulate.route import choose, uniform
from linkwise.simulate.state import (
    LINK,
    MOVED,
    MOVING,
    NOWHERE,
    QUEUED,
    SECOND_POOL,
    STRANDED,
    THERE,
    UNMOVED,
    Record,
)


@compiled
def hand_over(w: Record, r: int, now: float) -> None:
    """A prompt is computed: it waits for blocks on a decode lane."""
    req = a.request(w)[r]
    source = a.lane(w)[req.lane]
    source.running -= 1
    a.replica(w)[source.replica].outstanding -= 1
    req.source = req.lane
    if req.first < 0:  # one that is computed again has had its first token
        req.prefilled = now
    offer(w, r, now)


@compiled
def offer(w: Record, r: int, now: float) -> None:
    """To the queue of a decode lane; where none takes any, it waits until one is up, its KV kept."""
    req = a.request(w)[r]
    lane = choose(w, SECOND_POOL, r)
    if lane < 0:
        req.lane, req.next, req.hand = -1, -1, STRANDED
        if w.strand_head < 0:
            w.strand_head = r
        else:
            a.request(w)[w.strand_tail].next = r
        w.strand_tail = r
        return
    a.replica(w)[a.lane(w)[lane].replica].outstanding += 1
    req.lane, req.next, req.hand = lane, -1, QUEUED
    one = a.lane(w)[lane]
    if one.hand_head < 0:
        one.hand_head = r
    else:
        a.request(w)[one.hand_tail].next = r
    one.hand_tail = r
    one.hands += 1
    reserve(w, lane, now)


@compiled
def reserve(w: Record, lane: int, now: float) -> None:
    """Blocks for the prompts that wait to be moved here, in order; with them a prompt joins the queue of the links.

    What the lane preempted was there first: while it waits for blocks, no prompt takes any.
    """
    one = a.lane(w)[lane]
    pool = a.pool(w)[a.replica(w)[one.replica].pool]
    while one.hands > 0 and one.waiting == 0 and one.running < pool.max_seqs:
        r = one.hand_head
        req = a.request(w)[r]
        need = kv.own_blocks(w, lane, r)
        if need > one.free:
            return
        one.hand_head = req.next
        if one.hand_head < 0:
            one.hand_tail = -1
        one.hands -= 1
        one.running += 1
        kv.note(w, lane, now)
        held = req.blocks  # of the prefill side, which keeps them until the prompt has arrived
        kv.take(w, lane, need)
        req.room = need * pool.block - req.target
        req.blocks, req.done, req.hand = need, held, MOVING
        if req.first < 0:
            req.reserved = now
        _send(w, r, now)


@compiled
def _send(w: Record, r: int, now: float) -> None:
    req = a.request(w)[r]
    source, here = a.lane(w)[req.source], a.lane(w)[req.lane]
    takes = w.move_base_s + w.move_each_s * req.target
    begin = max(now, source.link_free, here.link_free)
    for f in range(w.faults):
        fault = a.fault(w)[f]
        at_end = fault.replica in (source.replica, here.replica)
        if fault.kind == LINK and at_end and fault.start <= begin < fault.end:
            takes *= fault.factor
    source.link_free = here.link_free = begin + takes
    w.move_busy_s += takes
    req.tries += 1
    req.due = begin + takes
    push(w, req.due, MOVED, r)


@compiled
def moved(w: Record, r: int, now: float) -> None:
    """A transfer is over: the prompt's KV is here, or its sender tries again, or gives up."""
    req = a.request(w)[r]
    if req.hand != MOVING or req.due != now:  # a side of it went down meanwhile
        return
    failed = w.fail > 0 and uniform(w, 10 + req.tries, r) < w.fail
    if failed and req.tries <= w.tries:
        w.retries += 1
        _send(w, r, now)
        return
    # The prefill side's blocks, kept in `done`, are free now.
    kept = req.blocks
    req.blocks = req.done
    kv.note(w, req.source, now)
    kv.drop(w, req.source, r)
    req.blocks, req.done = kept, req.target
    source = a.lane(w)[req.source]
    if source.waiting > 0:
        kick(w, source.replica, now)
    here = a.lane(w)[req.lane]
    if failed:
        kv.note(w, req.lane, now)
        here.free += req.blocks
        w.given += req.blocks
        req.blocks = 0
        here.running -= 1
        req.hand = NOWHERE
        leave(w, r, UNMOVED, now)
        reserve(w, req.lane, now)
        return
    if req.first < 0:
        req.moved = now
    w.moved += 1
    req.next, req.hand = -1, THERE
    if here.ready_head < 0:
        here.ready_head = r
    else:
        a.request(w)[here.ready_tail].next = r
    here.ready_tail = r
    here.readies += 1
    kick(w, here.replica, now)

"""A replica that goes down and comes back: what becomes of its requests is the recovery rule's.

elsewhere   they are routed again, and what they had is computed again
drop        those it was serving are lost, those that waited are routed again
stay        they wait for its return, and what they had is computed again

Between pools the prompt's own side keeps its KV until it has arrived: when the decode side dies before, it is offered
to another one. When KV is lost, prompt and answer so far are computed again by the prefill pool, unless the rule is
drop. A transfer cut short keeps its sender's route until it would have ended.
"""

import linkwise.simulate.arrays as a
from linkwise.simulate import kv
from linkwise.simulate.handoff import offer, reserve
from linkwise.simulate.jit import compiled
from linkwise.simulate.queues import kick, leave, prepend, settle, take_first
from linkwise.simulate.state import (
    DECODE,
    DROP,
    LOST,
    MOVING,
    NOWHERE,
    OFFER,
    QUEUED,
    REDO,
    REFUSED,
    SECOND_POOL,
    STAY,
    STRANDED,
    THERE,
    Record,
)


@compiled
def _again(w: Record, r: int, now: float) -> None:
    """To the router once more; a queue that is full refuses it."""
    a.request(w)[r].lane, a.request(w)[r].tries = -1, 0
    if not settle(w, r, now):
        leave(w, r, REFUSED, now)


@compiled
def _out(w: Record, lane: int, r: int, produced: int, last: float, now: float) -> None:
    """A request the replica was serving."""
    req = a.request(w)[r]
    kv.drop(w, lane, r)
    a.lane(w)[lane].running -= 1
    req.produced, req.last, req.done = produced, last, 0
    req.target = req.input + produced
    req.preempted += 1
    if w.rule == DROP:
        leave(w, r, LOST, now)
    elif w.rule == STAY and a.pool(w)[a.replica(w)[a.lane(w)[lane].replica].pool].role != DECODE:
        prepend(w, lane, r)
    else:
        a.replica(w)[a.lane(w)[lane].replica].outstanding -= 1
        _again(w, r, now)


@compiled
def _empty(w: Record, s: int, now: float) -> None:
    """Every request of a set, the first that joined first; those put back at the front of a queue the other way."""
    one = a.set(w)[s]
    lane = one.lane
    number = one.rows + one.pre + (one.part >= 0)
    for turn in range(number):
        i = number - 1 - turn if w.rule == STAY else turn
        if i < one.rows:
            r = a.rows(w)[s, i]
            last = a.request(w)[r].last if i >= one.rows - one.fresh else one.last
            _out(w, lane, r, a.request(w)[r].output - a.left(w)[s, i], last, now)
        else:
            r = a.pre(w)[s, i - one.rows] if i < one.rows + one.pre else one.part
            _out(w, lane, r, a.request(w)[r].produced, a.request(w)[r].last, now)
    one.rows, one.fresh, one.size, one.part, one.pre, one.dec, one.ctx = 0, 0, 0, -1, 0, 0, 0


@compiled
def _cut(w: Record, at: int, now: float) -> None:
    """Prompts between the pools with a side on replica `at`: it gives back what they hold."""
    for r in range(w.number):
        req = a.request(w)[r]
        if req.hand == NOWHERE:
            continue
        own = a.lane(w)[req.source].replica == at
        other = req.lane >= 0 and a.lane(w)[req.lane].replica == at
        if not own and not other:
            continue
        if req.hand == THERE and not other:  # its own side gave everything up
            continue
        state = req.hand
        if req.lane >= 0:
            a.replica(w)[a.lane(w)[req.lane].replica].outstanding -= 1
        if state in (MOVING, THERE):
            here = a.lane(w)[req.lane]
            kv.note(w, req.lane, now)
            here.free += req.blocks
            w.given += req.blocks
            here.running -= 1
            req.blocks = req.done if state == MOVING else 0
        if state == THERE:
            req.hand = REDO
        elif own:
            kv.note(w, req.source, now)
            kv.drop(w, req.source, r)
            req.hand = REDO
        else:
            req.hand = OFFER
        req.lane, req.due = -1, -1.0


@compiled
def _chain(w: Record, head: int, kind: int) -> tuple[int, int, int]:
    """A queue between the pools without those that left it: its head, its end, how many are left."""
    first = last = -1
    count, r = 0, head
    while r >= 0:
        following = a.request(w)[r].next
        if a.request(w)[r].hand == kind:
            if first < 0:
                first = r
            else:
                a.request(w)[last].next = r
            last = r
            a.request(w)[r].next = -1
            count += 1
        r = following
    return first, last, count


@compiled
def _between(w: Record, at: int, now: float) -> None:
    """What replica `at` takes with it of the prompts between the pools."""
    _cut(w, at, now)
    pool = a.pool(w)[SECOND_POOL]
    for replica in range(pool.replica0, pool.replica1):
        for i in range(pool.lanes):
            lane = a.lane(w)[a.replica(w)[replica].lane0 + i]
            lane.hand_head, lane.hand_tail, lane.hands = _chain(w, lane.hand_head, QUEUED)
            lane.ready_head, lane.ready_tail, lane.readies = _chain(w, lane.ready_head, THERE)
    w.strand_head, w.strand_tail, _ = _chain(w, w.strand_head, STRANDED)
    for r in range(w.number):
        req = a.request(w)[r]
        if req.hand == OFFER:
            req.hand = NOWHERE
            offer(w, r, now)
        elif req.hand == REDO:
            req.hand, req.done, req.target = NOWHERE, 0, req.input + req.produced
            req.preempted += 1
            if w.rule == DROP:
                leave(w, r, LOST, now)
            else:
                _again(w, r, now)
    for replica in range(pool.replica0, pool.replica1):
        if a.replica(w)[replica].down == 0:
            for i in range(pool.lanes):
                reserve(w, a.replica(w)[replica].lane0 + i, now)


@compiled
def down(w: Record, at: int, now: float) -> None:
    """Replica `at` dies: its step is lost, its caches are gone."""
    replica = a.replica(w)[at]
    pool = a.pool(w)[replica.pool]
    replica.down += 1
    if replica.down > 1:
        return
    if replica.busy_slots > 0:
        replica.active_s += now - replica.since_s
        replica.busy_slots = 0
    for i in range(pool.slots):
        slot = a.slot(w)[replica.slot0 + i]
        if slot.busy:
            slot.busy, slot.end = 0, -1.0
    for stage in range(pool.stages):
        replica.busy_s -= max(0.0, a.stage_free(w)[at, stage] - now)
        a.stage_free(w)[at, stage] = now
    for i in range(pool.lanes):
        kv.note(w, replica.lane0 + i, now)
    for i in range(pool.slots * pool.lanes):
        _empty(w, replica.set0 + i, now)
    for i in range(pool.lanes):
        lane = replica.lane0 + i
        waiting = a.lane(w)[lane].waiting if w.rule != STAY else 0
        for _ in range(waiting):
            r = take_first(w, lane)
            replica.outstanding -= 1
            _again(w, r, now)
        kv.forget(w, lane)
    if w.pools > 1:
        _between(w, at, now)


@compiled
def up(w: Record, at: int, now: float) -> None:
    """Back, with empty caches; requests nobody could take are routed first."""
    replica = a.replica(w)[at]
    replica.down -= 1
    if replica.down > 0:
        return
    r = w.limbo_head
    w.limbo_head = w.limbo_tail = -1
    while r >= 0:
        following = a.request(w)[r].next
        _again(w, r, now)
        r = following
    if w.pools > 1 and replica.pool == SECOND_POOL:
        r = w.strand_head
        w.strand_head = w.strand_tail = -1
        while r >= 0:
            following = a.request(w)[r].next
            offer(w, r, now)
            r = following
    kick(w, at, now)

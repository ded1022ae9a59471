"""A replica that goes down and comes back: what becomes of its requests is the recovery rule's.

elsewhere   they are routed again, and what they had is computed again
drop        those it was serving are lost, those that waited are routed again
stay        they wait for its return, and what they had is computed again
"""

import linkwise.simulate.arrays as a
from linkwise.simulate import kv
from linkwise.simulate.jit import compiled
from linkwise.simulate.queues import kick, leave, prepend, settle, take_first
from linkwise.simulate.state import DROP, LOST, REFUSED, STAY, Record


@compiled
def _again(w: Record, r: int, now: float) -> None:
    """To the router once more; a queue that is full refuses it."""
    a.request(w)[r].lane = -1
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
    elif w.rule == STAY:
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
    kick(w, at, now)

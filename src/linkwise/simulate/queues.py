"""Requests on their way in and out: queues of a lane, arrivals, ends, and who is told that there is work."""

import linkwise.simulate.arrays as a
from linkwise.simulate import kv
from linkwise.simulate.heap import push
from linkwise.simulate.jit import compiled
from linkwise.simulate.route import choose, lane_of
from linkwise.simulate.state import ARRIVE, DONE, ENTER, FIRST_POOL, KICK, LESS, ONE, PREFIX, REFUSED, STAY, Record


@compiled
def in_system(w: Record, change: int, now: float) -> None:
    """Requests in the system, integrated over time: Little's law is checked against the sum of their stays."""
    w.area += w.in_system * (now - w.since)
    w.since = now
    w.in_system += change


@compiled
def append(w: Record, lane: int, r: int) -> None:
    one = a.lane(w)[lane]
    a.request(w)[r].next = -1
    a.request(w)[r].lane = lane
    if one.head < 0:
        one.head = r
    else:
        a.request(w)[one.tail].next = r
    one.tail = r
    one.waiting += 1


@compiled
def prepend(w: Record, lane: int, r: int) -> None:
    one = a.lane(w)[lane]
    a.request(w)[r].next = one.head
    a.request(w)[r].lane = lane
    if one.head < 0:
        one.tail = r
    one.head = r
    one.waiting += 1


@compiled
def take_first(w: Record, lane: int) -> int:
    one = a.lane(w)[lane]
    r: int = one.head
    one.head = a.request(w)[r].next
    if one.head < 0:
        one.tail = -1
    one.waiting -= 1
    return r


@compiled
def kick(w: Record, replica: int, now: float) -> None:
    """Tell an idle slot of a replica that there may be work; it looks once everything of this instant is known."""
    one = a.replica(w)[replica]
    if one.down:
        return
    for i in range(a.pool(w)[one.pool].slots):
        slot = a.slot(w)[one.slot0 + i]
        if slot.busy == 0 and slot.kicked == 0:
            slot.kicked = 1
            push(w, now, KICK, one.slot0 + i)
            return


@compiled
def _take_in(w: Record, lane: int, r: int, now: float) -> None:
    if a.request(w)[r].entered < 0:
        a.request(w)[r].entered = now
    append(w, lane, r)
    kick(w, a.lane(w)[lane].replica, now)


@compiled
def settle(w: Record, r: int, now: float) -> bool:
    """Route a request and queue it there; False when every queue it may join is full."""
    lane = choose(w, FIRST_POOL, r)
    if lane < 0:  # nobody is up: it waits before the router
        a.request(w)[r].next = -1
        if w.limbo_head < 0:
            w.limbo_head = r
        else:
            a.request(w)[w.limbo_tail].next = r
        w.limbo_tail = r
        return True
    if w.max_waiting > 0 and a.lane(w)[lane].waiting >= w.max_waiting:
        return False
    replica = a.lane(w)[lane].replica
    one = a.replica(w)[replica]
    one.outstanding += 1
    pool = a.pool(w)[one.pool]
    if pool.front == 0:
        _take_in(w, lane, r, now)
        return True
    # One thread of the replica takes requests in, in turn.
    a.request(w)[r].lane = lane
    one.front_free = max(now, one.front_free) + pool.front_each_s + pool.front_prompt_s * a.request(w)[r].input
    push(w, one.front_free + pool.front_s, ENTER, r)
    return True


@compiled
def enter(w: Record, r: int, now: float) -> None:
    """A request has been taken in: to the queue, of the lane that is idlest by now."""
    lane = a.request(w)[r].lane
    replica = a.lane(w)[lane].replica
    one = a.replica(w)[replica]
    if one.down > 0 and w.rule != STAY:
        one.outstanding -= 1
        a.request(w)[r].lane = -1
        if not settle(w, r, now):
            leave(w, r, REFUSED, now)
        return
    if a.pool(w)[one.pool].lanes > 1 and w.router != PREFIX:
        lane = lane_of(w, replica)
    _take_in(w, lane, r, now)


@compiled
def arrive(w: Record, r: int, now: float) -> None:
    """A request arrives. One that is refused lets its user, in a closed loop, try with the next."""
    a.request(w)[r].arrival = now
    in_system(w, ONE, now)
    while not settle(w, r, now):
        in_system(w, LESS, now)
        a.request(w)[r].status = REFUSED
        a.request(w)[r].end = now
        w.finished += 1
        if w.closed == 0 or w.issued >= w.number:
            return
        r = w.issued
        w.issued += 1
        if w.think_s > 0:
            push(w, now + w.think_s, ARRIVE, r)
            return
        a.request(w)[r].arrival = now
        in_system(w, ONE, now)


@compiled
def leave(w: Record, r: int, status: int, now: float) -> None:
    """A request's end, served or lost; its blocks are given back by then. In a closed loop its user sends the next."""
    req = a.request(w)[r]
    req.end, req.status = now, status
    if req.lane >= 0:
        replica = a.replica(w)[a.lane(w)[req.lane].replica]
        replica.outstanding -= 1
        replica.idle_s = now
    in_system(w, LESS, now)
    w.finished += 1
    if w.closed and w.issued < w.number:
        new = w.issued
        w.issued += 1
        if w.think_s > 0:
            push(w, now + w.think_s, ARRIVE, new)
        else:
            arrive(w, new, now)


@compiled
def served(w: Record, lane: int, r: int, now: float) -> None:
    """The last token is out."""
    kv.note(w, lane, now)
    kv.drop(w, lane, r)
    a.lane(w)[lane].running -= 1
    a.request(w)[r].produced = a.request(w)[r].output
    leave(w, r, DONE, now)

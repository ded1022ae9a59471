"""The end of a step: tokens come out, prompts end, requests leave, and the slot starts again."""

import numpy as np

import linkwise.simulate.arrays as a
from linkwise.simulate.handoff import hand_over, reserve
from linkwise.simulate.jit import compiled
from linkwise.simulate.queues import kick, served
from linkwise.simulate.route import uniform
from linkwise.simulate.schedule import add_row, start
from linkwise.simulate.state import BINS, DECODE, FRACTION_BITS, LOWEST_BIN, ONE, PREFILL, Record


@compiled
def gap(w: Record, seconds: float, count: int) -> None:
    """So many tokens came this long after the one before, into bins of 1.6 %: bits of the number, no logarithm."""
    if count == 0:
        return
    place = (np.float64(seconds).view(np.int64) >> FRACTION_BITS) - LOWEST_BIN
    a.gaps(w)[min(max(place, 0), BINS - 1)] += count


@compiled
def _accepted(w: Record, r: int, left: int) -> int:
    """Tokens a row draws in a step: one, and drafted ones until the first that is refused."""
    pool = a.pool(w)[a.replica(w)[a.lane(w)[a.request(w)[r].lane].replica].pool]
    count = 1
    while count < pool.verify and count < left:
        # Which token of which request: the number is the same whatever else happens.
        if uniform(w, 100 + a.request(w)[r].output - left + count, r) >= pool.accept:
            break
        count += 1
    return count


@compiled
def _decode(w: Record, s: int, now: float) -> None:
    """A token, or several, for every row of a set."""
    one = a.set(w)[s]
    lane = a.lane(w)[one.lane]
    verify = a.pool(w)[a.replica(w)[lane.replica].pool].verify
    number = one.rows
    gap(w, now - one.last, number - one.fresh)
    for i in range(number - one.fresh, number):
        req = a.request(w)[a.rows(w)[s, i]]
        if req.first < 0:
            req.first = now
        else:
            gap(w, now - req.last, ONE)
    one.fresh, one.last = 0, now
    ended = 0
    left, room = a.left(w), a.room(w)
    if verify == 1:
        for i in range(number):
            left[s, i] -= 1
            room[s, i] -= 1
            ended += left[s, i] == 0
        one.ctx += number
        w.decoded += number
    else:
        for i in range(number):
            count = _accepted(w, a.rows(w)[s, i], left[s, i])
            left[s, i] -= count
            room[s, i] -= count
            ended += left[s, i] == 0
            one.ctx += count
            w.decoded += count
            gap(w, 0.0, count - 1)
    if ended == 0:
        return
    kept, rows = 0, a.rows(w)
    for i in range(number):
        r = rows[s, i]
        if left[s, i] > 0:
            rows[s, kept], left[s, kept], room[s, kept] = r, left[s, i], room[s, i]
            kept += 1
            continue
        req = a.request(w)[r]
        one.ctx -= req.target + (req.output - req.produced)
        one.size -= 1
        served(w, one.lane, r, now)
    one.rows = kept


@compiled
def _prompts(w: Record, s: int, now: float) -> None:
    """Prompts of the step: those that are done draw their first token, another stays under way."""
    one = a.set(w)[s]
    lane = a.lane(w)[one.lane]
    role = a.pool(w)[a.replica(w)[lane.replica].pool].role
    for k in range(one.pre):
        r = a.pre(w)[s, k]
        req = a.request(w)[r]
        req.done += a.pre_len(w)[s, k]
        w.prefilled += a.pre_len(w)[s, k]
        if req.done < req.target:
            one.part = r
            continue
        if role == PREFILL:
            one.size -= 1
            hand_over(w, r, now)
            continue
        req.produced += 1
        w.decoded += 1
        if req.prefilled < 0:
            req.prefilled = now
        if req.first < 0:
            req.first = now
        else:
            gap(w, now - req.last, ONE)
        if req.produced == req.output:
            one.size -= 1
            served(w, one.lane, r, now)
        else:
            add_row(w, s, r, now)
    one.pre = 0


@compiled
def finish(w: Record, q: int, now: float) -> None:
    """A slot's step is over."""
    slot = a.slot(w)[q]
    replica = a.replica(w)[slot.replica]
    pool = a.pool(w)[replica.pool]
    replica.busy_slots -= 1
    if replica.busy_slots == 0:
        replica.active_s += now - replica.since_s
    set0 = replica.set0 + (q - replica.slot0) * pool.lanes
    for i in range(pool.lanes):
        if a.set(w)[set0 + i].dec > 0:
            _decode(w, set0 + i, now)
        if a.set(w)[set0 + i].pre > 0:
            _prompts(w, set0 + i, now)
        if pool.role == DECODE:
            reserve(w, a.set(w)[set0 + i].lane, now)
    slot.busy = 0
    start(w, q, now)
    if pool.slots > 1:
        for i in range(pool.lanes):
            if a.lane(w)[replica.lane0 + i].waiting > 0 or a.lane(w)[replica.lane0 + i].readies > 0:
                kick(w, slot.replica, now)
                break

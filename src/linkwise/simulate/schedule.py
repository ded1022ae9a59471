"""What a slot runs next, by the engine's policy: rows that decode, prompts under way, prompts admitted.

mixed (vLLM, TensorRT-LLM)   every row draws a token; what is left of the token budget goes to prompts, in order
prefill first (SGLang)       prompts alone while there are any that fit, then rows alone; the queue is looked at every
                             so many steps of rows
whole prompts (TensorRT-LLM) a prompt waits for a step with room for all of it, unless no step has
"""

import linkwise.simulate.arrays as a
from linkwise.simulate import kv
from linkwise.simulate.admit import balanced, comes, gathers, looks
from linkwise.simulate.heap import push
from linkwise.simulate.jit import compiled
from linkwise.simulate.queues import kick, prepend, take_first
from linkwise.simulate.state import (
    KICK,
    LINK,
    NOWHERE,
    PREFILL_FIRST,
    SLOW,
    STEP,
    Array,
    Record,
)


@compiled
def _room_for(w: Record, s: int) -> bool:
    """Whether one more request may join the set: within the engine's limit, no slot ahead of the others."""
    one = a.set(w)[s]
    lane = a.lane(w)[one.lane]
    pool = a.pool(w)[a.replica(w)[lane.replica].pool]
    if one.size >= pool.slot_seqs or lane.running >= pool.max_seqs:
        return False
    return bool(pool.slots == 1 or one.size * pool.slots <= lane.running)


@compiled
def add_row(w: Record, s: int, r: int, last: float) -> None:
    """A request that decodes from the next step on."""
    one, req = a.set(w)[s], a.request(w)[r]
    at = one.rows
    a.rows(w)[s, at], a.left(w)[s, at], a.room(w)[s, at] = r, req.output - req.produced, req.room
    req.last = last
    one.rows += 1
    one.fresh += 1
    one.ctx += req.target


@compiled
def _join(w: Record, s: int, seen: float) -> None:
    """Prompts whose KV has arrived until `seen`."""
    lane = a.lane(w)[a.set(w)[s].lane]
    while lane.readies > 0:
        one = a.set(w)[s]
        pool = a.pool(w)[a.replica(w)[lane.replica].pool]
        if one.size >= pool.slot_seqs:
            break
        r = lane.ready_head
        if a.request(w)[r].due > seen:
            break
        lane.ready_head = a.request(w)[r].next
        if lane.ready_head < 0:
            lane.ready_tail = -1
        lane.readies -= 1
        one.size += 1
        req = a.request(w)[r]
        req.hand = NOWHERE
        add_row(w, s, r, req.moved if req.first < 0 else req.last)


@compiled
def put_back(w: Record, s: int, now: float) -> None:
    """Preempt the row that joined last: its blocks are free, its tokens are computed again once it is admitted."""
    one = a.set(w)[s]
    one.rows -= 1
    r = a.rows(w)[s, one.rows]
    req = a.request(w)[r]
    produced = req.output - a.left(w)[s, one.rows]
    # A row's cache holds its prompt and what it drew, but for the last token, which the next step would have added.
    one.ctx -= req.target + (produced - req.produced)
    if one.fresh > 0:
        one.fresh -= 1
    else:
        req.last = one.last
    one.size -= 1
    kv.drop(w, one.lane, r)
    a.lane(w)[one.lane].running -= 1
    req.produced = produced
    req.target = req.input + produced
    req.done = 0
    req.preempted += 1
    w.preempted += 1
    prepend(w, one.lane, r)


@compiled
def _grow(w: Record, s: int, now: float) -> bool:
    """A block for every row that has no room for its next tokens; True when rows had to give theirs up for it."""
    one = a.set(w)[s]
    lane = a.lane(w)[one.lane]
    pool = a.pool(w)[a.replica(w)[lane.replica].pool]
    verify, block = pool.verify, pool.block
    room, gave_up = a.room(w), False
    while True:
        need, number = 0, one.rows
        for i in range(number):
            need += room[s, i] < verify
        if need and verify > block:
            need = 0
            for i in range(number):
                need += max(0, verify - room[s, i] + block - 1) // block
        if need == 0:
            return gave_up
        kv.note(w, one.lane, now)
        if need <= lane.free + lane.cached:
            break
        put_back(w, s, now)
        gave_up = True
    kv.take(w, one.lane, need)
    for i in range(number):
        while room[s, i] < verify:
            room[s, i] += block
            a.request(w)[a.rows(w)[s, i]].blocks += 1
    return gave_up


@compiled
def _add_prompt(w: Record, s: int, r: int, tokens: int) -> None:
    one = a.set(w)[s]
    a.pre(w)[s, one.pre], a.pre_len(w)[s, one.pre] = r, tokens
    one.pre += 1
    one.pre_tokens += tokens


@compiled
def _fill(w: Record, s: int, budget: int, now: float, look: bool, seen: float) -> None:
    """Prompts into what is left of the token budget: the one under way, then those that wait, in order.

    look: whether the queue is looked at. seen: until when a request had to come.
    """
    one = a.set(w)[s]
    lane = a.lane(w)[one.lane]
    pool = a.pool(w)[a.replica(w)[lane.replica].pool]
    if one.part >= 0 and budget > 0:
        req = a.request(w)[one.part]
        tokens = min(budget, req.target - req.done)
        _add_prompt(w, s, one.part, tokens)
        one.part = -1
        budget -= tokens
    while look and budget > 0 and comes(w, one.lane, seen) and _room_for(w, s):
        r = lane.head
        req = a.request(w)[r]
        cached = kv.match(w, one.lane, r)
        left = req.target - cached
        if pool.chunked == 0 and budget < left <= pool.budget:
            break
        if not kv.fits(w, one.lane, r):
            break
        take_first(w, one.lane)
        kv.note(w, one.lane, now)
        kv.hold(w, one.lane, r)
        lane.running += 1
        one.size += 1
        req.done = cached
        w.hits += cached
        if req.start < 0:
            req.start, req.hit = now, cached
        else:
            w.recomputed += left
        tokens = min(budget, left)
        _add_prompt(w, s, r, tokens)
        budget -= tokens


@compiled
def _compose(w: Record, q: int, now: float, seen: float) -> bool:
    """The batch of every lane of a slot, of what came until `seen`; False when there is nothing to do."""
    replica = a.replica(w)[a.slot(w)[q].replica]
    pool = a.pool(w)[replica.pool]
    any_work = False
    set0 = replica.set0 + (q - replica.slot0) * pool.lanes
    starts = balanced(w, a.slot(w)[q].replica, set0, pool.lanes, pool.hold, seen)
    for i in range(pool.lanes):
        s = set0 + i
        one = a.set(w)[s]
        one.pre, one.dec, one.pre_tokens = 0, 0, 0
        if a.lane(w)[one.lane].readies > 0:
            _join(w, s, seen)
        look = starts and looks(w, s, pool.poll) and not gathers(w, s, seen)
        if pool.policy == PREFILL_FIRST:
            _fill(w, s, pool.budget, now, look, seen)
            if one.pre == 0 and one.rows > 0:
                _grow(w, s, now)
                one.dec = one.rows
        else:
            gave_up = False
            if one.rows > 0:
                gave_up = _grow(w, s, now)
                one.dec = one.rows
            if not gave_up:
                _fill(w, s, pool.budget - one.dec * pool.verify, now, look, seen)
        if one.pre > 0:
            a.lane(w)[one.lane].unseen = pool.poll  # a step with prompts is followed by a look
        any_work = any_work or one.dec > 0 or one.pre > 0
    return any_work


@compiled
def _at(table: Array, p: int, stage: int, tokens: float, per_cell: float) -> float:
    """A grid's value between two of its points."""
    x = tokens * per_cell
    i = min(int(x), table.shape[2] - 2)
    low = table[p, stage, i]
    return float(low + (x - i) * (table[p, stage, i + 1] - low))


@compiled
def lane_tokens(w: Record, s: int) -> int:
    """Tokens one lane brings to a rank."""
    one = a.set(w)[s]
    pool = a.pool(w)[a.replica(w)[a.lane(w)[one.lane].replica].pool]
    prompt = one.pre_tokens if pool.cp == 1 else (one.pre_tokens + pool.cp - 1) // pool.cp
    return int(one.dec * pool.verify + prompt)


@compiled
def lane_seconds(w: Record, s: int, stage: int, slow: float, link: float, mean_tokens: int) -> float:
    """One stage's time for what one lane brings: the plan's step model, looked up. mean_tokens: of all lanes, rounded
    up: experts serve them together."""
    one = a.set(w)[s]
    p = a.replica(w)[a.lane(w)[one.lane].replica].pool
    pool = a.pool(w)[p]
    drawn = one.dec * pool.verify
    prompt = one.pre_tokens if pool.cp == 1 else (one.pre_tokens + pool.cp - 1) // pool.cp
    tokens = drawn + prompt
    if tokens == 0:
        return 0.0
    sampled = drawn + one.pre
    read, flop, context = 0.0, 0.0, 0.0
    if one.dec:
        mean = one.ctx / one.dec
        read = one.dec * _at(a.read(w), p, stage, mean + pool.verify, pool.per_cell)
        flop = drawn * _at(a.flop(w), p, stage, mean + (pool.verify + 1) / 2, pool.per_cell)
    for k in range(one.pre):
        new, before = a.pre_len(w)[s, k], a.request(w)[a.pre(w)[s, k]].done
        read += _at(a.read(w), p, stage, float(before + new), pool.per_cell)
        flop += new * pool.prompt_flop * _at(a.flop(w), p, stage, before + (new + 1) / 2, pool.per_cell)
        if pool.blend:
            context += _at(a.context(w), p, stage, float(before), pool.per_cell)
    if drawn == 0:
        work, comm = a.prompt_work(w)[p, stage, tokens], a.prompt_comm(w)[p, stage, tokens]
    else:
        work, comm = a.work(w)[p, stage, tokens], a.comm(w)[p, stage, tokens]
        if pool.blend and prompt:  # prompts communicate otherwise than rows do: by their shares
            share = prompt / tokens
            work += share * (a.prompt_work(w)[p, stage, tokens] - work)
            comm += share * (a.prompt_comm(w)[p, stage, tokens] - comm)
    cache = read + flop if pool.kv_adds else max(read, flop)
    work += a.experts(w)[p, stage, mean_tokens] + a.head(w)[p, stage, sampled] + cache + a.overhead(w)[p, stage]
    if prompt:
        work += a.prompt(w)[p, stage] + prompt * a.prompt_token(w)[p, stage]
    work = max(work, a.floor(w)[p, stage])
    result: float = slow * work + link * (comm + a.logits(w)[p, stage, sampled] + context)
    return result


@compiled
def _times_as_long(w: Record, replica: int, kind: int, now: float) -> float:
    """How many times as long faults of a kind make a replica's step take."""
    factor = 1.0
    for f in range(w.faults):
        fault = a.fault(w)[f]
        if fault.replica == replica and fault.kind == kind and fault.start <= now < fault.end:
            factor *= fault.factor
    return factor


@compiled
def start(w: Record, q: int, now: float) -> bool:
    """Put a slot to work if there is any, once the first stage is free."""
    slot = a.slot(w)[q]
    replica = a.replica(w)[slot.replica]
    pool = a.pool(w)[replica.pool]
    if a.stage_free(w)[slot.replica, 0] > now:
        if slot.kicked == 0:
            slot.kicked = 1
            push(w, a.stage_free(w)[slot.replica, 0], KICK, q)
        return False
    # A step that follows another was put together when that one started, unless there was nothing to run then.
    seen = slot.began if pool.ahead and slot.end == now else now
    if not _compose(w, q, now, seen) and (seen == now or not _compose(w, q, now, now)):
        return False
    slow, link = _times_as_long(w, slot.replica, SLOW, now), _times_as_long(w, slot.replica, LINK, now)
    if replica.busy_slots == 0:
        replica.since_s = now
    replica.busy_slots += 1
    set0 = replica.set0 + (q - replica.slot0) * pool.lanes
    at, tokens, slowest = now, 0, set0
    for i in range(pool.lanes):
        tokens += lane_tokens(w, set0 + i)
    mean = (tokens + pool.lanes - 1) // pool.lanes
    for stage in range(pool.stages):
        at = max(at, a.stage_free(w)[slot.replica, stage])
        longest = 0.0
        for i in range(pool.lanes):
            seconds = lane_seconds(w, set0 + i, stage, slow, link, mean)
            if seconds > longest:
                longest, slowest = seconds, set0 + i
        at += longest
        a.stage_free(w)[slot.replica, stage] = at
        replica.busy_s += longest
    slot.busy, slot.began, slot.end = 1, now, at
    replica.steps += 1
    w.steps += 1
    _log(w, q, set0, pool.lanes, slowest, now, at)
    push(w, at, STEP, q)
    if pool.slots > 1:
        for i in range(pool.lanes):
            lane = a.lane(w)[a.set(w)[set0 + i].lane]
            if lane.waiting > 0 or lane.readies > 0:
                kick(w, slot.replica, now)
                break
    return True


@compiled
def _log(w: Record, q: int, set0: int, lanes: int, slowest: int, now: float, end: float) -> None:
    if w.logged >= w.log:
        return
    line = a.log_line(w)[w.logged]
    line.slot, line.start, line.end = q, now, end
    line.rows, line.prefill, line.waiting = 0, 0, 0
    for i in range(lanes):
        one = a.set(w)[set0 + i]
        line.rows += one.dec
        line.prefill += one.pre_tokens
        line.waiting += a.lane(w)[one.lane].waiting
    busy = a.set(w)[slowest]
    line.drew, line.prompts, line.fresh, line.cached = busy.dec, busy.pre, busy.pre_tokens, busy.ctx
    line.pairs, line.behind = 0.0, 0.0
    for k in range(busy.pre):
        new, before = a.pre_len(w)[slowest, k], a.request(w)[a.pre(w)[slowest, k]].done
        line.pairs += new * (before + (new + 1) / 2)
        line.behind += before + new
    w.logged += 1

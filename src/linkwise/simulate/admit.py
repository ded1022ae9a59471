"""When prompts that wait may start: what a step that is put together ahead has seen, looks at the queue, waiting for
prompts on other lanes, and for more prompts on this one.

put together ahead    vLLM's async scheduling, SGLang's and TensorRT-LLM's overlap schedulers: a step is laid out while
                      the one before it runs, so who came meanwhile is in the step after
looks (SGLang)        --scheduler-recv-interval: the queue is read every so many steps of rows
balance (TensorRT-LLM) attention_dp_config.enable_balance, timeout_iters (py_executor.py, _balance_adp_requests)
gathering (TensorRT-LLM) batch_wait_timeout_iters, batch_wait_max_tokens_ratio (py_executor.py, _waiting_requests)
"""

import linkwise.simulate.arrays as a
from linkwise.simulate.jit import compiled
from linkwise.simulate.state import Record


@compiled
def comes(w: Record, lane: int, seen: float) -> bool:
    """Whether a request waits that came until `seen`."""
    one = a.lane(w)[lane]
    return bool(one.waiting > 0 and a.request(w)[one.head].entered <= seen)


@compiled
def balanced(w: Record, r: int, set0: int, lanes: int, hold: int, seen: float) -> bool:
    """Whether prompts may start: every lane has one, or one has no rows, or it is the hold-th step since they could."""
    if hold == 0 or lanes == 1:
        return True
    one = a.replica(w)[r]
    every, busy = True, True
    for i in range(lanes):
        here = a.set(w)[set0 + i]
        every = every and (here.part >= 0 or comes(w, here.lane, seen))
        busy = busy and here.rows > 0
    one.held += 1
    if every or not busy or one.held >= hold:
        one.held = 0
        return True
    return False


@compiled
def looks(w: Record, s: int, poll: int) -> bool:
    """Whether a lane looks at its queue in this step: every so many steps of rows, and whenever it has none."""
    one = a.set(w)[s]
    lane = a.lane(w)[one.lane]
    lane.unseen += 1
    if lane.unseen < poll and one.rows > 0:
        return False
    lane.unseen = 0
    return True


@compiled
def gathers(w: Record, s: int, seen: float) -> bool:
    """Whether a lane's prompts wait for more of them: rows decode, the step would be small, and they have not long."""
    one = a.set(w)[s]
    lane = a.lane(w)[one.lane]
    pool = a.pool(w)[a.replica(w)[lane.replica].pool]
    if pool.gather == 0 or one.rows == 0 or one.part >= 0:
        return False
    rows = one.rows * pool.verify
    tokens, seats, r = rows, min(pool.slot_seqs - one.size, lane.waiting), lane.head
    while seats > 0:
        req = a.request(w)[r]
        if req.entered > seen or tokens + req.target > pool.budget:
            break
        tokens += req.target
        seats -= 1
        r = req.next
    if tokens == rows:
        return False
    if tokens >= pool.gather_tokens or lane.gathered >= pool.gather:
        lane.gathered = 0
        return False
    lane.gathered += 1
    return True

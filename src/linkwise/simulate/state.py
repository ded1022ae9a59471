"""What the event loop keeps, as arrays of records: requests, replicas, slots, lanes, and the events to come.

    replica   one serving group; `slots` batches of it are in flight at once (pipeline), all others wait their turn
    lane      one attention replica of it: its own queue, its own KV blocks, its own prefix cache
    set       the requests of one slot on one lane: rows that decode, at most one prompt under way
    hash      a block of a prompt that prompts may share, as traces name it; hash_size: the KV blocks it takes

Records are numpy's, in one array a kind: the loop makes no objects. Lists of requests (queues) are linked by `next`.
"""

from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from linkwise.core.errors import InternalError

Array = npt.NDArray[Any]


# Order of events at one instant: a fault begins before the step that ends with it, work is started last.
# numpy's own integers: the compiler makes one function for all of them, where it would make one for each literal.
def _whole(*values: int) -> tuple[int, ...]:
    return cast("tuple[int, ...]", tuple(np.int64(value) for value in values))


FAULT, STEP, MOVED, ARRIVE, ENTER, KICK = _whole(0, 1, 2, 3, 4, 5)
KIND_BITS = 40
WAITING, DONE, REFUSED, LOST, UNMOVED = _whole(0, 1, 2, 3, 4)
ONE, LESS, FIRST_POOL, SECOND_POOL = _whole(1, -1, 0, 1)
MIXED, PREFILL_FIRST = range(2)
BOTH, PREFILL, DECODE = range(3)
RANDOM, ROUND_ROBIN, LEAST, PREFIX = range(4)
SLOW, LINK, DOWN = _whole(0, 1, 2)
ELSEWHERE, DROP, STAY = range(3)
# Where a prompt is between two pools: in a decode lane's queue, in transfer, there; computed while no decode replica is
# up; its KV is lost and it is computed again, or it is offered to another decode replica.
NOWHERE, QUEUED, MOVING, THERE, STRANDED, REDO, OFFER = _whole(0, 1, 2, 3, 4, 5, 6)
# Why the loop stops: nothing is left to happen, it did as many events as asked, or its time is up.
NOTHING_LEFT, MORE, TIME_UP = _whole(0, 1, 2)
Record = Any  # of GLOBAL: what compiled functions call w
# A bin of gaps is the exponent of a time and the first six bits of its fraction; the lowest starts at 2^-31 s.
BINS, BINS_PER_OCTAVE, LOWEST_OCTAVE = 3072, 64, 30
FRACTION_BITS, LOWEST_BIN = 46, (1023 - 31) * 64
TICK = 2.0**-53


def _record(**fields: str) -> np.dtype[Any]:
    return np.dtype(list(fields.items()), align=True)


# entered: when it was first taken in, into a queue.
# target: tokens to prefill (prompt, and answer so far after a preemption); done: of them, cached or computed.
# blocks: KV blocks of its own, beside shared ones. lane: where it is served; source: where it was prefilled.
REQUEST = _record(
    arrival="f8", entered="f8", start="f8", prefilled="f8", reserved="f8", moved="f8", first="f8", end="f8", last="f8",
    input="i8", output="i8", next="i8", produced="i8", target="i8", done="i8", blocks="i8", room="i8", hit="i8",
    status="i8", lane="i8", source="i8", preempted="i8", tries="i8", hand="i8", due="f8",
)  # fmt: skip
# front_free: when the thread that takes its requests in is done with those that came.
# down: so many reasons to be down. drain: it ends what it has and takes nothing new. idle_s: its last request left.
# held: steps since prompts could start on all its lanes.
REPLICA = _record(
    pool="i8", slot0="i8", lane0="i8", set0="i8", down="i8", drain="i8", outstanding="i8", busy_slots="i8", steps="i8",
    busy_s="f8", since_s="f8", active_s="f8", idle_s="f8", front_free="f8", held="i8",
)  # fmt: skip
# began, end: of its last step.
SLOT = _record(replica="i8", busy="i8", kicked="i8", began="f8", end="f8")
# ctx: sum of the rows' cached tokens. fresh: the last rows, which have not decoded yet. last: end of the last decode.
SET = _record(
    lane="i8", rows="i8", fresh="i8", size="i8", part="i8", pre="i8", dec="i8", pre_tokens="i8", ctx="i8", last="f8"
)
# unseen: steps since it last looked at its queue; gathered: steps its prompts have waited for more of them.
# free: blocks nobody uses; cached: of hashes nobody uses, which are kept. hand: prompts whose KV waits for blocks here.
LANE = _record(
    replica="i8", head="i8", tail="i8", waiting="i8", running="i8", hand_head="i8", hand_tail="i8", hands="i8",
    ready_head="i8", ready_tail="i8", readies="i8", free="i8", cached="i8", least_free="i8", area="f8", since="f8",
    link_free="f8", unseen="i8", gathered="i8",
)  # fmt: skip
# cached: share of a prompt without names that is found in the prefix cache.
POOL = _record(
    policy="i8", role="i8", chunked="i8", budget="i8", max_seqs="i8", slot_seqs="i8", slots="i8", lanes="i8",
    block="i8", hash_blocks="i8", replica0="i8", replica1="i8", stages="i8", verify="i8", cp="i8", blend="i8",
    turn="i8", blocks="i8", part_blocks="i8", kv_adds="i8", poll="i8", hold="i8", gather="i8",
    gather_tokens="i8", ahead="i8", front="i8", reserve="f8", accept="f8", cached="f8", per_cell="f8",
    prompt_flop="f8", front_s="f8", front_each_s="f8", front_prompt_s="f8",
)  # fmt: skip
FAULTS = _record(kind="i8", replica="i8", start="f8", end="f8", factor="f8")
# The one record the loop is handed: settings, counters, sizes, and where every array lies (simulate/arrays.py).
_ARRAYS = (
    "request", "replica", "slot", "set", "lane", "pool", "fault", "log_line", "rows", "left", "room", "pre", "pre_len",
    "stage_free", "first_hash", "hashes", "hash_size", "refs", "before", "after", "heap_s", "heap_code", "gaps",
)  # fmt: skip
_TABLES = (
    "work", "comm", "prompt_work", "prompt_comm", "experts", "head", "logits", "read", "flop", "context", "floor",
    "overhead", "prompt", "prompt_token",
)  # fmt: skip
_SIZES = (
    "number", "replicas", "slots", "sets", "lanes", "pools", "faults", "log", "width", "stages", "hash_count", "names",
    "ends", "heap_size", "bins", "tokens", "sampled", "cells",
)  # fmt: skip
GLOBAL = _record(
    events="i8", next="i8", open="i8", issued="i8", finished="i8", closed="i8", router="i8", max_waiting="i8",
    rule="i8", limbo_head="i8", limbo_tail="i8", strand_head="i8", strand_tail="i8", tries="i8", hash_tokens="i8",
    seed="u8", think_s="f8",
    in_system="i8", area="f8", since="f8", now="f8", until="f8", heap="i8", steps="i8", prefilled="i8", decoded="i8",
    taken="i8", given="i8", evicted="i8", preempted="i8", recomputed="i8", hits="i8", moved="i8", retries="i8",
    move_base_s="f8", move_each_s="f8", move_busy_s="f8", fail="f8", logged="i8",
    **dict.fromkeys(_SIZES, "i8"), **{f"{name}_at": "i8" for name in _ARRAYS + _TABLES},
)  # fmt: skip
# rows, prefill, waiting: of all lanes. The others of the lane that took longest: rows that drew, prompts and their new
# tokens, cached tokens of the rows, pairs of a prompt's token and one it attends to, tokens prompts read.
LOG = _record(
    slot="i8", rows="i8", prefill="i8", waiting="i8", start="f8", end="f8",
    drew="i8", prompts="i8", fresh="i8", cached="f8", pairs="f8", behind="f8",
)  # fmt: skip


class World(NamedTuple):
    """The arrays. rows, left, room, pre, pre_len: by set and place in it. refs, before, after: by lane and hash."""

    g: Array
    request: Array
    replica: Array
    slot: Array
    set: Array
    lane: Array
    pool: Array
    fault: Array
    rows: Array
    left: Array
    room: Array
    pre: Array
    pre_len: Array
    stage_free: Array
    first_hash: Array
    hashes: Array
    hash_size: Array
    refs: Array
    before: Array
    after: Array
    heap_s: Array
    heap_code: Array
    gaps: Array
    log_line: Array


class Cost(NamedTuple):
    """Seconds of a step as the plan's own step model gives them (simulate/cost.py), by pool and pipeline stage.

    work, comm: by tokens of a decode step; prompt_work, prompt_comm: of a prompt; experts: by tokens of the mean lane;
    head, logits: by sampled rows.
    read, flop: of one request with so many cached tokens, and of one token after so many, on a grid of
    1 / pool.per_cell tokens; context: communication of a prompt chunk for what was cached before it. floor, overhead:
    host time; prompt, prompt_token: more of a step that holds a prompt.
    """

    work: Array
    comm: Array
    prompt_work: Array
    prompt_comm: Array
    experts: Array
    head: Array
    logits: Array
    read: Array
    flop: Array
    context: Array
    floor: Array
    overhead: Array
    prompt: Array
    prompt_token: Array


def pointed(world: World, cost: Cost) -> None:
    """Write into the record where the arrays lie and how large they are. Both must live as long as the loop runs."""
    g = world.g
    for name, array in (*zip(World._fields[1:], world[1:], strict=True), *zip(Cost._fields, cost, strict=True)):
        if not array.flags.c_contiguous or not array.dtype.isnative:
            raise InternalError(f"{name} is no plain array")
        g[f"{name}_at"] = array.ctypes.data
    pools, stages, tokens = cost.work.shape
    sizes = {
        "number": len(world.request), "replicas": len(world.replica), "slots": len(world.slot), "sets": len(world.set),
        "lanes": len(world.lane), "pools": pools, "faults": len(world.fault), "log": len(world.log_line),
        "width": world.rows.shape[1], "stages": stages, "hash_count": len(world.hashes), "names": world.refs.shape[1],
        "ends": world.before.shape[1], "heap_size": len(world.heap_s), "bins": BINS, "tokens": tokens,
        "sampled": cost.head.shape[2], "cells": cost.read.shape[2],
    }  # fmt: skip
    shapes = {"sampled": ("head", "logits"), "cells": ("read", "flop", "context"), "tokens": Cost._fields[:5]}
    for last, names in shapes.items():
        for name in names:
            if getattr(cost, name).shape != (pools, stages, sizes[last]):
                raise InternalError(f"table {name} has shape {getattr(cost, name).shape}")
    for name, size in sizes.items():
        g[name] = size

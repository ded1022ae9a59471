"""The arrays the event loop starts from: pools, replicas, slots, lanes, requests, and the tables of their steps."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from linkwise.core.errors import InputError
from linkwise.simulate import state
from linkwise.simulate.rules import FAULT_KINDS, POLICIES, RECOVERY, ROLES, ROUTERS, Pool, Run
from linkwise.simulate.state import Array, Cost, World
from linkwise.workload.requests import Requests

MAX_CACHE_ENTRIES = 200_000_000  # lanes x distinct blocks: 12 bytes each
MAX_SLOT_ROWS = 500_000_000


def world(pools: Sequence[Pool], load: Requests, run: Run) -> World:
    """Everything idle, every request still to come."""
    caching = load.hash_tokens if any(p.rules.prefix_cache and p.role != "decode" for p in pools) else 0
    table = _pools(pools, caching, load.cached_share)
    lanes_of = np.repeat(table["lanes"], table["replica1"] - table["replica0"])
    slots_of = np.repeat(table["slots"], table["replica1"] - table["replica0"])
    replicas, lanes, slots = len(lanes_of), int(lanes_of.sum()), int(slots_of.sum())
    sets = int((lanes_of * slots_of).sum())
    names = int(load.hashes.max()) + 1 if caching and len(load.hashes) else 0
    width = min(int(table["slot_seqs"].max()), load.number)
    if lanes * names > MAX_CACHE_ENTRIES or sets * width > MAX_SLOT_ROWS:
        raise InputError(
            f"{lanes:,} attention replicas with {names:,} distinct blocks and {width:,} requests a slot",
            where="simulate", expected="fewer of them: the caches would not fit this machine's memory",
        )  # fmt: skip
    replica, slot = np.zeros(replicas, state.REPLICA), np.zeros(slots, state.SLOT)
    lane, one_set = np.zeros(lanes, state.LANE), np.zeros(sets, state.SET)
    replica["pool"] = np.repeat(np.arange(len(pools)), table["replica1"] - table["replica0"])
    replica["lane0"], replica["slot0"] = _starts(lanes_of), _starts(slots_of)
    replica["set0"] = _starts(lanes_of * slots_of)
    slot["replica"] = np.repeat(np.arange(replicas), slots_of)
    lane["replica"] = np.repeat(np.arange(replicas), lanes_of)
    for field in ("head", "tail", "hand_head", "hand_tail", "ready_head", "ready_tail"):
        lane[field] = -1
    lane["free"] = lane["least_free"] = table["blocks"][replica["pool"]][lane["replica"]]
    owner = np.repeat(np.arange(replicas), lanes_of * slots_of)
    one_set["lane"] = replica["lane0"][owner] + (np.arange(sets) - replica["set0"][owner]) % lanes_of[owner]
    one_set["part"] = -1
    refs = np.full((lanes, names), -1, np.int32)
    ends = np.full((lanes, names + 1), names, np.int32)
    faults = _faults(run, replicas)
    g, request = _start(load, run, caching), _requests(load, run)

    def places(kind: type) -> Array:
        return np.zeros((sets, width), kind)

    # Every replica may be told to come and go while others' events wait (simulate/autoscale.py).
    # A transfer that a fault cut short is still in the heap when the prompt's next one is.
    cut = int((faults["kind"] == state.DOWN).sum()) if len(pools) > 1 else 0
    events = (
        load.number * ((2 if table["front"].any() else 1) + cut)
        + 4 * slots
        + 4 * len(faults)
        + slots * len(faults)
        + 4 * replicas
        + 16
    )
    made = World(
        g, request, replica, slot, one_set, lane, table, faults,
        places(np.int64), places(np.int32), places(np.int32), places(np.int64), places(np.int32),
        np.zeros((replicas, int(table["stages"].max()))), load.first_hash.astype(np.int64),
        np.ascontiguousarray(load.hashes), _sizes(load, names, table),
        refs, ends, ends.copy(), np.zeros(events), np.zeros(events, np.int64), np.zeros(state.BINS, np.int64),
        np.zeros(run.steps_kept, state.LOG),
    )  # fmt: skip
    _plan_faults(made)
    return made


def _sizes(load: Requests, names: int, pools: Array) -> Array:
    """KV blocks of each hash: the whole blocks of the part of a prompt it covers."""
    sizes = np.full(names, pools["hash_blocks"].max(), np.int64)
    if names:
        counts = np.diff(load.first_hash)
        part = np.flatnonzero(counts * load.hash_tokens > load.input_tokens)
        tokens = load.input_tokens[part] - (counts[part] - 1) * load.hash_tokens
        sizes[load.hashes[load.first_hash[part + 1] - 1]] = tokens // int(pools["block"][0])
    return sizes


def _starts(counts: Array) -> Array:
    return np.concatenate(([0], np.cumsum(counts)[:-1]))


def _pools(pools: Sequence[Pool], hash_tokens: int, cached_share: float) -> Array:
    table = np.zeros(len(pools), state.POOL)
    first = 0
    for row, (rules, tables, replicas, role, _) in zip(table, pools, strict=True):
        row["policy"], row["role"] = POLICIES.index(rules.policy), ROLES.index(role)
        for field in (
            "budget", "max_seqs", "slot_seqs", "slots", "lanes", "reserve", "verify", "poll", "hold", "gather",
            "gather_tokens", "ahead", "front_s", "front_each_s", "front_prompt_s",
        ):  # fmt: skip
            row[field] = getattr(rules, field)
        row["front"] = max(rules.front_s, rules.front_each_s, rules.front_prompt_s) > 0
        row["chunked"], row["accept"], row["part_blocks"] = rules.chunked, rules.acceptance, rules.part_blocks
        row["block"], row["blocks"] = rules.block_tokens, rules.kv_blocks
        if rules.prefix_cache and role != "decode":
            row["hash_blocks"], row["cached"] = -(-hash_tokens // rules.block_tokens), cached_share
        row["replica0"], row["replica1"] = first, first + replicas
        first += replicas
        row["stages"], row["cp"], row["blend"] = tables.stages, tables.cp, tables.blend
        row["kv_adds"], row["prompt_flop"] = tables.kv_adds, tables.prompt_flop
        row["per_cell"] = 1 / tables.cell
    return table


def _requests(load: Requests, run: Run) -> Array:
    request = np.zeros(load.number, state.REQUEST)
    request["arrival"] = 0.0 if run.users else load.arrival_s
    for field in ("entered", "start", "prefilled", "reserved", "moved", "first", "end", "last", "due"):
        request[field] = -1.0
    request["input"], request["output"] = load.input_tokens, load.output_tokens
    request["target"] = load.input_tokens
    for field in ("next", "lane", "source"):
        request[field] = -1
    return request


def _start(load: Requests, run: Run, hash_tokens: int) -> Array:
    g = np.zeros(1, state.GLOBAL)
    open_now = min(run.users, load.number) if run.users else load.number
    g["open"], g["issued"], g["closed"] = open_now, open_now, run.users > 0
    g["router"], g["rule"] = ROUTERS.index(run.router), RECOVERY.index(run.recovery)
    g["max_waiting"], g["think_s"], g["seed"] = run.max_waiting, run.think_s, run.seed
    g["limbo_head"] = g["limbo_tail"] = g["strand_head"] = g["strand_tail"] = -1
    g["until"] = np.inf
    g["hash_tokens"] = max(1, hash_tokens)
    move = run.transfer
    g["move_base_s"], g["move_each_s"], g["fail"], g["tries"] = move.base_s, move.token_s, move.fail, move.tries
    return g


def _faults(run: Run, replicas: int) -> Array:
    table = np.zeros(len(run.faults), state.FAULTS)
    for row, fault in zip(table, run.faults, strict=True):
        if not 0 <= fault.replica < replicas:
            raise InputError(f"replica is {fault.replica}", where="fault", expected=f"0..{replicas - 1}")
        row["kind"], row["replica"] = FAULT_KINDS.index(fault.kind), fault.replica
        row["start"], row["end"], row["factor"] = fault.start_s, fault.end_s, fault.factor
    return table


def fault_code(replica: int, *, back: bool) -> int:
    """The event of a replica that goes down, or is back."""
    return (int(state.FAULT) << state.KIND_BITS) | (2 * replica + back)


def _plan_faults(w: World) -> None:
    """Replicas that go down and come back are events; a sorted list is a heap."""
    events = []
    for row in w.fault:
        if row["kind"] == state.DOWN:
            for back, at in enumerate((row["start"], row["end"])):
                events.append((float(at), fault_code(int(row["replica"]), back=bool(back))))
    for place, (at, code) in enumerate(sorted(events)):
        w.heap_s[place], w.heap_code[place] = at, code
    w.g["heap"] = len(events)


def costs(pools: Sequence[Pool]) -> Cost:
    """The pools' tables in one array each; what a pool does not have is never looked up."""
    fields = []
    for name in Cost._fields:
        parts = [np.asarray(getattr(p.tables, name)) for p in pools]
        shape = tuple(max(sizes) for sizes in zip(*(p.shape for p in parts), strict=True))
        whole = np.zeros((len(pools), *shape))
        for at, part in enumerate(parts):
            place: tuple[Any, ...] = (at, *map(slice, part.shape))
            whole[place] = part
            if part.ndim > 1 and part.shape[1] < shape[1]:
                whole[at, : part.shape[0], part.shape[1] :] = part[:, -1:]
        fields.append(whole)
    return Cost(*fields)

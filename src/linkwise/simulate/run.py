"""From pools and requests to figures: checked at the door, run by the compiled loop, summed up."""

from collections.abc import Callable, Sequence

import numpy as np

from linkwise.core.errors import InputError
from linkwise.simulate.rules import Pool, Run
from linkwise.simulate.state import NOTHING_LEFT, Cost, World, pointed
from linkwise.simulate.summary import summary
from linkwise.simulate.types import Simulated
from linkwise.simulate.world import costs, world
from linkwise.workload.requests import Requests
from linkwise.workload.types import Targets

EVENTS_AT_ONCE = 1_000_000  # between two looks at the progress bar

NOT_MODELLED = (
    "time between the client and the engine, tokenising, and routing itself",
    "cancelled requests, and answers that end before their length",
    "steps padded to the sizes of CUDA graphs, and lanes with unlike loads beyond waiting for the slowest",
    "a prompt's blocks are shared from its admission on, though its tokens are computed by its chunks",
)


def simulate(
    pools: Sequence[Pool],
    load: Requests,
    run: Run | None = None,
    *,
    targets: Targets | None = None,
    notes: tuple[str, ...] = (),
    asked_per_s: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Simulated:
    """What happens when these requests meet these pools. One pool serves both phases; two are prefill and decode.

    asked_per_s: the rate that arrivals were drawn at, by which a load beyond what is served is told from chance.
    progress: told (requests finished, requests) now and then. Raises InputError for what no engine would accept.
    """
    run, targets = run or Run(), targets or Targets()
    w, advance = begin(pools, load, run)
    while advance(EVENTS_AT_ONCE) != NOTHING_LEFT:
        if progress is not None:
            progress(int(w.g["finished"][0]), load.number)
    if progress is not None:
        progress(load.number, load.number)
    return ended(w, pools, run, targets, notes, asked_per_s)


def begin(pools: Sequence[Pool], load: Requests, run: Run) -> tuple[World, Callable[[int], int]]:
    """Everything idle, and what takes it so many events on; that says why it stopped (state.NOTHING_LEFT, ...)."""
    check(pools, load, run)
    from linkwise.simulate.native import loop

    w, c, step = world(pools, load, run), costs(pools), loop()
    pointed(w, c)

    def advance(events: int, kept: Cost = c) -> int:
        return int(step(w.g, events))  # `kept`: the loop has the tables' addresses alone

    return w, advance


def ended(
    w: World, pools: Sequence[Pool], run: Run, targets: Targets, notes: tuple[str, ...],
    asked_per_s: float | None = None,
) -> Simulated:  # fmt: skip
    """What the loop left, as figures and tables."""
    found = summary(w, pools, run, targets, notes, NOT_MODELLED, asked_per_s)
    return Simulated(found, w.request, w.log_line[: int(w.g["logged"][0])], w.slot["replica"], w)


def check(pools: Sequence[Pool], load: Requests, run: Run) -> None:
    """Raises InputError for pools that do not go together and for requests they could never hold."""
    roles = [p.role for p in pools]
    if roles not in (["both"], ["prefill", "decode"]):
        raise InputError(
            f"pools {', '.join(roles) or 'none'}", where="simulate", expected="both, or prefill and decode"
        )
    for number, pool in enumerate(pools):
        if not 1 <= pool.replicas <= 100_000:
            raise InputError(f"{pool.replicas} replicas", where="simulate", expected="1..100000")
        rules, tables = pool.rules, pool.tables
        most = max(rules.budget, rules.slot_seqs * (rules.verify + 1))
        if tables.tokens < rules.budget or tables.head.shape[1] <= min(most, rules.slot_seqs * rules.verify):
            raise InputError(
                f"tables of {tables.tokens} tokens for a budget of {rules.budget}", where=f"pool {number}",
                expected="a step for every number of tokens",
            )  # fmt: skip
        _holds(pool, load)
    if run.router == "prefix" and not (load.hash_tokens and pools[0].rules.prefix_cache):
        raise InputError(
            "the router follows prefixes, but the requests name none", where="router",
            expected="a trace with hash_ids, or another router",
        )  # fmt: skip


def _holds(pool: Pool, load: Requests) -> None:
    """The first request no lane could hold alone: it would wait for ever."""
    rules = pool.rules
    last = load.input_tokens if pool.role == "prefill" else load.input_tokens + load.output_tokens
    cached = load.hash_tokens if rules.prefix_cache and pool.role != "decode" else 0
    # Those of hashes, whole blocks alone, and its own.
    hashed = np.minimum(np.diff(load.first_hash), load.input_tokens // cached) if cached else np.zeros(1, np.int64)
    part = np.diff(load.first_hash) > hashed if cached else np.zeros(1, bool)
    blocks = np.where(part, (load.input_tokens - hashed * cached) // rules.block_tokens, 0)
    own = last + rules.verify - 1 - hashed * cached - blocks * rules.block_tokens
    need = blocks - np.floor_divide(-own, rules.block_tokens) + hashed * -(-cached // rules.block_tokens)
    over = np.flatnonzero(need > rules.kv_blocks)
    if len(over):
        at = int(over[0])
        raise InputError(
            f"request {at}: {load.input_tokens[at]:,} in and {load.output_tokens[at]:,} out tokens need"
            f" {int(need[at]):,} KV blocks of {rules.block_tokens}", where="simulate",
            expected=f"at most the {rules.kv_blocks:,} blocks of a replica",
        )  # fmt: skip

"""The requests a user asks for: a trace, or a plan's lengths with drawn arrivals, or a closed loop."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from linkwise.core.errors import InputError
from linkwise.plan.types import Plan
from linkwise.simulate.of_plan import longest_of
from linkwise.workload import lengths, traces
from linkwise.workload.arrivals import Arrivals, times
from linkwise.workload.lengths import Lengths
from linkwise.workload.requests import MAX_REQUESTS, Requests, requests

DEFAULT_REQUESTS = 2000
PER_USER = 10  # requests a user of a closed loop sends, where their number is not given
LONG = ("refuse", "drop")


class Asked(NamedTuple):
    """A load in words.

    trace: a file; without one, lengths are the plan's, arrivals at rate_per_s or a closed loop of `users`, and where
    neither is given what the plan was made for. arrivals, spread: kinds of workload/arrivals.py and lengths.py.
    period_s, swing: of diurnal arrivals. long: "refuse" or "drop" what is longer than the model's context.
    """

    trace: str | Path | None = None
    number: int | None = None
    rate_per_s: float | None = None
    users: int | None = None
    arrivals: str = "poisson"
    spread: str = "fixed"
    long: str = "refuse"
    period_s: float = 60.0
    swing: float = 0.5


class Load(NamedTuple):
    """Requests, the users of a closed loop (0 = they arrive as they say), and what they are in words."""

    requests: Requests
    users: int
    notes: tuple[str, ...]


def load_of(plan: Plan, asked: Asked, seed: int = 0) -> Load:
    """The requests for a plan. Raises InputError for words that do not go together, and for requests too long."""
    if asked.long not in LONG:
        raise InputError(f"{asked.long[:40]!r}", where="long", expected="one of " + ", ".join(LONG))
    found = _asked(plan, asked, seed)
    where = "simulate" if asked.trace is None else str(asked.trace)
    held, notes = _within(found.requests, longest_of(plan), asked.long, where)
    return Load(held, found.users, found.notes + notes)


def _asked(plan: Plan, asked: Asked, seed: int) -> Load:
    rate, users, work = asked.rate_per_s, asked.users, plan.workload
    if rate is not None and users is not None:
        raise InputError("a rate and a closed loop", where="simulate", expected="one of --rate and --concurrency")
    if asked.trace is not None:
        if rate is not None:
            raise InputError(
                "a trace and a rate", where="simulate", expected="one of them: a trace has its own arrivals"
            )
        longest = longest_of(plan) if asked.long == "refuse" else None
        return Load(traces.load(asked.trace, most=asked.number or MAX_REQUESTS, longest=longest), users or 0, ())
    if rate is None and users is None:
        rate, users = work.rate_per_s, work.concurrency if work.rate_per_s is None else None
    if rate is None and users is None:
        raise InputError(
            "no load", where="simulate", expected="--rate, --concurrency or a trace: the plan was made for none"
        )
    count = asked.number or (PER_USER * users if users else DEFAULT_REQUESTS)
    # A drawn request fits the context: neither half of it is longer than half.
    most = longest_of(plan) // 2 if asked.spread == "lognormal" else 0
    inputs, outputs = (
        lengths.tokens(Lengths(mean=mean, kind=asked.spread, most=most), count, seed, stream)
        for mean, stream in ((work.isl_tokens, 1), (work.osl_tokens, 2))
    )
    stream = Arrivals(rate_per_s=rate or 1.0, kind=asked.arrivals, period_s=asked.period_s, swing=asked.swing)
    at = np.zeros(count) if users else times(stream, count, seed)
    words = f"{users} users in a closed loop" if users else f"{asked.arrivals} arrivals at {rate:g}/s"
    note = f"{count:,} requests, {asked.spread} lengths of {work.isl_tokens:,} in and {work.osl_tokens:,} out, {words}"
    return Load(requests(at, inputs, outputs), users or 0, (note,))


def _within(load: Requests, longest: int, long: str, where: str) -> tuple[Requests, tuple[str, ...]]:
    """Requests the context holds. long: what becomes of the others."""
    over = load.input_tokens + load.output_tokens > longest
    if not over.any():
        return load, ()
    at = int(np.flatnonzero(over)[0])
    if long != "drop":
        raise InputError(
            f"request {at}: field input_tokens + output_tokens: {int(load.input_tokens[at]):,} +"
            f" {int(load.output_tokens[at]):,}", where=where, expected=f"at most the context of {longest:,} tokens",
            hint="--long drop leaves such requests out, and says how many",
        )  # fmt: skip
    keep = ~over
    if not keep.any():
        raise InputError("every request is longer than the context", where=where, expected=f"{longest:,} tokens")
    first = load.first_hash
    hashes = [load.hashes[first[i] : first[i + 1]].tolist() for i in np.flatnonzero(keep)] if load.hash_tokens else None
    left = requests(
        load.arrival_s[keep], load.input_tokens[keep], load.output_tokens[keep], hashes, load.hash_tokens, where=where
    )
    note = f"{int(over.sum()):,} of {load.number:,} requests are longer than {longest:,} tokens and were left out"
    return left, (note,)

"""What a user asks: a plan, a workload in words or a trace, what goes wrong, in one call."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from linkwise.core.errors import InputError
from linkwise.core.units import parse_time
from linkwise.plan.types import Plan
from linkwise.simulate.of_plan import longest_of, pool_of, transfer_of
from linkwise.simulate.rules import Fault, Run, Transfer
from linkwise.simulate.run import simulate
from linkwise.simulate.types import Simulated
from linkwise.workload import lengths, traces
from linkwise.workload.arrivals import Arrivals, times
from linkwise.workload.lengths import Lengths
from linkwise.workload.requests import MAX_REQUESTS, Requests, requests
from linkwise.workload.types import Targets

DEFAULT_REQUESTS = 2000
PER_USER = 10  # requests a user of a closed loop sends, where their number is not given


def ask(
    plan: Plan,
    *,
    trace: str | Path | None = None,
    number: int | None = None,
    rate_per_s: float | None = None,
    users: int | None = None,
    arrivals: str = "poisson",
    spread: str = "fixed",
    long: str = "refuse",
    prefill: Plan | None = None,
    replicas: int | None = None,
    run: Run | None = None,
    transfer: Transfer | None = None,
    targets: Targets | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Simulated:
    """Simulate a plan's deployment under a load.

    trace: a file; without one, lengths are the plan's, arrivals at rate_per_s or a closed loop of `users`, and where
    neither is given what the plan was made for. arrivals, spread: kinds of workload/arrivals.py and lengths.py.
    long: "refuse" or "drop" what is longer than the model's context. prefill: the plan of a prefill pool; `plan` is
    then the decode pool. targets: in place of the plan's.
    """
    run = run or Run()
    limit = longest_of(plan) if long == "refuse" else None
    load, run, notes = _load(plan, trace, number, rate_per_s, users, arrivals, spread, run, limit)
    load, dropped = _within(load, longest_of(plan), long, "trace" if trace is None else str(trace))
    notes += dropped
    if prefill is None:
        pool, said = pool_of(plan, load, replicas=replicas)
        pools, notes = [pool], notes + said
        if transfer is not None:
            raise InputError("one pool hands nothing over", where="transfer", expected="a prefill plan as well")
    else:
        first, said_first = pool_of(prefill, load, role="prefill")
        second, said_second = pool_of(plan, load, role="decode", replicas=replicas)
        pools, notes = [first, second], notes + said_first + said_second
        if transfer is None:
            transfer, said = transfer_of(prefill, plan, load)
            notes += said
        run = replace(run, transfer=transfer)
    constants = plan.calibration
    notes += (f"step times rest on {constants} constants",)
    return simulate(
        pools, load, run, targets=targets or plan.workload.targets, notes=tuple(dict.fromkeys(notes)), progress=progress
    )


def _load(
    plan: Plan, trace: str | Path | None, number: int | None, rate: float | None, users: int | None,
    arrivals: str, spread: str, run: Run, longest: int | None,
) -> tuple[Requests, Run, tuple[str, ...]]:  # fmt: skip
    if rate is not None and users is not None:
        raise InputError("a rate and a closed loop", where="simulate", expected="one of --rate and --concurrency")
    if trace is not None:
        if rate is not None:
            raise InputError(
                "a trace and a rate", where="simulate", expected="one of them: a trace has its own arrivals"
            )
        load = traces.load(trace, most=number or MAX_REQUESTS, longest=longest)
        return load, replace(run, users=users or 0), ()
    work = plan.workload
    if rate is None and users is None:
        rate, users = work.rate_per_s, work.concurrency if work.rate_per_s is None else None
    if rate is None and users is None:
        raise InputError(
            "no load", where="simulate", expected="--rate, --concurrency or a trace: the plan was made for none"
        )
    count = number or (PER_USER * users if users else DEFAULT_REQUESTS)
    # A drawn request fits the context: neither half of it is longer than half.
    most = longest_of(plan) // 2 if spread == "lognormal" else 0
    inputs, outputs = (
        lengths.tokens(Lengths(mean=mean, kind=spread, most=most), count, run.seed, stream)
        for mean, stream in ((work.isl_tokens, 1), (work.osl_tokens, 2))
    )
    at = np.zeros(count) if users else times(Arrivals(rate_per_s=rate or 1.0, kind=arrivals), count, run.seed)
    words = f"{users} users in a closed loop" if users else f"{arrivals} arrivals at {rate:g}/s"
    note = f"{count:,} requests, {spread} lengths of {work.isl_tokens:,} in and {work.osl_tokens:,} out, {words}"
    return requests(at, inputs, outputs), replace(run, users=users or 0), (note,)


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


_FAULT = re.compile(r"(slow|link|down):([0-9]{1,6})@([0-9.]+[a-z]*)-([0-9.]+[a-z]*)(?:x([0-9.]{1,12}))?", re.ASCII)


def faults(texts: Sequence[str]) -> tuple[Fault, ...]:
    """Faults as typed: slow:REPLICA@10s-20sx1.5, link:0@1m-2mx4, down:3@30s-90s."""
    found = []
    for text in texts:
        match = _FAULT.fullmatch(text.strip())
        if not match or (match[1] == "down") != (match[5] is None):
            raise InputError(
                f"{text[:60]!r}", where="--fault",
                expected="slow:REPLICA@10s-20sx1.5 (times as long), link:0@10s-20sx4 or down:0@10s-20s",
            )  # fmt: skip
        try:
            factor = float(match[5] or 1)
        except ValueError:
            raise InputError(f"{match[5][:20]!r}", where="--fault", expected="a number after x, such as 1.5") from None
        start = 0.0 if not match[3].strip("0.s") else parse_time(match[3], where="--fault")
        end = parse_time(match[4], where="--fault")
        found.append(Fault(kind=match[1], replica=int(match[2]), start_s=start, end_s=end, factor=factor))
    return tuple(found)

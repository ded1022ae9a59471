"""The finalists of a search, simulated: does what the closed form promises hold, event by event?

Each runs at the rate asked for, else in a closed loop of as many users as the closed form has requests at hand, with
lengths scattered around the mean as `simulate` does it (users of equal lengths would march in step). The choice is then
the first finalist, in the order the closed form prefers, whose simulated means are inside the targets. One that cannot
be simulated is none. The closed form is
furthest off at the edge of a target: after one that misses it, those of its kind that are hardly further inside are
passed over.
"""

from math import gcd, inf, sqrt

import numpy as np
from msgspec.structs import replace

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.plan.fit import Case
from linkwise.plan.frontier_types import Frontier, Offer
from linkwise.plan.ledger import ledger
from linkwise.plan.memory import within_length
from linkwise.plan.offers import preference
from linkwise.plan.ordering import irregular, ordered, subject_of
from linkwise.simulate.load import scattered
from linkwise.simulate.of_plan import pool_for, transfer_for
from linkwise.simulate.rules import Pool, Rules, Run
from linkwise.simulate.run import simulate
from linkwise.simulate.served import Served
from linkwise.simulate.tables import constant
from linkwise.simulate.trials import measured
from linkwise.workload.arrivals import Arrivals, times
from linkwise.workload.requests import Requests, requests
from linkwise.workload.types import Targets

MOST = 4  # offers simulated
EACH, LEAST, LIMIT = 6, 400, 6000  # requests a user sends; of a run at least, at most


def ready() -> None:
    """Load the compiled event loop, which takes a second the first time of a process."""
    simulate([Pool(Rules(), constant(1.0))], requests(np.zeros(1), np.ones(1, np.int64), np.ones(1, np.int64)))


def simulated(found: Frontier, case: Case, prefill: Case | None = None, *, priced: bool = False) -> Frontier:
    """The frontier with its finalists simulated, and the choice they leave."""
    offers, notes = list(found.offers), list(found.notes)
    chosen, ran, failed = None, 0, list[str]()
    inside: dict[tuple[str, Layout], tuple[float, float]] = {}  # by kind: longest TTFT and TPOT that are still tried
    for at in _order(offers, priced):
        if ran == MOST or chosen is not None:
            break
        kind = offers[at].mode, offers[at].prefill_layout or offers[at].layout
        longest = inside.get(kind)
        if longest is not None and (offers[at].ttft_s > longest[0] or offers[at].tpot_s > longest[1]):
            continue
        try:
            one = _ran(offers[at], case, prefill)
        except InputError as error:
            failed.append(str(error))
            continue
        if one is None:
            continue
        ran, offers[at] = ran + 1, one
        if one.meets:
            chosen = at
        else:
            inside[kind] = _further_inside(one, case.workload.targets)
    if found.choice is None:
        notes.append("no offer meets the targets in closed form: none was simulated")
    elif ran == 0:
        notes.append("no finalist could be simulated: the choice is open")
    elif chosen is None:
        several = f"{ran} finalists were" if ran != 1 else "one finalist was"
        notes.append(f"{several} simulated, and none of them meets the targets: the choice is open")
    else:
        notes.append(f"{ran} finalist{'s were' if ran > 1 else ' was'} simulated, the choice among them")
    if failed:
        several = f"{len(failed)} finalists were" if len(failed) > 1 else "one finalist was"
        notes.append(f"{several} not simulated: {failed[0]}")
    return replace(found, offers=tuple(offers), choice=chosen, notes=tuple(notes))


def _further_inside(one: Offer, targets: Targets) -> tuple[float, float]:
    """TTFT and TPOT of the closed form from which on an offer of its kind is tried again after this one missed: the
    half, as logarithms, of the way that the miss was long. No bound by a target that was met."""
    ttft, tpot = one.simulated_ttft_s or one.ttft_s, one.simulated_tpot_s or one.tpot_s
    longest = [
        closed * sqrt(target / found) if target is not None and found > target else inf
        for closed, found, target in ((one.ttft_s, ttft, targets.ttft_s), (one.tpot_s, tpot, targets.tpot_s))
    ]
    return longest[0], longest[1]


def _order(offers: list[Offer], priced: bool) -> list[int]:
    """Places of the offers inside the targets, the preferred ones first."""
    rated = any(one.for_rate_per_s for one in offers)
    good = [at for at, one in enumerate(offers) if one.meets and (one.for_rate_per_s is not None) == rated]
    prefers = preference(priced)
    return sorted(good, key=lambda at: prefers(offers[at]))


def _ran(one: Offer, case: Case, prefill: Case | None) -> Offer | None:
    """The offer with what the event loop says; None when the groups of one of its sides do not fit."""
    decode = _group(case, one, one.layout)
    first = _group(prefill or case, one, one.prefill_layout) if one.prefill_layout is not None else None
    if decode is None or (first is None and one.prefill_layout is not None):
        return None
    if first is None:
        counts, users = (0, 1), one.batch
    else:
        shared = gcd(one.prefill_groups, one.groups)
        counts = one.prefill_groups // shared, one.groups // shared
        # Little's law: requests in both pools.
        users = max(1, round(one.rate_per_s / shared * (one.ttft_s + one.tpot_s * case.workload.osl_tokens)))
    part = None if one.for_rate_per_s is None else one.for_rate_per_s * counts[1] / one.groups
    load = _load(decode, first, users, part)
    run = Run() if part is not None else Run(users=users)
    if first is None:
        pools = [pool_for(decode, load, role="both", replicas=1)[0]]
    else:
        pools = [
            pool_for(first, load, role="prefill", replicas=counts[0])[0],
            pool_for(decode, load, role="decode", replicas=counts[1])[0],
        ]
        moved = transfer_for(first, decode, load, replicas=(1, 1), shared=prefill is None)
        run = replace(run, transfer=moved[0])
    kept = measured(simulate(pools, load, run).requests)
    several = kept[kept["output"] > 1]
    ttft = float((kept["first"] - kept["arrival"]).mean())
    tpot = float(((several["end"] - several["first"]) / (several["output"] - 1)).mean()) if len(several) else one.tpot_s
    stay = float((kept["end"] - kept["arrival"]).mean())
    targets = case.workload.targets
    # At an asked rate all is served in the end; whether in time, the latencies say.
    rate = one.for_rate_per_s or users / stay * one.groups / max(1, counts[1])
    meets = ttft <= (targets.ttft_s or ttft) and tpot <= (targets.tpot_s or tpot)
    return replace(one, simulated_tpot_s=tpot, simulated_ttft_s=ttft, simulated_rate_per_s=rate, meets=meets)


def _group(case: Case, one: Offer, layout: Layout) -> Served | None:
    """A group of one side, at the offer's policy."""
    free = replace(case.workload, rate_per_s=None, concurrency=None, targets=Targets())
    options = replace(case.options, max_batched_tokens=one.max_batched_tokens or case.options.max_batched_tokens)
    load = within_length(case.model, options, free)
    memory = ledger(case.model, case.cluster, case.engine, layout, options, load)
    if memory.shortfall is not None:
        return None
    grid = None
    if irregular(case.cluster):
        at = case._replace(options=options, workload=load)
        grid = ordered(subject_of(at, layout, one.batch, 1))[0].grid
    resolved = case.engine.resolve(options, case.model, case.cluster.accelerator, layout)
    return Served(
        case.model, case.cluster, case.engine, layout, options, resolved, grid, memory.kv_tokens, memory.requests, load
    )  # fmt: skip


def _load(group: Served, prefill: Served | None, users: int, rate_per_s: float | None) -> Requests:
    """Of so many users, all there at once, or at a rate (Poisson)."""
    number = min(max(EACH * users, LEAST), LIMIT)
    work = group.workload
    inputs, outputs, _ = scattered(work.isl_tokens, work.osl_tokens, group, prefill, number, 0)
    at = np.zeros(number) if rate_per_s is None else times(Arrivals(rate_per_s=rate_per_s), number, 0)
    return requests(at, inputs, outputs)._replace(cached_share=work.prefix_hit)

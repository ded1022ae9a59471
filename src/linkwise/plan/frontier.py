"""Layouts x batch policies x pools: the Pareto set of tokens/s a device against tokens/s a user, and the choice for the
targets.

Everything here is the closed form (plan/operate.py, plan/pools.py). The layouts are those the search saw fit, at its
twelve batch sizes; token budgets are tried on the layouts of the first front; separate pools are pairs of the smallest
prefill groups and the decode groups that do best mixed, in every whole number of groups that the devices hold.

The front is at full load of all devices. Where a rate is asked, the choice is among deployments of as many groups as
that rate takes: what they cost is what serving that rate costs.
"""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, isfinite
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.plan.evaluate import Points, outcomes, trial
from linkwise.plan.fit import Case
from linkwise.plan.frontier_types import Frontier, Offer
from linkwise.plan.handoff_pools import Side, handover
from linkwise.plan.ledger import ledger
from linkwise.plan.operate import MAX_PROMPT_LOAD
from linkwise.plan.pools import Pool, pool_of
from linkwise.plan.search import Other, Promised, search
from linkwise.plan.types import Candidate
from linkwise.workload.types import Targets

BUDGETS = (512, 2048, 8192, 16_384)  # tokens of a step, beside the engine's own
MOST_SIDES = 12  # groups of one side that pairs are made of
MOST_SHOWN = 40  # offers of a front
FINALISTS = 12  # offers for a rate that are kept, the preferred ones

Floats = npt.NDArray[np.float64]


class Seen(NamedTuple):
    """A layout that fits, at several batch sizes."""

    layout: Layout
    points: Points
    tokens: int


class Terms(NamedTuple):
    """What offers are judged by.

    price: USD of a device hour by accelerator, "" = of any. prefill: the case of prefill groups on other devices.
    """

    case: Case
    price: Mapping[str, float]
    prefill: Case | None


def priced(text: str) -> dict[str, float]:
    """Prices as typed: 2.5 for every accelerator, or h100-sxm=2.5,h200-sxm=3.4; USD per device hour."""
    found = {}
    for part in text.split(",") if text.strip() else ():
        name, equals, value = part.strip().rpartition("=")
        try:
            if not value.isascii() or "_" in value:
                raise ValueError
            usd = float(value)
        except ValueError:
            usd = -1.0
        if not 0 < usd < 1e6 or (equals and not name) or name in found:
            raise InputError(
                f"{part[:60]!r}", where="--price", expected="USD per device hour, such as 2.5 or h100-sxm=2.5"
            )
        found[name] = usd
    return found


def frontier(
    case: Case, seen: Sequence[Seen], *, price: Mapping[str, float], prefill: Case | None = None,
    own: Candidate | None = None, pairs: Promised | None = None,
) -> Frontier:  # fmt: skip
    """The front of a case whose layouts were `seen` by a search, and the choice for its targets.

    prefill: model, engine and options as in `case`, on the devices that prefill groups run on. own: what the plan
    itself chose. pairs: what `pairs_of` began; None = they are looked at here. Raises InputError for a price that names
    none of the accelerators.
    """
    names = {c.cluster.accelerator.name for c in (case, prefill) if c}
    if unknown := sorted(set(price) - names - {""}):
        raise InputError(f"{unknown[0]!r}", where="--price", expected="one of " + ", ".join(sorted(names)))
    terms = Terms(case, price, prefill)
    mixed = [offer for one in seen for offer in _mixed(terms, one)]
    mixed += _with_budgets(terms, list(dict.fromkeys(offer.layout for offer in front(_in_time(terms, mixed)))))
    separate, notes = _separate(terms, seen) if pairs is None else pairs.result()
    offers = front(_in_time(terms, [*mixed, *separate]))[:MOST_SHOWN]
    wanted = case.workload.rate_per_s
    # What meets the targets at the lowest cost need not lie on the front of the figures above, so it joins it.
    if wanted is None:
        best = choose([*mixed, *separate], bool(price))
        if best is not None and best not in offers:
            offers = sorted([*offers, best], key=lambda x: x.tokens_per_s_per_user)
    else:
        enough = [one for offer in (*mixed, *separate) if (one := _for_rate(terms, offer, wanted)) is not None]
        ranked = sorted((one for one in enough if one.meets), key=preference(bool(price)))[:FINALISTS]
        best = ranked[0] if ranked else None
        offers = [*offers, *ranked]
    return Frontier(
        offers=tuple(offers), choice=None if best is None else offers.index(best), tried=len(mixed) + len(separate),
        devices=case.cluster.size + (prefill.cluster.size if prefill else 0), notes=notes,
        own=None if own is None else _own(terms, own),
    )  # fmt: skip


def pairs_of(
    case: Case, seen: Sequence[Seen], *, price: Mapping[str, float], prefill: Case | None, other: Other
) -> Promised:
    """Pairs of pools of what was seen, looked at in another process while the plan is made of it."""
    return other.submit(_separate, Terms(case, price, prefill), seen)


def _for_rate(terms: Terms, one: Offer, wanted: float) -> Offer | None:
    """The offer with as many groups as a rate takes, at the batch and so inside the latencies it has; None where its
    groups do not carry it."""
    gives = one.rate_per_s / one.groups if one.prefill_layout is None else one.decode_rate_per_s
    groups, prompts = ceil(wanted / gives - 1e-9), 0
    if one.prefill_layout is not None:
        prompts = ceil(wanted / one.prefill_rate_per_s - 1e-9)
        if one.pair_rate_per_s:  # a route carries so much between each pair of groups
            groups, prompts = (max(n, ceil(wanted / one.pair_rate_per_s - 1e-9)) for n in (groups, prompts))
    used = groups * one.layout.size, prompts * (one.prefill_layout.size if one.prefill_layout else 0)
    here, there = terms.case.cluster.size, 0 if terms.prefill is None else terms.prefill.cluster.size
    if (used[0] > here or used[1] > there) if there else sum(used) > here:
        return None
    tokens = wanted * terms.case.workload.osl_tokens
    return replace(
        one, groups=groups, prefill_groups=prompts, devices=sum(used), rate_per_s=wanted, for_rate_per_s=wanted,
        tokens_per_s_per_device=tokens / sum(used), usd_per_Mtoken=_usd(terms, *used, tokens), starving="",
        meets=_meets(terms, one.tpot_s, one.ttft_s, wanted),
    )  # fmt: skip


def _own(terms: Terms, own: Candidate) -> Offer:
    """The plan's deployment, at the rate asked for or else at what it sustains."""
    load, devices = terms.case.workload, own.replicas * own.group_size
    rate = load.rate_per_s or own.replicas * own.point.rate_per_s
    return Offer(
        mode="mixed", layout=own.layout, groups=own.replicas, batch=own.point.batch, devices=devices,
        tpot_s=own.point.tpot_s, ttft_s=own.point.ttft_s, rate_per_s=rate, for_rate_per_s=load.rate_per_s,
        tokens_per_s_per_device=rate * load.osl_tokens / devices, meets=True,
        usd_per_Mtoken=_usd(terms, devices, 0, rate * load.osl_tokens),
    )  # fmt: skip


def _in_time(terms: Terms, offers: Sequence[Offer]) -> Sequence[Offer]:
    """Those inside the TTFT target, where there is one and any is."""
    limit = terms.case.workload.targets.ttft_s
    kept = [x for x in offers if limit is None or x.ttft_s <= limit]
    return kept or offers


def choose(offers: Sequence[Offer], priced: bool) -> Offer | None:
    """The cheapest offer inside the targets, or the one with the most tokens a device; of equals the fewest devices."""
    return min((x for x in offers if x.meets), key=preference(priced), default=None)


def preference(priced: bool) -> Callable[[Offer], tuple[float, int, int, float]]:
    """By what offers inside the targets are chosen, least first."""

    def key(one: Offer) -> tuple[float, int, int, float]:
        cost = one.usd_per_Mtoken if priced and one.usd_per_Mtoken is not None else -one.tokens_per_s_per_device
        return cost, one.devices, one.layout.size, one.tpot_s

    return key


def front(offers: Sequence[Offer]) -> list[Offer]:
    """Those that no other beats in tokens a device and tokens a user at once, least interactive first."""
    kept: list[Offer] = []
    for offer in sorted(offers, key=lambda x: (x.tpot_s, -x.tokens_per_s_per_device, x.devices)):
        if not kept or offer.tokens_per_s_per_device > kept[-1].tokens_per_s_per_device * (1 + 1e-9):
            kept.append(offer)
    return kept[::-1]


def collect(into: list[Seen], case: Case) -> Callable[[Layout, Points], None]:
    """What a search tells of the layouts that fit."""

    def seen(layout: Layout, points: Points) -> None:
        tokens = case.engine.resolve(case.options, case.model, case.cluster.accelerator, layout).max_batched_tokens
        into.append(Seen(layout, points, tokens))

    return seen


def _usd(terms: Terms, devices: float, prefill_devices: float, tokens_per_s: float) -> float | None:
    """USD per million output tokens."""
    if not terms.price:
        return None
    other = (terms.prefill or terms.case).cluster.accelerator.name
    rates = [terms.price.get(name, terms.price.get("")) for name in (terms.case.cluster.accelerator.name, other)]
    if None in rates:
        missing = (terms.case.cluster.accelerator.name, other)[rates.index(None)]
        raise InputError(f"no price of {missing}", where="--price", expected=f"{missing}=USD beside the others")
    hourly = devices * float(rates[0] or 0) + prefill_devices * float(rates[1] or 0)
    return hourly / 3600 / tokens_per_s * 1e6


def _meets(terms: Terms, tpot: float, ttft: float, rate: float) -> bool:
    load = terms.case.workload
    limits = load.targets.tpot_s or np.inf, load.targets.ttft_s or np.inf
    return bool(tpot <= limits[0] and ttft <= limits[1] and rate >= (load.rate_per_s or 0.0) * (1 - 1e-9))


def _mixed(terms: Terms, one: Seen) -> list[Offer]:
    """A layout's batches, in as many groups as the devices hold."""
    case, size = terms.case, one.layout.size
    groups, osl = case.cluster.size // size, case.workload.osl_tokens
    offers = []
    for batch, tpot, ttft, rate in zip(
        one.points.sizes, one.points.tpot, one.points.ttft, one.points.rate, strict=True
    ):
        tokens = float(rate) * groups * osl
        offers.append(
            Offer(
                mode="mixed", layout=one.layout, groups=groups, batch=int(batch), devices=groups * size,
                tpot_s=float(tpot), ttft_s=float(ttft), rate_per_s=float(rate) * groups,
                tokens_per_s_per_device=tokens / (groups * size), max_batched_tokens=one.tokens,
                usd_per_Mtoken=_usd(terms, groups * size, 0, tokens),
                meets=_meets(terms, float(tpot), float(ttft), float(rate) * groups),
            )
        )  # fmt: skip
    return offers


def _with_budgets(terms: Terms, layouts: Sequence[Layout]) -> list[Offer]:
    """The layouts with other token budgets, where the engine and its memory allow them."""
    base = terms.case
    trials, tokens = [], []
    for layout in layouts:
        own = base.engine.resolve(base.options, base.model, base.cluster.accelerator, layout).max_batched_tokens
        for budget in BUDGETS:
            # Every batch size; at a rate, requests wait for seats as they did in the search.
            load = replace(base.workload, concurrency=None, targets=Targets())
            case = base._replace(options=replace(base.options, max_batched_tokens=budget), workload=load)
            if own == budget:
                continue
            memory = ledger(case.model, case.cluster, case.engine, layout, case.options, base.workload)
            if memory.shortfall is None:
                trials.append(trial(*case, layout, memory))
                tokens.append(case.engine.resolve(case.options, case.model, case.cluster.accelerator, layout))
    return [
        offer
        for one, settings, (_, points) in zip(trials, tokens, outcomes(trials), strict=True)
        for offer in _mixed(terms, Seen(one.layout, points, settings.max_batched_tokens))
    ]


def _free(case: Case) -> Case:
    """The case without a load or targets: every batch size."""
    return case._replace(workload=replace(case.workload, rate_per_s=None, concurrency=None, targets=Targets()))


class _Side(NamedTuple):
    layout: Layout
    pool: Pool
    tokens: int


def _sides(case: Case, layouts: Sequence[Layout]) -> list[_Side]:
    """Groups as pools. Without those that cut a prompt's tokens: their handover is not modelled."""
    found = []
    for layout in layouts:
        try:
            pool = pool_of(case.model, case.cluster, case.engine, layout, case.workload, case.options)
        except InputError:
            continue  # it holds no request of these lengths
        resolved = case.engine.resolve(case.options, case.model, case.cluster.accelerator, layout)
        found.append(_Side(layout, pool, resolved.max_batched_tokens))
    return found


def _whole(seen: Sequence[Seen]) -> list[Seen]:
    """Layouts that can be a pool, with experts on all ranks of a stage or cut like the rest."""
    some = [x for x in seen if x.layout.cp * x.layout.dcp == 1 and not x.layout.sequence_sharded]
    return [x for x in some if x.layout.ep in {1, x.layout.tp * x.layout.dp_attn}]


def _for_prompts(seen: Sequence[Seen]) -> list[Layout]:
    """The smallest groups: of more of them each serves the same."""
    return sorted((x.layout for x in _whole(seen)), key=lambda x: (x.size, x.pp, -x.ep, x.dp_attn))[:MOST_SIDES]


def _for_answers(seen: Sequence[Seen], target: float | None) -> list[Layout]:
    """The groups with the most requests/s a device at some batch inside the TPOT target, mixed, then the fastest."""

    def most(one: Seen) -> float:
        good = one.points.tpot <= (target or np.inf)
        return float(np.max(np.where(good, one.points.rate, 0.0))) / one.layout.size

    some = _whole(seen)
    best = sorted(some, key=lambda x: -most(x))[:MOST_SIDES]
    quick = sorted(some, key=lambda x: float(x.points.tpot.min()))[: MOST_SIDES // 3]
    return list(dict.fromkeys(x.layout for x in (*best, *quick)))


def _separate(terms: Terms, seen: Sequence[Seen]) -> tuple[list[Offer], tuple[str, ...]]:
    """Pairs of pools: without their handoff first, then those of the front with what it takes."""
    case, other = terms.case, terms.prefill
    if case.workload.osl_tokens < 2:
        return [], ("separate pools were not searched: answers of one token have no decode",)
    elsewhere: list[Seen] = []
    if other is not None:
        search(*_free(other), seen=collect(elsewhere, other))
    prefill = _sides(other or case, _for_prompts(elsewhere if other is not None else seen))
    decode = _sides(case, _for_answers(seen, case.workload.targets.tpot_s))
    pairs = [(p, d) for p in prefill for d in decode]
    rough = [offer for p, d in pairs for offer in _pair(terms, p, d, 0.0, None, "")]
    # The front, and the best of each kind inside the targets: a handoff takes time and rate from all alike.
    near = front(_in_time(terms, rough)) + [x for x in (choose(rough, bool(terms.price)),) if x is not None]
    keep = {(x.prefill_layout, x.layout) for x in near}
    offers = []
    for p, d in pairs:
        if (p.layout, d.layout) not in keep:
            continue
        try:
            exposed, most, link = _moved(terms, p, d)
        except InputError:
            continue  # devices that nothing is known to join
        offers += _pair(terms, p, d, exposed, most, link)
    return offers, ("separate pools: of groups without context parallelism, as they come first; not every pair",)


def _moved(terms: Terms, p: _Side, d: _Side) -> tuple[float, float, str]:
    """(seconds of a handoff that prefill does not hide, prompts/s of one pair's route, its slowest link)."""
    case, other = terms.case, terms.prefill
    one = handover(
        case.model, Side((other or case).cluster, p.layout), Side(case.cluster, d.layout), shared=other is None,
        prompt_tokens=case.workload.isl_tokens, engine=case.engine, kv_dtype=case.options.kv_dtype or "auto",
    )  # fmt: skip
    # Each attention replica of a group has a route of its own.
    return one.exposed_s, one.max_rate_per_s * min(p.layout.dp_attn, d.layout.dp_attn), one.limiting


def _pair(terms: Terms, p: _Side, d: _Side, exposed: float, link_rate: float | None, link: str) -> list[Offer]:
    """Every decode batch of a pair, each in the split of the devices that serves most inside the TTFT target."""
    load = terms.case.workload
    count, others = _splits(terms, p.pool.ranks, d.pool.ranks)
    if not len(count):
        return []
    batches, steps = (np.array(x, float) for x in zip(*d.pool.steps, strict=True))
    prompts, answers = count[:, None], others[:, None]
    takes = answers * batches / (load.osl_tokens * steps)
    gives = prompts * _load_of(terms, p, exposed, steps) / p.pool.prompt
    rate = np.minimum(gives, takes)
    if link_rate is not None:
        rate = np.minimum(rate, np.minimum(prompts, answers) * link_rate)
    per_device = rate * load.osl_tokens / (prompts * p.pool.ranks + answers * d.pool.ranks)
    best = np.argmax(per_device, axis=0)
    offers = []
    for at, split in enumerate(best):
        requests = float(rate[split, at])
        # A batch that prompts do not fill is a smaller one, which another point has.
        if requests <= 0 or float(gives[split, at]) < 0.5 * float(takes[split, at]):
            continue
        busy = min(requests * p.pool.prompt / float(count[split]), MAX_PROMPT_LOAD)
        queue = busy * p.pool.prefill_s / (2 * (1 - busy))
        ttft, tpot = p.pool.prefill_s + queue + exposed + float(steps[at]), float(steps[at])
        used = int(count[split]) * p.pool.ranks, int(others[split]) * d.pool.ranks
        idle = min(float(gives[split, at]), float(takes[split, at])) / max(
            float(gives[split, at]), float(takes[split, at])
        )
        starving = "" if idle > 0.95 else "decode" if gives[split, at] < takes[split, at] else "prefill"
        offers.append(
            Offer(
                mode="separate", layout=d.layout, groups=int(others[split]), batch=int(batches[at]),
                devices=sum(used), tpot_s=tpot, ttft_s=ttft, rate_per_s=requests,
                tokens_per_s_per_device=float(per_device[split, at]), max_batched_tokens=p.tokens,
                prefill_layout=p.layout, prefill_groups=int(count[split]),
                prefill_on=terms.prefill.cluster.name if terms.prefill else "",
                usd_per_Mtoken=_usd(terms, used[1], used[0], requests * load.osl_tokens), starving=starving,
                prefill_rate_per_s=float(gives[split, at]) / float(count[split]),
                decode_rate_per_s=float(takes[split, at]) / float(others[split]),
                pair_rate_per_s=link_rate if link_rate is not None and isfinite(link_rate) else 0.0,
                exposed_s=exposed, limiting_link=link, meets=_meets(terms, tpot, ttft, requests),
            )
        )  # fmt: skip
    return offers


def _splits(terms: Terms, prefill_ranks: int, decode_ranks: int) -> tuple[Floats, Floats]:
    """(prefill groups, decode groups) that the devices hold, none left that another group could use."""
    size = terms.case.cluster.size
    if terms.prefill is not None:
        most = terms.prefill.cluster.size // prefill_ranks
        count = np.arange(1, most + 1, dtype=float)
        others = np.full(most, float(size // decode_ranks))
    else:
        count = np.arange(1, size // prefill_ranks + 1, dtype=float)
        others = (size - count * prefill_ranks) // decode_ranks
    held = others >= 1
    return count[held], others[held]


def _load_of(terms: Terms, p: _Side, exposed: float, steps: Floats) -> Floats:
    """Share of a prefill group's time that prompts may fill: their queue fits the TTFT target.

    M/D/1 with the time a prompt takes from start to end, also where stages or attention replicas work on several: a
    replica has a queue of its own, and steps of unlike length hold each other up in a pipeline.
    """
    target = terms.case.workload.targets.ttft_s
    if target is None:
        return np.full(len(steps), MAX_PROMPT_LOAD)
    slack = np.maximum(0.0, target - p.pool.prefill_s - exposed - steps)
    return np.minimum(2 * slack / (p.pool.prefill_s + 2 * slack), MAX_PROMPT_LOAD)

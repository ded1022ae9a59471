"""Separate pools as offers: which groups are looked at in pairs, and what each pair serves, counted as a handoff does.

Pairs are looked at without their handoff first; those of the front, and the best for the targets and the rate, are
counted again with what it takes.
"""

from collections.abc import Sequence
from math import ceil, isfinite
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.plan.fit import Case
from linkwise.plan.frontier_types import Offer
from linkwise.plan.handoff_pools import Moved, Side, between, moved
from linkwise.plan.handoff_types import HandoffOptions
from linkwise.plan.offers import Seen, Terms, choose, collect, front, in_time, meets, usd
from linkwise.plan.pool_counts import Both, Groups, Latency, Limit, balance, carrying, each_batch, latency, limit, most
from linkwise.plan.pools import Pool, pool_of
from linkwise.plan.search import search
from linkwise.workload.types import Targets

MOST_SIDES = 12  # groups of one side that pairs are made of
MOST_COUNTS = 4  # of a pair, for a rate


class Apart(NamedTuple):
    """Offers of separate pools: at full load of all devices, and of the groups that the rate asked for takes."""

    full: list[Offer]
    for_rate: list[Offer]
    notes: tuple[str, ...]


def _free(case: Case) -> Case:
    """The case without a load or targets: every batch size."""
    return case._replace(workload=replace(case.workload, rate_per_s=None, concurrency=None, targets=Targets()))


class _Side(NamedTuple):
    layout: Layout
    pool: Pool
    tokens: int


def _sides(case: Case, layouts: Sequence[Layout], known: Sequence[_Side] = ()) -> list[_Side]:
    """Groups as pools; known: some of the same case. Without those that cut a prompt's tokens: their handover is not
    modelled."""
    found, there = [], {one.layout: one for one in known}
    for layout in layouts:
        if layout in there:
            found.append(there[layout])
            continue
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


def separate(terms: Terms, seen: Sequence[Seen]) -> Apart:
    """Pairs of pools: without their handoff first, then those that could be chosen with what it takes."""
    case, other = terms.case, terms.prefill
    if case.workload.osl_tokens < 2:
        return Apart([], [], ("separate pools were not searched: answers of one token have no decode",))
    elsewhere: list[Seen] = []
    if other is not None:
        search(*_free(other), seen=collect(elsewhere, other))
    prefill = _sides(other or case, _for_prompts(elsewhere if other is not None else seen))
    known = prefill if other is None else ()
    decode = _sides(case, _for_answers(seen, case.workload.targets.tpot_s), known)
    pairs = [_Pair(terms, p, d, Moved()) for p in prefill for d in decode]
    rough = [offer for pair in pairs for offer in _points(pair)]
    rated = [offer for pair in pairs for offer in _for_rate(pair, coarse=True)]
    best = choose(rough, bool(terms.price)), choose(rated, bool(terms.price))
    near = front(in_time(terms, rough)) + [x for x in best if x is not None]
    keep = {(x.prefill_layout, x.layout) for x in near}
    full: list[Offer] = []
    for_rate: list[Offer] = []
    alone: dict[Layout, float | None] = {}
    for pair in pairs:
        if (pair.prefill.layout, pair.decode.layout) not in keep:
            continue
        try:
            joined = _moved(pair, alone.get(pair.prefill.layout))
        except InputError:
            continue  # devices that nothing is known to join
        alone[pair.prefill.layout] = joined.prefill_s
        whole = pair._replace(moved=joined)
        full += _points(whole, exact=True) + _whole_pools(whole)
        for_rate += _for_rate(whole)
    said = "separate pools: of groups without context parallelism, as they come first; not every pair"
    return Apart(full, for_rate, (said,))


class _Pair(NamedTuple):
    terms: Terms
    prefill: _Side
    decode: _Side
    moved: Moved

    def both(self) -> Both:
        load, other = self.terms.case.workload, self.terms.prefill
        return Both(
            self.prefill.pool, self.decode.pool, load.osl_tokens, self.terms.case.cluster.size,
            None if other is None else other.cluster.size, load.targets.ttft_s, load.targets.tpot_s,
            self.moved.exposed_s, self.moved.rate_per_s,
        )  # fmt: skip

    def costs(self) -> tuple[float, float]:
        """Of a group of each kind: USD an hour where there are prices, else devices."""
        sizes = self.prefill.layout.size, self.decode.layout.size
        if not self.terms.price:
            return sizes
        return usd(self.terms, 0, sizes[0], 1.0) or 0.0, usd(self.terms, sizes[1], 0, 1.0) or 0.0


def _moved(pair: _Pair, prefill_s: float | None) -> Moved:
    """prefill_s: of a prompt on such a prefill group, where another pair has told it."""
    case, other = pair.terms.case, pair.terms.prefill
    p, d = pair.prefill.layout, pair.decode.layout
    return moved(
        between(
            case.model, Side((other or case).cluster, p), Side(case.cluster, d), shared=other is None,
            prompt_tokens=case.workload.isl_tokens, engine=case.engine, kv_dtype=case.options.kv_dtype or "auto",
            options=HandoffOptions(prefill_s=prefill_s),
        )
    )  # fmt: skip


def _points(pair: _Pair, *, exact: bool = False) -> list[Offer]:
    """The decode batches that were timed, each in the split of the devices that serves most a device. exact: with the
    pool that starves."""
    # Those beyond the TPOT target are on the front, too.
    both = pair.both()._replace(tpot_s=None)
    found = each_batch(both, both.decode.points())
    if found is None:
        return []
    loads, of = found
    # A batch that prompts do not fill is a smaller one, which another point has.
    filled = of.prefill / loads.prefill_s >= 0.5 * of.decode / loads.decode_s
    seen = latency(both, of.prefill, of.decode, of.rate)
    offers, limits = [], dict[Groups, Limit | None]()
    for p, d, rate, *at in zip(*(x[filled] for x in (*of, *seen)), strict=True):
        groups = Groups(int(p), int(d))
        if exact and groups not in limits:
            limits[groups] = limit(pair.both(), groups)
        offers.append(_offer(pair, groups, float(rate), limits.get(groups), Latency(*at)))
    return offers


def _whole_pools(pair: _Pair) -> list[Offer]:
    """The groups that serve most for what they cost inside the targets, at full load."""
    both = pair.both()
    groups = most(both, pair.costs())
    best = None if groups is None else limit(both, groups)
    if groups is None or best is None:
        return []
    return [_offer(pair, groups, best.rate, best, latency(both, *groups, best.rate))]


def _for_rate(pair: _Pair, *, coarse: bool = False) -> list[Offer]:
    """The cheapest groups that the rate asked for takes. coarse: at the batches that were timed only, and one offer."""
    both, wanted = pair.both(), pair.terms.case.workload.rate_per_s
    if wanted is None:
        return []
    table = both.decode.points() if coarse else None
    held = [one for one in carrying(both, wanted, pair.costs(), table) if both.hold(one)]
    offers = []
    for groups in held[: 1 if coarse else MOST_COUNTS]:
        best = None if coarse else limit(both, groups)
        one = _offer(pair, groups, wanted, best, latency(both, *groups, wanted))
        offers.append(replace(one, for_rate_per_s=wanted))
    return offers


def _offer(pair: _Pair, groups: Groups, rate: float, best: Limit | None, seen: Latency) -> Offer:
    """best: what such groups do inside the targets; None = not asked, or nothing."""
    terms, p, d = pair.terms, pair.prefill, pair.decode
    ttft, tpot, batch = (float(x) for x in seen)
    used = groups.prefill * p.layout.size, groups.decode * d.layout.size
    tokens, link = rate * terms.case.workload.osl_tokens, pair.moved.rate_per_s
    return Offer(
        mode="separate", layout=d.layout, groups=groups.decode, batch=max(1, ceil(batch - 1e-9)), devices=sum(used),
        tpot_s=tpot, ttft_s=ttft, rate_per_s=rate, tokens_per_s_per_device=tokens / sum(used),
        max_batched_tokens=p.tokens, prefill_layout=p.layout, prefill_groups=groups.prefill,
        prefill_on=terms.prefill.cluster.name if terms.prefill else "",
        usd_per_Mtoken=usd(terms, used[1], used[0], tokens),
        starving=balance(groups.prefill, best.prefill_s, groups.decode, best.decode_s).starving if best else "",
        prefill_rate_per_s=1 / best.prefill_s if best else 0.0, decode_rate_per_s=1 / best.decode_s if best else 0.0,
        pair_rate_per_s=link if link is not None and isfinite(link) else 0.0, exposed_s=pair.moved.exposed_s,
        limiting_link=pair.moved.link, meets=meets(terms, tpot, ttft, rate),
    )  # fmt: skip

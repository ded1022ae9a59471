"""Layouts x batch policies x pools: the Pareto set of tokens/s a device against tokens/s a user, and the choice for the
targets.

Everything here is the closed form (plan/operate.py, plan/pool_counts.py). The layouts are those the search saw fit, at
its twelve batch sizes; token budgets are tried on the layouts of the first front; separate pools are pairs of the
smallest prefill groups and the decode groups that do best mixed, in every whole number of groups that the devices hold.

The front is at full load of all devices. Where a rate is asked, the choice is among deployments of as many groups as
that rate takes: what they cost is what serving that rate costs.
"""

from collections.abc import Mapping, Sequence
from math import ceil

from msgspec.structs import replace

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.plan.evaluate import outcomes, trial
from linkwise.plan.fit import Case
from linkwise.plan.frontier_types import Frontier, Offer
from linkwise.plan.ledger import ledger
from linkwise.plan.offers import Seen, Terms, choose, front, in_time, meets, preference, usd
from linkwise.plan.search import Other, Promised
from linkwise.plan.separate import separate
from linkwise.plan.types import Candidate
from linkwise.workload.types import Targets

BUDGETS = (512, 2048, 8192, 16_384)  # tokens of a step, beside the engine's own
MOST_SHOWN = 40  # offers of a front
FINALISTS = 12  # offers for a rate that are kept, the preferred ones


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
    mixed += _with_budgets(terms, list(dict.fromkeys(offer.layout for offer in front(in_time(terms, mixed)))))
    apart = separate(terms, seen) if pairs is None else pairs.result()
    full = [*mixed, *apart.full]
    offers = front(in_time(terms, full))[:MOST_SHOWN]
    wanted = case.workload.rate_per_s
    # What meets the targets at the lowest cost need not lie on the front of the figures above, so it joins it.
    if wanted is None:
        best = choose(full, bool(price))
        if best is not None and best not in offers:
            offers = sorted([*offers, best], key=lambda x: x.tokens_per_s_per_user)
    else:
        enough = [one for offer in mixed if (one := _for_rate(terms, offer, wanted)) is not None] + apart.for_rate
        ranked = sorted((one for one in enough if one.meets), key=preference(bool(price)))[:FINALISTS]
        best = ranked[0] if ranked else None
        offers = [*offers, *ranked]
    return Frontier(
        offers=tuple(offers), choice=None if best is None else offers.index(best), tried=len(full),
        devices=case.cluster.size + (prefill.cluster.size if prefill else 0), notes=apart.notes,
        own=None if own is None else _own(terms, own),
    )  # fmt: skip


def pairs_of(
    case: Case, seen: Sequence[Seen], *, price: Mapping[str, float], prefill: Case | None, other: Other
) -> Promised:
    """Pairs of pools of what was seen, looked at in another process while the plan is made of it."""
    return other.submit(separate, Terms(case, price, prefill), seen)


def _for_rate(terms: Terms, one: Offer, wanted: float) -> Offer | None:
    """A mixed offer with as many groups as a rate takes, at the batch and so inside the latencies it has; None where
    the devices do not hold them."""
    groups = ceil(wanted / one.rate_per_s * one.groups - 1e-9)
    devices, tokens = groups * one.layout.size, wanted * terms.case.workload.osl_tokens
    if devices > terms.case.cluster.size:
        return None
    return replace(
        one, groups=groups, devices=devices, rate_per_s=wanted, for_rate_per_s=wanted,
        tokens_per_s_per_device=tokens / devices, usd_per_Mtoken=usd(terms, devices, 0, tokens),
        meets=meets(terms, one.tpot_s, one.ttft_s, wanted),
    )  # fmt: skip


def _own(terms: Terms, own: Candidate) -> Offer:
    """The plan's deployment, at the rate asked for or else at what it sustains."""
    load, devices = terms.case.workload, own.replicas * own.group_size
    rate = load.rate_per_s or own.replicas * own.point.rate_per_s
    return Offer(
        mode="mixed", layout=own.layout, groups=own.replicas, batch=own.point.batch, devices=devices,
        tpot_s=own.point.tpot_s, ttft_s=own.point.ttft_s, rate_per_s=rate, for_rate_per_s=load.rate_per_s,
        tokens_per_s_per_device=rate * load.osl_tokens / devices, meets=True,
        usd_per_Mtoken=usd(terms, devices, 0, rate * load.osl_tokens),
    )  # fmt: skip


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
                usd_per_Mtoken=usd(terms, groups * size, 0, tokens),
                meets=meets(terms, float(tpot), float(ttft), float(rate) * groups),
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

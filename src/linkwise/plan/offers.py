"""Ways to serve set beside each other: what they cost, which are inside the targets, the front, the choice."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.plan.evaluate import Points
from linkwise.plan.fit import Case
from linkwise.plan.frontier_types import Offer

MORE = 1.01  # tokens a device for which slower answers are shown beside quicker ones


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


def collect(into: list[Seen], case: Case) -> Callable[[Layout, Points], None]:
    """What a search tells of the layouts that fit."""

    def seen(layout: Layout, points: Points) -> None:
        tokens = case.engine.resolve(case.options, case.model, case.cluster.accelerator, layout).max_batched_tokens
        into.append(Seen(layout, points, tokens))

    return seen


def in_time(terms: Terms, offers: Sequence[Offer]) -> Sequence[Offer]:
    """Those inside the TTFT target, where there is one and any is."""
    limit = terms.case.workload.targets.ttft_s
    kept = [x for x in offers if limit is None or x.ttft_s <= limit * (1 + 1e-9)]
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
    """Those that no other beats in tokens a device and tokens a user at once, least interactive first. Less than 1 %
    more a device for slower answers is nothing more."""
    kept: list[Offer] = []
    for offer in sorted(offers, key=lambda x: (x.tpot_s, -x.tokens_per_s_per_device, x.devices)):
        if not kept or offer.tokens_per_s_per_device > kept[-1].tokens_per_s_per_device * MORE:
            kept.append(offer)
    return kept[::-1]


def usd(terms: Terms, devices: float, prefill_devices: float, tokens_per_s: float) -> float | None:
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


def meets(terms: Terms, tpot: float, ttft: float, rate: float) -> bool:
    load = terms.case.workload
    limits, near = (load.targets.tpot_s or np.inf, load.targets.ttft_s or np.inf), 1 + 1e-9
    return bool(tpot <= limits[0] * near and ttft <= limits[1] * near and rate >= (load.rate_per_s or 0.0) * (1 - 1e-9))

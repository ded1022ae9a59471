"""How many replicas hold a load that grows, with some of them gone, and what is left then.

The simulator decides, at exact percentiles of requests: the fewest replicas that hold the rate are looked for by
doubling and halving from the closed form's figure. What survives a failure is counted from where replicas lie
(fleet.py). Where prompts and answers have pools of their own, both are counted: together they take the fewest devices.
"""

import math
import re
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.core.schema import Frozen
from linkwise.core.units import show_time
from linkwise.plan.types import Plan, Shortfall
from linkwise.simulate.certainty import certainty
from linkwise.simulate.failures import FAILURE_OF
from linkwise.simulate.fleet import Counts, Fleet
from linkwise.simulate.load import Asked, enough, load_of
from linkwise.simulate.of_plan import pool_of, transfer_of
from linkwise.simulate.rules import Run, Transfer
from linkwise.simulate.trials import Seen, Trials, fewest, most_rate, rate_of
from linkwise.workload.requests import Requests
from linkwise.workload.types import Targets

CAPACITY_SCHEMA = "linkwise.capacity/1"
# Requests of a run where their number is not given: five minutes of the rate, within these.
LEAST_REQUESTS, MOST_REQUESTS, SECONDS = 3000, 50_000, 300
MOST_IN_PERIOD = 200_000  # of arrivals that come and go: all of a period, in each of some twenty runs


class Growth(NamedTuple):
    """factor: the load's, over all `months`. monthly: of one month, 1 where the growth has no pace."""

    factor: float = 1.0
    monthly: float = 1.0
    months: float = 0.0
    text: str = "none"


class Wanted(NamedTuple):
    """What is to be held. rate_per_s: today's mean, None = the trace's or the plan's own. peak: busiest hour over mean.

    failures: of whole nodes or of single replicas (`of`). share: the percentile, 0.99 = 99 of 100 requests.
    """

    rate_per_s: float | None = None
    growth: Growth = Growth()
    peak: float = 1.0
    failures: int = 1
    of: str = "node"
    share: float = 0.99
    targets: Targets = Targets()


class Held(Frozen, frozen=True, kw_only=True):
    """So many replicas under the planned rate.

    by_pool: of prefill and decode, where they are apart. rate_per_s: the most they hold inside every target, to 1 %.
    headroom: that over the planned rate, less 1. ttft_s, tpot_s: percentiles at the planned rate; tpot_s None where
    answers have one token.
    """

    replicas: int
    by_pool: tuple[int, ...] = ()
    rate_per_s: float
    headroom: float
    ttft_s: float
    tpot_s: float | None


class PoolNeed(Frozen, frozen=True, kw_only=True):
    """What a pool needs: so many replicas, of which failures in it take `lost`. failed: both pools without those.

    binding, failing_ttft_s: as in Capacity, of this pool.
    """

    role: str
    layout: Layout
    cluster: str
    replicas: int
    lost: int
    devices: int
    nodes: int
    binding: str
    failed: Held
    failing_ttft_s: float | None


class Capacity(Frozen, frozen=True, kw_only=True):
    """The answer. replicas: the fewest that still hold the rate without the `lost` of the worst failures; 0: no number.

    binding: the target that one survivor fewer misses. failing_ttft_s: the percentile of requests that arrive in the
    minute after the failure. lasts_months: how long the survivors hold a load that goes on growing. pools: prefill and
    decode, where they are apart: replicas, devices and nodes are then the sums of both, and what failures do is the
    worse of what they do in either.
    """

    schema: str = CAPACITY_SCHEMA
    rate_today_per_s: float
    growth: str
    growth_factor: float
    peak_factor: float
    rate_per_s: float
    percentile: float
    ttft_target_s: float | None
    tpot_target_s: float | None
    failures: int
    failure_of: str
    requests: int
    devices_left: int
    nodes_left: int
    notes: tuple[str, ...]
    replicas: int = 0
    lost: int = 0
    normal: Held | None = None
    failed: Held | None = None
    failing_ttft_s: float | None = None
    binding: str = ""
    devices: int = 0
    nodes: int = 0
    lasts_months: float | None = None
    shortfall: Shortfall | None = None
    changes: tuple[str, ...] = ()
    runs: int = 0
    pools: tuple[PoolNeed, ...] = ()

    @property
    def fits(self) -> bool:
        return self.shortfall is None


_GROWTH = re.compile(
    r"(?:x([0-9]{1,6}(?:\.[0-9]{1,6})?)|([0-9]{1,6}(?:\.[0-9]{1,6})?) ?%)(?:/(month|year|week))?", re.ASCII
)
_MONTHS = {"month": 1.0, "year": 12.0, "week": 7 / (365.25 / 12)}


def growth(text: str, months: float | None = None) -> Growth:
    """Growth as typed: x1.5, 50%, 20%/month, x2/year. months: how far ahead, where there is a pace; one without."""
    match = _GROWTH.fullmatch(text.strip())
    if not match:
        raise InputError(f"{text[:60]!r}", where="--growth", expected="x1.5, 50%, 20%/month or x2/year")
    once = float(match[1]) if match[1] else 1 + float(match[2]) / 100
    if not 1e-3 <= once <= 1e4:
        raise InputError(f"{text[:60]!r}", where="--growth", expected="a factor from 0.001 to 10000")
    if match[3] is None:
        if months is not None:
            raise InputError(
                f"{months:g} months of growth {text[:60]!r}", where="--months", expected="a growth such as 20%/month"
            )
        return Growth(once, text=text.strip())
    months = 1.0 if months is None else months
    if not 0 < months <= 240:
        raise InputError(f"{months:g}", where="--months", expected="above 0, at most 240")
    monthly = once ** (1 / _MONTHS[match[3]])
    if not 1e-9 < monthly**months < 1e9:
        raise InputError(f"{text[:60]!r} for {months:g} months", where="--growth", expected="a factor below 1e9")
    return Growth(monthly**months, monthly, months, f"{text.strip()}, {months:g} month{'s' if months != 1 else ''}")


def capacity(
    plan: Plan,
    wanted: Wanted,
    asked: Asked | None = None,
    run: Run | None = None,
    *,
    prefill: Plan | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> Capacity:
    """How many of the plan's replicas hold the load, and what a failure leaves. progress: told of every run made.

    prefill: the plan of a prefill pool; `plan` is then the decode pool, and both are counted.
    Raises InputError for words that say no load, and for a closed loop: users that wait never are too many.
    """
    run = run or Run()
    load, drawn, today, planned, notes = _load(plan, wanted, asked or Asked(), run.seed, prefill)
    fleet = Fleet((plan,) if prefill is None else (prefill, plan), wanted.failures, wanted.of)
    pools = []
    for one, role in zip(fleet.plans, fleet.roles, strict=True):
        pool, said = pool_of(one, load, role=role)
        pools.append(pool)
        notes += (*said, *certainty(one))
    driven = _Driven(fleet, load, run)
    trials = Trials(pools, load, driven.of, wanted.targets, wanted.share, drawn)
    none = tuple(0 for _ in fleet.plans)
    blank = Capacity(
        rate_today_per_s=today, growth=wanted.growth.text, growth_factor=wanted.growth.factor,
        peak_factor=wanted.peak, rate_per_s=planned, percentile=wanted.share, ttft_target_s=wanted.targets.ttft_s,
        tpot_target_s=wanted.targets.tpot_s, failures=wanted.failures, failure_of=wanted.of, requests=load.number,
        devices_left=fleet.left(none)[0], nodes_left=fleet.left(none)[1], notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip

    def misses(counts: Counts, rate: float) -> tuple[str, ...]:
        if progress is not None:
            progress(trials.runs, None)
        return trials.at(counts, rate).missed

    alone = trials.alone()
    start: Counts = (math.ceil(planned / plan.chosen.max_rate_per_s),)
    if prefill is not None:  # a prompt keeps its group for as long as one alone takes, or less
        start = (max(1, math.ceil(planned * alone.ttft_s)), *start)
    sizes = tuple(one.layout.size for one in fleet.plans)
    survivors = None if alone.missed else fewest(lambda n: not misses(n, planned), start, load.number, sizes)
    if survivors is None:
        return _never(blank, alone, trials.runs)
    first = survivors

    def most(counts: Counts) -> float:
        scale = min(n / least for n, least in zip(counts, first, strict=True))
        guess = max(planned, counts[-1] * plan.chosen.max_rate_per_s) if prefill is None else planned * scale
        return most_rate(lambda rate: not misses(counts, rate), guess)

    def held(counts: Counts) -> Held:
        here, rate = trials.at(counts, planned), max(planned, most(counts))
        return Held(
            replicas=sum(counts), by_pool=counts if len(counts) > 1 else (), rate_per_s=rate,
            headroom=rate / planned - 1, ttft_s=here.ttft_s, tpot_s=here.tpot_s,
        )  # fmt: skip

    counts = fleet.enough(survivors)
    gone = fleet.lost(counts)
    needs = [
        PoolNeed(
            role=role, layout=one.layout, cluster=one.cluster.name, replicas=counts[i], lost=gone[i],
            devices=fleet.devices(counts)[i], nodes=fleet.nodes(counts)[i],
            binding=_binding(survivors, i, lambda n: misses(n, planned)),
            failed=held(_less(counts, i, gone[i])),
            failing_ttft_s=trials.failing(counts, i, gone[i], planned) if gone[i] else None,
        )
        for i, (one, role) in enumerate(zip(fleet.plans, fleet.roles, strict=True))
    ]  # fmt: skip
    worst = min(needs, key=lambda need: need.failed.rate_per_s)
    short, changes = _short(fleet, counts, planned, most, survivors)
    binding = [f"{need.role}: {need.binding}" if len(needs) > 1 else need.binding for need in needs]
    late = [need.failing_ttft_s for need in needs if need.failing_ttft_s is not None]
    left = fleet.left(counts)
    return replace(
        blank, replicas=sum(counts), lost=worst.lost, normal=held(counts), failed=worst.failed,
        failing_ttft_s=max(late) if late else None, binding="; ".join(binding), devices=sum(fleet.devices(counts)),
        devices_left=left[0], nodes=_nodes(fleet, counts), nodes_left=left[1], shortfall=short, changes=changes,
        runs=trials.runs, lasts_months=_lasts(worst.failed.rate_per_s, today * wanted.peak, wanted.growth),
        pools=tuple(needs) if len(needs) > 1 else (),
        notes=tuple(dict.fromkeys((*blank.notes, *driven.said(counts)))),
    )  # fmt: skip


class _Driven:
    """How so many replicas are driven: between two pools, prompts go over the links that lie between so many."""

    def __init__(self, fleet: Fleet, load: Requests, run: Run) -> None:
        self._fleet, self._load, self._run = fleet, load, run
        self._known: dict[Counts, tuple[Transfer, tuple[str, ...]]] = {}

    def of(self, counts: Counts) -> Run:
        return self._run if len(counts) == 1 else replace(self._run, transfer=self._transfer(counts)[0])

    def said(self, counts: Counts) -> tuple[str, ...]:
        return () if len(counts) == 1 else self._transfer(counts)[1]

    def _transfer(self, counts: Counts) -> tuple[Transfer, tuple[str, ...]]:
        # More replicas than there is room for are joined as those that there is room for.
        placed = counts if self._fleet.fits(counts) else self._fleet.most(counts)
        if min(placed) == 0:
            placed = (1, 1)
        if placed not in self._known:
            prefill, decode = self._fleet.plans
            self._known[placed] = transfer_of(prefill, decode, self._load, replicas=(placed[0], placed[1]))
        return self._known[placed]


def _less(counts: Counts, pool: int, gone: int) -> Counts:
    return tuple(n - gone * (i == pool) for i, n in enumerate(counts))


def _nodes(fleet: Fleet, counts: Counts) -> int:
    return fleet.plans[0].cluster.nodes - fleet.left(counts)[1] if fleet.shared else sum(fleet.nodes(counts))


def _binding(survivors: Counts, pool: int, misses: Callable[[Counts], tuple[str, ...]]) -> str:
    """The target that one survivor fewer of a pool misses."""
    fewer = survivors[pool] - 1
    if not fewer:
        return "none: one replica holds the rate"
    why = misses(_less(survivors, pool, 1))
    return f"{fewer} would not do: {why[0]}" if why else "none: one replica holds the rate"


def _load(
    plan: Plan, wanted: Wanted, asked: Asked, seed: int, prefill: Plan | None
) -> tuple[Requests, float | None, float, float, tuple[str, ...]]:
    """The requests, the rate they were drawn at, today's rate, the planned rate, and what they are in words."""
    if asked.users is not None:
        raise InputError("a closed loop", where="capacity", expected="a rate or a trace: users that wait set their own")
    if wanted.of not in FAILURE_OF:
        raise InputError(f"{wanted.of[:40]!r}", where="--failure-of", expected="one of " + ", ".join(FAILURE_OF))
    for name, value, low, high in (
        ("--failures", wanted.failures, 0, 64), ("--peak-factor", wanted.peak, 1e-3, 1e4),
        ("--percentile", 100 * wanted.share, 1, 99.999),
    ):  # fmt: skip
        if not low <= value <= high:
            raise InputError(f"{value:g}", where=name, expected=f"{low:g}..{high:g}")
    today = wanted.rate_per_s
    if asked.trace is not None:
        found = load_of(plan, asked, seed, prefill)
        rate = rate_of(found.requests)
        today = rate if today is None else today
        planned = today * wanted.peak * wanted.growth.factor
        notes = (
            *found.notes,
            f"the trace's {found.requests.number:,} requests, at {planned / rate:.3g} times its pace",
        )
        return found.requests, None, today, planned, notes
    today = plan.workload.rate_per_s if today is None else today
    if today is None:
        raise InputError("no rate", where="capacity", expected="--rate or a trace: the plan was made for none")
    planned = today * wanted.peak * wanted.growth.factor
    usual = int(min(max(planned * SECONDS, LEAST_REQUESTS), MOST_REQUESTS))
    number = enough(asked, planned, usual, MOST_IN_PERIOD)
    found = load_of(plan, asked._replace(number=number, rate_per_s=planned), seed, prefill)
    return found.requests, planned, today, planned, found.notes


def _never(blank: Capacity, alone: Seen, runs: int) -> Capacity:
    """A request that meets nobody is late already, or requests pile up however many replicas there are."""
    if not alone.missed:
        reason = "requests pile up on single replicas however many there are"
        short = Shortfall(
            resource="rate", rank=0, need=blank.rate_per_s, have=0.0, unit="requests/s", reason=reason,
            change="another router: --router least",
        )  # fmt: skip
        return replace(blank, binding=reason, shortfall=short, changes=(short.change,), runs=runs)
    late = alone.missed[0].startswith("TTFT")
    need, have = (blank.ttft_target_s, alone.ttft_s) if late else (blank.tpot_target_s, alone.tpot_s)
    name = "TTFT" if late else "TPOT"
    changes = (
        f"a {name} target of at least {show_time(have or 0.0)}",
        "a plan made for the target: linkwise plan with --ttft and --tpot",
    )
    short = Shortfall(
        resource=name.lower(), rank=0, need=need or 0.0, have=have or 0.0, unit="s",
        reason=f"a request alone: {alone.missed[0]}; no number of replicas helps", change=changes[0],
    )  # fmt: skip
    return replace(blank, binding=alone.missed[0], shortfall=short, changes=changes, runs=runs)


def _short(
    fleet: Fleet, counts: Counts, planned: float, most: Callable[[Counts], float], survivors: Counts
) -> tuple[Shortfall | None, tuple[str, ...]]:
    """What is missing when the clusters do not hold so many replicas, and the smallest changes that would help."""
    if fleet.fits(counts):
        return None, ()
    changes = []
    nodes = -fleet.left(counts)[1]
    per_node = fleet.plans[0].cluster.devices_per_node
    if nodes > 0:
        of = f" of {per_node} devices" if len(fleet.plans) == 1 or fleet.shared else ""
        changes.append(f"{nodes} more node{'s' if nodes > 1 else ''}{of}")
    whole = fleet.most(counts)
    gone = fleet.lost(whole)
    after = [_less(whole, i, n) for i, n in enumerate(gone)]
    rate = min((most(one) for one in after), default=0.0) if all(min(one) for one in after) else 0.0
    if rate:
        held = f"the {after[0][0]} replicas left of {whole[0]}" if len(whole) == 1 else (
            f"{whole[0]} prefill and {whole[1]} decode replicas")  # fmt: skip
        still = "" if len(whole) == 1 else " after the failures"
        changes.append(f"at most {rate:.3g} requests/s: what {held} hold{still}, of {planned:.3g}")
    without = next((k for k in reversed(range(fleet.failures)) if fleet.fits(fleet.enough(survivors, k))), None)
    if without is not None:
        changes.append(f"--failures {without}: {_said(fleet.enough(survivors, without))} replicas do then")
    have, need = sum({one.cluster.name: one.cluster.size for one in fleet.plans}.values()), sum(fleet.devices(counts))
    if len(counts) == 1:
        words = f"{counts[0]} replicas of {need // counts[0]} devices are needed, the cluster holds {whole[0]}"
    else:
        takes = " + ".join(
            f"{n} {role} of {one.layout.size}" for n, role, one in zip(counts, fleet.roles, fleet.plans, strict=True)
        )
        words = f"{takes} devices are needed, the cluster{'' if fleet.shared else 's'} hold{'s' * fleet.shared} "
        words += _said(whole)
    short = Shortfall(
        resource="devices", rank=0, need=need, have=have, unit="devices", reason=words,
        change=changes[0] if changes else "",
    )  # fmt: skip
    return short, tuple(changes)


def _said(counts: Counts) -> str:
    return " + ".join(map(str, counts))


def _lasts(held: float, today: float, grows: Growth) -> float | None:
    """Months until the load is what the survivors hold; None where it does not grow at a pace."""
    return math.log(held / today) / math.log(grows.monthly) if grows.monthly > 1 and held > today else None

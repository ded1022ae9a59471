"""How many replicas hold a load that grows, with some of them gone, and what is left then.

The simulator decides, at exact percentiles of requests: the fewest replicas that hold the rate are looked for by
doubling and halving from the closed form's figure. What survives a failure is counted from where replicas lie: a node
takes every replica that has a rank on it.
"""

import math
import re
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from linkwise.core.errors import InputError
from linkwise.core.schema import Frozen
from linkwise.core.units import show_time
from linkwise.plan.types import Plan, Shortfall
from linkwise.simulate.certainty import certainty
from linkwise.simulate.failures import FAILURE_OF, enough, lost
from linkwise.simulate.load import Asked, load_of
from linkwise.simulate.of_plan import pool_of
from linkwise.simulate.rules import Run
from linkwise.simulate.trials import Seen, Trials, most_rate, rate_of, smallest
from linkwise.workload.requests import Requests
from linkwise.workload.types import Targets

CAPACITY_SCHEMA = "linkwise.capacity/1"
# Requests of a run where their number is not given: five minutes of the rate, within these.
LEAST_REQUESTS, MOST_REQUESTS, SECONDS = 3000, 50_000, 300


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

    rate_per_s: the most they hold inside every target, to 1 %. headroom: that over the planned rate, less 1.
    ttft_s, tpot_s: percentiles at the planned rate; tpot_s None where answers have one token.
    """

    replicas: int
    rate_per_s: float
    headroom: float
    ttft_s: float
    tpot_s: float | None


class Capacity(Frozen, frozen=True, kw_only=True):
    """The answer. replicas: the fewest that still hold the rate without the `lost` of the worst failures; 0: no number.

    binding: the target that one survivor fewer misses. failing_ttft_s: the percentile of requests that arrive in the
    minute after the failure. lasts_months: how long the survivors hold a load that goes on growing.
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
    progress: Callable[[int, int | None], None] | None = None,
) -> Capacity:
    """How many of the plan's replicas hold the load, and what a failure leaves. progress: told of every run made.

    Raises InputError for words that say no load, and for a closed loop: users that wait never are too many.
    """
    run = run or Run()
    load, drawn, today, planned, notes = _load(plan, wanted, asked or Asked(), run.seed)
    pool, said = pool_of(plan, load)
    notes += (*said, *certainty(plan))
    trials = Trials(pool, load, run, wanted.targets, wanted.share, drawn)
    blank = Capacity(
        rate_today_per_s=today, growth=wanted.growth.text, growth_factor=wanted.growth.factor,
        peak_factor=wanted.peak, rate_per_s=planned, percentile=wanted.share, ttft_target_s=wanted.targets.ttft_s,
        tpot_target_s=wanted.targets.tpot_s, failures=wanted.failures, failure_of=wanted.of, requests=load.number,
        devices_left=plan.cluster.size, nodes_left=plan.cluster.nodes, notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip

    def misses(replicas: int, rate: float) -> tuple[str, ...]:
        if progress is not None:
            progress(trials.runs, None)
        return trials.at(replicas, rate).missed

    alone, start = trials.alone(), math.ceil(planned / plan.chosen.max_rate_per_s)
    survivors = None if alone.missed else smallest(lambda n: not misses(n, planned), start, load.number)
    if survivors is None:
        return _never(blank, alone, trials.runs)

    def most(replicas: int) -> float:
        guess = max(planned, replicas * plan.chosen.max_rate_per_s)
        return most_rate(lambda rate: not misses(replicas, rate), guess)

    def held(replicas: int) -> Held:
        here, rate = trials.at(replicas, planned), max(planned, most(replicas))
        return Held(
            replicas=replicas, rate_per_s=rate, headroom=rate / planned - 1, ttft_s=here.ttft_s, tpot_s=here.tpot_s
        )

    size, per_node = plan.layout.size, plan.cluster.devices_per_node
    count = enough(survivors, size, per_node, wanted.failures, wanted.of)
    gone = lost(count, size, per_node, wanted.failures, wanted.of)
    failed = held(count - gone)
    nodes = -(-count * size // per_node)
    one_fewer = misses(survivors - 1, planned) if survivors > 1 else ()
    short, changes = _short(plan, wanted, count, planned, most, survivors)
    return replace(
        blank, replicas=count, lost=gone, normal=held(count) if gone else failed, failed=failed,
        failing_ttft_s=trials.failing(count, gone, planned) if gone else None,
        binding=f"{survivors - 1} would not do: {one_fewer[0]}" if one_fewer else "none: one replica holds the rate",
        devices=count * size, devices_left=plan.cluster.size - count * size, nodes=nodes,
        nodes_left=plan.cluster.nodes - nodes, shortfall=short, changes=changes, runs=trials.runs,
        lasts_months=_lasts(failed.rate_per_s, today * wanted.peak, wanted.growth),
    )  # fmt: skip


def _load(
    plan: Plan, wanted: Wanted, asked: Asked, seed: int
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
        found = load_of(plan, asked, seed)
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
    number = asked.number or int(min(max(planned * SECONDS, LEAST_REQUESTS), MOST_REQUESTS))
    found = load_of(plan, asked._replace(number=number, rate_per_s=planned), seed)
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
    plan: Plan, wanted: Wanted, count: int, planned: float, most: Callable[[int], float], survivors: int
) -> tuple[Shortfall | None, tuple[str, ...]]:
    """What is missing when the cluster does not hold so many replicas, and the smallest changes that would help."""
    size, per_node = plan.layout.size, plan.cluster.devices_per_node
    whole = plan.cluster.size // size
    if count <= whole:
        return None, ()
    nodes = -(-count * size // per_node) - plan.cluster.nodes
    changes = []
    if nodes > 0:
        changes.append(f"{nodes} more node{'s' if nodes > 1 else ''} of {per_node} devices")
    left = whole - lost(whole, size, per_node, wanted.failures, wanted.of)
    rate = most(left) if left else 0.0
    if rate:
        changes.append(
            f"at most {rate:.3g} requests/s: what the {left} replicas left of {whole} hold, of {planned:.3g}"
        )
    without = next(
        (k for k in reversed(range(wanted.failures)) if enough(survivors, size, per_node, k, wanted.of) <= whole), None
    )
    if without is not None:
        changes.append(
            f"--failures {without}: {enough(survivors, size, per_node, without, wanted.of)} replicas do then"
        )
    words = f"{count} replicas of {size} devices are needed, the cluster holds {whole}"
    short = Shortfall(
        resource="devices", rank=0, need=count * size, have=plan.cluster.size, unit="devices", reason=words,
        change=changes[0] if changes else "",
    )  # fmt: skip
    return short, tuple(changes)


def _lasts(held: float, today: float, grows: Growth) -> float | None:
    """Months until the load is what the survivors hold; None where it does not grow at a pace."""
    return math.log(held / today) / math.log(grows.monthly) if grows.monthly > 1 and held > today else None

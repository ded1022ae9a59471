"""Replicas that come and go while requests arrive: a scaling rule looks every so often, the event loop runs between.

A replica that is ordered takes the cold start before it serves, with empty caches. One that is let go takes no new
request, ends those it has, and is gone then. Its devices are taken from the order until it is gone, and no more devices
are taken than there are: an order waits for a replica that is still ending its requests.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from linkwise.core.errors import InputError
from linkwise.core.schema import Frozen
from linkwise.plan.types import Plan
from linkwise.simulate.certainty import certainty
from linkwise.simulate.load import Asked, load_of
from linkwise.simulate.of_plan import pool_of
from linkwise.simulate.rules import Pool, Run
from linkwise.simulate.run import EVENTS_AT_ONCE, begin, ended
from linkwise.simulate.scaling import Advice, Measured, Rule
from linkwise.simulate.state import DONE, MORE, NOTHING_LEFT, Array, World
from linkwise.simulate.stretch import Stretch
from linkwise.simulate.summary import spread
from linkwise.simulate.types import Simulated, Spread
from linkwise.simulate.world import fault_code
from linkwise.workload.requests import Requests
from linkwise.workload.types import Targets

AUTOSCALE_SCHEMA = "linkwise.autoscale/1"
MINUTE_S = 60.0
MAX_CHANGES = 10_000  # kept of one rule


class Change(Frozen, frozen=True, kw_only=True):
    """The rule changed its mind: replicas wanted from at_s on, and what it looked at."""

    at_s: float
    replicas: int
    outstanding: float
    waiting: float
    kv: float


class Minute(Frozen, frozen=True, kw_only=True):
    """Requests that arrived in a minute."""

    start_s: float
    requests: int
    in_target: float
    ttft_p99_s: float


class Scaled(Frozen, frozen=True, kw_only=True):
    """One rule. replica_hours: from order to end, cold starts and draining included. in_target: share of all requests.

    cold, steady: TTFT of requests that arrive while a replica starts, and of the others. worst: the minute with the
    fewest requests inside the targets (the slowest one without targets). unserved: still waiting when nothing more
    would happen. most, mean: replicas that serve, at once and over the run. saturation: what was seen of a load beyond
    what is served, "" when nothing was. stretch: in which more came than was served, of a load that is served as a
    whole; stretch_replicas: mean in it. capped: the most replicas the rule may have where the devices hold fewer.
    """

    rule: Rule
    served: int
    unserved: int
    in_target: float
    goodput_per_s: float
    ttft: Spread | None
    tpot: Spread | None
    cold: Spread | None
    steady: Spread | None
    cold_share: float
    replica_hours: float
    device_hours: float
    most: int
    mean: float
    starts: int
    stops: int
    worst: Minute | None
    changes: tuple[Change, ...]
    saturation: str = ""
    stretch: Stretch | None = None
    stretch_replicas: float = 0.0
    capped: int = 0

    @property
    def holds(self) -> bool:
        """Whether every request is served and the load is not beyond what is, over the run or a late stretch of it."""
        return not (self.unserved or self.saturation or (self.stretch is not None and self.stretch.late))


class Autoscaled(Frozen, frozen=True, kw_only=True):
    """Rules side by side under the same requests. replicas_held: as many as the plan's devices hold. asked: how many of
    the rules were asked for, which come first; those they are compared with come after. 0 = all."""

    schema: str = AUTOSCALE_SCHEMA
    seed: int
    requests: int
    span_s: float
    rate_per_s: float
    cold_start_s: float
    ttft_target_s: float | None
    tpot_target_s: float | None
    devices_per_replica: int
    replicas_held: int
    rules: tuple[Scaled, ...]
    asked: int = 0
    notes: tuple[str, ...] = ()
    not_modelled: tuple[str, ...] = ()


NOT_MODELLED = (
    "limits on how many replicas a rule may add or take at once, nodes that have to be ordered first, and metrics that"
    " arrive late",
    "caches of a new replica that fill from elsewhere, and starts that slow each other down",
)


class Life(NamedTuple):
    """When a replica was ordered, first served, was told to end and was gone; inf = never. first: up from the start."""

    replica: int
    ordered_s: float
    ready_s: float
    told_s: float
    gone_s: float
    first: bool = False


class _Fleet:
    """Replicas by what they do, and the world's flags that say so to the loop."""

    def __init__(self, w: World, start: int, cold_s: float) -> None:
        self._w, self._cold = w, cold_s
        number = len(w.replica)
        w.replica["down"][start:] = 1
        self._up = list(range(start))
        self._starting: list[Life] = []
        self._draining: list[int] = []
        self._off = list(range(start, number))
        self._life = {r: Life(r, 0.0, 0.0, math.inf, math.inf, first=True) for r in range(start)}
        self.lives: list[Life] = []

    @property
    def current(self) -> int:
        """Replicas that serve or start."""
        return len(self._up) + len(self._starting)

    @property
    def idle(self) -> bool:
        """Nothing is on its way up or out."""
        return not self._starting and not self._draining

    def settle(self, now: float) -> None:
        """Who is ready by now serves; who has ended its requests is gone."""
        for one in [x for x in self._starting if x.ready_s <= now]:
            self._starting.remove(one)
            self._up.append(one.replica)
        for r in [r for r in self._draining if self._w.replica["outstanding"][r] == 0]:
            self._draining.remove(r)
            life = self._life.pop(r)
            self.lives.append(life._replace(gone_s=max(life.told_s, float(self._w.replica["idle_s"][r]))))
            self._off.append(r)
            _push(self._w, now, fault_code(r, back=False))

    def announce(self, until: float) -> None:
        """Starts that end before the next look are events of the loop."""
        for one in self._starting:
            if one.ready_s <= until and self._w.replica["drain"][one.replica]:
                self._w.replica["drain"][one.replica] = 0
                _push(self._w, one.ready_s, fault_code(one.replica, back=True))

    def want(self, count: int, now: float) -> None:
        """Order or let go. Starts that are not over are called off first, newest first; then who has least to do."""
        while self.current > count and self._starting:
            one = self._starting.pop()
            self._life.pop(one.replica)
            self.lives.append(one._replace(ready_s=math.inf, told_s=now, gone_s=now))
            self._off.append(one.replica)
        while self.current > count:
            r = min(self._up, key=lambda r: (int(self._w.replica["outstanding"][r]), -self._life[r].ordered_s, r))
            self._up.remove(r)
            self._draining.append(r)
            self._life[r] = self._life[r]._replace(told_s=now)
            self._w.replica["drain"][r] = 1
            if not self._w.replica["outstanding"][r]:
                self._w.replica["idle_s"][r] = now
        while self.current < count and self._off:
            r = min(self._off)
            self._off.remove(r)
            self._w.replica["drain"][r] = 1  # until its start is announced
            self._life[r] = Life(r, now, now + self._cold, math.inf, math.inf)
            self._starting.append(self._life[r])

    def measured(self) -> Measured:
        """Sums over replicas. A request that nobody takes is outstanding and waits."""
        w = self._w
        lanes = w.lane
        pool = w.pool[0]
        used = 1 - (lanes["free"] + lanes["cached"]) / float(pool["blocks"])
        here = float(w.g["in_system"][0])
        queued = float(lanes["waiting"].sum())
        return Measured(
            outstanding=here, waiting=queued + here - float(w.replica["outstanding"].sum()),
            kv=float(used.sum()) / int(pool["lanes"]),
        )  # fmt: skip

    def close(self) -> list[Life]:
        """Every replica's life, those that are not over included."""
        return [*self.lives, *self._life.values()]


def _push(w: World, at: float, code: int) -> None:
    """An event into the loop's heap, as simulate/heap.py keeps it."""
    times, codes = w.heap_s, w.heap_code
    place = int(w.g["heap"][0])
    w.g["heap"] = place + 1
    while place > 0:
        above = (place - 1) >> 1
        if (times[above], codes[above]) <= (at, code):
            break
        times[place], codes[place] = times[above], codes[above]
        place = above
    times[place], codes[place] = at, code


class Played(NamedTuple):
    """A rule's run: the requests, every replica's life, what the rule wanted, and when."""

    found: Simulated
    lives: list[Life]
    changes: list[Change]
    end_s: float


def play(
    pool: Pool, load: Requests, run: Run, rule: Rule, cold_start_s: float, targets: Targets | None = None,
    progress: Callable[[int, int | None], None] | None = None, asked_per_s: float | None = None,
) -> Played:  # fmt: skip
    """Run the rule over the requests. pool.replicas: as many as the devices hold. asked_per_s: as of `simulate`."""
    most = min(rule.most or pool.replicas, pool.replicas)
    if rule.least > pool.replicas:
        raise InputError(
            f"min {rule.least}", where=f"rule {rule.name[:40]!r}",
            expected=f"at most {pool.replicas} replicas, what the devices hold",
        )  # fmt: skip
    w, advance = begin([pool], load, run)
    advice = Advice(rule, most)
    scheduled = rule.measure in ("schedule", "fixed")
    start = advice.at(0.0, Measured(0, 0, 0), 0) if scheduled and not rule.start else (rule.start or rule.least)
    fleet = _Fleet(w, min(start, most), cold_start_s)
    changes: list[Change] = []
    now, wanted = 0.0, fleet.current
    while True:
        w.g["until"] = now
        while (why := advance(EVENTS_AT_ONCE)) == MORE:
            pass
        if progress is not None:
            progress(int(w.g["finished"][0]), load.number)
        if int(w.g["finished"][0]) == load.number:
            break
        fleet.settle(now)
        measured = fleet.measured()
        count = advice.at(now, measured, fleet.current)
        if count != wanted and len(changes) < MAX_CHANGES:
            changes.append(Change(at_s=now, replicas=count, **measured._asdict()))
        stuck = why == NOTHING_LEFT and count == fleet.current and fleet.idle
        wanted = count
        fleet.want(count, now)
        if stuck:
            break
        now += rule.every_s
        fleet.announce(now)
    w.g["until"] = np.inf
    end = float(w.g["now"][0])
    found = ended(w, [pool], run, targets or Targets(), (), asked_per_s)
    return Played(found, fleet.close(), changes, end)


def serving(played: Played) -> list[tuple[float, float]]:
    """(second, replicas that serve from then on)."""
    steps: dict[float, int] = {}
    for one in played.lives:
        if one.ready_s < min(one.told_s, played.end_s):
            steps[one.ready_s] = steps.get(one.ready_s, 0) + 1
            if one.told_s < played.end_s:
                steps[one.told_s] = steps.get(one.told_s, 0) - 1
    here, found = 0, []
    for at in sorted(steps):
        here += steps[at]
        found.append((at, float(here)))
    return found


def scaled(rule: Rule, played: Played, targets: Targets, devices: int, held: int = 0) -> Scaled:
    """A run in figures. devices: of a replica. held: replicas that the devices hold, 0 = all of the rule's."""
    every, end = played.found.requests, played.end_s
    done = every[every["status"] == DONE]
    inside = within(every, targets)
    ttft = done["first"] - done["arrival"]
    cold = _any(done["arrival"], [(x.ordered_s, min(x.ready_s, x.gone_s, end)) for x in played.lives if not x.first])
    hours = sum(min(x.gone_s, end) - x.ordered_s for x in played.lives) / 3600
    serving = [(x.ready_s, min(x.told_s, end)) for x in played.lives if x.ready_s < min(x.told_s, end)]
    figures, grew = played.found.summary, played.found.summary.stretch
    return Scaled(
        rule=rule, served=len(done), unserved=int((every["status"] == 0).sum()),
        in_target=float(inside.mean()), goodput_per_s=figures.goodput_per_s, ttft=figures.ttft, tpot=figures.tpot,
        cold=spread(ttft[cold]), steady=spread(ttft[~cold]), cold_share=float(cold.mean()) if len(cold) else 0.0,
        replica_hours=hours, device_hours=hours * devices, most=_most(serving),
        mean=_mean(serving, 0.0, end) if end else 0.0,
        starts=sum(not x.first for x in played.lives), stops=sum(x.told_s < math.inf for x in played.lives),
        worst=_worst(every, inside), changes=tuple(played.changes), saturation=figures.saturation,
        stretch=grew, stretch_replicas=_mean(serving, grew.start_s, grew.end_s) if grew else 0.0,
        capped=most if held and (most := max(rule.most, *(n for _, n in rule.schedule), 0)) > held else 0,
    )  # fmt: skip


def within(every: Array, targets: Targets) -> Array:
    """Which requests were served inside the targets."""
    inside: Array = every["status"] == DONE
    if targets.ttft_s is not None:
        inside = inside & (every["first"] - every["arrival"] <= targets.ttft_s)
    if targets.tpot_s is not None:
        gaps = np.maximum(every["output"] - 1, 1)
        inside = inside & ((every["output"] == 1) | ((every["end"] - every["first"]) / gaps <= targets.tpot_s))
    return inside


def _any(at: Array, spans: Sequence[tuple[float, float]]) -> Array:
    """Which instants lie inside any of the spans."""
    hit = np.zeros(len(at), bool)
    for first, last in spans:
        hit |= (at >= first) & (at < last)
    return hit


def _mean(spans: Sequence[tuple[float, float]], first: float, last: float) -> float:
    """Spans at one instant between two others, on average."""
    return sum(max(0.0, min(b, last) - max(a, first)) for a, b in spans) / (last - first)


def _most(spans: Sequence[tuple[float, float]]) -> int:
    """Most spans at one instant; one that ends as another begins does not meet it."""
    edges = sorted([(first, 1) for first, _ in spans] + [(last, -1) for _, last in spans])
    here = most = 0
    for _, step in edges:
        here += step
        most = max(most, here)
    return most


def _worst(every: Array, inside: Array) -> Minute | None:
    """The minute whose requests fared worst: fewest inside the targets, then the slowest first tokens."""
    late = np.where(every["first"] >= 0, every["first"] - every["arrival"], np.inf)
    # Requests are in order of arrival.
    numbers, starts = np.unique((every["arrival"] // MINUTE_S).astype(np.int64), return_index=True)
    found = None
    for number, part in zip(numbers, np.split(np.arange(len(every)), starts[1:]), strict=True):
        waits = np.sort(late[part])
        p99 = min(float(waits[math.ceil(0.99 * len(waits)) - 1]), 1e9)
        one = (float(inside[part].mean()), -p99, float(number) * MINUTE_S, len(part))
        found = one if found is None or one < found else found
    if found is None:
        return None
    return Minute(start_s=found[2], requests=found[3], in_target=found[0], ttft_p99_s=-found[1])


def autoscale(
    plan: Plan, rules: Sequence[Rule], cold_start_s: float, asked: Asked | None = None, run: Run | None = None,
    *, targets: Targets | None = None, progress: Callable[[int, int | None], None] | None = None,
) -> tuple[Autoscaled, tuple[Played, ...]]:  # fmt: skip
    """Rules side by side under one load, beside as many replicas as each may have, all the time.

    Raises InputError for a closed loop, and for rules the plan's devices cannot follow.
    """
    run, targets = run or Run(), targets or plan.workload.targets
    if not 0 <= cold_start_s <= 1e5:
        raise InputError(f"{cold_start_s:g} s", where="--cold-start", expected="0..100000 s")
    if (asked or Asked()).users is not None:
        raise InputError("a closed loop", where="autoscale", expected="arrivals: users that wait hide a slow start")
    load, _, notes, drawn = load_of(plan, asked or Asked(), run.seed)
    whole = plan.cluster.size // plan.layout.size
    pool, said = pool_of(plan, load, replicas=whole)
    plays = [(rule, play(pool, load, run, rule, cold_start_s, targets, progress, drawn)) for rule in rules]
    span = float(load.arrival_s[-1] - load.arrival_s[0])
    return Autoscaled(
        seed=run.seed, requests=load.number, span_s=span, rate_per_s=load.number / span if span else 0.0,
        cold_start_s=cold_start_s, ttft_target_s=targets.ttft_s, tpot_target_s=targets.tpot_s,
        devices_per_replica=plan.layout.size, replicas_held=whole,
        rules=tuple(scaled(rule, played, targets, plan.layout.size, whole) for rule, played in plays),
        notes=tuple(dict.fromkeys((*notes, *said, *certainty(plan)))),
        not_modelled=(*NOT_MODELLED, *plays[0][1].found.summary.not_modelled) if plays else NOT_MODELLED,
    ), tuple(played for _, played in plays)  # fmt: skip


def cold_start(plan: Plan, load_Bps: float, start_up_s: float) -> float:
    """Seconds until a new replica serves: a node reads its ranks' weights at load_Bps, then the engine starts up."""
    if not 1e6 <= load_Bps <= 1e15:
        raise InputError(f"{load_Bps:g} B/s", where="--load-rate", expected="1MB/s or more")
    ranks = min(plan.layout.size, plan.cluster.devices_per_node)
    return ranks * max(r.bytes_of("weights") for r in plan.ledger.ranks) / load_Bps + start_up_s

"""Why this layout: the choices behind a plan, each with its break-even and the measurement that would settle it.

A break-even is found by asking the same question again: both layouts are evaluated with every collective faster or
slower by a factor, until the rule that chose prefers the other one.
"""

from collections.abc import Callable

from msgspec.structs import replace

from linkwise.cluster.types import Cluster
from linkwise.core.layout import Layout
from linkwise.core.units import show_bytes, show_time
from linkwise.plan.choose import MARGIN, devices, has_load, order, resource_rank, total_rate
from linkwise.plan.evaluate import evaluate
from linkwise.plan.fit import Case
from linkwise.plan.operate import decode_step, operation
from linkwise.plan.search import Found
from linkwise.plan.step import step_ops
from linkwise.plan.time import place_of, spans
from linkwise.plan.types import Candidate, Decision, Ledger, Rejection, Shortfall

# How much slower or faster collectives are tried, either way.
_FACTORS = (2.0, 8.0, 40.0)


def decisions(case: Case, chosen: Candidate, found: Found) -> tuple[Decision, ...]:
    """Against the wider group, against the smaller one, against the best rival of the same size."""
    made = [
        _against_wider(case, chosen, found),
        _against_smaller(case, chosen, found),
        _against_peer(case, chosen, found),
    ]
    return tuple(d for d in made if d is not None)


def _against_wider(case: Case, chosen: Candidate, found: Found) -> Decision | None:
    """Replicas of this group against one wider group of the same kind: more tensor ranks, else more attention ranks."""
    for widened in _wider(chosen.layout):
        rival = next((c for c in found.candidates if c.layout == widened), None)
        if rival is not None:
            return _replicate(case, chosen, rival, found)
        stopped = next((r for r in found.rejected if r.layout == widened), None)
        if stopped is not None and stopped.shortfall.resource != "legality":
            return _wider_is_stopped(chosen, stopped)
    bigger = [c for c in found.candidates if c.group_size > chosen.group_size]
    bigger = [c for c in bigger if c.group_size % chosen.group_size == 0]
    if not bigger:
        return None
    return _replicate(case, chosen, order(tuple(bigger), case.workload, case.cluster)[0], found)


def _wider(layout: Layout) -> list[Layout]:
    """The same layout with 2, 4, 8 times the attention or tensor ranks; experts over the whole stage stay so."""
    result = []
    for axis in ("dp_attn", "tp") if layout.dp_attn > 1 else ("tp",):
        for factor in (2, 4, 8):
            changed = {axis: getattr(layout, axis) * factor}
            if layout.ep == layout.stage_size > 1:
                changed["ep"] = layout.ep * factor
            result.append(replace(layout, **changed))
    return result


def _costs(chosen: Candidate, copies: int) -> tuple[str, ...]:
    whole = show_bytes(chosen.weights_bytes_per_rank * chosen.group_size)
    return (f"cost: {copies - 1} more full sharded copy of the weights, {whole} each",) if copies > 1 else ()


def _replicate(case: Case, chosen: Candidate, larger: Candidate, found: Found) -> Decision:
    copies = larger.group_size // chosen.group_size
    batch = max(1, min(chosen.point.batch, larger.point.batch))
    kept = f"{copies} x {chosen.requests}" if copies > 1 else str(chosen.requests)
    return Decision(
        question=f"{copies} x ({chosen.layout}) or one ({larger.layout})?",
        answer=f"{copies} x ({chosen.layout})",
        because=(
            _rates(case, chosen.max_rate_per_s * copies, larger.max_rate_per_s, larger.group_size),
            f"decode step at {batch} requests: {_step(case, chosen, batch)} against {_step(case, larger, batch)}",
            *_costs(chosen, copies),
            f"cost: separate KV: {kept} requests against {larger.requests} in one pool",
            f"a step's collectives stay inside the {chosen.stage_tier} tier, the larger group's span the"
            f" {larger.stage_tier} tier; between replicas only requests are routed",
            f"a failed rank stops {chosen.group_size} devices instead of {larger.group_size}",
        ),
        break_even=_flip(case, chosen, larger, found),
        measure=f"a decode step's collective over {larger.group_size} devices, at its real size, in a CUDA graph",
    )


def _rates(case: Case, mine: float, other: float, devices: int) -> str:
    text = f"rate within targets on the same {devices} devices: {mine:.2f} against {other:.2f} requests/s"
    if has_load(case.workload):
        return f"the smaller group carries the load; {text}"
    return f"{text}: within the {MARGIN:.0%} these times are good for" if mine < other else text


def _wider_is_stopped(chosen: Candidate, stopped: Rejection) -> Decision:
    copies = stopped.layout.size // chosen.group_size
    short = stopped.shortfall
    return Decision(
        question=f"{copies} x ({chosen.layout}) or one ({stopped.layout})?",
        answer=f"{copies} x ({chosen.layout})",
        because=(
            f"({stopped.layout}) is short of {short.resource}: {short.reason}",
            *_costs(chosen, copies),
            f"cost: separate KV for each replica, {chosen.requests} requests",
            f"a step's collectives stay inside the {chosen.stage_tier} tier; between replicas only requests are routed",
            f"a failed rank stops {chosen.group_size} devices instead of {stopped.layout.size}",
        ),
        break_even=_lacks(short),
        measure=_MEASURE.get(short.resource, "the memory the engine logs when started on the wider layout"),
    )


def _lacks(short: Shortfall) -> str:
    """By how much a rejected layout misses."""
    if short.need <= 0 or short.have <= 0:
        return f"flips with {short.change}" if short.change else "never: it is not a matter of degree"
    if short.resource == "rate":
        return f"flips if it sustained {short.need / short.have:.2f} times the rate"
    if short.resource in {"ttft", "tpot"}:
        return f"flips if it took {short.need / short.have:.0%} of that time, or the target were {_above(short.have)}"
    needed, had = show_bytes(short.need), show_bytes(short.have)
    return f"flips if {short.resource} took {had} a rank instead of {needed}"


def _above(seconds: float) -> str:
    """A time in ms, rounded up: as a target it is met."""
    return f"{-(-seconds * 1e5 // 1) / 100:g} ms"


_MEASURE = {
    "tpot": "its decode step time at the workload's batch and context",
    "ttft": "the time of one prompt on it",
    "rate": "the rate it sustains inside the targets",
}


def _against_smaller(case: Case, chosen: Candidate, found: Found) -> Decision | None:
    """The named constraint that pays for the chosen group's size."""
    fitting = [c for c in found.candidates if c.group_size < chosen.group_size]
    if fitting:
        best = order(tuple(fitting), case.workload, case.cluster)[0]
        if has_load(case.workload):
            answer = f"({best.layout}) fits, but takes {devices(best)} devices for the load, not {devices(chosen)}"
            rates = f"{best.max_rate_per_s:.2f} against {chosen.max_rate_per_s:.2f} requests/s a replica"
        else:
            answer = f"({best.layout}) fits, but all {case.cluster.size} devices together sustain less"
            rates = f"{total_rate(best):.2f} against {total_rate(chosen):.2f} requests/s, more than {MARGIN:.0%} apart"
        return Decision(
            question=f"why not {best.replicas} x ({best.layout})?",
            answer=answer,
            because=(rates, f"its weights leave KV for {best.requests} requests, these for {chosen.requests}"),
            break_even=_flip(case, chosen, best, found),
            measure=f"throughput of {best.layout} at {best.point.batch} concurrent requests",
        )
    smaller = [r for r in found.rejected if r.layout.size < chosen.group_size]
    if not smaller:
        return None
    # The one that came nearest to being accepted: stopped last, then the largest.
    nearest = max(smaller, key=lambda r: (resource_rank(r.shortfall.resource), r.layout.size, -r.layout.cp))
    short = nearest.shortfall
    return Decision(
        question=f"why not a group of {nearest.layout.size}?",
        answer=f"{nearest.layout} is short of {short.resource}",
        because=(short.reason,),
        break_even=_lacks(short),
        measure=_MEASURE.get(short.resource, "the memory the engine logs when started on the smaller layout"),
    )


def _against_peer(case: Case, chosen: Candidate, found: Found) -> Decision | None:
    """The rival of the same size with the best rate."""
    rivals = [c for c in found.candidates if c.group_size == chosen.group_size and c.point != chosen.point]
    rivals = [c for c in rivals if c.layout != chosen.layout]
    if not rivals:
        return None
    peer = max(rivals, key=lambda c: c.max_rate_per_s)
    batch = max(1, min(chosen.point.batch, peer.point.batch))
    mine, other = (_step(case, c, batch) for c in (chosen, peer))
    rate = f"rate within targets: {chosen.max_rate_per_s:.2f} against {peer.max_rate_per_s:.2f} requests/s a replica"
    if peer.max_rate_per_s > chosen.max_rate_per_s:
        rate += f", within the {MARGIN:.0%} these times are good for: fewer stages, then the shorter TPOT, decide"
    return Decision(
        question=f"{chosen.layout} or {peer.layout}?",
        answer=str(chosen.layout),
        because=(
            rate,
            f"decode step at {batch} requests: {mine} against {other}",
            f"requests that fit: {chosen.requests} against {peer.requests}",
        ),
        break_even=_flip(case, chosen, peer, found),
        measure="both layouts' decode step time on the real devices at this batch",
    )


def _step(case: Case, one: Candidate, batch: int) -> str:
    seconds, comm, calls = _collectives(case, one, batch)
    each = f", {show_time(comm / calls)} each" if calls else ""
    return f"{show_time(seconds)} ({show_time(comm)} in {calls} collectives{each})"


def _collectives(case: Case, one: Candidate, batch: int) -> tuple[float, float, int]:
    """Seconds of a token's way through a decode step, of its collectives, and how many they are."""
    at = operation(case.model, one.layout, case.engine, case.cluster, case.workload, case.options, batch)
    place = place_of(one.layout, spans(one.layout, case.cluster), case.cluster)
    step = decode_step(case.workload, one.layout, case.options, batch)
    ops = step_ops(case.model, one.layout, case.engine, step, case.options, place=place)
    return float(at.decode.token), float(sum(s.comm for s in at.decode.stages)), sum(op.repeat for op in ops)


def _slower(cluster: Cluster, factor: float) -> Cluster:
    """The cluster with every collective taking `factor` times as long."""
    return replace(cluster, constants=replace(cluster.constants, collective_factor=factor))


def _flip(case: Case, chosen: Candidate, other: Candidate, found: Found) -> str:
    """The nearest factor on collective times at which the rule prefers the other layout."""
    ledgers = {c.layout: memory for c, memory in zip(found.candidates, found.ledgers, strict=True)}

    def best(factor: float) -> Layout | None:
        cluster = _slower(case.cluster, factor)
        pair = [_evaluate(case, cluster, layout, ledgers[layout]) for layout in (chosen.layout, other.layout)]
        able = tuple(c for c in pair if isinstance(c, Candidate))
        return order(able, case.workload, cluster)[0].layout if able else None

    def flipped(factor: float) -> bool:
        return best(factor) != chosen.layout

    ways = [f for f in (_nearest(flipped, up=True), _nearest(flipped, up=False)) if f is not None]
    if not ways:
        return f"no collective time within a factor of {_FACTORS[-1]:g} either way flips it"
    factor = min(ways, key=lambda f: max(f, 1 / f))
    _, comm, calls = _collectives(case, other, other.point.batch)
    base, base_calls = (comm, calls) if calls else _collectives(case, chosen, chosen.point.batch)[1:]
    verb = "flips" if best(factor) == other.layout else "neither carries the load"
    if not base_calls:
        return f"{verb} if every collective takes {factor:.2f} times the figure used"
    now, then = show_time(base / base_calls), show_time(factor * base / base_calls)
    return f"{verb} if every collective takes {factor:.2f} times the figure used ({now} a call becomes {then})"


def _evaluate(case: Case, cluster: Cluster, layout: Layout, memory: Ledger) -> Candidate | Shortfall:
    return evaluate(case.model, cluster, case.engine, case.options, case.workload, layout, memory)


def _nearest(flipped: Callable[[float], bool], *, up: bool) -> float | None:
    """Bisect for the factor nearest to one that flips, upwards or downwards."""
    good = 1.0
    for step in _FACTORS:
        bad = step if up else 1 / step
        if flipped(bad):
            for _ in range(5):
                middle = (good * bad) ** 0.5
                good, bad = (good, middle) if flipped(middle) else (middle, bad)
            return bad
        good = bad
    return None

"""Which feasible layout, and why: the smallest group that meets the targets, then replicas (DESIGN §2.5)."""

from linkwise.cluster.types import Cluster, Tier
from linkwise.core.units import show_bytes, show_time
from linkwise.engine.base import Engine, Options
from linkwise.model.types import Model
from linkwise.plan.operate import decode_step, operation
from linkwise.plan.step import step_ops
from linkwise.plan.time import place_of, spans
from linkwise.plan.types import Candidate, Decision, Op, Rejection
from linkwise.workload.types import Workload

_SLOWER = {t.value: i for i, t in enumerate(Tier)}


# Rates closer than this are equal and a tie goes to the simpler layout: uncalibrated step models miss published decode
# times by 15 % at the median and more between layouts.
MARGIN = 0.20


def order(candidates: tuple[Candidate, ...], workload: Workload) -> list[Candidate]:
    """Candidates in order of preference.

    Tensor groups inside an island come first. With a rate to carry, all candidates carry it: the smallest group wins.
    Without one the devices are to be used well: the smallest group among those within MARGIN of the best rate of the
    whole cluster wins, since fewer ranks must not cost throughput. Among equal sizes: the best rate, and within MARGIN
    of it the fewest pipeline stages and the shortest TPOT.
    """
    best_all = max(c.max_rate_per_s * c.replicas for c in candidates)
    best_of: dict[tuple[bool, int], float] = {}
    for c in candidates:
        key = (_crosses(c), c.group_size)
        best_of[key] = max(best_of.get(key, 0.0), c.max_rate_per_s)

    def preference(c: Candidate) -> tuple[object, ...]:
        wasteful = workload.rate_per_s is None and c.max_rate_per_s * c.replicas < best_all * (1 - MARGIN)
        far = c.max_rate_per_s < best_of[_crosses(c), c.group_size] * (1 - MARGIN)
        shape = (c.layout.pp, c.layout.cp, c.layout.dcp) if not far else ()
        size = c.group_size if not wasteful else -c.max_rate_per_s * c.replicas
        return (_crosses(c), wasteful, size, far, *shape, -round(c.max_rate_per_s, 9), c.point.tpot_s, -c.layout.ep)

    return sorted(candidates, key=preference)


def _crosses(candidate: Candidate) -> bool:
    return _SLOWER[candidate.tier] > _SLOWER[Tier.ISLAND.value]


def choose(candidates: tuple[Candidate, ...], workload: Workload) -> tuple[Candidate, Candidate | None]:
    """The chosen candidate and the runner-up: the best with another group size, else the next best."""
    ordered = order(candidates, workload)
    chosen = ordered[0]
    others = [c for c in ordered[1:] if c.group_size != chosen.group_size]
    others = others or [c for c in ordered[1:] if c.point != chosen.point] or ordered[1:]
    return chosen, (others[0] if others else None)


def decisions(
    model: Model,
    cluster: Cluster,
    engine: Engine,
    options: Options,
    workload: Workload,
    chosen: Candidate,
    candidates: tuple[Candidate, ...],
    rejected: tuple[Rejection, ...],
) -> tuple[Decision, ...]:
    """The choices behind a plan, each with its break-even and what would settle it."""
    ordered = order(candidates, workload)
    made: list[Decision] = []
    bigger = [c for c in ordered if c.group_size > chosen.group_size and c.group_size % chosen.group_size == 0]
    larger = next((c for c in bigger if c.layout.pp == chosen.layout.pp), bigger[0] if bigger else None)
    if larger is not None:
        made.append(_replicate(model, cluster, engine, options, workload, chosen, larger))
    smaller = _why_not_smaller(chosen, candidates, rejected)
    if smaller is not None:
        made.append(smaller)
    same_size = [c for c in ordered if c.group_size == chosen.group_size and c.layout != chosen.layout]
    peer = next((c for c in same_size if c.point.tpot_s != chosen.point.tpot_s), None)
    if peer is not None:
        made.append(_same_size(model, cluster, engine, options, workload, chosen, peer))
    return tuple(made)


def _comm_and_rest(
    model: Model, cluster: Cluster, engine: Engine, options: Options, workload: Workload, one: Candidate, batch: int
) -> tuple[float, float, int]:
    """(TPOT without collectives, collectives in TPOT, collective calls a token) of a candidate at a batch size."""
    at = operation(model, one.layout, engine, cluster, workload, options, batch)
    comm = float(sum(s.comm for s in at.decode.stages))
    calls = sum(op.repeat for op in _decode_ops(model, cluster, engine, options, workload, one, batch))
    return float(at.round) - comm, comm, calls


def _decode_ops(
    model: Model, cluster: Cluster, engine: Engine, options: Options, workload: Workload, one: Candidate, batch: int
) -> list[Op]:
    place = place_of(one.layout, spans(one.layout, cluster))
    return step_ops(model, one.layout, engine, decode_step(workload, one.layout, options, batch), options, place=place)


def _replicate(
    model: Model, cluster: Cluster, engine: Engine, options: Options, workload: Workload, chosen: Candidate,
    larger: Candidate,
) -> Decision:  # fmt: skip
    """Replicas of the smaller group against one larger group on the same devices."""
    copies = larger.group_size // chosen.group_size
    small_total = chosen.max_rate_per_s * copies
    batch = max(1, larger.point.batch // copies)
    rest_s, comm_s, _ = _comm_and_rest(model, cluster, engine, options, workload, chosen, batch)
    rest_l, comm_l, calls = _comm_and_rest(model, cluster, engine, options, workload, larger, batch * copies)
    gained, paid = rest_s - rest_l, comm_l - comm_s
    flip = "the larger group's step is not shorter in anything but collectives: no latency flips it"
    if calls and gained > 0:
        flip = (
            f"its decode step computes and reads {show_time(gained)} less, and pays {show_time(paid)} more in {calls}"
            f" collectives of {show_time(comm_l / calls)}: its step is the shorter one while a collective takes less"
            f" than {show_time((gained + comm_s) / calls)}"
        )
    second = chosen.weights_bytes_per_rank * chosen.group_size
    kv = f"{copies} x {chosen.requests}" if copies > 1 else str(chosen.requests)
    return Decision(
        question=f"{copies} x ({chosen.layout}) or one ({larger.layout})?",
        answer=f"{copies} x ({chosen.layout})" if copies > 1 else str(chosen.layout),
        because=(
            f"rate within targets on the same {larger.group_size} devices: {small_total:.2f} against"
            f" {larger.max_rate_per_s:.2f} requests/s",
            f"cost: {copies - 1} more full sharded copy of the weights, {show_bytes(second)} each",
            f"cost: separate KV: {kv} requests against {larger.requests} in one pool",
            f"a step's collectives stay inside the {chosen.stage_tier} tier, the larger group's cross the"
            f" {larger.stage_tier} tier; between replicas only requests are routed",
            f"a failed rank stops {chosen.group_size} devices instead of {larger.group_size}",
        ),
        break_even=flip,
        measure=f"one decode step's collective over the {larger.group_size} devices, at its real size, in a CUDA graph",
    )  # fmt: skip


def _why_not_smaller(
    chosen: Candidate, candidates: tuple[Candidate, ...], rejected: tuple[Rejection, ...]
) -> Decision | None:
    """The named constraint that pays for the chosen group's size."""
    fitting = [c for c in candidates if c.group_size < chosen.group_size]
    if fitting:
        best = max(fitting, key=lambda c: c.max_rate_per_s * c.replicas)
        rates = best.max_rate_per_s * best.replicas, chosen.max_rate_per_s * chosen.replicas
        return Decision(
            question=f"why not {best.replicas} x ({best.layout})?",
            answer="it fits, but what its weights leave for KV holds too few requests",
            because=(
                f"{best.requests} requests fit beside the weights against {chosen.requests}",
                f"the devices together sustain {rates[0]:.2f} against {rates[1]:.2f} requests/s",
            ),
            break_even=f"flips if a step of {best.layout} at its batch of {best.point.batch} were"
            f" {rates[1] / rates[0]:.1f} times faster, or KV were kept in fewer bytes",
            measure=f"throughput of {best.layout} at {best.requests} concurrent requests",
        )
    smaller = [r for r in rejected if r.layout.size < chosen.group_size]
    if not smaller:
        return None
    # The one that came nearest to being accepted: stopped last, then the largest.
    nearest = max(smaller, key=lambda r: (resource_rank(r.shortfall.resource), r.layout.size, -r.layout.cp))
    short = nearest.shortfall
    return Decision(
        question=f"why not a group of {nearest.layout.size}?",
        answer=f"{nearest.layout} is short of {short.resource}",
        because=(short.reason,),
        break_even=f"flips with {short.change}" if short.change else "",
        measure=_MEASURE.get(short.resource, "the memory the engine logs when started on the smaller layout"),
    )


# The order in which a layout is judged: the later it was stopped, the nearer it came. Rate comes last, not before TTFT
# and TPOT as DESIGN §2.4 lists them, since only the rate sustained inside those targets counts.
RESOURCES = (
    "legality", "weights", "workspace", "device memory", "kv", "kv concurrency", "ttft", "tpot", "link", "rate",
)  # fmt: skip


def resource_rank(resource: str) -> int:
    """Place of a resource in the order in which layouts are rejected."""
    return RESOURCES.index(resource)


_MEASURE = {
    "tpot": "the decode step time of the smaller layout at the workload's batch and context",
    "ttft": "the time of one prompt on the smaller layout",
    "rate": "the rate the smaller layout sustains inside the targets",
}


def _same_size(
    model: Model, cluster: Cluster, engine: Engine, options: Options, workload: Workload, chosen: Candidate,
    peer: Candidate,
) -> Decision:  # fmt: skip
    batch = max(1, min(chosen.point.batch, peer.point.batch))
    rest_a, comm_a, calls_a = _comm_and_rest(model, cluster, engine, options, workload, chosen, batch)
    rest_b, comm_b, calls_b = _comm_and_rest(model, cluster, engine, options, workload, peer, batch)
    because = [
        f"rate within targets: {chosen.max_rate_per_s:.2f} against {peer.max_rate_per_s:.2f} requests/s a replica",
        f"decode step at batch {batch}: {show_time(rest_a + comm_a)} ({show_time(comm_a)} in {calls_a} collectives)"
        f" against {show_time(rest_b + comm_b)} ({show_time(comm_b)} in {calls_b})",
        f"requests that fit: {chosen.requests} against {peer.requests}",
    ]
    if comm_a != comm_b and (rest_b - rest_a) / (comm_a - comm_b) > 0:
        factor = (rest_b - rest_a) / (comm_a - comm_b)
        flip = f"step times are equal when every collective takes {factor:.2f} times the figure used"
    else:
        flip = "no collective time alone flips the step time; the rate decides"
    return Decision(
        question=f"{chosen.layout} or {peer.layout}?", answer=str(chosen.layout), because=tuple(because),
        break_even=flip, measure="both layouts' decode step time on the real devices at this batch",
    )  # fmt: skip

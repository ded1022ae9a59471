"""From model, cluster, engine and workload to a Plan, or to the reason why there is none."""

from collections.abc import Callable

from linkwise._version import __version__
from linkwise.cluster.types import Cluster
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.core.quantity import value_of
from linkwise.engine import registry
from linkwise.engine.base import Engine, Options
from linkwise.model.types import Model
from linkwise.plan.choose import choose, resource_rank, rule
from linkwise.plan.evaluate import Points, evaluate
from linkwise.plan.figures import batches, figures, ops_of, step_times, textbook_figures
from linkwise.plan.fit import Case
from linkwise.plan.interval import times_label, trust
from linkwise.plan.memory import within_length
from linkwise.plan.nearest import changes
from linkwise.plan.operate import at_work
from linkwise.plan.ordering import FEW, in_best_order, irregular, ordered, subject_of, visible
from linkwise.plan.placement import naive_grid
from linkwise.plan.reasons import decisions
from linkwise.plan.search import Found, Other, search
from linkwise.plan.step import freeze
from linkwise.plan.types import Candidate, NoPlan, Plan, Rejection
from linkwise.workload.types import Workload

# Of the rate a replica sustains. Beyond it the closed form misses the simulator by 10 to 50 % in TPOT (docs/plan.md).
TIGHT = 0.85


def plan(
    model: Model,
    cluster: Cluster,
    engine: Engine,
    options: Options,
    workload: Workload,
    fixed: dict[str, int] | None = None,
    replicas: int | None = None,
    seen: Callable[[Layout, Points], None] | None = None,
    other: Other | None = None,
    searched: Callable[[], None] | None = None,
) -> Plan | NoPlan:
    """The smallest group that meets the targets, replicated for the rate; NoPlan when nothing is feasible.

    fixed: degrees the user gave. replicas: how many replicas to run (None = what rate or cluster ask for).
    seen: told of every layout that fits, at its batch sizes. other: a process that takes half of the search. searched:
    called once all of them are told.
    """
    workload = within_length(model, options, workload)
    if replicas is not None and not 1 <= replicas <= cluster.size:
        raise InputError(
            f"{replicas} replicas", where="replicas", expected=f"1..{cluster.size} on {cluster.size} devices"
        )
    case = Case(model, cluster, engine, options, workload)
    found = search(model, cluster, engine, options, workload, fixed, replicas, seen=seen, other=other)
    if searched is not None:
        searched()
    if not found.candidates and irregular(cluster) and found.considered <= FEW:
        # Another order of ranks may meet what ranks on devices in order do not.
        found = search(model, cluster, engine, options, workload, fixed, replicas, in_best_order(case))
    if not found.candidates:
        return _none(case, fixed or {}, replicas, found)
    best, second = choose(found.candidates, workload, cluster)
    memory = found.ledgers[found.candidates.index(best)]
    chosen = _exactly(case, best, found, replicas)
    runner_up = _exactly(case, second, found, replicas) if second is not None else None
    why = decisions(case, chosen, found)
    point = chosen.point
    about = subject_of(case, chosen.layout, point.batch, chosen.replicas, point.at_hand)
    about, order = ordered(about)
    if about.grid:
        placed = evaluate(*case, chosen.layout, memory, replicas or chosen.replicas, about.places, exact=True)
        chosen = placed if isinstance(placed, Candidate) else chosen
        about = about._replace(
            batch=chosen.point.batch, at_hand=chosen.point.at_hand, replicas=chosen.replicas,
            grid=about.grid[: chosen.replicas],
        )  # fmt: skip
    count, nodes = chosen.replicas, -(-chosen.layout.size // cluster.devices_per_node)
    together, apart = engine.together(count, chosen.layout, cluster.devices_per_node)
    ops = {name: freeze(ops_of(about, batch)) for name, batch in batches(about).items()}
    decode_time, prefill_time = step_times(about)
    return Plan(
        version=__version__,
        facts={"engine": f"{engine.name} {engine.version}", "constants": cluster.constants.label},
        calibration=times_label(engine, cluster),
        step_calibration=engine.calibration,
        trust=trust(chosen.point.tpot_s, chosen.point.ttft_s, about, chosen.point.batch),
        model=model,
        cluster=cluster,
        workload=workload,
        engine=engine.name,
        engine_version=engine.version,
        convention=engine.convention.name,
        options=options,
        resolved=engine.resolve(options, model, cluster.accelerator, chosen.layout),
        layout=chosen.layout,
        replicas=count,
        rank_grid=about.grid or naive_grid(chosen.layout, count),
        ledger=memory,
        prefill=ops["prefill"],
        decode=ops["decode"],
        mixed=ops["mixed"],
        decode_time=decode_time,
        prefill_time=prefill_time,
        chosen=chosen,
        runner_up=runner_up,
        rejected=found.rejected,
        considered=found.considered,
        decisions=why,
        rule=rule(workload, cluster) if found.considered > 1 else "every degree was given",
        figures={path: _number(value) for path, value in figures(about).items()},
        command=(
            *visible(about, together),
            *engine.command(model.served_as or model.name, chosen.layout, options, replicas=together, nodes=nodes),
        ),
        textbook=textbook_figures(about, registry.get("textbook")),
        notes=(
            *_notes(model, cluster, engine, memory.warnings + order + _uneven(cluster, count)),
            *apart,
            *engine.node_notes(chosen.layout, nodes),
            *_closed(workload),
            *_tight(chosen, workload),
            *_unused(chosen, cluster, counted=replicas is not None),
            *_idle(chosen, workload),
        ),
    )


def _tight(chosen: Candidate, workload: Workload) -> tuple[str, ...]:
    """Where the rate asked leaves little room, the closed form's times are the least certain."""
    if workload.rate_per_s is None or chosen.point.rate_per_s <= TIGHT * chosen.max_rate_per_s:
        return ()
    share = chosen.point.rate_per_s / chosen.max_rate_per_s
    return (
        f"the rate is {share:.0%} of what a replica sustains: there a few per cent of rate are tens of per cent of"
        " latency; linkwise simulate PLAN, or one more replica",
    )  # fmt: skip


def _unused(chosen: Candidate, cluster: Cluster, *, counted: bool) -> tuple[str, ...]:
    """Devices that no replica has, and why. counted: the number of replicas was given."""
    left, size = cluster.size - chosen.replicas * chosen.group_size, chosen.group_size
    if not left:
        return ()
    more = f"another replica of {size} would fit: " + ("so many were asked for" if counted else "the load needs none")
    why = more if left >= size else f"fewer than a group of {size}"
    return (f"{left} of {cluster.size} devices are not used: {why}",)


def _idle(chosen: Candidate, workload: Workload) -> tuple[str, ...]:
    """Replicas without a user, or some with fewer than others: what a replica then does is a mean."""
    users, count, batch = workload.concurrency, chosen.replicas, chosen.point.batch
    if users is None or workload.rate_per_s is not None or at_work(workload, batch, count) is None:
        return ()
    if users < count:
        return (
            f"{users} in flight keep {users} of {count} replicas at work, {count - users} idle: rates are the mean",
        )
    return (
        f"{users} in flight are not alike on {count} replicas: times are those of one with {batch}, rates the mean",
    )


def _exactly(case: Case, one: Candidate, found: Found, replicas: int | None) -> Candidate:
    """The candidate at the batch that carries the rate; twelve batch sizes are enough to choose by."""
    memory = found.ledgers[found.candidates.index(one)]
    # What a replica holds depends on how many share the load: where fewer than the search took, one more may be needed.
    for count in (replicas,) if replicas else (one.replicas, one.replicas + 1):
        closer = evaluate(*case, one.layout, memory, count, exact=True)
        if isinstance(closer, Candidate):
            return closer
    return one


def _uneven(cluster: Cluster, replicas: int) -> tuple[str, ...]:
    if replicas == 1 or not irregular(cluster):
        return ()
    return ("devices are not all alike: rates and times are those of the replica that lies worst, taken for all",)


def _number(value: object) -> float:
    number = value_of(value)
    return number if isinstance(number, int) else float(number)


def _closed(workload: Workload) -> tuple[str, ...]:
    """What a closed loop's TTFT is of."""
    if workload.rate_per_s is not None or (workload.concurrency or 1) == 1:
        return ()
    users = f"{workload.concurrency:,} users"
    return (
        f"TTFT is that of {users} once they are spread over time; a benchmark that starts all at once, with a few"
        " requests each, reports more: linkwise simulate on this plan's file says how much",
    )


def _notes(model: Model, cluster: Cluster, engine: Engine, warnings: tuple[str, ...]) -> tuple[str, ...]:
    unsupported = () if engine.convention.supported else (
        f"the step convention of {engine.name} has not been compared with the real engine yet",
    )  # fmt: skip
    label = times_label(engine, cluster)
    if engine.calibration is None:
        label += " constants: roofline and latency from the hardware catalogue"
    times = (f"times rest on {label}",)
    return model.notes + cluster.notes + warnings + unsupported + times


def _none(case: Case, fixed: dict[str, int], replicas: int | None, found: Found) -> NoPlan:
    """Which resource is short, in the layout that came nearest, and what would help."""
    model, cluster, engine, options, workload = case
    # Another number of replicas, where that is all that is wrong with the one asked for.
    free = search(*case, fixed).candidates if replicas is not None else ()
    counted = choose(free, workload, cluster)[0] if free else None
    nearest = max(found.rejected, key=_nearness)
    if counted is not None:
        nearest = next(r for r in found.rejected if r.layout == counted.layout)
    return NoPlan(
        model=model,
        cluster=cluster,
        workload=workload,
        engine=engine.name,
        engine_version=engine.version,
        options=options,
        considered=found.considered,
        nearest=nearest,
        rejected=found.rejected,
        changes=changes(case, fixed, replicas, nearest, counted),
        notes=_notes(model, cluster, engine, ()),
    )


def _nearness(rejection: Rejection) -> tuple[int, float]:
    short = rejection.shortfall
    over = short.need / short.have if short.need > short.have > 0 else short.have / short.need if short.need > 0 else 0
    return resource_rank(short.resource), -over

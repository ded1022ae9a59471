"""`linkwise simulate`, `capacity` and `autoscale` as Python calls, with the words of the commands.

Times and rates are text with a unit ("40ms", "8/s"), or numbers in seconds and per second.
"""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from linkwise import doors
from linkwise.core.errors import InputError
from linkwise.core.files import FilePath
from linkwise.core.units import parse_rate, parse_time
from linkwise.plan.types import Plan

if TYPE_CHECKING:
    from linkwise.simulate.autoscale import Autoscaled, Played
    from linkwise.simulate.capacity import Capacity
    from linkwise.simulate.scaling import Rule
    from linkwise.simulate.types import Simulated, Summary
    from linkwise.workload.types import Targets

Progress = Callable[[int, int | None], None]
Text = str | float | None
MOST_USERS = 2_000_000  # each sends ten requests where their number is not given


def simulate(plan: "FilePath | Plan", **words: object) -> "Summary":
    """What happens over time, under which load? The figures of `played`, which says what may be asked."""
    return played(plan, **words).summary  # type: ignore[arg-type]


def played(
    plan: "FilePath | Plan", *, workload: "FilePath | None" = None, rate: Text = None,
    concurrency: int | None = None, isl: int | None = None, osl: int | None = None, requests: int | None = None,
    arrivals: str | None = None, lengths: str | None = None, long: str | None = None, think: Text = None,
    seed: int = 0, ttft: Text = None, tpot: Text = None, replicas: int | None = None,
    prefill: "FilePath | Plan | None" = None, router: str = "least", max_waiting: int = 0,
    fault: Sequence[str] = (), recovery: str | None = None, period: Text = None, swing: float | None = None,
    steps: int = 0, progress: Progress | None = None,
) -> "Simulated":  # fmt: skip
    """A simulation with its requests (one record each) and its first `steps` steps: simulate/write.py writes them.

    workload: a trace; without one the plan's lengths, at `rate` or in a closed loop of `concurrency` users, or what the
    plan was made for. prefill: the plan of a prefill pool; `plan` is then the decode pool. fault: as --fault has it.
    period, swing: of arrivals that come and go; without `requests` a whole period is run.
    Raises InputError for words that do not go together, and for traces and plans that cannot be.
    """
    from linkwise.simulate.ask import ask, faults
    from linkwise.simulate.load import Asked, together
    from linkwise.simulate.rules import Run

    shaped = plan_of(plan, isl, osl)
    wrong = faults(fault)
    if not any(one.kind == "down" for one in wrong):
        together("simulate", ("--recovery", recovery, "without --fault down:...: nothing dies"))
    run = Run(
        seed=seed, router=router, recovery=recovery or "elsewhere", max_waiting=max_waiting, faults=wrong,
        think_s=_seconds(think, "--think") or 0.0, steps_kept=steps,
    )  # fmt: skip
    asked = Asked(
        trace=_trace(workload), number=positive(requests, "--requests"),
        users=positive(concurrency, "--concurrency", MOST_USERS), rate_per_s=_rate(rate), arrivals=arrivals or None,
        period_s=_seconds(period, "--period"), swing=swing, spread=lengths or None, long=long or None, isl=isl, osl=osl,
    )  # fmt: skip
    return ask(
        shaped, asked, prefill=None if prefill is None else plan_of(prefill), run=run,
        replicas=positive(replicas, "--replicas"), targets=targets_of(shaped, ttft, tpot), progress=progress,
    )  # fmt: skip


def capacity(
    plan: "FilePath | Plan", *, rate: Text = None, workload: "FilePath | None" = None, growth: str = "x1",
    months: float | None = None, peak_factor: float = 1.0, failures: int = 1, failure_of: str | None = None,
    percentile: float = 99.0, ttft: Text = None, tpot: Text = None, isl: int | None = None, osl: int | None = None,
    requests: int | None = None, arrivals: str | None = None, lengths: str | None = None, long: str | None = None,
    period: Text = None, swing: float | None = None, prefill: "FilePath | Plan | None" = None, router: str = "least",
    seed: int = 0, progress: Progress | None = None,
) -> "Capacity":  # fmt: skip
    """How many of the plan's replicas hold the load when it has grown and some are gone? percentile: in percent.

    prefill: the plan of a prefill pool; `plan` is then the decode pool, and both are counted.
    Raises InputError for words that say no load, and for traces and plans that cannot be.
    """
    from linkwise.simulate.capacity import Wanted
    from linkwise.simulate.capacity import capacity as decide
    from linkwise.simulate.capacity import growth as grown
    from linkwise.simulate.load import Asked, together
    from linkwise.simulate.rules import Run

    shaped = plan_of(plan, isl, osl)
    if not failures:
        together("capacity", ("--failure-of", failure_of, "with --failures 0: nothing fails"))
    wanted = Wanted(
        rate_per_s=_rate(rate), growth=grown(growth, months), peak=peak_factor, failures=failures,
        of=failure_of or "node",
        share=percentile / 100, targets=targets_of(shaped, ttft, tpot),
    )  # fmt: skip
    number = positive(requests, "--requests")
    asked = Asked(
        trace=_trace(workload), number=number, arrivals=arrivals or None, spread=lengths or None, long=long or None,
        isl=isl, osl=osl, period_s=_seconds(period, "--period"), swing=swing,
    )  # fmt: skip
    return decide(
        shaped, wanted, asked, Run(seed=seed, router=router), prefill=None if prefill is None else plan_of(prefill),
        progress=progress,
    )  # fmt: skip


def autoscale(plan: "FilePath | Plan", rules: "Sequence[Rule] | FilePath", **words: object) -> "Autoscaled":
    """What do scaling rules cost and miss? The figures of `scaled`, which says what may be asked."""
    return scaled(plan, rules, **words)[0]  # type: ignore[arg-type]


def scaled(
    plan: "FilePath | Plan", rules: "Sequence[Rule] | FilePath", *, cold_start: Text,
    workload: "FilePath | None" = None, rate: Text = None, isl: int | None = None, osl: int | None = None,
    requests: int | None = None, arrivals: str | None = None, period: Text = None, swing: float | None = None,
    lengths: str | None = None, long: str | None = None, ttft: Text = None, tpot: Text = None, seed: int = 0,
    router: str = "least", steps: int = 0, progress: Progress | None = None,
) -> "tuple[Autoscaled, tuple[Played, ...]]":  # fmt: skip
    """Rules (values, or their YAML file) side by side under one load, and the run of each.

    cold_start: from the order of a replica to its first request. After the rules come their fewest and their most
    replicas all the time. Raises InputError as the command does.
    """
    from msgspec.structs import replace

    from linkwise.simulate import scaling
    from linkwise.simulate.autoscale import autoscale as run_rules
    from linkwise.simulate.load import Asked
    from linkwise.simulate.rules import Run

    shaped = plan_of(plan, isl, osl)
    known = scaling.load(doors.path(rules, "rules")) if isinstance(rules, str | os.PathLike) else tuple(rules)
    if not known:
        raise InputError(
            "no rule", where="autoscale",
            expected="--rule FILE, --target-outstanding, --target-kv, --target-waiting or --schedule",
        )  # fmt: skip
    seconds = scaling.seconds(cold_start, "--cold-start") if isinstance(cold_start, str) else cold_start
    if seconds is None:
        raise InputError("no cold start", where="autoscale", expected="--cold-start 90s, or --load-rate 4GB/s")
    # A load that comes and goes, unless something else is asked for.
    kind = arrivals or ("diurnal" if workload is None else None)
    asked: Asked = Asked(
        trace=_trace(workload), number=positive(requests, "--requests"), rate_per_s=_rate(rate), arrivals=kind,
        spread=lengths or None, long=long or None, swing=swing, isl=isl, osl=osl,
        period_s=_seconds(period, "--period"),
    )  # fmt: skip
    own, known = len(known), known + scaling.references(known, shaped.cluster.size // shaped.layout.size)
    found, runs = run_rules(
        shaped, known, seconds, asked, Run(seed=seed, router=router, steps_kept=steps),
        targets=targets_of(shaped, ttft, tpot), progress=progress,
    )  # fmt: skip
    return replace(found, asked=own), runs


def plan_of(source: "FilePath | Plan", isl: int | None = None, osl: int | None = None) -> Plan:
    """The plan of a file or as it is, with other lengths where given. Raises InputError for one that contradicts
    itself: its steps are timed again from its inputs."""
    from msgspec.structs import replace

    from linkwise.answers import called
    from linkwise.answers import plan_of as read
    from linkwise.plan.agree import agree

    found = read(source)
    agree(found, called(source, "plan"))
    changes = {"isl_tokens": isl, "osl_tokens": osl}
    given = {name: value for name, value in changes.items() if value is not None}
    return replace(found, workload=replace(found.workload, **given)) if given else found


def targets_of(plan: Plan, ttft: Text, tpot: Text) -> "Targets":
    """Targets as given; the plan's where nothing is."""
    from linkwise.workload.types import Targets

    own, first, each = plan.workload.targets, _seconds(ttft, "--ttft"), _seconds(tpot, "--tpot")
    return Targets(
        ttft_s=own.ttft_s if first is None else first,
        tpot_s=own.tpot_s if each is None else each,
    )


def positive(value: int | None, where: str, most: int = 20_000_000) -> int | None:
    """A count, if one is given."""
    if value is not None and not 1 <= value <= most:
        raise InputError(f"{value}", where=where, expected=f"1..{most}")
    return value


def _trace(workload: "FilePath | None") -> str | None:
    return None if workload is None else doors.path(workload, "workload")


def _seconds(value: Text, where: str) -> float | None:
    return parse_time(value, where=where) if isinstance(value, str) and value else _number(value, where)


def _rate(value: Text) -> float | None:
    return parse_rate(value, where="--rate") if isinstance(value, str) and value else _number(value, "--rate")


def _number(value: Text, where: str) -> float | None:
    if value is None or isinstance(value, str):  # nothing typed
        return None
    if not 0 < value < 1e12:  # NaN is refused as well
        raise InputError(f"{value:g}", where=where, expected="above 0")
    return float(value)

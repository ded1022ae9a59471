"""What a user asks: a plan, a workload in words or a trace, what goes wrong, in one call."""

import re
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from linkwise.core.errors import InputError
from linkwise.core.units import parse_time
from linkwise.plan.engine_of import engine_of
from linkwise.plan.explain import subject
from linkwise.plan.interval import times_label, trust
from linkwise.plan.trust import Trust
from linkwise.plan.types import Plan
from linkwise.simulate.load import Asked, load_of
from linkwise.simulate.of_plan import pool_of, transfer_of
from linkwise.simulate.rules import Fault, Run, Transfer
from linkwise.simulate.run import simulate
from linkwise.simulate.types import Simulated, Summary
from linkwise.workload.requests import Requests
from linkwise.workload.types import Targets


def ask(
    plan: Plan,
    asked: Asked | None = None,
    *,
    prefill: Plan | None = None,
    replicas: int | None = None,
    run: Run | None = None,
    transfer: Transfer | None = None,
    targets: Targets | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Simulated:
    """Simulate a plan's deployment under a load. Without `asked`: the one the plan was made for.

    prefill: the plan of a prefill pool; `plan` is then the decode pool. targets: in place of the plan's.
    """
    run = run or Run()
    load, users, notes, asked_per_s = load_of(plan, asked or Asked(), run.seed, prefill)
    if run.think_s and not users:
        raise InputError(
            "--think without --concurrency",
            where="simulate",
            expected="a closed loop, whose users wait before they ask",
        )
    run = replace(run, users=users)
    if prefill is None:
        pool, said = pool_of(plan, load, replicas=replicas)
        pools, notes = [pool], notes + said
        if transfer is not None:
            raise InputError("one pool hands nothing over", where="transfer", expected="a prefill plan as well")
    else:
        first, said_first = pool_of(prefill, load, role="prefill")
        second, said_second = pool_of(plan, load, role="decode", replicas=replicas)
        pools, notes = [first, second], notes + said_first + said_second
        if transfer is None:
            transfer, said = transfer_of(prefill, plan, load, replicas=(first.replicas, second.replicas))
            notes += said
        run = replace(run, transfer=transfer)
    notes += _devices([plan] if prefill is None else [prefill, plan], [pool.replicas for pool in pools])
    rests = dict.fromkeys(times_label(engine_of(one), one.cluster) for one in (prefill or plan, plan))
    notes += (f"step times rest on {' and '.join(rests)}",)
    found = simulate(
        pools, load, run, targets=targets or plan.workload.targets, notes=tuple(dict.fromkeys(notes)),
        asked_per_s=asked_per_s, progress=progress,
    )  # fmt: skip
    at_once = found.summary.in_system_s / max(found.summary.span_s, 1e-9) / pools[0].replicas
    return found._replace(summary=replace(found.summary, trust=_trust(found.summary, plan, prefill, load, at_once)))


def _devices(plans: Sequence[Plan], replicas: Sequence[int]) -> tuple[str, ...]:
    """Where the pools take more devices than the plans' clusters have: that this is a what-if, in words."""
    notes = []
    takes = [count * plan.layout.size for plan, count in zip(plans, replicas, strict=True)]
    for plan, count, devices in zip(plans, replicas, takes, strict=True):
        if devices > plan.cluster.size:
            notes.append(
                f"{count:,} replicas of {plan.layout} take {devices:,} devices, {plan.cluster.name} has"
                f" {plan.cluster.size:,}: a what-if"
            )
    size = plans[0].cluster.size
    if len(plans) > 1 and plans[0].cluster == plans[1].cluster and sum(takes) > size and not notes:
        notes.append(
            f"the pools take {takes[0]:,} + {takes[1]:,} devices, {plans[0].cluster.name} has {size:,}: they are"
            " simulated on two of it"
        )
    return tuple(notes)


def _trust(found: Summary, plan: Plan, prefill: Plan | None, load: Requests, at_once: float) -> Trust | None:
    """How far the means can be trusted: TTFT's by the plan that computes prompts, TPOT's by the one that draws."""
    if found.tpot is None or found.ttft is None:
        return None
    isl, osl = max(1, round(float(load.input_tokens.mean()))), max(1, round(float(load.output_tokens.mean())))
    of = []
    for one in (prefill or plan, plan):
        about = subject(one)
        about = about._replace(
            workload=replace(about.workload, isl_tokens=isl, osl_tokens=osl), batch=max(1, round(at_once)),
            at_hand=max(1.0, at_once),
        )  # fmt: skip
        of.append(trust(found.tpot.mean, found.ttft.mean, about, at_once))
    why = tuple(dict.fromkeys(of[0].extrapolated + of[1].extrapolated))
    if prefill is not None:
        why = ("pools of their own: fitted on groups that serve both phases", *why)
    return Trust(ttft=of[0].ttft, tpot=of[1].tpot, extrapolated=why)


_FAULT = re.compile(r"(slow|link|down):([0-9]{1,6})@([0-9.]+[a-z]*)-([0-9.]+[a-z]*)(?:x([0-9.]{1,12}))?", re.ASCII)


def faults(texts: Sequence[str]) -> tuple[Fault, ...]:
    """Faults as typed: slow:REPLICA@10s-20sx1.5, link:0@1m-2mx4, down:3@30s-90s."""
    found = []
    for text in texts:
        match = _FAULT.fullmatch(text.strip())
        if not match or (match[1] == "down") != (match[5] is None):
            raise InputError(
                f"{text[:60]!r}", where="--fault",
                expected="slow:REPLICA@10s-20sx1.5 (times as long), link:0@10s-20sx4 or down:0@10s-20s",
            )  # fmt: skip
        try:
            factor = float(match[5] or 1)
        except ValueError:
            raise InputError(f"{match[5][:20]!r}", where="--fault", expected="a number after x, such as 1.5") from None
        start = 0.0 if not match[3].strip("0.s") else parse_time(match[3], where="--fault")
        end = parse_time(match[4], where="--fault")
        found.append(Fault(kind=match[1], replica=int(match[2]), start_s=start, end_s=end, factor=factor))
    return tuple(found)

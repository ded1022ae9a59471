"""What a user asks: a plan, a workload in words or a trace, what goes wrong, in one call."""

import re
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from linkwise.core.errors import InputError
from linkwise.core.units import parse_time
from linkwise.plan.types import Plan
from linkwise.simulate.load import Asked, load_of
from linkwise.simulate.of_plan import pool_of, transfer_of
from linkwise.simulate.rules import Fault, Run, Transfer
from linkwise.simulate.run import simulate
from linkwise.simulate.types import Simulated
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
    load, users, notes = load_of(plan, asked or Asked(), run.seed)
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
            transfer, said = transfer_of(prefill, plan, load)
            notes += said
        run = replace(run, transfer=transfer)
    constants = plan.calibration
    notes += (f"step times rest on {constants} constants",)
    return simulate(
        pools, load, run, targets=targets or plan.workload.targets, notes=tuple(dict.fromkeys(notes)), progress=progress
    )


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

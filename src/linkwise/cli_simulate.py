"""The command `linkwise simulate`: its words and options. cli.py registers it and owns what all commands share."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from linkwise.core.errors import InputError
from linkwise.core.units import parse_rate, parse_time

_LOAD, _OUT, _POOLS = "Workload", "Output", "Deployment"


def register(
    command: Callable[[Callable[..., int]], Any],
    show: Callable[..., None],
    show_json: Callable[[Any], None],
    last_plan: Callable[[], Any],
) -> None:
    """Add the command. show, show_json: how the command line prints screens and values; last_plan: the one kept."""

    def simulate(
        source: Annotated[str, typer.Argument(help="plan file, as plan -o writes it; or plan: (the last plan)")],
        workload: Annotated[
            Path | None,
            typer.Option(help="trace: Azure's CSV, Mooncake's JSON lines, or our columns", rich_help_panel=_LOAD),
        ] = None,
        rate: Annotated[str, typer.Option(help="arrivals, such as 8/s", metavar="RATE", rich_help_panel=_LOAD)] = "",
        concurrency: Annotated[
            int | None, typer.Option(help="closed loop of so many users", rich_help_panel=_LOAD)
        ] = None,
        isl: Annotated[
            int | None, typer.Option(help="input length  [default: the plan's]", rich_help_panel=_LOAD)
        ] = None,
        osl: Annotated[
            int | None, typer.Option(help="output length  [default: the plan's]", rich_help_panel=_LOAD)
        ] = None,
        requests: Annotated[int | None, typer.Option(help="how many", rich_help_panel=_LOAD)] = None,
        arrivals: Annotated[
            str, typer.Option(help="poisson, gamma, mmpp, diurnal or even", rich_help_panel=_LOAD)
        ] = "poisson",
        lengths: Annotated[str, typer.Option(help="fixed, uniform or lognormal", rich_help_panel=_LOAD)] = "fixed",
        long: Annotated[
            str, typer.Option(help="requests longer than the context: refuse or drop", rich_help_panel=_LOAD)
        ] = "refuse",
        think: Annotated[
            str, typer.Option(help="time a user of the closed loop waits", metavar="TIME", rich_help_panel=_LOAD)
        ] = "",
        seed: Annotated[int, typer.Option(help="same seed, same result", rich_help_panel=_LOAD)] = 0,
        ttft: Annotated[str, typer.Option(help="target", metavar="TIME", rich_help_panel=_LOAD)] = "",
        tpot: Annotated[str, typer.Option(help="target", metavar="TIME", rich_help_panel=_LOAD)] = "",
        replicas: Annotated[
            int | None, typer.Option(help="so many, in place of the plan's", rich_help_panel=_POOLS)
        ] = None,
        prefill: Annotated[
            str, typer.Option(help="plan of a prefill pool; the first plan is then the decode pool", metavar="PLAN",
                              rich_help_panel=_POOLS),
        ] = "",
        router: Annotated[
            str, typer.Option(help="least (outstanding), round-robin, random or prefix", rich_help_panel=_POOLS)
        ] = "least",
        max_waiting: Annotated[
            int, typer.Option(help="longest queue of a replica, 0 = no limit", rich_help_panel=_POOLS)
        ] = 0,
        fault: Annotated[
            list[str] | None,
            typer.Option(help="slow:REPLICA@10s-20sx1.5, link:0@10s-20sx4 or down:0@10s-20s", metavar="FAULT",
                         rich_help_panel=_POOLS),
        ] = None,
        recovery: Annotated[
            str, typer.Option(help="requests of a dead replica go elsewhere, drop or stay", rich_help_panel=_POOLS)
        ] = "elsewhere",
        *,
        parquet: Annotated[
            Path | None, typer.Option("--parquet", help="write one row a request", rich_help_panel=_OUT)
        ] = None,
        timeline: Annotated[
            Path | None, typer.Option("--timeline", help="write steps for Perfetto", rich_help_panel=_OUT)
        ] = None,
        steps: Annotated[
            int, typer.Option("--steps", help="most steps of the timeline", rich_help_panel=_OUT)
        ] = 100_000,
        json: Annotated[
            bool, typer.Option("--json", help="print the value as JSON, and nothing else", rich_help_panel=_OUT)
        ] = False,
    ) -> int:  # fmt: skip
        """What happens over time? Exit code 1: the load is beyond what the plan serves."""
        from linkwise.simulate.ask import ask, faults
        from linkwise.simulate.rules import Run

        plan = _shaped(_plan(last_plan() if source == "plan:" else source), isl, osl)
        run = Run(
            seed=seed, router=router, recovery=recovery, max_waiting=max_waiting, faults=faults(fault or ()),
            think_s=parse_time(think, where="--think") if think else 0.0, steps_kept=steps if timeline else 0,
        )  # fmt: skip
        with _progress(json) as progress:
            found = ask(
                plan, trace=workload, number=_positive(requests, "--requests"),
                users=_positive(concurrency, "--concurrency"),
                rate_per_s=parse_rate(rate, where="--rate") if rate else None, arrivals=arrivals, spread=lengths,
                long=_one_of(long, "--long", ("refuse", "drop")), prefill=_plan(prefill) if prefill else None,
                replicas=_positive(replicas, "--replicas"), run=run, targets=_targets(plan, ttft, tpot),
                progress=progress,
            )  # fmt: skip
        from linkwise.simulate import write

        if parquet is not None:
            write.parquet(found, parquet)
        if timeline is not None:
            write.timeline(found, timeline)
        if json:
            show_json(found.summary)
        else:
            from linkwise.report.simulate import screen

            show(screen(found.summary, plan))
        return 1 if found.summary.saturated else 0

    command(simulate)


def _plan(source: Any) -> Any:
    from linkwise import api
    from linkwise.plan.types import Plan

    found = api.load(source) if isinstance(source, str) else source
    if not isinstance(found, Plan):
        raise InputError("is no plan", where=str(source)[:200], expected="a plan, as linkwise plan -o FILE writes it")
    return found


def _shaped(plan: Any, isl: int | None, osl: int | None) -> Any:
    from msgspec.structs import replace

    changes = {"isl_tokens": isl, "osl_tokens": osl}
    given = {name: value for name, value in changes.items() if value is not None}
    return replace(plan, workload=replace(plan.workload, **given)) if given else plan


def _targets(plan: Any, ttft: str, tpot: str) -> Any:
    from linkwise.workload.types import Targets

    own = plan.workload.targets
    return Targets(
        ttft_s=parse_time(ttft, where="--ttft") if ttft else own.ttft_s,
        tpot_s=parse_time(tpot, where="--tpot") if tpot else own.tpot_s,
    )


def _positive(value: int | None, where: str) -> int | None:
    if value is not None and not 1 <= value <= 20_000_000:
        raise InputError(f"{value}", where=where, expected="1..20000000")
    return value


def _one_of(value: str, where: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise InputError(f"{value[:40]!r}", where=where, expected="one of " + ", ".join(known))
    return value


def _progress(quiet: bool) -> AbstractContextManager[Callable[[int, int], None] | None]:
    """A bar on the terminal's error stream; nothing where nobody looks."""
    if quiet or not sys.stderr.isatty():
        return nullcontext(None)
    from linkwise.report.simulate import bar

    return bar()

"""The command `linkwise capacity`: its words and options. cli.py registers it."""

from typing import Annotated

import typer

from linkwise.cli_base import kept, print_blocks, print_json
from linkwise.cli_load import (
    LOAD,
    POOLS,
    Arrivals,
    Isl,
    Json,
    Long,
    Number,
    Osl,
    Period,
    Prefill,
    Rate,
    Router,
    Seed,
    Source,
    Spread,
    Swing,
    Target,
    Trace,
    progress_bar,
)


def capacity(
    source: Source,
    rate: Rate = "",
    workload: Trace = None,
    growth: Annotated[
        str,
        typer.Option(help="of the load: x1.5, 50%, 20%/month, x2/year", metavar="GROWTH", rich_help_panel=LOAD),
    ] = "x1",
    months: Annotated[
        float | None, typer.Option(help="how far ahead, with a growth per month or year", rich_help_panel=LOAD)
    ] = None,
    peak_factor: Annotated[
        float, typer.Option(help="the busiest hour's rate over the mean", rich_help_panel=LOAD)
    ] = 1.0,
    failures: Annotated[int, typer.Option(help="so many at once are survived", rich_help_panel=POOLS)] = 1,
    failure_of: Annotated[
        str,
        typer.Option(
            help="what fails: node (with every replica on it, unless said otherwise) or replica",
            rich_help_panel=POOLS,
        ),
    ] = "",
    ttft: Target = "",
    tpot: Target = "",
    percentile: Annotated[
        float, typer.Option(help="percent of requests that are inside a target", rich_help_panel=LOAD)
    ] = 99.0,
    isl: Isl = None,
    osl: Osl = None,
    requests: Number = None,
    arrivals: Arrivals = "",
    period: Period = "",
    swing: Swing = None,
    lengths: Spread = "",
    long: Long = "",
    prefill: Prefill = "",
    router: Router = "least",
    seed: Seed = 0,
    *,
    json: Json = False,
) -> int:
    """How many replicas hold the load when it has grown and some are gone? Exit code 1: more than there are."""
    from linkwise.api_simulate import capacity as ask
    from linkwise.api_simulate import plan_of

    plan = plan_of(kept("plan") if source == "plan:" else source)
    with progress_bar(json) as progress:
        found = ask(
            plan, rate=rate, workload=workload, growth=growth, months=months, peak_factor=peak_factor,
            failures=failures, failure_of=failure_of or None, percentile=percentile, ttft=ttft, tpot=tpot,
            isl=isl, osl=osl, requests=requests, arrivals=arrivals, period=period, swing=swing, lengths=lengths,
            long=long, prefill=prefill or None, router=router, seed=seed, progress=progress,
        )  # fmt: skip
    if json:
        print_json(found)
    else:
        from linkwise.report.capacity import screen

        print_blocks(screen(found, plan))
    return 0 if found.fits else 1

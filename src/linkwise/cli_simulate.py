"""The command `linkwise simulate`: its words and options. cli.py registers it."""

from pathlib import Path
from typing import Annotated

import typer

from linkwise.cli_base import kept, print_blocks, print_json
from linkwise.cli_load import (
    LOAD,
    OUT,
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
    Steps,
    Swing,
    Target,
    Trace,
    progress_bar,
    steps_of,
)


def simulate(
    source: Source,
    workload: Trace = None,
    rate: Rate = "",
    concurrency: Annotated[
        int | None, typer.Option(help="closed loop of so many users", rich_help_panel=LOAD)
    ] = None,
    isl: Isl = None,
    osl: Osl = None,
    requests: Number = None,
    arrivals: Arrivals = "",
    period: Period = "",
    swing: Swing = None,
    lengths: Spread = "",
    long: Long = "",
    think: Annotated[
        str, typer.Option(help="time a user of the closed loop waits", metavar="TIME", rich_help_panel=LOAD)
    ] = "",
    seed: Seed = 0,
    ttft: Target = "",
    tpot: Target = "",
    replicas: Annotated[
        int | None, typer.Option(help="so many, in place of the plan's", rich_help_panel=POOLS)
    ] = None,
    prefill: Prefill = "",
    router: Router = "least",
    max_waiting: Annotated[
        int, typer.Option(help="longest queue of a replica, 0 = no limit", rich_help_panel=POOLS)
    ] = 0,
    fault: Annotated[
        list[str] | None,
        typer.Option(help="slow:REPLICA@10s-20sx1.5, link:0@10s-20sx4 or down:0@10s-20s", metavar="FAULT",
                     rich_help_panel=POOLS),
    ] = None,
    recovery: Annotated[
        str, typer.Option(help="with --fault: requests of a dead replica go elsewhere (unless said otherwise), drop"
                          " or stay", rich_help_panel=POOLS),
    ] = "",
    *,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", help="write one row a request", rich_help_panel=OUT)
    ] = None,
    timeline: Annotated[
        Path | None, typer.Option("--timeline", help="write steps for Perfetto", rich_help_panel=OUT)
    ] = None,
    steps: Steps = None,
    json: Json = False,
) -> int:  # fmt: skip
    """What happens over time? Exit code 1: the load is beyond what the plan serves, or requests were lost."""
    from linkwise.api_simulate import plan_of, played

    plan = plan_of(kept("plan") if source == "plan:" else source)
    with progress_bar(json) as progress:
        found = played(
            plan, workload=workload, rate=rate, concurrency=concurrency, isl=isl, osl=osl, requests=requests,
            arrivals=arrivals, period=period, swing=swing,
            lengths=lengths, long=long, think=think, seed=seed, ttft=ttft, tpot=tpot, replicas=replicas,
            prefill=prefill or None, router=router, max_waiting=max_waiting, fault=fault or (),
            recovery=recovery or None, steps=steps_of(steps, timeline, "simulate"), progress=progress,
        )  # fmt: skip
    from linkwise.simulate import write

    if parquet is not None:
        write.parquet(found, parquet)
    if timeline is not None:
        write.timeline(found, timeline)
    if json:
        print_json(found.summary)
    else:
        from linkwise.report.simulate import screen

        print_blocks(screen(found.summary, plan))
    return 0 if found.summary.holds else 1

"""The command `linkwise autoscale`: its words and options. cli.py registers it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from linkwise.cli_base import kept, print_blocks, print_json
from linkwise.cli_load import (
    LOAD,
    OUT,
    Isl,
    Json,
    Long,
    Number,
    Osl,
    Period,
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
from linkwise.core.errors import InputError
from linkwise.core.units import parse_bytes

_RULES, _STARTS = "Rules", "Starts"


def autoscale(
    source: Source,
    workload: Trace = None,
    rate: Rate = "",
    isl: Isl = None,
    osl: Osl = None,
    requests: Number = None,
    arrivals: Annotated[
        str, typer.Option(help="diurnal (unless said otherwise), poisson, gamma, mmpp or even", rich_help_panel=LOAD)
    ] = "",
    period: Period = "",
    swing: Swing = None,
    lengths: Spread = "",
    long: Long = "",
    ttft: Target = "",
    tpot: Target = "",
    seed: Seed = 0,
    rule: Annotated[
        Path | None, typer.Option(help="rules in a YAML file; those below are compared with them", metavar="FILE",
                                  rich_help_panel=_RULES),
    ] = None,
    target_outstanding: Annotated[
        float | None, typer.Option(help="requests outstanding a replica", rich_help_panel=_RULES)
    ] = None,
    target_kv: Annotated[
        float | None, typer.Option(help="share of KV blocks in use", rich_help_panel=_RULES)
    ] = None,
    target_waiting: Annotated[
        float | None, typer.Option(help="requests that wait in a replica's queue", rich_help_panel=_RULES)
    ] = None,
    schedule: Annotated[
        str, typer.Option(help="replicas by time of a day, such as 0h=2,8h=6,19h=3", rich_help_panel=_RULES)
    ] = "",
    min: Annotated[int | None, typer.Option("--min", help="fewest replicas, 1", rich_help_panel=_RULES)] = None,
    max: Annotated[
        int | None, typer.Option("--max", help="most replicas, what the devices hold", rich_help_panel=_RULES)
    ] = None,
    start: Annotated[
        int | None, typer.Option(help="replicas up at the beginning, the fewest", rich_help_panel=_RULES)
    ] = None,
    every: Annotated[str, typer.Option(help="between two looks, 15s", metavar="TIME", rich_help_panel=_RULES)] = "",
    up_window: Annotated[
        str, typer.Option(help="up to the least wanted in it, 0s", metavar="TIME", rich_help_panel=_RULES)
    ] = "",
    down_window: Annotated[
        str, typer.Option(help="down to the most wanted in it, 300s", metavar="TIME", rich_help_panel=_RULES)
    ] = "",
    tolerance: Annotated[
        float | None, typer.Option(help="share a measure may be off its target, 0.1", rich_help_panel=_RULES)
    ] = None,
    cold_start: Annotated[
        str, typer.Option(help="from the order to the first request", metavar="TIME", rich_help_panel=_STARTS)
    ] = "",
    load_rate: Annotated[
        str, typer.Option(help="in place of it: what a node reads weights at, such as 4GB/s", metavar="RATE",
                          rich_help_panel=_STARTS),
    ] = "",
    start_up: Annotated[
        str, typer.Option(help="with --load-rate: the engine's start beside its weights, 0s", metavar="TIME",
                          rich_help_panel=_STARTS),
    ] = "",
    router: Router = "least",
    *,
    timeline: Annotated[
        Path | None, typer.Option("--timeline", help="first rule's steps for Perfetto", rich_help_panel=OUT)
    ] = None,
    steps: Steps = None,
    json: Json = False,
) -> int:  # fmt: skip
    """What do scaling rules cost and miss? Exit code 1: no rule serves the load."""
    from linkwise.api_simulate import plan_of, scaled
    from linkwise.simulate import scaling
    from linkwise.simulate.autoscale import cold_start as of_weights
    from linkwise.simulate.autoscale import serving
    from linkwise.simulate.load import together

    plan = plan_of(kept("plan") if source == "plan:" else source)
    rules = list(scaling.load(rule)) if rule else []
    targets = {"outstanding": target_outstanding, "kv": target_kv, "waiting": target_waiting}
    limits = {"--min": min, "--max": max, "--start": start, "--every": every}
    calmed = {"--up-window": up_window, "--down-window": down_window, "--tolerance": tolerance}
    rules += scaling.typed(targets, schedule, limits, calmed)
    if not load_rate:
        together("autoscale", ("--start-up", start_up, "without --load-rate: --cold-start has it all"))
    if bool(cold_start) == bool(load_rate):
        raise InputError("no cold start" if not cold_start else "two cold starts", where="autoscale",
                         expected="one of --cold-start 90s and --load-rate 4GB/s (with --start-up)")  # fmt: skip
    seconds: Any = cold_start
    if load_rate:
        seconds = of_weights(plan, _bytes_a_second(load_rate), scaling.seconds(start_up, "--start-up"))
    with progress_bar(json) as progress:
        found, played = scaled(
            plan, rules, cold_start=seconds, workload=workload, rate=rate, isl=isl, osl=osl,
            requests=requests, arrivals=arrivals,
            period=period, swing=swing, lengths=lengths, long=long, ttft=ttft, tpot=tpot, seed=seed,
            router=router, steps=steps_of(steps, timeline, "autoscale"), progress=progress,
        )  # fmt: skip
    if timeline is not None:
        from linkwise.simulate import write

        write.timeline(played[0].found, timeline, {"replicas that serve": serving(played[0])})
    if json:
        print_json(found)
    else:
        from linkwise.report.autoscale import screen

        print_blocks(screen(found, plan))
    return 0 if any(one.holds for one in found.rules[: len(rules)]) else 1


def _bytes_a_second(text: str) -> float:
    if not text.strip().endswith("/s"):
        raise InputError(f"{text[:60]!r}", where="--load-rate", expected="a rate with a unit, such as 4GB/s")
    return float(parse_bytes(text.strip().removesuffix("/s"), where="--load-rate"))

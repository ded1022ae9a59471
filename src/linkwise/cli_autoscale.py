"""The command `linkwise autoscale`: its words and options. cli.py registers it and owns what all commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from linkwise.cli_load import (
    LOAD,
    OUT,
    Arrivals,
    Isl,
    Json,
    Long,
    Number,
    Osl,
    Rate,
    Router,
    Seed,
    Source,
    Spread,
    Target,
    Trace,
    progress_bar,
)
from linkwise.core.errors import InputError
from linkwise.core.units import parse_bytes, parse_time

_RULES, _STARTS = "Rules", "Starts"


def register(
    command: Callable[[Callable[..., int]], Any],
    show: Callable[..., None],
    show_json: Callable[[Any], None],
    last_plan: Callable[[], Any],
) -> None:
    """Add the command. show, show_json: how the command line prints screens and values; last_plan: the one kept."""

    def autoscale(
        source: Source,
        workload: Trace = None,
        rate: Rate = "",
        isl: Isl = None,
        osl: Osl = None,
        requests: Number = None,
        arrivals: Arrivals = "diurnal",
        period: Annotated[
            str, typer.Option(help="of diurnal arrivals", metavar="TIME", rich_help_panel=LOAD)
        ] = "30min",
        swing: Annotated[
            float, typer.Option(help="of diurnal arrivals, share of the rate up and down", rich_help_panel=LOAD)
        ] = 0.8,
        lengths: Spread = "fixed",
        long: Long = "refuse",
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
        min: Annotated[int, typer.Option("--min", help="fewest replicas", rich_help_panel=_RULES)] = 1,
        max: Annotated[
            int, typer.Option("--max", help="most replicas, 0 = what the devices hold", rich_help_panel=_RULES)
        ] = 0,
        start: Annotated[
            int, typer.Option(help="replicas up at the beginning, 0 = the fewest", rich_help_panel=_RULES)
        ] = 0,
        every: Annotated[
            str, typer.Option(help="between two looks", metavar="TIME", rich_help_panel=_RULES)
        ] = "15s",
        up_window: Annotated[
            str, typer.Option(help="up to the least wanted in it", metavar="TIME", rich_help_panel=_RULES)
        ] = "0s",
        down_window: Annotated[
            str, typer.Option(help="down to the most wanted in it", metavar="TIME", rich_help_panel=_RULES)
        ] = "300s",
        tolerance: Annotated[
            float, typer.Option(help="share a measure may be off its target", rich_help_panel=_RULES)
        ] = 0.1,
        cold_start: Annotated[
            str, typer.Option(help="from the order to the first request", metavar="TIME", rich_help_panel=_STARTS)
        ] = "",
        load_rate: Annotated[
            str, typer.Option(help="in place of it: what a node reads weights at, such as 4GB/s", metavar="RATE",
                              rich_help_panel=_STARTS),
        ] = "",
        start_up: Annotated[
            str, typer.Option(help="with --load-rate: the engine's start beside its weights", metavar="TIME",
                              rich_help_panel=_STARTS),
        ] = "0s",
        router: Router = "least",
        *,
        timeline: Annotated[
            Path | None, typer.Option("--timeline", help="first rule's steps for Perfetto", rich_help_panel=OUT)
        ] = None,
        steps: Annotated[
            int, typer.Option("--steps", help="most steps of the timeline", rich_help_panel=OUT)
        ] = 100_000,
        json: Json = False,
    ) -> int:  # fmt: skip
        """What do scaling rules cost and miss? Exit code 1: no rule serves every request."""
        from linkwise.api_simulate import plan_of, scaled
        from linkwise.simulate import scaling
        from linkwise.simulate.autoscale import cold_start as of_weights
        from linkwise.simulate.autoscale import serving

        plan = plan_of(last_plan() if source == "plan:" else source, isl, osl)
        limits: dict[str, Any] = {
            "least": min, "most": max, "start": start, "tolerance": tolerance,
            "every_s": parse_time(every, where="--every"),
            "up_window_s": scaling.seconds(up_window, "--up-window"),
            "down_window_s": scaling.seconds(down_window, "--down-window"),
        }  # fmt: skip
        rules = list(scaling.load(rule)) if rule else []
        targets = {"outstanding": target_outstanding, "kv": target_kv, "waiting": target_waiting}
        for measure, target in targets.items():
            if target is not None:
                rules.append(scaling.Rule(name=f"{measure} {target:g}", measure=measure, target=target, **limits))
        if schedule:
            times = scaling.schedule(schedule)
            rules.append(scaling.Rule(name="schedule", measure="schedule", schedule=times, **limits))
        if bool(cold_start) == bool(load_rate):
            raise InputError("no cold start" if not cold_start else "two cold starts", where="autoscale",
                             expected="one of --cold-start 90s and --load-rate 4GB/s (with --start-up)")  # fmt: skip
        seconds: Any = cold_start
        if load_rate:
            seconds = of_weights(plan, _bytes_a_second(load_rate), scaling.seconds(start_up, "--start-up"))
        with progress_bar(json) as progress:
            found, played = scaled(
                plan, rules, cold_start=seconds, workload=workload, rate=rate, requests=requests, arrivals=arrivals,
                period=period, swing=swing, lengths=lengths, long=long, ttft=ttft, tpot=tpot, seed=seed,
                router=router, steps=steps if timeline else 0, progress=progress,
            )  # fmt: skip
        if timeline is not None:
            from linkwise.simulate import write

            write.timeline(played[0].found, timeline, {"replicas that serve": serving(played[0])})
        if json:
            show_json(found)
        else:
            from linkwise.report.autoscale import screen

            show(screen(found, plan))
        return 0 if any(not one.unserved for one in found.rules[: len(rules)]) else 1

    command(autoscale)


def _bytes_a_second(text: str) -> float:
    if not text.strip().endswith("/s"):
        raise InputError(f"{text[:60]!r}", where="--load-rate", expected="a rate with a unit, such as 4GB/s")
    return float(parse_bytes(text.strip().removesuffix("/s"), where="--load-rate"))

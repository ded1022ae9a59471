"""What `simulate`, `capacity` and `autoscale` share on the command line: the plan, its load and its targets."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

LOAD, OUT, POOLS = "Workload", "Output", "Deployment"

Source = Annotated[str, typer.Argument(help="plan file, as plan -o writes it; or plan: (the last plan)")]
Trace = Annotated[
    Path | None, typer.Option(help="trace: Azure's CSV, Mooncake's JSON lines, or our columns", rich_help_panel=LOAD)
]
Rate = Annotated[str, typer.Option(help="arrivals, such as 8/s", metavar="RATE", rich_help_panel=LOAD)]
Isl = Annotated[int | None, typer.Option(help="input length  [default: the plan's]", rich_help_panel=LOAD)]
Osl = Annotated[int | None, typer.Option(help="output length  [default: the plan's]", rich_help_panel=LOAD)]
Number = Annotated[int | None, typer.Option(help="how many", rich_help_panel=LOAD)]
Arrivals = Annotated[
    str, typer.Option(help="poisson (unless said otherwise), gamma, mmpp, diurnal or even", rich_help_panel=LOAD)
]
Period = Annotated[
    str, typer.Option(help="of diurnal arrivals, 24h; of mmpp's stays, 5min", metavar="TIME", rich_help_panel=LOAD)
]
Swing = Annotated[
    float | None, typer.Option(help="of diurnal arrivals, share of the rate up and down, 0.8", rich_help_panel=LOAD)
]
Spread = Annotated[
    str, typer.Option(help="scattered (unless said otherwise), fixed, uniform or lognormal", rich_help_panel=LOAD)
]
Long = Annotated[
    str, typer.Option(help="a trace's requests beyond the context: refuse (unless said otherwise) or drop",
                      rich_help_panel=LOAD),
]  # fmt: skip
Seed = Annotated[int, typer.Option(help="same seed, same result", rich_help_panel=LOAD)]
Target = Annotated[str, typer.Option(help="target", metavar="TIME", rich_help_panel=LOAD)]
Router = Annotated[str, typer.Option(help="least (load), round-robin, random or prefix", rich_help_panel=POOLS)]
Prefill = Annotated[
    str, typer.Option(help="plan of a prefill pool; the first plan is then the decode pool", metavar="PLAN",
                      rich_help_panel=POOLS),
]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="print the value as JSON, and nothing else", rich_help_panel=OUT)]
Steps = Annotated[int | None, typer.Option("--steps", help="most steps of the timeline, 100,000", rich_help_panel=OUT)]


def steps_of(steps: int | None, timeline: Path | None, where: str) -> int:
    """Steps to keep: for a timeline only."""
    if timeline is None:
        from linkwise.simulate.load import together

        together(where, ("--steps", steps, "without --timeline: no steps are written"))
        return 0
    return 100_000 if steps is None else steps


def progress_bar(quiet: bool) -> AbstractContextManager[Callable[[int, int | None], None] | None]:
    """A bar on the terminal's error stream; nothing where nobody looks."""
    if quiet or not sys.stderr.isatty():
        return nullcontext(None)
    from linkwise.report.simulate import bar

    return bar()

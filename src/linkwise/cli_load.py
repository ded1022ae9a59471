"""What `simulate`, `capacity` and `autoscale` share on the command line: the plan, its load and its targets."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from linkwise.core.errors import InputError
from linkwise.core.units import parse_time

LOAD, OUT, POOLS = "Workload", "Output", "Deployment"

Source = Annotated[str, typer.Argument(help="plan file, as plan -o writes it; or plan: (the last plan)")]
Trace = Annotated[
    Path | None, typer.Option(help="trace: Azure's CSV, Mooncake's JSON lines, or our columns", rich_help_panel=LOAD)
]
Rate = Annotated[str, typer.Option(help="arrivals, such as 8/s", metavar="RATE", rich_help_panel=LOAD)]
Isl = Annotated[int | None, typer.Option(help="input length  [default: the plan's]", rich_help_panel=LOAD)]
Osl = Annotated[int | None, typer.Option(help="output length  [default: the plan's]", rich_help_panel=LOAD)]
Number = Annotated[int | None, typer.Option(help="how many", rich_help_panel=LOAD)]
Arrivals = Annotated[str, typer.Option(help="poisson, gamma, mmpp, diurnal or even", rich_help_panel=LOAD)]
Spread = Annotated[str, typer.Option(help="fixed, uniform or lognormal", rich_help_panel=LOAD)]
Long = Annotated[str, typer.Option(help="requests longer than the context: refuse or drop", rich_help_panel=LOAD)]
Seed = Annotated[int, typer.Option(help="same seed, same result", rich_help_panel=LOAD)]
Target = Annotated[str, typer.Option(help="target", metavar="TIME", rich_help_panel=LOAD)]
Router = Annotated[str, typer.Option(help="least (outstanding), round-robin, random or prefix", rich_help_panel=POOLS)]
Json = Annotated[bool, typer.Option("--json", help="print the value as JSON, and nothing else", rich_help_panel=OUT)]


def plan_of(source: Any, isl: int | None = None, osl: int | None = None) -> Any:
    """The plan of a file or as it is, with other lengths where given."""
    from msgspec.structs import replace

    from linkwise import api
    from linkwise.plan.types import Plan

    found = api.load(source) if isinstance(source, str) else source
    if not isinstance(found, Plan):
        raise InputError("is no plan", where=str(source)[:200], expected="a plan, as linkwise plan -o FILE writes it")
    changes = {"isl_tokens": isl, "osl_tokens": osl}
    given = {name: value for name, value in changes.items() if value is not None}
    return replace(found, workload=replace(found.workload, **given)) if given else found


def targets_of(plan: Any, ttft: str, tpot: str) -> Any:
    """Targets as typed; the plan's where nothing is."""
    from linkwise.workload.types import Targets

    own = plan.workload.targets
    return Targets(
        ttft_s=parse_time(ttft, where="--ttft") if ttft else own.ttft_s,
        tpot_s=parse_time(tpot, where="--tpot") if tpot else own.tpot_s,
    )


def positive(value: int | None, where: str) -> int | None:
    if value is not None and not 1 <= value <= 20_000_000:
        raise InputError(f"{value}", where=where, expected="1..20000000")
    return value


def one_of(value: str, where: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise InputError(f"{value[:40]!r}", where=where, expected="one of " + ", ".join(known))
    return value


def progress_bar(quiet: bool) -> AbstractContextManager[Callable[[int, int | None], None] | None]:
    """A bar on the terminal's error stream; nothing where nobody looks."""
    if quiet or not sys.stderr.isatty():
        return nullcontext(None)
    from linkwise.report.simulate import bar

    return bar()

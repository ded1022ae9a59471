"""The command `linkwise place`: its words and options. cli.py registers it."""

from typing import Annotated, Any

import typer

from linkwise import cli_base, streams
from linkwise.cli_words import Json, unused


def place(
    source: Annotated[str, typer.Argument(help="plan file, or plan: (the last plan); with --on, a model as for plan")],
    on: Annotated[str, typer.Option("--on", help="cluster, as for plan; left out: SOURCE is a plan")] = "",
    engine: Annotated[str, typer.Option("--engine", help="with --on, as for plan; left out: vllm")] = "",
    handoff: Annotated[
        bool, typer.Option("--handoff", help="each rank also sends its KV share of a prompt, once a request")
    ] = False,
    *,
    settings: Any,
    kind: Annotated[
        str,
        typer.Option(
            "--as",
            help="print one thing alone: cuda, rankfile, slurm, torchrun or nics",
            metavar="KIND",
            rich_help_panel="Output",
        ),
    ] = "",
    replica: Annotated[int | None, typer.Option(help="with --as: which replica", rich_help_panel="Output")] = None,
    hosts: Annotated[
        str, typer.Option(help="with --as: names of the nodes, in order", metavar="A,B,...", rich_help_panel="Output")
    ] = "",
    ranks: Annotated[bool, typer.Option("--ranks", help="every rank's place", rich_help_panel="Output")] = False,
    json: Json = False,
) -> int:
    """Which device takes which rank, for the least communication time? Exit code 1: no layout is feasible."""
    from linkwise import api_place
    from linkwise.plan.binding import text
    from linkwise.report import placement as screens

    if kind:
        unused({"--json": json, "--ranks": ranks}, beside="--as")
    else:
        unused({"--replica": replica is not None, "--hosts": hosts}, without="--as")
    given = {name: value for name, value in settings.items() if value is not None}
    found = api_place.place(
        cli_base.kept("plan") if source == "plan:" else source, on, engine=engine, handoff=handoff, **given
    )
    if not isinstance(found, api_place.Placement):
        from linkwise.report.plan import no_plan

        cli_base.print_json(found) if json else cli_base.print_blocks(no_plan(found))
        return cli_base.NO
    if kind:
        names = tuple(name.strip() for name in hosts.split(",")) if hosts else ()
        streams.write(text(found, kind, replica or 0, names))
        if replica is None and (count := len(found.rank_grid)) > 1:
            streams.say(f"note: replica 0 of {count}; --replica N prints another")
    elif json:
        cli_base.print_json(found)
    else:
        cli_base.print_blocks(screens.screen(found), screens.ranks(found) if ranks else ())
    return cli_base.YES

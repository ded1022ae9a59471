"""The command `linkwise launch`: its words and options. cli.py registers it and owns what all commands share."""

from pathlib import Path
from typing import Annotated

import typer

from linkwise import cli_base, streams
from linkwise.core.errors import InputError

_START = "Start here"


def launch(
    source: Annotated[str, typer.Argument(help="plan file, or a handoff's; or plan:, handoff: (the last result)")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="folder for commands, scripts and deployment.json")
    ] = None,
    engine: Annotated[str, typer.Option(help="vllm, sglang, trtllm or dynamo; left out: the plan's")] = "",
    *,
    weights: Annotated[str, typer.Option(help="model folder on the nodes; left out: the plan's model by name")] = "",
    name: Annotated[str, typer.Option(help="the model's name in the API; left out: the plan's")] = "",
    multi_node: Annotated[str, typer.Option(help="native, ray or slurm", metavar="KIND")] = "native",
    hosts: Annotated[
        str, typer.Option(help="addresses of the nodes, in the plan's order; left out: hosts.env", metavar="A,B,...")
    ] = "",
    interface: Annotated[str, typer.Option(help="network interface for rendezvous, such as eth0")] = "",
    json: Annotated[
        bool, typer.Option("--json", help="print deployment.json, and nothing else", rich_help_panel="Output")
    ] = False,
) -> int:
    """A plan as what people run in production. Exit code 1: the engine cannot express it."""
    from linkwise import api_launch

    if output is None and not json:
        raise InputError("nowhere to write", where="launch", expected="-o FOLDER, or --json")
    given = cli_base.kept(source[:-1]) if source in {"plan:", "handoff:"} else source
    made = api_launch.launch(
        given, engine=engine, weights=weights, name=name, multi_node=multi_node,
        hosts=tuple(part.strip() for part in hosts.split(",")) if hosts else (), interface=interface,
    )  # fmt: skip
    if output is not None:
        from linkwise.launch.write import write

        written = write(made, output)
        for said in made.differs:
            streams.say(f"differs: {said}")
        for said in made.notes:
            streams.say(f"note: {said}")
    if json:
        cli_base.print_json(made)
    elif output is not None:
        from linkwise.report.launch import screen

        cli_base.print_blocks(screen(made, str(output), len(written)))
    return cli_base.YES

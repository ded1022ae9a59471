"""The command `linkwise report`: its words and options. cli.py registers it."""

from pathlib import Path
from typing import Annotated

import typer

from linkwise import cli_base, streams
from linkwise.cli_base import kept, print_blocks
from linkwise.core.errors import InputError
from linkwise.core.files import write_bytes


def report(
    source: Annotated[str, typer.Argument(help="plan file, as plan -o writes it; or plan: (the last plan)")],
    beside: Annotated[
        list[Path] | None,
        typer.Argument(
            help="what stands beside it: handoff, traffic or diagnose --json, traces and counters of a run",
            metavar="[FILE...]",
        ),
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="the page, such as report.html")] = Path("report.html"),
    *,
    json: Annotated[
        bool,
        typer.Option("--json", help="write the page's data as JSON, no page", rich_help_panel="Output"),
    ] = False,
) -> int:
    """The plan as a page: one file that opens anywhere, every figure with its chain."""
    from linkwise.api_report import page_of
    from linkwise.core.schema import encode_json

    page = page_of(kept("plan") if source == "plan:" else source, *(beside or ()))
    if json:
        write_bytes(output, encode_json(page))
    else:
        from linkwise.report.page.html import html
        from linkwise.report.page.library import library

        write_bytes(output, html(page, library()).encode())
    if not output.is_file():
        raise InputError("is no file that can be opened later", where=str(output), expected="a file")
    for said in page.used:
        streams.say(f"beside the plan: {said}")
    print_blocks([f"{output}: {page.title}"])
    return 0


def ui(
    source: Annotated[str, typer.Argument(help="plan file to begin with; or plan: (the last plan)")] = "plan:",
    port: Annotated[int, typer.Option(help="of 127.0.0.1; 0 = one that is free")] = 0,
) -> int:
    """The page with inputs that recompute in place, for this machine only. Ctrl-C ends it."""
    from linkwise.answers import plan_of
    from linkwise.report.page.library import library
    from linkwise.ui import Server

    if not 0 <= port <= 65_535:
        raise InputError(f"{port}", where="--port", expected="0..65535")
    plan = plan_of(kept("plan") if source == "plan:" else source)
    try:
        server = Server(plan, library(), port)
    except OSError as error:
        raise InputError(f"cannot listen: {error.strerror}", where=f"port {port}", expected="a free port") from None
    with server, cli_base.until_told():
        streams.write_now(f"open {server.address}")
        server.serve_forever()
    return 0

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
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="the page; left out: report.html, or none with --json")
    ] = None,
    *,
    json: Annotated[
        bool,
        typer.Option("--json", help="print the page's data, and nothing else", rich_help_panel="Output"),
    ] = False,
) -> int:
    """The plan as a page: one file that opens anywhere, every figure with its chain."""
    from linkwise.api_report import page_of

    to = output or (None if json else Path("report.html"))
    if to is not None:
        _check(to)
    page = page_of(kept("plan") if source == "plan:" else source, *(beside or ()))
    if to is not None:
        from linkwise.report.page.html import html
        from linkwise.report.page.library import library

        write_bytes(to, html(page, library()).encode(), regular=True)
    for said in page.used:
        streams.say(f"beside the plan: {said}")
    if json:
        cli_base.print_json(page)
    else:
        print_blocks([f"{to}: {page.title}"])
    return 0


def _check(to: Path) -> None:
    """Refuse early what will be no file that can be opened later."""
    if str(to) == "-":
        raise InputError("is no file", where="-o -", expected="the page's file, or --json for its data on the screen")
    if not to.parent.is_dir():
        raise InputError("cannot be written: no such folder", where=str(to), expected="a folder that is there")


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

"""The command `linkwise lab`: its words, options and screen. cli.py registers it."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linkwise import cli_base
from linkwise.cli_traffic import _devices
from linkwise.core.units import parse_time, show_bytes, show_count, show_time

if TYPE_CHECKING:
    from linkwise.measure.lab import LabResult


def lab(
    cluster: Annotated[str, typer.Argument(help="a YAML file, or 2x8xh100-sxm (nodes first)")],
    command: Annotated[list[str], typer.Argument(help="after --, what every rank runs", metavar="COMMAND")],
    scale: Annotated[
        float | None, typer.Option(help="bandwidth here over the cluster's; left out: slowest link 200 Mbit/s")
    ] = None,
    placement: Annotated[
        str, typer.Option(help="devices in rank order, such as 0,1,8,9; left out: all of them", metavar="DEVICES")
    ] = "",
    timeout: Annotated[str, typer.Option(help="end ranks that still run after this", metavar="TIME")] = "10min",
    *,
    all_: Annotated[
        bool, typer.Option("--all", help="also links that carried nothing", rich_help_panel="Output")
    ] = False,
    json: Annotated[
        bool,
        typer.Option("--json", help="print the value as JSON; the ranks' lines go to stderr", rich_help_panel="Output"),
    ] = False,
) -> int:
    """The cluster on this machine, its links shaped: run a command on every rank, count every link.

    Needs Linux with iproute2, and root or user namespaces. Exit code 1: a rank failed, or did not end in time.
    """
    from linkwise.cluster.read import load
    from linkwise.measure.lab import run_lab, wiring

    built = wiring(load(cluster), _devices(placement) if placement else None, scale)
    seconds = parse_time(timeout, where="--timeout")
    sys.stdout.flush()
    found = run_lab(built, tuple(command), timeout_s=seconds, stdout=sys.stderr.fileno() if json else None)
    cli_base.print_json(found) if json else cli_base.print_blocks(_screen(found, every=all_))
    return cli_base.YES if found.ok else cli_base.NO


def _screen(found: "LabResult", *, every: bool) -> list[Any]:
    """How the ranks ended, and what each link carried."""
    from linkwise.report.text import table

    bad = [rank for rank in found.ranks if rank.code != 0]
    ended = f"{len(found.ranks)} ranks, {len(found.ranks) - len(bad)} ended well, {show_time(found.seconds)}"
    lines: list[Any] = [f"{ended}; links at {found.scale:.3g} of the cluster's bandwidth"]
    lines += [f"rank {rank.rank} (d{rank.device}, node {rank.node}): {rank.reason}" for rank in bad]
    rows = [
        (
            f"{link.src}>{link.dst}",
            f"{link.rate_Bps * 8 / 1e6:.4g}",
            show_bytes(link.bytes),
            show_count(link.packets),
            f"{link.bytes / (link.rate_Bps * found.seconds):.0%}" if found.seconds else "",
        )
        for link in found.links
        if link.bytes or every
    ]
    if not rows:
        return [*lines, "no link carried anything"]
    return [*lines, "", table(("link", ">Mbit/s", ">bytes", ">packets", ">busy"), rows)]

"""The command `linkwise traffic`: its words and options. cli.py registers it."""

from pathlib import Path
from typing import Annotated

import typer

from linkwise.cli_base import kept, print_blocks, print_json
from linkwise.cli_words import Json
from linkwise.core.errors import InputError
from linkwise.core.files import write_bytes

_MOST = 1_000_000  # devices of a placement


def traffic(
    source: Annotated[str, typer.Argument(help="plan file, as plan -o writes it; or plan: (the last plan)")],
    step: Annotated[str, typer.Option(help="prefill, decode or mixed")] = "decode",
    replica: Annotated[int | None, typer.Option(help="count this replica alone; left out: all of them")] = None,
    placement: Annotated[
        str, typer.Option(help="devices in rank order, such as 8-15,0-7; left out: the plan's", metavar="DEVICES")
    ] = "",
    algorithm: Annotated[
        list[str] | None,
        typer.Option(help="another algorithm for a kind of collective, such as all_reduce=tree", metavar="KIND=NAME"),
    ] = None,
    *,
    all_: Annotated[
        bool, typer.Option("--all", help="every link that carries bytes", rich_help_panel="Output")
    ] = False,
    svg: Annotated[
        Path | None, typer.Option("--svg", help="write the picture to a file", rich_help_panel="Output")
    ] = None,
    json: Json = False,
) -> int:
    """What does each link carry in a step, and which one is busy longest?"""
    from linkwise import api

    found = api.traffic(
        kept("plan") if source == "plan:" else source,
        step=step,
        placement=_devices(placement) if placement else None,
        replica=replica,
        algorithms=dict(_pair(text) for text in algorithm or ()),
    )
    if svg is not None:
        from linkwise.report.svg import svg as draw

        write_bytes(svg, draw(found).encode())
    if json:
        print_json(found)
    else:
        from linkwise.report.traffic import screen

        print_blocks(screen(found, every_link=all_))
    return 0


def _devices(text: str) -> tuple[int, ...]:
    """Device numbers from `8-15,0-7`."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = (first, last if dash else first)
        if not all(end.isascii() and end.isdigit() and len(end) <= 7 for end in ends):
            raise InputError(f"{part.strip()[:40]!r}", where="--placement", expected="device numbers, such as 8-15,0-7")
        low, high = int(ends[0]), int(ends[1])
        if high < low or len(found) + high - low >= _MOST:
            raise InputError(f"{part.strip()[:40]!r}", where="--placement", expected="a range upwards, not too long")
        found.extend(range(low, high + 1))
    return tuple(found)


def _pair(text: str) -> tuple[str, str]:
    kind, equals, name = text.partition("=")
    if not equals:
        raise InputError(f"{text[:60]!r}", where="--algorithm", expected="KIND=NAME, such as all_reduce=tree")
    return kind.strip(), name.strip()

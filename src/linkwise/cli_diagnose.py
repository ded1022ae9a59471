"""The commands `linkwise diagnose` and `linkwise trace`: their words and options."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

Evidence = Annotated[
    list[Path], typer.Argument(help="files and folders of evidence, of any formats", metavar="EVIDENCE...")
]
Since = Annotated[
    str, typer.Option("--since", help="only what happened in the last 10m, 90s, 2h of it", metavar="TIME")
]


def register(
    command: Callable[[Callable[..., int]], Any], show: Callable[..., None], show_json: Callable[[Any], None]
) -> None:
    """Add the commands. show, show_json: how the command line prints screens and values."""

    def diagnose(
        evidence: Evidence,
        plan: Annotated[Path | None, typer.Option("--plan", help="what the run was meant to do: a plan file")] = None,
        since: Since = "",
        *,
        all_: Annotated[
            bool, typer.Option("--all", help="every rank and every line of evidence", rich_help_panel="Output")
        ] = False,
        json: Annotated[
            bool, typer.Option("--json", help="print the value as JSON, and nothing else", rich_help_panel="Output")
        ] = False,
    ) -> int:
        """Whose fault was it? Dumps, traces, logs and counters of all ranks, in one answer."""
        from linkwise.diagnose.diagnose import diagnose as judge

        found = judge(_gathered(evidence, since), _plan(plan))
        if json:
            show_json(found)
        else:
            from linkwise.report.diagnose import screen

            show(screen(found, every=all_))
        return found.exit_code

    def trace(
        evidence: Evidence,
        output: Annotated[Path, typer.Option("-o", "--output", help="the file, such as trace.json.gz")],
        since: Since = "",
    ) -> int:
        """All ranks on one clock, as a file for Perfetto (ui.perfetto.dev)."""
        from linkwise.trace.clocks import align
        from linkwise.trace.joined import join
        from linkwise.trace.timeline import write

        found = _gathered(evidence, since)
        clocks = align(found.trace)
        count = write(output, found, join(found.trace, clocks.shift_ns), clocks)
        unusable = f", {len(found.unusable)} file(s) unusable" if found.unusable else ""
        show([f"{count} events of {len(found.trace.ranks)} record(s) written to {output}{unusable}"])
        return 0

    command(diagnose)
    command(trace)


def _gathered(paths: list[Path], since: str) -> Any:
    from linkwise.core.errors import InputError
    from linkwise.core.units import parse_time
    from linkwise.diagnose.diagnose import since as newest
    from linkwise.trace.gather import gather

    seconds = parse_time(since, where="--since") if since else 0.0
    found = gather([str(path) for path in paths])
    if not found.used:
        first = f": {found.unusable[0].path}: {found.unusable[0].reason}" if found.unusable else ""
        raise InputError(f"none of {len(found.unusable)} file(s) can be used{first}", where="evidence")
    return newest(found, seconds) if seconds else found


def _plan(path: Path | None) -> Any:
    from linkwise import api

    return None if path is None else api._plan_of(str(path))

"""The commands `linkwise diagnose` and `linkwise trace`: their words and options."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linkwise.cli_base import print_blocks, print_json
from linkwise.cli_words import Json

if TYPE_CHECKING:
    from linkwise.diagnose.watch import Change, Watch

Evidence = Annotated[
    list[Path], typer.Argument(help="files and folders of evidence, of any formats", metavar="EVIDENCE...")
]
Since = Annotated[
    str, typer.Option("--since", help="only what happened in the last 10m, 90s, 2h of it", metavar="TIME")
]


def diagnose(
    evidence: Evidence,
    plan: Annotated[Path | None, typer.Option("--plan", help="what the run was meant to do: a plan file")] = None,
    since: Since = "",
    *,
    all_: Annotated[
        bool, typer.Option("--all", help="every rank and every line of evidence", rich_help_panel="Output")
    ] = False,
    json: Json = False,
) -> int:
    """Whose fault was it? Dumps, traces, logs and counters of all ranks, in one answer."""
    from linkwise.api_diagnose import diagnose as judge

    found = judge(*evidence, plan=plan, since=since)
    if json:
        print_json(found)
    else:
        from linkwise.report.diagnose import screen

        print_blocks(screen(found, every=all_))
    return found.exit_code


def trace(
    evidence: Evidence,
    output: Annotated[Path, typer.Option("-o", "--output", help="the file, such as trace.json.gz")],
    since: Since = "",
) -> int:
    """All ranks on one clock, as a file for Perfetto (ui.perfetto.dev)."""
    from linkwise.api_diagnose import collect
    from linkwise.core.units import counted
    from linkwise.trace.clocks import align
    from linkwise.trace.joined import join
    from linkwise.trace.timeline import write

    found = collect(tuple(evidence), since)
    clocks = align(found.trace)
    count = write(output, found, join(found.trace, clocks.shift_ns), clocks)
    unusable = f", {counted(len(found.unusable), 'file')} unusable" if found.unusable else ""
    print_blocks(
        [f"{counted(count, 'event')} of {counted(len(found.trace.ranks), 'record')} written to {output}{unusable}"]
    )
    return 0


def watch(
    folder: Annotated[
        Path | None, typer.Argument(help="folder where ranks write their traces (serve --trace)", metavar="FOLDER")
    ] = None,
    ras: Annotated[
        str, typer.Option("--ras", help="ask the RAS service of an NCCL job, too", metavar="HOST[:PORT]")
    ] = "",
    plan: Annotated[Path | None, typer.Option("--plan", help="what the run was meant to do: a plan file")] = None,
    every: Annotated[str, typer.Option("--every", help="between two looks", metavar="TIME")] = "2s",
    until: Annotated[str, typer.Option("--for", help="end after so long", metavar="TIME")] = "",
    *,
    json: Annotated[
        bool, typer.Option("--json", help="a line of JSON for each change", rich_help_panel="Output")
    ] = False,
) -> int:
    """Report faults while they happen. Ends with --for or Ctrl-C: 1 when there was one, else 0, or 2 where --ras
    never answered or nothing was there to watch."""
    from linkwise import cli_base, streams
    from linkwise.core.errors import InputError
    from linkwise.core.units import parse_time
    from linkwise.diagnose.watch import Watch

    if folder is None and not ras:
        raise InputError("neither a folder nor --ras", where="watch", expected="something to watch")
    turn_s = parse_time(every, where="--every")
    end = time.monotonic() + parse_time(until, where="--for") if until else float("inf")
    watcher = Watch(folder, plan=_plan(plan), ras=ras)
    found = False
    with cli_base.until_told():
        for change in _changes(watcher, turn_s, end):
            found = True
            _changed(change, json=json)
    if not found and not watcher.watched and not watcher.silent:
        streams.say(f"watch: nothing was watched: {_nothing(watcher)}")
    return 1 if found else 2 if not watcher.watched or (ras and not watcher.answered) else 0


def _nothing(watcher: "Watch") -> str:
    """Why there is nothing to watch, and what there could be."""
    bad = f" ({watcher.last.unusable[0].path}: {watcher.last.unusable[0].reason})" if watcher.last.unusable else ""
    return (
        f"{watcher.folder} has no record that a rank writes now{bad}; expected the folder of linkwise serve --trace."
        " Dumps and logs are for linkwise diagnose"
    )


def _changes(watcher: "Watch", turn_s: float, end: float) -> "Iterator[Change]":
    """What every look sees, until the monotonic time `end`; a RAS service that is silent is told of beside it.

    Raises InputError when that service is all there is to watch and it does not answer at first."""
    from linkwise import streams
    from linkwise.core.errors import InputError

    silent = ""
    while True:
        began = time.monotonic()
        yield from watcher.turn()
        if watcher.silent and watcher.folder is None and not watcher.answered:
            raise InputError(watcher.silent, where="watch --ras")
        if watcher.silent != silent:
            silent = watcher.silent
            streams.say(f"watch: not heard: {silent}" if silent else f"watch: {watcher.ras} answers")
        if time.monotonic() >= end:
            return
        time.sleep(max(0.0, min(began + turn_s, end) - time.monotonic()))


def _changed(change: Any, *, json: bool) -> None:
    """Print a change at once: what is held back until a command ends would be no watching."""
    from linkwise import streams

    clock = time.strftime("%H:%M:%S", time.localtime(change.at))
    one = change.finding
    if json:
        import msgspec

        streams.write_now(msgspec.json.encode({"at": change.at, "over": change.over, "finding": one}).decode())
    elif change.over:
        streams.write_now(f"{clock} over: {one.summary}")
    else:
        evidence = [f"  - {line}" for line in one.evidence[:3]]
        after = [f"  next: {one.next}"] if one.next else []
        kind = one.class_.replace("_", " ")
        streams.write_now("\n".join([f"{clock} {one.summary}  [{kind}]", *evidence, *after]))


def _plan(path: Path | None) -> Any:

    from linkwise.answers import plan_of

    return None if path is None else plan_of(path)

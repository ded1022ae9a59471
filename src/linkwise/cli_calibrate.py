"""The command `linkwise calibrate`: its words and options. cli.py registers it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from linkwise.cli_base import print_blocks, print_json
from linkwise.cli_words import Json
from linkwise.core.errors import InputError

if TYPE_CHECKING:
    from linkwise.engine.step_constants import StepCalibration

_ROWS, _OUT = "What the files do not say", "Output"


def calibrate(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="results of vllm bench serve, SGLang, aiperf, guidellm, genai-perf, or CSV"),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="of rows that name none, such as vllm==0.11; no other's rows", rich_help_panel=_ROWS)
    ] = "",
    model: Annotated[
        str, typer.Option(help="of all rows, no other's: a name, a folder or a config.json", rich_help_panel=_ROWS)
    ] = "",
    on: Annotated[
        str, typer.Option(help="of all rows, no other's: a cluster such as 8xh100-sxm", rich_help_panel=_ROWS)
    ] = "",
    tp: Annotated[int | None, typer.Option(help="of all rows, no other's", rich_help_panel=_ROWS)] = None,
    base: Annotated[
        str, typer.Option(help="constants to start from  [default: the shipped ones]", metavar="FILE")
    ] = "",
    kernels: Annotated[
        str,
        typer.Option(
            metavar="FOLDER", help="tables of single kernels, before any results; aiconfigurator = the package's"
        ),
    ] = "",
    *,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="write the calibration", rich_help_panel=_OUT)
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="every row left out, and constants that hardly moved", rich_help_panel=_OUT)
    ] = False,
    json: Json = False,
) -> int:  # fmt: skip
    """Fit an engine's step to your own results.

    Exit code 1: rows left out are predicted worse than before, or no row is explained; 3: too few rows to tell.
    """
    from linkwise import api_calibrate
    from linkwise.engine import step_calibrations
    from linkwise.report.calibrate import kernel_screen, screen

    if output is not None and output.is_dir():
        raise InputError("is a folder", where=str(output), expected="a file to write")
    if not files and not kernels:
        raise InputError("nothing to fit to", where="calibrate", expected="files of results, or --kernels")
    start: str | StepCalibration = base
    if kernels:
        measured = api_calibrate.kernels(kernels, engine=engine, on=on, base=base)
        start = measured.calibration
        if not files:
            if output is not None:
                output.write_text(step_calibrations.dump(start), encoding="utf-8")
            if json:
                print_json(measured)
            else:
                print_blocks(kernel_screen(measured, written=str(output or "")))
            return 0
    outcome, left_out = api_calibrate.fitted(files or [], engine=engine, model=model, on=on, tp=tp, base=start)
    if output is not None:
        output.write_text(step_calibrations.dump(outcome.calibration), encoding="utf-8")
    if json:
        print_json(outcome)
    else:
        print_blocks(screen(outcome, left_out, every=all_, written=str(output or "")))
    return {"better": 0, "worse": 1, "undecided": 3}[outcome.verdict]

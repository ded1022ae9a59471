"""The command `linkwise`: words in, values from `api`, screens from `report`, exit codes of DESIGN §3. Thin."""

import errno
import sys
from typing import Annotated, Any

import typer

from linkwise import (
    cli_autoscale,
    cli_calibrate,
    cli_capacity,
    cli_catalogues,
    cli_cluster,
    cli_diagnose,
    cli_explain,
    cli_handoff,
    cli_lab,
    cli_launch,
    cli_measure,
    cli_place,
    cli_plan,
    cli_report,
    cli_run,
    cli_serve,
    cli_simulate,
    cli_traffic,
    cli_weights,
    streams,
)
from linkwise._version import __version__
from linkwise.cli_base import BAD_INPUT, INTERNAL, INTERRUPTED, YES
from linkwise.cli_words import as_command
from linkwise.core.errors import InputError, LinkwiseError
from linkwise.core.printable import MAX_ECHO, clipped

# Typer carries its own copy of click in some versions, so its usage errors are reached through a public subclass.
_UsageError: type[Any] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Which bytes cross which link, how often, and when it matters. Exit codes: 0 yes, 1 no, 2 bad input, "
    "3 undecidable, 70 internal error, 74 output cannot be written, 130 interrupted.",
)

# In the order the help lists them.
_COMMANDS = (
    cli_plan.fit,
    cli_plan.plan,
    cli_explain.explain,
    cli_plan.compare,
    cli_handoff.handoff,
    cli_place.place,
    cli_measure.measure,
    cli_measure.check,
    cli_lab.lab,
    cli_launch.launch,
    cli_run.run,
    cli_serve.serve,
    cli_weights.weights,
    cli_catalogues.models,
    cli_catalogues.hardware,
    cli_catalogues.engines,
    cli_diagnose.diagnose,
    cli_diagnose.trace,
    cli_diagnose.watch,
    cli_traffic.traffic,
    cli_simulate.simulate,
    cli_capacity.capacity,
    cli_calibrate.calibrate,
    cli_autoscale.autoscale,
    cli_report.report,
    cli_report.ui,
)
_SETTINGS = {"handoff": cli_handoff.SETTINGS}  # every other command with settings takes them all
for _function in _COMMANDS:
    app.command(_function.__name__)(as_command(_function, *_SETTINGS.get(_function.__name__, ())))
app.add_typer(cli_cluster.group, name="cluster")


def _version(wanted: bool) -> None:
    if wanted:
        streams.write(f"linkwise {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    pass


def main(arguments: list[str] | None = None) -> int:
    """Run a command line; returns the exit code. Every failure is one line on stderr."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        with streams.held_output():
            for number, word in enumerate(words, 1):
                _check_text(word, number)
            code = app(words, prog_name="linkwise", standalone_mode=False)
        return code if isinstance(code, int) else YES
    except LinkwiseError as error:
        return _fail(f"error: {error}", error.exit_code, words)
    except _UsageError as error:
        return _fail(f"error: {_bounded(error.format_message())}", BAD_INPUT, words)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except SystemExit as error:
        # A reader of the help that went away: the command line library ends with 1, which here means no.
        return YES if _is_broken_pipe(error.__context__) else error.code if isinstance(error.code, int) else YES
    except Exception as error:  # noqa: BLE001 - the last door: a bug of ours is one line, its traceback on demand
        hint = "" if "--debug" in words else ". This is a bug: --debug shows where"
        return _fail(f"internal error: {type(error).__name__}: {_bounded(str(error))}{hint}", INTERNAL, words)


def _is_broken_pipe(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno == errno.EPIPE


def _check_text(word: str, number: int) -> None:
    try:
        word.encode()
    except UnicodeEncodeError:  # bytes of another encoding arrive as surrogates, which nothing we write could hold
        raise InputError(f"{word!r} is not UTF-8", where=f"word {number}", expected="text in UTF-8") from None


def _bounded(text: str) -> str:
    return clipped(text, 2 * MAX_ECHO)


def _fail(message: str, code: int, words: list[str]) -> int:
    if "--debug" in words:
        streams.trace()
    streams.say(message)
    return code

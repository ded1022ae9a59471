"""The command `linkwise`: words in, values from `api`, screens from `report`, exit codes of DESIGN §3. Thin."""

import errno
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from linkwise import (
    cli_autoscale,
    cli_calibrate,
    cli_capacity,
    cli_cluster,
    cli_diagnose,
    cli_lab,
    cli_launch,
    cli_measure,
    cli_place,
    cli_report,
    cli_run,
    cli_serve,
    cli_simulate,
    cli_traffic,
    cli_weights,
    settings,
    streams,
)
from linkwise._version import __version__
from linkwise.cli_base import BAD_INPUT, INTERNAL, INTERRUPTED, NO, YES, keep, kept, print_blocks, print_json
from linkwise.core.errors import InputError, LinkwiseError
from linkwise.core.printable import MAX_ECHO, clipped

_KEPT = ("fit", "plan", "handoff")  # results that `explain fit:PATH` finds again

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

Json = Annotated[
    bool, typer.Option("--json", help="print the value as JSON, and nothing else", rich_help_panel="Output")
]
Debug = Annotated[bool, typer.Option("--debug", help="show the traceback of an error", rich_help_panel="Output")]
Ranks = Annotated[bool, typer.Option("--ranks", help="every state of every rank class", rich_help_panel="Output")]
Links = Annotated[bool, typer.Option("--links", help="bytes per step by tier and by op", rich_help_panel="Output")]
Why = Annotated[bool, typer.Option("--why", help="every reason of every decision", rich_help_panel="Output")]
Rejected = Annotated[bool, typer.Option("--rejected", help="every rejected layout", rich_help_panel="Output")]
Price = Annotated[
    str, typer.Option("--price", help="USD per device hour: 2.5, or h100-sxm=2.5,h200-sxm=3.4", metavar="USD")
]
PrefillOn = Annotated[
    str, typer.Option("--prefill-on", help="other devices, for prefill groups of separate pools", metavar="CLUSTER")
]
Pareto = Annotated[
    bool,
    typer.Option(
        "--pareto",
        help="layouts, policies and pools side by side; on where there is a target, a price or --prefill-on",
        rich_help_panel="Output",
    ),
]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="write the plan to a file", rich_help_panel="Output")
]
ModelName = Annotated[str, typer.Argument(help="catalogue name, folder with a config.json, or Hugging Face id")]
_TODAY = "What runs today"
AnyModel = Annotated[str | None, typer.Argument(help="as for fit; may be left out with what runs today")]
FromCommand = Annotated[
    str, typer.Option(help="a vllm, sglang or trtllm-serve command", metavar="COMMAND", rich_help_panel=_TODAY)
]
FromManifest = Annotated[
    str,
    typer.Option(
        help="Kubernetes or compose file, or a folder of linkwise launch; FILE:NAME names one of several",
        metavar="FILE",
        rich_help_panel=_TODAY,
    ),
]
FromRunning = Annotated[
    str, typer.Option(help="a vLLM or SGLang server, such as http://host:8000", metavar="URL", rich_help_panel=_TODAY)
]
On = Annotated[str, typer.Option("--on", help="cluster: 8xh100-sxm, 2x8xh200-sxm (nodes first), or a YAML file")]
EngineName = Annotated[
    str, typer.Option("--engine", help="vllm, sglang, trtllm or linkwise; vllm@0.11 names a version")
]
# Left out: the engine of what runs today, or vllm where nothing is said.
OwnEngine = Annotated[
    str | None,
    typer.Option("--engine", help="vllm, sglang, trtllm or linkwise; vllm@0.11 names a version  [default: vllm, "
                 "or the engine --from-command starts]"),
]  # fmt: skip


def _number(kind: type[int] | type[float]) -> Callable[[str], Any]:
    """A parser of ASCII numbers: Python's own also takes `1_000` and the digits of every script."""

    def parse(given: str) -> Any:
        text = str(given)  # a default arrives as the number it is
        try:
            if not text.isascii() or "_" in text:
                raise ValueError
            return kind(text)
        except ValueError:
            word = "integer" if kind is int else "number"
            raise typer.BadParameter(f"{text[:80]!r} is not a valid {word}.") from None

    return parse


_NUMBERS = {int: ("INTEGER", _number(int)), float: ("FLOAT", _number(float))}


def _whole(help: str) -> Any:
    metavar, parser = _NUMBERS[int]
    return typer.Option(help=help, metavar=metavar, parser=parser)


def _command(*names: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Register a command whose `settings` parameter becomes one option per setting named (all when none is)."""

    def register(function: Callable[..., int]) -> Callable[..., int]:
        parameters = dict(inspect.signature(function).parameters)
        table = settings.words() if parameters.pop("settings", None) else {}
        chosen = {name: table[name] for name in names or table}
        own = list(parameters.values())
        # Positional arguments first, then the command's own options, then the settings, then --json and --debug.
        extra = [_option(name, kind, word) for name, (kind, word) in chosen.items()]
        shared = [_parameter("debug", Debug, False)]

        def run(**given: Any) -> int:
            del given["debug"]  # read from the command line by `main`, which also prints what goes wrong before
            values = {name: given.pop(name) for name in chosen}
            return function(**given, **({"settings": values} if table else {}))

        signature = inspect.Signature([*own, *extra, *shared])
        run.__signature__ = signature  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()} | {"return": int}
        run.__doc__ = function.__doc__
        app.command(function.__name__.rstrip("_"))(run)
        return function

    return register


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _option(name: str, kind: Any, word: settings.Word) -> inspect.Parameter:
    flag = "--" + name.replace("_", "-")
    # A switch has no --no- form: absent already says no. Text that becomes a number is parsed by `settings`.
    metavar, parser = _NUMBERS.get(kind, (None, None))
    info = typer.Option(
        flag, help=word.help, metavar=word.metavar or metavar, parser=parser, rich_help_panel=word.group
    )
    plain = kind if kind in {bool, int, float} else str
    return _parameter(name, Annotated[plain | None, info], None)


@_command()
def fit(
    model: Annotated[
        str | None, typer.Argument(help="catalogue name, folder with a config.json, or Hugging Face id")
    ] = None,
    on: On = "",
    engine: OwnEngine = None,
    from_command: FromCommand = "",
    from_manifest: FromManifest = "",
    from_running: FromRunning = "",
    *,
    settings: Any,
    ranks: Ranks = False,
    json: Json = False,
) -> int:
    """Does it fit? What is the first thing that does not?"""
    from linkwise import api

    found = api.fit(
        model, on, engine=engine, from_command=from_command, from_manifest=from_manifest, from_running=from_running,
        **settings,
    )  # fmt: skip
    keep("fit", found)
    if json:
        print_json(found)
    else:
        from linkwise.report import fit as screens

        print_blocks(screens.screen(found), screens.ranks(found) if ranks else ())
    return YES if found.fits else NO


@_command()
def plan(
    model: AnyModel = None,
    on: On = "",
    engine: OwnEngine = None,
    from_command: FromCommand = "",
    from_manifest: FromManifest = "",
    from_running: FromRunning = "",
    price: Price = "",
    prefill_on: PrefillOn = "",
    *,
    settings: Any,
    output: Output = None,
    pareto: Pareto = False,
    why: Why = False,
    ranks: Ranks = False,
    links: Links = False,
    rejected: Rejected = False,
    json: Json = False,
) -> int:
    """How is it split, what does each link carry, how long does it take, and why this way?"""
    from linkwise import api

    found = api.plan(
        model, on, engine=engine, from_command=from_command, from_manifest=from_manifest, from_running=from_running,
        price=price, prefill_on=prefill_on or None, pareto=True if pareto else None, **settings,
    )  # fmt: skip
    from linkwise.report import plan as screens

    if isinstance(found, api.NoPlan):
        more = (screens.pareto(found) if pareto else (), screens.rejected(found) if rejected else ())
        print_json(found) if json else print_blocks(screens.no_plan(found), *more)
        if output:
            streams.say(f"note: there is no plan to write to {output}")
        return NO
    keep("plan", found)
    if output:
        api.save(found, output)
    if json:
        print_json(found)
    else:
        print_blocks(
            screens.screen(found),
            screens.pareto(found) if pareto else (),
            screens.why(found) if why else (),
            screens.ranks(found) if ranks else (),
            screens.links(found) if links else (),
            screens.rejected(found) if rejected else (),
        )
    return YES


@_command()
def explain(
    source: Annotated[
        str, typer.Argument(help="plan file; or fit:PATH, plan:PATH, handoff:PATH (the last result); or seed:ID")
    ],
    path: Annotated[
        str, typer.Argument(help="the figure, such as decode.all_reduce.sent_bytes; left out: lists them")
    ] = "",
    *,
    json: Json = False,
) -> int:
    """The chain behind any figure."""
    from linkwise import api
    from linkwise.report import chain as screens

    kind, colon, rest = source.partition(":")
    if source == "seed:":
        if path:
            raise InputError(f"{path!r} beside 'seed:', which lists the calculations", expected="seed:ID PATH")
        from linkwise.plan.textbook import chains

        print_json(dict(chains())) if json else print_blocks(screens.worked(chains()))
        return YES
    if colon and kind in _KEPT:
        if path and rest:
            raise InputError(f"two paths: {rest!r} and {path!r}", expected=f"{kind}:PATH alone")
        value: Any = kept(kind)
        path = rest or path
    else:
        value = source if kind == "seed" else api.load(source)
    if not path and not isinstance(value, str | api.NoPlan):
        print_json(value.figures) if json else print_blocks(screens.paths(value.figures))
        return YES
    found = api.explain(value, path)
    print_json(screens.data(found)) if json else print_blocks(screens.screen(found))
    return YES


@_command()
def compare(
    a: Annotated[str, typer.Argument(help="plan file")],
    b: Annotated[str, typer.Argument(help="another")],
    *,
    json: Json = False,
) -> int:
    """Two plans side by side: memory, bytes, time, failure boundary."""
    from linkwise import api

    found = api.compare(a, b)
    if json:
        print_json(found)
    else:
        from linkwise.report.compare import screen

        print_blocks(screen(found))
    return YES


@_command(
    "rate", "osl", "ttft", "tpot", "kv_dtype", "weights", "utilization", "max_batched_tokens", "max_seqs", "calibration"
)
def handoff(
    model: ModelName,
    on: On,
    prompt: Annotated[int, _whole("prompt tokens of a request")],
    prefill_tp: Annotated[int, _whole("tensor parallel degree of a prefill group")],
    decode_tp: Annotated[int, _whole("tensor parallel degree of a decode group")],
    prefill_pp: Annotated[int, _whole("pipeline stages of a prefill group")] = 1,
    decode_pp: Annotated[int, _whole("pipeline stages of a decode group")] = 1,
    engine: EngineName = "vllm",
    connector: Annotated[str, typer.Option(help="KV connector; left out: the engine's default")] = "",
    decode_device: Annotated[int | None, _whole("first device of the decode group")] = None,
    retry_share: Annotated[
        float, typer.Option(help="share of the bytes sent again", metavar="SHARE", parser=_number(float))
    ] = 0.0,
    *,
    settings: Any,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="write the answer to a file", rich_help_panel="Output")
    ] = None,
    ranks: Ranks = False,
    links: Links = False,
    json: Json = False,
) -> int:
    """Prefill and decode on different ranks: what the KV between takes. Exit code 1: it does not serve the rate."""
    from linkwise import api
    from linkwise.plan.handoff_types import HandoffOptions

    found = api.handoff(
        model,
        on,
        prompt=prompt,
        prefill_tp=prefill_tp,
        decode_tp=decode_tp,
        prefill_pp=prefill_pp,
        decode_pp=decode_pp,
        engine=engine,
        factors=HandoffOptions(connector=connector, decode_device=decode_device, retry_share=retry_share),
        **settings,
    )
    keep("handoff", found)
    if output:
        api.save(found, output)
    if json:
        print_json(found)
    else:
        from linkwise.report import handoff as screens

        print_blocks(
            screens.screen(found, found.mixed, found.verdict, found.unserved),
            screens.ranks(found) if ranks else (),
            screens.links(found) if links else (),
        )
    return YES if found.holds else NO


_command()(cli_place.place)
_command()(cli_measure.measure)
_command()(cli_measure.check)
_command()(cli_lab.lab)
_command()(cli_launch.launch)
_command()(cli_run.run)
_command()(cli_serve.serve)
_command()(cli_weights.weights)


@_command()
def models(*, json: Json = False) -> int:
    """Models known by name, with sources."""
    from linkwise import api

    return _table("models", api.models(), json)


@_command()
def hardware(*, json: Json = False) -> int:
    """Accelerators known by name, with sources."""
    from linkwise import api

    return _table("hardware", api.hardware(), json)


@_command()
def engines(*, json: Json = False) -> int:
    """Engines known: versions, defaults, sources."""
    from linkwise import api

    return _table("engines", api.engines(), json)


def _table(name: str, values: tuple[Any, ...], json: bool) -> int:
    if json:
        print_json(values)
    else:
        from linkwise.report import catalogues

        print_blocks(getattr(catalogues, name)(values))
    return YES


def _version(wanted: bool) -> None:
    if wanted:
        streams.write(f"linkwise {__version__}")
        raise typer.Exit()


cli_cluster.register(app, print_blocks, print_json)
cli_diagnose.register(_command(), print_blocks, print_json)
cli_traffic.register(_command(), print_blocks, print_json, lambda: kept("plan"))
cli_simulate.register(_command(), print_blocks, print_json, lambda: kept("plan"))
cli_capacity.register(_command(), print_blocks, print_json, lambda: kept("plan"))
cli_calibrate.register(_command(), print_blocks, print_json)
cli_autoscale.register(_command(), print_blocks, print_json, lambda: kept("plan"))
cli_report.register(_command(), print_blocks, lambda: kept("plan"))


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

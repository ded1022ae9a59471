"""Words of several commands: their arguments and options, and how a command gets an option for each setting."""

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from linkwise import settings
from linkwise.core.errors import InputError

Json = Annotated[
    bool, typer.Option("--json", help="print the value as JSON, and nothing else", rich_help_panel="Output")
]
Ranks = Annotated[bool, typer.Option("--ranks", help="every state of every rank class", rich_help_panel="Output")]
Links = Annotated[bool, typer.Option("--links", help="bytes per step by tier and by op", rich_help_panel="Output")]
ModelName = Annotated[str, typer.Argument(help="catalogue name, folder with a config.json, or Hugging Face id")]
On = Annotated[str, typer.Option("--on", help="cluster: 8xh100-sxm, 2x8xh200-sxm (nodes first), or a YAML file")]

_Debug = Annotated[bool, typer.Option("--debug", help="show the traceback of an error", rich_help_panel="Output")]


def unused(given: Mapping[str, object], *, beside: str = "", without: str = "", where: str = "") -> None:
    """Refuse the first option that is given and would change nothing.

    given: values by the option as it is typed; what is false is not given. beside: what rules the options out;
    without: what they need, in place of it.
    """
    for option in (option for option, value in given.items() if value):
        if without:
            raise InputError(f"{option} without {without}", where=where, expected=f"{without} with it")
        raise InputError(
            f"{option} with {beside}", where=where, expected=f"one of them ({option} would change nothing)"
        )


def number(kind: type[int] | type[float]) -> Callable[[str], Any]:
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


_NUMBERS = {int: ("INTEGER", number(int)), float: ("FLOAT", number(float))}


def whole(help: str) -> Any:
    metavar, parser = _NUMBERS[int]
    return typer.Option(help=help, metavar=metavar, parser=parser)


def as_command(function: Callable[..., int], *names: str) -> Callable[..., int]:
    """The function as typer takes it: --debug added, and `settings` as one option per setting named (none named: all).

    Positional arguments come first, then the command's own options, then the settings, then --debug.
    """
    parameters = dict(inspect.signature(function).parameters)
    table = settings.words() if parameters.pop("settings", None) else {}
    chosen = {name: table[name] for name in names or table}

    def run(**given: Any) -> int:
        del given["debug"]  # read from the command line by `main`, which also prints what goes wrong before
        values = {name: given.pop(name) for name in chosen}
        return function(**given, **({"settings": values} if table else {}))

    options = [_option(name, kind, word) for name, (kind, word) in chosen.items()]
    signature = inspect.Signature([*parameters.values(), *options, _parameter("debug", _Debug, False)])
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()} | {"return": int}
    run.__doc__ = function.__doc__
    return run


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

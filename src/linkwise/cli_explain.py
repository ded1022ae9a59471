"""The command `linkwise explain`: its words and options. cli.py registers it."""

import os
from typing import Annotated, Any

import typer

from linkwise.cli_base import YES, kept, print_blocks, print_json
from linkwise.cli_words import Json
from linkwise.core.errors import InputError

_KEPT = ("fit", "plan", "handoff")  # results that `explain fit:PATH` finds again


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
    elif source in _KEPT and not os.path.lexists(source):
        raise InputError("no such file", where=source, expected=f"a plan file, or the last result: {source}:{path}")
    else:
        value = source if kind == "seed" else api.load(source)
    if not path and not isinstance(value, str | api.NoPlan):
        print_json(value.figures) if json else print_blocks(screens.paths(value.figures))
        return YES
    found = api.explain(value, path)
    print_json(screens.data(found)) if json else print_blocks(screens.screen(found))
    return YES

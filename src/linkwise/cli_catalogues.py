"""The commands `linkwise models`, `hardware` and `engines`. cli.py registers them."""

from typing import Any

from linkwise.cli_base import YES, print_blocks, print_json
from linkwise.cli_words import Json


def models(*, json: Json = False) -> int:
    """Models known by name, with sources."""
    from linkwise import api

    return _table("models", api.models(), json)


def hardware(*, json: Json = False) -> int:
    """Accelerators known by name, with sources."""
    from linkwise import api

    return _table("hardware", api.hardware(), json)


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

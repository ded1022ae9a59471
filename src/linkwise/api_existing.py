"""What runs today, from any of the three places that say it: a launch command, files, or the server itself."""

import os
from typing import Protocol

from linkwise import doors
from linkwise.core.errors import InputError
from linkwise.core.files import FilePath
from linkwise.engine.base import Parsed
from linkwise.model.types import Model
from linkwise.plan.types import Ledger

_CLOSE = 0.05  # relative: the ledger is within 3 % of logged capacities in the median


class Read(Protocol):
    """Reads it as the version has it; once more with the model, since a data-parallel flag depends on experts."""

    def __call__(self, *, version: str | None, model: Model | None = None) -> Parsed: ...


def reader(
    from_command: str = "", from_manifest: FilePath = "", from_running: str = "", *, degrees: bool = False
) -> Read | None:
    """How to read what runs today; None when nothing is said. degrees: whether the layout is given beside it.

    Raises InputError for more than one place, or one that says nothing; Undecidable for a server that does not say its
    layout.
    """
    doors.of_type(from_command, str, "from_command", "the text of a command")
    doors.of_type(from_running, str, "from_running", "the address of a server")
    manifest = doors.path(from_manifest, "from_manifest") if from_manifest else ""
    given = {"--from-command": from_command, "--from-manifest": manifest, "--from-running": from_running}
    named = [name for name, text in given.items() if text]
    if len(named) > 1:
        raise InputError(" and ".join(named), where="what runs today", expected="one of them")
    if from_command:
        return _command(from_command)
    if from_running:
        from linkwise.launch.server import read

        return read(from_running, degrees=degrees).parse
    return _manifest(manifest) if manifest else None


def _command(text: str) -> Read:
    from msgspec.structs import replace

    from linkwise.engine.flags import split
    from linkwise.engine.registry import parse_command
    from linkwise.launch import roles

    def read(*, version: str | None, model: Model | None = None) -> Parsed:
        words = split(text)
        found = parse_command(words, version=version, model=model)
        return replace(found, notes=(*found.notes, *roles.said(roles.pool(words), "the command")))

    return read


def _manifest(path: str) -> Read:
    from linkwise.launch.manifest import choose, load

    name = ""
    if not os.path.exists(path) and ":" in path:
        path, _, name = path.rpartition(":")
    found = choose(load(path), name, path)

    def read(*, version: str | None, model: Model | None = None) -> Parsed:
        return found.parse(version=version, model=model)

    return read


def contradiction(model: Model, ledger: Ledger | None, reported: int | None) -> tuple[str, ...]:
    """What to say where a server reports another KV capacity than the ledger has for its layout.

    reported: tokens of each engine. Models whose layers keep different states share out blocks in their own way, and
    shards of a context count differently by engine: nothing is said of those.
    """
    if ledger is None or reported is None or ledger.kv_tokens is None:
        return ()
    layout = ledger.layout
    if layout.cp * layout.dcp > 1 or len({layer.mixer for layer in model.layers} - {"none"}) > 1:
        return ()
    planned = ledger.kv_tokens // layout.dp_attn
    if not planned or abs(reported / planned - 1) <= _CLOSE:
        return ()
    return (
        f"the server reports room for {reported:,} KV tokens in each engine, the plan has {planned:,}:"
        f" {reported / planned:.3g} times it. Its memory share, its other settings or the model's copy differ from"
        " what was read, or something else holds memory there: figures that rest on KV are the plan's",
    )

"""What all commands share: exit codes, how a value is printed, and the last results kept for `explain`."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from linkwise import streams
from linkwise.core.errors import InputError
from linkwise.core.schema import encode_json

YES, NO, BAD_INPUT, UNDECIDABLE, INTERNAL, INTERRUPTED = 0, 1, 2, 3, 70, 130


def print_json(value: Any) -> None:
    streams.write(encode_json(value).decode())


def print_blocks(*blocks: Any) -> None:
    from linkwise.report.text import render

    streams.write("\n".join(render(block, sys.stdout) for block in blocks if block))


@contextmanager
def until_told() -> Iterator[None]:
    """What is inside goes on until SIGINT or SIGTERM, which end it without an error.

    Both get a handler of ours: a shell that starts a command in the background of a script has it ignore SIGINT.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _cache(kind: str) -> Path:
    root = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(root) if os.path.isabs(root) else Path.home() / ".cache") / "linkwise" / f"last-{kind}.json"


def keep(kind: str, value: Any) -> None:
    """Keep the last result for `explain fit:...`. A machine without a writable cache is told, not stopped."""
    from linkwise import api

    try:
        path = _cache(kind)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        api.save(value, path, private=True)
    except (OSError, RuntimeError, InputError) as error:
        streams.say(f"note: this result is not kept for `explain {kind}:`: {error}")


def kept(kind: str) -> Any:
    from linkwise import api

    path = _cache(kind)
    if not os.path.lexists(path):
        raise InputError(f"no last {kind}", where=str(path), expected=f"a `linkwise {kind}` run before")
    value = api.load(path)
    if type(value) is not {"fit": api.Fit, "plan": api.Plan, "handoff": api.Handoff}[kind]:
        raise InputError(f"holds a {type(value).__name__}", where=str(path), expected=f"what `linkwise {kind}` keeps")
    return value

"""Standard output and standard error: written whole, safe to look at, and honest when they cannot be written."""

import io
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TextIO

from linkwise.core.errors import OutputError
from linkwise.core.printable import MAX_ECHO, clipped, printable


@contextmanager
def held_output() -> Iterator[None]:
    """Whatever is printed inside reaches standard output at the end, in one piece; nothing of it after an error.

    A terminal gets it at once. Raises OutputError as `write` does.
    """
    stream = sys.stdout
    if stream is not None and stream.isatty():
        yield
        return
    with redirect_stdout(_Held(stream)) as held:
        yield
    if held.getvalue():
        _deliver(stream, held.getvalue())


class _Held(io.StringIO):
    """What is printed, until it is clear that it stands. goes_to: standard output itself."""

    def __init__(self, goes_to: TextIO | None) -> None:
        super().__init__()
        self.goes_to = goes_to

    def taken(self) -> str:
        """All of it, which is then no longer held."""
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return text


def write(text: str) -> None:
    """A finished answer to standard output. Raises OutputError when it cannot be written.

    A reader that went away (`| head`) is no error: the exit code still answers.
    """
    _deliver(sys.stdout, text if text.endswith("\n") else text + "\n")


def write_now(text: str, *, end: str = "\n", keep: str = "\n") -> None:
    """Text to standard output at once, also inside `held_output`: for a command that goes on, and after what it has
    printed before. Control characters of what others wrote, but those in `keep`, become visible. Raises OutputError as
    `write` does, and when the reader went away: what would follow is for nobody."""
    now, shown = sys.stdout, printable(text, keep=keep) + end
    read = _deliver(now.goes_to, now.taken() + shown) if isinstance(now, _Held) else _deliver(now, shown)
    if not read:
        raise OutputError("nobody reads standard output any more")


def _deliver(stream: TextIO | None, text: str) -> bool:
    """Whether somebody reads it still."""
    if stream is None:
        raise OutputError("cannot write output: standard output is closed")
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")  # a terminal without `·` shows its code
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        _discard(stream)
        return False
    except OSError as error:
        _discard(stream)
        raise OutputError(f"cannot write output: {(error.strerror or str(error)).lower()}") from None
    return True


def _discard(stream: TextIO) -> None:
    # Python flushes its streams again when it ends; what is left in them must go somewhere.
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(message: str) -> None:
    """One line on standard error; lost where that is closed or full, and never on standard output instead."""
    _tell(clipped(printable(" ".join(f"linkwise: {message}".split())), 12 * MAX_ECHO) + "\n")


def trace() -> None:
    """The traceback of the exception being handled, on standard error."""
    _tell(printable(traceback.format_exc(), keep="\n"))


def _tell(text: str) -> None:
    stream = sys.stderr
    if stream is None:
        return
    try:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        stream.write(text)
        stream.flush()
    except OSError:
        _discard(stream)

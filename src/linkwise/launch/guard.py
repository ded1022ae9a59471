"""A launcher that is killed leaves no engine behind: a second process knows their sessions and outlives it.

It reads lines from the launcher, `+pid` for a session that was started and `-pid` for one that was ended. When the pipe
closes, whoever closed it, what is left is ended. (The kernel's parent-death signal would do for one process, not for
the workers below it, and is tied to the thread that started it.)

As a process: `python -m linkwise.launch.guard`, the pipe as its standard input.
"""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterable

from linkwise.launch import sessions

GRACE_S = 20.0  # for an orderly end
_LONGEST_LINE = 32


class Guard:
    """The launcher's end of the pipe."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "linkwise.launch.guard"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # the terminal's Ctrl+C is the launcher's
        )

    def started(self, session: int) -> None:
        """To be called before anything else may go wrong."""
        self._tell(f"+{session}\n")

    def ended(self, session: int) -> None:
        self._tell(f"-{session}\n")

    def close(self) -> None:
        """Everything is ended: nothing is left to guard."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError):  # a guard that was killed guards nothing; the group is served all the same
            if self._process.stdin is not None:
                self._process.stdin.write(line.encode())
                self._process.stdin.flush()


def left(lines: Iterable[bytes]) -> set[int]:
    """The sessions that are still there when the lines end."""
    found: set[int] = set()
    for line in lines:
        words = line.strip()
        if len(words) < _LONGEST_LINE and words[1:].isdigit():
            (found.add if words[:1] == b"+" else found.discard)(int(words[1:]))
    return found


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with the pipe
    sessions.end(left(sys.stdin.buffer), GRACE_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())

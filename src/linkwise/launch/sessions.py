"""Processes of a session, as the kernel lists them: what a started command left running, and what it is doing.

A command is started as the leader of its own session; engines' workers stay in it, whoever their parent is by then.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

_LOOK_S = 0.05


class Seen(NamedTuple):
    """One process. state: the kernel's letter (R running, S asleep, T stopped, ...). title: what it calls itself."""

    pid: int
    state: str
    title: str

    @property
    def stopped(self) -> bool:
        """By a signal or a debugger: it does nothing until it is continued."""
        return self.state in {"T", "t"}


def members(sessions: Iterable[int]) -> list[Seen]:
    """Live processes of these sessions. [] where the system has no /proc."""
    wanted = set(sessions)
    found = []
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
    for name in names:
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                text = file.read(4096).decode(errors="replace")
        except OSError:  # it ended meanwhile
            continue
        # The name in brackets may hold anything, brackets too.
        fields = text.rpartition(")")[2].split()
        if len(fields) > 3 and int(fields[3]) in wanted and fields[0] not in {"Z", "X"}:
            found.append(Seen(int(name), fields[0], _title(name)))
    return found


def _title(pid: str) -> str:
    """Its command line, cut short: engines write a worker's rank there."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(400).split(b"\0")
    except OSError:
        return ""
    return " ".join(w.decode(errors="replace") for w in words if w)[:120]


def end(sessions: Iterable[int], grace_s: float, *, alive: Callable[[Iterable[int]], list[Seen]] = members) -> None:
    """End every process of these sessions: asked to, then made to. Returns when none is left."""
    wanted = list(sessions)
    if not wanted:
        return
    _signal(alive(wanted), signal.SIGTERM)
    # What is stopped would not even see the request.
    _signal(alive(wanted), signal.SIGCONT)
    until = time.monotonic() + grace_s
    while alive(wanted) and time.monotonic() < until:
        time.sleep(_LOOK_S)
    until = time.monotonic() + 60.0
    while (left := alive(wanted)) and time.monotonic() < until:
        _signal(left, signal.SIGKILL)
        time.sleep(_LOOK_S)


def _signal(seen: Iterable[Seen], number: signal.Signals) -> None:
    for one in seen:
        try:
            os.kill(one.pid, number)
        except ProcessLookupError:
            continue

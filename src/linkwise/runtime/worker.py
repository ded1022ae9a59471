"""A rank's process: it takes steps from the driver one after another, runs them, and says so.

Three threads: the main one runs steps, one reads what the driver says and ends the process when the driver is gone, one
sends a heartbeat. Where the model and torch come in is runtime/built.py, so that all of this can be tested without.
"""

import contextlib
import ctypes
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import msgspec

from linkwise.core.errors import InternalError, LinkwiseError
from linkwise.dist.observer import Seen
from linkwise.runtime.control import (
    Beat,
    Began,
    Begin,
    Broken,
    Ended,
    Hello,
    Here,
    Line,
    Move,
    Moved,
    Ping,
    Pong,
    Quit,
    RankFacts,
    Ready,
    Run,
    ToRank,
    Trouble,
)
from linkwise.runtime.health import BEAT_S

_PR_SET_PDEATHSIG = 1
_MAX_INVITATION = 4096


class Invitation(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank is told on its standard input: who it is, where its driver listens. parent: process it dies with."""

    rank: int
    host: str
    port: int
    token: str
    parent: int = 0


class Runs(Protocol):
    """What a rank can do, once it is built."""

    facts: RankFacts

    def progress(self) -> tuple[int, str]:
        """Calls finished and pieces of steps computed so far, and the role of the call under way."""

    def unwritten(self) -> tuple[int, str]:
        """Events that the trace lacks so far, and why nothing is written to it now."""

    def run(self, message: Run) -> tuple[tuple[tuple[int, int], ...], int, tuple[Seen, ...]]:
        """Run a step. Returns what was drawn, nanoseconds spent in calls, and the calls seen if they are observed."""

    def move(self, message: Move) -> tuple[Seen, ...]:
        """This rank's part of a handover. Returns the calls seen if they are observed."""


class Home(Protocol):
    """A process before it is a rank of a model. port: of the store it serves, 0 = none."""

    port: int

    def build(self, begin: Begin) -> AbstractContextManager[Runs]:
        """Join the others and load this rank's part."""

    def parted(self, error: BaseException) -> bool:
        """Whether an error came from another rank's end rather than from here."""


class _State:
    """What the heartbeat tells of the main thread. heard: messages of the driver so far."""

    step = -1
    runs: Runs | None = None
    heard = 0


class Patience(NamedTuple):
    """With a driver that says nothing, though its socket is open: bound_s, after which `over` is told how long."""

    bound_s: float
    over: Callable[[float], Any]


def serve(
    rank: int, line: Line, home: Home, token: str, leave: Callable[[int], Any], patience: Patience | None = None
) -> int:
    """Be a rank until told to quit; returns the exit code. leave: ends the process at once when the driver is gone.

    patience None: the driver started this process and ends with it, however long it is stopped.
    """
    state, inbox = _State(), queue.SimpleQueue[ToRank]()
    line.send(Hello(rank, token, os.getpid(), home.port))
    threading.Thread(target=_read, args=(line, inbox, leave, state), name="linkwise-driver", daemon=True).start()
    over = threading.Event()
    if patience is not None:
        threading.Thread(target=_listen, args=(state, patience, over), name="linkwise-listen", daemon=True).start()
    beat = (line, state, over, threading.get_ident())
    threading.Thread(target=_beat, args=beat, name="linkwise-beat", daemon=True).start()
    try:
        first = inbox.get()
        if isinstance(first, Quit):
            return 0
        if not isinstance(first, Begin):
            raise InternalError(f"the driver began with {type(first).__name__}")
        with home.build(first) as runs:
            # Inside, so that the driver knows of an error before this process takes leave of the others.
            try:
                state.runs = runs
                line.send(Ready(runs.facts))
                _work(line, inbox, runs, state)
            except Exception as error:  # noqa: BLE001 - whatever it is, the driver must hear of it
                return _give_up(line, home, error, leave)
        with contextlib.suppress(Broken):  # how much of the trace was written is known only now
            line.send(_sign(state, threading.get_ident()))
        return 0
    except Broken:
        return 1
    except Exception as error:  # noqa: BLE001 - the same
        return _give_up(line, home, error, leave)
    finally:
        over.set()


def _work(line: Line, inbox: "queue.SimpleQueue[ToRank]", runs: Runs, state: _State) -> None:
    while True:
        message = inbox.get()
        began = time.monotonic_ns()
        if isinstance(message, Run):
            state.step = message.step.number
            line.send(Began(state.step, began))
            drawn, waited_ns, seen = runs.run(message)
            line.send(Ended(state.step, time.monotonic_ns() - began, waited_ns, drawn, seen))
        elif isinstance(message, Move):
            seen = runs.move(message)
            line.send(Moved(message.request, time.monotonic_ns() - began, seen))
        elif isinstance(message, Ping):
            line.send(Pong(message.number, began))
        elif isinstance(message, Quit):
            return


def _read(line: Line, inbox: "queue.SimpleQueue[ToRank]", leave: Callable[[int], Any], state: _State) -> None:
    told = False
    with contextlib.suppress(Broken):
        for message in line.messages():
            state.heard += 1
            if not isinstance(message, Here):
                inbox.put(message)
            told |= isinstance(message, Quit)  # a sign of life may follow it
    if not told:
        leave(1)


def _listen(state: _State, patience: Patience, over: threading.Event) -> None:
    """Whatever the main thread waits in, perhaps for ever: the driver would say so, if it could say anything."""
    heard, silent_s, before = state.heard, 0.0, time.monotonic()
    while not over.wait(BEAT_S):
        now = time.monotonic()
        if state.heard != heard:
            heard, silent_s = state.heard, 0.0
        else:
            silent_s += min(now - before, 2 * BEAT_S)  # this process may have been stopped itself
        before = now
        if silent_s > patience.bound_s:
            patience.over(silent_s)
            return


def _beat(line: Line, state: _State, over: threading.Event, thread: int) -> None:
    """thread: the one that runs steps."""
    with contextlib.suppress(Broken):
        while not over.wait(BEAT_S):
            line.send(_sign(state, thread))


def _sign(state: _State, thread: int) -> Beat:
    """A sign of life. thread: the one that runs steps."""
    runs = state.runs
    if runs is None:
        return Beat(state.step, 0, "", time.monotonic_ns())
    # Where others compute for it a thread is busy waiting for them: that proves nothing.
    cpu_ns = _cpu_ns(thread) if runs.facts.device == "cpu" else 0
    return Beat(state.step, *runs.progress(), time.monotonic_ns(), cpu_ns, *runs.unwritten())


def _cpu_ns(thread: int) -> int:
    """Processor time of a thread; 0 where the system does not say."""
    if sys.platform == "linux":
        return time.clock_gettime_ns(time.pthread_getcpuclockid(thread))
    return 0


def _give_up(line: Line, home: Home, error: Exception, leave: Callable[[int], Any]) -> int:
    with contextlib.suppress(Broken):
        line.send(trouble(error, own=not home.parted(error)))
    if not isinstance(error, LinkwiseError | Broken) and not home.parted(error):
        sys.excepthook(type(error), error, error.__traceback__)
    code = error.exit_code if isinstance(error, LinkwiseError) else 70
    # Other ranks may hang: nothing may wait for them on the way out.
    leave(code)
    return code


def trouble(error: BaseException, *, own: bool) -> Trouble:
    """What the driver is told of an error."""
    if isinstance(error, LinkwiseError):
        return Trouble(error.message[:2000], error.where[:500], error.expected[:500], own, error.exit_code)
    words = " ".join(f"{type(error).__name__}: {error}".split())[:500]
    return Trouble(words, "", "", own, 1 if not own else 70)


def die_with(parent: int) -> None:
    """End with the process that started this one, whatever becomes of the socket. On Linux; else the socket decides."""
    if parent and sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was gone before we asked
            os._exit(1)


def main(open_home: Callable[[int], Home]) -> int:
    """The process that a driver starts: an invitation comes on standard input."""
    invited = msgspec.json.decode(sys.stdin.buffer.readline(_MAX_INVITATION), type=Invitation)
    die_with(invited.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the driver too, which ends us in order
    try:
        line = Line(invited.host, invited.port)
        return serve(invited.rank, line, open_home(invited.rank), invited.token, os._exit)
    except Broken:
        return 1

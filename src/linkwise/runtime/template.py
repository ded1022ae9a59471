"""A chat template: Jinja out of a model folder, filled in by a process of its own that the system holds to its limits.

The names and options are those transformers gives templates; renderer.py is the process.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from linkwise.core.errors import InputError, LinkwiseError
from linkwise.runtime.procstat import stat
from linkwise.runtime.renderer import CPU_S, LENGTH, MAX_TEXT, MEMORY_BYTES, framed

MAX_TEMPLATE = 2**20
WALL_S = 60.0  # for a conversation, on a machine where others take the processor; CPU_S is the bound that counts
TICK_S = 0.1  # between two looks at a process that has not answered yet
HALTED_S = 0.5  # stopped by the system for longer is no debugger's glance
IDLE_S = 5.0  # asleep without any processor time; a template computes, it waits for nothing
KEPT = 2  # processes that wait for the next conversation: as many as read conversations at once in the server
_MAX_FRAME = 6 * MAX_TEXT + 4096  # JSON writes a character in six bytes at most
# What Python needs to start, and the time of day; nothing else of ours is the template's.
_ENVIRONMENT = ("LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "TZ")


T = TypeVar("T")
# Signals that a process may get for what the template does; all others come from outside.
_OWN_ENDS = frozenset({signal.SIGXCPU, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT})


class Unanswered(LinkwiseError):
    """The processes that fill a template in do not answer, which is no fault of the template or the conversation."""

    exit_code = 1


class Template:
    """A compiled chat template. words: bos_token and the like, by name. say: takes a line about a process that had to
    be replaced. Raises InputError when it does not compile.

    Compiling and filling in take at most CPU_S to CPU_S + 1 seconds of processor time, MEMORY_BYTES of address space
    and WALL_S, whatever the template says. A process that is stopped, sleeps or is ended from outside is replaced once.
    """

    def __init__(
        self, text: str, words: dict[str, str], where: str, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self.where, self._words, self._text, self._say = where, words, text, say
        if len(text) > MAX_TEMPLATE:
            raise InputError(
                f"a chat template of {len(text)} characters", where=where, expected=f"at most {MAX_TEMPLATE}"
            )
        try:
            import jinja2  # noqa: F401
        except ImportError:
            raise InputError("the package jinja2 is not installed", expected="pip install linkwise[run]") from None
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        try:
            self._idle.append(self._insist(self._started, time.monotonic() + WALL_S))
        except _Refused as error:
            raise InputError(
                f"the chat template is malformed: {error}", where=where, expected="a Jinja template"
            ) from None

    def render(self, **values: Any) -> str:
        """The text for these values.

        Raises InputError when the template refuses them, fails or exceeds its limits; Unanswered when a process and the
        one started in its place do not answer.
        """

        def filled(deadline: float) -> str:
            process = self._taken(deadline)
            try:
                return process.ask(values, deadline)
            finally:
                self._put_back(process)

        try:
            return self._insist(filled, time.monotonic() + WALL_S)
        except _Refused as error:
            raise InputError(f"the chat template refuses: {error}", where=self.where) from None

    def _insist(self, work: Callable[[float], T], deadline: float) -> T:
        """What the work gives; where a process does not answer, what a second one gives."""
        try:
            return work(deadline)
        except _Silent as silent:
            self._say(f"the process that fills in chat templates {silent}; another one is started")
        with self._lock:  # whatever happened to one may have happened to all
            idle, self._idle = self._idle, []
        for process in idle:
            process.end()
        try:
            return work(deadline)
        except _Silent as silent:
            self._say(f"the process that fills in chat templates {silent}, the second one in a row")
            raise Unanswered(f"the process that fills in chat templates {silent}", where=self.where) from None

    def _put_back(self, process: "_Process") -> None:
        with self._lock:
            kept = process.alive and len(self._idle) < KEPT
            if kept:
                self._idle.append(process)
        if not kept:
            process.end()

    def _taken(self, deadline: float) -> "_Process":
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.alive:
                    return process
                process.end()
        return self._started(deadline)

    def _started(self, deadline: float) -> "_Process":
        process = _Process()
        try:
            process.ask({"template": self._text, "words": self._words}, deadline)
        except (_Refused, _Silent):
            process.end()
            raise
        return process


class _Refused(Exception):
    """The template's error, or the limit it met."""


class _Silent(Exception):
    """Why a process gives no answer, which its template has nothing to do with."""


class _Patience:
    """With a process that has not answered yet. deadline: time.monotonic() at which it ends in any case."""

    def __init__(self, pid: int, deadline: float) -> None:
        self._pid, self._deadline = pid, deadline
        self._looked = time.monotonic()
        self._halted_s = self._idle_s = 0.0
        self._cpu_ticks = -1

    def look(self) -> None:
        """Raises _Silent for a process that will not answer."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, 2 * TICK_S), now  # this process may have been held up itself
        if now > self._deadline:
            raise _Silent(f"has not answered within {WALL_S:g} s")
        seen = stat(self._pid)
        if seen is None:
            return
        self._halted_s = self._halted_s + passed if seen.halted else 0.0
        resting = seen.state == "S" and seen.cpu_ticks == self._cpu_ticks
        self._idle_s, self._cpu_ticks = self._idle_s + passed if resting else 0.0, seen.cpu_ticks
        if self._halted_s > HALTED_S:
            raise _Silent("is stopped by a signal")
        if self._idle_s > IDLE_S:
            raise _Silent(f"has done nothing for {self._idle_s:.0f} s")


class _Process:
    """One renderer. It ends with this object, and with the process that holds its line."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "linkwise.runtime.renderer"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                start_new_session=True,  # Ctrl-C is for its owner
            )
        self._line = ours
        self._line.settimeout(TICK_S)
        self.end = weakref.finalize(self, _end, self._process, ours)

    @property
    def alive(self) -> bool:
        return bool(self.end.alive) and self._process.poll() is None

    def ask(self, value: Any, deadline: float) -> str:
        """The text it answers. Raises _Refused and _Silent, after which it may have ended."""
        patience = _Patience(self._process.pid, deadline)
        try:
            self._send(framed(value), patience)
            answer = json.loads(self._read(LENGTH.unpack(self._read(LENGTH.size, patience))[0], patience))
        except _Silent:
            self.end()
            raise
        except OSError:
            raise self._why() from None
        if answer.get("over"):
            self.end()
        if "error" in answer:
            raise _Refused(answer["error"])
        return str(answer["text"])

    def _send(self, data: bytes, patience: _Patience) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[self._line.send(left) :]
            except TimeoutError:
                patience.look()

    def _read(self, count: int, patience: _Patience) -> bytes:
        if count > _MAX_FRAME:
            self.end()
            raise _Refused(f"an answer of {count} bytes")
        parts = bytearray()
        while len(parts) < count:
            try:
                part = self._line.recv(min(count - len(parts), 1 << 20))
            except TimeoutError:
                patience.look()
                continue
            if not part:
                raise ConnectionResetError
            parts += part
        return bytes(parts)

    def _why(self) -> "_Refused | _Silent":
        """Why it ended."""
        try:
            code = self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            code = 0
        self.end()
        if code < 0 and -code not in _OWN_ENDS:
            return _Silent(f"was ended by signal {-code}")
        if code == -signal.SIGXCPU:
            return _Refused(f"more than {CPU_S} s of processor time")
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        return _Refused(f"the process that fills it in ended {how}; it has {MEMORY_BYTES >> 20} MiB of memory")


def _end(process: "subprocess.Popen[bytes]", line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.close()
    process.kill()
    process.wait()

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
from typing import Any

from linkwise.core.errors import InputError
from linkwise.runtime.renderer import CPU_S, LENGTH, MAX_TEXT, MEMORY_BYTES, send

MAX_TEMPLATE = 2**20
WALL_S = 60.0  # for a conversation, on a machine where others take the processor; CPU_S is the bound that counts
KEPT = 2  # processes that wait for the next conversation: as many as read requests at once in the server
_MAX_FRAME = 6 * MAX_TEXT + 4096  # JSON writes a character in six bytes at most
# What Python needs to start, and the time of day; nothing else of ours is the template's.
_ENVIRONMENT = ("LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "TZ")


class Template:
    """A compiled chat template. words: bos_token and the like, by name. Raises InputError when it does not compile.

    Compiling and filling in take at most CPU_S to CPU_S + 1 seconds of processor time, MEMORY_BYTES of address space
    and WALL_S, whatever the template says.
    """

    def __init__(self, text: str, words: dict[str, str], where: str) -> None:
        self.where, self._words, self._text = where, words, text
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
            self._idle.append(self._started())
        except _Refused as error:
            raise InputError(
                f"the chat template is malformed: {error}", where=where, expected="a Jinja template"
            ) from None

    def render(self, **values: Any) -> str:
        """The text for these values. Raises InputError when the template refuses them, fails or exceeds its limits."""
        try:
            process = self._taken()
            try:
                return process.ask(values)
            finally:
                self._put_back(process)
        except _Refused as error:
            raise InputError(f"the chat template refuses: {error}", where=self.where) from None

    def _put_back(self, process: "_Process") -> None:
        with self._lock:
            kept = process.alive and len(self._idle) < KEPT
            if kept:
                self._idle.append(process)
        if not kept:
            process.end()

    def _taken(self) -> "_Process":
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.alive:
                    return process
                process.end()
        return self._started()

    def _started(self) -> "_Process":
        process = _Process()
        try:
            process.ask({"template": self._text, "words": self._words})
        except _Refused:
            process.end()
            raise
        return process


class _Refused(Exception):
    """The template's error, or the limit it met."""


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
        self._line, self._deadline = ours, 0.0
        self.end = weakref.finalize(self, _end, self._process, ours)

    @property
    def alive(self) -> bool:
        return bool(self.end.alive) and self._process.poll() is None

    def ask(self, value: Any) -> str:
        """The text it answers. Raises _Refused, after which it may have ended."""
        self._deadline = time.monotonic() + WALL_S
        try:
            self._line.settimeout(WALL_S)
            send(self._line, value)
            answer = json.loads(self._read(LENGTH.unpack(self._read(LENGTH.size))[0]))
        except TimeoutError:
            self.end()
            raise _Refused(f"more than {WALL_S:g} s") from None
        except OSError:
            raise _Refused(self._why()) from None
        if answer.get("over"):
            self.end()
        if "error" in answer:
            raise _Refused(answer["error"])
        return str(answer["text"])

    def _read(self, count: int) -> bytes:
        if count > _MAX_FRAME:
            self.end()
            raise _Refused(f"an answer of {count} bytes")
        parts = bytearray()
        while len(parts) < count:
            self._line.settimeout(max(0.001, self._deadline - time.monotonic()))
            part = self._line.recv(min(count - len(parts), 1 << 20))
            if not part:
                raise ConnectionResetError
            parts += part
        return bytes(parts)

    def _why(self) -> str:
        """Why it ended."""
        try:
            code = self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            code = 0
        self.end()
        if code == -signal.SIGXCPU:
            return f"more than {CPU_S} s of processor time"
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        return f"the process that fills it in ended {how}; it has {MEMORY_BYTES >> 20} MiB of memory"


def _end(process: "subprocess.Popen[bytes]", line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.close()
    process.kill()
    process.wait()

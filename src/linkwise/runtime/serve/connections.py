"""Connections: as many as there are descriptors for, none that holds its place without asking anything.

uvicorn bounds neither the time a request's head may take nor who is turned away when there are too many connections.
"""

import asyncio
import contextlib
import errno
import os
import resource
import time
from collections.abc import Callable
from typing import Any

import msgspec
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from linkwise.core.errors import InputError
from linkwise.runtime.serve.errors import ApiError

MAX_CONNECTIONS = 4096
LEAST_CONNECTIONS = 32
RESERVED = 16  # of the connections: for those who ask for health and metrics while the API's are taken
HEAD_S = 10.0  # for the head of a request, from its first byte or the connection's beginning
# asyncio accepts so many connections in one turn of its loop, and needs up to five more turns, each with as many, until
# one that is turned away has given its descriptor back.
ACCEPTED = 32
_UNDER_WAY = 6 * ACCEPTED
PER_RANK = 16  # descriptors: a rank's line, its last words, the pipes of its start
SPARE = 64  # what else is opened while serving: weights' headers, spans, traces
_Protocol: Any = AutoHTTPProtocol


class Connections:
    """One server's connections, at most `most`. A new one takes the place of the one that has been idle longest.

    Idle: no request is being answered. A head that has not come within head_s is answered by 408.
    """

    def __init__(self, most: int = MAX_CONNECTIONS, *, head_s: float = HEAD_S) -> None:
        self._most, self._head_s = most, head_s
        self._open = 0
        self._idle: dict[Any, None] = {}  # longest first

    def full(self) -> bool:
        """Are so many requests being answered that only what is reserved is left?"""
        return self._open - len(self._idle) > self._most - RESERVED

    def protocol(self) -> type[asyncio.Protocol]:
        """What uvicorn takes as `http`."""
        owner = self

        class Bounded(_Protocol):
            """uvicorn's, which tells its owner when it begins and ends to answer."""

            head: asyncio.TimerHandle | None = None

            def connection_made(self, transport: Any) -> None:
                super().connection_made(transport)
                owner._open += 1
                self._await_head()
                owner._made(self)

            def connection_lost(self, exc: Exception | None) -> None:
                owner._open -= 1
                owner._idle.pop(self, None)
                self._head_came()
                super().connection_lost(exc)

            def data_received(self, data: bytes) -> None:
                if self.head is None and self in owner._idle:
                    self._await_head()
                super().data_received(data)
                self._look()

            def on_response_complete(self) -> None:
                super().on_response_complete()
                self._look()

            def _look(self) -> None:
                """A request may have begun or ended."""
                if self.transport.is_closing():
                    return
                if self.cycle is not None and not self.cycle.response_complete:
                    self._head_came()
                    owner._idle.pop(self, None)
                else:
                    owner._idle.setdefault(self)

            def _await_head(self) -> None:
                self.head = self.loop.call_later(owner._head_s, self._late)

            def _head_came(self) -> None:
                if self.head is not None:
                    self.head.cancel()
                    self.head = None

            def _late(self) -> None:
                self.leave(ApiError(408, f"the request's head did not come within {owner._head_s:g} s"))

            def leave(self, error: ApiError) -> None:
                """Close, with a word about why."""
                owner._idle.pop(self, None)
                self._head_came()
                if self.transport.get_write_buffer_size():  # the other side does not read: nothing more will leave
                    self.transport.abort()
                elif not self.transport.is_closing():
                    self.transport.write(_raw(error))
                    self.transport.close()

        return Bounded

    def _made(self, protocol: Any) -> None:
        self._idle[protocol] = None
        if self._open > self._most:
            longest = next(iter(self._idle))
            longest.leave(ApiError(503, "too many connections are open", code="too_many_connections", retry_s=1.0))


def _raw(error: ApiError) -> bytes:
    body = msgspec.json.encode(error.body())
    reason = {408: "Request Timeout", 503: "Service Unavailable"}[error.status]
    headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    lines = [f"{name}: {value}\r\n" for name, value in (headers | error.headers()).items()]
    return f"HTTP/1.1 {error.status} {reason}\r\n{''.join(lines)}\r\n".encode() + body


def allowed(ranks: int, say: Callable[[str], None]) -> int:
    """How many connections this process has descriptors for beside its ranks'; raises its soft limit as far as needed.

    Raises InputError when hardly any is left.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    other = _open_now() + PER_RANK * ranks + _UNDER_WAY + SPARE
    want = MAX_CONNECTIONS + other
    if soft != resource.RLIM_INFINITY and soft < want:
        soft = want if hard == resource.RLIM_INFINITY else min(want, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    most = MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, soft - other)
    if most < LEAST_CONNECTIONS:
        raise InputError(
            f"{soft} open files are allowed to this process",
            where="ulimit -n",
            expected=f"at least {other + LEAST_CONNECTIONS} for {ranks} ranks and a few connections",
        )
    if most < MAX_CONNECTIONS:
        say(f"at most {most} connections at a time, not {MAX_CONNECTIONS}: {soft} open files are allowed (ulimit -n)")
    return most


def _open_now() -> int:
    for folder in ("/proc/self/fd", "/dev/fd"):
        with contextlib.suppress(OSError):
            return len(os.listdir(folder))
    return 64


def complaints(say: Callable[[str], None], quiet_s: float, clock: Callable[[], float] = time.monotonic) -> Any:
    """An exception handler of a loop: no descriptors left is one line in quiet_s, where asyncio writes thousands."""
    said = -quiet_s

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal said
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}):
            loop.default_exception_handler(context)
        elif clock() - said >= quiet_s:
            said = clock()
            say(f"no connection can be accepted: {(error.strerror or str(error)).lower()}")

    return handle

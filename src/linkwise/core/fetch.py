"""One HTTP exchange with a server nobody vouches for: bounded in bytes and in time as a whole.

A timeout of sockets bounds each read alone, so a server that sends a byte a second would hold its reader for ever.
Here the connection itself is shut down when the time is over, in the middle of a TLS handshake or of a header too.
"""

import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Address(NamedTuple):
    """Where a server is. secure: over TLS, its certificate checked."""

    host: str
    port: int
    secure: bool = False


class Failed(Exception):
    """No whole answer: refused, broken off, malformed, too long or too late. Its text says which."""


def exchange(
    address: Address, method: str, path: str, *, within_s: float, most_bytes: int, body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, bytes]:  # fmt: skip
    """Status and body of one request. within_s: from the first packet to the last byte. Raises Failed."""
    until = time.monotonic() + within_s
    over = threading.Event()
    try:
        with _connected(address, within_s) as plain, _shut_down_at(plain, until, over):
            connection = http.client.HTTPConnection(address.host, address.port, timeout=within_s)
            connection.sock = _wrapped(plain, address) if address.secure else plain
            with contextlib.closing(connection):
                connection.request(method, path, body, dict(headers or {}))
                with connection.getresponse() as answer:
                    text = answer.read(most_bytes + 1)
                    status = answer.status
    except (OSError, http.client.HTTPException, ValueError) as error:
        if over.is_set():
            raise Failed(f"no whole answer within {within_s:g} s") from None
        raise Failed(str(error)[:120] or type(error).__name__) from None
    if over.is_set():  # what was shut down reads like an answer that ends
        raise Failed(f"no whole answer within {within_s:g} s")
    if len(text) > most_bytes:
        raise Failed(f"more than {most_bytes} bytes")
    return status, text


@contextlib.contextmanager
def _connected(address: Address, within_s: float) -> Iterator[socket.socket]:
    plain = socket.create_connection((address.host, address.port), timeout=within_s)
    try:
        yield plain
    finally:
        plain.close()


def _wrapped(plain: socket.socket, address: Address) -> socket.socket:
    return ssl.create_default_context().wrap_socket(plain, server_hostname=address.host)


@contextlib.contextmanager
def _shut_down_at(plain: socket.socket, until: float, over: threading.Event) -> Iterator[None]:
    """End the connection at a monotonic time, whoever holds it by then."""
    handle = plain.dup()  # TLS takes the first one away

    def end() -> None:
        over.set()
        with contextlib.suppress(OSError):
            handle.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, until - time.monotonic()), end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # it may be using the handle
        handle.close()

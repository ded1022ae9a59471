"""A server that is slow, endless or silent holds its reader no longer than it was given."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from linkwise.core.fetch import Address, Failed, exchange


@contextmanager
def server(talk: Callable[[socket.socket, threading.Event], None]) -> Iterator[int]:
    """A server that talks to one client after another as it is told; its port."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                try:
                    talk(client, over)
                except OSError:
                    continue

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def drip(head: bytes) -> Callable[[socket.socket, threading.Event], None]:
    """Sends the head at once, then a byte every tenth of a second."""

    def talk(client: socket.socket, over: threading.Event) -> None:
        client.sendall(head)
        while not over.wait(0.1):
            client.sendall(b"x")

    return talk


OPEN = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
COUNTED = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"


@pytest.mark.parametrize("head", [OPEN, COUNTED, b"HTTP/1.1 200 OK\r\nX: ", b"HTTP", b""])
@pytest.mark.parametrize("secure", [False, True])
def test_a_server_that_drips_is_left_when_the_time_is_over(head: bytes, secure: bool) -> None:
    with server(drip(head)) as port:
        began = time.monotonic()
        with pytest.raises(Failed) as raised:
            exchange(Address("127.0.0.1", port, secure), "GET", "/", within_s=0.6, most_bytes=10**6)
        assert time.monotonic() - began < 2
        if not secure:  # bytes that are no TLS end a handshake at once
            assert "within 0.6 s" in str(raised.value)


def test_a_handshake_that_nobody_answers_ends() -> None:
    with server(lambda client, over: over.wait(5) and None) as port:
        began = time.monotonic()
        with pytest.raises(Failed, match=r"within 0\.5 s|timed out"):
            exchange(Address("127.0.0.1", port, True), "GET", "/", within_s=0.5, most_bytes=10**6)
        assert time.monotonic() - began < 2


def test_an_answer_is_bounded_in_bytes() -> None:
    def talk(client: socket.socket, _: threading.Event) -> None:
        client.recv(4096)
        client.sendall(OPEN + b"y" * 1000)

    with server(talk) as port:
        assert exchange(Address("127.0.0.1", port), "GET", "/", within_s=5, most_bytes=1000) == (200, b"y" * 1000)
        with pytest.raises(Failed, match="more than 999 bytes"):
            exchange(Address("127.0.0.1", port), "GET", "/", within_s=5, most_bytes=999)


def test_no_server_is_said() -> None:
    with pytest.raises(Failed, match="refused"):
        exchange(Address("127.0.0.1", 9), "GET", "/", within_s=5, most_bytes=10)

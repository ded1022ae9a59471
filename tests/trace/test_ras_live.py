"""The exchange with a RAS service, played by a socket of ours with the lines NCCL's service says."""

import socket
import threading
from collections.abc import Callable

import pytest

from linkwise.core.errors import InputError
from linkwise.trace.ras_live import ask


def service(answers: Callable[[str], bytes | None], connections: int = 1) -> tuple[str, list[str]]:
    """A service that answers each line; None: it hangs up. Returns its address and what it was told."""
    server = socket.create_server(("127.0.0.1", 0))
    told: list[str] = []

    def serve() -> None:
        with server:
            for _ in range(connections):
                line, _ = server.accept()
                with line, line.makefile("rb") as words:
                    for word in words:
                        told.append(word.decode().strip())
                        said = answers(told[-1])
                        if said is None:
                            break
                        line.sendall(said)
                        if told[-1].endswith("STATUS"):
                            break

    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1:{server.getsockname()[1]}", told


def nccl(word: str, *, json: bool = True) -> bytes:
    if word.startswith("CLIENT PROTOCOL"):
        return b"SERVER PROTOCOL 2\n"
    if word.startswith("SET FORMAT"):
        return b"OK\n" if json else b"ERROR: Unknown command\n"
    return b'{"nccl_version": "2.28.9"}\n' if word == "VERBOSE STATUS" and json else b"OK\n"


def test_json_where_the_service_knows_it() -> None:
    address, told = service(nccl)
    assert ask(address) == b'{"nccl_version": "2.28.9"}\n'
    assert told == ["CLIENT PROTOCOL 2", "TIMEOUT 5", "SET FORMAT json", "VERBOSE STATUS"]


def test_text_from_an_older_one() -> None:
    address, told = service(lambda word: nccl(word, json=False), connections=2)
    assert ask(address) == b"OK\n"
    assert told[-1] == "VERBOSE STATUS"
    assert "SET FORMAT json" not in told[4:]


def test_something_else_is_said() -> None:
    address, _ = service(lambda _: b"HTTP/1.1 400 Bad Request\n")
    with pytest.raises(InputError, match="HTTP/1.1"):
        ask(address)


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    with pytest.raises(InputError, match="no answer"):
        ask(f"127.0.0.1:{free}")


def test_silence_ends_within_its_bound() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(InputError):
        ask(f"127.0.0.1:{server.getsockname()[1]}", timeout_s=0.3)


@pytest.mark.parametrize("address", ["host:0", "host:99999", "host:x"])
def test_a_port_that_is_none(address: str) -> None:
    with pytest.raises(InputError, match="port"):
        ask(address)

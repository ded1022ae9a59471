"""Connections that ask nothing: they hold nobody up, and the process keeps the descriptors its ranks need."""

import asyncio
import errno
import json
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.runtime.serve.words import written
from tests.supervise.fake import FakeUnit, until

from linkwise.core.errors import InputError
from linkwise.runtime.serve import connections
from linkwise.runtime.serve.connections import MAX_CONNECTIONS, RESERVED, Connections, allowed, complaints

HALF = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n"
WHOLE = HALF + b"\r\n"


def line_to(server: Any, data: bytes = b"") -> socket.socket:
    line = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    line.sendall(data)
    return line


def answered(line: socket.socket) -> tuple[int, dict[str, str], dict[str, Any]]:
    """All that comes until the server closes: status, headers, error."""
    data = b"".join(iter(lambda: line.recv(65536), b""))
    head, _, body = data.partition(b"\r\n\r\n")
    status, *headers = head.decode().split("\r\n")
    return int(status.split()[1]), dict(h.split(": ") for h in headers), json.loads(body)["error"]


@pytest.mark.parametrize("sent", [b"", HALF, WHOLE + HALF, HALF + b"x: " + b"y" * 100])
def test_a_head_that_does_not_come_is_408(serve: Callable[..., Any], sent: bytes) -> None:
    server = serve(connections=Connections(head_s=0.2))
    with line_to(server, sent) as line:
        if sent.startswith(WHOLE):  # the first request is answered, then a head begins
            first = line.recv(65536)
            assert first.startswith(b"HTTP/1.1 200")
            line.sendall(b"y: z\r\n")
        status, headers, error = answered(line)
    assert (status, headers["connection"]) == (408, "close")
    assert error["message"] == "the request's head did not come within 0.2 s"
    assert error["type"] == "timeout_error"


def test_a_connection_may_rest_between_requests_and_be_slow_to_answer(serve: Callable[..., Any]) -> None:
    server = serve(FakeUnit("a", pace_s=0.05), connections=Connections(head_s=0.2))
    with httpx.Client(base_url=server.url, timeout=20) as client:
        body = {"prompt": "hello", "max_tokens": 12, "temperature": 0}
        answer = client.post("/v1/completions", json=body)  # 12 tokens 0.05 s apart take longer than a head may
        assert answer.json()["choices"][0]["text"] == written("hello", 12)
        time.sleep(0.4)  # between requests uvicorn's own bound counts
        held = server.connections._open
        assert client.get("/v1/models").status_code == 200
        assert server.connections._open == held


def test_half_open_connections_give_way_to_new_ones(serve: Callable[..., Any]) -> None:
    most = RESERVED + 8
    unit = FakeUnit("a", pace_s=0.002)
    server = serve(unit, connections=Connections(most))
    texts: list[str] = []
    asking = threading.Thread(target=lambda: texts.append(server.ask("kept", 500).json()["choices"][0]["text"]))
    asking.start()
    assert until(lambda: unit.load.running == 1)
    lines = [line_to(server, HALF)]
    assert until(lambda: server.connections._open == 2)
    time.sleep(0.2)  # what it sent is read: a line that is closed with something unread is reset, and has no answer
    lines += [line_to(server, HALF) for _ in range(3 * most - 1)]
    for _ in range(3):
        health = httpx.get(f"{server.url}/health", timeout=20)
        assert health.status_code == 200
        assert httpx.get(f"{server.url}/v1/models", timeout=20).status_code == 200
    assert server.connections._open <= most
    status, headers, error = answered(lines[0])
    assert (status, headers["Retry-After"], error["code"]) == (503, "1", "too_many_connections")
    lines[-1].sendall(b"\r\n")  # the newest ones are still there
    assert lines[-1].recv(65536).startswith(b"HTTP/1.1 200")
    asking.join()
    assert texts == [written("kept", 500)]
    for line in lines:
        line.close()
    assert until(lambda: server.connections._open == len(server.connections._idle) <= 2)


def test_health_is_answered_while_requests_take_all_connections(serve: Callable[..., Any]) -> None:
    unit = FakeUnit("a")
    server = serve(unit, connections=Connections(RESERVED + 3))
    unit.frozen = True
    body = {"prompt": "x", "max_tokens": 5}
    answers: list[httpx.Response] = []

    def ask() -> None:
        answers.append(httpx.post(f"{server.url}/v1/completions", json=body, timeout=20))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert until(lambda: server.supervisor.live == 3)
    full = httpx.post(f"{server.url}/v1/completions", json=body, headers={"x-request-id": "mine"}, timeout=20)
    assert (full.status_code, full.headers["retry-after"]) == (503, "1")
    assert full.headers["x-request-id"] == "mine"
    assert full.json()["error"]["code"] == "too_many_connections"
    for path in ("/health", "/ready", "/metrics"):
        assert httpx.get(server.url + path, timeout=20).status_code in {200, 503}
        assert "too many connections" not in httpx.get(server.url + path, timeout=20).text
    unit.frozen = False
    for thread in threads:
        thread.join()
    assert [a.status_code for a in answers] == [200] * 3


def limits(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> list[tuple[int, int]]:
    """Pretend so many open files are allowed; what is set is listed."""
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(connections, "_open_now", lambda: 10)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: set_to.append(pair))
    return set_to


def test_the_limit_of_descriptors_is_raised_as_far_as_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    # Open 10, two ranks 2 * 16, accepted meanwhile 6 * 32, spare 64: 298 beside the connections.
    said: list[str] = []
    set_to = limits(monkeypatch, 1024, 1 << 20)
    assert allowed(2, said.append) == 4096
    assert set_to == [(4096 + 298, 1 << 20)]
    assert limits(monkeypatch, 1 << 20, 1 << 20) == []
    assert allowed(2, said.append) == MAX_CONNECTIONS
    set_to = limits(monkeypatch, 1024, resource.RLIM_INFINITY)
    assert allowed(2, said.append) == 4096
    assert set_to == [(4394, resource.RLIM_INFINITY)]
    assert said == []


def test_fewer_descriptors_are_fewer_connections_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    set_to = limits(monkeypatch, 512, 1024)
    assert allowed(2, said.append) == 1024 - 298
    assert set_to == [(1024, 1024)]
    assert said == ["at most 726 connections at a time, not 4096: 1024 open files are allowed (ulimit -n)"]
    limits(monkeypatch, 256, 256)
    with pytest.raises(InputError, match="256 open files are allowed.*expected at least 330 for 2 ranks"):
        allowed(2, said.append)


def test_no_descriptors_left_is_one_line() -> None:
    said: list[str] = []
    others: list[Any] = []
    now = [0.0]
    handle = complaints(said.append, 60.0, lambda: now[0])

    class Loop(asyncio.AbstractEventLoop):
        def default_exception_handler(self, context: Any) -> None:
            others.append(context)

    for at in (0.0, 1.0, 59.0, 60.0):
        now[0] = at
        handle(Loop(), {"exception": OSError(errno.EMFILE, "Too many open files")})
    assert said == ["no connection can be accepted: too many open files"] * 2
    handle(Loop(), {"exception": ValueError("x")})
    handle(Loop(), {"message": "no exception at all"})
    assert len(others) == 2


SERVED = """
import socket, sys, threading, time
from tests.runtime.serve.words import FakeText
from tests.supervise.fake import FakeUnit
from linkwise.runtime.serve.app import Service
from linkwise.runtime.serve.metrics import Metrics
from linkwise.runtime.serve.run import bind, serve
from linkwise.runtime.serve.spans import Spans
from linkwise.supervise.supervisor import Supervisor
say = lambda line: print(line, file=sys.stderr, flush=True)
supervisor = Supervisor([FakeUnit("a")], say=say)
service = Service(supervisor, FakeText(), "tiny", Metrics("tiny", 512), Spans(None, "tiny"))
sys.exit(serve(service, bind("127.0.0.1", 0), say, drain_s=0.1, ranks=2))
"""


def test_a_flood_of_half_open_connections_leaves_descriptors_for_ranks(tmp_path: Path) -> None:
    allowed = 512

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))

    said = tmp_path / "said"
    with said.open("wb") as errors:
        process = subprocess.Popen([sys.executable, "-c", SERVED], stderr=errors, preexec_fn=few)  # noqa: PLW1509
    lines: list[socket.socket] = []
    try:
        assert until(lambda: b"serving on" in said.read_bytes() or process.poll() is not None, 60)
        url = said.read_text().split("serving on ")[1].split()[0]
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        for _ in range(2 * allowed):
            lines.append(socket.create_connection(address, timeout=20))
            lines[-1].sendall(HALF)
        assert httpx.get(f"{url}/health", timeout=20).status_code == 200
        held = len(list(Path(f"/proc/{process.pid}/fd").iterdir())) if sys.platform == "linux" else 0
        assert held <= allowed - 2 * connections.PER_RANK  # what two ranks need to start again
    finally:
        for line in lines:
            line.close()
        process.terminate()
        assert process.wait(30) == 0
    words = said.read_text()
    assert "at most" in words
    assert "Traceback" not in words and "open files\n" not in words

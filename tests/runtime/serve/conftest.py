"""One real server on a port of this machine, over two fake units, for the tests of this folder."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.runtime.serve.words import FakeText
from tests.supervise.fake import FakeUnit, until

from linkwise.runtime.serve.app import Service
from linkwise.runtime.serve.connections import Connections
from linkwise.runtime.serve.limits import Limits
from linkwise.runtime.serve.metrics import Metrics
from linkwise.runtime.serve.run import bind
from linkwise.runtime.serve.run import server as web_server
from linkwise.runtime.serve.spans import Spans
from linkwise.supervise.rules import Rules
from linkwise.supervise.supervisor import Supervisor


class Running:
    """A server in a thread. client: an httpx client of it."""

    def __init__(
        self, units: list[FakeUnit], rules: Rules, limits: Limits, key: str, spans: Path | None,
        connections: Connections | None = None,
    ) -> None:  # fmt: skip
        self.units, self.text = units, FakeText()
        self.supervisor = Supervisor(units, rules)
        self.said: list[str] = []
        self.service = Service(
            self.supervisor, self.text, "tiny", Metrics("tiny", 512), Spans(spans, "tiny", self.said.append), limits,
            key, 1_700_000_000,
        )  # fmt: skip
        self.supervisor.start()
        self.listener: socket.socket = bind("127.0.0.1", 0)
        self.port = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.connections = connections or Connections()
        self.server = web_server(self.service, self.connections)
        self.thread = threading.Thread(
            target=lambda: asyncio.run(self.server.serve(sockets=[self.listener])), daemon=True
        )
        self.thread.start()
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.client = httpx.Client(base_url=self.url, timeout=20, headers=headers)
        assert until(lambda: set(self.supervisor.phases().values()) == {"ready"} and self.server.started)

    def ask(self, prompt: str = "hello", count: int = 8, **more: Any) -> httpx.Response:
        body = {"prompt": prompt, "max_tokens": count, "temperature": 0, **more}
        return self.client.post("/v1/completions", json=body)

    def metric(self, start: str) -> float:
        """The value of the series that begins so."""
        lines = self.client.get("/metrics").text.splitlines()
        (line,) = [line for line in lines if line.startswith(start)]
        return float(line.rsplit(" ", 1)[1])

    def close(self) -> None:
        self.client.close()
        self.supervisor.stop()
        self.service.spans.close()
        self.server.should_exit = self.server.force_exit = True
        self.thread.join(5)
        assert not self.supervisor.bugs
        self.supervisor.endings()


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[..., Running]]:
    """Starts servers that live as long as the module's tests."""
    made: list[Running] = []

    def start(
        *units: FakeUnit, limits: Limits | None = None, key: str = "", spans: Path | None = None,
        connections: Connections | None = None, **rules: Any,
    ) -> Running:  # fmt: skip
        given = {"backoff_s": 0.01, "backoff_most_s": 0.05, "failures": 1000, "probe_s": 0.5, **rules}
        some = list(units) or [FakeUnit("a"), FakeUnit("b")]
        running = Running(some, Rules(**given), limits or Limits(), key, spans, connections)
        made.append(running)
        return running

    yield start
    for running in made:
        running.close()


@pytest.fixture(scope="module")
def server(serve: Callable[..., Running]) -> Running:
    return serve()

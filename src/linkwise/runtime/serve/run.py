"""The server's process: one socket, the units' lives, an orderly end."""

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from linkwise.core.errors import InputError
from linkwise.dist.watch import Lost
from linkwise.runtime.serve.app import Service, create_app
from linkwise.runtime.serve.connections import ACCEPTED, Connections, allowed, complaints
from linkwise.runtime.serve.limits import is_local
from linkwise.supervise.health import described
from linkwise.supervise.supervisor import Supervisor

BACKLOG = 1024  # connections that the system holds until they are accepted
CLOSE_S = 1.0  # for the last answers to leave
QUIET_S = 60.0  # a warning is not said again for so long: whoever reaches the port causes as many as he likes


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. InputError when the address is taken or not of this machine: before any rank is started."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InputError(f"{host!r}: {_reason(error)}", where="--host", expected="an address of this machine") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise InputError(f"port {port} is in use", where="--port", expected="a free port, or 0 for any") from None
        raise InputError(f"{host}:{port}: {_reason(error)}", where="--host, --port") from None
    return listener


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def check_host(host: str, key: str, *, no_key: bool) -> None:
    """An address that others reach needs a key, or the word that none is wanted."""
    if not is_local(host) and not key and not no_key:
        raise InputError(
            f"{host} can be reached from other machines and there is no API key",
            where="--host",
            expected="LINKWISE_API_KEY or --key-file, or --no-key to serve anybody",
        )


class Seldom(logging.Filter):
    """Lets each warning through once in QUIET_S; errors always."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock, self._said = clock, dict[str, float]()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.ERROR:
            return True
        now, words = self._clock(), str(record.msg)  # the words before values are put in, of which there are few
        if now - self._said.get(words, -QUIET_S) < QUIET_S:
            return False
        self._said[words] = now
        return True


_SELDOM = Seldom()  # of the process, as its loggers are


class _Server(uvicorn.Server):
    """uvicorn's, without its signal handlers: the end is ours."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)  # asyncio has one number for this and for how many it accepts at once

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(
    service: Service, listener: socket.socket, say: Callable[[str], None], *, drain_s: float = 30.0, ranks: int = 16
) -> int:
    """Serve until SIGTERM (returns 0) or SIGINT (130). Raises InputError when no unit ever comes up.

    ranks: processes of all units, which need descriptors of this one.
    At the signal no more is taken, which the open port tells whoever asks; live requests get drain_s to end, the rest
    is cancelled, the port closed, all units are ended. A second signal ends the waiting.
    """
    # A tokenizer's own threads would make short texts wait for long ones; see turns.py.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    connections = Connections(allowed(ranks, say))
    return asyncio.run(_serve(service, connections, listener, say, drain_s))


def server(service: Service, connections: Connections) -> uvicorn.Server:
    """uvicorn over the service's routes and within the bounds of its connections."""
    app = create_app(service, connections.full)
    config = uvicorn.Config(
        app, http=connections.protocol(), log_config=None, log_level="warning", access_log=False, lifespan="off",
        timeout_keep_alive=30, server_header=False, ws="none", backlog=ACCEPTED,
    )  # fmt: skip
    return _Server(config)


async def _serve(
    service: Service, connections: Connections, listener: socket.socket, say: Callable[[str], None], drain_s: float
) -> int:
    supervisor = service.supervisor
    web = server(service, connections)
    logging.getLogger("uvicorn.error").addFilter(_SELDOM)
    signals: list[int] = []
    asked, hurry = asyncio.Event(), asyncio.Event()

    def signalled(number: int) -> None:
        (hurry if signals else asked).set()
        signals.append(number)

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(complaints(say, QUIET_S))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled, number)
    supervisor.start()
    running = asyncio.create_task(web.serve(sockets=[listener]))
    stopping = asyncio.create_task(asked.wait())
    rising = asyncio.create_task(_come_up(supervisor, say, listener))
    failure: BaseException | None = None
    try:
        await asyncio.wait({running, stopping, rising}, return_when=asyncio.FIRST_COMPLETED)
        if rising.done():
            failure = rising.exception()
            if failure is None:
                await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if signals:
            say(f"stopping: {supervisor.live} requests have {drain_s:g} s to end")
    finally:
        rising.cancel()
        quick = 0.0 if failure is not None else drain_s
        await _end(supervisor, web, running, hurry, quick)
        stopping.cancel()
        await asyncio.gather(stopping, rising, return_exceptions=True)
        service.spans.close()
        _tell_dropped(service, say)
    if failure is not None:
        raise failure
    return 130 if signals and signals[0] == signal.SIGINT else 0


def _tell_dropped(service: Service, say: Callable[[str], None]) -> None:
    """At the end: what could not be written."""
    events = sum(load.unwritten_events for load in service.supervisor.loads().values())
    if events:
        say(f"{events:,} events are missing in the traces: they could not be written")
    if service.spans.dropped:
        say(f"{service.spans.dropped:,} spans are missing: they could not be written")


async def _end(supervisor: Supervisor, server: Any, running: Any, hurry: asyncio.Event, drain_s: float) -> None:
    """Nothing new is taken; live requests end, by themselves or by us; then the port, units, and what is open."""
    await asyncio.to_thread(supervisor.drain, drain_s, hurry.is_set)
    server.should_exit = True  # closes the listening socket; answers on their way go on
    await asyncio.to_thread(supervisor.stop)
    await asyncio.wait({running}, timeout=CLOSE_S)
    server.force_exit = True
    await asyncio.gather(running, return_exceptions=True)


async def _come_up(supervisor: Supervisor, say: Callable[[str], None], listener: socket.socket) -> None:
    """Say when the first unit serves; ends with an error once none ever will.

    A unit that cannot start at all is bad input, and nothing to try again.
    """
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    while not supervisor.ready:
        for record in supervisor.records:
            if record.fault.kind in {"start", "map"}:
                raise InputError(described(record.fault), where=record.unit)
        if set(supervisor.phases().values()) == {"given up"}:
            raise InputError("no unit came up", where="supervisor")
        await asyncio.sleep(0.02)
    say(f"serving on http://{shown}:{port}")
    while supervisor.hopeful:
        await asyncio.sleep(0.25)
    raise Lost(f"every group stays down: {supervisor.why_down()}")

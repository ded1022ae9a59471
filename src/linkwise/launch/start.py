"""Start what was written, from the files alone; route, watch, and stop without leaving a process."""

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn

from linkwise.core.errors import InputError, Refused
from linkwise.launch.front import Front
from linkwise.launch.guard import Guard
from linkwise.launch.key import read as key_of
from linkwise.launch.types import Deployment, Role
from linkwise.launch.unit import EngineUnit
from linkwise.launch.write import read
from linkwise.supervise.fleet import Fleet, Listener
from linkwise.supervise.mailbox import Mailbox
from linkwise.supervise.rules import Rules
from linkwise.supervise.types import Fault

Say = Callable[[str], None]


def run(folder: Path, rules: Rules, say: Say, *, bound_s: float, timeout_s: float, start: bool) -> int:
    """Serve until SIGTERM or SIGINT; 0 then, 1 when a group does not start or every group stays down.

    start: bring the processes up too.

    Raises InputError for a folder that cannot be read and a key that is not there, Refused for processes of other
    machines.
    """
    made = read(folder)
    if start:
        _here(made)
    needed = key_of(os.environ) if made.keyed else ""
    guard = Guard() if start else None
    try:
        units = units_of(made, folder, bound_s=bound_s, guard=guard, key=needed)
        return _routed(made, units, rules, say, bound_s, timeout_s)
    finally:
        if guard is not None:
            guard.close()


def _routed(
    made: Deployment, units: dict[Role, list[EngineUnit]], rules: Rules, say: Say, bound_s: float, timeout_s: float
) -> int:
    pools = [units["both"]] if units["both"] else [units["prefill"], units["decode"]]
    front = next(p for p in made.processes if p.url == made.front)
    listen = "127.0.0.1" if front.host == "127.0.0.1" else "0.0.0.0"  # noqa: S104 - as the files have it
    with _bound(listen, front.ports["http"]) as listener:
        return asyncio.run(_serve(pools, rules, say, listener, bound_s=bound_s, timeout_s=timeout_s))


def units_of(
    made: Deployment, folder: Path, *, bound_s: float, guard: Guard | None, key: str = ""
) -> dict[Role, list[EngineUnit]]:
    """A unit per group, by role. guard: of the processes to be started; None = they were started elsewhere. key: what
    requests need."""
    found: dict[Role, list[EngineUnit]] = {"both": [], "prefill": [], "decode": []}
    for group in made.groups:
        own = [p for p in made.processes if p.group == group.name]
        doors = [p for p in own if p.url]
        if not doors:
            raise Refused(
                f"{group.name} opens no door of its own: {made.engine} routes its groups itself", where="--start",
                hint="start.sh starts it",
            )  # fmt: skip
        processes = [p for p in own if not p.started_by] if guard is not None else []
        unit = EngineUnit(
            group.name, processes, doors[0], folder.resolve(), made.called, bound_s=bound_s, guard=guard, key=key
        )  # fmt: skip
        found[group.role].append(unit)
    return found


def _here(made: Deployment) -> None:
    """Refuse processes of other machines: nothing here can start them."""
    own = {"127.0.0.1", "localhost", socket.gethostname()}
    for process in made.processes:
        if process.host not in own:
            raise Refused(
                f"{process.name} belongs on {process.host}", where="--start",
                expected=f"processes of this machine ({', '.join(sorted(own))})",
                hint="start.sh on each node starts what belongs there; --hosts names this machine for several nodes",
            )  # fmt: skip


@contextlib.contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise InputError(f"port {port}: {(error.strerror or str(error)).lower()}", where="--start") from None
        listener.listen(1024)
        yield listener


async def _serve(
    pools: list[list[EngineUnit]], rules: Rules, say: Say, listener: socket.socket, *, bound_s: float, timeout_s: float
) -> int:
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    began = time.monotonic()

    served: list[str] = []
    failed: list[str] = []

    def ready(name: str) -> None:
        served.append(name)
        say(f"{name} serves, {time.monotonic() - began:.0f} s after the start")

    def lost(name: str, fault: Fault) -> None:
        # Before anything has served a start that fails would fail again; later the fleet says it and tries again.
        if fault.kind == "start" and not served:
            failed.append(f"{name} does not start: {fault.message}")
        if failed or not fleet.hopeful:
            loop.call_soon_threadsafe(over.set)

    mailbox = Mailbox("linkwise-launch", lambda error: say(f"internal error: {type(error).__name__}: {error}"[:300]))
    units = [unit for pool in pools for unit in pool]
    fleet = Fleet(units, rules, mailbox, Listener(ready=ready, lost=lost, say=say))
    front = Front(pools, rules, bound_s=bound_s, timeout_s=timeout_s)
    server = uvicorn.Server(
        uvicorn.Config(front.app(), log_level="warning", lifespan="off", timeout_graceful_shutdown=5)
    )  # fmt: skip
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    mailbox.start()
    mailbox.post(fleet.start)
    serving = asyncio.create_task(_quiet(server, listener))
    try:
        await over.wait()
        hopeful, why = fleet.hopeful, fleet.why_down()
    finally:
        server.should_exit = True
        await asyncio.wait({serving}, timeout=10)
        await front.close()
        await asyncio.to_thread(fleet.stop)
        await asyncio.to_thread(mailbox.close)
    if failed:
        say(failed[0])
        return 1
    if hopeful:
        say("stopped")
        return 0
    say(f"every group stays down: {why}")
    return 1


async def _quiet(server: uvicorn.Server, listener: socket.socket) -> None:
    """Serve without uvicorn's own signal handling: the signals are this command's."""
    with contextlib.suppress(SystemExit):
        server.capture_signals = contextlib.nullcontext
        await server.serve(sockets=[listener])

"""A group of engine processes as a unit of supervise/: started from its scripts, watched, ended whole.

An engine's own /health stays 200 while one of its workers is stopped. So a unit counts as alive only while tokens come:
answers that pass by say so, and when none does a token is asked for. Beside that its processes are looked at, which
names the one at fault: stopped, or gone.
"""

import contextlib
import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from linkwise.core.errors import InputError
from linkwise.core.fetch import Address, Failed, exchange
from linkwise.core.files import read_bytes
from linkwise.core.printable import clipped, printable
from linkwise.launch import sessions
from linkwise.launch.guard import GRACE_S, Guard
from linkwise.launch.key import headers
from linkwise.launch.types import Process
from linkwise.supervise.types import Event, Fault, FaultKind, Job, Load, State

LOOK_S = 0.5  # between two looks at the processes
STOPPED_S = 2.0  # a process that is stopped for so long is at fault; a debugger's stop in passing is not
_MOST_ANSWER = 1 << 20
# How Python and the engines say why: "RuntimeError: no device", "Worker proc 0 died unexpectedly (exit code: -4)".
_REASON = re.compile(r"\b\w*(Error|Exception): \S|died unexpectedly")
_HARMLESS = re.compile(r"\b(WARNING|INFO|DEBUG)\b")

Watch = Callable[[State, Fault | None], None]


class EngineUnit:
    """One group. bound_s: a worker that does nothing is named within it. Without processes of its own (started
    elsewhere) only its answers are watched.

    guard: told of every session, so that none outlives this process. key: what requests need; "" = nothing.
    last_s: time.monotonic() of the last sign of a token, also given by whoever passes answers on.
    """

    max_tokens = 0

    def __init__(
        self, name: str, processes: Sequence[Process], door: Process, folder: Path, model: str, *, bound_s: float,
        guard: Guard | None = None, key: str = "",
    ) -> None:  # fmt: skip
        self.name, self.door, self.last_s = name, door, 0.0
        self._processes, self._folder, self._model, self._bound_s = tuple(processes), folder, model, bound_s
        self._guard, self._key = guard, key
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._from: dict[str, int] = {}  # where its log begins in this life
        self._state: State = "stopped"
        self._life = 0
        self._lock = threading.Lock()

    @property
    def state(self) -> State:
        return self._state

    @property
    def load(self) -> Load:
        return Load(0, 0, 0, 0)

    @property
    def progress_s(self) -> float:
        return self.last_s

    def start(self, watch: Watch) -> None:
        """Start every process from its script, and watch them."""
        with self._lock:
            self._life += 1
            self._state = "starting"
            self._running = {p.name: self._spawn(p) for p in self._processes}
            life = self._life
        threading.Thread(target=self._watch, args=(life, watch), name=f"linkwise-{self.name}", daemon=True).start()

    def stop(self) -> None:
        with self._lock:
            self._life += 1
            self._state = "stopped"
            self._end()

    def submit(self, job: Job, sink: Callable[[Event], None]) -> None:
        raise RuntimeError("requests go to an engine over HTTP")

    def cancel(self, id: str) -> None:
        """Nothing: whoever closes the connection cancels."""

    def probe(self, answer: Callable[[bool], None]) -> None:
        threading.Thread(target=lambda: answer(self.token(self._bound_s)), daemon=True).start()

    def token(self, within_s: float) -> bool:
        """Does one token come within so many seconds?"""
        body = {"model": self._model, "prompt": "1", "max_tokens": 1, "temperature": 0}
        status, text = ask(self.door, "POST", "/v1/completions", body, within_s, headers(self._key))
        good = status == 200 and b'"choices"' in text
        if good:
            self.last_s = time.monotonic()
        return good

    # -- its own processes

    def _spawn(self, process: Process) -> subprocess.Popen[bytes]:
        logs = self._folder / "logs"
        logs.mkdir(exist_ok=True)
        with open(logs / f"{process.name}.log", "ab") as log:
            self._from[process.name] = log.tell()
            script = str(self._folder / "processes" / f"{process.name}.sh")
            started = subprocess.Popen(  # noqa: S603 - the folder's own script
                ["/usr/bin/env", "bash", script],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self._folder,
            )
        if self._guard is not None:
            self._guard.started(started.pid)
        return started

    def _end(self) -> None:
        sessions.end([p.pid for p in self._running.values()], GRACE_S)
        for process in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            if self._guard is not None:
                self._guard.ended(process.pid)
        self._running = {}

    def _sessions(self) -> list[int]:
        return [p.pid for p in self._running.values()]

    # -- the watching thread

    def _watch(self, life: int, watch: Watch) -> None:
        fault = self._until_ready(life)
        if fault is None and life == self._life:
            self._state = "ready"
            watch("ready", None)
            fault = self._until_fault(life)
        if fault is not None and life == self._life:
            with self._lock:
                if life != self._life:
                    return
                self._state = "failed"
                self._end()
            watch("failed", fault)

    def _until_ready(self, life: int) -> Fault | None:
        while life == self._life:
            if fault := self._ended():
                return fault._replace(kind="start")
            status, _ = ask(self.door, "GET", "/health", None, 5.0)
            if status == 200 and self.token(self._bound_s):
                return None
            time.sleep(LOOK_S)
        return None

    def _until_fault(self, life: int) -> Fault | None:
        known = {seen.pid: seen.title for seen in sessions.members(self._sessions())}
        stopped: dict[int, float] = {}
        asked: _Asked | None = None
        while life == self._life:
            now = time.monotonic()
            if fault := self._ended():
                return fault
            here = {seen.pid: seen for seen in sessions.members(self._sessions())}
            stopped = {pid: stopped.get(pid, now) for pid, seen in here.items() if seen.stopped}
            for pid, since in stopped.items():
                if now - since >= min(STOPPED_S, self._bound_s):
                    return self._fault("stopped", f"process {pid} is stopped: {here[pid].title}")
            gone = [pid for pid in known if pid not in here]
            if asked is not None and asked.done:
                if not asked.good and self.last_s < asked.since:
                    who = f"; process {gone[0]} is gone: {known[gone[0]]}" if gone else ""
                    kind: FaultKind = "dead" if gone else "slow"
                    took = f"asked for a token, none came in {asked.took_s:.1f} s"
                    return self._fault(kind, f"{took}; /health says {self._says()}{who}")
                known = {pid: seen.title for pid, seen in here.items()} if asked.good else known
                asked = None
            if asked is None and (gone or now - max(self.last_s, 0.0) > self._bound_s / 3):
                asked = _Asked(self, self._bound_s / 2)
            time.sleep(LOOK_S)
        return None

    def _says(self) -> str:
        return str(ask(self.door, "GET", "/health", None, 2.0)[0] or "nothing")

    def _ended(self) -> Fault | None:
        for name, process in self._running.items():
            code = process.poll()
            if code is not None:
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                return self._fault("dead", f"{name} ended with {how}{self._reason(name)}")
        return None

    def _fault(self, kind: FaultKind, message: str) -> Fault:
        after = time.monotonic() - self.last_s if self.last_s else 0.0
        return Fault((), kind, clipped(printable(message), 400), after)

    def _reason(self, name: str) -> str:
        """The first line of a process's log in this life that gives an error's reason, or its last line."""
        try:
            text = read_bytes(self._folder / "logs" / f"{name}.log", max_bytes=1 << 30)
        except InputError:
            return ""
        own = text[self._from.get(name, 0) :][-4_000_000:].decode(errors="replace")
        lines = [line.strip() for line in own.splitlines() if line.strip()]
        return (
            f": {next((line for line in lines if _REASON.search(line) and not _HARMLESS.search(line)), lines[-1])}"
            if lines
            else ""
        )


class _Asked:
    """A token that was asked for. since: when; took_s: until it came, or it was clear that none would."""

    def __init__(self, unit: EngineUnit, within_s: float) -> None:
        self.since, self.took_s, self.done, self.good = time.monotonic(), 0.0, False, False
        threading.Thread(target=self._ask, args=(unit, within_s), daemon=True).start()

    def _ask(self, unit: EngineUnit, within_s: float) -> None:
        self.good = unit.token(within_s)
        self.took_s = time.monotonic() - self.since
        self.done = True


def ask(
    door: Process, method: str, path: str, body: dict[str, Any] | None, within_s: float,
    more: Mapping[str, str] | None = None,
) -> tuple[int, bytes]:  # fmt: skip
    """Status and answer of a server, bounded in size and time; status 0 when there is none. more: headers."""
    text = None if body is None else json.dumps(body).encode()
    said = {**({"Content-Type": "application/json"} if text else {}), **(more or {})}
    try:
        return exchange(
            Address(door.host, door.ports["http"]), method, path, within_s=within_s, most_bytes=_MOST_ANSWER,
            body=text, headers=said,
        )  # fmt: skip
    except Failed:
        return 0, b""

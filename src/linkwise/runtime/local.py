"""The ranks of a unit as processes of this machine: started, watched, ended, and none left behind."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, Protocol

import msgspec

from linkwise.runtime.procstat import stat
from linkwise.runtime.worker import Invitation

COMMAND = (sys.executable, "-m", "linkwise.runtime.rank")
_SAID = 4000  # last bytes of what a rank wrote on standard error


class Launched(Protocol):
    """The processes of a unit's ranks, whoever starts them."""

    def start(self, host: str, port: int, token: str) -> None: ...
    def ended(self) -> dict[int, int]: ...
    def halted(self) -> list[int]: ...
    def last_words(self, rank: int) -> str: ...
    def kill(self) -> None: ...
    def reap(self, grace_s: float = 0.0) -> None: ...


class Processes:
    """One process per rank. command: starts a rank that reads its invitation on standard input."""

    def __init__(self, ranks: int, threads: int = 0, command: Sequence[str] = COMMAND) -> None:
        self.ranks, self._threads = ranks, threads
        self._command = list(command)
        self._running: list[subprocess.Popen[bytes]] = []
        self._errors: list[IO[bytes]] = []

    def start(self, host: str, port: int, token: str) -> None:
        """Start all of them. They end with the thread that calls this."""
        environment = self._environment()
        for rank in range(self.ranks):
            said = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
            self._errors.append(said)
            process = subprocess.Popen(  # noqa: S603 - our own words
                self._command, env=environment, stdin=subprocess.PIPE, stdout=said, stderr=said
            )
            self._running.append(process)
            invited = Invitation(rank=rank, host=host, port=port, token=token, parent=os.getpid())
            with contextlib.suppress(BrokenPipeError), process.stdin as words:  # type: ignore[union-attr]
                words.write(msgspec.json.encode(invited) + b"\n")

    def _environment(self) -> dict[str, str]:
        loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
        usual = {"GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback}
        usual["OMP_NUM_THREADS"] = str(max(1, _cores() // self.ranks))
        asked = {"OMP_NUM_THREADS": str(self._threads)} if self._threads else {}
        return {**usual, **os.environ, **asked}

    def ended(self) -> dict[int, int]:
        """Ranks whose process is gone, with its return code (negative: the signal)."""
        codes = {rank: process.poll() for rank, process in enumerate(self._running)}
        return {rank: code for rank, code in codes.items() if code is not None}

    def halted(self) -> list[int]:
        """Ranks whose process the system has stopped (SIGSTOP, a debugger). Linux; elsewhere heartbeats tell."""
        found = []
        for rank, process in enumerate(self._running):
            now = stat(process.pid) if process.poll() is None else None
            if now is not None and now.halted:
                found.append(rank)
        return found

    def last_words(self, rank: int) -> str:
        """The last line a rank wrote on standard error."""
        file = self._errors[rank]
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _SAID))
        lines = file.read(_SAID).decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""

    def kill(self) -> None:
        """End all at once; stopped ones too."""
        for process in self._running:
            if process.poll() is None:
                process.kill()

    def reap(self, grace_s: float = 0.0) -> None:
        """Wait until none is left; those that take longer than the grace are killed."""
        deadline = time.monotonic() + grace_s
        for process in self._running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        self.kill()
        for process in self._running:
            process.wait()
        for file in self._errors:
            file.close()
        self._running, self._errors = [], []


class Elsewhere:
    """Ranks that torchrun or Slurm started: their sockets tell all there is to know, and closing them ends them.

    publish: tells them where the driver listens (host, port, token); returns the thread of the rank in this process.
    """

    def __init__(self, publish: Callable[[str, int, str], threading.Thread]) -> None:
        self._publish = publish
        self._own: threading.Thread | None = None

    def start(self, host: str, port: int, token: str) -> None:
        self._own = self._publish(host, port, token)

    def ended(self) -> dict[int, int]:
        return {}

    def halted(self) -> list[int]:
        return []

    def last_words(self, rank: int) -> str:
        return ""

    def kill(self) -> None:
        """Closed sockets do it."""

    def reap(self, grace_s: float = 0.0) -> None:
        """Their launcher does it, except for this process's own: who leaves before it is done aborts in torch."""
        if self._own is not None:
            self._own.join(grace_s)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

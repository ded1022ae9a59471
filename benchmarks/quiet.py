"""What do others compute while a block of a benchmark runs? It waits for a quiet moment, and is run again without one.

Linux only: elsewhere nobody else is seen.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

QUIET = 0.1  # cores of others in a block
TICKS = os.sysconf("SC_CLK_TCK")
T = TypeVar("T")


class Quiet:
    """Blocks of a server's run while others leave the machine alone, as far as there is patience for it."""

    def __init__(self, server: int, deadline: float) -> None:
        self._server, self._deadline = server, deadline
        self._kept = self._loud = self._dropped = 0

    async def run(self, block: Callable[[], Awaitable[T]]) -> T:
        while True:
            while self._patient and await self._others(asyncio.sleep(0.2)) > QUIET:
                pass
            taken: list[T] = []

            async def one(taken: list[T] = taken) -> None:
                taken.append(await block())

            loud = await self._others(one()) > QUIET
            if not loud or not self._patient:
                self._kept, self._loud = self._kept + 1, self._loud + loud
                return taken[0]
            self._dropped += 1

    def said(self) -> str:
        return f"{self._loud} of {self._kept} blocks beside others, {self._dropped} run again"

    @property
    def _patient(self) -> bool:
        return time.monotonic() < self._deadline

    async def _others(self, what: Awaitable[None]) -> float:
        """Cores that others computed on meanwhile."""
        before, began = self._busy(), time.monotonic()
        await what
        return max(0.0, (self._busy() - before) / (time.monotonic() - began))

    def _busy(self) -> float:
        """Processor seconds of this machine that are neither the server's nor ours."""
        try:
            user, nice, system, _, _, *rest = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
        except OSError:
            return 0.0
        ours = sum(os.times()[:2]) * TICKS + _ticks(self._server)
        return (user + nice + system + sum(rest) - ours) / TICKS


def _ticks(process: int) -> float:
    """Processor time of a process and of those it has started, clock ticks."""
    parents: dict[int, tuple[int, int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended
            words = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(words[1]), int(words[11]) + int(words[12])
    family = {process}
    while more := {pid for pid, (parent, _) in parents.items() if parent in family} - family:
        family |= more
    return sum(parents[pid][1] for pid in family if pid in parents)

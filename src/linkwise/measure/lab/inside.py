"""The lab's keeper: process 1 of the lab's own namespaces. Builds the network, runs the ranks, counts, and ends.

run.py starts it and holds the other end of its stdin, which is the leash: when that closes, for whatever reason, the
keeper stops the ranks and exits, and with process 1 the kernel ends every process and removes every namespace here.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import BinaryIO

import msgspec

from linkwise.measure.lab import counters
from linkwise.measure.lab.job import BEGUN, Job, Outcome, RankEnd
from linkwise.measure.lab.netns import BuildError, build
from linkwise.measure.lab.topology import Station

SOCKET_PATH = "/run/linkwise-lab.sock"
PORT = 29500
GRACE_S = 10.0  # ranks that wait for one that failed get this long to notice it themselves
STOP_S = 3.0  # and this long to end when asked to
LONGEST_LINE = 65536


def main() -> int:
    # Said outright: what is started in the background by a shell begins with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    threading.Thread(target=_leash, daemon=True).start()
    os.write(job.answer, BEGUN)
    if job.errors >= 0:
        # Until here, what namespaces could not be made for; run.py reads it.
        os.dup2(job.errors, 2)
    try:
        outcome = _run(job)
    except BuildError as error:
        outcome = Outcome(error=str(error))
    except KeyboardInterrupt:
        return 130  # the ranks are down, and there is nobody to tell
    with os.fdopen(job.answer, "wb") as answer:
        answer.write(msgspec.json.encode(outcome))
    return 0


def _leash() -> None:
    """Wait for the other end to let go, then interrupt the main thread wherever it is."""
    while os.read(0, 4096):
        pass
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _run(job: Job) -> Outcome:
    wiring = job.wiring
    build(wiring)
    threading.Thread(
        target=counters.serve, args=(SOCKET_PATH, lambda: counters.read(wiring)), daemon=True
    ).start()  # fmt: skip
    before, start = counters.read(wiring), time.monotonic()
    ranks = [_Rank(station, job) for station in wiring.ranks]
    try:
        ends = _wait(ranks, start + job.timeout_s, job.timeout_s)
    finally:
        _stop(ranks)
    moved = counters.since(before, counters.read(wiring))
    seconds = time.monotonic() - start
    for rank in ranks:
        rank.drain()
    return Outcome(
        ranks=ends, counts={link: (count.bytes, count.packets) for link, count in moved.items()}, seconds=seconds
    )


def environment(station: Station, ranks: tuple[Station, ...]) -> dict[str, str]:
    """What a rank is told: as torchrun does, and where in the cluster it is."""
    here = [s.rank for s in ranks if s.node == station.node]
    nodes = list(dict.fromkeys(s.node for s in ranks))
    return {
        "RANK": str(station.rank),
        "WORLD_SIZE": str(len(ranks)),
        "LOCAL_RANK": str(here.index(station.rank)),
        "LOCAL_WORLD_SIZE": str(len(here)),
        "GROUP_RANK": str(nodes.index(station.node)),
        "MASTER_ADDR": ranks[0].address,
        "MASTER_PORT": str(PORT),
        "GLOO_SOCKET_IFNAME": station.interface,
        "LINKWISE_NODE": str(station.node),
        "LINKWISE_DEVICE": str(station.device),
        counters.SOCKET: SOCKET_PATH,
    }


class _Rank:
    """A rank's process, its output passed on line by line with the rank in front."""

    def __init__(self, station: Station, job: Job) -> None:
        self.station = station
        inherited = {"OMP_NUM_THREADS": "1"} | dict(os.environ)  # as torchrun: ranks share the machine's cores
        self.process = subprocess.Popen(  # noqa: S603 - an argument list, never a shell
            ("ip", "netns", "exec", station.name, *job.command),  # noqa: S607 - run.py set the PATH
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
            env=inherited | environment(station, job.wiring.ranks),
        )  # fmt: skip
        pairs = (self.process.stdout, sys.stdout.buffer), (self.process.stderr, sys.stderr.buffer)
        self._readers = [
            threading.Thread(target=_pass_on, args=(source, to, f"[rank {station.rank}] ".encode()), daemon=True)
            for source, to in pairs
        ]
        for reader in self._readers:
            reader.start()

    def drain(self) -> None:
        """Wait for what the process still had to say; not for a child of it that keeps its output open."""
        for reader in self._readers:
            reader.join(2.0)

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def end(self, reason: str = "") -> RankEnd:
        code = self.process.poll()
        if code is not None and not reason:
            reason = f"exit code {code}" if code > 0 else signal.Signals(-code).name if code < 0 else ""
        where = self.station
        return RankEnd(rank=where.rank, device=where.device, node=where.node, code=code, reason=reason)


_WRITING = threading.Lock()


def _pass_on(source: BinaryIO, to: BinaryIO, prefix: bytes) -> None:
    while line := source.readline(LONGEST_LINE):
        with _WRITING, contextlib.suppress(BrokenPipeError):  # nobody reads any more: the ranks go on
            to.write(prefix + line.rstrip(b"\n") + b"\n")
            to.flush()


def _wait(ranks: list[_Rank], deadline: float, timeout_s: float) -> tuple[RankEnd, ...]:
    """Until all ranks ended, the time is over, or one failed and the others do not follow."""
    failed = ""
    while any(rank.process.poll() is None for rank in ranks):
        now = time.monotonic()
        if now >= deadline:
            late = failed or f"still running after {timeout_s:g} s"
            return tuple(rank.end(late if rank.process.poll() is None else "") for rank in ranks)
        bad = next((rank for rank in ranks if rank.process.poll()), None)
        if bad is not None and not failed:
            failed = f"stopped, because rank {bad.station.rank} had failed"
            deadline = min(deadline, now + GRACE_S)
        time.sleep(0.01)
    return tuple(rank.end() for rank in ranks)


def _stop(ranks: list[_Rank]) -> None:
    """End what still runs: asked first. Whatever is left, the kernel ends with this process."""
    ask: tuple[tuple[int, Callable[[], float]], ...] = (
        (signal.SIGINT, lambda: STOP_S), (signal.SIGKILL, lambda: 1.0),
    )  # fmt: skip
    for number, patience in ask:
        running = [rank for rank in ranks if rank.process.poll() is None]
        for rank in running:
            rank.signal(number)
        deadline = time.monotonic() + patience()
        while any(rank.process.poll() is None for rank in running) and time.monotonic() < deadline:
            time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())

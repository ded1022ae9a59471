"""A rank's calls as its trace: it listens to `Comm`, and is told which step and which requests the calls belong to."""

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linkwise._version import __version__
from linkwise.core.layout import Layout, coordinates
from linkwise.dist.groups import boot_id
from linkwise.runtime.comm import Call, Comm
from linkwise.runtime.steps import FILLER, Row, Step
from linkwise.trace.events import Batch, Handoff, Head
from linkwise.trace.writer import Cpu, Open, Writer, anchor, open_writer


class Recorder:
    """One rank's trace. Made by `open_recorder`.

    entered, heard: for `Comm`, about a microsecond each call. under: the call under way. writer: what becomes of it.
    """

    def __init__(self, writer: Writer, replica: int) -> None:
        self.writer = writer
        self.under: Open | None = None
        self._add, self._slot = writer.add, writer.slot
        self._replica = replica
        self._step = -1

    def entered(
        self, kind: str, role: str, axis: str, number: int, size: int, dtype: str, peer: int, began_ns: int
    ) -> None:  # fmt: skip
        """A call begins."""
        self.under = one = Open("open", role, self._step, began_ns, kind, axis, number, size, dtype, peer)
        if self._slot is not None:
            self._slot.enter(one)

    def heard(self, call: Call) -> None:
        """A call has ended."""
        self.under = None
        self._add(call)
        if self._slot is not None:
            self._slot.leave()

    def begin(self, step: Step, traces: Sequence[Sequence[str]] = ()) -> None:
        """The calls from now on are this step's. traces: keys of its rows' requests, by attention replica."""
        self._step = step.number
        rows: tuple[Row, ...] = step.batches[self._replica]
        keys: Sequence[str] = traces[self._replica] if traces else ()
        named, tokens = [], []
        for place, row in enumerate(rows):
            if row.request != FILLER:
                named.append(keys[place] if place < len(keys) else "")
                tokens.append(len(row.tokens))
        self.writer.batch(Batch(step.number, time.monotonic_ns(), tuple(named), tuple(tokens)))

    def end(self) -> None:
        """The step is over on this rank."""
        self.writer.over(self._step, time.monotonic_ns())

    def handoff(self, handoff: Handoff) -> None:
        """A prompt's KV that this rank sent or took."""
        self.writer.handoff(handoff)

    def close(self, comm: Comm | None = None) -> None:
        """Write what is left and end. comm: after a fault, whose call under way is recorded as not ended."""
        if comm is not None and comm.waiting:
            known = self.under[1:] if self.under else (comm.waiting, self._step, time.monotonic_ns())
            self.writer.open(*known)
        elif self._slot is not None:
            slot, self._slot = self._slot, None
            slot.remove()
        self.writer.close()


def open_recorder(
    folder: str | Path,
    comm: Comm,
    layout: Layout,
    place: int,
    *,
    rank: int,
    world: int,
    unit: str = "",
    pool: Any = "both",
    layers: tuple[int, int] = (0, 0),
    host: str = "",
    device: str = "",
    uuid: str = "",
    transport: str = "",
    **bounds: Any,
) -> Recorder:
    """Begin a rank's trace in a folder. place: the rank in its layout; rank, world: in its unit. pool: prefill, decode,
    both. layers: first and end of its stage's. bounds: events, file_bytes, turn_s of `open_writer`.

    Raises InputError when the folder cannot be written.
    """
    where = coordinates(layout, place)
    head = Head(
        rank=rank,
        world=world,
        unit=unit[:200],
        pool=pool,
        host=host[:200],
        device=device[:200],
        uuid=uuid[:200],
        transport=transport[:200],
        shard=where,
        layers=layers,
        groups={axis: team.members for axis, team in comm.teams.items()},
        anchor=anchor(),
        pid=os.getpid(),
        writer=f"linkwise {__version__}",
        clock=boot_id(),
    )
    writer = open_writer(Path(folder), head, **bounds)
    writer.usage = _usage
    writer.begin_slot()
    recorder = Recorder(writer, where["dp_attn"])
    writer.inside = lambda: recorder.under
    comm.entered = recorder.entered
    return recorder


def _usage() -> Cpu | None:
    """What Linux says of this process and its control group; else None.

    Time on cores: of all threads. Waiting for a core: of the thread that waited most, since threads wait side by side.
    """
    ran = delayed = 0
    try:
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                run_ns, delay_ns, _ = Path(f"/proc/self/task/{thread}/schedstat").read_text(encoding="ascii").split()
                ran, delayed = ran + int(run_ns), max(delayed, int(delay_ns))
        stat = _quota()
        took = stat.get("throttled_usec", stat.get("throttled_time", 0) // 1000)
        periods = stat.get("nr_periods", 0), stat.get("nr_throttled", 0)
        return Cpu("cpu", ran, delayed, *periods, took, time.monotonic_ns())
    except (OSError, ValueError):
        return None


def _quota() -> dict[str, int]:
    """cpu.stat of the control group this process is in now (v1 or v2); empty where none is to be seen."""
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds and "cpu" not in kinds.split(","):
            continue
        for top in ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct") if kinds else ("/sys/fs/cgroup",):
            file = Path(f"{top}{path}/cpu.stat")
            if file.is_file():
                rows = (row.split() for row in file.read_text(encoding="ascii").splitlines())
                found = {row[0]: int(row[1]) for row in rows if len(row) == 2}
                if found.get("nr_periods"):
                    return found
    return {}

"""A rank's calls as its trace: it listens to `Comm`, and is told which step and which requests the calls belong to."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linkwise._version import __version__
from linkwise.core.layout import Layout, coordinates
from linkwise.runtime.comm import Comm, Listener
from linkwise.runtime.steps import FILLER, Row, Step
from linkwise.trace.events import Batch, Handoff, Head
from linkwise.trace.writer import Writer, anchor, open_writer


class Recorder:
    """One rank's trace. Made by `open_recorder`.

    heard: the listener for `Comm`; it costs what appending to a list costs. writer: what becomes of it.
    """

    def __init__(self, writer: Writer, replica: int) -> None:
        self.writer = writer
        self.heard: Listener = writer.add
        self._replica = replica
        self._step = -1

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
            self.writer.open(comm.waiting, self._step, time.monotonic_ns())
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
    )
    writer = open_writer(Path(folder), head, **bounds)
    writer.inside = lambda: (comm.calls, comm.waiting)
    return Recorder(writer, where["dp_attn"])

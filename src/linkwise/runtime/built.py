"""A rank with torch: it joins the others, makes the plan's groups, loads its part of the model, and runs steps."""

import gc
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from linkwise.core.layout import Layout
from linkwise.dist.groups import Named, Session, axis_groups, create, host_facts, is_parting, join
from linkwise.dist.launch import LOCALHOST, Start, serve
from linkwise.dist.observer import Seen, observe
from linkwise.dist.watch import Lost
from linkwise.runtime.arch import Arch, read_arch
from linkwise.runtime.comm import Call, Comm
from linkwise.runtime.control import Begin, Move, RankFacts, Run, UnitSpec
from linkwise.runtime.recorder import Recorder, open_recorder
from linkwise.runtime.scheduler import Limits
from linkwise.runtime.split.handoff import AXIS, Order, finish, hand_over, orders, take_over
from linkwise.runtime.stage import Stage
from linkwise.runtime.weights.source import open_source
from linkwise.trace.events import Handoff


class Place:
    """Where a rank of a unit belongs. layout: of its group; rank: in it; first: the group's first rank in the unit."""

    def __init__(self, spec: UnitSpec, rank: int) -> None:
        before = spec.prefill.size if spec.prefill else 0
        self.prefill = spec.prefill is not None and rank < before
        self.layout: Layout = spec.prefill if spec.prefill is not None and self.prefill else spec.layout
        self.first = 0 if self.prefill else before
        self.rank = rank - self.first


class Home:
    """A process with torch loaded. start: where torchrun or Slurm have put it; else rank 0 serves the store."""

    def __init__(self, rank: int, start: Start | None = None) -> None:
        self.rank, self._start = rank, start
        self._store = serve(LOCALHOST, 0) if rank == 0 and start is None else None
        self.port: int = self._store.port if self._store else 0

    def parted(self, error: BaseException) -> bool:
        return isinstance(error, Lost) or is_parting(error)

    @contextmanager
    def build(self, begin: Begin) -> Iterator["Built"]:
        spec = begin.spec
        if spec.threads:
            torch.set_num_threads(spec.threads)
        start = self._start or Start(self.rank, spec.ranks, self.rank, begin.host, begin.port, True, "linkwise")
        with join(start, backend=spec.backend, timeout_s=spec.call_s) as session:
            built = Built(session, spec)
            gc.freeze()  # what is there now stays: no step must wait for a look through all of it
            yield built
            built.close()


class Built:
    """A rank that can run steps."""

    def __init__(self, session: Session, spec: UnitSpec) -> None:
        source = open_source(Path(spec.weights))
        dtype = spec.dtype or source.dtype
        arch = read_arch(source.fields, where=str(Path(spec.weights) / "config.json"), dtype=dtype)
        place = Place(spec, session.start.rank)
        self._waited = self._moved = 0
        self._recorder: Recorder | None = None
        self.comm = Comm(_teams(session, spec, arch), self._called)
        limits = Limits(
            place.layout,
            kv_tokens=spec.kv_tokens,
            block_tokens=spec.block_tokens,
            max_batched_tokens=spec.max_batched_tokens,
            max_seqs=spec.max_seqs,
            max_len=arch.max_len,
        )
        self.stage = Stage(
            arch,
            place.layout,
            place.rank,
            self.comm,
            source,
            kv_blocks=limits.kv_blocks,
            block_tokens=spec.block_tokens,
            device=session.device,
            dtype=getattr(torch, dtype),
            layers=spec.layers or None,
        )
        self.facts = _facts(session, self.stage)
        self._observed, self._place, self._number = spec.observe, place, session.start.rank
        self._orders = _orders(spec, source.fields, arch)
        self._recorder = self._record(spec) if spec.trace else None

    def _record(self, spec: UnitSpec) -> Recorder:
        place, here = self._place, self.stage.pipeline.layers
        pool = "both" if spec.prefill is None else "prefill" if place.prefill else "decode"
        return open_recorder(
            spec.trace,
            self.comm,
            place.layout,
            place.rank,
            rank=self._number,
            world=spec.ranks,
            unit=spec.name,
            pool=pool,
            layers=(here.start, here.stop),
            host=self.facts.host,
            device=self.facts.device,
            uuid=self.facts.uuid,
            transport=self.facts.transport,
        )

    def _called(self, call: Call) -> None:
        self._waited += call.ended_ns - call.started_ns
        self._moved += call.S_bytes if call.axis == AXIS else 0
        if self._recorder is not None:
            self._recorder.heard(call)

    def progress(self) -> tuple[int, str]:
        return self.comm.calls + self.stage.pieces, self.comm.waiting

    def unwritten(self) -> tuple[int, str]:
        writer = self._recorder.writer if self._recorder is not None else None
        return (writer.unwritten, writer.trouble) if writer is not None else (0, "")

    def run(self, message: Run) -> tuple[tuple[tuple[int, int], ...], int, tuple[Seen, ...]]:
        before = self._waited
        if self._recorder is not None:
            self._recorder.begin(message.step, message.traces)
        with self._recorded(), self._watching() as seen:
            drawn = self.stage.run(message.step)
        if self._recorder is not None:
            self._recorder.end()
        return drawn.tokens if drawn else (), self._waited - before, tuple(seen)

    @contextmanager
    def _watching(self) -> Iterator[list[Seen]]:
        if not self._observed:
            yield []
            return
        with observe() as seen:
            yield seen

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        """What fails ends this rank, and at once: its record ends with the call it was in."""
        try:
            yield
        except BaseException:
            if self._recorder is not None:
                self._recorder.close(self.comm)
            raise

    def move(self, message: Move) -> tuple[Seen, ...]:
        """Send this rank's pieces of a request's KV, or take them."""
        orders, layers, first = self._orders[self._number], self.stage.cache.layers, self.stage.pipeline.layers.start
        self._moved, began = 0, time.monotonic_ns()
        with self._recorded(), self._watching() as seen:
            if self._place.prefill:
                finish(hand_over(self.comm, layers, first, orders, message.source))
            else:
                take_over(self.comm, layers, first, orders, message.target)
        if self._recorder is not None:
            sends = self._place.prefill
            peers = sorted({one.receiver if sends else one.sender for one in orders})
            self._recorder.handoff(
                Handoff(
                    request=message.trace,
                    side="send" if sends else "take",
                    peers=tuple(peers),
                    queued_ns=message.queued_ns,
                    began_ns=began,
                    ended_ns=time.monotonic_ns(),
                    S_bytes=self._moved,
                    serialise_ns=0,
                    allocate_ns=message.allocate_ns,
                    attempt=0,
                    owner="prefill",
                )
            )
        return tuple(seen)

    def close(self) -> None:
        self.stage.drain()
        if self._recorder is not None:
            self._recorder.close()


def _orders(spec: UnitSpec, fields: dict[str, Any], arch: Arch) -> Sequence[Sequence[Order]]:
    """What each rank of the unit sends or takes for a prompt; nothing where no KV is handed over."""
    if spec.prefill is None:
        return [()] * spec.ranks
    from linkwise.engine import registry
    from linkwise.model.held import held
    from linkwise.model.read import from_config

    model = held(from_config(fields, None, name=Path(spec.weights).name, source=spec.weights), arch.dtype)
    return orders(model, spec.prefill, spec.layout, registry.get("linkwise"))


def _teams(session: Session, spec: UnitSpec, arch: Arch) -> dict[str, Any]:
    """The process groups of the axes that make calls. All ranks make all of them, in one order."""
    axes = ("pp", "cp", "dp_attn", "tp", "dcp", *(("ep", "stage") if arch.experts else ()))
    wanted: list[Named] = []
    first = 0
    for layout in (spec.prefill, spec.layout) if spec.prefill else (spec.layout,):
        wanted += [Named(one.axis, tuple(first + r for r in one.members)) for one in axis_groups(layout, axes=axes)]
        first += layout.size
    if spec.prefill:
        wanted.append(Named(AXIS, tuple(range(spec.ranks))))
    return {team.axis: team for team in create(session, wanted).values()}


def _facts(session: Session, stage: Stage) -> RankFacts:
    where = host_facts()
    cores = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()
    uuid = bus = ""
    device = "cpu"
    if session.device.type == "cuda":
        properties = torch.cuda.get_device_properties(session.device)
        device, uuid = properties.name, str(getattr(properties, "uuid", ""))
        numbers: list[Any] = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
        if None not in numbers:
            bus = f"{numbers[0]:04x}:{numbers[1]:02x}:{numbers[2]:02x}.0"
    return RankFacts(
        rank=session.start.rank,
        pid=os.getpid(),
        host=where["host"],
        machine=where["machine"],
        device=device,
        uuid=uuid,
        bus=bus,
        numa=_numa_of_bus(bus) if bus else _numa_of_cores(cores),
        cores_numa=_numa_of_cores(cores),
        cores=cores,
        backend=session.backend,
        transport=_transport(session.backend),
        weight_bytes=stage.weight_bytes,
        kv_bytes=stage.kv_bytes,
    )


def _transport(backend: str) -> str:
    """What carries calls between ranks, as far as settings say."""
    name = os.environ.get("GLOO_SOCKET_IFNAME" if backend == "gloo" else "NCCL_SOCKET_IFNAME", "")
    return f"tcp {name}".strip() if backend == "gloo" else "nccl"


def _numa_of_bus(bus: str) -> int:
    return _number(Path("/sys/bus/pci/devices") / bus / "numa_node")


def _number(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return -1


def _numa_of_cores(cores: tuple[int, ...]) -> int:
    """The node all of these cores are on; -1 when they are on several, or nobody says."""
    nodes = set()
    for core in cores[:4096]:
        found = list(Path(f"/sys/devices/system/cpu/cpu{core}").glob("node[0-9]*"))
        if not found:
            return -1
        nodes.add(int(found[0].name[4:]))
    return nodes.pop() if len(nodes) == 1 else -1


if __name__ == "__main__":
    from linkwise.runtime.worker import main

    raise SystemExit(main(Home))

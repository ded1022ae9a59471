"""The plan's groups as process groups of torch.distributed, from the plan's rank grid.

`join` makes this process a rank (with time limits everywhere), `axis_groups` lists the groups of a layout, and `create`
makes them. A group of one rank communicates with nobody and gets no process group.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from linkwise.core.errors import InputError, LinkwiseError
from linkwise.core.layout import AXES, Layout, groups
from linkwise.dist.launch import JOINED, WATCH, Start, serve
from linkwise.dist.watch import Lost, Watch

MIN_TIMEOUT_S = 2.0
MAX_TIMEOUT_S = 86_400.0
WORLD = "world"
RUN = "linkwise.run"  # whose ranks meet in a store


class Named(NamedTuple):
    """A group by its axis, as world ranks in group order."""

    axis: str
    members: tuple[int, ...]


class Team(NamedTuple):
    """A process group this rank is in. handle: torch's ProcessGroup. place: this rank's number in the group."""

    axis: str
    members: tuple[int, ...]
    handle: Any
    place: int

    @property
    def size(self) -> int:
        return len(self.members)


class Session(NamedTuple):
    """This process as a rank. device: torch device its tensors live on. limit_s: of one call.

    store: shared by all ranks, for small results; watch: heartbeats.
    """

    start: Start
    backend: str
    device: Any
    limit_s: float
    store: Any
    watch: Watch
    world: Team


def check_timeout(timeout_s: float) -> float:
    """Seconds within which a rank that does not come back is named."""
    if not MIN_TIMEOUT_S <= timeout_s <= MAX_TIMEOUT_S:
        raise InputError(
            f"{timeout_s:g} s", where="--timeout", expected=f"{MIN_TIMEOUT_S:g} s to {MAX_TIMEOUT_S / 3600:g} h"
        )
    return timeout_s


def check_backend(wanted: str) -> None:
    """Refuse what is no backend; empty = by the devices here."""
    if wanted not in {"", "nccl", "gloo"}:
        raise InputError(repr(wanted[:40]), where="--backend", expected="nccl or gloo")


@contextlib.contextmanager
def join(start: Start, *, backend: str = "", timeout_s: float = 60.0) -> Iterator[Session]:
    """This process as rank `start.rank`; leaves the group at the end. backend: nccl, gloo; empty = by the devices here.

    Whatever fails inside because ranks parted ends as one error on one rank: `Lost`, with the ranks' numbers, within
    `timeout_s`; on the others as SystemExit. A rank that never starts is named likewise.
    """
    import torch.distributed as dist

    check_timeout(timeout_s)
    backend, device = _backend(start, backend)
    interval = min(1.0, timeout_s / 10)
    # What is left of the time limit after a call has failed is needed to find out who is missing.
    limit = timedelta(seconds=timeout_s - 3 * interval)
    meeting = _meet(start, limit.total_seconds())
    _same_run(meeting, start)
    watched = dist.PrefixStore(WATCH, _again(meeting, start, limit))
    with Watch(watched, start.rank, start.world, interval) as watch:
        try:
            _gather(watched, start, backend, limit.total_seconds(), address(device))
            dist.init_process_group(
                backend,
                store=dist.PrefixStore("linkwise.world", meeting),
                rank=start.rank,
                world_size=start.world,
                timeout=limit,
            )
            everyone = Team(WORLD, tuple(range(start.world)), dist.group.WORLD, start.rank)
            yield Session(start, backend, device, limit.total_seconds(), watched, watch, everyone)
        except (RuntimeError, LinkwiseError, TimeoutError) as error:
            verdict = watch.settle(error, parted=is_parting(error))
            if verdict is None:
                raise SystemExit(Lost.exit_code) from None
            raise verdict from (error if verdict is not error else None)
        finally:
            if dist.is_initialized():
                # Peers may be gone: nothing here may wait for them.
                with contextlib.suppress(RuntimeError):
                    dist.destroy_process_group()


def is_parting(error: BaseException) -> bool:
    """Whether a call failed because of another rank; anything else that goes wrong is this rank's own."""
    import torch.distributed as dist

    if isinstance(error, dist.DistError | TimeoutError):
        return True
    # gloo's own errors are plain RuntimeErrors that begin with the source file they come from.
    return isinstance(error, RuntimeError) and ("gloo/" in str(error) or "Timed out" in str(error))


def _backend(start: Start, wanted: str) -> tuple[str, Any]:
    import torch
    import torch.distributed as dist

    check_backend(wanted)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    chosen = wanted or ("nccl" if count and dist.is_nccl_available() else "gloo")
    if chosen == "gloo":
        return chosen, torch.device("cpu")
    # A launcher may show each task one GPU, its own; `_gather` looks whether they are different ones.
    index = 0 if count == 1 else start.local_rank
    if not dist.is_nccl_available() or index >= count:
        raise InputError(
            f"local rank {start.local_rank}, {count} GPUs here",
            where="--backend nccl",
            expected="a GPU for every rank, and a torch built with NCCL",
        )
    torch.cuda.set_device(index)
    return chosen, torch.device("cuda", index)


def address(device: Any) -> str:
    """PCI address of a GPU, with the machine it is in; "" for a CPU, or where torch does not say."""
    if device.type != "cuda":
        return ""
    import torch

    facts = torch.cuda.get_device_properties(device)
    bus = [getattr(facts, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    return "" if None in bus else f"{host_facts()['machine']} {bus[0]:04x}:{bus[1]:02x}:{bus[2]:02x}.0"


def _meet(start: Start, limit_s: float) -> Any:
    """The store of all ranks: served by the launcher or by rank 0."""
    import torch.distributed as dist

    if not start.hosted and start.rank == 0:
        return serve(start.host, start.port, limit_s)
    try:
        return dist.TCPStore(
            start.host, start.port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=limit_s)
        )
    except RuntimeError:
        who = "its launcher" if start.hosted else "rank 0"
        raise Lost(f"{who} does not answer at {start.host}:{start.port} within {limit_s:g} s", (0,)) from None


def _same_run(store: Any, start: Start) -> None:
    """Refuse a store where the ranks of another run meet. Nothing is written there but the run's name, once."""
    if not start.run:
        return
    where = f"store at {start.host}:{start.port}"
    if start.hosted:
        there = store.compare_set(RUN, "", start.run)
    elif start.rank == 0:  # it has just begun to serve the store
        store.set(RUN, start.run)
        return
    else:
        try:
            there = store.get(RUN)
        except RuntimeError:
            raise Lost(f"{where} is not served by rank 0 of {start.run}", (0,)) from None
    if (said := there.decode(errors="replace")) != start.run:
        raise InputError(
            f"ranks of {said} meet there, this is rank {start.rank} of {start.run}",
            where=where,
            expected="a MASTER_PORT of its own for every run",
        )


def _again(store: Any, start: Start, limit: timedelta) -> Any:
    """A second connection to the store, for the thread that keeps the heartbeat."""
    import torch.distributed as dist

    return dist.TCPStore(start.host, store.port, is_master=False, wait_for_workers=False, timeout=limit)


def _gather(store: Any, start: Start, backend: str, limit_s: float, gpu: str = "") -> None:
    """Wait until every rank is there with the same backend, on a GPU of its own (gpu: its address). Lost names those
    that did not come."""
    store.set(f"{JOINED}/{start.rank}", json.dumps({"backend": backend, "gpu": gpu}))
    deadline = time.monotonic() + limit_s
    missing = list(range(start.world))
    while missing:
        missing = [rank for rank in missing if not store.check([f"{JOINED}/{rank}"])]
        if missing and time.monotonic() > deadline:
            shown = ", ".join(map(str, missing[:16])) + (" ..." if len(missing) > 16 else "")
            raise Lost(f"of {start.world} ranks these did not start: {shown}", tuple(missing))
        if missing:
            time.sleep(0.02)
    facts = [json.loads(store.get(f"{JOINED}/{rank}").decode()) for rank in range(start.world)]
    odd = [rank for rank, one in enumerate(facts) if one["backend"] != backend]
    if odd:
        raise InputError(
            f"rank {start.rank} has {backend}, ranks {', '.join(map(str, odd[:16]))} do not",
            where="--backend",
            expected="the same on every rank",
        )
    on: dict[str, list[int]] = {}
    for rank, one in enumerate(facts):
        on.setdefault(one["gpu"], []).append(rank)
    for shared, ranks in on.items():
        if shared and len(ranks) > 1:
            raise InputError(
                f"ranks {', '.join(map(str, ranks[:16]))} are on one GPU, {shared.rpartition(' ')[2]}",
                where="--backend nccl",
                expected="a GPU for every rank",
            )


def axis_groups(layout: Layout, *, replicas: int = 1, axes: Iterable[str] = AXES) -> list[Named]:
    """Every group of more than one rank of `replicas` serving groups: world rank = replica x group size + rank."""
    found = []
    for axis in axes:
        for replica in range(replicas):
            first = replica * layout.size
            found += [Named(axis, tuple(first + r for r in ranks)) for ranks in groups(layout, axis) if len(ranks) > 1]
    return found


def create(session: Session, wanted: Sequence[Named]) -> dict[Named, Team]:
    """The process groups this rank is in. Every rank must ask for the same list."""
    import torch.distributed as dist

    found = {}
    for one in wanted:
        session.watch.at(f"creating group {one.axis} of {len(one.members)} ranks")
        outside = [rank for rank in one.members if not 0 <= rank < session.start.world]
        if outside or list(one.members) != sorted(set(one.members)):  # torch would sort them without a word
            raise InputError(
                f"ranks {', '.join(map(str, one.members[:16]))}",
                where=f"group {one.axis}",
                expected=f"ranks of 0..{session.start.world - 1}, each once, in ascending order",
            )
        # Every rank takes part in making every group. Members alone can make one, too (use_local_synchronization), but
        # torch then names it by how many groups a rank has, which members of several axes do not agree on.
        handle = dist.new_group(
            list(one.members),
            timeout=timedelta(seconds=session.limit_s),
            backend=session.backend,
            group_desc=one.axis,
        )
        if session.start.rank in one.members:
            found[one] = Team(one.axis, one.members, handle, one.members.index(session.start.rank))
    return found


def barrier(session: Session) -> None:
    """Every rank is here, or `Lost`. Bounded on every backend."""
    import torch
    import torch.distributed as dist

    if session.backend == "gloo":
        dist.barrier()
        return
    dist.all_reduce(torch.zeros(1, device=session.device))
    settled(session)


def settled(session: Session) -> None:
    """Wait for what the device was given, with a time limit: a collective that hangs there hangs without an error."""
    if session.backend == "gloo":
        return
    import torch

    done = torch.cuda.Event()
    done.record()
    deadline = time.monotonic() + session.limit_s
    while not done.query():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the device did not finish within {session.limit_s:g} s")
        time.sleep(20e-6)


def share(session: Session, name: str, value: Any) -> list[Any] | None:
    """Every rank's value (JSON), in rank order, on rank 0; None on the others."""
    store, start = session.store, session.start
    store.set(f"{name}/{start.rank}", json.dumps(value))
    session.watch.at(f"gathering {name}")
    barrier(session)
    if start.rank:
        return None
    return [json.loads(store.get(f"{name}/{rank}").decode()) for rank in range(start.world)]


def host_facts() -> dict[str, str]:
    """What tells machines apart: the booted kernel's id (the same in all containers of a machine), and its name.

    LINKWISE_NODE, where set, wins: ranks in namespaces of one machine are then as many nodes as it says.
    """
    name = os.uname().nodename
    return {"host": name, "machine": os.environ.get("LINKWISE_NODE") or boot_id() or name}


def boot_id() -> str:
    """The booted kernel's id, the same in all containers of a machine; "" where there is none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read(64).strip()
    except OSError:
        return ""

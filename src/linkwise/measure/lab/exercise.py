"""Run in a lab, once a rank: real collectives, their time and what they put on every link.

    linkwise lab cluster.yaml -- python -m linkwise.measure.lab.exercise calls.json result.json

calls.json: a list of `Exercise`. Calls of a list's groups run at the same time, repeats one after another, each after a
barrier. Rank 0 writes one `Done` a call. Only torch.distributed's gloo, on CPU tensors: a lab has no other transport.
"""

import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from linkwise.core.errors import InputError
from linkwise.core.files import read_bytes, write_bytes
from linkwise.core.schema import Frozen, encode_json
from linkwise.measure.lab.counters import snapshot

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast")
PATIENCE = timedelta(seconds=120)  # a rank that does not come is an error after this, not a hang


class Exercise(Frozen, frozen=True, kw_only=True):
    """A call. S_bytes: as plan/collectives.py counts it. groups: ranks of each group that makes the call; none in two.

    calls: how often it is made, back to back, in one repeat: what `seconds` and `bytes` of Done cover. receives_first:
    all_to_all as sends and receives of its own, every receive posted before the first send; else torch's.
    """

    kind: str
    S_bytes: int
    groups: tuple[tuple[int, ...], ...]
    repeats: int = 5
    calls: int = 1
    receives_first: bool = False


class Done(Frozen, frozen=True, kw_only=True):
    """seconds: of each repeat, from the first rank's start to the last one's end. bytes, packets: of one repeat, by
    `src>dst`, mean over repeats, barriers included (some hundred bytes)."""

    exercise: Exercise
    transport: str
    seconds: tuple[float, ...]
    bytes: dict[str, float]
    packets: dict[str, float]

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)


def main(arguments: list[str]) -> int:
    calls, result = arguments
    exercises = msgspec.json.decode(read_bytes(calls), type=list[Exercise])
    # By name, since only the ranks of a lab need torch.
    torch, dist = importlib.import_module("torch"), importlib.import_module("torch.distributed")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=PATIENCE)
    rank = dist.get_rank()
    done = [_exercise(torch, dist, one, rank) for one in exercises]
    if rank == 0:
        write_bytes(Path(result), encode_json(done))
    dist.destroy_process_group()
    return 0


def _exercise(torch: Any, dist: Any, wanted: Exercise, rank: int) -> Done:
    made = [(ranks, dist.new_group(list(ranks), timeout=PATIENCE)) for ranks in wanted.groups]  # every rank makes all
    mine = next(((ranks, group) for ranks, group in made if rank in ranks), None)
    call = _call(torch, dist, wanted, rank, *mine) if mine else lambda: None
    call()  # connects
    dist.barrier()
    before = snapshot() if rank == 0 else {}
    spans = []
    for _ in range(wanted.repeats):
        dist.barrier()
        start = time.monotonic()  # one machine: one clock for all ranks
        for _ in range(wanted.calls):
            call()
        spans.append((start, time.monotonic()))
    dist.barrier()
    after = snapshot() if rank == 0 else {}
    ends: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ends, spans)
    active = [ends[member] for ranks in wanted.groups for member in ranks]
    seconds = [
        max(spans[i][1] for spans in active) - min(spans[i][0] for spans in active) for i in range(wanted.repeats)
    ]
    each = {link: [(n - before[link][i]) / wanted.repeats for i, n in enumerate(now)] for link, now in after.items()}
    return Done(
        exercise=wanted, transport=f"gloo, torch {torch.__version__}", seconds=tuple(seconds),
        bytes={link: pair[0] for link, pair in each.items()}, packets={link: pair[1] for link, pair in each.items()},
    )  # fmt: skip


def _call(torch: Any, dist: Any, wanted: Exercise, rank: int, ranks: tuple[int, ...], group: Any) -> Callable[[], Any]:
    """The call with its tensors, float32."""
    n = len(ranks)
    elements = wanted.S_bytes // 4 // n * n
    whole, share = torch.ones(elements), torch.ones(elements // n)
    if wanted.kind == "all_reduce":
        return lambda: dist.all_reduce(whole, group=group)
    if wanted.kind == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, share, group=group)
    if wanted.kind == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(share, whole, group=group)
    if wanted.receives_first:
        return lambda: _posted(torch, dist, whole, rank, ranks, group)
    if wanted.kind == "all_to_all":
        out = torch.empty_like(whole)
        return lambda: dist.all_to_all_single(out, whole, group=group)
    if wanted.kind == "broadcast":
        return lambda: dist.broadcast(whole, src=ranks[0], group=group)
    if wanted.kind == "send_recv" and n == 2:
        if rank == ranks[0]:
            return lambda: dist.send(whole, ranks[1], group=group)
        return lambda: dist.recv(whole, ranks[0], group=group)
    raise InputError(f"{wanted.kind!r} of {n} ranks", where="exercise", expected=", ".join(KINDS) + "; send_recv of 2")


def _posted(torch: Any, dist: Any, whole: Any, rank: int, ranks: tuple[int, ...], group: Any) -> None:
    """An all-to-all whose data never wait for a notice of a receive: see `waits` in plan/algorithms/gloo.py."""
    parts, out = whole.chunk(len(ranks)), torch.empty_like(whole).chunk(len(ranks))
    peers = [(place, other) for place, other in enumerate(ranks) if other != rank]
    work = [dist.irecv(out[place], other, group=group) for place, other in peers]
    work += [dist.isend(parts[place], other, group=group) for place, other in peers]
    for one in work:
        one.wait()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # gloo's threads may outlive the group

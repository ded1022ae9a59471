"""One call of a collective on a process group, buffers included: what measuring, checking and rehearsing run.

S is the size of a call as the group sees it (DESIGN §3). Buffers are made once; `run` may then be called any number of
times. Every buffer holds zeros, so that sums of sums stay finite.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from linkwise.core.dtypes import BITS
from linkwise.core.errors import InputError
from linkwise.dist.groups import Session, Team

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast", "gather")
# Reductions need arithmetic; what is only moved may travel as bytes of any dtype.
_REDUCES = frozenset({"all_reduce", "reduce_scatter"})


class Prepared(NamedTuple):
    """run: one call, as this rank takes part in it. S_bytes: as it really is (whole elements, one share a rank).

    elements, dtype: of the tensor that S counts. Calls of send_recv in a group of two go from the first to the second;
    in a larger group every rank sends to the next one.
    """

    run: Callable[[], Any]
    S_bytes: int
    elements: int
    dtype: str


def prepare(
    session: Session, team: Team, kind: str, S_bytes: float, dtype: str = "float32", sizes: tuple[float, ...] = ()
) -> Prepared:
    """A call ready to run. sizes: all-to-all only: bytes for each member, where they differ; negative = they come back.

    Raises InputError for an unknown kind or dtype, or a size that no tensor can have.
    """
    import torch

    if kind not in KINDS:
        raise InputError(f"unknown collective {kind!r}", where="collective", expected=", ".join(KINDS))
    known = getattr(torch, dtype, None)
    if kind not in _REDUCES and dtype in BITS and BITS[dtype] <= 8:
        known = torch.uint8
    if not isinstance(known, torch.dtype):
        raise InputError(f"dtype {dtype!r} cannot be summed", where=kind, expected="a dtype such as bfloat16")
    if not 0 < S_bytes <= 2**40:
        raise InputError(f"{S_bytes:g} bytes", where=kind, expected="above 0, at most 1 TiB")
    shares = team.size if kind in {"all_gather", "reduce_scatter", "all_to_all", "gather"} else 1
    each = max(1, round(S_bytes / known.itemsize / shares))
    elements = each * shares

    def buffer(count: int) -> Any:
        return torch.zeros(count, dtype=known, device=session.device)

    if sizes and kind == "all_to_all":
        run, elements = _uneven(team, [abs(size) / known.itemsize for size in sizes], min(sizes) < 0, buffer)
    else:
        run = _MAKE[kind](team, each, elements, buffer)
    return Prepared(run, elements * known.itemsize, elements, str(known).removeprefix("torch."))


Buffer = Callable[[int], Any]


def _function(*names: str) -> Any:
    """The first of these that this torch has: it renamed some, and warns about the old names."""
    import torch.distributed as dist

    return next(getattr(dist, name) for name in names if hasattr(dist, name))


def _all_reduce(team: Team, each: int, elements: int, buffer: Buffer) -> Callable[[], Any]:
    call, data = _function("all_reduce"), buffer(elements)
    return lambda: call(data, group=team.handle)


def _all_gather(team: Team, each: int, elements: int, buffer: Buffer) -> Callable[[], Any]:
    call, out, own = _function("all_gather_single", "all_gather_into_tensor"), buffer(elements), buffer(each)
    return lambda: call(out, own, group=team.handle)


def _reduce_scatter(team: Team, each: int, elements: int, buffer: Buffer) -> Callable[[], Any]:
    call, out, data = _function("reduce_scatter_single", "reduce_scatter_tensor"), buffer(each), buffer(elements)
    return lambda: call(out, data, group=team.handle)


def _all_to_all(team: Team, each: int, elements: int, buffer: Buffer) -> Callable[[], Any]:
    call, out, data = _function("all_to_all_single"), buffer(elements), buffer(elements)
    return lambda: call(out, data, group=team.handle)


def _uneven(team: Team, shares: list[float], back: bool, buffer: Buffer) -> tuple[Callable[[], Any], int]:
    """Every member sends member i its share i; back: every member i gets its share i from each, as it came."""
    counts = [max(1, round(share)) for share in shares]
    if len(counts) != team.size:
        raise InputError(f"{len(counts)} sizes", where="all_to_all", expected=f"{team.size}, one a member")
    mine = [counts[team.place]] * team.size
    sent, received = (mine, counts) if back else (counts, mine)
    call, out, data = _function("all_to_all_single"), buffer(sum(received)), buffer(sum(sent))
    return lambda: call(out, data, received, sent, group=team.handle), sum(sent)


def _broadcast(team: Team, each: int, elements: int, buffer: Buffer) -> Callable[[], Any]:
    call, data = _function("broadcast"), buffer(elements)
    return lambda: call(data, team.members[0], group=team.handle)


def _gather(team: Team, each: int, elements: int, buffer: Buffer) -> Callable[[], Any]:
    call, own = _function("gather"), buffer(each)
    parts = [buffer(each) for _ in team.members] if team.place == 0 else None
    return lambda: call(own, parts, team.members[0], group=team.handle)


def _send_recv(team: Team, each: int, elements: int, buffer: Buffer) -> Callable[[], Any]:
    import torch.distributed as dist

    out, data = buffer(elements), buffer(elements)
    if team.size == 2:
        if team.place == 0:
            return lambda: dist.send(data, team.members[1], group=team.handle)
        return lambda: dist.recv(out, team.members[0], group=team.handle)
    after, before = team.members[(team.place + 1) % team.size], team.members[team.place - 1]

    def ring() -> None:
        both = [dist.P2POp(dist.isend, data, after, team.handle), dist.P2POp(dist.irecv, out, before, team.handle)]
        for work in dist.batch_isend_irecv(both):
            work.wait()

    return ring


_MAKE = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "gather": _gather,
    "send_recv": _send_recv,
}

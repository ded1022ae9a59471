"""What each process group really did: every c10d call of this thread, seen where torch dispatches it.

The calling code is not touched: a dispatch mode sees the operators that torch.distributed, functional collectives and
compiled wrappers all end in. Calls from other threads, and replays of a captured CUDA graph, are not dispatched and not
seen. Watching costs some microseconds for every tensor operation, so it is for checks, not for timing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class Seen(NamedTuple):
    """One call of one rank. kind: as in plan/collectives.py, and send, recv, reduce, scatter, barrier.

    group: description of the process group (its axis); members: its world ranks as torch keeps them (sorted).
    elements, S_bytes: the size of the call as DESIGN §3 counts it: all-gather and gather: the gathered output;
    reduce-scatter and scatter: the whole input; all-to-all: what this rank holds to send; else the tensor.
    peer: world rank of the other end or the root, -1 without one. sequence: number of the call in its group, from 0.
    """

    kind: str
    group: str
    members: tuple[int, ...]
    dtype: str
    elements: int
    S_bytes: int
    peer: int
    sequence: int


@contextmanager
def observe() -> Iterator[list[Seen]]:
    """The calls made inside the block, in order; the list grows as they are made."""
    from torch.utils._python_dispatch import TorchDispatchMode

    found: list[Seen] = []
    counts: dict[str, int] = {}

    class Mode(TorchDispatchMode):  # type: ignore[misc]
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            # True has the first call import torch's compiler, some 800 modules, to keep it away from this method.
            return False

        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            space, name = func._schema.name.split("::")
            if space == "c10d":
                found.extend(_seen(_C10D[name], args, counts) if name in _C10D else [_unknown(name, args, counts)])
            elif space == "_c10d_functional" and name in _FUNCTIONAL:
                found.extend(_functional(name, args, counts))
            return func(*args, **(kwargs or {}))

    with Mode():
        yield found


class _Shape(NamedTuple):
    """How an operator's arguments are read. S: places of the tensors that S counts; peer: place of root or peer."""

    kind: str
    S: int
    group: int
    peer: int = -1
    whole: bool = False  # S is this tensor (or list of one) times the size of the group


# Operators of torch's csrc/distributed/c10d/Ops.cpp. Lists and single tensors both occur at a place.
_C10D: dict[str, _Shape] = {
    "allreduce_": _Shape("all_reduce", 0, 1),
    "allreduce_coalesced_": _Shape("all_reduce", 0, 1),
    "_allgather_base_": _Shape("all_gather", 0, 2),
    "allgather_": _Shape("all_gather", 0, 2),
    "allgather_coalesced_": _Shape("all_gather", 0, 2),
    "allgather_into_tensor_coalesced_": _Shape("all_gather", 0, 2),
    "_reduce_scatter_base_": _Shape("reduce_scatter", 1, 2),
    "reduce_scatter_": _Shape("reduce_scatter", 1, 2),
    "reduce_scatter_tensor_coalesced_": _Shape("reduce_scatter", 1, 2),
    "alltoall_base_": _Shape("all_to_all", 1, 2),
    "alltoall_": _Shape("all_to_all", 1, 2),
    "broadcast_": _Shape("broadcast", 0, 1, peer=2),
    "reduce_": _Shape("reduce", 0, 1, peer=3),
    "gather_": _Shape("gather", 1, 2, peer=3, whole=True),
    "scatter_": _Shape("scatter", 0, 2, peer=3, whole=True),
    "send": _Shape("send", 0, 1, peer=2),
    "recv_": _Shape("recv", 0, 1, peer=2),
    "recv_any_source_": _Shape("recv", 0, 1),
    "barrier": _Shape("barrier", -1, 1),
    "monitored_barrier_": _Shape("barrier", -1, 1),
}

# Functional collectives name their group in the last argument. Value: kind, and how S follows from input and size.
_Rule = Callable[[int, int], int]
_FUNCTIONAL: dict[str, tuple[str, _Rule]] = {
    "all_reduce": ("all_reduce", lambda own, n: own),
    "all_reduce_": ("all_reduce", lambda own, n: own),
    "all_reduce_coalesced": ("all_reduce", lambda own, n: own),
    "all_reduce_coalesced_": ("all_reduce", lambda own, n: own),
    "all_gather_into_tensor": ("all_gather", lambda own, n: own * n),
    "all_gather_into_tensor_out": ("all_gather", lambda own, n: own * n),
    "all_gather_into_tensor_coalesced": ("all_gather", lambda own, n: own * n),
    "reduce_scatter_tensor": ("reduce_scatter", lambda own, n: own),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", lambda own, n: own),
    "all_to_all_single": ("all_to_all", lambda own, n: own),
    "broadcast": ("broadcast", lambda own, n: own),
    "broadcast_": ("broadcast", lambda own, n: own),
}


def _seen(shape: _Shape, args: tuple[Any, ...], counts: dict[str, int]) -> Iterator[Seen]:
    """One record for a call; one for each tensor of a coalesced one is not needed: their sizes add up."""
    import torch.distributed as dist

    group = dist.ProcessGroup.unbox(args[shape.group])
    tensors = _tensors(args[shape.S]) if shape.S >= 0 else []
    times = group.size() if shape.whole else 1
    root = args[shape.peer] if shape.peer >= 0 else None
    yield _record(shape.kind, group, tensors, sum(t.numel() for t in tensors) * times, root, counts)


def _unknown(name: str, args: tuple[Any, ...], counts: dict[str, int]) -> Seen:
    """An operator that torch added since: seen by its own name, so that nothing passes unnoticed."""
    import torch
    import torch.distributed as dist

    boxed = next((a for a in args if isinstance(a, torch.ScriptObject) and "ProcessGroup" in str(a._type())), None)
    if boxed is None:
        return Seen(name, "", (), "", 0, 0, -1, 0)
    return _record(name, dist.ProcessGroup.unbox(boxed), [], 0, None, counts)


def _functional(name: str, args: tuple[Any, ...], counts: dict[str, int]) -> Iterator[Seen]:
    from torch._C._distributed_c10d import _resolve_process_group

    kind, rule = _FUNCTIONAL[name]
    group = _resolve_process_group(next(a for a in reversed(args) if isinstance(a, str)))
    tensors = _tensors(args[0])
    yield _record(kind, group, tensors, rule(sum(t.numel() for t in tensors), group.size()), None, counts)


def _record(kind: str, group: Any, tensors: list[Any], elements: int, root: int | None, counts: dict[str, int]) -> Seen:
    import torch.distributed as dist

    members = tuple(dist.get_process_group_ranks(group))
    number = counts.get(group.group_name, 0)
    counts[group.group_name] = number + 1
    first = tensors[0] if tensors else None
    return Seen(
        kind=kind,
        group=group.group_desc,
        members=members,
        dtype=str(first.dtype).removeprefix("torch.") if first is not None else "",
        elements=elements,
        S_bytes=elements * first.element_size() if first is not None else 0,
        # The dispatcher is given a place in the group; people count world ranks.
        peer=members[root] if root is not None and 0 <= root < len(members) else -1,
        sequence=number,
    )


def _tensors(value: Any) -> list[Any]:
    """Tensors of an argument: one, a list, or a list of lists."""
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _tensors(item)]
    return [value] if hasattr(value, "numel") else []

"""Writing ops down: where ranks lie, which all-reduce kernel takes a payload, and a collector of one stage's ops."""

from typing import NamedTuple

import numpy as np

from linkwise.core.layout import Layout
from linkwise.core.quantity import Given, Num, ceil_div, named, value_of, where
from linkwise.engine.base import Convention
from linkwise.model.types import Model
from linkwise.plan.batch import Batch
from linkwise.plan.collectives import Wire, default_algorithm, wire
from linkwise.plan.inventory import Stage
from linkwise.plan.types import Op


class Place(NamedTuple):
    """What a step must know of where its ranks lie: nodes and ranks of one stage, the axes whose groups an engine's own
    all-reduce kernel can serve there, and the devices' compute capability (it limits that kernel's payload)."""

    nodes: int = 1
    kernels: frozenset[str] = frozenset()
    capability: int = 0


ANYWHERE = Place()


class Writer:
    """Collects the ops of one stage with what they share. unlike: ranks of a stage, tensor ranks aside, that hold rows
    of their own; the others hold the same ones."""

    def __init__(
        self,
        model: Model,
        layout: Layout,
        convention: Convention,
        stage: Stage,
        place: Place,
        given: Given,
        unlike: int,
    ) -> None:
        self.layout, self.convention, self.stage, self.place, self.unlike = layout, convention, stage, place, unlike
        self.given = given
        self.dtype = model.dtype
        self.ops: list[Op] = []

    def add(
        self,
        kind: str,
        role: str,
        group: str,
        size: int,
        S: Num,
        tokens: Num,
        repeat: int,
        *,
        dtype: str = "",
        after: str = "",
        useful_share: Num | None = None,
        sizes: tuple[Num, ...] = (),
    ) -> None:
        """One op; nothing when its group is a single rank or no layer makes it."""
        if size <= 1 or repeat <= 0:
            return
        S = named(f"{role}.S", S, "B")
        own = kind == "all_reduce" and group in self.place.kernels
        kernel = kernel_limits(self.convention, size, self.place.capability) if own else NONE
        algorithm, moved = _moved(kind, S, self.given(group, size, "ranks", f"{group} group"), kernel)
        if useful_share is not None:
            moved = Wire(moved.useful_recv * useful_share, moved.sent * useful_share, moved.recv * useful_share)
        self.ops.append(
            Op(
                kind=kind, role=role, group=group, size=size, S_bytes=S, repeat=repeat, stage=self.stage.number,
                dtype=dtype or self.dtype, tokens=tokens, algorithm=algorithm, useful_recv_bytes=moved.useful_recv,
                wire_sent_bytes=named(f"{role}.sent", moved.sent, "B"), wire_recv_bytes=moved.recv,
                waits_for=(after,) if after else (), sizes=sizes,
            )
        )  # fmt: skip


class Kernel(NamedTuple):
    """Payloads an engine's own all-reduce kernel takes: in one step below `one_shot`, at all up to `most`."""

    one_shot: int
    most: int


NONE = Kernel(0, 0)


def kernel_limits(convention: Convention, size: int, capability: int) -> Kernel:
    """Limits of the engine's own all-reduce kernel for a group of this size; zeros where it has none."""
    if convention.all_reduce_small == convention.all_reduce:
        return NONE
    limits = convention.small_bytes
    most = limits.get(f"{capability}:{size}", limits.get(str(size), 0))
    return Kernel(convention.one_shot_bytes.get(str(size), 0), most)


def _moved(kind: str, S: Num, size: Num, kernel: Kernel) -> tuple[str, Wire]:
    """Algorithm and bytes of a call: the engine's kernel where it takes the payload, else the kind's default."""
    default = wire(kind, S, size)
    if not kernel.most:
        return default_algorithm(kind), default
    # A two-shot kernel moves a ring's bytes in two steps, so only the one-shot kernel changes what is on the wire.
    one = wire(kind, S, size, "one_shot")
    below = kernel.one_shot > S
    pick = Wire(*(where(below, a, b) for a, b in zip(one, default, strict=True)))
    if isinstance(value_of(S), np.ndarray):
        return "by size", pick
    if value_of(below):
        return "one_shot", pick
    return "two_shot" if value_of(S) <= kernel.most else default_algorithm(kind), pick


def unlike_loads(batch: Batch, layout: Layout, convention: Convention) -> int:
    """Ranks of a stage, tensor ranks aside, with rows of their own: cp ranks that each make all rows have the same."""
    alike = convention.cp_kv == "whole" and not any(part.prompt for part in batch.parts)
    return layout.dp_attn * (1 if alike else layout.cp)


def axis_of(layout: Layout, over: str) -> tuple[int, str]:
    if over == "stage":
        return layout.stage_size, "stage"
    return (layout.tp, "tp") if over == "tp" else (1, "tp")


def filled_up(tokens: Num, parts: int) -> Num:
    """Tokens rounded up so that each of `parts` ranks has the same number; a chain shows no division by one."""
    return ceil_div(tokens, parts) * parts if parts > 1 else tokens


def reduce(write: Writer, role: str, axis: str, size: int, row: Num, tokens: Num, repeat: int) -> None:
    """The reduction after a row-split matmul; sequence-sharded tp splits it around the token-wise part."""
    if write.layout.sequence_sharded and axis == "tp":
        write.add("all_gather", role.split(".", maxsplit=1)[0] + ".in", axis, size, row, tokens, repeat)
        write.add("reduce_scatter", role, axis, size, row, tokens, repeat, after=role)
    else:
        write.add("all_reduce", role, axis, size, row, tokens, repeat, after=role)

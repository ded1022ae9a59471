"""Calls of records that name neither roles nor batches, held against the plan by what a call shows: kind, group, size.

A step of T tokens has ops of known sizes. Where an observed call has exactly the kind, the group size and the bytes of
some of them, it is one of those; more is not said.
"""

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from linkwise.core.quantity import value_of
from linkwise.plan.batch import decode_batch
from linkwise.plan.explain import subject
from linkwise.plan.figures import Subject, ops_of
from linkwise.plan.time import op_seconds
from linkwise.plan.types import Op, Plan
from linkwise.report.page.types import Observed
from linkwise.trace.events import RankTrace

MOST_SIZES = 200  # different calls that are looked for, the most frequent first
MOST_TOKENS = 65_536  # of a step
NOT_COUNTED = frozenset({"recv", "wait", "compute", "barrier", ""})  # a message counts where it is sent


class Shape(NamedTuple):
    """What a call shows. ranks: of its group."""

    kind: str
    ranks: int
    S_bytes: int


class Match(NamedTuple):
    """Ops of a step that have this shape, and the price of one of them."""

    roles: str
    seconds: float


def rows(ranks: Iterable[RankTrace], plan: Plan) -> list[Observed]:
    """One row for each set of roles and kind; what no op of the plan has the shape of is a row without roles."""
    seen = _shapes(ranks)
    about = subject(plan)
    frequent = sorted(seen, key=lambda one: -sum(map(len, seen[one])))[:MOST_SIZES]
    matches = {shape: _match(about, shape) for shape in frequent}
    together: dict[tuple[str, str], list[Shape]] = {}
    for shape in seen:
        match = matches.get(shape)
        together.setdefault((match.roles if match else "", shape.kind), []).append(shape)
    return [_row(role, kind, shapes, seen, matches) for (role, kind), shapes in together.items()]


Times = list[npt.NDArray[np.int64]]


def _shapes(ranks: Iterable[RankTrace]) -> dict[Shape, Times]:
    """Nanoseconds of the calls of each shape, rank by rank; -1 = not known."""
    found: dict[Shape, Times] = {}
    for rank in ranks:
        calls = rank.calls
        began = np.where(calls.started_ns > 0, calls.started_ns, calls.created_ns)
        took = np.where((began > 0) & (calls.ended_ns >= began), calls.ended_ns - began, -1)
        columns = np.stack([calls.op.astype(np.int64), calls.group.astype(np.int64), calls.S_bytes])
        different, which = np.unique(columns, axis=1, return_inverse=True)
        for place, (op, group, size) in enumerate(different.T.tolist()):
            word = calls.ops[op]
            if word not in NOT_COUNTED:
                members = rank.head.groups.get(calls.groups[group], ())
                shape = Shape({"send": "send_recv"}.get(word, word), len(members), size)
                found.setdefault(shape, []).append(took[which.reshape(-1) == place])
    return found


def _match(about: Subject, shape: Shape) -> Match | None:
    """The ops of the step that has most calls of this shape."""

    @cache
    def step(tokens: int) -> tuple[Op, ...]:
        context = about.workload.isl_tokens + about.workload.osl_tokens // 2
        return tuple(ops_of(about, decode_batch(tokens, context)))

    def alike(op: Op) -> bool:
        # A message has two ends, whatever its group is.
        return op.kind == shape.kind and (op.kind == "send_recv" or op.size == shape.ranks)

    each = {int(value_of(op.S_bytes)) for op in step(1) if alike(op)} - {0}
    tokens = {shape.S_bytes // one for one in each if shape.S_bytes % one == 0} - {0}
    found = [
        [op for op in step(count) if alike(op) and value_of(op.S_bytes) == shape.S_bytes]
        for count in tokens
        if count <= MOST_TOKENS
    ]
    best = max(found, key=lambda ops: sum(op.repeat for op in ops), default=[])
    if not best:
        return None
    eager = about.options.eager or not about.engine.defaults.cuda_graphs
    convention = about.engine.convention_for(about.model, about.layout, about.options)
    prices = [
        op.repeat * float(value_of(op_seconds(op, about.places[op.group], about.cluster, convention, eager=eager)))
        for op in best
    ]
    return Match(", ".join(dict.fromkeys(op.role for op in best)), sum(prices) / sum(op.repeat for op in best))


def _row(
    role: str, kind: str, shapes: list[Shape], seen: dict[Shape, Times], matches: dict[Shape, Match | None]
) -> Observed:
    counts = [sum(map(len, seen[shape])) for shape in shapes]
    took = np.concatenate([part for shape in shapes for part in seen[shape]])
    known = took[took >= 0]
    prices = [match.seconds for shape in shapes if (match := matches.get(shape))]
    whole = bool(role) and len(prices) == len(shapes)
    mean = sum(price * n for price, n in zip(prices, counts, strict=True)) / sum(counts) if whole else None
    return Observed(
        role=role,
        kind=kind,
        planned_calls=None,
        planned_bytes=None,
        planned_s=mean,
        observed_calls=sum(counts),
        observed_bytes=float(sum(shape.S_bytes * n for shape, n in zip(shapes, counts, strict=True))),
        observed_s=float(np.median(known)) / 1e9 if len(known) else None,
    )

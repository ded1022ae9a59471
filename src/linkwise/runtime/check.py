"""What each process group really did, held against the plan: kind, size, dtype, peer and order of every call.

Planned calls come from the plan's own list of ops (plan/step.py), layer by layer, for one rank and one real batch.
Observed calls come from dist/observer.py, which knows nothing of roles: a call's role is that of the planned call at
the same place in its group. A difference is an error in one of the two and is never tolerated.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout, coordinates, groups
from linkwise.dist.observer import Seen
from linkwise.engine.base import Engine, Options
from linkwise.model.types import Model
from linkwise.plan.batch import Batch, Part
from linkwise.plan.inventory import Stage, held, inventory, stages, token_bytes
from linkwise.plan.messages import message_bytes, messages
from linkwise.plan.step import kv_dtype_of, rank_ops
from linkwise.plan.types import Op, Plan
from linkwise.runtime.steps import Row, Step

# What a rank holds to send back is what it was sent, which routing decides: only the group's sum is planned.
ROUTED = frozenset({"moe.combine"})
UNPLANNED = "(not planned)"


class Planned(NamedTuple):
    """One call of one rank. kind: as the observer names it. members: world ranks. S_bytes, peer: as in Seen."""

    kind: str
    role: str
    axis: str
    members: tuple[int, ...]
    S_bytes: int
    dtype: str
    peer: int = -1


def cut(model: Model, layout: Layout, engine: Engine, layers: Sequence[int] = ()) -> tuple[Stage, ...]:
    """The pipeline stages: as many layers each as given, else the engine's own partition. Raises InputError."""
    if not layers:
        return stages(model, layout, engine)
    if len(layers) != layout.pp or sum(layers) != len(model.layers) or min(layers) < 1:
        raise InputError(
            f"stages of {', '.join(map(str, layers))} layers",
            where="layout",
            expected=f"{layout.pp} stages of at least one layer, {len(model.layers)} in all",
        )
    ends = [sum(layers[: number + 1]) for number in range(layout.pp)]
    return tuple(
        Stage(number, end - layers[number], end, number == 0, number == layout.pp - 1)
        for number, end in enumerate(ends)
    )


def batch_of(rows: Iterable[Row]) -> Batch:
    """The plan's batch of one attention replica's rows, each row a part of its own."""
    parts = tuple(Part(1, len(row.tokens), row.start, row.prompt) for row in rows)
    kinds = {part.prompt for part in parts}
    kind = "mixed" if len(kinds) > 1 else "prefill" if True in kinds else "decode"
    return Batch(kind, parts, sum(row.draw is not None for row in rows))


def expected(
    model: Model, layout: Layout, engine: Engine, step: Step, rank: int, *,
    layers: Sequence[int] = (), first: int = 0, options: Options | None = None,
) -> list[Planned]:  # fmt: skip
    """The calls of one rank in one step, in program order.

    model: in the dtype it runs in (`model.held`). rank: of the serving group; its world rank is first + rank.
    """
    place = coordinates(layout, rank)
    stage = cut(model, layout, engine, layers)[place["pp"]]
    batch = batch_of(list(step.batches[place["dp_attn"]]))
    options = options or Options()
    ops = rank_ops(inventory(model), stage, layout, engine, batch, options)
    calls = [call for op in ops for call in _calls(op, layout, rank, first)]
    if stage.is_first:
        return calls
    # What the previous stage hands over is the same tensor on every stage.
    handed = [op for op in rank_ops(inventory(model), stage._replace(first=0, end=0, is_first=False, is_last=False),
                                    layout, engine, batch, options) if op.group == "pp"]  # fmt: skip
    return [call for op in handed for call in _received(op, layout, rank, first)] + calls


def _calls(op: Op, layout: Layout, rank: int, first: int) -> list[Planned]:
    members = next(g for g in groups(layout, op.group) if rank in g)
    world = tuple(first + r for r in members)

    def call(kind: str, peer: int = -1) -> Planned:
        return Planned(kind, op.role, op.group, world, int(op.S_bytes), op.dtype, peer)

    if op.kind != "send_recv":
        return [call(op.kind)] * op.repeat
    at, size = members.index(rank), len(members)
    if op.group == "pp":
        return [call("send", world[at + 1])] * op.repeat
    # A pass of a ring: to the next rank, from the previous one.
    return [call("send", world[(at + 1) % size]), call("recv", world[at - 1])] * op.repeat


def _received(op: Op, layout: Layout, rank: int, first: int) -> list[Planned]:
    members = next(g for g in groups(layout, "pp") if rank in g)
    world = tuple(first + r for r in members)
    source = world[members.index(rank) - 1]
    return [Planned("recv", op.role, "pp", world, int(op.S_bytes), op.dtype, source)] * op.repeat


def expected_handoff(
    model: Model, prefill: Layout, decode: Layout, engine: Engine, prompt_tokens: int, block_tokens: int, place: int,
    *, first: int = 0, options: Options | None = None,
) -> list[Planned]:  # fmt: skip
    """The messages of one prompt's handoff that a rank of the unit sends or receives, in order.

    place: of the rank in the unit, prefill ranks first; its world rank is first + place.
    """
    world = tuple(range(first, first + prefill.size + decode.size))
    dtype = kv_dtype_of(model, options or Options())
    found = []
    for one in messages(model, prefill, decode, engine):
        source, target = one.piece.sender, prefill.size + one.piece.receiver
        size = message_bytes(one, prompt_tokens, block_tokens, dtype)
        for kind, mine, other in (("send", source, target), ("recv", target, source)):
            if mine == place:
                found.append(Planned(kind, "kv.handoff", "handoff", world, size, dtype, world[other]))
    return found


class Line(NamedTuple):
    """One role and kind over all ranks that were compared."""

    role: str
    kind: str
    planned_calls: int
    planned_bytes: int
    observed_calls: int
    observed_bytes: int

    @property
    def equal(self) -> bool:
        return (self.planned_calls, self.planned_bytes) == (self.observed_calls, self.observed_bytes)


class Comparison(NamedTuple):
    """Planned against observed. difference: the first one in words, empty = none. ranks: how many were compared."""

    lines: tuple[Line, ...]
    difference: str
    ranks: int

    @property
    def equal(self) -> bool:
        """Whether every call of every rank was as planned."""
        return not self.difference


_Group = tuple[str, tuple[int, ...]]


def compare(seen: Mapping[int, Sequence[Seen]], planned: Mapping[int, Sequence[Planned]]) -> Comparison:
    """Hold observed calls against planned ones, rank by rank. Keys: ranks, the same in both.

    Calls of one group keep their order; calls of different groups of a rank may interleave.
    """
    tally = _Tally()
    words = ""
    routed: dict[tuple[_Group, int], dict[int, tuple[int, int]]] = {}
    for rank in sorted(planned):
        expect = _by_group(planned[rank])
        at: dict[_Group, int] = {}
        for call in planned[rank]:
            tally.plan(call)
        for one in seen.get(rank, ()):
            group = one.group, one.members
            number = at.get(group, 0)
            at[group] = number + 1
            plan = expect.get(group, [])
            match = plan[number] if number < len(plan) else None
            tally.observe(one, match)
            words = words or _differs(rank, number, one, match)
            if match is not None and match.role in ROUTED:
                routed.setdefault((group, number), {})[rank] = match.S_bytes, one.S_bytes
        missing = next((plan[at.get(group, 0)] for group, plan in expect.items() if at.get(group, 0) < len(plan)), None)
        if missing is not None and not words:
            words = f"rank {rank}: {_planned_words(missing)} was planned and not made"
    words = words or _routed_words(routed)
    return Comparison(tally.lines(), words, len(planned))


def combined(comparisons: Iterable[Comparison]) -> Comparison:
    """Several comparisons (steps of one run) as one: their sums, and the first difference."""
    tally, words, ranks = _Tally(), "", 0
    for one in comparisons:
        for line in one.lines:
            tally.add(line)
        words, ranks = words or one.difference, max(ranks, one.ranks)
    return Comparison(tally.lines(), words, ranks)


def _by_group(calls: Sequence[Planned]) -> dict[_Group, list[Planned]]:
    found: dict[_Group, list[Planned]] = {}
    for call in calls:
        found.setdefault((call.axis, call.members), []).append(call)
    return found


class _Tally:
    """Calls and bytes by role and kind, roles in order of their first appearance."""

    def __init__(self) -> None:
        self.sums: dict[tuple[str, str], list[int]] = {}

    def add(self, line: Line) -> None:
        sums = self.sums.setdefault((line.role, line.kind), [0, 0, 0, 0])
        for place, value in enumerate(line[2:]):
            sums[place] += value

    def plan(self, call: Planned) -> None:
        self.add(Line(call.role, call.kind, 1, call.S_bytes, 0, 0))

    def observe(self, one: Seen, call: Planned | None) -> None:
        role = call.role if call is not None and call.kind == one.kind else UNPLANNED
        self.add(Line(role, one.kind, 0, 0, 1, one.S_bytes))

    def lines(self) -> tuple[Line, ...]:
        return tuple(Line(role, kind, *sums) for (role, kind), sums in self.sums.items())


def _differs(rank: int, number: int, one: Seen, call: Planned | None) -> str:
    """What is not as planned about one call; empty when nothing is."""
    seen = f"{one.kind} of {one.S_bytes:,} B {one.dtype}" + (f" with rank {one.peer}" if one.peer >= 0 else "")
    at = f"rank {rank}, call {number} of group {one.group} ({_ranks(one.members)})"
    if call is None:
        return f"{at}: {seen} was observed and not planned"
    size = one.S_bytes if call.role in ROUTED and one.kind == "all_to_all" else call.S_bytes
    if (call.kind, size, call.dtype, call.peer) == (one.kind, one.S_bytes, one.dtype, one.peer):
        return ""
    return f"{at}: {_planned_words(call)} was planned, {seen} observed"


def _planned_words(call: Planned) -> str:
    with_whom = f" with rank {call.peer}" if call.peer >= 0 else f" in group {call.axis} ({_ranks(call.members)})"
    return f"{call.kind} {call.role} of {call.S_bytes:,} B {call.dtype}{with_whom}"


def _routed_words(routed: Mapping[tuple[_Group, int], Mapping[int, tuple[int, int]]]) -> str:
    for (group, number), sizes in routed.items():
        if len(sizes) < len(group[1]):
            continue  # some ranks of the group were not compared: their sum is not known
        plan, observed = (sum(size[side] for size in sizes.values()) for side in (0, 1))
        if plan != observed:
            return (
                f"call {number} of group {group[0]} ({_ranks(group[1])}): {plan:,} B were planned over its ranks,"
                f" {observed:,} B observed"
            )
    return ""


def _ranks(members: Sequence[int]) -> str:
    shown = ", ".join(map(str, members[:8]))
    return f"ranks {shown}" + (", ..." if len(members) > 8 else "")


class Memory(NamedTuple):
    """Bytes one rank allocated and the ledger's figure. what: weights or kv.

    slots: tokens of KV that both are for, where it is the figure of one token that is compared; 0 = it is the whole.
    """

    rank: int
    what: str
    planned_bytes: int
    allocated_bytes: int
    slots: int = 0

    @property
    def equal(self) -> bool:
        return self.planned_bytes == self.allocated_bytes


def memory_check(
    model: Model, layout: Layout, engine: Engine, *, weight_bytes: Sequence[int], kv_bytes: Sequence[int],
    kv_blocks: int, block_tokens: int, layers: Sequence[int] = (), options: Options | None = None,
) -> list[Memory]:  # fmt: skip
    """Allocated bytes of every rank of a group against the ledger's rules.

    weight_bytes, kv_bytes: by rank. kv_blocks: of each rank's cache, all of them. model: in the dtype it runs in.
    """
    found = []
    options = options or Options()
    for rank, (weights, kv) in enumerate(zip(weight_bytes, kv_bytes, strict=True)):
        planned = planned_memory(model, layout, engine, rank, kv_blocks, block_tokens, layers=layers, options=options)
        found += [Memory(rank, "weights", planned[0], weights), Memory(rank, "kv", planned[1], kv)]
    return found


def ledger_check(plan: Plan, *, weight_bytes: Sequence[int], kv_bytes: Sequence[int], slots: int) -> list[Memory]:
    """Allocated bytes of every rank of the plan's group against the figures in the plan's own ledger.

    For a plan of our own engine that is run as it stands. slots: tokens that a rank's KV cache has room for, which are
    not as many as the plan's: of KV it is the bytes of a token that are the plan's. KV whose tokens are divided over
    ranks is counted by its rules alone (`memory_check`).
    """
    found = []
    for row in plan.ledger.ranks:
        for rank in row.ranks:
            found.append(Memory(rank, "weights in the plan", row.bytes_of("weights."), weight_bytes[rank]))
            if row.bytes_per_token is not None and plan.layout.cp * plan.layout.dcp == 1:
                found.append(Memory(rank, "kv in the plan", row.bytes_per_token * slots, kv_bytes[rank], slots))
    return found


def planned_memory(
    model: Model, layout: Layout, engine: Engine, rank: int, kv_blocks: int, block_tokens: int, *,
    layers: Sequence[int] = (), options: Options | None = None,
) -> tuple[int, int]:  # fmt: skip
    """Bytes of weights and of a KV cache of so many blocks on one rank, as the ledger counts them."""
    place, options, stock = coordinates(layout, rank), options or Options(), inventory(model)
    stage = cut(model, layout, engine, layers)[place["pp"]]
    convention = engine.convention_for(model, layout, options)
    rows = held(stock, stage, layout, engine, ep_rank=place["ep"], rank=place["tp"], convention=convention)
    dtype = kv_dtype_of(model, options)
    entry = sum(
        token_bytes(state, layout, dtype) * sum(stage.first <= layer < stage.end for layer in where)
        for state, where in stock.states
    )
    return sum(row.bytes for row in rows), entry * kv_blocks * block_tokens

"""What a placement costs: communication seconds of a mean step, from the groups' places alone.

A term is what the groups of one axis do in one stage, weighted over steps. Its groups run at the same time and the
slowest is waited for; terms of a stage follow one another, a token visits all stages, and replicas count by their mean.
Each group's seconds are those of plan/time.py at the place of *that* group. Handovers between stages are counted pair
by pair, so a pipeline that leaves its node once pays for one crossing.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from linkwise.cluster.types import Cluster, Tier
from linkwise.core.layout import Layout, groups
from linkwise.engine.base import Convention
from linkwise.plan.collectives import default_algorithm, wire
from linkwise.plan.time import US, Span, group_span, has_kernel, on_rails, op_seconds
from linkwise.plan.types import Op
from linkwise.plan.writer import NONE, kernel_limits

# Order of two placements that take equally long: what leaves its rail counts a little more. Never in a printed figure.
OFF_RAIL = 1.01
KV = "kv.handoff"

Members = tuple[int, ...]
Rows = Sequence[Members]


class Term(NamedTuple):
    """What the groups of an axis call in a stage. ops: (step, weight, op). edges: their ranks in one replica."""

    axis: str
    stage: int
    ops: tuple[tuple[str, float, Op], ...]
    edges: tuple[Members, ...]


def terms(layout: Layout, ops: Mapping[str, Sequence[Op]], weights: Mapping[str, float]) -> tuple[Term, ...]:
    """The terms of a step's ops. weights: share of each step, by its name; a step without one counts nothing."""
    found: dict[tuple[str, int], list[tuple[str, float, Op]]] = {}
    for step, listed in ops.items():
        weight = weights.get(step, 0.0)
        for op in listed:
            axis = KV if op.role == KV else op.group
            found.setdefault((axis, op.stage), []).append((step, weight, op))
    edges = {axis: _edges(layout, axis) for axis in {axis for axis, _ in found}}
    return tuple(
        Term(axis, stage, tuple(listed), edges[axis].get(stage, ()))
        for (axis, stage), listed in found.items()
        if edges[axis].get(stage)
    )


def _edges(layout: Layout, axis: str) -> dict[int, tuple[Members, ...]]:
    """Groups of an axis by the stage whose ops they serve; a handover belongs to the stage that sends."""
    by_stage: dict[int, list[Members]] = {}
    if axis == KV:  # all ranks of a stage send their share at once, over the NICs they have
        return {stage: (members,) for stage, members in enumerate(groups(layout, "stage"))}
    for members in groups(layout, axis):
        if axis == "pp":
            for stage in range(layout.pp - 1):
                by_stage.setdefault(stage, []).append(members[stage : stage + 2])
        else:
            by_stage.setdefault(members[0] // layout.stage_size, []).append(members)
    return {stage: tuple(edges) for stage, edges in by_stage.items()}


class Score(NamedTuple):
    """seconds: communication of a mean step. spread: sum over all groups, not only the slowest; breaks ties."""

    seconds: float
    spread: float

    def beats(self, other: "Score") -> bool:
        """Shorter by more than rounding; or as long, and less in all."""
        if abs(self.seconds - other.seconds) > 1e-9 * max(self.seconds, other.seconds):
            return self.seconds < other.seconds
        return self.spread < other.spread * (1 - 1e-9)


class Cost:
    """The cost of placements of one layout on one cluster. Remembers where groups lie; holds nothing else."""

    def __init__(
        self, cluster: Cluster, found: tuple[Term, ...], convention: Convention, *, eager: bool, share: float = 1.0
    ) -> None:
        self.cluster, self.terms, self.convention, self.eager = cluster, found, convention, eager
        self.share = share  # of a replica in the mean
        self._places: dict[Members, tuple[Span, bool]] = {}
        self._seconds: dict[tuple[int, Span], float] = {}

    def place(self, members: Members) -> tuple[Span, bool]:
        """Where a group lies, and whether what leaves its node stays on its rails."""
        known = self._places.get(members)
        if known is None:
            where = group_span(members, self.cluster)
            rails = where.tier is Tier.CLUSTER and self.cluster.fabric == "rail"
            known = self._places[members] = where, not rails or on_rails(members, self.cluster)
        return known

    def edge(self, number: int, members: Members) -> tuple[float, float]:
        """(seconds, tie-breaking weight) of one group of a term."""
        if self.terms[number].axis == KV:
            # One exchange rarely frees the busiest NIC alone; the sum of squares says which exchanges lead there.
            return self.at(number, self._nic_span(members)), self.at(number, self._nic_span(members, squares=True))
        where, rails = self.place(members)
        seconds = self.at(number, where)
        return seconds, seconds if rails else seconds * OFF_RAIL

    def at(self, number: int, where: Span) -> float:
        """Seconds of a term's group at a place."""
        key = number, where
        if key not in self._seconds:
            self._seconds[key] = sum(self.by_step(number, where).values())
        return self._seconds[key]

    def by_step(self, number: int, where: Span) -> dict[str, float]:
        """`at` by step, weighted."""
        found: dict[str, float] = {}
        for step, weight, op in self.terms[number].ops:
            if weight:
                one = self._nic_seconds(op, where) if op.role == KV else self._op_seconds(op, where)
                found[step] = found.get(step, 0.0) + weight * op.repeat * one
        return found

    def _op_seconds(self, op: Op, where: Span) -> float:
        here = at_tier(op, where.tier, self.convention, self.cluster)
        return float(op_seconds(here, where, self.cluster, self.convention, eager=self.eager))

    def _nic_seconds(self, op: Op, where: Span) -> float:
        base, _ = self.cluster.constants.latency("nccl", Tier.CLUSTER)
        return base * US + float(op.S_bytes) * where.share

    def _nic_span(self, members: Members, *, squares: bool = False) -> Span:
        """As a Span whose share is seconds per byte of the busiest NIC: ranks behind it over its bandwidth."""
        load: dict[tuple[int, int], float] = {}
        for number in members:
            nics = self.cluster.nics_of(number)
            for nic in nics:
                at = self.cluster.node_of(number), nic
                load[at] = load.get(at, 0.0) + 1 / len(nics)
        usable = self.cluster.nic_Bps * self.cluster.constants.link_efficiency.get("nic", 1.0)
        busy = sum(n * n for n in load.values()) if squares else max(load.values())
        return Span(Tier.CLUSTER, 1, share=busy / usable)

    def score(self, rows: Rows) -> Score:
        """The score of a placement: devices of each replica in rank order."""
        seconds = spread = 0.0
        for row in rows:
            for number, term in enumerate(self.terms):
                edges = [self.edge(number, tuple([row[r] for r in ranks])) for ranks in term.edges]
                seconds += max(edges)[0]
                spread += sum(weight for _, weight in edges)
        return Score(seconds * self.share, spread * self.share)

    def slowest(self, number: int, row: Members) -> Members:
        """Devices of the slowest group of a term in one replica."""
        placed = (tuple(row[r] for r in ranks) for ranks in self.terms[number].edges)
        return max(placed, key=lambda members: self.edge(number, members)[0])

    def breakdown(self, rows: Rows) -> dict[tuple[str, str], float]:
        """The seconds of a placement by axis and step."""
        found: dict[tuple[str, str], float] = {}
        steps: dict[tuple[int, Span], dict[str, float]] = {}
        for row in rows:
            for number, term in enumerate(self.terms):
                members = self.slowest(number, row)
                where = self._nic_span(members) if term.axis == KV else self.place(members)[0]
                if (number, where) not in steps:
                    steps[number, where] = self.by_step(number, where)
                for step, seconds in steps[number, where].items():
                    found[term.axis, step] = found.get((term.axis, step), 0.0) + seconds * self.share
        return found


def at_tier(op: Op, tier: Tier, convention: Convention, cluster: Cluster) -> Op:
    """An op as the engine runs it at a tier: its own all-reduce kernel does not run everywhere."""
    if op.kind != "all_reduce":
        return op
    served = has_kernel(tier, op.size, cluster)
    kernel = kernel_limits(convention, op.size, cluster.accelerator.capability) if served else NONE
    if op.S_bytes < kernel.one_shot:
        name = "one_shot"
    else:
        name = "two_shot" if 0 < op.S_bytes <= kernel.most else default_algorithm(op.kind)
    if name == op.algorithm:
        return op
    moved = wire(op.kind, op.S_bytes, op.size, name)
    return replace(
        op, algorithm=name, useful_recv_bytes=moved.useful_recv, wire_sent_bytes=moved.sent, wire_recv_bytes=moved.recv
    )

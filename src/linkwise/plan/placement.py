"""Rank to device: the order that communicates least, what it gains over the usual order, and how sure that is.

Candidates are built level by level (placing/packing.py), improved by exchanges (placing/search.py), and held against
a lower bound (placing/bound.py). Clusters of up to eight devices are searched whole (placing/exhaustive.py).
"""

import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import isqrt
from statistics import median

from linkwise.cluster.types import Cluster, Tier
from linkwise.core.errors import InputError
from linkwise.core.identity import ById, ByValue
from linkwise.core.layout import Layout
from linkwise.engine.base import Convention
from linkwise.plan.engine_of import engine_of
from linkwise.plan.figures import Subject
from linkwise.plan.operate import prompt_chunks
from linkwise.plan.placement_types import BEST_FOUND, EXHAUSTIVE, MEETS_BOUND, AxisPlace, HostRanks, Placement
from linkwise.plan.placing import exhaustive
from linkwise.plan.placing.bound import bound
from linkwise.plan.placing.cost import KV, Cost, Term, terms
from linkwise.plan.placing.packing import candidates
from linkwise.plan.placing.search import improve
from linkwise.plan.types import Op, Plan
from linkwise.workload.types import Workload

Rows = tuple[tuple[int, ...], ...]

# Work of a search, in ranks whose groups are computed again: keeps 1,024 devices within a second.
SEARCH_WORK = 20_000
RANDOM_WORK = 4_096
# On more devices than this, an order so near to the bound is not improved: times are not known to a thousandth.
MANY = 256
NEAR = 1e-3


def naive_grid(layout: Layout, replicas: int) -> Rows:
    """Ranks on devices in order, one replica after the other."""
    return tuple(tuple(range(r * layout.size, (r + 1) * layout.size)) for r in range(replicas))


def place(
    layout: Layout,
    cluster: Cluster,
    ops: Mapping[str, Sequence[Op]],
    weights: Mapping[str, float],
    *,
    replicas: int | None = None,
    convention: Convention | None = None,
    eager: bool = False,
    compare: bool = True,
) -> Placement:
    """Which device takes which rank, for `replicas` of a layout (None = as many as there is room for).

    ops: a step's ops by the step's name, as a plan holds them. weights: share of each step by name; need not sum to 1.
    convention: the engine's, for its own kernels. compare: also look at random and bad orders, to say what a good one
    is worth. Raises InputError when the replicas do not fit on the cluster or no step counts.
    """
    count = cluster.size // layout.size if replicas is None else replicas
    if count < 1 or count * layout.size > cluster.size:
        raise InputError(
            f"{max(count, 1)} x {layout} needs {max(count, 1) * layout.size} devices",
            where="place",
            expected=f"at most {cluster.size} ({cluster.name})",
        )
    shares = _shares(ops, weights)
    notes: list[str] = []
    found = terms(layout, {step: tuple(listed) for step, listed in ops.items()}, shares)
    if not cluster.nics_per_node and any(t.axis == KV for t in found):
        found = tuple(t for t in found if t.axis != KV)
        notes.append("the cluster names no NICs: the KV handoff does not count")
    naive = naive_grid(layout, count)
    kind = convention or Convention(name="plain")
    cost, floor, rows, proof, looked = _searched(ById(cluster), layout, count, found, ByValue(kind), eager)
    seconds, start = cost.score(rows).seconds, cost.score(naive).seconds
    if seconds >= start * (1 - 1e-9) and _rails(cost, rows) >= _rails(cost, naive):
        rows, seconds = naive, start
    typical, worst = _others(cost, layout, rows, naive) if compare else (None, None)
    after = cost.breakdown(rows)
    before = after if rows == naive else cost.breakdown(naive)
    by_step, by_step_before = _summed(after, 1), _summed(before, 1)
    return Placement(
        cluster=cluster.name,
        layout=layout,
        rank_grid=rows,
        naive=rows == naive,
        seconds=seconds,
        naive_seconds=start,
        random_seconds=typical,
        worst_seconds=worst,
        bound_seconds=seconds if proof == EXHAUSTIVE else min(floor, seconds),
        proof=proof,
        gap=seconds / floor - 1 if proof == BEST_FOUND and floor else 0.0,
        looked=looked,
        weights=shares,
        steps={step: (by_step_before.get(step, 0.0), by_step.get(step, 0.0)) for step, w in shares.items() if w},
        axes=_axes(cost, rows, naive, _summed(after, 0), _summed(before, 0)),
        hosts=_hosts(cluster, rows),
        nic_names=_nic_names(cluster, rows),
        notes=tuple(notes),
    )


def place_plan(plan: Plan, *, handoff: bool = False) -> Placement:
    """The placement of a plan's layout under its own steps.

    handoff: each rank also sends its share of a prompt's KV over its NICs, once a request.
    """
    about = Subject(
        plan.model, plan.cluster, engine_of(plan), plan.layout, plan.options,
        plan.workload, plan.chosen.point.batch, plan.replicas,
    )  # fmt: skip
    ops = {"decode": plan.decode, "mixed": plan.mixed}
    if handoff:
        ops["handoff"] = handoff_ops(plan)
    return place_steps(about, ops, plan.resolved.max_batched_tokens)


def place_steps(
    about: Subject, ops: Mapping[str, tuple[Op, ...]], max_batched_tokens: int, *, compare: bool = True
) -> Placement:
    """The placement of a layout that runs these steps as often as its workload asks."""
    chunks = prompt_chunks(about.workload, max_batched_tokens)[1]
    weights = step_weights(about.workload, about.layout, about.batch, chunks)
    if "handoff" in ops:
        weights["handoff"] = 1.0
    counted = {step: listed for step, listed in ops.items() if step in weights}
    return place(
        about.layout,
        about.cluster,
        counted,
        weights,
        replicas=about.replicas,
        convention=about.engine.convention_for(about.model, about.layout, about.options),
        eager=about.options.eager or not about.engine.defaults.cuda_graphs,
        compare=compare,
    )


def step_weights(workload: Workload, layout: Layout, batch: int, chunks: int) -> dict[str, float]:
    """Steps a request costs: its prompt's chunks ride in mixed steps, the other decode rounds carry none.

    As in plan/operate.py: an attention replica with b requests runs osl/b rounds between two arrivals.
    """
    rounds = workload.osl_tokens * layout.dp_attn / batch
    return {"decode": max(0.0, rounds - chunks), "mixed": float(chunks)}


def handoff_ops(plan: Plan) -> tuple[Op, ...]:
    """One op a stage: every rank sends what it holds of a prompt's KV over its NICs. Raises InputError for a stack
    without bytes per token."""
    found = []
    for stage in range(plan.layout.pp):
        rank = stage * plan.layout.stage_size
        held = next(c for c in plan.ledger.ranks if rank in c.ranks)
        if held.bytes_per_token is None:
            raise InputError(
                "a hybrid stack has no bytes per token", where="place --handoff", expected="a model whose KV grows"
            )
        size = held.bytes_per_token * plan.workload.isl_tokens
        found.append(
            Op(
                kind="send_recv", role=KV, group="stage", size=2, S_bytes=size, repeat=1, stage=stage, dtype="",
                tokens=plan.workload.isl_tokens, algorithm="direct", useful_recv_bytes=size, wire_sent_bytes=size,
                wire_recv_bytes=size,
            )
        )  # fmt: skip
    return tuple(found)


def _shares(ops: Mapping[str, Sequence[Op]], weights: Mapping[str, float]) -> dict[str, float]:
    """Weights of the steps that have ops, of a sum of 1 (a handoff adds to the steps it goes with)."""
    for step, weight in weights.items():
        if not 0 <= weight < float("inf"):
            raise InputError(f"weight of {step} is {weight}", where="place", expected="0 or more")
    total = sum(w for step, w in weights.items() if step in ops and step != "handoff")
    if not total:
        raise InputError("no step counts", where="place", expected="a weight above 0 for one of " + ", ".join(ops))
    return {step: weights.get(step, 0.0) / total for step in ops}


# A plan made from a model is placed twice: once to choose its order, once to say what that is worth.
@lru_cache(maxsize=2)
def _searched(
    cluster: ById[Cluster], layout: Layout, count: int, found: tuple[Term, ...], kind: ByValue[Convention], eager: bool
) -> tuple[Cost, float, Rows, str, int]:
    """The cost of placements, the least any can cost, and the best one found, as `_search` has it."""
    cost = Cost(cluster.value, found, kind.value, eager=eager, share=1 / count)
    floor = bound(cost, layout, count)
    return cost, floor, *_search(cost, layout, naive_grid(layout, count), floor)


def _search(cost: Cost, layout: Layout, naive: Rows, floor: float) -> tuple[Rows, str, int]:
    """The best placement found, its proof, and how many were looked at."""
    best, score, looked = naive, cost.score(naive), 1
    if score.seconds <= floor * (1 + 1e-9):
        return best, MEETS_BOUND, looked
    for rows in candidates(layout, cost.cluster, len(naive)):
        looked += 1
        one = cost.score(rows)
        if one.beats(score):
            best, score = rows, one
    if cost.cluster.size <= exhaustive.MOST_DEVICES:
        best, more = exhaustive.best(cost, layout.size, best, floor)
        return best, EXHAUSTIVE, looked + more
    if score.seconds > floor * (1 + (NEAR if cost.cluster.size > MANY else 1e-9)):
        tries = SEARCH_WORK // max(len(e) for t in cost.terms for e in t.edges)
        best, more = improve(cost, best, tries, goal=floor)
        looked += more
    return best, MEETS_BOUND if cost.score(best).seconds <= floor * (1 + 1e-9) else BEST_FOUND, looked


def _rails(cost: Cost, rows: Rows) -> int:
    """Groups whose traffic leaves its rail."""
    if cost.cluster.fabric != "rail":
        return 0
    edges = [edge for term in cost.terms if term.axis != KV for edge in term.edges]
    return sum(1 for row in rows for edge in edges if not cost.place(tuple(row[r] for r in edge))[1])


def _others(cost: Cost, layout: Layout, rows: Rows, naive: Rows) -> tuple[float, float]:
    """(median of random orders, worst order found): what a good order is worth. The same every time."""
    size = cost.cluster.size
    dice = random.Random(0)  # noqa: S311 - a sample, no secret
    devices = list(range(size))
    orders: list[Rows] = []
    for _ in range(min(99, max(5, RANDOM_WORK // size)) | 1):
        dice.shuffle(devices)
        orders.append(
            tuple(tuple(devices[r * layout.size : (r + 1) * layout.size]) for r in range(len(naive)))
        )  # fmt: skip
    random_s = [cost.score(order).seconds for order in orders]
    strided = tuple(tuple((d * _stride(size)) % size for d in row) for row in naive)
    known = [(cost.score(strided).seconds, strided), *zip(random_s, orders, strict=True)]
    worst_s, worst = max(known, key=lambda pair: pair[0])
    if size <= 64:
        worst_s = cost.score(improve(cost, worst, 2000, sign=-1)[0]).seconds
    return median(random_s), max(worst_s, cost.score(rows).seconds, cost.score(naive).seconds)


def _stride(size: int) -> int:
    """A step that deals neighbours far apart and meets every device."""
    step = max(1, isqrt(size))
    while any(size % f == 0 and step % f == 0 for f in range(2, step + 1)):
        step += 1
    return step


def _summed(found: Mapping[tuple[str, str], float], by: int) -> dict[str, float]:
    """Seconds by (axis, step), by one of the two."""
    sums: dict[str, float] = {}
    for key, seconds in found.items():
        sums[key[by]] = sums.get(key[by], 0.0) + seconds
    return sums


def _axes(
    cost: Cost, rows: Rows, naive: Rows, after: Mapping[str, float], before: Mapping[str, float]
) -> tuple[AxisPlace, ...]:
    return tuple(
        AxisPlace(
            axis=axis,
            naive_tier=_tier(cost, axis, naive),
            tier=_tier(cost, axis, rows),
            naive_s=before.get(axis, 0.0),
            seconds=after.get(axis, 0.0),
        )
        for axis in dict.fromkeys(term.axis for term in cost.terms)
    )


def _tier(cost: Cost, axis: str, rows: Rows) -> str:
    if axis == KV:
        return Tier.CLUSTER.value
    order = list(Tier)
    found = {
        cost.place(tuple(row[r] for r in edge))[0].tier
        for term in cost.terms if term.axis == axis for row in rows for edge in term.edges
    }  # fmt: skip
    return max(found, key=order.index).value


def _hosts(cluster: Cluster, rows: Rows) -> tuple[HostRanks, ...]:
    found = []
    for replica, row in enumerate(rows):
        for node in dict.fromkeys(cluster.node_of(d) for d in row):  # in the order of their first rank
            ranks = tuple(i for i, d in enumerate(row) if cluster.node_of(d) == node)
            found.append(
                HostRanks(
                    replica=replica,
                    node=node,
                    ranks=ranks,
                    devices=tuple(row[i] % cluster.devices_per_node for i in ranks),
                    nics=tuple(cluster.nics_of(row[i]) for i in ranks),
                    numa=tuple(cluster.numa_of(row[i]) for i in ranks),
                )
            )
    return tuple(found)


def _nic_names(cluster: Cluster, rows: Rows) -> dict[int, tuple[str, ...]]:
    """Names of the NICs of nodes in use, where a topology file gave them."""
    nodes = sorted({cluster.node_of(d) for row in rows for d in row})
    found = {node: detail.nic_names for node in nodes if (detail := cluster.detail_of(node))}
    return {node: names for node, names in found.items() if names}

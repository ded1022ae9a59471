"""Every layout of the search on one plot: tokens/s a user against tokens/s a device.

The search is made again from the inputs that the plan embeds; a layout that fits is then priced at the search's batch
sizes, whether it meets the targets or not.
"""

import numpy as np

from linkwise.core.layout import Layout
from linkwise.engine import registry
from linkwise.engine.base import Engine
from linkwise.plan.ledger import ledger
from linkwise.plan.operate import operation
from linkwise.plan.search import BATCHES, search
from linkwise.plan.types import Plan, Rejection
from linkwise.report.page.types import Tried

MOST = 300  # layouts with a curve; of those that cannot run, so many
_RUNS = frozenset({"rate", "ttft", "tpot"})  # a layout that is short of these fits and runs


def layouts(plan: Plan) -> tuple[tuple[Tried, ...], int]:
    """Layouts tried, the chosen one first, and how many are left out."""
    engine = registry.get(plan.engine, plan.engine_version)
    found = search(plan.model, plan.cluster, engine, plan.options, plan.workload)
    feasible = {c.layout: c.requests for c in found.candidates}
    feasible.setdefault(plan.layout, plan.ledger.requests)  # given by its user, it may be none that a search tries
    # Best first, so that what is left out is what nobody would choose.
    best = {c.layout: c.max_rate_per_s / c.group_size for c in found.candidates}
    order = sorted(feasible, key=lambda one: (one != plan.layout, one != _second(plan), -best.get(one, 0.0)))
    rejected = [one for one in found.rejected if one.layout != plan.layout]
    slow = [one for one in rejected if one.shortfall.resource in _RUNS]
    short = [one for one in rejected if one.shortfall.resource not in _RUNS]
    kept = [_feasible(plan, engine, one, feasible[one]) for one in order[:MOST]]
    room = max(0, MOST - len(kept))
    kept += [_rejected(plan, engine, one) for one in slow[:room]]
    # Short of memory before illegal: the first could run on other devices.
    short.sort(key=lambda one: one.shortfall.resource == "legality")
    kept += [_rejected(plan, engine, one) for one in short[:MOST]]
    return tuple(kept), len(order) + len(rejected) - len(kept)


def _second(plan: Plan) -> Layout | None:
    return plan.runner_up.layout if plan.runner_up else None


def _feasible(plan: Plan, engine: Engine, layout: Layout, requests: int) -> Tried:
    verdict = "chosen" if layout == plan.layout else "runner-up" if layout == _second(plan) else "feasible"
    points = _points(plan, engine, layout, requests)
    return Tried(layout=str(layout), devices=layout.size, verdict=verdict, points=points)


def _rejected(plan: Plan, engine: Engine, one: Rejection) -> Tried:
    points: tuple[tuple[int, float, float], ...] = ()
    if one.shortfall.resource in _RUNS:
        held = ledger(plan.model, plan.cluster, engine, one.layout, plan.options, plan.workload)
        points = _points(plan, engine, one.layout, held.requests)
    return Tried(
        layout=str(one.layout),
        devices=one.layout.size,
        verdict="rejected",
        points=points,
        resource=one.shortfall.resource,
        reason=one.shortfall.reason,
    )


def _points(plan: Plan, engine: Engine, layout: Layout, requests: int) -> tuple[tuple[int, float, float], ...]:
    """(batch, tokens/s a user, output tokens/s a device) at the search's batch sizes, as far as they fit."""
    seqs = engine.resolve(plan.options, plan.model, plan.cluster.accelerator, layout).max_seqs
    most = max(1, min(requests, seqs * layout.dp_attn))
    sizes = np.unique(np.minimum(np.array(BATCHES), most))
    if layout == plan.layout:
        sizes = np.unique(np.append(sizes, plan.chosen.point.batch))
    at = operation(plan.model, layout, engine, plan.cluster, plan.workload, plan.options, sizes)
    tpot, rate = (np.broadcast_to(x, sizes.shape) for x in (at.tpot, at.rate))
    tokens = rate * plan.workload.osl_tokens / layout.size
    return tuple(
        (int(size), float(f"{1 / one:.5g}"), float(f"{each:.5g}"))
        for size, one, each in zip(sizes, tpot, tokens, strict=True)
        if one > 0
    )

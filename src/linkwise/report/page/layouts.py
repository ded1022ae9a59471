"""Every layout of the search on one plot: tokens/s a user against tokens/s a device.

The search is made again from the inputs that the plan embeds. It tells of every layout that fits at all batch sizes it
tries, whether it meets the targets or not.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from linkwise.core.layout import Layout
from linkwise.engine import registry
from linkwise.plan.explain import subject
from linkwise.plan.operate import operation
from linkwise.plan.search import BATCHES, Points, search
from linkwise.plan.types import Plan, Rejection
from linkwise.report.page.types import Tried

MOST = 300  # layouts with a curve; of those that cannot run, so many

Curve = tuple[tuple[int, float, float], ...]
Floats = npt.NDArray[Any]


def layouts(plan: Plan) -> tuple[tuple[Tried, ...], int]:
    """Layouts tried, the chosen one first, and how many are left out."""
    engine = registry.get(plan.engine, plan.engine_version)
    curves: dict[Layout, Curve] = {}

    def seen(layout: Layout, points: Points) -> None:
        curves[layout] = _curve(plan, layout, points.sizes, points.tpot, points.rate)

    found = search(plan.model, plan.cluster, engine, plan.options, plan.workload, seen=seen)
    curves[plan.layout] = _own(plan)
    second = plan.runner_up.layout if plan.runner_up else None
    # Best first, so that what is left out is what nobody would choose.
    best = {one.layout: one.max_rate_per_s / one.group_size for one in found.candidates} | {plan.layout: 0.0}
    order = sorted(best, key=lambda one: (one != plan.layout, one != second, -best[one]))
    verdicts = {plan.layout: "chosen", second: "runner-up"}
    rejected = [one for one in found.rejected if one.layout != plan.layout]
    slow = [one for one in rejected if one.layout in curves]
    # Short of memory before illegal: the first could run on other devices.
    short = sorted((r for r in rejected if r.layout not in curves), key=lambda r: r.shortfall.resource == "legality")
    kept = [
        Tried(layout=str(one), devices=one.size, verdict=verdicts.get(one, "feasible"), points=curves[one])
        for one in order[:MOST]
    ]
    kept += [_rejected(one, curves[one.layout]) for one in slow[: max(0, MOST - len(kept))]]
    kept += [_rejected(one, ()) for one in short[:MOST]]
    return tuple(kept), len(order) + len(rejected) - len(kept)


def _rejected(one: Rejection, points: Curve) -> Tried:
    short = one.shortfall
    return Tried(
        layout=str(one.layout), devices=one.layout.size, verdict="rejected", points=points, resource=short.resource,
        reason=short.reason,
    )  # fmt: skip


def _own(plan: Plan) -> Curve:
    """The plan's own layout where its ranks lie, its own batch among the sizes."""
    about = subject(plan)
    most = max(1, min(plan.ledger.requests, plan.resolved.max_seqs * plan.layout.dp_attn))
    sizes = np.unique(np.minimum(np.array([*BATCHES, plan.chosen.point.batch]), most))
    at = operation(
        about.model, about.layout, about.engine, about.cluster, about.workload, about.options, sizes, about.places
    )
    return _curve(plan, plan.layout, sizes, *(np.broadcast_to(one, sizes.shape) for one in (at.tpot, at.rate)))


def _curve(plan: Plan, layout: Layout, sizes: Floats, tpot: Floats, rate: Floats) -> Curve:
    """(batch, tokens/s a user, output tokens/s a device)."""
    tokens = rate * plan.workload.osl_tokens / layout.size
    return tuple(
        (int(size), float(f"{1 / one:.5g}"), float(f"{each:.5g}"))
        for size, one, each in zip(sizes, tpot, tokens, strict=True)
        if one > 0
    )

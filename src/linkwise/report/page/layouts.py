"""Every layout of the search on one plot: tokens/s a user against tokens/s a device.

A search tells of every layout that fits at all batch sizes it tries, whether it meets the targets or not.
"""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from linkwise.core.layout import Layout
from linkwise.engine import registry
from linkwise.plan.evaluate import BATCHES, Points
from linkwise.plan.explain import subject
from linkwise.plan.operate import operation
from linkwise.plan.search import search
from linkwise.plan.types import Plan, Rejection
from linkwise.report.page.types import Tried

MOST = 300  # layouts with a curve; of those that cannot run, so many

Curve = tuple[tuple[int, float, float], ...]
Floats = npt.NDArray[Any]


class Searched(NamedTuple):
    """A search without fixed degrees: layouts that fit, at their batch sizes, and those rejected."""

    points: Mapping[Layout, Points]
    rejected: Sequence[Rejection]


def again(plan: Plan) -> Searched:
    """The search made again from the inputs that the plan embeds."""
    points: dict[Layout, Points] = {}
    engine = registry.get(plan.engine, plan.engine_version)
    found = search(plan.model, plan.cluster, engine, plan.options, plan.workload, seen=points.__setitem__)
    return Searched(points, found.rejected)


def layouts(plan: Plan, searched: Searched | None = None) -> tuple[tuple[Tried, ...], int]:
    """Layouts tried, the chosen one first, and how many are left out. searched: what made the plan, where it is there
    and no degree was fixed; None = search again."""
    found = searched or again(plan)
    curves = {layout: _curve(plan, layout, one.sizes, one.tpot, one.rate) for layout, one in found.points.items()}
    curves[plan.layout] = _own(plan)
    second = plan.runner_up.layout if plan.runner_up else None
    # Best first, so that what is left out is what nobody would choose.
    out = {one.layout for one in found.rejected}
    best = {layout: _most(one) / layout.size for layout, one in found.points.items() if layout not in out}
    best |= {plan.layout: 0.0}
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


def _most(points: Points) -> float:
    """Requests/s of one replica at most, inside the targets."""
    return float(np.max(points.rate, where=points.meets_tpot & points.meets_ttft, initial=0.0))


def _rejected(one: Rejection, points: Curve) -> Tried:
    short = one.shortfall
    return Tried(
        layout=str(one.layout), devices=one.layout.size, verdict="rejected", points=points, resource=short.resource,
        reason=short.reason,
    )  # fmt: skip


def _own(plan: Plan) -> Curve:
    """The plan's own layout where its ranks lie, among the sizes the requests it has at hand."""
    about = subject(plan)
    most = max(1, min(plan.ledger.requests, plan.resolved.max_seqs * plan.layout.dp_attn))
    point = plan.chosen.point
    others = [size for size in BATCHES if size != point.batch]
    sizes = np.unique(np.minimum(np.array([*others, point.at_hand or point.batch]), most))
    at = operation(
        about.model,
        about.layout,
        about.engine,
        about.cluster,
        about.workload,
        about.options,
        sizes,
        about.places,
        alike=plan.replicas,
    )
    return _curve(plan, plan.layout, sizes, *(np.broadcast_to(one, sizes.shape) for one in (at.tpot, at.rate)))


def _curve(plan: Plan, layout: Layout, sizes: Floats, tpot: Floats, rate: Floats) -> Curve:
    """(batch, tokens/s a user, output tokens/s a device)."""
    tokens = rate * plan.workload.osl_tokens / layout.size
    return tuple(
        (ceil(size), float(f"{1 / one:.5g}"), float(f"{each:.5g}"))
        for size, one, each in zip(sizes, tpot, tokens, strict=True)
        if one > 0
    )

"""What a simulation needs to know of a deployment: of a plan file, or of a layout that was run elsewhere."""

from typing import NamedTuple

from linkwise.cluster.types import Cluster
from linkwise.core.layout import Layout
from linkwise.engine.base import Engine, Options, Resolved
from linkwise.model.types import Model
from linkwise.plan.engine_of import engine_of
from linkwise.plan.types import Plan
from linkwise.workload.types import Workload


class Served(NamedTuple):
    """One serving group. grid: devices of each replica's ranks; None = in order. kv_tokens, requests: what its KV
    memory holds, as the ledger has them (kv_tokens None for a hybrid stack). workload: whose lengths they are for."""

    model: Model
    cluster: Cluster
    engine: Engine
    layout: Layout
    options: Options
    resolved: Resolved
    grid: tuple[tuple[int, ...], ...] | None
    kv_tokens: int | None
    requests: int
    workload: Workload


def served(plan: Plan) -> Served:
    """As a plan has it, with the constants of a step that it embeds."""
    return Served(
        plan.model, plan.cluster, engine_of(plan), plan.layout, plan.options, plan.resolved, plan.rank_grid,
        plan.ledger.kv_tokens, plan.ledger.requests, plan.workload,
    )  # fmt: skip

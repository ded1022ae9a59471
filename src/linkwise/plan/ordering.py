"""The order of ranks a plan runs in: on devices in order, unless another order inside each node communicates less.

A plan describes what its launch command starts. A command can order the devices of a node (CUDA_VISIBLE_DEVICES), but
which node a rank is on follows from the engine, so a plan never moves ranks between nodes; `linkwise place` looks at
those orders too.
"""

from linkwise.cluster.types import Cluster
from linkwise.core.layout import Layout
from linkwise.core.units import show_time
from linkwise.plan.figures import Subject, batches, ops_of
from linkwise.plan.fit import Case
from linkwise.plan.placement import naive_grid, place_steps
from linkwise.plan.search import Order
from linkwise.plan.step import freeze
from linkwise.plan.time import Span, spans
from linkwise.plan.types import Ledger

# Looking for the best order takes up to a second a layout on an irregular node: only where few are asked about.
FEW = 16
# The order hardly depends on the batch; a search that has no plan yet looks at this one.
_USUAL_BATCH = 32


def irregular(cluster: Cluster) -> bool:
    """Whether devices of a node, or nodes, are not all alike, so that the order of ranks can matter inside a node."""
    return cluster.detail is not None or bool(cluster.odd_nodes)


def subject_of(case: Case, layout: Layout, batch: int, replicas: int, at_hand: float = 0.0) -> Subject:
    """What a plan's figures are computed from, ranks on devices in order."""
    model, cluster, engine, options, workload = case
    return Subject(model, cluster, engine, layout, options, workload, batch, replicas, at_hand=at_hand)


def ordered(about: Subject) -> tuple[Subject, tuple[str, ...]]:
    """The subject in its best order inside the nodes, and notes on what was found."""
    ops = {name: freeze(ops_of(about, batch)) for name, batch in batches(about).items()}
    limit = about.engine.resolve(about.options, about.model, about.cluster.accelerator, about.layout).max_batched_tokens
    placed = place_steps(about, ops, limit, compare=False)
    if placed.seconds >= placed.naive_seconds * (1 - 1e-9):
        return about, ()
    before, after = show_time(placed.naive_seconds), show_time(placed.seconds)
    if not _inside_nodes(about, placed.rank_grid):
        return about, (
            f"an order of ranks across nodes communicates {after} a mean step where this one takes {before}; the launch"
            " command does not express it: linkwise place shows it",
        )
    return about._replace(grid=placed.rank_grid), (
        f"ranks are not on devices in order: a mean step communicates {after} so, {before} in order; every replica has"
        " its own CUDA_VISIBLE_DEVICES: linkwise place prints them",
    )


def in_best_order(case: Case) -> Order:
    """Where a layout's ranks lie in its best order inside the nodes."""

    def places(layout: Layout, memory: Ledger) -> dict[str, Span]:
        batch = max(1, min(memory.requests, _USUAL_BATCH))
        about = subject_of(case, layout, batch, case.cluster.size // layout.size)
        found, _ = ordered(about)
        return found.places if found.grid else spans(layout, case.cluster)

    return places


def _inside_nodes(about: Subject, grid: tuple[tuple[int, ...], ...]) -> bool:
    cluster = about.cluster
    usual = naive_grid(about.layout, len(grid))
    pairs = zip((d for row in grid for d in row), (d for row in usual for d in row), strict=True)
    return all(cluster.node_of(a) == cluster.node_of(b) for a, b in pairs)


def visible(about: Subject, replicas: int = 1) -> tuple[str, ...]:
    """What the launch command of the first replicas is prefixed with: their devices on the first node, by rank."""
    if not about.grid:
        return ()
    cluster, row = about.cluster, [device for one in about.grid[:replicas] for device in one]
    node = cluster.node_of(row[0])
    here = [str(d % cluster.devices_per_node) for d in row if cluster.node_of(d) == node]
    return (f"CUDA_VISIBLE_DEVICES={','.join(here)}",)

"""The least any placement can cost: a proof that does not look at placements.

Say which axes of a stage lie inside islands, and which inside nodes. Groups of such axes that share a rank share the
island, so the ranks they connect (a component) must fit into one together. What does not fit crosses the next tier, at
the best its groups could have there. The bound is the cheapest choice per stage; a choice that only some stages can
make, because only so many components fit, is given to so many stages. Everything left out makes the bound lower.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from linkwise.cluster.types import Cluster, Tier
from linkwise.core.layout import Layout, groups
from linkwise.plan.placing.cost import KV, Cost, Term
from linkwise.plan.time import Span

UNLIMITED = 1 << 30


class Room(NamedTuple):
    """Sizes of the islands and nodes of a cluster. best: most bandwidth a group of n may have inside an island, of the
    usual, by n."""

    islands: tuple[int, ...]
    nodes: tuple[int, ...]
    best: dict[int, float]


def room(cluster: Cluster) -> Room:
    """Sizes of what groups have to fit into."""
    count: dict[int, int] = {}
    for number in range(cluster.size):
        home = cluster.island_of(number)
        count[home] = count.get(home, 0) + 1
    return Room(tuple(count.values()), (cluster.devices_per_node,) * cluster.nodes, _best_shares(cluster))


def _best_shares(cluster: Cluster) -> dict[int, float]:
    """No group beats its best member's strongest links; no irregular island: nothing beats the usual."""
    if cluster.detail is None or not cluster.detail.islands:
        return {}
    details = (cluster.detail, *cluster.odd_nodes.values())
    found: dict[int, float] = {}
    for size in range(2, cluster.island_size + 1):
        most = 0.0
        for detail in details:
            most = max((most, *detail.ports_Bps))
            links: dict[int, list[float]] = {}
            for strand in detail.strands:
                links.setdefault(strand.a, []).append(strand.spec_Bps)
                links.setdefault(strand.b, []).append(strand.spec_Bps)
            most = max((most, *(sum(sorted(own)[-(size - 1) :]) for own in links.values())))
        usual = cluster.port(Tier.ISLAND, size)[1]
        found[size] = most / usual if usual else 1.0
    return found


class Choice(NamedTuple):
    """Which axes of a stage lie inside islands, and inside nodes, and the least seconds its terms then take."""

    near: frozenset[str]
    inside: frozenset[str]
    seconds: float


def bound(cost: Cost, layout: Layout, replicas: int) -> float:
    """Seconds of a mean step that no placement of `replicas` of a layout beats."""
    space = room(cost.cluster)
    by_stage: dict[int, list[int]] = {}
    for number, term in enumerate(cost.terms):
        by_stage.setdefault(term.stage, []).append(number)
    stages = [_choices(cost, layout, numbers, space) for numbers in by_stage.values()]
    free = sum(min(choice.seconds for choice in choices) for choices in stages) * replicas
    sets = {(level, part) for choices in stages for c in choices for level, part in enumerate((c.near, c.inside))}
    limited = []
    for level, axes in sets:
        most = _fits(axes, (space.islands, space.nodes)[level], layout)
        if axes and most < len(stages) * replicas:
            limited.append(_with_few(stages, level, axes, most, replicas))
    return max([free, *limited]) * cost.share


def _with_few(stages: list[list[Choice]], level: int, axes: frozenset[str], most: int, replicas: int) -> float:
    """The bound when only so many stages can have these axes inside: those do that gain most."""
    total, gains = 0.0, []
    for choices in stages:
        within = [c.seconds for c in choices if axes <= (c.near, c.inside)[level]]
        outside = [c.seconds for c in choices if not axes <= (c.near, c.inside)[level]]
        if not outside:
            return 0.0
        total += min(outside) * replicas
        gains += [max(0.0, min(outside) - min(within))] * replicas if within else []
    return total - sum(sorted(gains, reverse=True)[:most])


def _choices(cost: Cost, layout: Layout, numbers: list[int], space: Room) -> list[Choice]:
    """Every choice some stage could make."""
    fixed = sum(_handoff(cost, n) for n in numbers if cost.terms[n].axis == KV)
    numbers = [n for n in numbers if cost.terms[n].axis != KV]
    axes = [cost.terms[n].axis for n in numbers]
    # An island may span nodes; then what lies inside an island need not lie inside a node.
    spanning = max(space.islands) > max(space.nodes)
    found = []
    for tiers in product((Tier.ISLAND, Tier.NODE, Tier.CLUSTER), repeat=len(axes)):
        near = frozenset(a for a, tier in zip(axes, tiers, strict=True) if tier is Tier.ISLAND)
        within = frozenset(a for a, tier in zip(axes, tiers, strict=True) if tier is not Tier.CLUSTER)
        inside = within - near if spanning else within
        if not min(_fits(near, space.islands, layout), _fits(inside, space.nodes, layout)):
            continue
        seconds = fixed
        for number, tier in zip(numbers, tiers, strict=True):
            most = max(space.nodes) if spanning else _per_node(cost.terms[number], within, space, layout)
            seconds += min(_options(cost, number, tier, space, most))
        if seconds < float("inf"):
            found.append(Choice(near, inside, seconds))
    return found


def _handoff(cost: Cost, number: int) -> float:
    """The least seconds of a KV handoff: all NICs share it, or a rank has all of its node's."""
    cluster = cost.cluster
    ranks = len(cost.terms[number].edges[0])  # ranks of a stage
    usable = cluster.nic_Bps * cluster.constants.link_efficiency.get("nic", 1.0)
    load = max(ranks / (cluster.nodes * cluster.nics_per_node), 1 / cluster.nics_per_node)
    return cost.at(number, Span(Tier.CLUSTER, 1, share=load / usable))


def _options(cost: Cost, number: int, tier: Tier, space: Room, per_node: int) -> Iterator[float]:
    """Seconds of a term's groups in the best places a tier has for them."""
    size = len(cost.terms[number].edges[0])
    cluster = cost.cluster
    if tier is not Tier.CLUSTER:
        if tier is Tier.ISLAND or not (cluster.island_size >= cluster.devices_per_node and cluster.detail is None):
            share = space.best.get(size, 1.0) if tier is Tier.ISLAND else 1.0
            yield cost.at(number, Span(tier, size, share=share))
            if share != 1.0:
                yield cost.at(number, Span(tier, size))
        else:
            yield float("inf")  # every two devices of a node share an island
        return
    if cluster.nodes == 1 or not cluster.nics_per_node:
        yield float("inf")
        return
    share = cluster.oversubscription if cluster.fabric == "rail" else 1.0
    fewest = max(2, -(-size // per_node))  # nodes, when all but one are as full as they can be
    for ranks in range(1, max(1, min(per_node, size // 2)) + 1):
        for nodes in {fewest, max(fewest, size // ranks)}:
            for inner, part in _inners(cluster, ranks, space):
                yield cost.at(number, Span(tier, ranks, nodes, share, inner=inner, inner_share=part))


def _inners(cluster: Cluster, ranks: int, space: Room) -> Iterator[tuple[Tier | None, float]]:
    """What the ranks of one node may talk over: as neighbours; where islands are irregular, the best there is too."""
    yield None, 1.0
    if ranks > 1 and cluster.detail is not None:
        yield Tier.NODE, 1.0
        if ranks <= cluster.island_size:
            yield Tier.ISLAND, max(1.0, space.best.get(ranks, 1.0))


def _fits(chosen: frozenset[str], sizes: tuple[int, ...], layout: Layout) -> int:
    """How many stages can have their components of some axes inside islands (or nodes) of these sizes."""
    if not chosen:
        return UNLIMITED
    size = min(_components(layout, chosen).values())
    count = layout.stage_size // size
    if "pp" in chosen:
        # A handover inside an island takes the components of two stages; a chain of m stages has m - 1 handovers.
        return sum(max(0, home // size - 1) for home in sizes) // count
    return sum(home // size for home in sizes) // count


def _per_node(term: Term, within: frozenset[str], space: Room, layout: Layout) -> int:
    """Most ranks of one group that a node can hold: it holds whole components of what lies inside nodes."""
    node = max(space.nodes)
    if term.axis == "pp" or not within - {"pp"}:
        return node
    home = _labels(layout, within)
    most = 0
    for edge in term.edges:
        inside: dict[int, int] = {}
        for rank in edge:
            at = home[rank % layout.stage_size]
            inside[at] = inside.get(at, 0) + 1
        most = max(most, *inside.values())
    return most * max(1, node // min(_components(layout, within).values()))


@lru_cache(maxsize=512)
def _components(layout: Layout, axes: frozenset[str]) -> dict[int, int]:
    """Ranks of a stage by what the groups of some axes connect, the handover aside: label to number of ranks."""
    count: dict[int, int] = {}
    for label in _labels(layout, axes):
        count[label] = count.get(label, 0) + 1
    return count


@lru_cache(maxsize=512)
def _labels(layout: Layout, axes: frozenset[str]) -> tuple[int, ...]:
    """The component of each rank of a stage."""
    parent = list(range(layout.stage_size))

    def root(rank: int) -> int:
        while parent[rank] != rank:
            parent[rank] = parent[parent[rank]]
            rank = parent[rank]
        return rank

    for axis in axes - {"pp"}:
        for members in groups(layout, axis):
            if members[0] < layout.stage_size:
                for rank in members[1:]:
                    parent[root(rank)] = root(members[0])
    return tuple(root(rank) for rank in range(layout.stage_size))

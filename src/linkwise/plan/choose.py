"""Which feasible layout: the smallest group that carries the load, then replicas (DESIGN §2.5)."""

from linkwise.cluster.types import Cluster, Tier
from linkwise.plan.types import Candidate
from linkwise.workload.types import Workload

_SLOWER = {t.value: i for i, t in enumerate(Tier)}

# Rates closer than this are equal and a tie goes to the simpler layout: uncalibrated step models miss published decode
# times by 15 % at the median and more between layouts.
MARGIN = 0.20

# The order in which a layout is judged: the later it was stopped, the nearer it came. Rate comes last, not before TTFT
# and TPOT as DESIGN §2.4 lists them, since only the rate sustained inside those targets counts.
RESOURCES = (
    "legality",
    "weights",
    "workspace",
    "device memory",
    "kv",
    "kv concurrency",
    "ttft",
    "tpot",
    "link",
    "rate",
)


def resource_rank(resource: str) -> int:
    """Place of a resource in the order in which layouts are rejected."""
    return RESOURCES.index(resource)


def has_load(workload: Workload) -> bool:
    """Whether the user said what is to be carried: a rate, or a number of requests at once."""
    return workload.rate_per_s is not None or workload.concurrency is not None


def rule(workload: Workload, cluster: Cluster) -> str:
    """The rule a choice followed, in a line."""
    if has_load(workload):
        return (
            f"the smallest group that carries the load inside the targets on the fewest devices, or within {MARGIN:.0%}"
            " of them, tensor groups inside an island where one can"
        )
    return (
        f"no load was given: the smallest group within {MARGIN:.0%} of the best rate all {cluster.size} devices sustain"
        " inside the targets, tensor groups inside an island where one can"
    )


def order(candidates: tuple[Candidate, ...], workload: Workload, cluster: Cluster) -> list[Candidate]:
    """Candidates in order of preference.

    Tensor groups inside an island come first (inside a node where there are no islands). With a load, all candidates
    carry it: of those on the fewest devices, or hardly more (MARGIN), the smallest group wins. Without one the devices
    are to be used well: the smallest group within MARGIN of the best rate of the whole cluster wins, since fewer ranks
    must not cost throughput. Among equal sizes: the best rate, and within MARGIN of it the fewest pipeline stages and
    the shortest TPOT.
    """
    best_all = max(total_rate(c) for c in candidates)
    fewest: dict[bool, int] = {}
    best_of: dict[tuple[bool, int], float] = {}
    for c in candidates:
        key = (crosses(c, cluster), c.group_size)
        best_of[key] = max(best_of.get(key, 0.0), c.max_rate_per_s)
        fewest[key[0]] = min(fewest.get(key[0], devices(c)), devices(c))

    def preference(c: Candidate) -> tuple[object, ...]:
        out = crosses(c, cluster)
        if has_load(workload):
            cost, wasteful = float(devices(c)), devices(c) > fewest[out] * (1 + MARGIN)
        else:
            cost, wasteful = -total_rate(c), total_rate(c) < best_all * (1 - MARGIN)
        far = c.max_rate_per_s < best_of[out, c.group_size] * (1 - MARGIN)
        shape = (c.layout.pp, c.layout.cp, c.layout.dcp) if not far else ()
        size = c.group_size if not wasteful else cost
        return (out, wasteful, size, far, *shape, -round(c.max_rate_per_s, 9), c.point.tpot_s, -c.layout.ep)

    return sorted(candidates, key=preference)


def devices(candidate: Candidate) -> int:
    """Of all replicas."""
    return candidate.replicas * candidate.group_size


def total_rate(candidate: Candidate) -> float:
    """Requests/s of all replicas."""
    return candidate.max_rate_per_s * candidate.replicas


def crosses(candidate: Candidate, cluster: Cluster) -> bool:
    """Whether a tensor group leaves the island; without islands, the node."""
    inside = Tier.ISLAND if cluster.island_size > 1 else Tier.NODE
    return _SLOWER[candidate.tier] > _SLOWER[inside.value]


def choose(
    candidates: tuple[Candidate, ...], workload: Workload, cluster: Cluster
) -> tuple[Candidate, Candidate | None]:
    """The chosen candidate and the runner-up: the best with another group size, else the next best."""
    ordered = order(candidates, workload, cluster)
    chosen = ordered[0]
    others = [c for c in ordered[1:] if c.group_size != chosen.group_size]
    others = others or [c for c in ordered[1:] if c.point != chosen.point] or ordered[1:]
    return chosen, (others[0] if others else None)

"""What a placement is: which device takes which rank, what that gains, and how sure we are."""

from linkwise.core.layout import Layout
from linkwise.core.schema import Frozen

PLACEMENT_SCHEMA = "linkwise.placement/1"

EXHAUSTIVE = "optimal (exhaustive up to symmetry)"
MEETS_BOUND = "optimal (meets the lower bound)"
BEST_FOUND = "best found"


class AxisPlace(Frozen, frozen=True, kw_only=True):
    """Groups of one axis: the slowest tier any crosses, and their seconds of a mean step, in naive order and placed."""

    axis: str
    naive_tier: str
    tier: str
    naive_s: float
    seconds: float


class HostRanks(Frozen, frozen=True, kw_only=True):
    """Ranks of a replica on one node, in rank order. devices: index on the node; nics: NIC indices nearest to each."""

    replica: int
    node: int
    ranks: tuple[int, ...]
    devices: tuple[int, ...]
    nics: tuple[tuple[int, ...], ...]
    numa: tuple[int, ...]


class Placement(Frozen, frozen=True, kw_only=True):
    """Rank to device for every replica of a layout.

    rank_grid: devices of each replica in rank order. seconds: communication of a mean step (latency and bytes over
    bandwidth of each group where it lies), mean over replicas; naive_seconds: of ranks on devices in order;
    random_seconds: median over random orders; worst_seconds: the worst order found; both None when not asked for.
    bound_seconds: no placement is faster. proof: how sure the choice is. gap: seconds over the bound, minus 1.
    weights: share of each step in the mean. steps: weighted seconds in naive order and placed.
    naive: the order chosen is the naive one. looked: placements whose cost was computed.
    """

    schema: str = PLACEMENT_SCHEMA
    cluster: str
    layout: Layout
    rank_grid: tuple[tuple[int, ...], ...]
    naive: bool
    seconds: float
    naive_seconds: float
    random_seconds: float | None
    worst_seconds: float | None
    bound_seconds: float
    proof: str
    gap: float
    looked: int
    weights: dict[str, float]
    steps: dict[str, tuple[float, float]]
    axes: tuple[AxisPlace, ...]
    hosts: tuple[HostRanks, ...]
    nic_names: dict[int, tuple[str, ...]] = {}
    notes: tuple[str, ...] = ()

    @property
    def gain(self) -> float:
        """Naive order's communication over the placement's."""
        return self.naive_seconds / self.seconds if self.seconds else 1.0

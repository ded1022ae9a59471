"""What a step puts on links: the value of `linkwise traffic`, readable as JSON. plan/traffic.py fills it."""

from linkwise.cluster.types import Cluster
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.core.schema import Frozen

TRAFFIC_SCHEMA = "linkwise.traffic/1"


class Part(Frozen, frozen=True, kw_only=True):
    """What one role of one kind of group puts on a link in a step."""

    role: str
    group: str
    bytes: float


class LinkLoad(Frozen, frozen=True, kw_only=True):
    """A directed link that carries something. bytes, busy_s: per step, busy = bytes / effective bandwidth.

    parts: by role and group, largest first; they sum to bytes.
    """

    src: str
    dst: str
    kind: str
    tier: str
    spec_Bps: float
    effective_Bps: float
    bytes: float
    busy_s: float
    parts: tuple[Part, ...]

    @property
    def name(self) -> str:
        return f"{self.src}>{self.dst}"


class OpTraffic(Frozen, frozen=True, kw_only=True):
    """One op of one stage, all its groups at once.

    groups, size: how many groups call it, ranks of one. calls: in a step. link: the one that sets transfer_s.
    latency_s, transfer_s: of one call, busiest group; alone_s: transfer_s if no other group sent anything.
    step_s: calls x (latency + transfer).
    """

    role: str
    kind: str
    group: str
    stage: int
    algorithm: str
    groups: int
    size: int
    calls: int
    S_bytes: float
    latency_s: float
    transfer_s: float
    alone_s: float
    step_s: float
    link: str


class TierTotal(Frozen, frozen=True, kw_only=True):
    """All links of a tier. bytes: summed over links, so a byte counts once a hop. sent_bytes: what the device that
    sends most puts on its links of this tier, relayed bytes included. busiest: the link that is busy longest."""

    tier: str
    links: int
    bytes: float
    sent_bytes: float
    busiest: str
    busy_s: float


class Traffic(Frozen, frozen=True, kw_only=True):
    """Bytes of one step on the links of a cluster.

    placement: devices in rank order, replica after replica; ranks: ranks of one replica. first_replica: the number of
    the first one that is counted. links: those that carry bytes, in the cluster's order. busiest_by_time, _by_bytes: as
    `src>dst`, empty when nothing moves; the first of several that are equal.
    """

    schema: str = TRAFFIC_SCHEMA
    step: str
    model: str
    cluster: Cluster
    layout: Layout
    replicas: int
    first_replica: int
    placement: tuple[int, ...]
    links: tuple[LinkLoad, ...]
    ops: tuple[OpTraffic, ...]
    tiers: tuple[TierTotal, ...]
    busiest_by_time: str
    busiest_by_bytes: str
    calibration: str
    notes: tuple[str, ...] = ()

    def load(self, name: str) -> LinkLoad:
        """A link by `src>dst`. Raises InputError when it carries nothing or does not exist."""
        for link in self.links:
            if link.name == name:
                return link
        raise InputError(f"link {name[:60]!r}", where=f"{self.step} step", expected="a link that carries bytes")

"""On what? Devices, NICs, directed links and the measured constants of a cluster.

A cluster is nodes of devices. Devices that reach each other over a scale-up fabric (NVLink, xGMI) form an island; an
island may be smaller than a node (bridged pairs), a node, or span nodes (NVL72). Everything else between two devices of
one node goes over PCIe, between nodes over the NICs.
"""

from enum import StrEnum

from linkwise.core.schema import Frozen


class Accelerator(Frozen, frozen=True, kw_only=True):
    """Facts of one kind of device. Bandwidths in bytes/s per direction, compute in dense FLOP/s.

    memory_bytes: total memory the driver or runtime reports to a process (not the nominal size on the box).
    flops: dense peak by compute dtype: bf16, fp8, fp4. A missing key means the device has no such units.
    scaleup_Bps: sum of scale-up links of one device per direction; 0 when it has none.
    p2p: True when devices can read each other's memory directly over PCIe (consumer cards cannot).
    confidence: "V" verified against a source, "K" from memory and unverified; printed when it matters.
    """

    name: str
    label: str
    memory_bytes: int
    memory_source: str
    nominal_GB: int
    hbm_Bps: float
    flops: dict[str, float]
    scaleup_Bps: float = 0.0
    scaleup_links: int = 0
    scaleup_kind: str = ""
    pcie_Bps: float = 0.0
    p2p: bool = True
    capability: int = 0
    source: str = ""
    confidence: str = "V"


class Tier(StrEnum):
    """The slowest thing a group's traffic crosses, best first."""

    DEVICE = "device"  # one rank: nothing moves
    ISLAND = "island"  # NVLink or xGMI
    NODE = "node"  # PCIe and the host inside one node
    CLUSTER = "cluster"  # NICs and the fabric between nodes


class Device(Frozen, frozen=True, kw_only=True):
    """One accelerator: its place, and the NIC it uses first (-1 without one)."""

    id: int
    node: int
    index: int
    island: int
    numa: int = 0
    nic: int = -1


class Link(Frozen, frozen=True, kw_only=True):
    """One directed link. `spec_Bps` is the datasheet's, `effective_Bps` what traffic gets (a fact of its own)."""

    src: str
    dst: str
    kind: str
    spec_Bps: float
    effective_Bps: float
    source: str = ""


class Constants(Frozen, frozen=True, kw_only=True):
    """Everything the time model multiplies by, in one replaceable value. Calibration replaces it, never a formula.

    label: "uncalibrated" for datasheet-and-paper constants, else what calibrated it.
    hbm_efficiency, flops_efficiency: share of the datasheet figure a kernel reaches.
    link_efficiency: by link kind, share of spec bandwidth a large collective reaches.
    latency_us: by "<implementation>.<tier>", `[base, per_step]` microseconds of one call.
    host_us_per_layer: host launch time of one layer without CUDA graphs; a step is never faster than the sum.
    step_overhead_us: scheduler, sampling and input preparation of one engine step.
    """

    label: str
    hbm_efficiency: float
    flops_efficiency: float
    link_efficiency: dict[str, float]
    latency_us: dict[str, tuple[float, float]]
    host_us_per_layer: float
    step_overhead_us: float
    sources: dict[str, str] = {}


class Cluster(Frozen, frozen=True, kw_only=True):
    """A homogeneous-accelerator cluster with its links.

    island_size: devices per scale-up domain (1 when there is none).
    nics_per_node, nic_Bps: scale-out NICs and the bandwidth of one, bytes/s per direction; 0 on a single box.
    oversubscription: >= 1; the fabric's core carries 1/oversubscription of what the leaves can send.
    """

    name: str
    accelerator: Accelerator
    nodes: int
    devices_per_node: int
    island_size: int
    nics_per_node: int
    nic_Bps: float
    constants: Constants
    fabric: str = "none"
    oversubscription: float = 1.0
    host_memory_bytes: int = 0
    numa_per_node: int = 1
    source: str = ""
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return self.nodes * self.devices_per_node

    def node_of(self, device: int) -> int:
        return device // self.devices_per_node

    def island_of(self, device: int) -> int:
        return device // self.island_size

    def tier(self, devices: tuple[int, ...]) -> Tier:
        """The slowest tier a collective over these devices crosses."""
        if len(devices) <= 1:
            return Tier.DEVICE
        if len({self.island_of(d) for d in devices}) == 1:
            return Tier.ISLAND
        if len({self.node_of(d) for d in devices}) == 1:
            return Tier.NODE
        return Tier.CLUSTER

    def bandwidth(self, tier: Tier) -> float:
        """Effective bytes/s per direction of one device's port at a tier (link efficiency applied)."""
        kind, spec = self.port(tier)
        return spec * self.constants.link_efficiency.get(kind, 1.0)

    def port(self, tier: Tier) -> tuple[str, float]:
        """The kind of link and its spec bytes/s per direction that one device has at a tier."""
        if tier is Tier.ISLAND:
            return self.accelerator.scaleup_kind, self.accelerator.scaleup_Bps
        if tier is Tier.NODE:
            return "pcie", self.accelerator.pcie_Bps
        if tier is Tier.CLUSTER:
            # NICs are shared when a node has fewer of them than devices.
            per_device = min(1.0, self.nics_per_node / self.devices_per_node)
            return "nic", self.nic_Bps * per_device / self.oversubscription
        return "none", float("inf")

"""On what? Devices, NICs, directed links and the measured constants of a cluster.

A cluster is nodes of devices. Devices that reach each other over a scale-up fabric (NVLink, xGMI) form an island; an
island may be smaller than a node (bridged pairs), a node, or span nodes (NVL72). Everything else between two devices of
one node goes over PCIe, between nodes over the NICs.
"""

import math
from enum import StrEnum

from linkwise.cluster.detail import NodeDetail
from linkwise.core.errors import InputError
from linkwise.core.schema import Frozen

MAX_DEVICES = 65_536  # the largest group a layout can make: beyond it no plan could use them
MAX_BPS = 1e15  # a petabyte per second: a thousand times anything that is sold
MAX_BYTES = 2**50
MAX_NAME = 200
FABRICS = ("rail", "fat-tree", "none")


def _within(where: str, name: str, value: float, low: float, high: float, *, above: bool = False) -> None:
    """Refuse a number outside low..high (`above`: low itself too). NaN is outside every range."""
    if not (low < value <= high if above else low <= value <= high):
        expected = f"above {low:g}, at most {high:g}" if above else f"{low:g}..{high:g}"
        raise InputError(f"{name} is {str(value)[:40]}", where=where, expected=expected)


def _short(where: str, name: str, value: str) -> None:
    """Refuse a name longer than any screen shows."""
    if len(value) > MAX_NAME:
        raise InputError(f"{name} has {len(value)} characters", where=where, expected=f"at most {MAX_NAME}")


class Accelerator(Frozen, frozen=True, kw_only=True):
    """Facts of one kind of device. Bandwidths in bytes/s per direction, compute in dense FLOP/s.

    memory_bytes: total memory the runtime reports to a process (not the nominal size on the box); memory_source says
        where the figure is from. driver_memory_bytes: what the driver's tool lists, when known and different; else 0.
    flops: dense peak by compute dtype: bf16, fp8, fp4. A missing key means the device has no such units.
    scaleup_Bps: sum of scale-up links of one device per direction; 0 when it has none. scaleup_mesh: the links go
        straight to each peer (bridges, xGMI), so two devices share only their own link; False = through a switch.
        scaleup_peers: over how many peers a mesh spreads them, present or not; 0 = over those of the island.
    pcie_Bps, host_link: the device's link to its host, and the kind of that link (pcie, c2c).
    p2p: True when devices can read each other's memory directly over PCIe (consumer cards cannot; see note).
    capability: CUDA compute capability as major*10 + minor; 0 for other makers.
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
    driver_memory_bytes: int = 0
    scaleup_mesh: bool = False
    scaleup_peers: int = 0
    host_link: str = "pcie"
    note: str = ""

    def __post_init__(self) -> None:
        where = f"accelerator {self.name!r}"
        if not self.name:
            raise InputError("an accelerator without a name", where="accelerator", expected="a non-empty name")
        _short("accelerator", "name", self.name)
        _short(where, "label", self.label)
        _within(where, "memory_bytes", self.memory_bytes, 1, MAX_BYTES)
        _within(where, "driver_memory_bytes", self.driver_memory_bytes, 0, MAX_BYTES)
        _within(where, "nominal_GB", self.nominal_GB, 0, 1e6)
        _within(where, "hbm_Bps", self.hbm_Bps, 0, MAX_BPS, above=True)
        _within(where, "scaleup_Bps", self.scaleup_Bps, 0, MAX_BPS)
        _within(where, "scaleup_links", self.scaleup_links, 0, 10_000)
        _within(where, "pcie_Bps", self.pcie_Bps, 0, MAX_BPS)
        _within(where, "capability", self.capability, 0, 1000)
        for dtype, value in self.flops.items():
            _within(where, f"flops.{dtype}", value, 0, 1e20, above=True)
        if not self.flops:
            raise InputError("flops is empty", where=where, expected="dense FLOP/s by dtype, such as {bf16: 989.0e+12}")
        if self.scaleup_Bps and not self.scaleup_kind:
            raise InputError("scaleup_Bps without scaleup_kind", where=where, expected="a kind such as nvlink4 or xgmi")


class Tier(StrEnum):
    """The slowest thing a group's traffic crosses, best first."""

    DEVICE = "device"  # one rank: nothing moves
    ISLAND = "island"  # NVLink or xGMI
    NODE = "node"  # PCIe and the host inside one node
    CLUSTER = "cluster"  # NICs and the fabric between nodes


class Device(Frozen, frozen=True, kw_only=True):
    """One accelerator: its place, and the first of the NICs it uses (-1 without one)."""

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
    collective_factor: how many times as long every collective takes: 1, and others where a break-even asks what if.
    kernel_us_per_layer: device time of a layer that no byte or FLOP explains (small kernels, gaps between them).
    step_overhead_us: scheduler, sampling and input preparation of one engine step.
    link_Bps: measured bytes/s of single directed links by `src>dst` (cluster/links.py names them) that differ from
        their kind; a calibration writes them. A link of this cluster only: elsewhere the name means another wire.
    sources: what each figure rests on, by field or `field.key`.

    Implementations: nccl (captured in a CUDA graph, or launched back to back), custom (an engine's own one-shot
    kernel, captured), eager (one torch.distributed call launched from the host). Their figures must not be mixed.
    """

    label: str
    hbm_efficiency: float
    flops_efficiency: float
    link_efficiency: dict[str, float]
    latency_us: dict[str, tuple[float, float]]
    host_us_per_layer: float
    step_overhead_us: float
    kernel_us_per_layer: float = 0.0
    collective_factor: float = 1.0
    link_Bps: dict[str, float] = {}
    sources: dict[str, str] = {}

    def __post_init__(self) -> None:
        where = "constants"
        for name, rate in self.link_Bps.items():
            _within(where, f"link_Bps.{name[:60]}", rate, 0, MAX_BPS, above=True)
        _within(where, "hbm_efficiency", self.hbm_efficiency, 0, 1, above=True)
        _within(where, "flops_efficiency", self.flops_efficiency, 0, 1, above=True)
        for kind, share in self.link_efficiency.items():
            _within(where, f"link_efficiency.{kind}", share, 0, 1, above=True)
        for key, pair in self.latency_us.items():
            for value in pair:
                _within(where, f"latency_us.{key}", value, 0, 1e6)
        for name in ("host_us_per_layer", "step_overhead_us", "kernel_us_per_layer"):
            _within(where, name, getattr(self, name), 0, 1e6)

    def latency(self, implementation: str, tier: Tier) -> tuple[float, float]:
        """`(base, per_step)` microseconds of one call. Raises InputError when the tier has no such implementation."""
        if tier is Tier.DEVICE:
            return 0.0, 0.0
        key = f"{implementation}.{tier.value}"
        if key not in self.latency_us:
            known = ", ".join(sorted(self.latency_us))
            raise InputError(f"no latency for {key}", where=f"constants ({self.label})", expected=f"one of {known}")
        return self.latency_us[key]


class Cluster(Frozen, frozen=True, kw_only=True):
    """A homogeneous-accelerator cluster with its links.

    island_size: devices per scale-up domain (1 when there is none); divides a node, or is a whole number of nodes.
    nics_per_node, nic_Bps: scale-out NICs and the bandwidth of one, bytes/s per direction; 0 without one.
    fabric: rail (NIC i of every node on switch i), fat-tree (a leaf switch per node), or none.
    oversubscription: >= 1; the fabric's core carries 1/oversubscription of what the leaves can send.
    host_memory_bytes: of one node; 0 when not known.
    detail: what a topology file says of a node, None without one; odd_nodes: the nodes that are not like it. With
        `detail.islands` it decides who is in which island, and island_size is the size of the largest.
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
    detail: NodeDetail | None = None
    odd_nodes: dict[int, NodeDetail] = {}

    def __post_init__(self) -> None:
        where = f"cluster {self.name!r}"
        _short("cluster", "name", self.name)
        _within(where, "nodes", self.nodes, 1, MAX_DEVICES)
        _within(where, "devices_per_node", self.devices_per_node, 1, MAX_DEVICES)
        _within(where, "nodes x devices_per_node", self.size, 1, MAX_DEVICES)
        _within(where, "island_size", self.island_size, 1, self.size)
        _within(where, "nics_per_node", self.nics_per_node, 0, 1024)
        _within(where, "nic_Bps", self.nic_Bps, 0, MAX_BPS)
        _within(where, "oversubscription", self.oversubscription, 1, 1000)
        _within(where, "host_memory_bytes", self.host_memory_bytes, 0, MAX_BYTES)
        _within(where, "numa_per_node", self.numa_per_node, 1, 1024)
        self._check_detail(where)
        self._check_shape(where)

    def _check_detail(self, where: str) -> None:
        """Details must be of nodes that exist, and say as much of each."""
        if self.detail is None:
            if self.odd_nodes:
                raise InputError("odd_nodes without detail", where=where, expected="detail, which they differ from")
            return
        for node in self.odd_nodes:
            _within(f"{where}: odd_nodes", "a node", node, 0, self.nodes - 1)
        details = [("detail", self.detail), *((f"odd_nodes.{node}", odd) for node, odd in self.odd_nodes.items())]
        for field, detail in details:
            here = f"{where}: {field}"
            detail.check(self.devices_per_node, here)
            if detail.nic_names and len(detail.nic_names) != self.nics_per_node:
                raise InputError(
                    f"{len(detail.nic_names)} NICs", where=here, expected=f"{self.nics_per_node}, as nics says"
                )
            if bool(detail.islands) != bool(self.detail.islands):
                raise InputError("islands here but not there", where=here, expected="islands of every node, or of none")
        if self.detail.islands:
            largest = max(d.islands.count(i) for d in (self.detail, *self.odd_nodes.values()) for i in d.islands)
            if self.island_size != largest:
                raise InputError(
                    f"island_size is {self.island_size}",
                    where=where,
                    expected=f"{largest}, the largest of detail.islands",
                )

    def _check_shape(self, where: str) -> None:
        """Every two devices must have a path, and an island must not straddle nodes."""
        island, node = self.island_size, self.devices_per_node
        # A last, smaller island is fine on one machine: three cards, two of them bridged.
        if island % node and node % island and self.nodes > 1 and not self._shaped:
            raise InputError(
                f"island_size {island} straddles nodes of {node} devices",
                where=where,
                expected="an island_size that divides devices_per_node, or is a multiple of it",
            )
        if island > 1 and not self.accelerator.scaleup_Bps:
            raise InputError(
                f"island_size {island}, but {self.accelerator.name} has no scale-up links",
                where=where,
                expected="island_size: none, or an accelerator with scaleup_Bps above 0",
            )
        if (island < node or self._parted) and not self.accelerator.pcie_Bps:
            raise InputError(
                f"devices of a node outside an island of {island} have no path: pcie_Bps is 0",
                where=where,
                expected="pcie_Bps above 0, or an island of the whole node",
            )
        if self.fabric not in FABRICS:
            raise InputError(f"fabric is {self.fabric!r}", where=where, expected="one of " + ", ".join(FABRICS))
        if bool(self.nics_per_node) != bool(self.nic_Bps):
            raise InputError(
                f"{self.nics_per_node} NICs of {self.nic_Bps:g} B/s", where=where, expected="both above 0, or both 0"
            )
        if island < self.size and self.nodes > 1 and (not self.nics_per_node or self.fabric == "none"):
            raise InputError(
                f"{self.nodes} nodes without a network between them",
                where=where,
                expected="nics above 0 and a fabric of kind rail or fat-tree",
                hint="In YAML: nics: {count: 1, Gbps: 100} and fabric: {kind: fat-tree}",
            )

    @property
    def size(self) -> int:
        return self.nodes * self.devices_per_node

    def node_of(self, device: int) -> int:
        return device // self.devices_per_node

    @property
    def _shaped(self) -> bool:
        """Islands are as a file says, not `island_size` neighbours."""
        return self.detail is not None and bool(self.detail.islands)

    @property
    def _parted(self) -> bool:
        """Some node has more than one island."""
        details = (self.detail, *self.odd_nodes.values()) if self.detail else ()
        return any(len(set(detail.islands)) > 1 for detail in details)

    def detail_of(self, node: int) -> NodeDetail | None:
        """What is known of a node."""
        return self.odd_nodes.get(node, self.detail)

    def island_of(self, device: int) -> int:
        """A number per scale-up island; two devices are in one island when theirs are equal."""
        node, index = divmod(device, self.devices_per_node)
        detail = self.detail_of(node)
        if detail is None or not detail.islands:
            return device // self.island_size
        return node * self.devices_per_node + detail.islands[index]

    def numa_of(self, device: int) -> int:
        """NUMA node of a device inside its node: as the file says, else evenly spread."""
        node, index = divmod(device, self.devices_per_node)
        detail = self.detail_of(node)
        stated = detail.numa[index] if detail and detail.numa else -1
        return stated if stated >= 0 else index * self.numa_per_node // self.devices_per_node

    def socket_of(self, device: int) -> int:
        """The socket of a device inside its node, where a file tells sockets apart; else 0."""
        node, index = divmod(device, self.devices_per_node)
        detail = self.detail_of(node)
        return detail.sockets[index] if detail and detail.sockets else 0

    def nics_of(self, device: int) -> tuple[int, ...]:
        """NICs of its node nearest to a device, all of which it uses: as the file says, else evenly spread."""
        node, index = divmod(device, self.devices_per_node)
        detail = self.detail_of(node)
        if detail and (stated := detail.nics_of(index)):
            return stated
        first = index * self.nics_per_node // self.devices_per_node
        last = max(first + 1, (index + 1) * self.nics_per_node // self.devices_per_node)
        return tuple(range(first, last)) if self.nics_per_node else ()

    def tier(self, devices: tuple[int, ...]) -> Tier:
        """The slowest tier a collective over these devices crosses.

        In an island of direct links that is no full mesh, a group is inside it only when its own links hold it
        together: NCCL does not forward through a device outside the group.
        """
        if len(devices) <= 1:
            return Tier.DEVICE
        if len({self.island_of(d) for d in devices}) == 1:
            return Tier.ISLAND if not self._shaped or self._joined_Bps(devices) else Tier.NODE
        if len({self.node_of(d) for d in devices}) == 1:
            return Tier.NODE
        return Tier.CLUSTER

    def _joined_Bps(self, devices: tuple[int, ...]) -> float:
        """What the node's detail says of a group inside one island; 0 when it is not held together by its own links."""
        node = self.node_of(devices[0])
        detail = self.detail_of(node)
        return detail.joined_Bps([d - node * self.devices_per_node for d in devices]) if detail else 0.0

    def bandwidth(self, tier: Tier, ranks: int | None = None, members: tuple[int, ...] = ()) -> float:
        """Effective bytes/s per direction of one device's port at a tier (link efficiency applied).

        ranks: how many devices take part; on a mesh island a smaller group reaches only the links between its members.
        None = the whole island. members: which devices, where islands are irregular and it matters which; without
        them the slowest island, or the slowest group of `ranks` neighbours.
        """
        kind, spec = self.port(tier, ranks, members)
        return spec * self.constants.link_efficiency.get(kind, 1.0)

    def port(self, tier: Tier, ranks: int | None = None, members: tuple[int, ...] = ()) -> tuple[str, float]:
        """The kind of link and its spec bytes/s per direction that one device has at a tier (see `bandwidth`)."""
        device = self.accelerator
        if tier is Tier.ISLAND and self.detail is not None and self.detail.islands:
            details = (self.detail, *self.odd_nodes.values())
            rates = [rate for detail in details if (rate := detail.usual_Bps(ranks))]
            return device.scaleup_kind, (self._joined_Bps(members) if members else 0.0) or min(rates, default=0.0)
        if tier is Tier.ISLAND:
            share = 1.0
            if device.scaleup_mesh and self.island_size > 1:
                ranks = self.island_size if ranks is None else ranks
                share = min(1.0, (max(ranks, 2) - 1) / max(self.island_size - 1, device.scaleup_peers))
            return device.scaleup_kind, device.scaleup_Bps * share
        if tier is Tier.NODE:
            return self.host_kind, device.pcie_Bps
        if tier is Tier.CLUSTER:
            # NICs are shared when a node has fewer than devices; one with several cannot outrun its own host link.
            share_Bps = self.nic_Bps * self.nics_per_node / self.devices_per_node
            return "nic", min(share_Bps, device.pcie_Bps or math.inf) / self.oversubscription
        return "none", math.inf

    @property
    def host_kind(self) -> str:
        """Kind of the path between devices of a node outside islands: direct, or copied through host memory."""
        return self.accelerator.host_link if self.accelerator.p2p else f"{self.accelerator.host_link}-host"

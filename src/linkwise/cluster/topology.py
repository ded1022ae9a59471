"""What a topology file says about one machine or one fabric, before it becomes a Cluster.

Every reader gives one of these two values. A `Machine` is the inside of a host: GPUs, NICs, switches, NUMA nodes, the
links between them and the path class of each pair. A `Fabric` is what is between hosts. Nothing here is guessed: a
figure a file does not state is None, and what a reader had to skip is in `notes`.
"""

import re
from enum import StrEnum
from typing import Literal

from linkwise.core.schema import Frozen


class PathClass(StrEnum):
    """NCCL's path types, best first."""

    LOC = "LOC"
    NVL = "NVL"
    NVB = "NVB"
    C2C = "C2C"
    PIX = "PIX"
    PXB = "PXB"
    P2C = "P2C"
    PXN = "PXN"
    PHB = "PHB"
    SYS = "SYS"
    NET = "NET"
    DIS = "DIS"


_RANK = ("gpu", "nic", "switch", "pci", "cpu")
_NUMBERED = re.compile(r"([a-z]+)(\d+)")


def pair(a: str, b: str) -> str:
    """The key of two parts in `Machine.paths`: GPUs before NICs, then the lower number: "gpu2 gpu10", "gpu7 nic0"."""

    def order(part: str) -> tuple[int, int, str]:
        match = _NUMBERED.fullmatch(part)
        if not match or match[1] not in _RANK:
            return len(_RANK), 0, part
        return _RANK.index(match[1]), int(match[2]), part

    return " ".join(sorted((a, b), key=order))


class Part(Frozen, frozen=True, kw_only=True):
    """A device of a machine. id: unique in it, as people say it: gpu0, nic3, nvswitch0, pci:0000:17:00.0, numa1.

    index: the tool's own index (CUDA or RSMI order, NIC order); -1 without one. numa: NUMA node, None when not stated.
    bus: PCI address in lower case, domain included, or "". model: product or device name as the file has it, or "".
    port_Bps: a NIC's line rate per direction, None when not stated. gdr: GPUDirect RDMA as the file states it, or None.
    """

    id: str
    kind: Literal["gpu", "nic", "switch", "pci", "cpu"]
    index: int = -1
    numa: int | None = None
    bus: str = ""
    model: str = ""
    port_Bps: float | None = None
    gdr: bool | None = None


class Wire(Frozen, frozen=True, kw_only=True):
    """Links between two parts, both directions alike. count: parallel links (NVLink count); spec_Bps per direction and
    for all of them together, None when the file states no speed. nccl_Bps: the same in NCCL's own model of the link
    (cluster/facts/nccl.yaml), what it plans with; None when NCCL has no figure."""

    a: str
    b: str
    kind: Literal["nvlink", "xgmi", "pcie", "c2c", "smp", "net"]
    count: int = 1
    spec_Bps: float | None = None
    nccl_Bps: float | None = None


class Machine(Frozen, frozen=True, kw_only=True):
    """The inside of one host. paths: path class between two GPUs or a GPU and a NIC, keys "gpu0 gpu1" with the lower id
    first (GPUs before NICs); raw: the file's own word for it where that is no NCCL class (NODE, XGMI, ...).

    affinity: CPU list ("0-47,96-143") of a GPU, by its id. peer: peer-to-peer status by pair as `nvidia-smi topo -p2p`
    words it (OK, CNS, ...). format: which reader understood it. partial: the file was cut and what is here is only
    what it still says.
    """

    format: str
    source: str
    parts: tuple[Part, ...]
    wires: tuple[Wire, ...] = ()
    paths: dict[str, PathClass] = {}
    raw: dict[str, str] = {}
    affinity: dict[str, str] = {}
    peer: dict[str, str] = {}
    partial: bool = False
    notes: tuple[str, ...] = ()

    def path(self, a: str, b: str) -> PathClass | None:
        """Path class between two GPUs or a GPU and a NIC, in either order; None when the file does not say."""
        return PathClass.LOC if a == b else self.paths.get(pair(a, b))

    def nvlinks(self, a: str, b: str) -> int:
        """NVLink or xGMI links two GPUs reach each other over: their own, and what both have into shared switches.

        All NVSwitches of a machine count as one, as in NCCL, wherever the pair's path class is NVL.
        """
        switches = {part.id for part in self.parts if part.kind == "switch"}
        scaleup = [wire for wire in self.wires if wire.kind in ("nvlink", "xgmi")]

        def into_switches(gpu: str) -> int:
            return sum(w.count for w in scaleup if (w.a == gpu and w.b in switches) or (w.b == gpu and w.a in switches))

        direct = sum(wire.count for wire in scaleup if {wire.a, wire.b} == {a, b})
        if self.path(a, b) is not PathClass.NVL:
            return direct
        return direct + min(into_switches(a), into_switches(b))

    @property
    def gpus(self) -> tuple[Part, ...]:
        return tuple(p for p in self.parts if p.kind == "gpu")

    @property
    def nics(self) -> tuple[Part, ...]:
        return tuple(p for p in self.parts if p.kind == "nic")


class Port(Frozen, frozen=True, kw_only=True):
    """A cable between two nodes of a fabric, both directions alike. spec_Bps per direction or None."""

    a: str
    b: str
    spec_Bps: float | None = None
    count: int = 1


class Fabric(Frozen, frozen=True, kw_only=True):
    """What is between hosts. switches: name to tier (1 = leaf), 0 when not known; hosts in file order; domains: sets of
    hosts that share one NVLink domain (clique), by name. products, gpus: the different GPU products, and numbers of
    GPUs in a host, that the hosts' labels state; empty when they state none."""

    format: str
    source: str
    hosts: tuple[str, ...]
    switches: dict[str, int] = {}
    ports: tuple[Port, ...] = ()
    domains: dict[str, tuple[str, ...]] = {}
    products: tuple[str, ...] = ()
    gpus: tuple[int, ...] = ()
    partial: bool = False
    notes: tuple[str, ...] = ()

"""How far apart are two parts? NCCL's path class from the PCI and NUMA tree, and from the NVLink or xGMI wires.

The rules are those of NCCL's src/graph/paths.cc (2.31): one PCI switch between two devices is PIX, a link between two
switches makes it PXB, a CPU makes it PHB, a link between CPUs SYS; a C2C link into the CPU of the other end, P2C.
NVLink, direct or through any NVSwitch, is NVL; through one other GPU, NVB. What NCCL decides later and by setting
(relaying through a peer to its NIC, PXN; giving up peer access for shared memory) is no property of the tree: not here.
"""

from collections.abc import Iterable, Mapping

from linkwise.cluster.topology import Part, PathClass, Wire, pair
from linkwise.core.schema import Frozen


class Place(Frozen, frozen=True, kw_only=True):
    """Where a device hangs.

    switches: PCI switches from the device upwards. cpu: id of its CPU or NUMA node, "" when not known. root: its host
    bridge, for when the CPU is not known. host: which machine of a fused dump. c2c: has a C2C link to that CPU.
    """

    switches: tuple[str, ...] = ()
    cpu: str = ""
    root: str = ""
    host: str = ""
    c2c: bool = False


def pci_class(a: Place, b: Place) -> PathClass | None:
    """The class of two devices over PCI alone; None when the tree does not decide."""
    if a.host != b.host:
        return PathClass.NET
    shared = next((switch for switch in a.switches if switch in b.switches), None)
    if shared is not None:
        near = a.switches[0] == shared == b.switches[0]
        return PathClass.PIX if near else PathClass.PXB
    if a.root and a.root == b.root:
        return PathClass.PHB
    if a.cpu and b.cpu:
        return PathClass.PHB if a.cpu == b.cpu else PathClass.SYS
    return None


def best_class(a: Place, b: Place) -> PathClass | None:
    """The better of PCI and C2C."""
    over_pci = pci_class(a, b)
    if not a.cpu or a.cpu != b.cpu or not (a.c2c or b.c2c):
        return over_pci
    over_c2c = PathClass.C2C if a.c2c and b.c2c else PathClass.P2C
    order = list(PathClass)
    return over_c2c if over_pci is None else min(over_pci, over_c2c, key=order.index)


def scaleup_classes(gpus: Iterable[str], switches: Iterable[str], wires: Iterable[Wire]) -> dict[str, PathClass]:
    """NVL and NVB pairs of GPUs. All NVSwitches are one, as in NCCL: links between switches are in no dump."""
    gpus = tuple(gpus)
    fabric = set(switches)
    reach: dict[str, set[str]] = {gpu: set() for gpu in gpus}
    switched = []
    for wire in wires:
        if wire.kind not in ("nvlink", "xgmi"):
            continue
        if wire.a in reach and wire.b in reach:
            reach[wire.a].add(wire.b)
            reach[wire.b].add(wire.a)
        for end, other in ((wire.a, wire.b), (wire.b, wire.a)):
            if end in reach and other in fabric:
                switched.append(end)
    for gpu in switched:
        reach[gpu].update(other for other in switched if other != gpu)
    found: dict[str, PathClass] = {}
    for index, a in enumerate(gpus):
        for b in gpus[index + 1 :]:
            if b in reach[a]:
                found[pair(a, b)] = PathClass.NVL
            elif reach[a] & reach[b]:
                found[pair(a, b)] = PathClass.NVB
    return found


def all_classes(parts: Iterable[Part], wires: Iterable[Wire], places: Mapping[str, Place]) -> dict[str, PathClass]:
    """The class of every GPU with every other GPU and every NIC; pairs the tree does not decide are left out."""
    parts = tuple(parts)
    gpus = [part.id for part in parts if part.kind == "gpu"]
    ends = gpus + [part.id for part in parts if part.kind == "nic"]
    switches = [part.id for part in parts if part.kind == "switch"]
    found = scaleup_classes(gpus, switches, wires)
    for index, a in enumerate(gpus):
        for b in ends[index + 1 :]:
            key = pair(a, b)
            if key not in found and (path := best_class(places[a], places[b])) is not None:
                found[key] = path
    return found

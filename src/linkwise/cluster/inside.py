"""From what a file says of one machine to what a Cluster keeps of a node: islands, sockets, NICs."""

from typing import NamedTuple

from linkwise.cluster.detail import NodeDetail, Strand
from linkwise.cluster.topology import Machine, Part, PathClass
from linkwise.cluster.types import Accelerator
from linkwise.core.errors import InputError

# No GPU sold has more links of its own; a pairwise count that adds up to more is a switch seen from both ends.
MOST_LINKS = 18


class Scaleup(NamedTuple):
    """NVLink or xGMI of a machine by GPU number: links to each peer, links into each switch, stated bytes/s."""

    direct: dict[tuple[int, int], tuple[int, float | None]]
    into: dict[tuple[int, str], tuple[int, float | None]]

    @property
    def links(self) -> bool:
        return bool(self.direct or self.into)

    def total(self, gpu: int) -> int:
        """Links of a GPU, to peers and into switches."""
        direct = sum(count for pair, (count, _) in self.direct.items() if gpu in pair)
        return direct + sum(count for (at, _), (count, _) in self.into.items() if at == gpu)


def gpus(machine: Machine) -> tuple[Part, ...]:
    """GPUs in the tool's order."""
    return tuple(sorted(machine.gpus, key=lambda gpu: gpu.index))


def scaleup(machine: Machine) -> Scaleup:
    """The scale-up wires of a machine, GPUs by their place in `gpus`."""
    number = {gpu.id: at for at, gpu in enumerate(gpus(machine))}
    switches = {part.id for part in machine.parts if part.kind == "switch"}
    direct: dict[tuple[int, int], tuple[int, float | None]] = {}
    into: dict[tuple[int, str], tuple[int, float | None]] = {}
    for wire in machine.wires:
        if wire.kind not in ("nvlink", "xgmi"):
            continue
        ends = sorted(number[end] for end in (wire.a, wire.b) if end in number)
        if len(ends) == 2:
            key = ends[0], ends[1]
            direct[key] = _added(direct.get(key), wire.count, wire.spec_Bps)
        elif len(ends) == 1 and (switch := {wire.a, wire.b} & switches):
            port = ends[0], min(switch)
            into[port] = _added(into.get(port), wire.count, wire.spec_Bps)
    return Scaleup(direct, into)


def silent(machine: Machine) -> bool:
    """No link between GPUs, in a file that need not have them: NCCL's static XML, or hwloc without NVML."""
    blind = machine.format == "hwloc" or any("NVLinks are not in this file" in note for note in machine.notes)
    return blind and not scaleup(machine).links


def _added(before: tuple[int, float | None] | None, count: int, rate: float | None) -> tuple[int, float | None]:
    if before is None:
        return count, rate
    return before[0] + count, None if rate is None or before[1] is None else before[1] + rate


def switched(found: Scaleup, most: int = MOST_LINKS) -> dict[int, int]:
    """Links of each GPU into a switch; {} where GPUs are linked to each other, or not at all.

    `nvidia-smi topo -m` prints a switch as NV18 between every pair: more links than a GPU has.
    """
    if found.into:
        return {gpu: found.total(gpu) for gpu, _ in found.into}
    if all(found.total(gpu) <= most for pair in found.direct for gpu in pair):
        return {}
    most_to: dict[int, int] = {}
    for pair, (count, _) in found.direct.items():
        for gpu in pair:
            most_to[gpu] = max(most_to.get(gpu, 0), count)
    return most_to


def islands(machine: Machine, found: Scaleup) -> tuple[int, ...]:
    """Number of each GPU's island: GPUs that links or a switch join, counted from 0."""
    home = list(range(len(machine.gpus)))

    def join(a: int, b: int) -> None:
        gone, kept = max(home[a], home[b]), min(home[a], home[b])
        home[:] = [kept if island == gone else island for island in home]

    for a, b in found.direct:
        join(a, b)
    first: dict[str, int] = {}
    for gpu, switch in found.into:
        join(gpu, first.setdefault(switch, gpu))
    # Switches linked to each other (two boards of eight) make one island: the file's own path class says so.
    order_of = gpus(machine)
    for a, one in enumerate(order_of):
        for b in range(a + 1, len(order_of)):
            if home[a] != home[b] and machine.path(one.id, order_of[b].id) is PathClass.NVL:
                join(a, b)
    order = {island: at for at, island in enumerate(dict.fromkeys(home))}
    return tuple(order[island] for island in home)


def near_nics(machine: Machine) -> tuple[tuple[Part, ...], list[str]]:
    """The NICs some GPU is nearest to, in the tool's order, and a remark about those left out (storage, management)."""
    every = tuple(sorted(machine.nics, key=lambda nic: nic.index))
    order = list(PathClass)
    kept: set[str] = set()
    for gpu in machine.gpus:
        ways = {nic.id: path for nic in every if (path := machine.path(gpu.id, nic.id)) is not None}
        best = min(ways.values(), key=order.index, default=None)
        kept |= {nic for nic, path in ways.items() if path is best}
    if not kept:
        return every, []
    left = [nic.model or nic.id for nic in every if nic.id not in kept]
    remark = [f"not counted, no GPU is nearest to them: {', '.join(left)}"] if left else []
    return tuple(nic for nic in every if nic.id in kept), remark


def detail(machine: Machine, device: Accelerator, nics: tuple[Part, ...]) -> tuple[NodeDetail, bool]:
    """What the Cluster keeps of a node, and whether its islands are those of the usual machine of this accelerator."""
    found, order = scaleup(machine), gpus(machine)
    if found.links and not device.scaleup_Bps:
        raise InputError(
            f"the file shows links between GPUs, but {device.name} has none",
            where=machine.source,
            expected="an accelerator with NVLink or xGMI",
        )
    unit = device.scaleup_Bps / max(1, device.scaleup_links)
    into = switched(found, device.scaleup_links or MOST_LINKS)
    ports: tuple[float, ...] = ()
    strands: tuple[Strand, ...] = ()
    if into:
        ports = tuple(_port(found, at) or into.get(at, 0) * unit for at in range(len(order)))
    else:
        strands = tuple(
            Strand(a=a, b=b, spec_Bps=rate or count * unit) for (a, b), (count, rate) in sorted(found.direct.items())
        )
    home = islands(machine, found) if found.links else ()
    rows = []
    for gpu in order:
        ways = [machine.path(gpu.id, other.id) for other in (*order, *nics)]
        rows.append(" ".join(way.value if way else "-" for way in ways))
    numa = tuple(-1 if gpu.numa is None else gpu.numa for gpu in order)
    nic_numa = tuple(-1 if nic.numa is None else nic.numa for nic in nics)
    said = any(word != "-" for row in rows for word in row.split())
    return (
        NodeDetail(
            numa=numa if any(n >= 0 for n in numa) else (),
            nic_names=tuple(nic.model or nic.id for nic in nics),
            nic_numa=nic_numa if any(n >= 0 for n in nic_numa) else (),
            paths=tuple(rows) if said and (len(order) > 1 or nics) else (),
            islands=home,
            strands=strands,
            ports_Bps=ports,
            smp_Bps=min((w.nccl_Bps for w in machine.wires if w.kind == "smp" and w.nccl_Bps), default=0.0),
        ),
        _regular(home, strands, ports, device),
    )


def _port(found: Scaleup, gpu: int) -> float:
    """Stated bytes/s of a GPU into all switches; 0 where one of them is not stated."""
    rates = [rate for (at, _), (_, rate) in found.into.items() if at == gpu]
    return sum(rate for rate in rates if rate) if all(rates) else 0.0


def _regular(home: tuple[int, ...], strands: tuple[Strand, ...], ports: tuple[float, ...], device: Accelerator) -> bool:
    """Islands of neighbours, all of one size, each with all the bandwidth of the accelerator's facts."""
    if not home:
        return True
    size = home.count(0)
    if home != tuple(at // size for at in range(len(home))) or size < 2:
        return False
    if ports:
        return not device.scaleup_mesh and all(abs(rate / device.scaleup_Bps - 1) < 0.01 for rate in ports)
    full = len(strands) * 2 == len(home) * (size - 1)
    each = device.scaleup_Bps / (size - 1)
    return device.scaleup_mesh and full and all(abs(strand.spec_Bps / each - 1) < 0.01 for strand in strands)


def own_memory(machine: Machine) -> bool:
    """Whether the file shows that GPUs' memory is NUMA nodes of its own, which it is beside a Grace CPU only."""
    return any("own memory is a NUMA node" in note for note in machine.notes)

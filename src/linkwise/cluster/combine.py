"""Node files, a node count and a fabric, to one Cluster. What no file states is given, or assumed with a note."""

from collections.abc import Sequence

import msgspec

from linkwise.cluster import fabrics, inside, known, presets
from linkwise.cluster.detail import UNKNOWN_SMP_BPS, NodeDetail
from linkwise.cluster.fabrics import FabricSpec
from linkwise.cluster.identify import check_labels, identify, labelled
from linkwise.cluster.topology import Fabric, Machine, Part
from linkwise.cluster.types import MAX_DEVICES, Accelerator, Cluster
from linkwise.core.errors import InputError
from linkwise.core.units import parse_bytes


def combine(
    machines: Sequence[Machine],
    *,
    nodes: int | None = None,
    fabric: Fabric | FabricSpec | None = None,
    accelerator: str | Accelerator | None = None,
    nic_Gbps: float | None = None,
) -> Cluster:
    """One Cluster of `nodes` machines.

    machines: one file for all nodes alike, or one a node (those that differ from the first are kept apart); none when
    the fabric's file and the accelerator say enough, then the usual machine is taken. nodes: left out, the number of
    machines, or of the fabric's hosts. accelerator: a name of `linkwise hardware` or facts; left out, what the file
    names, or what its link counts suggest, with a note. nic_Gbps: line rate of one NIC, where the file has none.
    Raises InputError for machines that do not go together.
    """
    hosts = fabric.hosts if isinstance(fabric, Fabric) else ()
    count = _nodes(nodes, len(machines), len(hosts))
    notes = list(dict.fromkeys(note for machine in machines for note in _notes(machine)))
    if isinstance(fabric, Fabric):
        notes += [f"{_name(fabric.source)}: {note}" for note in fabric.notes]
    if not machines:
        return _usual(count, fabric, accelerator, nic_Gbps, notes)
    size = len(machines[0].gpus)
    for machine in machines:
        if not machine.gpus:
            raise InputError("no GPU in it", where=machine.source, expected="a machine with GPUs")
        if len(machine.gpus) != size:
            raise InputError(
                f"{len(machine.gpus)} GPUs", where=machine.source, expected=f"{size}, as in {machines[0].source}"
            )
    device = identify(machines, accelerator, notes)
    if isinstance(fabric, Fabric) and (fabric.products or fabric.gpus):
        check_labels(fabric, device, size)
    nics, details, regular = _details(machines, device, notes)
    island, details = _islands(machines[0], details, regular, device, count, fabric, notes)
    number, nic_Bps = _nics(nics, device, size, count, island, nic_Gbps, notes)
    kind, over = fabrics.network(fabric, count, size, number, notes)
    odd = {node: detail for node, detail in enumerate(details) if detail != details[0]}
    usual = known.node(device.name)
    numa = {n for detail in details for n in (*detail.numa, *detail.nic_numa) if n >= 0}
    return Cluster(
        name=f"{count}x{size}x{device.name}" if count > 1 else f"{size}x{device.name}",
        accelerator=device,
        nodes=count,
        devices_per_node=size,
        island_size=island,
        nics_per_node=number,
        nic_Bps=nic_Bps,
        constants=known.constants(),
        fabric=kind,
        oversubscription=over,
        host_memory_bytes=parse_bytes(usual.host_memory) if usual else 0,
        numa_per_node=min(1024, max(1, len(numa))) if numa or not usual else min(usual.numa, size),
        source="; ".join(_sources(machines, fabric)),
        notes=tuple(dict.fromkeys(notes)),
        detail=details[0],
        odd_nodes=odd,
    )


def _sources(machines: Sequence[Machine], fabric: Fabric | FabricSpec | None) -> list[str]:
    sources = [f"{machine.source} ({machine.format})" for machine in machines[:4]]
    if len(machines) > 4:
        sources.append(f"{len(machines) - 4} files more")
    return sources + ([f"{fabric.source} ({fabric.format})"] if isinstance(fabric, Fabric) else [])


def _name(source: str) -> str:
    """A file without its folders, for notes."""
    return source.rpartition("/")[2]


def _notes(machine: Machine) -> list[str]:
    """A machine's own notes, and what its being cut costs."""
    name = _name(machine.source)
    notes = [f"{name}: {note}" for note in machine.notes]
    if machine.partial:
        blind = [gpu.id for gpu in machine.gpus if machine.nics and machine.path(gpu.id, machine.nics[0].id) is None]
        lost = f"; NICs near {', '.join(blind)} are not counted" if blind else ""
        notes.append(f"{name} was cut: what it no longer says is not in the cluster{lost}")
    return notes


def _nodes(given: int | None, files: int, hosts: int) -> int:
    """How many nodes; a count that contradicts the files is refused."""
    if given is None:
        if files > 1 and hosts and files != hosts:
            raise InputError(
                f"{files} node files and {hosts} hosts in the fabric", expected="as many, or one node file"
            )
        return max(1, hosts or files)
    if not 1 <= given <= MAX_DEVICES:
        raise InputError(f"{given} nodes", where="--nodes", expected=f"1..{MAX_DEVICES}")
    if (files > 1 and given != files) or (hosts and given > hosts):
        raise InputError(
            f"{given} nodes, but {files} node files and {hosts or 'no'} hosts in a fabric",
            where="--nodes",
            expected="one node file for all, or one a node; at most the fabric's hosts",
        )
    return given


def _details(
    machines: Sequence[Machine], device: Accelerator, notes: list[str]
) -> tuple[tuple[Part, ...], list[NodeDetail], bool]:
    """The first machine's NICs, every machine's detail, and whether all have the islands of the usual machine."""
    first: tuple[Part, ...] = ()
    details, regular = [], True
    for at, machine in enumerate(machines):
        nics, remarks = inside.near_nics(machine)
        if at and len(nics) != len(first):
            raise InputError(
                f"{len(nics)} NICs near GPUs",
                where=machine.source,
                expected=f"{len(first)}, as in {machines[0].source}",
            )
        first = nics if not at else first
        notes += [f"{_name(machine.source)}: {remark}" for remark in remarks]
        detail, usual = inside.detail(machine, device, nics)
        details.append(detail)
        if detail.sockets and not detail.smp_Bps and len(set(detail.islands)) != 1:
            notes.append(
                f"{_name(machine.source)} does not name the CPU: {UNKNOWN_SMP_BPS / 1e9:g} GB/s between its sockets"
                " assumed; smp_Bps in the YAML's detail says what it is"
            )
        regular = regular and usual
    return first, details, regular and len({bool(detail.islands) for detail in details}) == 1


def _islands(
    first: Machine,
    details: list[NodeDetail],
    regular: bool,
    device: Accelerator,
    nodes: int,
    fabric: Fabric | FabricSpec | None,
    notes: list[str],
) -> tuple[int, list[NodeDetail]]:
    """Devices of the largest island; details lose their islands where those are the usual ones."""
    size, source = len(first.gpus), first.source
    linked = any(detail.islands for detail in details)
    assumed = not linked and size > 1 and device.scaleup_Bps > 0 and inside.silent(first)
    trays = fabrics.trays(fabric, device, nodes, size, notes)
    whole = regular and linked and len(set(details[0].islands)) == 1
    if trays > 1 and size > 1 and not (whole or assumed):
        raise InputError(
            f"the GPUs of {source} are not all on NVLink alike",
            where="--fabric nvl",
            expected="nodes that can be trays of one NVLink domain, or --fabric rail or fat-tree",
        )
    if assumed:
        notes.append(f"{_name(source)} does not show NVLink: that of the usual machine of {device.name} is assumed")
        return (size * trays if trays > 1 else min(presets.island_size(device, 1, size), size)), details
    if not linked:
        if device.scaleup_Bps and size > 1:
            notes.append(
                f"{_name(source)} shows no NVLink, which {device.name} has: nvidia-smi topo -mp hides it, -m does not"
            )
        return trays, details
    if regular:
        plain = [msgspec.structs.replace(detail, islands=(), strands=(), ports_Bps=()) for detail in details]
        return (size * trays if trays > 1 else details[0].islands.count(0)), plain
    alone = tuple(range(size))
    filled = [d if d.islands else msgspec.structs.replace(d, islands=alone, ports_Bps=(0.0,) * size) for d in details]
    return max(d.islands.count(i) for d in filled for i in d.islands), filled


def _nics(
    nics: tuple[Part, ...],
    device: Accelerator,
    size: int,
    nodes: int,
    island: int,
    given: float | None,
    notes: list[str],
) -> tuple[int, float]:
    """Count and bytes/s of one NIC: as stated, as given, or the usual machine's with a note."""
    stated = [nic.port_Bps for nic in nics if nic.port_Bps]
    usual = known.node(device.name)
    rate = given
    if rate is not None and not 0 < rate <= 100_000:
        raise InputError(f"{rate:g}", where="--nic-gbps", expected="Gb/s of one NIC, above 0")
    if rate is None and len(stated) == len(nics) and stated:
        rate = min(stated) * 8 / 1e9
        if max(stated) > min(stated):
            notes.append(f"NICs of different speeds are all taken as the slowest, {rate:g} Gb/s")
    if nics and rate is not None:
        return len(nics), rate * 1e9 / 8
    if not nics and (nodes == 1 or island >= nodes * size):
        if given is not None:
            notes.append(f"--nic-gbps {given:g} is not used: the file has no NICs, and no traffic needs one")
        return 0, 0.0
    count = max(1, usual.nics_for(size) if usual else 1)
    rate, why = (rate, "as given") if rate is not None else _assumed_rate(len(nics), count, device, size)
    if nics:
        lacks = f"the speed of {len(stated)} of {len(nics)} NICs alone" if stated else "no NIC speed"
        notes.append(f"the file has {lacks}: {rate:g} Gb/s assumed ({why}); --nic-gbps says what it is")
        return len(nics), rate * 1e9 / 8
    notes.append(f"the file has no NICs: {count} per node of {rate:g} Gb/s assumed ({why})")
    return count, rate * 1e9 / 8


def _assumed_rate(nics: int, count: int, device: Accelerator, size: int) -> tuple[float, str]:
    """Gb/s of one of a file's NICs by the usual machine, which has `count` beside `size` devices; and how it came."""
    usual = known.node(device.name)
    if usual is None or not usual.nic_Gbps:
        return known.assumed_nic().Gbps, f"nothing is known of NICs beside {device.name}"
    one, machine = usual.nic_Gbps, f"the usual machine of {device.name}"
    words = f"{machine} has {count} x {one:g} Gb/s for {size} GPU{'s' * (size > 1)}"
    if nics <= count:
        return one, words
    # More NICs than usual are parts of the usual ones: virtual functions, or ports of 100 Gb/s for one of 400.
    return one * count / nics, f"{words}: {count} x {one:g} / {nics} NICs of the file"


def _usual(
    nodes: int,
    fabric: Fabric | FabricSpec | None,
    accelerator: str | Accelerator | None,
    nic_Gbps: float | None,
    notes: list[str],
) -> Cluster:
    """Hosts of which only the fabric is known: the accelerator's usual machine on each."""
    if not isinstance(fabric, Fabric):
        raise InputError("no node file", expected="a file of one machine, such as the output of nvidia-smi topo -m")
    device, count = labelled(fabric, accelerator, notes)
    usual = known.node(device.name)
    base = presets.machines(device, nodes, count or (usual.devices if usual else 1))
    size = base.devices_per_node
    trays = fabrics.trays(fabric, device, nodes, size, notes)
    island = size * trays if trays > 1 else min(base.island_size, size)
    kept = [note for note in base.notes if not note.startswith("trays are assumed")]
    taken = f"{size} x {device.name}, as labelled, and else" if count else f"the usual {size} x {device.name}"
    rest = " usual" if count else ""
    notes = [*kept, *notes, f"no node file: each host is taken as {taken}{rest}"]
    if usual and usual.domain and trays == 1:
        notes.append(f"{_name(fabric.source)} names no NVLink domain: each host is taken as an island of its own")
    number, nic_Bps = base.nics_per_node, base.nic_Bps
    if number and nic_Gbps is not None:
        nic_Bps = nic_Gbps * 1e9 / 8
    kind, over = fabrics.network(fabric, nodes, size, number, notes)
    return msgspec.structs.replace(
        base, island_size=island, nic_Bps=nic_Bps, fabric=kind, oversubscription=over,
        source=f"{fabric.source} ({fabric.format})", notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip

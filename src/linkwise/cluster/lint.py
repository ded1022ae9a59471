"""What hurts in a machine or a cluster: each finding with the file's own words, what it costs, and what to do.

Rules judge only what a file states. A finding that rests on something the file may hide is not `sure`.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from linkwise.cluster import inside
from linkwise.cluster.as_machine import machine_of
from linkwise.cluster.topology import Machine, PathClass, pair
from linkwise.cluster.types import Accelerator, Cluster
from linkwise.core.schema import Frozen

_ORDER = {path: at for at, path in enumerate(PathClass)}
# NCCL lets a NIC read GPU memory directly up to here (NCCL_NET_GDR_LEVEL's default); P2C is the same over C2C, where a
# NIC of the GPU's own CPU counts (NCCL_NET_GDR_C2C, 1 by default since 2.27; graph/paths.cc ncclTopoCheckGdr).
_DIRECT = (PathClass.PIX, PathClass.PXB, PathClass.P2C, PathClass.C2C, PathClass.LOC)


class Finding(Frozen, frozen=True, kw_only=True):
    """rule: its stable name. evidence: the file's own words. sure: False when the file may hide what would clear it."""

    rule: str
    what: str
    evidence: str
    consequence: str
    remedy: str
    sure: bool = True


def lint(value: Machine | Cluster, accelerator: Accelerator | None = None) -> tuple[Finding, ...]:
    """Everything that hurts, worst first. accelerator: what the machine's GPUs are, where its file does not say."""
    if isinstance(value, Machine):
        return tuple(finding for rule in _RULES for finding in rule(value, accelerator))
    found = list(_network(value))
    if value.detail is not None:
        # The notes of its files that say one end contradicts the other; they are not kept by node.
        notes = tuple(n for n in value.notes if any(rule.search(n) for rule in (_ONE_SIDED, _ENDS_DIFFER, _CUT)))
        found += lint(machine_of(value, -1, notes), value.accelerator)
        for node in value.odd_nodes:
            for finding in lint(machine_of(value, node, ()), value.accelerator):
                found.append(msgspec.structs.replace(finding, what=f"node {node}: {finding.what}"))
    return tuple(found)


def _word(machine: Machine, a: str, b: str) -> str:
    """The file's own word for a pair."""
    key = pair(a, b)
    return machine.raw.get(key) or (machine.paths[key].value if key in machine.paths else "-")


def _ids(gpus: list[str]) -> str:
    return ", ".join(gpus) if len(gpus) <= 8 else f"{', '.join(gpus[:8])} and {len(gpus) - 8} more"


def _said(words: list[str]) -> str:
    """The first eight pieces of evidence, and how many more there are."""
    return "; ".join(words[:8]) + (f"; {len(words) - 8} more" if len(words) > 8 else "")


def _off_nvlink(machine: Machine, _: Accelerator | None) -> Iterator[Finding]:
    found, gpus = inside.scaleup(machine), inside.gpus(machine)
    totals = [found.total(at) for at in range(len(gpus))]
    for gpu, total in zip(gpus, totals, strict=True):
        peers = [other.id for other in gpus if other is not gpu]
        said = [
            f"{gpu.id} {peer} {_word(machine, gpu.id, peer)}" for peer in peers if pair(gpu.id, peer) in machine.paths
        ]
        if total or not any(totals) or (machine.partial and not said):
            continue
        yield Finding(
            rule="gpu-off-nvlink",
            what=f"{gpu.id} is off NVLink while {sum(map(bool, totals))} others are on it",
            evidence=_said(said) or f"no link record of {gpu.id}",
            consequence="a group with it runs over PCIe, some tens of GB/s, in place of NVLink; the others wait for it",
            remedy=f"leave {gpu.id} out of tensor parallel groups; look at nvidia-smi nvlink -s and the fabric manager",
        )


def _missing_links(machine: Machine, _: Accelerator | None) -> Iterator[Finding]:
    found, gpus = inside.scaleup(machine), inside.gpus(machine)
    into = inside.switched(found)
    totals = {gpu.id: into.get(at, 0) if into else found.total(at) for at, gpu in enumerate(gpus)}
    linked = [total for total in totals.values() if total]
    usual = Counter(linked).most_common(1)[0][0] if linked else 0
    short = [gpu for gpu, total in totals.items() if 0 < total < usual]
    odd = [gpu for gpu, total in totals.items() if total not in (0, usual)]
    # Half the GPUs with fewer links is how a machine is built; a quarter or less is something missing.
    if short and len(odd) <= max(1, len(linked) // 4):
        yield Finding(
            rule="missing-link-record",
            what=f"{_ids(short)} has fewer links than the others",
            evidence="; ".join(f"{gpu}: {totals[gpu]} links" for gpu in short) + f"; others: {usual}",
            consequence="every ring through it is as slow as its missing links make it",
            remedy="look at nvidia-smi nvlink -s (rocm-smi --showxgmierr): a link that is down needs a reset or repair",
        )
    yield from _unconfirmed(machine.notes)


# How readers word it: one end says other than the other of a scale-up link.
_ONE_SIDED = re.compile(
    r"lists none back|the fewer are taken|leads to .* not in this file: dropped|leads back to itself"
    r"|says (?:NV\d+|XGMI) of |says (?:NV\d+|XGMI): "
)
_ENDS_DIFFER = re.compile(r" says \S+ of .* says \S+: the worse is taken")


def _unconfirmed(notes: tuple[str, ...]) -> Iterator[Finding]:
    """What only one end of a pair says, as the reader noted it."""
    for note in notes:
        if _ONE_SIDED.search(note):
            yield Finding(
                rule="missing-link-record",
                what="a link record that no other end confirms",
                evidence=note,
                consequence="NCCL sees fewer links than there are, or a link that is not there",
                remedy="dump the topology again (NCCL_TOPO_DUMP_FILE); if it stays so, check the link itself",
            )
        elif _ENDS_DIFFER.search(note):
            yield Finding(
                rule="ends-disagree",
                what="two rows give one pair different path classes",
                evidence=note,
                consequence="one of them is wrong: the plan counts on the worse",
                remedy="read the topology again, whole; a matrix pasted from two machines or edited looks so",
            )


def _nearest(machine: Machine) -> dict[str, tuple[PathClass, tuple[str, ...]]]:
    """By GPU: the best path class to any NIC, and the NICs that have it."""
    nearest = {}
    for gpu in inside.gpus(machine):
        ways = {nic.id: way for nic in machine.nics if (way := machine.path(gpu.id, nic.id)) is not None}
        if ways:
            best = min(ways.values(), key=lambda way: _ORDER[way])
            nearest[gpu.id] = best, tuple(nic for nic, way in ways.items() if way is best)
    return nearest


def _ways_out(machine: Machine, gpus: list[str]) -> str:
    """The file's words for each GPU and the nearest of its NICs."""
    nearest = _nearest(machine)
    return _said([f"{gpu} {nearest[gpu][1][0]} {_word(machine, gpu, nearest[gpu][1][0])}" for gpu in gpus])


def _on_c2c(machine: Machine, accelerator: Accelerator | None) -> bool:
    """Whether GPUs reach their CPU over C2C (Grace). NCCL lets a NIC of that CPU read GPU memory (P2C), and nvidia-smi
    may call every path SYS."""
    return inside.own_memory(machine) or (accelerator is not None and accelerator.host_link == "c2c")


def _shared_nics(machine: Machine, _: Accelerator | None) -> Iterator[Finding]:
    users: dict[tuple[str, ...], list[str]] = {}
    for gpu, (best, nics) in _nearest(machine).items():
        if best is not PathClass.SYS:
            users.setdefault(nics, []).append(gpu)
    for nics, gpus in users.items():
        if len(gpus) > len(nics):
            yield Finding(
                rule="shared-nic",
                what=f"{_ids(gpus)} have {len(nics)} NIC{'s' * (len(nics) > 1)} between them: {', '.join(nics)}",
                evidence=_ways_out(machine, gpus),
                consequence=f"each gets {len(nics)}/{len(gpus)} of a NIC when all send (KV handoff, expert traffic)",
                remedy="place one sending rank per NIC, or count the NIC's bandwidth once for all of them",
            )


def _far_nics(machine: Machine, accelerator: Accelerator | None) -> Iterator[Finding]:
    c2c = _on_c2c(machine, accelerator)
    far = [gpu for gpu, (best, _) in _nearest(machine).items() if best is PathClass.SYS]
    if far:
        yield Finding(
            rule="nic-other-socket",
            what=f"every NIC is on another socket than {_ids(far)}",
            evidence=_ways_out(machine, far),
            consequence="all its network traffic crosses the socket interconnect, and GPUDirect RDMA is off by default",
            remedy="nvidia-smi may say SYS of every NIC beside Grace: read what NCCL sees (NCCL_TOPO_DUMP_FILE)"
            if c2c
            else "use a NIC of their own socket if there is one; else keep pp and KV handoff off these GPUs",
            sure=not c2c,
        )


def _no_gpudirect(machine: Machine, accelerator: Accelerator | None) -> Iterator[Finding]:
    off = [gpu.id for gpu in inside.gpus(machine) if gpu.gdr is False]
    nics = [nic.id for nic in machine.nics if nic.gdr is False]
    if off or (nics and len(nics) == len(machine.nics)):
        parts = off if off else nics
        yield Finding(
            rule="no-gpudirect",
            what=f"GPUDirect RDMA is off on {_ids(parts)}",
            evidence=f'gdr="0" on {_ids(parts)}',
            consequence="what goes over the NIC is copied through host memory: more latency, twice the PCIe traffic",
            remedy="load nvidia-peermem (or use DMA-BUF), and check that IOMMU and ACS do not forbid peer traffic",
        )
        return
    far = [gpu for gpu, (best, _) in _nearest(machine).items() if best not in _DIRECT]
    if far and not _on_c2c(machine, accelerator):  # there, a NIC beyond the GPU's own CPU is nic-other-socket
        yield Finding(
            rule="no-gpudirect",
            what=f"no NIC shares a PCIe switch with {_ids(far)}",
            evidence=_ways_out(machine, far),
            consequence="NCCL does not use GPUDirect RDMA beyond PXB by default: traffic goes through host memory",
            remedy="measure with NCCL_NET_GDR_LEVEL=SYS against the default; a NIC under the GPU's switch is the cure",
        )


def _peer_over_sockets(machine: Machine, accelerator: Accelerator | None) -> Iterator[Finding]:
    found, gpus = inside.scaleup(machine), inside.gpus(machine)
    home = inside.islands(machine, found)
    over = [
        (a.id, b.id)
        for at, a in enumerate(gpus)
        for to, b in enumerate(gpus[at + 1 :], at + 1)
        if home[at] != home[to] and machine.path(a.id, b.id) is PathClass.SYS
    ]
    if over:
        yield Finding(
            rule="peer-across-sockets",
            what=f"{len(over)} pairs of GPUs reach each other only across sockets",
            evidence=_said([f"{a} {b} {_word(machine, a, b)}" for a, b in over]),
            consequence="PCIe peer access across sockets is slow or off: NCCL copies through host memory",
            remedy="keep a tensor parallel group on one socket, and let pp or replicas cross",
            sure=found.links or not _may_hide(machine, accelerator),
        )
    refused = [key for key, word in machine.peer.items() if word not in ("OK", "U")]
    if refused:
        yield Finding(
            rule="no-peer-access",
            what=f"{len(refused)} pairs of GPUs have no peer access",
            evidence=_said([f"{key} {machine.peer[key]}" for key in refused]),
            consequence="every byte between them is copied through host memory",
            remedy="CNS: the chipset does not support it; check IOMMU and ACS, else plan for PCIe through the host",
        )


def _unequal_numa(machine: Machine, _: Accelerator | None) -> Iterator[Finding]:
    gpus = inside.gpus(machine)
    nodes = Counter(gpu.numa for gpu in gpus)
    order = sorted(n for n in nodes if n is not None)
    if len(order) == len(nodes) and len(set(nodes.values())) > 1:
        yield Finding(
            rule="unequal-numa",
            what=f"GPUs are spread {' + '.join(str(nodes[n]) for n in order)} over NUMA nodes",
            evidence="; ".join(f"NUMA {n}: {_ids([g.id for g in gpus if g.numa == n])}" for n in order),
            consequence="no equal groups fit the sockets: one crosses them, or shares its CPU with more GPUs",
            remedy="form groups of the size of the smaller side, or leave the odd GPUs to replicas of their own",
        )


def _foreign_cpus(machine: Machine, _: Accelerator | None) -> Iterator[Finding]:
    gpus = [gpu for gpu in inside.gpus(machine) if gpu.numa is not None]
    bare = [gpu for gpu in gpus if gpu.id not in machine.affinity]
    if bare and len(bare) < len(gpus) and machine.affinity:
        yield Finding(
            rule="no-local-cpu",
            what=f"no CPU near {_ids([gpu.id for gpu in bare])} is usable here",
            evidence=_said([f"{gpu.id}: NUMA {gpu.numa}, no CPU affinity" for gpu in bare]),
            consequence="their processes run on another socket: launches and host copies cross the interconnect",
            remedy="give the container or job CPUs of that NUMA node (cpuset), or leave those GPUs out",
        )


def _may_hide(machine: Machine, accelerator: Accelerator | None) -> bool:
    """A file without any NVLink that could be of a machine that has it: topo -mp, a static XML, hwloc without NVML."""
    shown = inside.scaleup(machine).links or not (machine.format == "smi" or inside.silent(machine))
    return not shown and (accelerator is None or accelerator.scaleup_Bps > 0)


def _hidden_nvlink(machine: Machine, accelerator: Accelerator | None) -> Iterator[Finding]:
    gpus = machine.gpus
    # A link that one end alone shows is a finding of its own: such a view does show NVLink.
    if (
        len(gpus) < 2
        or not machine.paths
        or inside.scaleup(machine).links
        or any(map(_ONE_SIDED.search, machine.notes))
    ):
        return
    said = next((note for note in machine.notes if "-mp shows PCIe alone" in note), "")
    has = accelerator is not None and accelerator.scaleup_Bps > 0
    if said or has or _may_hide(machine, accelerator):
        a, b = inside.gpus(machine)[:2]
        yield Finding(
            rule="view-hides-nvlink",
            what="the file shows PCIe paths only"
            + (f", but {accelerator.name} has NVLink" if has and accelerator else ""),
            evidence=said or f"{a.id} {b.id} {_word(machine, a.id, b.id)}; no NVLink anywhere",
            consequence="if the GPUs do have NVLink, every bandwidth planned from this file is far too low",
            remedy="read the output of nvidia-smi topo -m, which shows NVLink (-mp never does)",
            sure=bool(said) or has,
        )


_NOT_READ = re.compile(r"another matrix, of \d+ devices: not read")


def _untold(machine: Machine, _: Accelerator | None) -> Iterator[Finding]:
    """What the file does not let anyone judge: peer status without paths, and further matrices that are not read."""
    if machine.peer and not machine.paths and not inside.scaleup(machine).links and len(machine.gpus) > 1:
        key = next(iter(machine.peer))
        yield Finding(
            rule="no-paths",
            what="the file shows peer access only: neither NVLink nor PCIe paths",
            evidence=f"{key} {machine.peer[key]}; no path class anywhere",
            consequence="what the links between GPUs and to NICs cost cannot be judged from it",
            remedy="read the output of nvidia-smi topo -m, alone or with this one",
            sure=False,
        )
    yield from _cut(machine)
    for note in filter(_NOT_READ.search, machine.notes):
        yield Finding(
            rule="matrix-not-read",
            what="the file holds another matrix, which is not judged",
            evidence=note,
            consequence="what hurts in that machine is not among these findings",
            remedy="put each machine's matrix into a file of its own, and lint each",
            sure=False,
        )


def _cut(machine: Machine) -> Iterator[Finding]:
    """What a file that was cut no longer says."""
    gpus, nics = [gpu.id for gpu in inside.gpus(machine)], [nic.id for nic in machine.nics]
    open_ended = machine.format == "smi" and not machine.peer
    pairs = [(a, b) for at, a in enumerate(gpus) for b in gpus[:at] if machine.path(a, b) is None]
    blind = [gpu for gpu in gpus if any(machine.path(gpu, nic) is None for nic in nics)]
    if not (machine.partial or (open_ended and (pairs or blind))):
        return
    ends = {end for pair in pairs for end in pair}
    lost = [f"no path between {_ids([gpu for gpu in gpus if gpu in ends])}"] if pairs else []
    lost += [f"no path from {_ids(blind)} to every NIC"] if blind else []
    lines = [note for note in machine.notes if _LINE.match(note) or _CUT.search(note)]
    yield Finding(
        rule="cut",
        what="the file was cut: " + ("; ".join(lost) or "rows or columns are missing; each pair of GPUs is in it"),
        evidence=_said(lines) or f"{len(gpus)} GPUs, {len(machine.paths)} pairs",
        consequence="what hurts there is not among these findings",
        remedy="read the whole output of nvidia-smi topo -m (rocm-smi --showtopo)",
        sure=False,
    )


_LINE = re.compile(r"lines? \d+")
_CUT = re.compile(" was cut: ")


def _network(cluster: Cluster) -> Iterator[Finding]:
    if cluster.nodes > 1 and cluster.oversubscription > 1:
        yield Finding(
            rule="oversubscribed",
            what=f"the fabric's core carries 1/{cluster.oversubscription:g} of what the nodes can send",
            evidence=f"fabric {cluster.fabric}, oversubscription {cluster.oversubscription:g}",
            consequence="traffic between leaves gets that share of a NIC when all nodes send",
            remedy="keep groups that send much under one leaf, and let replicas cross the core",
        )
    if (
        cluster.nodes > 1
        and cluster.island_size < cluster.size
        and 0 < cluster.nics_per_node < cluster.devices_per_node
    ):
        if cluster.detail is not None and cluster.detail.nic_names:
            return  # said GPU by GPU
        yield Finding(
            rule="shared-nic",
            what=f"{cluster.devices_per_node} devices of a node share {cluster.nics_per_node} NICs",
            evidence=f"nics: {cluster.nics_per_node}, devices_per_node: {cluster.devices_per_node}",
            consequence="each gets its share of a NIC when all send",
            remedy="keep tp and ep inside a node; cross nodes with pp or replicas",
        )


_RULES: tuple[Callable[[Machine, Accelerator | None], Iterator[Finding]], ...] = (
    _off_nvlink,
    _missing_links,
    _hidden_nvlink,
    _shared_nics,
    _far_nics,
    _no_gpudirect,
    _peer_over_sockets,
    _unequal_numa,
    _foreign_cpus,
    _untold,
)

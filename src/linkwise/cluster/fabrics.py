"""What is between nodes: as a user says it, or as a fabric's file shows it."""

from collections import Counter

from linkwise.cluster import known, presets
from linkwise.cluster.topology import Fabric
from linkwise.cluster.types import Accelerator
from linkwise.core.errors import InputError
from linkwise.core.schema import Frozen

# What names the cables themselves; a scheduler's file only says which switch a host is under.
_PHYSICAL = ("ibnetdiscover", "topograph-netq")


class FabricSpec(Frozen, frozen=True, kw_only=True):
    """What a user says of the fabric: rail (NIC i of every node on switch i), fat-tree, or nvl (one NVLink domain over
    all nodes, which are trays). oversubscription >= 1."""

    kind: str
    oversubscription: float = 1.0

    @classmethod
    def parse(cls, text: str) -> "FabricSpec":
        """`rail`, `fat-tree:2`, `nvl`. Raises InputError."""
        kind, colon, ratio = text.strip().lower().partition(":")
        try:
            over = float(ratio) if colon else 1.0
        except ValueError:
            over = 0.0
        if kind not in ("rail", "fat-tree", "nvl") or not 1 <= over <= 1000 or (kind == "nvl" and colon):
            raise InputError(
                f"{text[:40]!r}",
                where="--fabric",
                expected="rail, fat-tree or nvl; fat-tree:2 is oversubscribed 2 to 1",
            )
        return cls(kind=kind, oversubscription=over)


def trays(fabric: Fabric | FabricSpec | None, device: Accelerator, nodes: int, size: int, notes: list[str]) -> int:
    """Nodes of `size` devices that share one NVLink domain. Raises InputError for a domain that nobody builds."""
    most = known.domains().get(device.name, 0) if device.scaleup_Bps else 0
    if isinstance(fabric, FabricSpec):
        if fabric.kind != "nvl" or nodes == 1:
            return 1
        if not most:
            have = ", ".join(f"{name} ({count} GPUs)" for name, count in known.domains().items())
            raise InputError(
                f"{device.name} has no NVLink between nodes",
                where="--fabric nvl",
                expected=f"an accelerator that has it: {have}; or --fabric rail or fat-tree",
            )
        return _domain(nodes, size, most, device, "--fabric nvl")
    sizes = {len(members) for members in fabric.domains.values()} if fabric else set()
    if fabric is None or max(sizes, default=1) == 1:
        return 1
    if not most:
        notes.append(
            f"{fabric.source.rpartition('/')[2]}: domains are not taken as NVLink between hosts: {device.name} has none"
        )
        return 1
    outside = len(fabric.hosts) - len({host for members in fabric.domains.values() for host in members})
    if outside:
        raise InputError(
            f"{outside} hosts are in no NVLink domain while others share one",
            where=fabric.source,
            expected="every host in a domain, or none",
        )
    together = min(*sizes, nodes)
    if len(sizes) > 1 or nodes % together:
        raise InputError(
            f"NVLink domains of {', '.join(map(str, sorted(sizes)))} hosts for {nodes} nodes",
            where=fabric.source,
            expected="domains of one size that divides the nodes",
            hint="One domain alone: leave the fabric's file out, and give --fabric nvl --nodes N",
        )
    if list(fabric.hosts) != [host for members in fabric.domains.values() for host in members]:
        notes.append(f"nodes are numbered domain by domain, not in the order of {fabric.source.rpartition('/')[2]}")
    return _domain(together, size, most, device, fabric.source)


def _domain(nodes: int, size: int, most: int, device: Accelerator, where: str) -> int:
    if nodes * size > most:
        raise InputError(
            f"an NVLink domain of {nodes} nodes with {size} {device.name} each, {nodes * size} GPUs",
            where=where,
            expected=f"at most {most} GPUs",
        )
    return nodes


def network(
    fabric: Fabric | FabricSpec | None, nodes: int, size: int, nics: int, notes: list[str]
) -> tuple[str, float]:
    """Kind of the scale-out fabric and its oversubscription."""
    if nodes == 1 or not nics:
        return "none", 1.0
    usual = presets.fabric(nodes, size, nics)
    if isinstance(fabric, FabricSpec):
        return (usual if fabric.kind == "nvl" else fabric.kind), fabric.oversubscription
    if fabric is None:
        notes.append(f"the fabric is not given: {usual} without oversubscription assumed; --fabric says what it is")
        return usual, 1.0
    if fabric.format not in _PHYSICAL:
        notes.append(f"{fabric.source.rpartition('/')[2]} names no cables: {usual} without oversubscription assumed")
        return usual, 1.0
    over = oversubscription(fabric)
    kind = "rail" if _rails(fabric) else "fat-tree"
    notes.append(f"{fabric.source.rpartition('/')[2]}: {kind}, {over:g} to 1 by its cables")
    return kind, over


def oversubscription(fabric: Fabric) -> float:
    """Of the worst leaf: cables to hosts over cables upwards; 1 where there is nothing above the leaves."""
    hosts = set(fabric.hosts)
    down: Counter[str] = Counter()
    up: Counter[str] = Counter()
    for port in fabric.ports:
        if port.a in hosts:
            down[port.b] += port.count
        else:
            # Cables between switches of a tier (two leaves side by side) lead out of both.
            for leaf, other in ((port.a, port.b), (port.b, port.a)):
                if fabric.switches.get(leaf) == 1 and fabric.switches.get(other, 0) >= 1:
                    up[leaf] += port.count
    return max([1.0, *(down[leaf] / up[leaf] for leaf in up)])


def _rails(fabric: Fabric) -> bool:
    """Every host is on two leaves or more, and hosts that share one share all of them."""
    hosts = set(fabric.hosts)
    on: dict[str, set[str]] = {}
    for port in fabric.ports:
        if port.a in hosts:
            on.setdefault(port.a, set()).add(port.b)
    sets = {frozenset(leaves) for leaves in on.values()}
    return min((len(leaves) for leaves in sets), default=0) > 1 and sum(map(len, sets)) == len(set().union(*sets))

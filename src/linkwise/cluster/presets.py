"""Accelerators by name, and clusters by shorthand: `8xh100-sxm`, `4x8xh200-sxm`, `2xgb200-nvl72`."""

import re
from difflib import get_close_matches

from linkwise.cluster import known
from linkwise.cluster.types import MAX_DEVICES, Accelerator, Cluster, Constants
from linkwise.core.errors import InputError, InternalError
from linkwise.core.units import parse_bytes

FORM = "[NODESx]COUNTxNAME, such as 8xh100-sxm or 2x8xh100-sxm"
_SHORTHAND = re.compile(r"(?:(-?\d+)x)?(?:(-?\d+)x)?([a-z0-9][a-z0-9._-]*?)", re.ASCII)


def accelerator(name: str, *, where: str = "accelerator") -> Accelerator:
    """Facts of an accelerator by name or alias, in any case. Raises InputError with near matches."""
    canonical = known.names().get(name.strip().lower().replace("_", "-").replace(" ", "-"))
    if canonical is None:
        near = get_close_matches(name.lower(), known.names(), n=4, cutoff=0.5)
        raise InputError(
            f"unknown accelerator {name[:80]!r}",
            where=where,
            expected="one of " + ", ".join(near) if near else "a known name",
            hint="`linkwise hardware` lists all names; a YAML cluster file can state any other accelerator's facts",
        )
    return known.accelerator(canonical)


def hardware() -> list[Accelerator]:
    """Every known accelerator, for `linkwise hardware`: name, memory, bandwidth, FLOPS, links, source, confidence."""
    return [known.accelerator(name) for name in known.canonical_names()]


def aliases(name: str) -> tuple[str, ...]:
    """The other spellings of a canonical name."""
    return tuple(spelling for spelling, canonical in known.names().items() if canonical == name and spelling != name)


def constants() -> Constants:
    """The uncalibrated constants of the time model."""
    return known.constants()


def shorthand(text: str) -> Cluster:
    """A cluster from `[NODESx]COUNTxNAME`, or `[RACKSx]gb200-nvl72`. Raises InputError on anything else."""
    plain = text.strip().lower()
    match = _SHORTHAND.fullmatch(plain)
    if not match:
        raise InputError(f"{text[:80]!r} is not a cluster", where="cluster", expected=f"{FORM}, or a .yaml file")
    counts = [_count(digits, text) for digits in match.groups()[:2] if digits]
    name = match[3]
    if name in known.racks():
        if len(counts) > 1:
            raise InputError(f"{text!r}", where="cluster", expected=f"[RACKSx]{name}, such as 2x{name}")
        return _racks(name, counts[0] if counts else 1)
    device = accelerator(name, where=f"cluster {text[:80]!r}")
    if not counts:
        raise InputError(
            f"{text!r} says no count", where="cluster", expected=FORM, hint=f"For one device write 1x{device.name}"
        )
    nodes, count = (counts[0], counts[1]) if len(counts) == 2 else (1, counts[0])
    if nodes * count > MAX_DEVICES:
        raise InputError(f"{text!r} is {nodes * count} devices", where="cluster", expected=f"1..{MAX_DEVICES} devices")
    usual = _usual(device)
    if usual.domain and nodes == 1 and count > usual.most:
        nodes, count = _trays(device, count, usual)
    if count > usual.most:
        raise InputError(
            f"{count} {device.name} in one machine",
            where=f"cluster {text!r}",
            expected=f"1..{usual.most} per machine",
            hint=f"For several machines write {nodes * -(-count // usual.most)}x{usual.most}x{device.name}",
        )
    return machines(device, nodes, count)


def _usual(device: Accelerator) -> known.Node:
    usual = known.node(device.name)
    if usual is None:
        raise InternalError(f"{device.name} has no machine", where="nodes.yaml")
    return usual


def _count(digits: str, text: str) -> int:
    # Python refuses to convert very long digit strings; so do we, first and with a sentence.
    if len(digits) > 12 or not 1 <= int(digits) <= MAX_DEVICES:
        raise InputError(f"a count of {digits[:20]} in {text[:60]!r}", where="cluster", expected=f"1..{MAX_DEVICES}")
    return int(digits)


def _trays(device: Accelerator, count: int, usual: known.Node) -> tuple[int, int]:
    """A count beyond one tray, as whole trays of one rack."""
    if count % usual.most or count > usual.domain:
        raise InputError(
            f"{count} {device.name}",
            where="cluster",
            expected=f"a multiple of {usual.most} (one tray), at most {usual.domain} (one rack)",
            hint=f"For whole racks write 2x{device.name}-nvl72",
        )
    return count // usual.most, usual.most


def _racks(name: str, count: int) -> Cluster:
    rack = known.racks()[name]
    device = known.accelerator(rack.accelerator)
    return machines(device, count * rack.trays, _usual(device).devices, name=f"{count}x{name}" if count > 1 else name)


def machines(device: Accelerator, nodes: int, count: int, *, name: str = "") -> Cluster:
    """`nodes` usual machines of a known accelerator with `count` devices each; what is assumed stands in the notes."""
    usual = _usual(device)
    notes = [f"{device.name}: {device.note}"] if device.note else []
    island = island_size(device, nodes, count)
    nics, nic_Bps = usual.nics_for(count), usual.nic_Gbps * 1e9 / 8
    if usual.nics and not nics:
        nics = 1
    if usual.domain and nodes > 1 and not name:
        notes.append(f"trays are assumed to share racks of {usual.domain} devices")
    if nodes > 1 and not nics and island < nodes * count:
        assumed = known.assumed_nic()
        nics, nic_Bps = assumed.count, assumed.Gbps * 1e9 / 8
        notes.append(
            f"machines with {device.name} usually have no fast NIC: {assumed.count} x {assumed.Gbps:g} Gb/s Ethernet is"
            " assumed; state the real one in a YAML cluster file: nics: {count: 1, Gbps: 100}"
        )
    label = name or (f"{nodes}x{count}x{device.name}" if nodes > 1 else f"{count}x{device.name}")
    return Cluster(
        name=label,
        accelerator=device,
        nodes=nodes,
        devices_per_node=count,
        island_size=island,
        nics_per_node=nics,
        nic_Bps=nic_Bps,
        constants=known.constants(),
        fabric=fabric(nodes, count, nics),
        host_memory_bytes=parse_bytes(usual.host_memory),
        numa_per_node=min(usual.numa, count),
        source=f"preset; machine: {usual.source}",
        notes=tuple(notes),
    )


def island_size(device: Accelerator, nodes: int, count: int) -> int:
    """Devices of one scale-up domain in the usual machine (1 without scale-up links)."""
    if not device.scaleup_Bps:
        return 1
    if device.name.endswith("-bridged"):
        return min(2, count)
    usual = known.node(device.name)
    # Trays of a rack share its NVLink; partly filled ones still do.
    trays = min(nodes, usual.domain // usual.devices) if usual and usual.domain else 1
    return trays * count


def fabric(nodes: int, count: int, nics: int) -> str:
    """The usual fabric: rails where every device has a NIC of its own, else a leaf per machine."""
    if nodes == 1 or not nics:
        return "none"
    return "rail" if nics >= count else "fat-tree"

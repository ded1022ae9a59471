"""The fact files of this folder as typed values: read once, when first asked for."""

from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from linkwise.cluster.types import Accelerator, Constants
from linkwise.core.errors import InternalError
from linkwise.core.files import parse_yaml_object
from linkwise.core.schema import Frozen, convert
from linkwise.core.units import parse_bytes

# Bytes/s per direction of a x16 link by PCIe generation: lanes x GT/s x encoding.
PCIE_BPS = {3: 15.75e9, 4: 31.5e9, 5: 63e9, 6: 126e9}


class _Scaleup(Frozen, frozen=True, kw_only=True):
    kind: str
    GBps: float
    links: int
    mesh: bool = False
    peers: int = 0


class _Entry(Frozen, frozen=True, kw_only=True):
    """One accelerator as the file writes it. bridge: links that only a bridged pair has."""

    label: str
    memory: int | str
    memory_source: str
    nominal_GB: int
    hbm_TBps: float
    tflops: dict[str, float]
    source: str
    confidence: str
    aliases: tuple[str, ...] = ()
    driver_memory: int = 0
    scaleup: _Scaleup | None = None
    bridge: _Scaleup | None = None
    pcie: int = 0
    host_GBps: float = 0.0
    host_link: str = "pcie"
    p2p: bool = True
    capability: int = 0
    note: str = ""


class Node(Frozen, frozen=True, kw_only=True):
    """The usual machine of an accelerator: devices and NICs of a full one, the most devices one holds.

    domain: devices of the scale-up domain when it spans machines (a rack of trays), else 0.
    """

    devices: int
    most: int
    nics: int
    nic_Gbps: float
    numa: int
    source: str
    host_memory: str = "0B"
    domain: int = 0

    def nics_for(self, devices: int) -> int:
        """NICs that come with `devices` of the machine: in proportion where each device has its own."""
        return self.nics * devices // self.devices if self.nics >= self.devices else self.nics


class Rack(Frozen, frozen=True, kw_only=True):
    """A whole scale-up domain under a name of its own."""

    accelerator: str
    trays: int


class Nic(Frozen, frozen=True, kw_only=True):
    """A number of NICs and the line rate of one."""

    count: int
    Gbps: float


def _document(name: str) -> dict[str, Any]:
    text = files("linkwise.cluster").joinpath("facts", name).read_text("utf-8")
    return parse_yaml_object(text, where=name)


class _Accelerators(Frozen, frozen=True, kw_only=True):
    facts_version: int
    sources: dict[str, str]
    accelerators: dict[str, _Entry]


@cache
def _catalogue() -> _Accelerators:
    return convert(_document("accelerators.yaml"), _Accelerators, where="accelerators.yaml")


@cache
def names() -> dict[str, str]:
    """Every name and alias, lower case, to its canonical name."""
    table: dict[str, str] = {}
    for name, entry in _catalogue().accelerators.items():
        for spelling in (name, *entry.aliases):
            if table.setdefault(spelling, name) != name:
                raise InternalError(f"{spelling!r} names two accelerators", where="accelerators.yaml")
        if entry.bridge:
            for spelling in (name, *entry.aliases):
                table[f"{spelling}-bridged"] = f"{name}-bridged"
    return table


def accelerator(canonical: str) -> Accelerator:
    """Facts of an accelerator by canonical name; `-bridged` = with the links of a bridged pair."""
    base = canonical.removesuffix("-bridged")
    entry = _catalogue().accelerators[base]
    bridged = base != canonical
    scaleup = entry.bridge if bridged else entry.scaleup
    return Accelerator(
        name=canonical,
        label=entry.label + (", bridged pair" if bridged else ""),
        memory_bytes=entry.memory if isinstance(entry.memory, int) else parse_bytes(entry.memory),
        memory_source=entry.memory_source,
        driver_memory_bytes=entry.driver_memory,
        nominal_GB=entry.nominal_GB,
        hbm_Bps=entry.hbm_TBps * 1e12,
        flops={dtype: value * 1e12 for dtype, value in entry.tflops.items()},
        scaleup_Bps=scaleup.GBps * 1e9 if scaleup else 0.0,
        scaleup_links=scaleup.links if scaleup else 0,
        scaleup_kind=scaleup.kind if scaleup else "",
        scaleup_mesh=bridged or bool(scaleup and scaleup.mesh),
        scaleup_peers=1 if bridged else scaleup.peers if scaleup else 0,
        pcie_Bps=entry.host_GBps * 1e9 if entry.host_GBps else PCIE_BPS.get(entry.pcie, 0.0),
        host_link=entry.host_link,
        p2p=entry.p2p,
        capability=entry.capability,
        source=_spell_out(entry.source, _catalogue().sources),
        confidence=entry.confidence,
        note=_note(base, entry, bridged),
    )


def _note(name: str, entry: _Entry, bridged: bool) -> str:
    parts = [_spell_out(entry.note, _catalogue().sources)] if entry.note else []
    if entry.bridge and not bridged:
        parts.append(f"PCIe only; write {name}-bridged where pairs carry an NVLink bridge")
    return "; ".join(parts)


def _spell_out(source: str, abbreviations: dict[str, str]) -> str:
    """A source with the file's abbreviations written out."""
    return "; ".join(abbreviations.get(part.strip(), part.strip()) for part in source.split(";"))


def canonical_names() -> tuple[str, ...]:
    """The accelerators of the fact file, in its order, without bridged variants."""
    return tuple(_catalogue().accelerators)


class _Machines(Frozen, frozen=True, kw_only=True):
    facts_version: int
    assumed_nic: Nic
    sources: dict[str, str]
    nodes: dict[str, Node]
    racks: dict[str, Rack]


@cache
def _machines() -> _Machines:
    file = convert(_document("nodes.yaml"), _Machines, where="nodes.yaml")
    nodes = {
        name: msgspec.structs.replace(entry, source=_spell_out(entry.source, file.sources))
        for name, entry in file.nodes.items()
    }
    return msgspec.structs.replace(file, nodes=nodes)


def node(name: str) -> Node | None:
    """The usual machine of an accelerator by name or alias; None for one that is not known."""
    canonical = names().get(name.lower())
    return _machines().nodes[canonical.removesuffix("-bridged")] if canonical else None


def domains() -> dict[str, int]:
    """Accelerators with NVLink between machines, and the devices of the largest domain (source: nodes.yaml)."""
    return {name: entry.domain for name, entry in _machines().nodes.items() if entry.domain}


def racks() -> dict[str, Rack]:
    """Racks by name."""
    return dict(_machines().racks)


def assumed_nic() -> Nic:
    """What a machine without a usual NIC is given when several must talk; always said in the cluster's notes."""
    return _machines().assumed_nic


class _Figure(Frozen, frozen=True, kw_only=True):
    value: float
    source: str


class _Pair(Frozen, frozen=True, kw_only=True):
    value: tuple[float, float]
    source: str


class _ConstantsFile(Frozen, frozen=True, kw_only=True):
    facts_version: int
    label: str
    hbm_efficiency: _Figure
    flops_efficiency: _Figure
    kernel_us_per_layer: _Figure
    step_overhead_us: _Figure
    host_us_per_layer: _Figure
    link_efficiency: dict[str, _Figure]
    latency_us: dict[str, _Pair]


@cache
def constants() -> Constants:
    """The uncalibrated constants, each with its source."""
    file = convert(_document("constants.yaml"), _ConstantsFile, where="constants.yaml")
    single = {name: figure for name in file.__struct_fields__ if isinstance(figure := getattr(file, name), _Figure)}
    sources = {name: figure.source for name, figure in single.items()}
    sources |= {f"link_efficiency.{kind}": figure.source for kind, figure in file.link_efficiency.items()}
    sources |= {f"latency_us.{key}": pair.source for key, pair in file.latency_us.items()}
    return Constants(
        label=file.label,
        link_Bps={},
        link_efficiency={kind: figure.value for kind, figure in file.link_efficiency.items()},
        latency_us={key: pair.value for key, pair in file.latency_us.items()},
        sources=sources,
        **{name: figure.value for name, figure in single.items()},
    )

"""hwloc's XML (`lstopo topo.xml`), versions 1 to 3: PCI devices under NUMA nodes, and NVLinks where NVML was there.

GPUs and NICs are told by PCI class and by the OS devices hwloc hangs on them. A physical PCI switch is two bridges in a
row (its upstream and one downstream port); as NCCL does, every second bridge from the device upwards counts, so that a
switch counts once and a root port not at all.
"""

import re
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal

from linkwise.cluster.readers import paths, rates, xml
from linkwise.cluster.readers.base import MAX_NUMA_NODES, bus_id, check_devices, cpu_list
from linkwise.cluster.topology import Machine, Part, Wire
from linkwise.core.errors import InputError

FORMAT = "hwloc"
# OS device types: numbers up to version 2, bits since version 3.
NETWORK, OPENFABRICS, COPROCESSOR = "network", "openfabrics", "coprocessor"
_OS_TYPES_V2 = {"2": {NETWORK}, "3": {OPENFABRICS}, "5": {COPROCESSOR}}
_OS_BITS_V3 = {8: COPROCESSOR, 16: NETWORK, 32: OPENFABRICS}
GPU_MAKERS = ("10de", "1002", "8086")
_TYPE = re.compile(r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\].*", re.IGNORECASE)
# MB/s of one NVLink by generation as hwloc writes it; a Blackwell GPU's model name tells 50 from 2 x 25.
_NVLINK_MBPS = (25_000, 20_000)
_BLACKWELL = re.compile(r"\bG?B[123]\d\d\b")
MAX_MATRIX = 256


def recognises(text: str) -> bool:
    """Whether the outermost element is hwloc's."""
    return xml.root_tag(text) == "topology"


def read(text: str, *, where: str) -> Machine:
    """A machine. Raises InputError with the line for what is cut, malformed or hostile."""
    root = xml.parse(text, where=where)
    machines = [child for child in root.children if child.tag == "object"]
    if root.tag != "topology" or not machines:
        raise InputError(f"no <object> in <{root.tag[:40]}>", where=where, expected="hwloc's <topology>")
    walk = _Walk(where, version3=root.get("version").startswith("3"))
    for machine in machines:
        walk.nodes(machine, ())
    for machine in machines:
        walk.object(machine, _Spot())
    walk.number()
    for distances in root.children:
        walk.distances(distances)
    # The memory of a GPU can be a NUMA node too: it has no CPUs, and no link between sockets.
    for a, b in combinations([node for node, cpus in walk.numas.items() if cpus], 2):
        walk.wires.append(Wire(a=f"numa{a}", b=f"numa{b}", kind="smp", nccl_Bps=rates.smp_Bps("", *walk.cpu_model)))
    return Machine(
        format=FORMAT,
        source=where,
        parts=tuple(walk.parts),
        wires=tuple(walk.wires),
        paths=paths.all_classes(walk.parts, walk.wires, walk.places),
        affinity=walk.affinity,
        notes=tuple(walk.notes),
    )


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where the walk is: NUMA node, host bridge, bridges from there down as (part id, upstream speed)."""

    numa: int | None = None
    root: str = ""
    bridges: tuple[tuple[str, float | None], ...] = ()


@dataclass(slots=True)
class _Device:
    kind: Literal["gpu", "nic"]
    bus: str
    spot: _Spot
    speed: float | None
    names: dict[str, set[str]]
    model: str
    handles: set[str]
    id: str = ""


@dataclass(slots=True)
class _Walk:
    where: str
    version3: bool
    parts: list[Part] = field(default_factory=list)
    wires: list[Wire] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    places: dict[str, paths.Place] = field(default_factory=dict)
    affinity: dict[str, str] = field(default_factory=dict)
    numas: dict[int, str] = field(default_factory=dict)
    devices: list[_Device] = field(default_factory=list)
    handles: dict[str, str] = field(default_factory=dict)
    bridges: dict[str, Part] = field(default_factory=dict)
    cpu_model: tuple[str, int] = ("", 0)
    roots: int = 0
    alone: str = ""

    def refuse(self, element: xml.Element, what: str, expected: str) -> InputError:
        return InputError(f"line {element.line}: {what}", where=self.where, expected=expected)

    def nodes(self, element: xml.Element, packages: tuple[str, ...]) -> None:
        """NUMA nodes with their CPUs, the handle of the package each is alone in, and the CPU's model."""
        infos = _infos(element)
        if "CPUVendor" in infos and not self.cpu_model[0]:
            number = infos.get("CPUModelNumber", "")
            self.cpu_model = (infos["CPUVendor"], int(number) if re.fullmatch(r"\d{1,5}", number) else 0)
        if element.get("type") in ("Package", "Socket"):
            packages = (*packages, f"Package:{element.get('gp_index')}")
        if element.get("type") == "NUMANode":
            number = element.get("os_index", "0")
            if not re.fullmatch(r"\d{1,5}", number) or int(number) in self.numas:
                raise self.refuse(element, f"NUMA node {number[:40]!r}", "each NUMA node once, by its number")
            if len(self.numas) == MAX_NUMA_NODES:
                raise self.refuse(element, "one NUMA node too many", f"at most {MAX_NUMA_NODES}")
            self.numas[int(number)] = cpu_list(element.get("cpuset"))
            self.parts.append(Part(id=f"numa{int(number)}", kind="cpu", index=int(number), numa=int(number)))
            for handle in packages:
                self.handles[handle] = f"numa{int(number)}"
        for child in element.all("object"):
            self.nodes(child, packages)

    def object(self, element: xml.Element, spot: _Spot) -> None:
        kind = element.get("type")
        if kind == "PCIDev":
            self.pci(element, spot)
            return
        if kind == "Bridge":
            spot = self.bridge(element, spot)
        elif kind == "NUMANode":
            spot = _Spot(numa=int(element.get("os_index", "0")))
        elif "nodeset" in element.attributes:
            spot = _Spot(numa=self.only_node(element.get("nodeset")))
        for child in element.all("object"):
            self.object(child, spot)

    def only_node(self, nodeset: str) -> int | None:
        """The one NUMA node of a set, None when it has several (or is empty)."""
        listed = cpu_list(nodeset)
        return int(listed) if listed.isdigit() else None

    def bridge(self, element: xml.Element, spot: _Spot) -> _Spot:
        if element.get("bridge_type").startswith("0"):
            self.roots += 1
            return _Spot(numa=spot.numa, root=f"root{self.roots}")
        bus = self.address(element)
        name = f"pci:{bus}"
        if name in self.bridges:
            raise self.refuse(element, f"PCI address {bus} twice", "each function once")
        self.bridges[name] = Part(id=name, kind="pci", numa=spot.numa, bus=bus, model=_type(element)[1])
        return _Spot(numa=spot.numa, root=spot.root, bridges=(*spot.bridges, (name, _speed(element))))

    def address(self, element: xml.Element) -> str:
        bus = bus_id(element.get("pci_busid"))
        if bus is None:
            raise self.refuse(
                element, f"pci_busid {element.get('pci_busid')[:40]!r}", "a PCI address such as 0000:17:00.0"
            )
        return bus

    def pci(self, element: xml.Element, spot: _Spot) -> None:
        bus, (code, ids) = self.address(element), _type(element)
        os_devices = [child for child in element.all("object") if child.get("type") == "OSDev"]
        names: dict[str, set[str]] = {}
        for device in os_devices:
            for what in self.os_types(device.get("osdev_type")):
                names.setdefault(what, set()).add(device.get("name"))
        handles = {f"PCIDev:{element.get('gp_index')}", *(f"OSDev:{device.get('gp_index')}" for device in os_devices)}
        if element.get("subtype") == "NVSwitch":
            number = sum(part.kind == "switch" for part in self.parts)
            part = Part(id=f"nvswitch{number}", kind="switch", index=number, numa=spot.numa, bus=bus, model=ids)
            self.parts.append(part)
            self.handles.update(dict.fromkeys(handles, part.id))
            return
        infos = {name: value for child in (element, *os_devices) for name, value in _infos(child).items()}
        kind = _kind(code, ids, set(names))
        if kind is not None:
            model = infos.get("GPUModel") or infos.get("PCIDevice") or ids
            self.devices.append(_Device(kind, bus, spot, _speed(element), names, model[:80], handles))

    def os_types(self, text: str) -> set[str]:
        if not self.version3:
            return _OS_TYPES_V2.get(text, set())
        bits = int(text) if re.fullmatch(r"\d{1,5}", text) else 0
        return {what for bit, what in _OS_BITS_V3.items() if bits & bit}

    def number(self) -> None:
        """Ids: GPUs by the driver's own numbers where the file has them, else as they come; NICs as they come."""
        gpus = [device for device in self.devices if device.kind == "gpu"]
        nics = [device for device in self.devices if device.kind == "nic"]
        if not self.numas:  # hwloc 1 writes no NUMA node when there is but one
            self.parts.append(Part(id="cpu0", kind="cpu", index=0))
        if len(self.numas) < 2:
            self.alone = f"numa{next(iter(self.numas))}" if self.numas else "cpu0"
        numbers = _driver_numbers(gpus)
        for position, device in enumerate(gpus):
            self.device(device, numbers[position] if numbers else position)
        if gpus and not numbers:
            self.notes.append("no GPU numbers in this file: GPUs are numbered in the order of the file, by PCI address")
        for position, device in enumerate(nics):
            self.device(device, position)
        self.parts.sort(key=lambda part: ("gpu", "nic", "switch", "pci", "cpu").index(part.kind) * 10**6 + part.index)
        check_devices(self.parts, where=self.where)
        lost = [device.id for device in self.devices if device.spot.numa is None]
        if lost and not self.alone:
            self.notes.append(f"no single NUMA node stated for {', '.join(lost[:8])}{' ...' if len(lost) > 8 else ''}")

    def device(self, device: _Device, number: int) -> None:
        spot = device.spot
        device.id = f"{device.kind}{number}"
        model = device.model
        if device.kind == "nic":
            names = sorted(device.names.get(OPENFABRICS) or device.names.get(NETWORK) or ())
            model = names[0] if names else model
        self.parts.append(
            Part(id=device.id, kind=device.kind, index=number, numa=spot.numa, bus=device.bus, model=model)
        )
        self.handles.update(dict.fromkeys(device.handles, device.id))
        cpu = self.alone if spot.numa is None else f"numa{spot.numa}"
        switches = spot.bridges[-2::-2]
        self.places[device.id] = paths.Place(switches=tuple(name for name, _ in switches), cpu=cpu, root=spot.root)
        if device.kind == "gpu" and spot.numa is not None and self.numas.get(spot.numa):
            self.affinity[device.id] = self.numas[spot.numa]
        below, speed = device.id, device.speed
        for name, upstream in switches:
            if not self.join(below, name, speed):
                return
            below, speed = name, upstream
        if cpu:
            self.join(below, cpu, speed)

    def join(self, below: str, above: str, speed: float | None) -> bool:
        """Wire a device or switch to what is above it; False when it already was, and so is all above."""
        known = below in self.bridges and any(part.id == below for part in self.parts)
        if below in self.bridges and not known:
            self.parts.append(self.bridges[below])
        if known:
            return False
        self.wires.append(Wire(a=below, b=above, kind="pcie", spec_Bps=speed))
        return True

    def distances(self, element: xml.Element) -> None:
        """NVLinkBandwidth and XGMIBandwidth: MB/s between GPUs, NVSwitches and CPUs."""
        name = element.get("name")
        if not element.tag.startswith("distances2") or name not in ("NVLinkBandwidth", "XGMIBandwidth"):
            return
        kind: Literal["nvlink", "xgmi"] = "nvlink" if name == "NVLinkBandwidth" else "xgmi"
        ends = " ".join(child.text for child in element.all("indexes")).split()
        values = " ".join(child.text for child in element.all("u64values")).split()
        if len(ends) > MAX_MATRIX or len(values) != len(ends) ** 2:
            raise self.refuse(element, f"{len(values)} values between {len(ends)} objects", "a square matrix")
        if not all(re.fullmatch(r"\d{1,12}", value) for value in values):
            raise self.refuse(element, "a bandwidth that is no number", "MB/s as integers")
        if element.get("type"):
            ends = [f"{element.get('type')}:{end}" for end in ends]
        ids = [self.handles.get(end) for end in ends]
        for (i, a), (j, b) in combinations(enumerate(ids), 2):
            forth, back = int(values[i * len(ends) + j]), int(values[j * len(ends) + i])
            if not forth or not back:
                continue
            if a is None or b is None or a == b:
                self.notes.append(
                    f"line {element.line}: a link of {forth} MB/s between {ends[i]} and {ends[j]}: not devices here"
                )
                continue
            self.wires.append(self.scaleup(a, b, kind, min(forth, back)))

    def scaleup(self, a: str, b: str, kind: Literal["nvlink", "xgmi"], mbps: int) -> Wire:
        models = " ".join(device.model for device in self.devices if device.id in (a, b))
        each = (50_000,) if _BLACKWELL.search(models) else _NVLINK_MBPS
        count = next((mbps // rate for rate in each if mbps % rate == 0), 0) if kind == "nvlink" else 1
        if not count:
            self.notes.append(f"{mbps} MB/s between {a} and {b} is no whole number of NVLinks: written as one")
        return Wire(a=a, b=b, kind=kind, count=count or 1, spec_Bps=mbps * 1e6)


def _infos(element: xml.Element) -> dict[str, str]:
    return {info.get("name"): info.get("value") for info in element.all("info")}


def _type(element: xml.Element) -> tuple[str, str]:
    """`(class, "vendor:device")` of pci_type, such as ("0302", "10de:2330"); empty strings when malformed."""
    match = _TYPE.fullmatch(element.get("pci_type"))
    return (match[1].lower(), f"{match[2]}:{match[3]}".lower()) if match else ("", "")


def _speed(element: xml.Element) -> float | None:
    """pci_link_speed is GB/s after line coding; 0 = not known."""
    text = element.get("pci_link_speed")
    value = float(text) if re.fullmatch(r"\d{1,5}(\.\d{1,9})?", text) else 0.0
    return value * rates.GB or None


def _kind(code: str, ids: str, os_types: set[str]) -> Literal["gpu", "nic"] | None:
    """GPU: a 3D controller or processing accelerator, or a display of a maker of GPUs that computes.

    Management displays (Matrox, ASPEED, a cloud's virtual VGA) are none, whatever OpenCL device hwloc put on them.
    """
    if (
        code in ("0302", "1200")
        or (code == "0300" and ids.startswith("10de"))
        or (code == "0380" and ids.startswith("1002"))
    ):
        return "gpu"
    if code in ("0300", "0380") and ids.startswith(GPU_MAKERS) and COPROCESSOR in os_types:
        return "gpu"
    return "nic" if code.startswith("02") or os_types & {NETWORK, OPENFABRICS} else None


def _driver_numbers(gpus: list[_Device]) -> list[int]:
    """The driver's number of each GPU, from the first naming that all of them have; [] when none does."""
    for naming in (r"nvml(\d{1,4})", r"rsmi(\d{1,4})", r"cuda(\d{1,4})", r"opencl\d+d(\d{1,4})"):
        found = []
        for gpu in gpus:
            matches = [re.fullmatch(naming, name) for name in sorted(gpu.names.get(COPROCESSOR, ()))]
            found.append(next((int(match[1]) for match in matches if match), -1))
        if found and -1 not in found and len(set(found)) == len(found):
            return found
    return []

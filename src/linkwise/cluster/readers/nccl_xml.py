"""NCCL's and RCCL's topology XML (`NCCL_TOPO_DUMP_FILE`, and the static files of cloud images).

The tree is cpu > pci > pci > gpu or nic > net, with nvlink, xgmi and c2c records under a gpu. Files that list PCI
functions only (NCCL fills in the rest at run time) read as such: GPUs and NICs by PCI class, without NVLinks.
"""

from dataclasses import dataclass, field
from typing import Literal

from linkwise.cluster.readers import paths, rates, xml
from linkwise.cluster.readers.base import MAX_NUMA_NODES, bus_id, check_devices, cpu_list
from linkwise.cluster.topology import Machine, Part, Wire
from linkwise.core.errors import InputError

FORMAT = "nccl_xml"
NVSWITCH_CLASS = "0x068000"
POWER9_BRIDGE_CLASS = "0x068001"
MAX_LINKS = 1024
Link = (
    tuple[float | None, float | None] | None
)  # of a PCI function to its parent, as `rates.pcie` has it; None = unsaid


def recognises(text: str) -> bool:
    """Whether the outermost element is NCCL's, a topology or a search graph."""
    return xml.root_tag(text) in ("system", "graphs")


def read(text: str, *, where: str) -> Machine:
    """A machine. Raises InputError with the line for what is cut, malformed or a search graph."""
    root = xml.parse(text, where=where)
    if root.tag == "graphs":
        raise InputError(
            f"an NCCL search graph (NCCL_GRAPH_DUMP_FILE): {len(root.all('graph'))} graphs of channels, no machine",
            where=where,
            expected="a topology, <system>",
            hint="NCCL_TOPO_DUMP_FILE=topo.xml writes one",
        )
    if root.tag != "system":
        raise InputError(f"outermost element <{root.tag}>", where=where, expected="<system>")
    walk = _Walk(where)
    if len(root.all("cpu")) > MAX_NUMA_NODES:
        raise InputError(f"{len(root.all('cpu'))} <cpu>", where=where, expected=f"at most {MAX_NUMA_NODES}")
    for cpu in root.all("cpu"):
        walk.cpu(cpu)
    if not walk.parts:
        raise InputError("no <cpu> in <system>", where=where, expected="NCCL's topology")
    walk.number()
    walk.links()
    return Machine(
        format=FORMAT,
        source=where,
        parts=tuple(walk.parts),
        wires=tuple(walk.wires),
        paths=paths.all_classes(walk.parts, walk.wires, walk.places),
        affinity=walk.affinity,
        notes=tuple(walk.notes),
    )


@dataclass(slots=True)
class _Cpu:
    """A <cpu> and what its devices need of it."""

    id: str
    host: str
    numa: int | None
    affinity: str
    speed: tuple[str, str, int]


@dataclass(slots=True)
class _Device:
    """A GPU or NIC before it has its number."""

    kind: Literal["gpu", "nic"]
    element: xml.Element
    bus: str
    cpu: _Cpu
    switches: tuple[str, ...]
    link: Link
    number: int = -1
    upstream: str = ""
    id: str = ""


@dataclass(slots=True)
class _Walk:
    where: str
    parts: list[Part] = field(default_factory=list)
    wires: list[Wire] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    places: dict[str, paths.Place] = field(default_factory=dict)
    affinity: dict[str, str] = field(default_factory=dict)
    cpus: list[_Cpu] = field(default_factory=list)
    devices: list[_Device] = field(default_factory=list)
    buses: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    unclassed: list[str] = field(default_factory=list)
    unstated: list[str] = field(default_factory=list)

    def refuse(self, element: xml.Element, what: str, expected: str) -> InputError:
        return InputError(f"line {element.line}: {what}", where=self.where, expected=expected)

    def whole(self, element: xml.Element, name: str, default: int, low: int, high: int) -> int:
        """An integer attribute; `default` when it is not there."""
        text = element.get(name)
        if not text:
            return default
        try:
            value = int(text, 16 if text.lower().startswith("0x") else 10) if len(text) <= 20 else high + 1
        except ValueError:
            value = high + 1
        if not low <= value <= high:
            raise self.refuse(element, f"<{element.tag}> {name}={text[:40]!r}", f"an integer in {low}..{high}")
        return value

    def cpu(self, element: xml.Element) -> None:
        numa = self.whole(element, "numaid", -1, -1, 4095)
        host = element.get("host_hash")
        hosts = list(dict.fromkeys([*(cpu.host for cpu in self.cpus), host]))
        name = f"numa{numa}" if numa >= 0 else "cpu"
        name = name if len(hosts) == 1 else f"host{hosts.index(host)}.{name}"
        if any(cpu.id == name for cpu in self.cpus):
            raise self.refuse(element, f"a second <cpu> with numaid {numa}", "one <cpu> per NUMA node and host")
        if len(hosts) == 2 and len({cpu.host for cpu in self.cpus}) == 1:
            self.notes.append(f"line {element.line}: a dump fused from several hosts; devices are numbered through")
        speed = (element.get("arch"), element.get("vendor"), self.whole(element, "modelid", 0, 0, 10**6))
        cpu = _Cpu(name, host, numa if numa >= 0 else None, cpu_list(element.get("affinity")), speed)
        self.cpus.append(cpu)
        self.parts.append(Part(id=name, kind="cpu", index=numa, numa=cpu.numa))
        for other in self.cpus[:-1]:
            if other.host == host:
                model = rates.smp_Bps(*speed)
                self.wires.append(Wire(a=other.id, b=name, kind="smp", nccl_Bps=model))
        self.below(element, cpu, (), "")

    def below(self, parent: xml.Element, cpu: _Cpu, switches: tuple[str, ...], fused: str) -> None:
        """What hangs on a CPU or a PCI switch. fused: the identity of that switch if its halves count as one."""
        for child in parent.children:
            if child.tag == "pci":
                self.pci(child, cpu, switches, fused)
            elif child.tag == "nic" and not switches:
                self.nic(child, "", cpu, (), None)

    def pci(self, element: xml.Element, cpu: _Cpu, switches: tuple[str, ...], fused: str) -> None:
        bus = bus_id(element.get("busid"))
        if bus is None:
            raise self.refuse(element, f"busid {element.get('busid')[:40]!r}", "a PCI address such as 0000:17:00.0")
        link = self.speed(element, bus)
        gpus, nics, below = element.all("gpu"), element.all("nic"), element.all("pci")
        self.once(element, bus, cpu, "gpu" if gpus else "nic" if nics else "pci")
        if len(gpus) + len(nics) > 1 or ((gpus or nics) and below):
            self.notes.append(f"line {element.line}: {bus} holds more than one device: the first GPU or card is read")
        if gpus:
            self.devices.append(_Device("gpu", gpus[0], bus, cpu, switches, link))
        elif nics:
            self.nic(nics[0], bus, cpu, switches, link)
        elif below or element.get("class").startswith("0x0604"):
            self.switch(element, bus, cpu, switches, fused, link)
        else:
            self.bare(element, bus, cpu, switches, link)

    def once(self, element: xml.Element, bus: str, cpu: _Cpu, kind: str) -> None:
        """An address used for two things of one kind makes link targets ambiguous; a hand-edited NIC does not."""
        seen = self.buses.setdefault((cpu.host, bus), set())
        if kind in seen:
            raise self.refuse(element, f"PCI address {bus} twice", "each function once")
        if seen:
            self.notes.append(f"line {element.line}: PCI address {bus} is used twice, here for a {kind}")
        seen.add(kind)

    def switch(
        self, element: xml.Element, bus: str, cpu: _Cpu, switches: tuple[str, ...], fused: str, link: Link
    ) -> None:  # fmt: skip
        identity = _broadcom(element)
        if identity and identity == fused:
            self.notes.append(f"PCI switch {bus} is part of {switches[0].removeprefix('pci:')}, as in NCCL (Broadcom)")
            self.below(element, cpu, switches, "")
            return
        name = self.unique(f"pci:{bus}", cpu)
        self.parts.append(Part(id=name, kind="pci", numa=cpu.numa, bus=bus, model=_ids(element)))
        self.plug(name, switches[0] if switches else cpu.id, link)
        self.below(element, cpu, (name, *switches), identity)

    def bare(self, element: xml.Element, bus: str, cpu: _Cpu, switches: tuple[str, ...], link: Link) -> None:
        """A PCI function without a record of what it is: by its class, if it has one."""
        kind = element.get("class")[:4].lower()
        if kind in ("0x03", "0x12"):
            self.devices.append(_Device("gpu", xml.Element("gpu", {}, element.line), bus, cpu, switches, link))
        elif kind == "0x02":
            self.devices.append(_Device("nic", xml.Element("net", {}, element.line), bus, cpu, switches, link))
        else:
            if not kind:
                self.unclassed.append(bus)
            name = self.unique(f"pci:{bus}", cpu)
            self.parts.append(Part(id=name, kind="pci", numa=cpu.numa, bus=bus, model=_ids(element)))
            self.plug(name, switches[0] if switches else cpu.id, link)

    def nic(self, element: xml.Element, bus: str, cpu: _Cpu, switches: tuple[str, ...], link: Link) -> None:
        """The network interfaces of a card; several of one card share its PCI link."""
        nets = element.all("net")
        upstream = ""
        if bus and len(nets) > 1:
            upstream = self.unique(f"pci:{bus}", cpu)
            self.parts.append(Part(id=upstream, kind="pci", numa=cpu.numa, bus=bus))
            self.plug(upstream, switches[0] if switches else cpu.id, link)
        for net in nets or [xml.Element("net", {}, element.line)]:
            number = self.whole(net, "dev", -1, -1, 4095)
            self.devices.append(_Device("nic", net, bus, cpu, switches, link, number, upstream))

    def speed(self, element: xml.Element, bus: str) -> Link:
        """A function's link to its parent; None when the file says nothing of it."""
        if "link_speed" not in element.attributes and "link_width" not in element.attributes:
            self.unstated.append(bus)
            return None
        for name in ("link_speed", "link_width"):
            if element.get(name).strip().startswith("-"):
                text = element.get(name)
                raise self.refuse(element, f"<{element.tag}> {name}={text[:40]!r}", "a number, 0 where none is known")
        spec, model, remarks = rates.pcie(element.get("link_speed"), element.get("link_width"))
        self.notes.extend(f"line {element.line}: {bus}: {remark}" for remark in remarks)
        return spec, model

    def unique(self, name: str, cpu: _Cpu) -> str:
        prefix = cpu.id.rpartition(".")[0]
        return f"{prefix}.{name}" if prefix else name

    def plug(self, name: str, parent: str, link: Link) -> None:
        spec, model = link or (None, None)
        self.wires.append(Wire(a=name, b=parent, kind="pcie", spec_Bps=spec, nccl_Bps=model))

    def number(self) -> None:
        """Give GPUs and NICs their ids: the tool's own numbers where they are all there and differ."""
        kinds: tuple[Literal["gpu", "nic"], ...] = ("gpu", "nic")
        for kind in kinds:
            found = [device for device in self.devices if device.kind == kind]
            for device in found:
                if kind == "gpu":
                    device.number = self.whole(device.element, "dev", -1, -1, 4095)
            given = [device.number for device in found]
            if -1 in given or len(set(given)) < len(given):
                self.renumber(kind, found, given)
            for device in sorted(found, key=lambda device: device.number):
                device.id = f"{kind}{device.number}"
                self.device(device)
        check_devices(self.parts, where=self.where)
        if self.unclassed:
            self.notes.append(
                f"{len(self.unclassed)} PCI functions without a class (first {self.unclassed[0]}): what they are, NCCL "
                "asks the system; the file does not say"
            )
        if self.unstated and len(self.unstated) > len(self.unclassed):
            self.notes.append(
                f"{len(self.unstated)} PCI functions without link speed and width: {self.unstated[0]} first"
            )

    def renumber(self, kind: str, found: list[_Device], given: list[int]) -> None:
        bare = all(number == -1 for number in given)
        if bare and kind == "gpu":
            found.sort(key=lambda device: (device.cpu.host, device.bus))
            self.notes.append("no <gpu> records: GPUs numbered by PCI address; NVLinks are not in this file")
        elif not bare:
            same = next((n for n in given if n >= 0 and given.count(n) > 1), None)
            why = f"{kind} {same} appears twice" if same is not None else f"some {kind}s have no number"
            self.notes.append(f"{why}: {kind}s are numbered in file order")
        for number, device in enumerate(found):
            device.number = number

    def device(self, device: _Device) -> None:
        element, cpu = device.element, device.cpu
        speed = self.whole(element, "speed", 0, -1, 10**8) if device.kind == "nic" else 0
        self.parts.append(
            Part(
                id=device.id,
                kind=device.kind,
                index=device.number,
                numa=cpu.numa,
                bus=device.bus,
                model=element.get("name") or _architecture(element),
                port_Bps=speed * 1e6 / 8 if speed > 0 else None,
                gdr={"0": False, "1": True}.get(element.get("gdr")),
            )
        )
        parent = device.upstream or (device.switches[0] if device.switches else cpu.id)
        self.plug(device.id, parent, None if device.upstream else device.link)
        if cpu.affinity and device.kind == "gpu":
            self.affinity[device.id] = cpu.affinity
        c2c = element.all("c2c")
        self.places[device.id] = paths.Place(
            switches=device.switches, cpu=cpu.id, host=cpu.host, c2c=bool(c2c) and device.kind == "gpu"
        )
        for record in c2c:
            count = self.whole(record, "count", 1, 1, MAX_LINKS)
            total = self.whole(record, "bw", 0, 0, 10**8) * count * 1e6  # bw: MB/s of one link
            self.wires.append(
                Wire(a=device.id, b=cpu.id, kind="c2c", count=count, spec_Bps=total or None, nccl_Bps=total or None)
            )

    def links(self) -> None:
        """nvlink and xgmi records: one wire for each two ends, however many records name it."""
        gpus = {(d.cpu.host, d.bus): d for d in self.devices if d.kind == "gpu"}
        records: dict[tuple[str, str], int] = {}
        switches: dict[str, str] = {}
        for device in gpus.values():
            for record in device.element.children:
                if record.tag not in ("nvlink", "xgmi"):
                    continue
                count = self.whole(record, "count", 1, 1, MAX_LINKS)
                target = self.target(device, record, gpus, switches)
                if target:
                    records[device.id, target] = records.get((device.id, target), 0) + count
        by_id = {device.id: device for device in gpus.values()}
        for (a, b), count in records.items():
            back = records.get((b, a))
            if b not in by_id or back is None or by_id[a].number < by_id[b].number:
                self.wires.append(self.scaleup(by_id[a], b, count, back if b in by_id else count))

    def target(
        self, device: _Device, record: xml.Element, gpus: dict[tuple[str, str], _Device], switches: dict[str, str]
    ) -> str:
        """The part a record leads to; "" with a note when there is none."""
        text, kind = record.get("target").strip().lower(), record.get("tclass").lower()
        bus = bus_id(text) or text
        peer = gpus.get((device.cpu.host, bus))
        if peer is device:
            self.notes.append(f"line {record.line}: {device.id}'s {record.tag} leads back to itself ({bus}): dropped")
            return ""
        if peer is not None:
            return peer.id
        if kind == POWER9_BRIDGE_CLASS:
            return device.cpu.id
        if kind == NVSWITCH_CLASS:
            # An address such as fffffff:ffff:ff stands for a switch NVML does not show; all of those are one.
            key = bus if bus_id(text) else "hidden"
            if key not in switches:
                switches[key] = f"nvswitch{len(switches)}"
                self.parts.append(
                    Part(id=switches[key], kind="switch", index=len(switches) - 1, bus=bus if key == bus else "")
                )
                if key == "hidden":
                    self.notes.append(f"line {record.line}: NVSwitch address {text[:40]!r} is a placeholder")
            return switches[key]
        self.notes.append(
            f"line {record.line}: {device.id}'s {record.tag} leads to {text[:40]!r}, not in this file: dropped"
        )
        return ""

    def scaleup(self, device: _Device, target: str, count: int, back: int | None) -> Wire:
        if back is None:
            self.notes.append(f"only {device.id} lists its {count} links to {target}; {target} lists none back")
        elif back != count:
            self.notes.append(
                f"{device.id} lists {count} links to {target}, {target} lists {back}: the fewer are taken"
            )
            count = min(count, back)
        gcn = device.element.get("gcn")
        # RCCL's sm is the number of compute units, not a compute capability.
        rate = rates.xgmi(gcn) if gcn else rates.nvlink(self.whole(device.element, "sm", 0, 0, 10**4) or None)
        spec, model = rate.bps(count)
        kind: Literal["xgmi", "nvlink"] = "xgmi" if gcn else "nvlink"
        return Wire(a=device.id, b=target, kind=kind, count=count, spec_Bps=spec, nccl_Bps=model)


def _broadcom(element: xml.Element) -> str:
    """Identity of a Broadcom switch whose two levels NCCL counts as one (generation 4 and 5 in base mode), or ""."""
    vendor, device, subvendor, subdevice = (
        element.get(name).lower() for name in ("vendor", "device", "subsystem_vendor", "subsystem_device")
    )
    if vendor != "0x1000" or subvendor != "0x1000":
        return ""
    fits = (device == "0xc010" and subdevice.startswith("0xa")) or (device == "0xc030" and subdevice.startswith("0x0"))
    return f"{device}:{subdevice}" if fits else ""


def _ids(element: xml.Element) -> str:
    """Vendor and device as hex, "15b3:197c", or ""."""
    vendor, device = element.get("vendor"), element.get("device")
    return f"{vendor.removeprefix('0x')}:{device.removeprefix('0x')}"[:32] if vendor and device else ""


def _architecture(gpu: xml.Element) -> str:
    """What a <gpu> says of itself: gfx942, sm90, or ""."""
    gcn, sm = gpu.get("gcn"), gpu.get("sm")
    if gcn:
        return f"gfx{gcn.removeprefix('gfx')}"[:32]
    return f"sm{sm}"[:32] if sm else ""

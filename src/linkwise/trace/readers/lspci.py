"""`lspci` listings: `-vvv` for access control (ACS) and links below their width, `-nn` for what is in the machine.

ACS on a bridge sends the traffic between two devices behind it through the root complex: GPUs beside each other, or a
GPU and its NIC, no longer reach each other directly.
"""

import re

from linkwise.trace.readers import shared
from linkwise.trace.readers.base import Reading, Source
from linkwise.trace.readers.shared import Block, Found, bus_id

FORMAT = "lspci"

_ADDRESS = r"((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
_DEVICE = re.compile(rf"^{_ADDRESS} ([A-Z0-9][\w /-]{{2,60}}?)(?: \[([0-9a-f]{{4}})\])?: (.{{1,300}})")
_IDS = re.compile(r"\[([0-9a-f]{4}):([0-9a-f]{4})\]")
# PCI classes; without -nn their names (pci.ids of the pciutils project).
_KINDS = {"0300": "gpu", "0302": "gpu", "1200": "gpu", "0200": "nic", "0207": "nic", "0604": "bridge", "0680": "switch"}
_NAMED = {
    "VGA compatible controller": "gpu", "3D controller": "gpu", "Processing accelerators": "gpu",
    "Ethernet controller": "nic", "Infiniband controller": "nic", "InfiniBand controller": "nic",
    "PCI bridge": "bridge", "Bridge": "switch",
}  # fmt: skip


def fits(title: str, head: str) -> bool:
    """Most of its unindented lines are those of devices."""
    lines = [line for line in head.splitlines()[:400] if line[:1].strip()]
    return bool(lines) and sum(1 for line in lines if _DEVICE.match(line)) * 2 > len(lines)


def recognises(source: Source) -> bool:
    """By the lines of devices."""
    return shared.recognised(source, fits)


def read(source: Source) -> Reading:
    """Never refuses what it recognises."""
    return shared.reading(source, facts)


def facts(block: Block, found: Found) -> None:
    """Setting `pcie_acs` of each bridge, device `pcie_downgraded`, a place of each GPU, NIC and NVSwitch."""
    device = kind = name = capable = ""
    detailed, hidden = 0, 0
    counts: dict[str, int] = {}
    for line, text in block.lines:
        row = text[: shared.MAX_LINE]
        if opened := _DEVICE.match(row):
            device, name, capable = bus_id(opened[1]), opened[4], ""
            kind = _KINDS.get(opened[3] or "", "") or _NAMED.get(opened[2].strip(), "")
            if kind == "switch" and "NVIDIA" not in name:  # NVSwitches are bridges of NVIDIA; others lead elsewhere
                kind = ""
            vendor = next((v for v in ("NVIDIA", "Mellanox", "AMD", "Broadcom", "Intel") if v in name), "other")
            if kind in {"gpu", "nic", "switch"}:
                kind = "" if kind == "gpu" and vendor not in {"NVIDIA", "AMD", "Intel"} else kind
            if kind in {"gpu", "nic", "switch"}:
                label = "nvswitch" if kind == "switch" else kind
                counts[f"{label} {vendor}"] = counts.get(f"{label} {vendor}", 0) + 1
                ids = _IDS.search(name)
                labels = {"product": name, "vendor": vendor, "id": f"{ids[1]}:{ids[2]}" if ids else ""}
                found.add("place", label, line=line, device=device, labels=labels)
            continue
        stripped = row.strip()
        detailed += stripped.startswith("LnkCap:")
        hidden += stripped == "Capabilities: <access denied>"
        if not device:
            continue
        if stripped.startswith("LnkCap:"):
            capable = _speed(stripped)
        elif stripped.startswith("LnkSta:") and "(downgraded)" in stripped and kind in {"gpu", "nic", "switch"}:
            _downgraded(found, line, device, kind, stripped, capable)
        elif stripped.startswith("ACSCtl:") and kind == "bridge":
            # Requests go up to the root complex when redirection is on, or when their source is checked there
            # (NVIDIA NCCL troubleshooting guide: ACSCtl must show SrcValid-).
            on = re.findall(r"(SrcValid|TransBlk|ReqRedir|CmpltRedir|UpstreamFwd)\+", stripped)
            labels = {"value": "on" if on else "off", "bits": ",".join(on), "product": name}
            found.add("setting", "pcie_acs", bool(on), line=line, device=device, labels=labels, text=stripped)
    for label, count in counts.items():
        what, vendor = label.split()
        found.add("place", "nvswitches" if what == "nvswitch" else f"{what}s", count, labels={"vendor": vendor})
    if hidden and not detailed:
        found.note("capabilities are hidden: lspci -vvv needs root to tell of access control and links")


def _speed(text: str) -> str:
    found = re.search(r"Speed ([\d.]+GT/s).*?Width (x\d+)", text)
    return f"{found[1]} {found[2]}" if found else ""


def _downgraded(found: Found, line: int, device: str, kind: str, text: str, capable: str) -> None:
    """Lanes missing are a fault; a low speed alone is also how a GPU without work saves power."""
    state = re.search(r"Speed ([\d.]+GT/s)( \(downgraded\))?.*?Width (x\d+)( \(downgraded\))?", text)
    if not state:
        return
    labels = {"speed": state[1], "width": state[3], "capable": capable, "of": kind}
    if state[4]:
        labels["what"] = "speed,width" if state[2] else "width"
        found.add("device", "pcie_downgraded", 1, line=line, device=device, labels=labels, text=text)
    elif state[2]:
        found.add("notice", "pcie_speed_low", line=line, device=device, labels=labels, text=text)

"""What nvidia-smi prints: `-q`, `--query-gpu=... --format=csv`, `nvlink -s`, `nvlink -e`, and its usual table.

Only a throttle reason in force becomes a fault. An idle GPU reports its software power cap as active and a PCIe link
of a low generation: the facts carry its performance state and use, so that a rule can tell.
"""

import re
from collections.abc import Iterator
from typing import Any

from linkwise.core.errors import InputError
from linkwise.trace.readers import shared
from linkwise.trace.readers.base import Reading, Source
from linkwise.trace.readers.log_time import Clock
from linkwise.trace.readers.shared import Block, Found, bus_id, number, placed

FORMAT = "nvidia-smi"

_QUERY = re.compile(r"^=+NVSMI LOG=+\s*$", re.MULTILINE)
_QUERY_GPU = re.compile(r"^GPU ([0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*$", re.MULTILINE)
_NVLINK_GPU = re.compile(r"^GPU (\d{1,4}): (.{1,100}) \(UUID: ([\w-]{1,64})\)\s*$", re.MULTILINE)
_NVLINK_LINK = re.compile(r"^[ \t]*Link \d{1,3}: ", re.MULTILINE)
_TABLE = re.compile(r"^\| NVIDIA-SMI [\d.]+ ", re.MULTILINE)
_XML = "<nvidia_smi_log>"

# Names of reasons in both spellings of the tool; of the query fields; and their bits in `.active` (nvml.h,
# nvmlClocksEventReason*). True: a fault; False: it is by choice or of no harm.
_REASONS = {
    "sw_power_cap": ("SW Power Cap", "sw_power_cap", 0x4, True),
    "hw_slowdown": ("HW Slowdown", "hw_slowdown", 0x8, True),
    "sync_boost": ("Sync Boost", "sync_boost", 0x10, True),
    "sw_thermal": ("SW Thermal Slowdown", "sw_thermal_slowdown", 0x20, True),
    "hw_thermal": ("HW Thermal Slowdown", "hw_thermal_slowdown", 0x40, True),
    "hw_power_brake": ("HW Power Brake Slowdown", "hw_power_brake_slowdown", 0x80, True),
    "gpu_idle": ("Idle", "gpu_idle", 0x1, False),
    "app_clocks": ("Applications Clocks Setting", "applications_clocks_setting", 0x2, False),
    "display_clock": ("Display Clock Setting", "display_clock_setting", 0x100, False),
}
_COUNTED = {  # section "Clocks Event Reasons Counters", in us
    "SW Power Capping": "sw_power_cap", "Sync Boost": "sync_boost", "SW Thermal Slowdown": "sw_thermal",
    "HW Thermal Slowdown": "hw_thermal", "HW Power Braking": "hw_power_brake",
}  # fmt: skip
# gauge -> (unit, factor, field of --query-gpu, the ends of paths in -q)
_GAUGES: dict[str, tuple[str, float, tuple[str, ...], tuple[str, ...]]] = {
    "gpu.temperature_c": ("C", 1, ("temperature.gpu",), ("Temperature/GPU Current Temp",)),
    "gpu.memory_temperature_c": ("C", 1, ("temperature.memory",), ("Temperature/Memory Current Temp",)),
    "gpu.power_w": (
        "W", 1, ("power.draw", "power.draw.average", "power.draw.instant"),
        ("GPU Power Readings/Power Draw", "GPU Power Readings/Average Power Draw", "Power Readings/Power Draw"),
    ),
    "gpu.power_limit_w": (
        "W", 1, ("power.limit", "enforced.power.limit"),
        ("GPU Power Readings/Current Power Limit", "Power Readings/Power Limit", "Power Readings/Enforced Power Limit"),
    ),
    "gpu.utilization_pct": ("%", 1, ("utilization.gpu",), ("Utilization/Gpu", "Utilization/GPU")),
    "gpu.sm_clock_mhz": ("MHz", 1, ("clocks.sm", "clocks.current.sm"), ("Clocks/SM",)),
    "gpu.sm_clock_max_mhz": ("MHz", 1, ("clocks.max.sm",), ("Max Clocks/SM",)),
    "gpu.pcie_gen": (
        "", 1, ("pcie.link.gen.current", "pcie.link.gen.gpucurrent"), ("PCIe Generation/Current",),
    ),
    "gpu.pcie_gen_max": ("", 1, ("pcie.link.gen.max",), ("PCIe Generation/Max",)),
    "gpu.pcie_width": ("lanes", 1, ("pcie.link.width.current",), ("Link Width/Current",)),
    "gpu.pcie_width_max": ("lanes", 1, ("pcie.link.width.max",), ("Link Width/Max",)),
    "gpu.memory_used_bytes": ("bytes", 2**20, ("memory.used",), ("FB Memory Usage/Used",)),
    "gpu.memory_total_bytes": ("bytes", 2**20, ("memory.total",), ("FB Memory Usage/Total",)),
}  # fmt: skip
_OF_FIELD = {field: name for name, (_, _, fields, _) in _GAUGES.items() for field in fields}
_OF_PATH = {path: name for name, (_, _, _, paths) in _GAUGES.items() for path in paths}
_LOST = re.compile(r"GPU is lost|Unknown Error|GPU requires reset|ERR!", re.IGNORECASE)


def fits(title: str, head: str) -> bool:
    """Any of the outputs above, by its own headings."""
    if _QUERY.search(head) or _QUERY_GPU.search(head) or _TABLE.search(head) or _XML in head:
        return True
    return (bool(_NVLINK_GPU.search(head)) and _nvlink(head)) or _csv_fields(head) is not None


def _nvlink(text: str) -> bool:
    return bool(_NVLINK_LINK.search(text) or re.search(r"Nvlink", text, re.IGNORECASE))


def recognises(source: Source) -> bool:
    """By the headings of the outputs."""
    return shared.recognised(source, fits)


def read(source: Source) -> Reading:
    """Raises InputError for the XML form."""
    return shared.reading(source, facts)


def facts(block: Block, found: Found) -> None:
    """Gauges `gpu.*`, faults `throttle.*`, `ecc.*`, `fabric.*`, `nvlink.*`; processes and identities as places."""
    rows = block.text
    head = "\n".join(line for _, line in rows[:2000])
    if _XML in head:
        raise InputError(
            "nvidia-smi's XML", where=block.where, expected="its text", hint="`nvidia-smi -q` without -x prints it"
        )
    fields = _csv_fields(head)
    if fields is not None:
        _csv(block, rows, fields, found)
    elif _QUERY.search(head) or _QUERY_GPU.search(head):
        for gpu in _sections(block, rows):
            _query(gpu, found)
    elif _TABLE.search(head):
        _table(rows, found)
    else:
        _links(rows, found)


class _Gpu:
    """One GPU of -q: its figures by path, the line of each, its processes."""

    def __init__(self, device: str, unix_ns: int) -> None:
        self.device, self.unix_ns = device, unix_ns
        self.values: dict[str, tuple[int, str]] = {}
        self.processes: list[tuple[int, dict[str, str]]] = []

    def get(self, end: str) -> str:
        """The value whose path ends so; "" for none."""
        return next((v for path, (_, v) in self.values.items() if path == end or path.endswith("/" + end)), "")


def _sections(block: Block, rows: list[tuple[int, str]]) -> Iterator[_Gpu]:
    """GPUs with their figures by the path of sections that the indentation makes."""
    gpu: _Gpu | None = None
    stack: list[tuple[int, str]] = []
    at_ns, clock = 0, Clock(block.unix_ns)
    for line, text in rows:
        key, colon, value = (part.strip() for part in text[: shared.MAX_LINE].partition(" : "))
        if opened := _QUERY_GPU.fullmatch(text.rstrip()):
            if gpu:
                yield gpu
            gpu, stack = _Gpu(bus_id(opened[1]), at_ns), []
            continue
        if gpu is None:
            at_ns = (clock(text) or at_ns) if key == "Timestamp" else at_ns
            continue
        if not key:
            continue
        indent = len(text) - len(text.lstrip())
        while stack and stack[-1][0] >= indent:
            stack.pop()
        if not colon and len(stack) < 16:
            stack.append((indent, key[:80]))
        elif key == "Process ID" and len(gpu.processes) < 1000:
            gpu.processes.append((line, {"pid": value}))
        elif key in {"Name", "Used GPU Memory"} and gpu.processes and any(name == "Processes" for _, name in stack):
            gpu.processes[-1][1]["process" if key == "Name" else "memory"] = value
        elif len(gpu.values) < 5000:
            gpu.values.setdefault("/".join([name for _, name in stack] + [key[:80]]), (line, value))
    if gpu:
        yield gpu


def _query(gpu: _Gpu, found: Found) -> None:
    at: dict[str, Any] = {"device": gpu.device} | ({"unix_ns": gpu.unix_ns} if gpu.unix_ns else {})
    utilization = gpu.get("Utilization/Gpu") or gpu.get("Utilization/GPU")
    use = {"pstate": gpu.get("Performance State"), "utilization": utilization}
    names = {"uuid": gpu.get("GPU UUID"), "product": gpu.get("Product Name"), "minor": gpu.get("Minor Number")}
    found.add("place", "gpu", labels=names, line=next((line for line, _ in gpu.values.values()), 0), **at)
    for line, process in gpu.processes:
        rank, axes = placed(process.get("process", ""))
        found.add("place", "process", line=line, labels=process | axes, rank=rank, **at)
    seen: set[str] = set()
    for path, (line, value) in gpu.values.items():
        parts = path.split("/")
        name = _OF_PATH.get("/".join(parts[-2:]))
        if _LOST.search(value):
            found.add("device", "gpu_lost", line=line, text=f"{path}: {value}", labels={"severity": "hardware"}, **at)
        elif name and name not in seen:
            seen.add(name)
            _gauge(found, name, value, line, at)
        elif any(part in {"Clocks Event Reasons", "Clocks Throttle Reasons"} for part in parts[:-1]):
            reason = next((name for name, row in _REASONS.items() if row[0] == parts[-1]), None)
            if reason and value == "Active":
                _throttle(found, reason, line, use, at)
        elif "Clocks Event Reasons Counters" in parts and parts[-1] in _COUNTED:
            if (us := _amount(value)) is not None:
                found.add("counter", f"gpu.throttled_us.{_COUNTED[parts[-1]]}", us, line=line, unit="us", **at)
        else:
            _health(found, parts, value, line, at)


def _health(found: Found, parts: list[str], value: str, line: int, at: dict[str, Any]) -> None:
    """Memory errors, pending repairs, the state of the fabric, what the driver asks for."""
    amount, key, text = _amount(value), parts[-1], f"{'/'.join(parts)}: {value}"
    scope = next((p.lower() for p in parts if p in {"Volatile", "Aggregate"}), "")
    if parts[0] == "ECC Errors" and scope and "Pending" not in key:
        bad = "Uncorrectable" in key or ("Double Bit" in parts and key == "Total")
        if bad and amount:
            memory = key.split()[0].lower() if "Uncorrectable" in key else "total"
            labels = {"scope": scope, "memory": memory, "severity": "hardware"}
            found.add("device", "ecc.uncorrected", amount, line=line, labels=labels, text=text, **at)
        elif not bad and amount is not None and ("Correctable" in key or key == "Total"):
            labels = {"scope": scope, "memory": key.split()[0].lower()}
            found.add("counter", "gpu.ecc_corrected", amount, line=line, labels=labels, **at)
    elif value == "Yes" and (key.startswith("Pending") or key.endswith(("Pending", "Occurred", "Memory"))):
        name = {"Remapping Failure Occurred": "ecc.remap_failed", "Unrepairable Memory": "ecc.unrepairable"}
        labels = {"severity": "hardware"}
        found.add("device", name.get(key, "ecc.repair_pending"), 1, line=line, labels=labels, text=text, **at)
    elif parts[0] == "Remapped Rows" and amount is not None and key in {"Correctable Error", "Uncorrectable Error"}:
        found.add("counter", f"gpu.remapped_{key.split()[0].lower()}", amount, line=line, **at)
    elif parts[0] == "Fabric" and key in {"State", "Status"} and value not in {"Completed", "Success", "N/A"}:
        state = re.sub(r"\W+", "_", value.lower())[:60]
        found.add("device", f"fabric.{state}", 1, line=line, labels={"field": key.lower()}, text=text, **at)
    elif key == "Replays Since Reset" and amount is not None:
        found.add("counter", "gpu.pcie_replays", amount, line=line, **at)
    elif (key, value) == ("Reset Required", "Yes") or (key == "GPU Recovery Action" and value not in {"None", "N/A"}):
        found.add("device", "gpu_reset_required", 1, line=line, labels={"severity": "hardware"}, text=text, **at)
    elif parts[0] == "MIG Mode" and key == "Current" and value == "Enabled":
        found.add("setting", "mig", line=line, labels={"value": "on"}, **at)


def _amount(value: str) -> float | None:
    """The figure of `71 C`, `16x`, `699.81 W`, `4 MiB`; None for N/A and the like."""
    found = re.match(r"[\d,.]{1,25}", value)
    return number(found[0]) if found else None


def _gauge(found: Found, name: str, value: str, line: int, at: dict[str, Any]) -> None:
    unit, factor, _, _ = _GAUGES[name]
    amount = _amount(value)
    if amount is not None:
        found.add("gauge", name, amount * factor, line=line, unit=unit, **at)


def _throttle(found: Found, reason: str, line: int, use: dict[str, str], at: dict[str, Any]) -> None:
    fault = _REASONS[reason][3]
    found.add(
        "device" if fault else "notice", f"throttle.{reason}" if fault else reason, 1, line=line, labels=use,
        text=f"{_REASONS[reason][0]}: Active", **at,
    )  # fmt: skip


def _csv_fields(head: str) -> list[str] | None:
    """Fields of a query's heading without their units, when two of them are known."""
    first = next((line for line in head.splitlines() if line.strip()), "")[: shared.MAX_LINE]
    fields = [re.sub(r" \[[\w%]+\]$", "", field.strip()) for field in first.split(",")]
    known = [f for f in fields if f in _OF_FIELD or f.startswith(("clocks_throttle_reasons.", "clocks_event_reasons."))]
    others = {"index", "uuid", "gpu_uuid", "name", "gpu_name", "timestamp", "pci.bus_id", "gpu_bus_id", "pstate"}
    return fields if known and len(known) + len(others & set(fields)) >= 2 else None


def _csv(block: Block, rows: list[tuple[int, str]], fields: list[str], found: Found) -> None:
    clock, started, short = Clock(block.unix_ns), False, 0
    for line, text in rows:
        cells = [cell.strip() for cell in text[: shared.MAX_LINE].split(",")]
        if not text.strip() or not started or cells[0] == fields[0]:
            started = started or bool(text.strip())
            continue
        if len(cells) != len(fields):
            short += 1
            continue
        row = dict(zip(fields, cells, strict=True))
        bus = row.get("pci.bus_id") or row.get("gpu_bus_id") or ""
        device = bus_id(bus) if bus else f"gpu{row['index']}" if "index" in row else row.get("uuid", "")[:64]
        at: dict[str, Any] = {"device": shared.word(device)}
        if "timestamp" in row and (at_ns := clock(row["timestamp"])):
            at["unix_ns"] = at_ns
        use = {"pstate": row.get("pstate", ""), "utilization": row.get("utilization.gpu", "")}
        lost = next((value for value in row.values() if _LOST.search(value)), None)
        if lost:
            found.add("device", "gpu_lost", line=line, text=lost, labels={"severity": "hardware"}, **at)
        for field, value in row.items():
            _cell(found, field, value, line, use, at)
    if short:
        found.note(f"{short} rows with other numbers of fields than the heading left out")
    for note in clock.notes:
        found.note(note)


def _cell(found: Found, field: str, value: str, line: int, use: dict[str, str], at: dict[str, Any]) -> None:
    if field in _OF_FIELD:
        _gauge(found, _OF_FIELD[field], value, line, at)
    elif field.startswith(("clocks_throttle_reasons.", "clocks_event_reasons.")):
        short = field.split(".", 1)[1]
        for reason, (_, name, bit, _) in _REASONS.items():
            mask = int(value, 16) if short == "active" and re.fullmatch(r"0x[0-9a-fA-F]{1,16}", value) else 0
            if mask & bit or (short == name and value == "Active"):
                _throttle(found, reason, line, use, at)
    elif field in {"ecc.errors.uncorrected.volatile.total", "ecc.errors.uncorrected.aggregate.total"}:
        if amount := _amount(value):
            labels = {"scope": field.split(".")[3], "memory": "total", "severity": "hardware"}
            found.add("device", "ecc.uncorrected", amount, line=line, labels=labels, **at)
    elif field in {"retired_pages.pending", "remapped_rows.pending"} and value.lower() in {"yes", "1"}:
        found.add("device", "ecc.repair_pending", 1, line=line, labels={"severity": "hardware"}, **at)


def _links(rows: list[tuple[int, str]], found: Found) -> None:
    """`nvlink -s` and `-e`. All links off is what a card without a bridge reports: no fault by itself."""
    gpus: list[tuple[int, str, dict[str, str], dict[int, str], dict[str, list[tuple[int, float]]]]] = []
    for line, text in rows:
        if opened := _NVLINK_GPU.fullmatch(text.rstrip()):
            gpus.append((line, f"gpu{int(opened[1])}", {"product": opened[2], "uuid": opened[3]}, {}, {}))
        elif gpus and (link := re.match(r"\s*Link (\d{1,3}): (<inactive>|[\d.]{1,10} GB/s)", text)):
            gpus[-1][3][int(link[1])] = link[2]
        elif gpus and (error := re.match(r"\s*Link (\d{1,3}): (\w+) Errors: (\d{1,20})", text)):
            gpus[-1][4].setdefault(error[2].lower(), []).append((int(error[1]), float(error[3])))
        elif gpus and re.search(r"all links are inActive", text, re.IGNORECASE):
            found.add("notice", "nvlink.none_active", line=line, device=gpus[-1][1], text=text)
            found.add("gauge", "gpu.nvlink_active", 0, line=line, device=gpus[-1][1])
    for line, device, labels, links, errors in gpus:
        at: dict[str, Any] = {"line": line, "device": device}
        found.add("place", "gpu", labels=labels, **at)
        off = [str(link) for link, state in links.items() if state == "<inactive>"]
        if links:
            rate = sum(_amount(state) or 0 for state in links.values())
            found.add("gauge", "gpu.nvlink_active", len(links) - len(off), **at)
            found.add("gauge", "gpu.nvlink_links", len(links), **at)
            found.add("gauge", "gpu.nvlink_GBps", rate, unit="GB/s", **at)
        if off and len(off) < len(links):
            about = {"links": ",".join(off), "uuid": labels["uuid"], "severity": "hardware"}
            found.add("device", "nvlink.inactive", len(off), labels=about, **at)
        for kind, values in errors.items():
            hit = ",".join(str(link) for link, count in values if count)
            total = sum(count for _, count in values)
            found.add("counter", f"gpu.nvlink_{kind}_errors", total, labels={"links": hit}, **at)


def _table(rows: list[tuple[int, str]], found: Found) -> None:
    """The table of plain `nvidia-smi`: identity, use, power, processes."""
    devices: dict[str, str] = {}
    at: dict[str, Any] = {}
    for line, text in rows:
        row = text[: shared.MAX_LINE]
        if opened := re.match(r"\|\s+(\d{1,4})\s+(\S.{0,60}?)\s+\S+\s+\|\s+([0-9A-Fa-f]{8}:[0-9A-Fa-f:.]{7,9})\s", row):
            devices[opened[1]] = bus_id(opened[3])
            at = {"device": bus_id(opened[3])}
            labels = {"index": opened[1], "product": opened[2]}
            found.add("place", "gpu", line=line, labels=labels, **at)
            if _LOST.search(row):
                found.add("device", "gpu_lost", line=line, text=row, labels={"severity": "hardware"}, **at)
        elif at and (
            use := re.search(r"(\d+)C\s+P\d+\s+(\d+)W ?/ *(\d+)W.*?(\d+)MiB ?/ *(\d+)MiB\s*\|\s+(\d{1,3})%", row)
        ):
            names = ("temperature_c", "power_w", "power_limit_w", "memory_used_bytes", "memory_total_bytes")
            for name, value in zip((*names, "utilization_pct"), use.groups(), strict=True):
                _gauge(found, f"gpu.{name}", value[:12], line, at)
        elif process := re.match(r"\|\s+(\d{1,4})\s+\S+\s+\S+\s+(\d{1,10})\s+[CGM+]+\s+(\S{1,200})\s.*?MiB\s*\|", row):
            rank, axes = placed(process[3])
            labels = {"pid": process[2], "process": process[3]} | axes
            device = devices.get(process[1], f"gpu{process[1]}")
            found.add("place", "process", line=line, rank=rank, device=device, labels=labels)

"""The kernel's log (dmesg, journalctl -k) and the fabric manager's: what devices and the kernel itself report."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from linkwise.trace.facts import Kind
from linkwise.trace.readers import shared
from linkwise.trace.readers.asked import WORDS as ASKED
from linkwise.trace.readers.asked import unasked
from linkwise.trace.readers.base import Reading, Source
from linkwise.trace.readers.log_time import Clock
from linkwise.trace.readers.shared import Block, Found, bus_id, word
from linkwise.trace.readers.sieve import Sieve

FORMAT = "kernel log"

# What an Xid means. application: the GPU is still sound (NVIDIA k8s-device-plugin internal/rm/health.go, whose list
# follows "Application errors" of NVIDIA's Xid document). hardware: device, memory, link or its firmware; info: says
# what was done about another one (NVIDIA Xid catalogue, docs.nvidia.com/deploy/xid-errors). Others: unknown.
XIDS: dict[int, tuple[str, str]] = {
    13: ("application", "graphics engine exception"),
    31: ("application", "GPU memory page fault"),
    32: ("hardware", "invalid or corrupted push buffer stream"),
    38: ("hardware", "driver firmware error"),
    43: ("application", "GPU stopped processing"),
    45: ("application", "preemptive cleanup, due to previous errors"),
    46: ("hardware", "GPU stopped processing"),
    48: ("hardware", "double bit ECC error"),
    54: ("hardware", "auxiliary power is not connected"),
    61: ("hardware", "internal micro-controller breakpoint"),
    62: ("hardware", "internal micro-controller halt"),
    63: ("hardware", "ECC page retirement or row remapping recorded"),
    64: ("hardware", "ECC page retirement or row remapping failed"),
    68: ("application", "video processor exception"),
    69: ("application", "graphics engine class error"),
    74: ("hardware", "NVLink error"),
    79: ("hardware", "GPU has fallen off the bus"),
    92: ("hardware", "high rate of single bit ECC errors"),
    94: ("hardware", "contained ECC error"),
    95: ("hardware", "uncontained ECC error"),
    109: ("application", "context switch timeout"),
    110: ("hardware", "security fault"),
    119: ("hardware", "GSP RPC timeout"),
    120: ("hardware", "GSP error"),
    121: ("hardware", "C2C link error, corrected"),
    136: ("hardware", "link training failed"),
    137: ("application", "NVLink remote access fault"),
    140: ("hardware", "unrecovered ECC error"),
    143: ("hardware", "GPU initialisation failure"),
    144: ("hardware", "NVLink error (SAW)"),
    145: ("hardware", "NVLink error (RLW)"),
    146: ("hardware", "NVLink error (TLW)"),
    147: ("hardware", "NVLink error (TREX)"),
    148: ("hardware", "NVLink error (NVLPW_CTRL)"),
    149: ("hardware", "NVLink error (NETIR)"),
    150: ("hardware", "NVLink error (MSE)"),
    154: ("info", "GPU recovery action changed"),
}

_ACTION = 154
_CHANGED = re.compile(r"recovery action changed from .{1,60}? to 0x[0-9a-fA-F]{1,4} \(([\w &-]{1,40})\)")
# No faults by themselves, and nothing that the catalogue asks to be done at once (IGNORE; 45 without another Xid).
_RECORDED = {
    43: "a program ended by a fault of its own; the device is well (see that process's log)",
    45: "a process was ended or ended early; another Xid, or its log, says why",
    63: "rows of its memory are marked for remapping; it works on, and a reset at the next occasion remaps them",
    92: "a high rate of corrected ECC errors: watch whether it rises",
}

_BUS = r"(?P<bus>[0-9a-fA-F]{2,8}:[0-9a-fA-F:.]{2,12})"
# A clock of seconds since boot has five digits or six; UCX and others print Unix seconds in the same brackets.
_BOOT = re.compile(r"^(?:<\d+>)?\[ {0,8}(\d{1,8}\.\d{1,9})\]")
_STARTS = (
    re.compile(r"^(?:<\d+>)?\[ {0,8}\d{1,8}\.\d{6}\]"),
    re.compile(r"^\[[A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d \d{4}\] "),  # dmesg -T
    re.compile(r"^\w{4,8} {0,3}:\w{4,6} {0,3}: (?:\[|\d{4}-)"),  # dmesg --decode
    re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[,.]\d{6}[+-]\d\d:\d\d (?!\S+\[\d+\]: )"),  # dmesg --time-format iso
    re.compile(r"^(?:[A-Z][a-z]{2} [ \d]\d [\d:.]{8,15}|\d{4}-\d\d-\d\dT\S{8,30}) [\w.-]{1,64} kernel: "),  # journalctl
)
_FABRIC = re.compile(r"^\[[A-Z][a-z]{2} \d\d \d{4} \d\d:\d\d:\d\d\] \[([A-Z]{4,8})\] \[tid \d+\] (.*)")
_HOST = re.compile(r"^(?:[A-Z][a-z]{2} [ \d]\d [\d:.]{8,15}|\d{4}-\d\d-\d\dT\S{8,30}) ([\w.-]{1,64}) kernel: ")
_SURE = re.compile(r"NVRM: Xid \(|: SXid \(PCI:")
# What no other program writes, whatever stands in front: a time that was cut, a collector's name, nothing.
_ALONE = re.compile(
    rf"^[^'\"]{{0,120}}?(?<![\w.-])(?:NVRM: Xid \((?:PCI:)?{_BUS}\): \d|nvidia-nvswitch\d{{1,3}}: SXid \(PCI:|"
    r"mlx[45]_core [0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d(?: [\w.-]{1,32})?: (?:Link (?:down|up)|Port module event: )|"
    r"(?:Memory cgroup out of memory|Out of memory): Killed process \d{1,10} \([^)]{1,64}\))"
)


class _Seen(NamedTuple):
    """One line that says something: where it goes and when it was."""

    found: Found
    line: int
    text: str
    unix_ns: int
    host: str
    boot_s: str

    def add(self, kind: Kind, name: str, amount: float = 0.0, /, *, device: str = "", **labels: str) -> None:
        about = labels | {"boot_s": self.boot_s}
        at: dict[str, Any] = {"line": self.line, "text": self.text, "unix_ns": self.unix_ns, "host": self.host}
        self.found.add(kind, name, amount, device=device, labels=about, **at)


def fits(title: str, head: str) -> bool:
    """Half of its first lines begin as the kernel's or the fabric manager's do, or one is an Xid or the like."""
    every = [line[: shared.MAX_LINE] for _, line in unasked(enumerate(head.splitlines())) if line.strip()]
    if any(_ALONE.match(line) for line in every):
        return True
    lines = every[:200]
    mine = sum(1 for line in lines if _FABRIC.match(line) or any(start.match(line[:300]) for start in _STARTS))
    return mine * 2 > len(lines) or (mine > 0 and bool(_SURE.search(head))) or any(map(_FABRIC.match, lines[:1]))


def recognises(source: Source) -> bool:
    """By how its lines begin."""
    return shared.recognised(source, fits)


def read(source: Source) -> Reading:
    """Never refuses what it recognises."""
    return shared.reading(source, facts)


def facts(block: Block, found: Found) -> None:
    """Devices' faults (Xid, SXid, AER, ECC), processes the kernel ended, tasks that hang, links that went down."""
    clock = Clock(block.unix_ns)
    since_boot = False
    for line, raw in unasked(block.sifted(_SIEVE)):
        row = raw[: shared.MAX_LINE]
        if not _WANTED.search(row):
            continue
        boot = _BOOT.match(row)
        since_boot = since_boot or boot is not None
        host = _HOST.match(row)
        seen = _Seen(
            found, line, row, 0 if boot else clock(row), word(host[1]) if host else found.host, boot[1] if boot else ""
        )
        if fabric := _FABRIC.match(row):
            _fabric(seen, fabric)
            continue
        for pattern, take in _RULES:
            if match := pattern.search(row):
                take(seen, match)
                break
    if since_boot:
        found.note("times are seconds since boot (label boot_s)")
    for note in clock.notes:
        found.note(note)


def _xid(seen: _Seen, match: re.Match[str]) -> None:
    code = int(match["code"])
    severity, meaning = XIDS.get(code, ("unknown", ""))
    if code == _ACTION and (action := _CHANGED.search(seen.text)) and action[1].lower() != "none":
        severity, meaning = "hardware", f"the driver asks for: {word(action[1])}"
    if note := _RECORDED.get(code):
        seen.found.note(f"Xid {code} on {bus_id(match['bus'])}: {note}")
    labels = {"severity": severity, "meaning": meaning, "pid": match["pid"] or "", "process": match["name"] or ""}
    seen.add("device", f"xid.{code}", 1, device=bus_id(match["bus"]), **labels, mig=match["mig"] or "")


def _sxid(seen: _Seen, match: re.Match[str]) -> None:
    labels = {"severity": "hardware", "fatal": "1" if match["fatal"].lower() == "fatal" else "0"}
    link = re.search(r"Link (\d{1,3})", seen.text)
    seen.add("device", f"sxid.{match['code']}", 1, device=bus_id(match["bus"]), **labels, link=link[1] if link else "")


def _fabric(seen: _Seen, match: re.Match[str]) -> None:
    level, text = match[1], match[2]
    if level in {"INFO", "DEBUG"}:
        return
    switch = re.search(
        rf"detected NVSwitch (?P<fatal>non-fatal|fatal) error (?P<code>\d{{1,6}}) .{{0,200}}?pci bus id {_BUS}"
        r"(?:.{0,100}? port (?P<port>\d{1,3}))?", text
    )  # fmt: skip
    if switch:
        fatal = "1" if switch["fatal"] == "fatal" else "0"
        labels = {"severity": "hardware", "fatal": fatal, "port": switch["port"] or ""}
        seen.add("device", f"sxid.{switch['code']}", 1, device=bus_id(switch["bus"]), **labels)
    elif level in {"ERROR", "CRITICAL", "FATAL"}:
        seen.add("device", "fabric.error", 1, severity="hardware")
    else:
        seen.add("notice", f"fabric.{level.lower()}")


def _gpu_place(seen: _Seen, match: re.Match[str]) -> None:
    seen.found.add(
        "place", "gpu", line=seen.line, device=bus_id(match["bus"]), host=seen.host, labels={"uuid": match["uuid"]}
    )


def _oom(seen: _Seen, match: re.Match[str]) -> None:
    scope = "cgroup" if "emory cgroup" in seen.text else "host"
    seen.add("exit", "oom", -9, pid=match["pid"], command=match["command"], scope=scope)


def _fault(seen: _Seen, match: re.Match[str]) -> None:
    """A process that touched memory it may not: `segfault at ... in libnccl.so.2[...]`, `trap invalid opcode`."""
    library = re.search(r" in ([\w.+-]{1,80})\[", seen.text)
    labels = {"command": match["command"], "pid": match["pid"], "library": library[1] if library else ""}
    seen.add("exit", "segfault" if "segfault" in seen.text else "trap", -11, **labels)


def _hung(seen: _Seen, match: re.Match[str]) -> None:
    seen.add("error", "hung_task", float(match["s"]), command=match["command"], pid=match["pid"])


def _lockup(seen: _Seen, match: re.Match[str]) -> None:
    labels = {"command": match["command"], "pid": match["pid"], "cpu": match["cpu"]}
    seen.add("error", "soft_lockup", float(match["s"]), **labels)


def _aer(seen: _Seen, match: re.Match[str]) -> None:
    fixed = match["severity"].startswith("Correct")
    name = "pcie.aer.corrected" if fixed else "pcie.aer.uncorrected"
    labels = {"severity": "info" if fixed else "hardware", "driver": match["driver"], "what": match["what"]}
    labels["fatal"] = "1" if "(Fatal)" in seen.text else ""
    seen.add("notice" if fixed else "device", name, 1, device=bus_id(match["bus"]), **labels)


def _aer_received(seen: _Seen, match: re.Match[str]) -> None:
    """What a root port says before, or without, the line of the device itself (drivers/pci/pcie/aer.c: Corrected,
    Uncorrected (Fatal); in newer kernels Correctable, Uncorrectable)."""
    fixed = match["severity"].startswith("Correct")
    labels = {"severity": "info" if fixed else "hardware", "fatal": "1" if "(Fatal)" in match["severity"] else ""}
    name = "pcie.aer.corrected" if fixed else "pcie.aer.uncorrected"
    seen.add("notice" if fixed else "device", name, 1, device=bus_id(match["bus"]), **labels)


def _dpc(seen: _Seen, match: re.Match[str]) -> None:
    """A port that took its link down because of an error below it (drivers/pci/pcie/dpc.c)."""
    meaning = "its port took the link down: downstream port containment"
    seen.add("device", "pcie.dpc", 1, device=bus_id(match["of"] or match["bus"]), severity="hardware", meaning=meaning)


_UNCORRECTED = 1 << 61  # bit UC of a bank's status, of Intel (SDM 3B, 16.3.2.2) and AMD alike


def _machine_check(seen: _Seen, match: re.Match[str]) -> None:
    """A bank's status as `print_mce` has it (arch/x86/kernel/cpu/mce/core.c)."""
    if int(match["status"], 16) & _UNCORRECTED:
        meaning = f"uncorrected error of CPU {match['cpu']}, bank {match['bank']}"
        seen.add("device", "mce.uncorrected", 1, severity="hardware", meaning=meaning)
    else:
        seen.add("notice", "mce.corrected", 1, cpu=match["cpu"], bank=match["bank"])


def _machine_checks(seen: _Seen, match: re.Match[str]) -> None:
    seen.add("notice", "mce.logged")
    seen.found.note("the kernel logged machine checks and not of which kind; ras-mc-ctl --errors tells them")


def _decoded(seen: _Seen, match: re.Match[str]) -> None:
    """AMD's decoder (drivers/edac/mce_amd.c) in words."""
    if match["severity"].startswith(("Corrected", "Deferred")):
        seen.add("notice", "mce.corrected")
    else:
        seen.add("device", "mce.uncorrected", 1, severity="hardware", meaning=f"{match['severity']} error")


def _firmware(seen: _Seen, match: re.Match[str]) -> None:
    """What firmware reports through ACPI (drivers/acpi/apei/ghes.c); Arm's servers tell all errors so."""
    if match["severity"] in {"fatal", "recoverable"}:
        meaning = f"its firmware reports an uncorrected error, {match['severity']}"
        seen.add("device", "mce.firmware", 1, severity="hardware", meaning=meaning)
    else:
        seen.add("notice", "mce.corrected")


def _poisoned(seen: _Seen, match: re.Match[str]) -> None:
    """A process that is told that memory of its own is lost (mm/memory-failure.c)."""
    meaning = f"memory of process {match['pid']} ({word(match['command'])}) is lost"
    labels = {"pid": match["pid"], "command": match["command"], "meaning": meaning}
    seen.add("device", "host_memory.poisoned", 1, severity="hardware", **labels)


def _link(seen: _Seen, match: re.Match[str]) -> None:
    """The link of an interface. Cards that carry RDMA have their ports named as the rules know them."""
    driver, up = match["driver"], match["way"].lower() == "up"
    name = "ib.port" if re.match(r"mlx[45]|bnxt|irdma|ice$|efa|ionic|qed|hns", driver) else "net.link"
    labels = {"driver": driver, "interface": match["interface"] or ""}
    device = bus_id(match["bus"])
    seen.add("notice" if up else "network", f"{name}_{'up' if up else 'down'}", device=device, **labels)


def _device(name: str, severity: str = "hardware") -> Callable[[_Seen, re.Match[str]], None]:
    def take(seen: _Seen, match: re.Match[str]) -> None:
        bus = match.groupdict().get("bus")
        seen.add("device", name, 1, device=bus_id(bus) if bus else "", severity=severity)

    return take


def _notice(name: str) -> Callable[[_Seen, re.Match[str]], None]:
    return lambda seen, match: seen.add("notice", name)


def _iommu(seen: _Seen, match: re.Match[str]) -> None:
    seen.add("setting", "iommu", value=match["mode"].lower())


_PROCESS = r"(?P<command>[^\]\[()]{1,64})"
_PID = r"(?P<pid>\d{1,10})"
_RULES: tuple[tuple[re.Pattern[str], Callable[[_Seen, re.Match[str]], None]], ...] = tuple(
    (re.compile(pattern), take)
    for pattern, take in (
        # NVIDIA open-gpu-kernel-modules src/nvidia/src/kernel/gpu/rc/kernel_rc.c: `Xid (PCI:%04x:%02x:%02x): %d, ...`
        (
            rf"NVRM: Xid \((?:PCI:)?{_BUS}(?: (?P<mig>GPU-I:\d+(?: GPU-CI:\d+)?))?\): (?P<code>\d{{1,5}}),?"
            r"(?: pid='?(?P<pid>\d{1,10}|<unknown>)'?,)?(?: name=(?P<name>[^,]{1,64}),)?",
            _xid,
        ),
        (rf"SXid \(PCI:{_BUS}\): (?P<code>\d{{1,6}}), (?P<fatal>Non-fatal|Fatal|\w+)", _sxid),
        (rf"NVRM: (?:GPU at |The NVIDIA GPU )?(?:PCI:)?{_BUS}.{{0,60}}fallen off the bus", _device("gpu_lost")),
        (rf"NVRM: GPU at PCI:{_BUS}: (?P<uuid>GPU-[0-9a-f-]{{8,40}})", _gpu_place),
        (rf"NVRM: (?:GPU )?{_BUS}: (?:RmInitAdapter|rm_init_adapter) failed", _device("gpu_init_failed")),
        (rf"amdgpu {_BUS}: .{{0,200}}?GPU reset begin", _device("amdgpu.reset")),
        (r"amdgpu.{0,200}?\bring \w{1,30} timeout", _device("amdgpu.ring_timeout")),
        (rf"amdgpu {_BUS}: .{{0,200}}?page fault", _device("amdgpu.page_fault", "application")),
        (rf"amdgpu {_BUS}: .{{0,200}}?[1-9]\d* uncorrectable (?:hardware )?errors", _device("ecc.uncorrected")),
        (
            rf"(?P<driver>[\w-]{{1,20}}) {_BUS}: (?:AER: )?PCIe Bus Error: severity=(?P<severity>\w+)"
            r".{0,60}?type=(?P<what>[\w ]{1,30})",
            _aer,
        ),
        (
            rf"AER: (?:Multiple )?(?P<severity>(?:Unc|C)orrect(?:ed|able)(?: \((?:Non-)?Fatal\))?) error (?:message )?"
            rf"received(?: from|:) {_BUS}",
            _aer_received,
        ),
        (
            rf"{_BUS}:(?:pcie\w{{1,8}}:)? DPC:? containment event"
            r"(?:.{0,60}? received from (?P<of>[0-9a-fA-F:.]{7,16}))?",
            _dpc,
        ),
        (rf"{_BUS}: AER: [Dd]evice recovery failed", _device("pcie.recovery_failed")),
        (rf"[Oo]ut of memory.{{0,40}}: Kill(?:ed)? process {_PID} \({_PROCESS}\)", _oom),
        (rf"INFO: task {_PROCESS}:{_PID} blocked for more than (?P<s>\d{{1,8}}) seconds", _hung),
        (rf"soft lockup - CPU#(?P<cpu>\d{{1,5}}) stuck for (?P<s>\d{{1,8}})s! \[{_PROCESS}:{_PID}\]", _lockup),
        (rf"(?P<command>[^\s\[\]]{{1,64}})\[{_PID}\]:? (?:segfault at|trap )", _fault),
        (
            rf"(?P<driver>\w{{1,20}}) {_BUS}:? (?P<interface>[\w.-]{{1,32}}(?=: ))?:? ?(?:NIC )?"
            r"[Ll]ink (?:is )?(?P<way>[Dd]own|[Uu]p)",
            _link,
        ),
        (
            rf"mlx5_core {_BUS}: .{{0,200}}?(?:health compromised|firmware internal error|Health issue)",
            _device("nic_health"),
        ),
        (rf"mlx5_core {_BUS}: .{{0,200}}?insufficient power on the PCIe slot", _device("nic_power")),
        (rf"mlx5_core {_BUS}: .{{0,200}}?Cable (?:error|unplugged)", _device("nic_cable")),
        (
            r"\[Hardware Error\]: CPU (?P<cpu>\d{1,5}): Machine Check(?: Exception)?: [0-9a-fA-F]{1,16} Bank"
            r" (?P<bank>\d{1,3}): (?P<status>[0-9a-fA-F]{1,16})",
            _machine_check,
        ),
        (r"\[Hardware Error\]: Machine check events logged", _machine_checks),
        (
            r"\[Hardware Error\]: Machine check: |Kernel panic - not syncing: Fatal (?:local )?machine check",
            _device("mce.fatal"),
        ),
        (
            r"\[Hardware Error\]: (?P<severity>System Fatal|Corrected|Deferred|Uncorrected, software \w{1,20})"
            r" error",
            _decoded,
        ),
        (r"\[Hardware Error\]: event severity: (?P<severity>\w{1,20})", _firmware),
        (
            rf"(?:Sending SIGBUS to|Killing) {_PROCESS}:{_PID} (?:early )?due to hardware memory corruption",
            _poisoned,
        ),
        (r"EDAC \S{1,20}: \d+ UE ", _device("host_memory.uncorrected")),
        (r"EDAC \S{1,20}: \d+ CE ", _notice("host_memory.corrected")),
        (r"[Tt]emperature above threshold, cpu clock(?: is)? throttled", _device("throttle.cpu_thermal")),
        (
            r"(?:IO_PAGE_FAULT (?:domain=\S+ )?(?:address=\S+ )?device=|DMAR: \[DMA \w+\] Request device \[)" + _BUS,
            _device("iommu_fault"),
        ),
        (r"iommu: Default domain type: (?P<mode>\w{1,20})", _iommu),
    )
)
# One search decides for nearly every line that nothing above can match.
_WANTED = re.compile(
    r"Xid|NVRM: |amdgpu|PCIe Bus Error|[Oo]ut of memory|blocked for more|soft lockup|segfault at|\] trap |\]: trap |"
    r"[Ll]ink (?:is )?(?:[Dd]own|[Uu]p)|mlx5_core|achine check|EDAC|"
    r"Hardware Error|memory corruption|AER: |containment|above threshold|IO_PAGE_FAULT|DMAR: \[|"
    r"Default domain type|^\[[A-Z][a-z]{2} \d\d \d{4} [\d:]{8}\] \[(?!INFO|DEBUG)"
)
_SIEVE = Sieve(
    "NVRM", "SXid", "amdgpu", "PCIe Bus", "ut of memory", "blocked for", "soft lockup", "segfault at", "] trap ",
    "]: trap",
    "ink is", "ink down", "ink Down", "ink up", "ink Up", "mlx5_core", "achine check", "EDAC", "above threshold",
    "Hardware Error", "memory corruption", "AER: ", "containment",
    "IO_PAGE_FAULT", "DMAR: [", "Default domain", "[ERROR]", "[CRITICAL]", "[FATAL]", "[WARN", "[NOTICE]", *ASKED,
)  # fmt: skip

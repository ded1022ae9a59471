"""What GPUs, NICs and hosts say of themselves: faults of hardware, slowed clocks, lost lanes."""

from collections.abc import Iterator

import numpy as np

from linkwise.core.units import counted
from linkwise.diagnose.case import Case, ranks_text
from linkwise.diagnose.places import Places, lines, said
from linkwise.diagnose.types import Cause, Class, Fault, Finding
from linkwise.trace.facts import Fact

# Names that stand for a device that cannot go on, with a summary. Others that a reader calls hardware count too.
_SLOWED = {
    "throttle.hw_slowdown": "its clocks are halved or worse: heat or power (HW slowdown)",
    "throttle.hw_thermal": "its clocks are halved or worse: it is too hot",
    "throttle.hw_power_brake": "its clocks are cut by an external power brake",
    "pcie_downgraded": "its PCIe link has lost lanes",
}
# Recorded, repaired or kept for later: true of many machines that work.
_MILD = (
    "xid.63", "xid.92", "xid.121", "ecc.repair_pending", "host_memory.corrected", "pcie.aer.corrected",
    "gpu_reset_required", "mce.corrected", "mce.logged",
)  # fmt: skip
OLD_NS = 24 * 3600 * 10**9  # what a device said this long before the record begins is another story


def find(case: Case) -> Iterator[Finding]:
    """A finding for every device that is not well."""
    places = Places(case)
    begin = _begin(case)
    by_device: dict[tuple[str, str], list[Fact]] = {}
    for fact in case.facts("device"):
        if not 0 < fact.unix_ns < begin - OLD_NS:
            by_device.setdefault((fact.host, fact.device), []).append(fact)
    hard = {where: [fact for fact in facts if _hard(fact)] for where, facts in by_device.items()}
    for (host, device), facts in by_device.items():
        slowed = [fact for fact in facts if fact.name in _SLOWED and not _idle(fact)]
        if hard[host, device]:
            yield _broken(case, places, host, device, hard[host, device], facts)
        elif slowed:
            yield _slow(places, host, device, slowed)
    broken = {host for (host, _), facts in hard.items() if facts}
    if "" not in broken:  # a device's fault ends its host's programs by such errors, and no other host's
        yield from _application({where: facts for where, facts in by_device.items() if where[0] not in broken})


def _begin(case: Case) -> int:
    """Unix time of the first call known, 0 = no times. Those of a monotonic clock without an anchor are small."""
    times = case.joined.rows.created_ns
    known = times[times > 10**18]
    return int(np.min(known)) if len(known) else 0


def _hard(fact: Fact) -> bool:
    if fact.name in _MILD or fact.name in _SLOWED or fact.name.startswith("throttle."):
        return False
    if fact.name == "ecc.uncorrected" and fact.label("scope") == "aggregate":
        return False  # of the card's whole life
    if fact.name.startswith("sxid.") and fact.label("fatal") == "0":
        return False
    return fact.label("severity") == "hardware" or fact.name in {"ecc.uncorrected", "gpu_lost"}


def _idle(fact: Fact) -> bool:
    """An idle GPU's clocks say nothing. P8 is idle; P0 to P5 are work."""
    return fact.label("pstate") in {"P8", "P10", "P12"} or fact.label("utilization") in {"0", "0 %"}


def _broken(case: Case, places: Places, host: str, device: str, hard: list[Fact], all_: list[Fact]) -> Finding:
    known = tuple(sorted({rank for fact in hard for rank in places.of(fact)}))
    ranks = known or _failed(case, places, host, device)
    nic = all(fact.name.startswith("nic_") for fact in hard)
    shared = all(fact.name.startswith(("mce", "host_memory", "throttle.cpu")) for fact in hard)
    slot = all(fact.name.startswith("pcie.") for fact in hard)
    kind: Class = "network_error" if nic else "device_error"
    cause: Cause = "network" if nic else "host" if shared else "device"
    what = "NIC" if nic else "host" if shared else "device"
    names = ", ".join(dict.fromkeys(_words(fact) for fact in hard[:4]))
    whose = f" ({ranks_text(ranks)})" if ranks else ""
    either = "" if ranks else _either(places, host, device)
    return Finding(
        class_=kind,
        summary=f"{what} {device or host or '?'}{f' of {host}' if device and host else ''}{whose}: {names}{either}",
        original_fault=Fault(ranks=ranks, host=host, device="" if nic else device, link=device if nic else ""),
        cause=cause,
        first_reporter="the driver",
        confidence=0.5 if either else 0.75 if ranks != known else 0.9 if len(hard) > 1 or ranks else 0.8,
        decided=not either,
        evidence=lines([*hard, *(fact for fact in all_ if fact not in hard)], 4)
        + lines((fact for fact in _own(case) if fact.rank in ranks), 2),
        would_decide=_WHICH
        if either
        else ""
        if ranks or nic or shared
        else "which rank runs on it: nvidia-smi, or NCCL_DEBUG=INFO (busId)",
        next=_CABLE if nic else _HOST if shared else _SLOT if slot else _RESET,
        recovery="retry elsewhere",
    )


_RESET = "nvidia-smi -q and dmesg | grep -i xid on its host; drain it and reset the device"
_CABLE = "ibstat, mlxlink and dmesg on its host: the cable and the transceiver"
_HOST = "ras-mc-ctl --errors and ipmitool sel list on this host: which CPU or memory module; drain it"
_SLOT = "lspci -vvv -s of this device and dmesg | grep -E 'AER|DPC' on its host: its slot, riser or cable; drain it"
_WHICH = "which host printed this: its file in a folder named after it, as in node0/, or the device's UUID"


def _failed(case: Case, places: Places, host: str, device: str) -> tuple[int, ...]:
    """The one of those it may run under whose own calls to the device failed, too: of several hosts' ranks on such a
    device, or of the host's ranks whose devices nobody knows."""
    told = [fact for fact in _own(case) if fact.rank >= 0]
    failed = {fact.rank for fact in told}
    ranks = {rank for _, rank in places.perhaps(device, host) if rank in failed}
    if not ranks and host:
        here = {fact.rank for fact in told if fact.host == host}
        ranks = here if not any(places.on_device(rank) for rank in here) else set()
    return tuple(ranks) if len(ranks) == 1 else ()


def _own(case: Case) -> list[Fact]:
    """What processes say of their own calls to a device that failed."""
    return case.facts("error", "cuda", "gpu_fault")


def _either(places: Places, host: str, device: str) -> str:
    """Whose device it may be, where hosts have one of that name each and nothing says which of them told; "" else."""
    rows = places.perhaps(device, host)
    by_host = {at: [rank for other, rank in rows if other == at] for at, _ in rows}
    named = [f"{ranks_text(mine)} on {at or '?'}" for at, mine in by_host.items()]
    words = " or ".join(named[:4]) + (" or others" if len(named) > 4 else "")
    return f". Of which host is not said: {words}" if rows else ""


_NAMES = {
    "nic_cable": "cable unplugged or faulty", "nic_health": "its firmware is not well",
    "nic_power": "too little power from its slot", "gpu_lost": "fallen off the bus",
    "gpu_init_failed": "the driver cannot start it", "pcie.recovery_failed": "its PCIe link could not be recovered",
    "mce.fatal": "a machine check that stopped it", "host_memory.uncorrected": "uncorrected memory error of the host",
    "ecc.remap_failed": "a row of its memory could not be remapped", "ecc.unrepairable": "memory beyond repair",
    "fabric.error": "the fabric manager reports an error", "iommu_fault": "it touched memory that it may not (IOMMU)",
    "amdgpu.reset": "the driver resets it", "amdgpu.ring_timeout": "its command ring does not go on",
}  # fmt: skip


def _words(fact: Fact) -> str:
    meaning = fact.label("meaning")
    if fact.name in _NAMES:
        return _NAMES[fact.name]
    if fact.name == "ecc.uncorrected":
        return f"{counted(round(fact.value) or 1, 'uncorrectable memory error')}{_in(fact.label('memory'))}"
    if fact.name == "pcie.aer.uncorrected":
        return f"uncorrected PCIe error{', fatal' if fact.label('fatal') else ''}"
    if fact.name.startswith(("mce", "host_memory", "pcie.")) and meaning:
        return meaning
    name = fact.name.replace("xid.", "Xid ").replace("sxid.", "SXid ")
    return f"{name} ({meaning})" if meaning else name


def _in(memory: str) -> str:
    """Which memory, as nvidia-smi has it: dram, sram; total is all of it."""
    return f" in {memory.upper()}" if memory not in {"", "total"} else ""


def _slow(places: Places, host: str, device: str, slowed: list[Fact]) -> Finding:
    ranks = tuple(sorted({rank for fact in slowed for rank in places.of(fact)}))
    either = "" if ranks else _either(places, host, device)
    return Finding(
        class_="device_error",
        summary=f"device {device or '?'}{f' of {host}' if host else ''}"
        f"{f' ({ranks_text(ranks)})' if ranks else ''}: {_SLOWED[slowed[0].name]}{either}",
        original_fault=Fault(ranks=ranks, host=host, device=device),
        cause="device",
        confidence=0.45 if either else 0.65,
        decided=not either,
        evidence=lines(slowed),
        would_decide=_WHICH if either else "calls with times: whether its rank is late",
        next="nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE; fans, power supplies and the slot of this device",
        recovery="retry elsewhere",
    )


def _application(by_device: dict[tuple[str, str], list[Fact]]) -> Iterator[Finding]:
    """Xids that a program causes, or that only follow from its end: never themselves whose fault it was."""
    told = [fact for facts in by_device.values() for fact in facts if fact.name.startswith("xid.")]
    soft = [fact for fact in told if fact.label("severity") == "application"]
    cause = [fact for fact in soft if fact.name in {"xid.13", "xid.31", "xid.69", "xid.109"}]
    if not cause:  # 43 and 45 alone: a process was ended
        return
    yield Finding(
        class_="undecided",
        summary=f"a program's error on device {cause[0].device or '?'}: {_words(cause[0])}; what led to it is not"
        " said here",
        original_fault=Fault(host=cause[0].host, device=cause[0].device),
        cause="software",
        first_reporter="the driver",
        confidence=0.4,
        decided=False,
        evidence=tuple(dict.fromkeys(map(said, [*cause, *soft])))[:6],
        would_decide="the log of the process it names; cuda-memcheck, or CUDA_LAUNCH_BLOCKING=1",
        next="compute-sanitizer on the failing step",
        recovery="restart group",
    )

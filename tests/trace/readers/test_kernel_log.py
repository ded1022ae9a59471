"""What the kernel says of devices and of processes it ended, in every form in which its log is kept."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trace.readers.host_evidence import mutated, never_raises, one, pick, read, recognises

from linkwise.trace.facts import Kind
from linkwise.trace.readers import kernel_log

XID = "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
BOOT = f"""[    0.000000] Linux version 5.15.0-112-generic
[    1.100000] iommu: Default domain type: Translated
[  123.456789] {XID}
[  124.000001] NVRM: Xid (PCI:0000:3B:00): 31, pid=4242, name=python3, Ch 00000008, intr 00000000. MMU Fault
[  125.000000] NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 999, something new
[  126.000000] nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
[  127.000000] amdgpu 0000:43:00.0: amdgpu: GPU reset begin!
[  128.000000] pcieport 0000:89:02.0: AER: Corrected error received: 0000:89:02.0
[  128.000001] pcieport 0000:89:02.0: AER: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)
[  129.000000] nvidia 0000:1b:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)
[  130.000000] Out of memory: Killed process 4242 (python) total-vm:16420540kB, anon-rss:13951040kB
[  131.000000] Memory cgroup out of memory: Killed process 77 (VLLM::EngineCor) total-vm:2623712kB
[  132.000000] INFO: task python:1234 blocked for more than 120 seconds.
[  133.000000] watchdog: BUG: soft lockup - CPU#7 stuck for 22s! [python:555]
[  134.000000] mlx5_core 0000:5c:00.1 ens1f1np1: Link down
[  135.000000] mlx5_core 0000:5c:00.1 ens1f1np1: Link up
[  136.000000] mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 268269): Detected insufficient power on the PCIe slot (27W).
[  137.000000] e1000e 0000:00:1f.6 eth0: NIC Link is Down
[  138.000000] AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0012 address=0xfff device=0000:41:00.0 flags=0x0020]
[  139.000000] CPU0: Package temperature above threshold, cpu clock throttled (total events = 1)
"""  # noqa: E501
FABRIC = """[Feb 27 2025 15:09:00] [INFO] [tid 1808] multicast group 1 is allocated.
Message payload details:Team setup response

[Feb 27 2025 15:10:02] [ERROR] [tid 12727] detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 61
[Feb 27 2025 15:10:03] [ERROR] [tid 1] failed to do a thing
[Feb 27 2025 15:10:04] [WARNING] [tid 1] something odd
"""  # noqa: E501


def test_devices(tmp_path: Path) -> None:
    reading = read(tmp_path, kernel_log, BOOT)
    devices = {fact.name: fact for fact in pick(reading, "device")}
    lost = devices["xid.79"]
    assert (lost.device, lost.label("severity"), lost.label("boot_s")) == ("0000:1b:00", "hardware", "123.456789")
    assert lost.unix_ns == 0
    assert lost.text.endswith("GPU has fallen off the bus.")
    mmu = devices["xid.31"]
    assert (mmu.device, mmu.label("severity"), mmu.label("process")) == ("0000:3b:00", "application", "python3")
    assert mmu.label("pid") == "4242"
    assert (devices["xid.999"].label("severity"), devices["xid.999"].label("mig")) == ("unknown", "GPU-I:05")
    switch = devices["sxid.20034"]
    assert (switch.device, switch.label("fatal"), switch.label("link")) == ("0000:c1:00", "1", "30")
    assert devices["amdgpu.reset"].device == "0000:43:00"
    assert devices["pcie.aer.uncorrected"].device == "0000:1b:00"
    assert devices["nic_power"].device == "0000:5c:00"
    assert devices["iommu_fault"].device == "0000:41:00"
    assert "throttle.cpu_thermal" in devices
    # What was corrected is told and is no fault of a device.
    assert {fact.device for fact in pick(reading, "notice", "pcie.aer.corrected")} == {"0000:89:02"}
    assert one(reading, "setting", "iommu").label("value") == "translated"


@pytest.mark.parametrize(
    ("line", "kind", "name"),
    [
        (XID, "device", "xid.79"),
        (f"[12345.678] {XID}", "device", "xid.79"),
        (f"kernel: {XID}", "device", "xid.79"),
        (f"2026-11-30 09:00:00 gpu3 {XID}", "device", "xid.79"),
        ("[900123.1] mlx5_core 0000:5e:00.0 ibp94s0: Link down", "network", "ib.port_down"),
        ("Memory cgroup out of memory: Killed process 77 (VLLM::Worker_TP) total-vm:2623712kB", "exit", "oom"),
    ],
)
def test_lines_that_nothing_else_writes_need_no_front(tmp_path: Path, line: str, kind: Kind, name: str) -> None:
    assert recognises(tmp_path, kernel_log, line)
    assert pick(read(tmp_path, kernel_log, line), kind, name)
    assert not recognises(tmp_path, kernel_log, f"prompt: '{line}'")


def test_a_driver_that_asks_for_a_reset_and_what_was_only_recorded(tmp_path: Path) -> None:
    """NVIDIA's Xid catalogue: 154 says what recovers the device; 43 and 63 are to be ignored."""
    front = "[  123.456789] NVRM: Xid (PCI:0000:1b:00): "
    changed = "154, GPU recovery action changed from 0x{} to 0x{}"
    reset = read(tmp_path, kernel_log, front + changed.format("0 (None)", "1 (GPU Reset Required)"))
    fact = one(reset, "device", "xid.154")
    assert (fact.label("severity"), fact.label("meaning")) == ("hardware", "the driver asks for: GPU Reset Required")
    over = read(tmp_path, kernel_log, front + changed.format("1 (GPU Reset Required)", "0 (None)"))
    assert one(over, "device", "xid.154").label("severity") == "info"
    noted = read(tmp_path, kernel_log, front + "43, pid=1, name=python3, Ch 00000008")
    assert any("Xid 43 on 0000:1b:00: a program ended" in note for note in noted.notes)


def test_processes(tmp_path: Path) -> None:
    reading = read(tmp_path, kernel_log, BOOT)
    host, group = pick(reading, "exit", "oom")
    assert (host.value, host.label("pid"), host.label("command"), host.label("scope")) == (-9, "4242", "python", "host")
    assert (group.label("command"), group.label("scope")) == ("VLLM::EngineCor", "cgroup")
    assert one(reading, "error", "hung_task").value == 120
    lockup = one(reading, "error", "soft_lockup")
    assert (lockup.value, lockup.label("cpu"), lockup.label("pid")) == (22, "7", "555")


def test_links(tmp_path: Path) -> None:
    reading = read(tmp_path, kernel_log, BOOT)
    down = one(reading, "network", "ib.port_down")
    assert (down.device, down.label("interface")) == ("0000:5c:00.1", "ens1f1np1")
    assert one(reading, "notice", "ib.port_up").device == "0000:5c:00.1"
    assert one(reading, "network", "net.link_down").label("interface") == "eth0"


@pytest.mark.parametrize(
    ("line", "unix_ns", "host"),
    [
        (f"[Sun Feb 23 16:24:18 2025] {XID}", 1_740_327_858 * 10**9, ""),
        (f"kern  :warn  : 2025-01-21T04:41:44,285060+01:00 {XID}", 1_737_430_904_285_060_000, ""),
        (f"2025-01-21T04:41:44,285060+00:00 {XID}", 1_737_434_504_285_060_000, ""),
        # No year: the file is of 21 June 2026, so May is of 2026 and November of 2025.
        (f"May  6 00:38:27 gpu7 kernel: [ 4909.922970] {XID}", 1_778_027_907 * 10**9, "gpu7"),
        (f"Nov 22 18:29:55 gpu7 kernel: {XID}", 1_763_836_195 * 10**9, "gpu7"),
        (f"2025-02-23T16:24:18+0000 gpu7 kernel: {XID}", 1_740_327_858 * 10**9, "gpu7"),
    ],
)
def test_times(tmp_path: Path, line: str, unix_ns: int, host: str) -> None:
    fact = one(read(tmp_path, kernel_log, line + "\n"), "device", "xid.79")
    assert (fact.unix_ns, fact.host, fact.device) == (unix_ns, host, "0000:1b:00")


def test_segfault_in_a_library(tmp_path: Path) -> None:
    line = (
        "kern  :warn  : 2025-01-21T04:41:44,285060+00:00 pt_main_thread[2536443]: segfault at 7f797fe00000 ip "
        "00007f7c7ac69996 sp 00007f7c12fd7c30 error 4 in libnccl.so.2[7f7c7ac00000+d3d3000]\n"
    )
    fact = one(read(tmp_path, kernel_log, line), "exit", "segfault")
    assert (fact.value, fact.label("pid"), fact.label("library")) == (-11, "2536443", "libnccl.so.2")


def test_fabric_manager(tmp_path: Path) -> None:
    reading = read(tmp_path, kernel_log, FABRIC)
    error = one(reading, "device", "sxid.20034")
    assert (error.device, error.label("port"), error.label("fatal")) == ("0000:86:00", "61", "1")
    assert error.unix_ns == 1_740_669_002 * 10**9
    assert one(reading, "device", "fabric.error").text.endswith("failed to do a thing")
    assert one(reading, "notice", "fabric.warning").text.endswith("something odd")


def test_not_recognised(tmp_path: Path) -> None:
    ucx = "[1697550000.123456] [host:4242:0]   ucp_ep.c:100  UCX  ERROR no path\n"
    assert not recognises(tmp_path, kernel_log, ucx * 3)
    assert not recognises(tmp_path, kernel_log, "INFO 10-10 01:00:00 [gpu_worker.py:1] a kernel: x\n")
    assert not recognises(tmp_path, kernel_log, "\n\n")


def test_a_flood_is_bounded(tmp_path: Path) -> None:
    reading = read(tmp_path, kernel_log, f"[   12.000000] {XID}\n" * 3000)
    assert len(reading.facts) == 1000
    assert any("2000 facts beyond the first 1000 of a name left out, most of them xid.79" in n for n in reading.notes)


@settings(max_examples=80, deadline=None)
@given(st.one_of(st.binary(max_size=200), mutated(BOOT), mutated(FABRIC)))
def test_only_refuses(data: bytes) -> None:
    never_raises(kernel_log, data, "dmesg.log")


PORT = "pcieport 0000:00:01.0"
CPU3 = "mce: [Hardware Error]: CPU 3: Machine Check"
FIRMWARE = "{1}[Hardware Error]: event severity:"


# The forms are those of drivers/pci/pcie/{aer,dpc,err}.c, arch/x86/kernel/cpu/mce/core.c, drivers/edac/mce_amd.c,
# drivers/acpi/apei/ghes.c and mm/memory-failure.c. Bit 61 of a bank's status says uncorrected (Intel SDM 3B, 16.3.2.2):
# 8c.. has it not, be.. and b2.. do.
@pytest.mark.parametrize(
    ("line", "kind", "name"),
    [
        (f"{PORT}: AER: Uncorrected (Fatal) error received: 0000:01:00.0", "device", "pcie.aer.uncorrected"),
        (f"{PORT}: AER: Multiple Uncorrected (Fatal) error received: 0000:01:00.0", "device", "pcie.aer.uncorrected"),
        (
            f"{PORT}: AER: Uncorrectable (Fatal) error message received from 0000:01:00.0", "device",
            "pcie.aer.uncorrected",
        ),
        (f"{PORT}: AER: Corrected error received: 0000:01:00.0", "notice", "pcie.aer.corrected"),
        (f"{PORT}: AER: Correctable error message received from 0000:01:00.0", "notice", "pcie.aer.corrected"),
        (f"{PORT}: DPC: containment event, status:0x1f01 source:0x0000", "device", "pcie.dpc"),
        (f"{PORT}: DPC: containment event, status:0x000d, ERR_FATAL received from 0000:01:00.0", "device", "pcie.dpc"),
        (f"{PORT}: AER: device recovery failed", "device", "pcie.recovery_failed"),
        ("mce: [Hardware Error]: Machine check events logged", "notice", "mce.logged"),
        (f"{CPU3}: 0 Bank 7: 8c00004000010090", "notice", "mce.corrected"),
        (f"{CPU3}: 0 Bank 7: be00000000800400", "device", "mce.uncorrected"),
        (f"{CPU3} Exception: 5 Bank 1: b200000000000115", "device", "mce.uncorrected"),
        ("mce: [Hardware Error]: Machine check: Processor context corrupt", "device", "mce.fatal"),
        ("Kernel panic - not syncing: Fatal machine check", "device", "mce.fatal"),
        ("[Hardware Error]: Corrected error, no action required.", "notice", "mce.corrected"),
        ("[Hardware Error]: Deferred error, no action required.", "notice", "mce.corrected"),
        ("[Hardware Error]: System Fatal error.", "device", "mce.uncorrected"),
        ("[Hardware Error]: Uncorrected, software restartable error.", "device", "mce.uncorrected"),
        (f"{FIRMWARE} corrected", "notice", "mce.corrected"),
        (f"{FIRMWARE} fatal", "device", "mce.firmware"),
        (f"{FIRMWARE} recoverable", "device", "mce.firmware"),
        (
            "Memory failure: 0x1840200: Sending SIGBUS to python3:33395 due to hardware memory corruption", "device",
            "host_memory.poisoned",
        ),
    ],
)  # fmt: skip
def test_errors_of_cpus_memory_and_pcie_are_told_by_whether_they_were_corrected(
    tmp_path: Path, line: str, kind: Kind, name: str
) -> None:
    reading = read(tmp_path, kernel_log, f"[  100.000001] {line}\n")
    assert [(fact.kind, fact.name) for fact in reading.facts] == [(kind, name)]
    if name in {"pcie.aer.uncorrected", "pcie.aer.corrected"} or "ERR_FATAL" in line:
        assert reading.facts[0].device == "0000:01:00"  # the device that erred, not the port that tells of it


def test_whose_memory_was_lost_is_said(tmp_path: Path) -> None:
    line = "[1.000001] MCE: Killing python3:4242 due to hardware memory corruption fault at 4631e000\n"
    assert one(read(tmp_path, kernel_log, line), "device", "host_memory.poisoned").label("pid") == "4242"

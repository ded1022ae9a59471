"""Throttle reasons count only in force, and every form of nvidia-smi tells the same of a device under one name."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trace.readers.host_evidence import mutated, never_raises, one, pick, read, recognises, values

from linkwise.core.errors import InputError
from linkwise.trace.readers import nvidia_smi

# Cut from the layout of driver 550, with a link at half its width and the reasons of a hot card.
QUERY = """
==============NVSMI LOG==============

Timestamp                                 : Mon Feb 24 10:00:00 2025
Driver Version                            : 550.54.15
CUDA Version                              : 12.4

Attached GPUs                             : 1
GPU 00000000:1B:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    GPU UUID                              : GPU-5269b708-678a-b1a8-60f0-c90406537486
    Minor Number                          : 3
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    PCI
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 5
                Device Current            : 5
                Host Max                  : 5
            Link Width
                Max                       : 16x
                Current                   : 8x
        Replays Since Reset               : 12
    Performance State                     : P0
    Clocks Event Reasons
        Idle                              : Not Active
        Applications Clocks Setting       : Active
        SW Power Cap                      : Not Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Active
            HW Power Brake Slowdown       : Not Active
        Sync Boost                        : Not Active
        SW Thermal Slowdown               : Not Active
        Display Clock Setting             : Not Active
    Clocks Event Reasons Counters
        SW Power Capping                  : 12234991553 us
        HW Thermal Slowdown               : 77 us
    FB Memory Usage
        Total                             : 81559 MiB
        Used                              : 1000 MiB
    Utilization
        Gpu                               : 97 %
        Memory                            : 40 %
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            SRAM Uncorrectable            : 0
            DRAM Correctable              : 5
            DRAM Uncorrectable            : 2
        Aggregate
            DRAM Uncorrectable            : N/A
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 1
        Pending                           : Yes
        Remapping Failure Occurred        : No
    Temperature
        GPU Current Temp                  : 91 C
        GPU T.Limit Temp                  : N/A
        Memory Current Temp               : 88 C
    GPU Power Readings
        Power Draw                        : 350.25 W
        Current Power Limit               : 700.00 W
    Module Power Readings
        Power Draw                        : 999.00 W
    Clocks
        SM                                : 345 MHz
    Max Clocks
        SM                                : 1980 MHz
    Fabric
        State                             : In Progress
        Status                            : N/A
    Processes
        GPU instance ID                   : N/A
        Process ID                        : 4242
            Type                          : C
            Name                          : VLLM::Worker_TP3
            Used GPU Memory               : 900 MiB
"""
LINKS = """GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-aaaa)
\t Link 0: 25 GB/s
\t Link 1: <inactive>
\t Link 2: 25 GB/s
GPU 1: NVIDIA A100 80GB PCIe (UUID: GPU-bbbb)
NVML: Unable to retrieve NVLink information as all links are inActive
"""
ERRORS = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa)
\t Link 0: Replay Errors: 0
\t Link 0: Recovery Errors: 0
\t Link 0: CRC Errors: 0

\t Link 1: Replay Errors: 3
\t Link 1: Recovery Errors: 0
\t Link 1: CRC Errors: 8814
"""
CSV = """timestamp, index, pci.bus_id, pstate, temperature.gpu, utilization.gpu [%], power.draw [W], clocks_event_reasons.active, ecc.errors.uncorrected.volatile.total
2026/06/20 10:00:00.500, 0, 00000000:1B:00.0, P0, 60, 99 %, 699.81 W, 0x0000000000000000, 0
2026/06/20 10:00:01.500, 0, 00000000:1B:00.0, P0, 88, 99 %, 400.00 W, 0x0000000000000048, 1
2026/06/20 10:00:02.500, 0, 00000000:1B:00.0, [GPU is lost], [GPU is lost]
2026/06/20 10:00:03.500, 0, 00000000:1B:00.0, [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost]
"""  # noqa: E501
TABLE = """+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                    0 |
| N/A   34C    P0             115W /  700W|    1000MiB /  81559MiB |      7%      Default |
+-----------------------------------------+------------------------+----------------------+
| Processes:                                                                              |
|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |
|    0   N/A  N/A   2969      C   VLLM::Worker_TP1                              900MiB    |
+-----------------------------------------------------------------------------------------+
"""


def test_query(tmp_path: Path) -> None:
    reading = read(tmp_path, nvidia_smi, QUERY)
    gauges = values(reading, "gauge")
    assert gauges["gpu.pcie_width"] == 8
    assert gauges["gpu.pcie_width_max"] == 16
    assert gauges["gpu.power_w"] == 350.25  # the module's own is another figure
    assert gauges["gpu.memory_used_bytes"] == 1000 * 2**20
    assert gauges["gpu.temperature_c"] == 91
    assert (gauges["gpu.sm_clock_mhz"], gauges["gpu.sm_clock_max_mhz"]) == (345, 1980)
    devices = {fact.name: fact for fact in pick(reading, "device")}
    assert set(devices) == {
        "throttle.hw_slowdown", "throttle.hw_thermal", "ecc.uncorrected", "ecc.repair_pending", "fabric.in_progress",
    }  # fmt: skip
    hot = devices["throttle.hw_thermal"]
    assert (hot.device, hot.label("pstate"), hot.label("utilization")) == ("0000:1b:00", "P0", "97 %")
    assert hot.unix_ns == 1_740_391_200_000_000_000  # 2025-02-24 10:00 UTC
    assert (devices["ecc.uncorrected"].value, devices["ecc.uncorrected"].label("memory")) == (2, "dram")
    assert [f.name for f in pick(reading, "notice")] == ["app_clocks"]
    counters = values(reading, "counter")
    assert counters["gpu.throttled_us.sw_power_cap"] == 12234991553
    assert counters["gpu.pcie_replays"] == 12
    assert counters["gpu.remapped_uncorrectable"] == 1
    process = one(reading, "place", "process")
    assert (process.rank, process.label("pid"), process.device) == (3, "4242", "0000:1b:00")
    assert one(reading, "place", "gpu").label("minor") == "3"


def test_links(tmp_path: Path) -> None:
    reading = read(tmp_path, nvidia_smi, LINKS)
    off = one(reading, "device", "nvlink.inactive")
    assert (off.device, off.value, off.label("links")) == ("gpu0", 1, "1")
    assert one(reading, "notice", "nvlink.none_active").device == "gpu1"
    active = {f.device: f.value for f in pick(reading, "gauge", "gpu.nvlink_active")}
    assert active == {"gpu0": 2, "gpu1": 0}
    counters = pick(read(tmp_path, nvidia_smi, ERRORS), "counter")
    assert [(f.name, f.value, f.label("links")) for f in counters] == [
        ("gpu.nvlink_replay_errors", 3, "1"),
        ("gpu.nvlink_recovery_errors", 0, ""),
        ("gpu.nvlink_crc_errors", 8814, "1"),
    ]


def test_csv(tmp_path: Path) -> None:
    reading = read(tmp_path, nvidia_smi, CSV)
    # 0x48 = hardware slowdown (0x8) by heat (0x40).
    assert [f.name for f in pick(reading, "device")] == [
        "throttle.hw_slowdown", "throttle.hw_thermal", "ecc.uncorrected", "gpu_lost",
    ]  # fmt: skip
    assert {f.device for f in reading.facts} == {"0000:1b:00"}
    assert [f.value for f in pick(reading, "gauge", "gpu.power_w")] == [699.81, 400]
    assert pick(reading, "gauge", "gpu.power_w")[0].unix_ns == 1_781_949_600_500_000_000  # 2026-06-20 10:00:00.5
    assert any("1 rows with other numbers of fields" in note for note in reading.notes)


def test_table(tmp_path: Path) -> None:
    reading = read(tmp_path, nvidia_smi, TABLE)
    assert values(reading, "gauge")["gpu.power_limit_w"] == 700
    assert values(reading, "gauge")["gpu.utilization_pct"] == 7
    process = one(reading, "place", "process")
    assert (process.rank, process.device, process.label("pid")) == (1, "0000:1b:00", "2969")


def test_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="XML"):
        read(tmp_path, nvidia_smi, '<?xml version="1.0" ?>\n<nvidia_smi_log>\n</nvidia_smi_log>\n')
    assert not recognises(tmp_path, nvidia_smi, "index, name\n0, a card\n")
    assert not recognises(tmp_path, nvidia_smi, "GPU 0: NVIDIA A100 (UUID: GPU-1)\n")  # nvidia-smi -L: no figures


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.binary(max_size=200), mutated(QUERY), mutated(LINKS + ERRORS), mutated(CSV), mutated(TABLE)))
def test_only_refuses(data: bytes) -> None:
    never_raises(nvidia_smi, data, "evidence.txt")

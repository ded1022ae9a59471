"""Our hardware facts against the reference table, and the uncalibrated constants against measured collectives."""

import csv
import json
import re
from pathlib import Path

import pytest

from linkwise.cluster import presets
from linkwise.cluster.types import Tier

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
pytestmark = pytest.mark.skipif(
    not (DATA / "hardware").is_dir(), reason="the reference data is not beside the repository"
)

# How the table spells what we name; everything else differs by case and separators only.
SPELLED = {
    "A100 40GB SXM4": "a100-40gb-sxm",
    "A100 80GB SXM4": "a100-80gb-sxm",
    "H100 SXM5": "h100-sxm",
    "B300 SXM6": "b300-sxm",
    "GB200 (per GPU)": "gb200",
    "GB300 (per GPU)": "gb300",
    "RTX PRO 6000 Blackwell Server": "rtx-pro-6000",
    "MI250X (2 GCD)": "mi250x",
}


def _rows(name: str) -> list[dict[str, str]]:
    path = DATA / name
    return list(csv.DictReader(path.read_text("utf-8").splitlines())) if path.is_file() else []


def _ours(row: dict[str, str]) -> presets.Accelerator:
    name = SPELLED.get(row["name"], row["name"].lower().replace(" ", "-"))
    return presets.accelerator(name)


def test_the_table_and_our_list_name_the_same_accelerators() -> None:
    assert {_ours(row).name for row in _rows("hardware/accelerators.csv")} == {a.name for a in presets.hardware()}


@pytest.mark.parametrize("row", _rows("hardware/accelerators.csv"), ids=lambda row: row["name"])
def test_figures(row: dict[str, str]) -> None:
    ours = _ours(row)
    assert ours.hbm_Bps == pytest.approx(float(row["hbm_TBps"]) * 1e12)
    assert ours.nominal_GB == int(row["nominal_mem_GB"])
    flops = {d: float(row[f"{d}_dense_TFLOPS"]) * 1e12 for d in ("bf16", "fp8", "fp4") if row[f"{d}_dense_TFLOPS"]}
    assert ours.flops == pytest.approx(flops)
    assert ours.driver_memory_bytes == int(row["driver_mem_bytes"] or 0)
    per_direction = row["scaleup_GBps_per_dir"]
    if "bridged pair" in per_direction:
        assert ours.scaleup_Bps == 0
        ours = presets.accelerator(f"{ours.name}-bridged")
    first = re.match(r"[\d.]+", per_direction)
    assert first is not None
    # The table rounds 56.25 (four links of 14.0625) to 56.
    assert ours.scaleup_Bps == pytest.approx(float(first[0]) * 1e9, rel=0.005)
    if "K" in row["confidence"].split("V")[0]:
        assert ours.confidence == "K"


@pytest.mark.parametrize(
    ("name", "table_gpu"), [("h100-sxm", "H100-80"), ("rtx-3090", "RTX 3090"), ("l40s", "L40S"), ("mi300x", "MI300X")]
)
def test_memory_is_what_engines_logged(name: str, table_gpu: str) -> None:
    logged = {
        float(row["gpu_mem_gib"])
        for row in _rows("memory/kv_capacity.csv")
        if row["gpu_mem_gib"] and re.fullmatch(rf"(\d+x )?{re.escape(table_gpu)}", row["gpu"])
    }
    assert logged == {round(presets.accelerator(name).memory_bytes / 2**30, 2)}


def test_memory_of_the_worked_chains() -> None:
    chains = {chain["id"]: chain for chain in json.loads((DATA / "seeds" / "chains.json").read_text())}
    for identity, name in (("fit_405b", "h100-sxm"), ("mla_dp_attention", "h200-sxm")):
        stated = chains[identity]["inputs"]["device_memory_GiB"]
        assert presets.accelerator(name).memory_bytes == pytest.approx(stated * 2**30, abs=1)


def _measured(hardware: str, algorithm: str, ranks: str, low: int, high: int) -> list[tuple[int, float]]:
    return [
        (int(row["size_bytes"]), float(row["time_us"]))
        for row in _rows("collectives/measurements.csv")
        if hardware in row["hardware"]
        and algorithm in row["algo/impl"]
        and row["collective"] == "all_reduce"
        and row["nranks"] == ranks
        and row["size_bytes"]
        and low <= int(row["size_bytes"]) <= high
    ]


def test_custom_one_shot() -> None:
    cluster = presets.shorthand("8xb300")
    base, step = cluster.constants.latency("custom", Tier.ISLAND)
    for size, time_us in _measured("B300/GB300", "custom 1-stage", "6", 0, 2**18):
        moved_us = 5 * size / cluster.bandwidth(Tier.ISLAND) * 1e6  # each rank reads five peers
        assert base + step + moved_us == pytest.approx(time_us, rel=0.15)


@pytest.mark.parametrize(
    ("hardware", "algorithm", "preset", "ranks"),
    [("8xH200 node", "Ring (NVLS off)", "8xh200-sxm", "8"), ("8xB200", "Ring (NVLS off)", "8xb200", "8")],
)
def test_ring_bandwidth(hardware: str, algorithm: str, preset: str, ranks: str) -> None:
    bandwidth = presets.shorthand(preset).bandwidth(Tier.ISLAND)
    measured = _measured(hardware, algorithm, ranks, 2**33, 2**33)
    assert measured
    for size, time_us in measured:
        wire = 2 * size * (int(ranks) - 1) / int(ranks)
        assert wire / time_us * 1e6 == pytest.approx(bandwidth, rel=0.06)

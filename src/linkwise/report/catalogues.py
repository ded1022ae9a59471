"""What is known: models, hardware, engines, each with its sources."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from linkwise.cluster.types import Accelerator
from linkwise.core.units import GB, GiB
from linkwise.engine.registry import Known
from linkwise.model.catalogue import Entry
from linkwise.report.text import table

if TYPE_CHECKING:
    from rich.table import Table


def models(entries: Iterable[Entry]) -> "list[str | Table]":
    """Names, where the hub has them, and where the facts come from."""
    rows = [[e.name, e.hub, e.source] for e in entries]
    return [
        table(["model", "on the hub", "facts from"], rows),
        "Any other model: a folder with its config.json, or a hub id where the hub is reachable.",
    ]


def hardware(accelerators: Iterable[Accelerator]) -> "list[str | Table]":
    """Memory as a process sees it, bandwidths per direction, dense compute."""
    rows = []
    for device in accelerators:
        flops = " ".join(f"{name} {value / 1e12:.0f}" for name, value in device.flops.items())
        scale = f"{device.scaleup_kind} {device.scaleup_Bps / GB:.0f}" if device.scaleup_Bps else "-"
        rows.append(
            [
                device.name,
                f"{device.memory_bytes / GiB:.2f}",
                f"{device.hbm_Bps / GB:,.0f}",
                flops,
                scale,
                f"{device.pcie_Bps / GB:.0f}",
                device.confidence,
                f"{device.source}; memory: {device.memory_source}",
            ]
        )
    heads = ["name", ">memory GiB", ">HBM GB/s", "dense TFLOP/s", "scale-up GB/s", ">PCIe GB/s", "", "source"]
    return [
        table(heads, rows),
        "V: verified against the source. K: at least one figure is from memory and unverified.",
        "A cluster is 8xh100-sxm (one node of eight), 4x8xh200-sxm (four of them), or a YAML file.",
    ]


def engines(known: Iterable[Known]) -> "list[str | Table]":
    """Which engines, and where each figure comes from."""
    blocks: list[str | Table] = []
    rows = []
    for engine in known:
        compared = "compared with the real engine" if engine.convention_supported else "not compared yet"
        rows.append(
            [engine.name, engine.version, ", ".join(f"before {v}" for v in engine.older), compared, engine.about]
        )
    blocks.append(table(["engine", "version", "older facts", "step convention", ""], rows))
    for engine in known:
        blocks.append(table([f"{engine.name} figure", "source"], [s.split(": ", 1) for s in engine.sources]))
    return blocks

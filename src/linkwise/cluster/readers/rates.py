"""How fast is a link that a file names? Spec and NCCL's figure by compute capability, gfx architecture, PCIe rate."""

import re
from functools import cache
from importlib.resources import files

from linkwise.core.files import parse_yaml_object
from linkwise.core.schema import Frozen, convert

GB = 1e9
_GTPS = re.compile(r"(\d{1,4}(?:\.\d{1,3})?)\s*GT/s", re.IGNORECASE)


class Rate(Frozen, frozen=True, kw_only=True):
    """GB/s per direction of one link (or one lane); None where no figure is known."""

    spec: float | None = None
    nccl: float | None = None

    def bps(self, links: int) -> tuple[float | None, float | None]:
        """`(spec_Bps, nccl_Bps)` of so many links together."""
        spec = None if self.spec is None else self.spec * links * GB
        return spec, None if self.nccl is None else self.nccl * links * GB


class _Unknown(Frozen, frozen=True, kw_only=True):
    GTps: float
    width: int


class _Smp(Frozen, frozen=True, kw_only=True):
    intel: dict[int, float]
    amd: float
    arm: float
    power: float


class _Facts(Frozen, frozen=True, kw_only=True):
    facts_version: int
    sources: dict[str, str]
    nvlink: dict[int, Rate]
    xgmi: dict[str, Rate]
    pcie_lane: dict[float, Rate]
    pcie_unknown: _Unknown
    smp: _Smp


@cache
def _facts() -> _Facts:
    text = files("linkwise.cluster").joinpath("facts", "nccl.yaml").read_text("utf-8")
    return convert(parse_yaml_object(text, where="nccl.yaml"), _Facts, where="nccl.yaml")


def nvlink(capability: int | None) -> Rate:
    """One NVLink of a GPU of this compute capability (major * 10 + minor); empty when not known."""
    table = _facts().nvlink
    if capability is None or capability < min(table):
        return Rate()
    if capability in table:
        return table[capability]
    return table[max(known for known in table if known <= capability and known != 86)]


def xgmi(architecture: str) -> Rate:
    """One xGMI link of an AMD GPU: `gfx942`, or `908` as older RCCL dumps write it; empty when not known."""
    return _facts().xgmi.get(architecture.lower().removeprefix("gfx").partition(":")[0], Rate())


def pcie(speed: str, width: str) -> tuple[float | None, float | None, list[str]]:
    """`(spec_Bps, nccl_Bps, remarks)` of a PCIe link from the strings sysfs gives: "16.0 GT/s PCIe", "16".

    A virtual machine has no speed and width 0: the width becomes 16, as in NCCL. Without a speed there is no spec
    figure, and NCCL's is that of generation 3.
    """
    facts, remarks = _facts(), []
    lanes = int(width) if re.fullmatch(r"\d{1,3}", width) else 0
    if not 1 <= lanes <= 32:
        remarks.append(f"link width {width!r} taken as {facts.pcie_unknown.width}")
        lanes = facts.pcie_unknown.width
    match = _GTPS.search(speed)
    lane = facts.pcie_lane.get(float(match[1])) if match else None
    if lane is None:
        remarks.append(f"link speed {speed[:40]!r} not known: no spec figure, NCCL plans with generation 3")
        fallback = facts.pcie_lane[facts.pcie_unknown.GTps]
        return None, fallback.bps(lanes)[1], remarks
    return *lane.bps(lanes), remarks


def smp_Bps(arch: str, vendor: str, model: int) -> float | None:
    """What NCCL plans with between two sockets of this CPU; None when it names none it knows."""
    table, vendor = _facts().smp, vendor.lower()
    if arch in ("arm64", "aarch64"):
        return table.arm * GB
    if arch.startswith("ppc"):
        return table.power * GB
    if "amd" in vendor:
        return table.amd * GB
    if "intel" in vendor:
        return table.intel[max((known for known in table.intel if known <= model), default=0)] * GB
    return None

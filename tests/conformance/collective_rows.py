"""Rows of the shared collective measurements against our times: what each is predicted to take, or why it cannot be.

The measurements are read in place; nothing of them is copied here. What a row is (implementation, mode, machine)
follows from its text by the rules below, so that rows we never saw are read the same way.
"""

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median

import msgspec

from linkwise.cluster import presets
from linkwise.cluster.types import Cluster, Constants, Tier
from linkwise.core.errors import InputError
from linkwise.core.quantity import value_of
from linkwise.plan.collective_time import estimate, floor_us
from linkwise.plan.collective_ways import Group, Way, group_of, link_of, on_nic, ways
from linkwise.plan.collectives import wire

MEASUREMENTS = Path(__file__).resolve().parents[3] / "shared" / "data" / "collectives" / "measurements.csv"
ABSENT = "the shared reference data is not beside the repository"
MiB = 2**20
LARGE = 16 * MiB

# What a row's columns call a kind (the start of the name), and what we call it. A reduce is a broadcast backwards.
_KINDS = (
    (r"all_?reduce", "all_reduce"), (r"all_?gather", "all_gather"), (r"reduce_?scatter", "reduce_scatter"),
    (r"all_?to_?all|moe_", "all_to_all"), (r"broadcast|reduce$", "broadcast"),
    (r"send_?recv|kv_transfer|host_to_device|device_to_host|p2p", "send_recv"),
)  # fmt: skip
# Implementation by the text of its column, first match.
_IMPLEMENTATIONS = (
    (r"custom 1-stage", "custom"),
    (r"custom 2-stage", "custom-two-shot"),
    (r"multimem", "multimem"),
    (r"symm_mem", "symm-mem"),
    (r"oneshot", "trtllm-one-shot"),
    (r"twoshot", "trtllm-two-shot"),
    (r"nccl.*symmetric", "nccl-symmetric"),
    (r"deepep.*low-latency", "deepep-low-latency"),
    (r"deepep", "deepep"),
    (r"mooncake te|nixl|ib_write|ib_read|ib_send", "transfer"),
    (r"nvbandwidth", "copy"),
    (r"n?rccl|nccl", "nccl"),
)
# Accelerator by the text of the hardware column, first match. A GH200's GPU is an H100; SM names mean the usual card.
_DEVICES = (
    (r"GB300", "gb300"), (r"GB200", "gb200"), (r"B300|SM10\.3", "b300"), (r"B200|SM100", "b200"),
    (r"GH200", "h100-sxm"), (r"H200", "h200"), (r"H100|SM9", "h100-sxm"), (r"H800", "h800"),
    (r"H20\b", "h20"), (r"A100", "a100-80gb-sxm"),
    (r"A40\b", "a40"), (r"RTX ?4090", "rtx-4090"), (r"RTX ?5090", "rtx-5090"), (r"MI300X", "mi300x"),
    (r"MI325X", "mi325x"), (r"MI355X", "mi355x"), (r"L40S", "l40s"), (r"p5en", "h200"), (r"p5\b", "h100-sxm"),
    (r"p4de?\b", "a100-80gb-sxm"), (r"A3-Mega", "h100-sxm"),
)  # fmt: skip
# Only the NICs matter for a transfer between nodes; the device is then any with a wide host link.
_ANY = "h100-sxm"
_EFA = (("p4", "efa1"), ("p5en", "efa3"), ("p5", "efa2"), ("p6", "efa4"))


@dataclass(frozen=True)
class Row:
    """One line of the file. Times in us, bandwidths in GB/s, None where a column is empty."""

    number: int
    source: str
    hardware: str
    ranks: int
    nodes: int
    collective: str
    implementation: str
    size: float | None
    time_us: float | None
    algbw: float | None
    busbw: float | None
    note: str

    @property
    def text(self) -> str:
        return f"{self.hardware} {self.implementation} {self.note}"

    @property
    def machine(self) -> str:
        """What is left out together: one source's rows of one machine."""
        return f"{self.source} | {self.hardware}"


@dataclass(frozen=True)
class Case:
    """A row as a question of ours. `observed` and the prediction are seconds, or bytes/s where only a rate is given.

    nic: class of its NICs, "" inside a node. only: algorithms the row allows (empty = any). rate: what a bandwidth
    counts, "" for a time.
    """

    row: Row
    why: str = ""
    implementation: str = ""
    kind: str = ""
    mode: str = "graph"
    cluster: Cluster | None = None
    group: Group = field(default=Group(Tier.DEVICE, 1, 1))
    nic: str = ""
    size: float = 0.0
    observed: float = 0.0
    rate: str = ""
    only: tuple[str, ...] = ()

    @property
    def hardware_class(self) -> str:
        if self.cluster is None:
            return ""
        link = link_of(self.cluster, self.group)
        if self.group.tier is Tier.CLUSTER:
            link = self.nic
        return link

    @property
    def label(self) -> tuple[str, str, str]:
        return self.implementation, self.mode, self.hardware_class

    @property
    def large(self) -> bool:
        return bool(self.rate) or self.size >= LARGE


@dataclass(frozen=True)
class Outcome:
    """A case with its prediction: relative error is predicted / observed - 1 in seconds (a rate is turned round)."""

    case: Case
    predicted: float
    error: float
    algorithm: str
    protocol: str
    extrapolated: bool


def rows() -> list[Row]:
    """Every line of the file."""
    with MEASUREMENTS.open(newline="", encoding="utf-8") as file:
        return [
            Row(
                number, line["source_repo_or_doc"], line["hardware"], _count(line["nranks"]), _count(line["nnodes"]),
                line["collective"], line["algo/impl"], *(_number(line[name]) for name in _FIGURES), line["note"],
            )
            for number, line in enumerate(csv.DictReader(file), start=2)
        ]  # fmt: skip


_FIGURES = ("size_bytes", "time_us", "algbw_GBps", "busbw_GBps")


def _number(text: str) -> float | None:
    return float(text) if text.strip() else None


def _count(text: str) -> int:
    return int(text) if text.strip().isdigit() else 0


def _first(rules: tuple[tuple[str, str], ...], text: str) -> str:
    return next((name for pattern, name in rules if re.search(pattern, text, re.IGNORECASE)), "")


def case(row: Row) -> Case:
    """A row as a question, or the reason why it is none."""
    if why := _refusal(row):
        return Case(row, why)
    try:
        made = _question(row)
        if not made.why:
            offered(made)
    except InputError as error:
        return Case(row, f"not a call of ours: {error}")
    return made


def _question(row: Row) -> Case:
    implementation = _first(_IMPLEMENTATIONS, row.implementation)
    kind = next((name for start, name in _KINDS if re.match(start, row.collective)), "")
    moves = kind == "send_recv"
    device = _first(_DEVICES, row.hardware) or (_ANY if moves and row.nodes > 1 else "")
    if not implementation or not kind:
        return Case(row, f"no implementation or kind of ours: {row.implementation}, {row.collective}")
    if not device:
        return Case(row, "the row names no accelerator that we know")
    if row.ranks < 2 and not row.collective.endswith(("_to_device", "_to_host")):
        return Case(row, "fewer than two ranks")
    cluster, nic = _cluster(row, device)
    if cluster is None:
        return Case(row, nic)
    group = group_of(cluster, 2, 2) if moves and row.nodes > 1 else group_of(cluster, row.ranks, row.nodes)
    if row.collective.endswith(("_to_device", "_to_host")):
        group = Group(Tier.NODE, 2, 2)
    size, observed, rate = _figure(row, cluster, kind)
    if not observed:
        return Case(row, rate)
    only: tuple[str, ...] = ()
    if "auto" not in row.implementation and "default" not in row.implementation:
        # Not held to NVLS and NVLSTree: ours are those of large messages, and small ones ran under the name as well.
        only = next((names for pattern, names in _ONLY if re.search(pattern, row.implementation)), ())
    mode = mode_of(row, implementation)
    return Case(row, "", implementation, kind, mode, cluster, group, nic, size, observed, rate, only)


_ONLY = ((r"\bRing", ("ring",)), (r"\bTree", ("tree",)))


def mode_of(row: Row, implementation: str) -> str:
    """eager where the row says that the host launches each call, or posts it (transfers); else graph.

    nccl-tests and engines' sweeps queue calls back to back, which hides the launch as a captured graph does; a row that
    does not say how it was launched is of such a sweep.
    """
    if implementation == "transfer":
        return "eager" if "Mooncake" in row.implementation else "graph"
    said = f"{row.implementation} {row.note}".lower()
    return "eager" if re.search(r"\beager\b|host-launched|incl\. launch", said) else "graph"


def _refusal(row: Row) -> str:
    text = row.text
    if row.ranks < 1 or row.nodes < 1:
        return "no number of ranks or nodes"
    if "missing NVLink" in text:
        return "a machine with a known fault; the healthy one is predicted"
    if re.search(r"DRAM|CPU->CPU", text):
        return "bound by host memory, which a cluster of ours does not describe"
    if "host staged" in text:
        return "staged through host memory of another socket, which a cluster of ours does not describe"
    if re.search(r"SYS\b", row.hardware):
        return "GPU and NIC on different sockets: that path was never measured apart"
    if re.search(r"falls to TCP|without RDMA", row.implementation):
        return "TCP through the kernel: no NIC or host is named"
    given = (row.size, row.time_us, row.algbw, row.busbw)
    if all(x is None for x in given) and not re.search(r"[\d.]+ GB/s", row.note):
        return "neither a size nor a bandwidth"
    if row.collective.startswith("kv_transfer") and row.size is None and row.algbw is None:
        return "no size"
    return ""


def _figure(row: Row, cluster: Cluster, kind: str) -> tuple[float, float, str]:
    """(size, observed, what a rate counts); observed 0 and the reason where there is nothing to compare."""
    size, time, moves = row.size, row.time_us, kind == "send_recv"
    if size is None and (found := re.search(r"= ([\d.]+) MB/rank", row.note)):
        size = float(found[1]) * 1e6
    derived = "pipelined" in row.note or ("time_us derived from algbw" in row.note and moves)
    if size and time and not derived:
        return size, time * 1e-6, ""
    if moves and row.algbw and (size is None or size < LARGE) and row.size and "aggregate" in row.note:
        # Blocks that all devices of a node move at once: one device's time of one block.
        return row.size, row.size * cluster.devices_per_node / (row.algbw * 1e9), ""
    if size and time and "avg latency" in row.note:
        return size, time * 1e-6, ""
    if moves and row.algbw:
        return 0.0, row.algbw * 1e9, "sent"
    if size and row.algbw and not time:
        return size, size / (row.algbw * 1e9), ""
    if row.busbw and not row.algbw and not time:  # as nccl-tests count it, of a large message where no size is given
        if size:
            return size, value_of(wire(kind, size, row.ranks).sent) / (row.busbw * 1e9), ""
        return 0.0, row.busbw * 1e9, "bus"
    for pattern, what in (
        (r"bottleneck bandwidth ([\d.]+) GB/s", "sent"),
        (r"logical bandwidth ([\d.]+) GB/s", "held"),
        (r"([\d.]+) GB/s RDMA", "sent"),
    ):
        if found := re.search(pattern, row.note):
            return 0.0, float(found[1]) * 1e9, what
    return 0.0, 0.0, "no size, and no bandwidth whose meaning is stated"


def _cluster(row: Row, device: str) -> tuple[Cluster | None, str]:
    """The machine of a row and the class of its NICs, or None and the reason."""
    name = device
    if "bridge" in row.hardware.lower() and device == "a40":
        name = "a40-bridged"
    accelerator = presets.accelerator(name)
    if "P2P disabled" in row.implementation:
        accelerator = msgspec.structs.replace(accelerator, p2p=False)
    usual = presets.machines(accelerator, 1, 1)
    full = 4 if device in {"gb200", "gb300"} else 8
    per_node = max(full if row.nodes > 1 or usual.accelerator.scaleup_Bps else 1, -(-row.ranks // row.nodes))
    if "1 GPU each" in row.hardware:
        per_node = 1
    if device == "a40":
        per_node = row.ranks
    cluster = presets.machines(accelerator, row.nodes, per_node)
    if row.nodes == 1 or group_of(cluster, row.ranks, row.nodes).tier is not Tier.CLUSTER:
        return cluster, ""
    count, gbps = _nics(row, per_node)
    if not count:
        return None, "several nodes, and the row names no NIC"
    kind = "nic"
    if "EFA" in row.text:
        kind = next((name for start, name in _EFA if start in row.hardware), "efa2")
    for word, name in (("slingshot", "slingshot"), ("tcpxo", "tcpxo")):
        if word in row.text.lower():
            kind = name
    cluster = msgspec.structs.replace(
        cluster, nics_per_node=count, nic_Bps=gbps * 1e9 / 8, fabric="rail" if count >= per_node else "fat-tree"
    )
    return cluster, kind


# NICs of machines that go by a name: (count, Gb/s of one).
_MACHINES = (
    (r"DGX H[12]00|ND.?H[12]00.v5", (8, 400.0)), (r"DGX A100|NDm?.?A100.v4", (8, 200.0)), (r"\bp4de?\b", (4, 100.0)),
    (r"\bp5en\b", (16, 200.0)), (r"\bp5\b", (32, 100.0)), (r"\bp6-b200\b", (8, 400.0)), (r"\bp6-b300\b", (16, 400.0)),
    (r"A3.?Mega", (8, 200.0)),
)  # fmt: skip


def _nics(row: Row, per_node: int) -> tuple[int, float]:
    """(NICs of a node, Gb/s of one) as the text says; a class without a count is one per device."""
    text = row.hardware
    if found := re.search(r"(\d+) ?x ?(\d+) ?G(?:b|b/s|bps|bE)?\b", text):
        return int(found[1]), float(found[2])
    for name, nics in _MACHINES:
        if re.search(name, text):
            return nics
    count = int(found[1]) if (found := re.search(r"(\d+) (?:CX7|CX-7|NIC)", text)) else per_node
    if re.search(r"CX-?7|NDR|CoreWeave|\b400G", text):
        # Sixteen ports of eight cards are eight cards' worth.
        return min(count, per_node), 400.0
    if re.search(r"Slingshot|HDR|CX-?6", text):
        return per_node, 200.0
    if found := re.search(r"(\d+)G\b", text):
        return 1 if "RoCE" in text else per_node, float(found[1])
    return 0, 0.0


@cache
def cases() -> tuple[Case, ...]:
    """Every row of the file, as a question or with its reason."""
    return tuple(case(row) for row in rows())


def offered(one: Case, constants: Constants | None = None) -> tuple[tuple[Way, ...], float, Cluster]:
    """The ways of a case, the least microseconds of a call, and the machine they hold for, under other constants."""
    cluster = one.cluster
    assert cluster is not None
    if constants is not None:
        cluster = msgspec.structs.replace(cluster, constants=constants)
    if one.nic and one.nic != "nic":
        cluster = on_nic(cluster, one.nic)
    found = ways(one.kind, one.group, cluster, one.implementation)
    kept = tuple(way for way in found if not one.only or way.algorithm in one.only) or found
    lowest = floor_us(cluster, one.implementation, one.kind, one.group) if one.mode == "eager" else 0.0
    return kept, lowest, cluster


def outcome(one: Case, constants: Constants | None = None) -> Outcome:
    """The prediction of a case, under other constants if given."""
    kept, lowest, cluster = offered(one, constants)
    if one.rate:
        return _rate(one, kept, cluster)
    made = estimate(kept, wire(one.kind, one.size, one.group.ranks).sent, lowest)
    return Outcome(one, made.seconds, made.seconds / one.observed - 1, made.algorithm, made.protocol, made.extrapolated)


def _rate(one: Case, kept: tuple[Way, ...], cluster: Cluster) -> Outcome:
    """Bytes/s of a large message: what each rank holds ("held"), nccl-tests' bus bandwidth ("bus"), or what leaves by
    its busiest port ("sent")."""
    way = max(kept, key=lambda each: each.bandwidth_Bps)
    group = one.group
    held = way.bandwidth_Bps / (wire(one.kind, 1.0, group.ranks).sent if one.rate != "bus" else 1.0)
    if one.rate == "sent" and one.kind == "all_to_all":
        left = 1 - 1 / group.nodes if group.tier is Tier.CLUSTER else 1 - 1 / group.ranks
        held *= left
    if one.kind == "send_recv" and group.tier is Tier.CLUSTER and "each" not in one.row.hardware:
        held *= _devices(one, cluster)
    return Outcome(one, held, one.observed / held - 1, way.algorithm, way.protocol, way.extrapolated)


def _devices(one: Case, cluster: Cluster) -> int:
    """Devices whose ports a transfer's rate adds up: all of a node, or one NIC's."""
    if re.search(r"\d+x\d+G", one.row.hardware):
        return cluster.devices_per_node
    return 1 if cluster.nics_per_node >= cluster.devices_per_node else cluster.devices_per_node


def outcomes(constants: Constants | None = None, keep: Callable[[Case], bool] = lambda _: True) -> list[Outcome]:
    """Predictions of every row that can be predicted, in the file's order."""
    return [outcome(one, constants) for one in cases() if not one.why and keep(one)]


def medians(found: list[Outcome]) -> tuple[float | None, float | None]:
    """Median absolute error (below 16 MiB, from 16 MiB up); None for none. Rates count as large."""
    small = [abs(o.error) for o in found if not o.case.large]
    large = [abs(o.error) for o in found if o.case.large]
    return (median(small) if small else None, median(large) if large else None)

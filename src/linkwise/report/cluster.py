"""What a topology file became: the cluster, its matrix, its notes; and what hurts in it."""

import sys
from collections.abc import Sequence

from linkwise.cluster.detail import NodeDetail
from linkwise.cluster.lint import Finding
from linkwise.cluster.topology import Machine, pair
from linkwise.cluster.types import Cluster
from linkwise.report.text import cluster_line, remarks, width_of

_MOST = 16  # devices of a matrix: more do not fit a screen


def cluster(found: Cluster, *, written: str = "") -> list[str]:
    """The first screen of `cluster read`."""
    detail = found.detail
    lines: list[str] = [f"{found.name} · {cluster_line(found)}"]
    if found.nodes > 1:
        over = "" if found.oversubscription == 1 else f", oversubscribed {found.oversubscription:g} to 1"
        lines.append(f"fabric: {found.fabric}{over}")
    if detail and detail.islands:
        homes = [[d for d, at in enumerate(detail.islands) if at == island] for island in sorted(set(detail.islands))]
        lines.append("islands: " + "; ".join("gpu" + ",".join(map(str, home)) for home in homes))
    if detail and detail.paths and found.devices_per_node <= _MOST:
        lines += _matrix(found, detail)
    if found.odd_nodes:
        lines.append(f"not like the first node: {', '.join(map(str, found.odd_nodes))}")
    lines += remarks(found.notes)
    lines.append(f"written to {written}" if written else "-o cluster.yaml writes it, for --on cluster.yaml")
    return lines


def _matrix(found: Cluster, detail: NodeDetail) -> list[str]:
    """Devices against devices and NICs, with NUMA node and nearest NIC."""
    nics = [f"nic{at}" for at in range(len(detail.nic_names))]
    heads = ["", *(f"gpu{at}" for at in range(found.devices_per_node)), *nics, "NUMA", "nearest NIC"]
    rows = []
    for at, row in enumerate(detail.paths):
        words = ["X" if to == at else word for to, word in enumerate(row.split())]
        near = _near([detail.nic_names[nic] for nic in detail.nics_of(at)])
        numa = detail.numa[at] if detail.numa else -1
        rows.append([f"gpu{at}", *words, str(numa) if numa >= 0 else "-", near])
    return _columns([heads, *rows])


def _near(names: Sequence[str]) -> str:
    """NICs of a device in a word or two: mlx5_0, mlx5_1 / mlx5_0, ... (8)"""
    words = ", ".join(names) or "-"
    return words if len(words) <= 24 else f"{names[0]}, ... ({len(names)})"


def _columns(rows: Sequence[Sequence[str]], room: int | None = None) -> list[str]:
    """Rows in aligned columns; those that do not fit go into blocks of their own below, each with the first column.

    Plain text: rich alone would take a third of this command's time. room: None = the width of standard output.
    """
    room = width_of(sys.stdout) if room is None else room
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    blocks: list[list[int]] = [[0]]
    for at in range(1, len(widths)):
        if len(blocks[-1]) > 1 and sum(widths[x] + 2 for x in blocks[-1]) + widths[at] > room:
            blocks.append([0])
        blocks[-1].append(at)
    return ["  ".join(row[at].ljust(widths[at]) for at in block).rstrip() for block in blocks for row in rows]


def machine(found: Machine) -> list[str]:
    """The first screen of `cluster probe`."""
    gpus, nics = found.gpus, found.nics
    counts = [f"{len(parts)} {name}{'s' * (len(parts) != 1)}" for parts, name in ((gpus, "GPU"), (nics, "NIC"))]
    lines = [f"{found.source} · {', '.join(counts)}"]
    rows = [
        [
            part.id,
            part.model or "-",
            part.bus or "-",
            "-" if part.numa is None else str(part.numa),
            f"{part.port_Bps * 8 / 1e9:g} Gb/s" if part.port_Bps else "-",
        ]
        for part in (*gpus, *nics)
    ]
    lines += _columns([["", "device", "PCI", "NUMA", "rate"], *rows])
    if len(gpus) > 1 and len(gpus) <= _MOST:
        ends = [*gpus, *nics]
        words = [[g.id, *("X" if g is e else _word(found, g.id, e.id) for e in ends)] for g in gpus]
        lines += _columns([["", *(end.id for end in ends)], *words])
    return lines + remarks(found.notes)


def _word(found: Machine, a: str, b: str) -> str:
    key = pair(a, b)
    return found.raw.get(key) or (found.paths[key].value if key in found.paths else "-")


def findings(found: Sequence[Finding], source: str) -> list[str]:
    """What hurts, worst first."""
    sure = sum(finding.sure for finding in found)
    if not found:
        return [f"{source}: nothing hurts"]
    lines = [f"{source}: {sure} {'thing hurts' if sure == 1 else 'things hurt'}"]
    if sure < len(found):
        lines[0] += f", {len(found) - sure} cannot be told from this file"
    for finding in found:
        lines += [
            "",
            f"{finding.rule}: {finding.what}" + ("" if finding.sure else " (if the file shows all there is)"),
            f"  says     {finding.evidence}",
            f"  costs    {finding.consequence}",
            f"  do       {finding.remedy}",
        ]
    return lines

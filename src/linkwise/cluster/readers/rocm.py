"""`rocm-smi --showtopo`: tables of weight, hops, link type and bandwidth between GPUs, and their NUMA nodes.

An xGMI link of one hop is NVL, of more hops NVB. For PCIe the tool sees CPUs but no PCI switches: over two NUMA nodes
or three hops it is SYS; within one it is written PHB, the worst it can be, with a note.
"""

import re
from dataclasses import dataclass, field

from linkwise.cluster.readers.base import bounded, check_devices, plain
from linkwise.cluster.topology import Machine, Part, PathClass, Wire, pair
from linkwise.core.errors import InputError

FORMAT = "rocm"
_TITLE = re.compile(
    r"=*\s*(Weight|Hops|Link Type|Bandwidth|Link accessibility|Access)\b[^=]*?\btwo GPUs\s*=*", re.IGNORECASE
)
_NUMA = re.compile(
    r"GPU\[(\d{1,4})\]\s*:\s*\(Topology\)\s*Numa (Node|Affinity)\s*:\s*(-?\d{1,5}|N/?A|None)\s*", re.IGNORECASE
)
_GPU = re.compile(r"GPU(\d{1,4})")
_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")


def recognises(text: str) -> bool:
    """Whether a line is the title of one of the tool's tables."""
    return any(_TITLE.fullmatch(line.strip()) for line in plain(text[: 2**21]).splitlines() if "two GPUs" in line)


@dataclass(slots=True)
class _Table:
    """One table: cells by (row, column) GPU number, and where it is."""

    title: str
    line: int
    columns: list[int] = field(default_factory=list)
    cells: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)
    last: int = 0


def read(text: str, *, where: str) -> Machine:
    """A machine of AMD GPUs. Raises InputError when there is no table with GPUs."""
    tables, numa = _tables(bounded(text, where=where).splitlines(), where)
    gpus = sorted({gpu for table in tables.values() for gpu in table.columns})
    if not gpus:
        raise InputError("no table of GPUs", where=where, expected="output of rocm-smi --showtopo")
    notes = [
        f"line {table.last}: table {table.title!r} ends without rows " + ", ".join(f"GPU{n}" for n in missing)
        for table in tables.values()
        if (missing := [n for n in table.columns if n not in table.rows])
    ]
    short = [t for t in tables.values() if any((r, c) not in t.cells for r in t.rows for c in t.columns)]
    notes += [f"line {table.last}: a row of table {table.title!r} is cut" for table in short]
    partial = bool(notes)
    parts = [Part(id=f"gpu{n}", kind="gpu", index=n, numa=numa.get(n)) for n in gpus]
    check_devices(parts, where=where)
    parts += [
        Part(id=f"numa{n}", kind="cpu", index=n, numa=n) for n in sorted({p.numa for p in parts if p.numa is not None})
    ]
    paths, raw, wires = _links(tables, gpus, numa, notes)
    return Machine(
        format=FORMAT,
        source=where,
        parts=tuple(parts),
        wires=tuple(wires),
        paths=paths,
        raw=raw,
        partial=partial,
        notes=tuple(notes),
    )


def _tables(lines: list[str], where: str) -> tuple[dict[str, _Table], dict[int, int]]:
    tables: dict[str, _Table] = {}
    numa: dict[int, int] = {}
    table: _Table | None = None
    for number, line in enumerate(lines, start=1):
        tokens = line.split()
        if title := _TITLE.fullmatch(line.strip()):
            table = _Table(title[1].lower(), number, last=number)
            if table.title in tables:
                raise InputError(
                    f"line {number}: table {table.title!r} a second time", where=where, expected="one machine"
                )
            tables[table.title] = table
        elif place := _NUMA.fullmatch(line.strip()):
            if place[2].lower() == "node" and place[3].isdigit():
                numa[int(place[1])] = int(place[3])
            table = None
        elif table is not None and tokens and all(_GPU.fullmatch(token) for token in tokens) and not table.columns:
            table.columns = [int(token[3:]) for token in tokens]
            if len(set(table.columns)) < len(tokens):
                raise InputError(f"line {number}: a GPU twice", where=where, expected="each GPU once")
        elif table is not None and tokens and _GPU.fullmatch(tokens[0]) and table.columns:
            _row(table, tokens, number, where)
    return tables, numa


def _row(table: _Table, tokens: list[str], number: int, where: str) -> None:
    gpu = int(tokens[0][3:])
    if gpu not in table.columns or gpu in table.rows:
        raise InputError(f"line {number}: unexpected row {tokens[0]}", where=where, expected="one row per column")
    if len(tokens) - 1 > len(table.columns):
        raise InputError(
            f"line {number}: {len(tokens) - 1} cells under {len(table.columns)} columns",
            where=where,
            expected="one each",
        )
    table.rows.append(gpu)
    table.last = number
    for column, cell in zip(table.columns, tokens[1:], strict=False):
        table.cells[gpu, column] = (cell, number)


def _links(
    tables: dict[str, _Table], gpus: list[int], numa: dict[int, int], notes: list[str]
) -> tuple[dict[str, PathClass], dict[str, str], list[Wire]]:
    paths: dict[str, PathClass] = {}
    raw: dict[str, str] = {}
    wires: list[Wire] = []

    def cell(name: str, a: int, b: int) -> tuple[str, int]:
        cells = tables[name].cells if name in tables else {}
        return cells.get((a, b)) or cells.get((b, a)) or ("", 0)

    for index, a in enumerate(gpus):
        for b in gpus[index + 1 :]:
            key = pair(f"gpu{a}", f"gpu{b}")
            (kind, line), (back, _) = cell("link type", a, b), cell("link type", b, a)
            hops = int(text) if (text := cell("hops", a, b)[0]).isdecimal() and len(text) < 4 else None
            if kind != back:
                notes.append(f"line {line}: GPU{a} says {kind} of GPU{b}, which says {back}: PCIE is taken")
                kind = "PCIE"
            if kind:
                raw[key] = kind
            if kind == "XGMI":
                paths[key] = PathClass.NVB if hops is not None and hops > 1 else PathClass.NVL
                if paths[key] is PathClass.NVL:
                    top = _RANGE.fullmatch(cell("bandwidth", a, b)[0])
                    spec = int(top[2]) * 1e6 if top and int(top[2]) else None
                    wires.append(Wire(a=f"gpu{a}", b=f"gpu{b}", kind="xgmi", spec_Bps=spec))
            elif kind == "PCIE" and (path := _pcie(hops, numa.get(a), numa.get(b))) is not None:
                paths[key] = path
            elif kind not in ("", "PCIE"):
                notes.append(f"line {line}: link type {kind[:20]!r} between GPU{a} and GPU{b}: not known")
    if wires:
        notes.append("rocm-smi does not count xGMI links: each joined pair is one wire")
    if PathClass.PHB in paths.values():
        notes.append("rocm-smi does not see PCI switches: PHB here is the farthest a pair of one NUMA node can be")
    undecided = sum(word == "PCIE" and key not in paths for key, word in raw.items())
    if undecided:
        notes.append(f"{undecided} PCIE pairs without hops and NUMA nodes: no path class")
    return paths, raw, wires


def _pcie(hops: int | None, a: int | None, b: int | None) -> PathClass | None:
    if (hops is not None and hops >= 3) or (a is not None and b is not None and a != b):
        return PathClass.SYS
    if hops == 2 or (a is not None and a == b):
        return PathClass.PHB
    return None

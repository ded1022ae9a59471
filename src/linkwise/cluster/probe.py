"""What is this machine? nvidia-smi or rocm-smi where present, and the PCI and NUMA tree from sysfs.

Tools are run with an argument list, a time limit and a bound on their output. What a tool does not say, sysfs does;
what neither says is left out, with a note.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from linkwise.cluster.readers import parse, rates
from linkwise.cluster.readers.base import bus_id
from linkwise.cluster.readers.paths import Place, all_classes
from linkwise.cluster.topology import Machine, Part, Wire
from linkwise.core.errors import InputError

FORMAT = "probe"
TIMEOUT_S = 20.0
MAX_OUTPUT = 2**20
MAX_ENTRIES = 8192  # PCI functions of one host; virtual functions make thousands

Run = Callable[[Sequence[str]], str | None]

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_RATE = re.compile(r"(\d{1,5}(?:\.\d+)?)\s*Gb/sec")
_NVIDIA, _AMD = "0x10de", "0x1002"
_QUERY = ("nvidia-smi", "--query-gpu=index,pci.bus_id,name", "--format=csv,noheader")


class _Function(NamedTuple):
    """A PCI function. kind: its class; speed, width: as sysfs words them; above: bridges from it up to the root."""

    bus: str
    kind: str
    vendor: str
    numa: int | None
    speed: str
    width: str
    above: tuple[str, ...]


def run_tool(words: Sequence[str]) -> str | None:
    """What a tool prints; None when it is not there, fails, takes too long or prints too much."""
    found = shutil.which(words[0])
    if found is None:
        return None
    try:
        process = subprocess.Popen(  # noqa: S603 - an argument list of our own, no shell
            [found, *words[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,  # so that what the tool starts ends with it
        )
    except OSError:
        return None
    with process:
        timer = threading.Timer(TIMEOUT_S, _end, [process])
        timer.start()
        try:
            output = process.stdout.read(MAX_OUTPUT + 1) if process.stdout else b""
            if len(output) > MAX_OUTPUT:
                _end(process)
            code = process.wait()
        finally:
            timer.cancel()
    return output.decode("utf-8", "replace") if code == 0 and len(output) <= MAX_OUTPUT else None


def _end(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended by itself
        os.killpg(process.pid, signal.SIGKILL)


def probe(root: Path = Path("/sys"), run: Run = run_tool) -> Machine:
    """This machine. root: where sysfs is. run: how a tool is asked. Never fails for a missing tool or file."""
    functions = {f.bus: f for f in _functions(root)}
    nics = _nics(root, functions)
    notes: list[str] = []
    machine = _from_tool(run, notes)
    if machine is None:
        return _from_tree(root, functions, nics, notes)
    names = _names(run)
    parts = [_filled(part, functions, nics, names) for part in machine.parts]
    return msgspec.structs.replace(
        machine, format=FORMAT, source="this machine", parts=tuple(parts), notes=(*machine.notes, *notes)
    )


def _from_tool(run: Run, notes: list[str]) -> Machine | None:
    """The machine as nvidia-smi or rocm-smi has it."""
    for words in (("nvidia-smi", "topo", "-m"), ("rocm-smi", "--showtopo")):
        said = run(words)
        if said is None:
            continue
        try:
            found = parse(said, where=" ".join(words))
        except InputError as error:
            notes.append(f"not used: {error}")
            continue
        if isinstance(found, Machine) and found.gpus:
            return found
    notes.append(
        "neither nvidia-smi nor rocm-smi says which GPUs there are: PCI devices only, links between GPUs unknown"
    )
    return None


def _names(run: Run) -> dict[int, tuple[str, str]]:
    """PCI address and product of each GPU by nvidia-smi's index."""
    found = {}
    for line in (run(_QUERY) or "").splitlines():
        words = [word.strip() for word in line.split(",", 2)]
        if len(words) == 3 and words[0].isdigit() and (bus := bus_id(words[1])):
            found[int(words[0])] = bus, words[2]
    return found


def _filled(
    part: Part, functions: dict[str, _Function], nics: dict[str, Part], names: dict[int, tuple[str, str]]
) -> Part:
    """A tool's part with what sysfs adds: address, product, NUMA node, line rate."""
    if part.kind == "gpu" and part.index in names:
        bus, model = names[part.index]
        numa = functions[bus].numa if part.numa is None and bus in functions else part.numa
        return msgspec.structs.replace(part, bus=part.bus or bus, model=part.model or model, numa=numa)
    if part.kind == "nic" and (same := next((nic for nic in nics.values() if nic.model == part.model), None)):
        return msgspec.structs.replace(part, bus=same.bus, numa=same.numa, port_Bps=same.port_Bps)
    return part


def _from_tree(root: Path, functions: dict[str, _Function], nics: dict[str, Part], notes: list[str]) -> Machine:
    """GPUs and NICs from PCI alone, numbered by address."""
    buses = [f.bus for f in functions.values() if _is_gpu(f)]
    gpus = [
        Part(id=f"gpu{at}", kind="gpu", index=at, numa=functions[bus].numa, bus=bus)
        for at, bus in enumerate(sorted(buses))
    ]
    cards = [
        msgspec.structs.replace(nic, id=f"nic{at}", index=at)
        for at, nic in enumerate(sorted(nics.values(), key=lambda nic: nic.bus))
    ]
    places, wires = {}, []
    for part in (*gpus, *cards):
        one = functions[part.bus]
        cpu = f"numa{one.numa}" if one.numa is not None else ""
        places[part.id] = Place(switches=one.above[:-1], cpu=cpu, root=one.above[-1] if one.above else "")
        if cpu:
            spec, nccl, _ = rates.pcie(one.speed, one.width)
            wires.append(Wire(a=part.id, b=cpu, kind="pcie", spec_Bps=spec, nccl_Bps=nccl))
    sockets = sorted({int(path.name[4:]) for path in _entries(root / "devices/system/node") if path.name[4:].isdigit()})
    cpus = [Part(id=f"numa{n}", kind="cpu", index=n, numa=n) for n in sockets]
    parts = (*gpus, *cards, *cpus)
    return Machine(
        format=FORMAT, source="this machine", parts=parts, wires=tuple(wires), paths=all_classes(parts, wires, places),
        notes=tuple(notes),
    )  # fmt: skip


def _is_gpu(function: _Function) -> bool:
    """A display or 3D controller of NVIDIA or AMD, or a processing accelerator of AMD (0x12)."""
    display = function.kind.startswith("0x03")
    return (display and function.vendor in (_NVIDIA, _AMD)) or (
        function.kind.startswith("0x12") and function.vendor == _AMD
    )


def _functions(root: Path) -> Iterator[_Function]:
    """Every PCI function that sysfs lists."""
    for entry in _entries(root / "bus/pci/devices"):
        if not _ADDRESS.fullmatch(entry.name):
            continue
        numa = _text(entry / "numa_node")
        # The real path names every bridge on the way from the root: pci0000:00/0000:00:01.0/0000:01:00.0
        way = [name for name in os.path.realpath(entry).split(os.sep) if _ADDRESS.fullmatch(name)]
        yield _Function(
            bus=entry.name,
            kind=_text(entry / "class"),
            vendor=_text(entry / "vendor"),
            numa=int(numa) if numa.isdigit() else None,
            speed=_text(entry / "max_link_speed"),
            width=_text(entry / "max_link_width"),
            above=tuple(reversed(way[:-1])) or (_root(entry),),
        )


def _root(entry: Path) -> str:
    """The host bridge of a function that hangs on it directly: pci0000:00."""
    return Path(os.path.realpath(entry)).parent.name


def _nics(root: Path, functions: dict[str, _Function]) -> dict[str, Part]:
    """NICs by PCI address: RDMA devices by their names, other network cards by their interface."""
    found: dict[str, Part] = {}
    classes: tuple[tuple[str, Literal["rdma", "net"]], ...] = (("class/infiniband", "rdma"), ("class/net", "net"))
    for folder, kind in classes:
        for entry in _entries(root / folder):
            way = os.path.realpath(entry / "device").split(os.sep)
            bus = next((name for name in reversed(way) if name in functions), None)
            if bus is None or bus in found or not functions[bus].kind.startswith("0x02"):
                continue
            rate = _rdma_Bps(entry) if kind == "rdma" else _net_Bps(entry)
            found[bus] = Part(
                id=f"nic{len(found)}", kind="nic", numa=functions[bus].numa, bus=bus, model=entry.name, port_Bps=rate
            )
    return found


def _rdma_Bps(entry: Path) -> float | None:
    """Line rate of the first port: "400 Gb/sec (4X NDR)"."""
    match = _RATE.search(_text(entry / "ports/1/rate"))
    return float(match[1]) * 1e9 / 8 if match and float(match[1]) > 0 else None


def _net_Bps(entry: Path) -> float | None:
    """Line rate of an interface in Mb/s; -1, or an error, when it is down."""
    speed = _text(entry / "speed")
    return int(speed) * 1e6 / 8 if speed.isdigit() and 0 < int(speed) < 10_000_000 else None


def _entries(folder: Path) -> list[Path]:
    """What a folder holds, in order; none when it is not there."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for _, entry in zip(range(MAX_ENTRIES), entries, strict=False)]
    except OSError:
        return []
    return [folder / name for name in sorted(names)]


def _text(path: Path) -> str:
    """A sysfs attribute's text; "" when it is not there or cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(256).decode("utf-8", "replace").strip()
    except OSError:
        return ""

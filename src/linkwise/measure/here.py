"""What is this rank's process on? Its machine, device, NUMA node and NICs, and how fast it computes and copies."""

import os
import time
from pathlib import Path
from typing import Any

from linkwise.core.schema import Frozen
from linkwise.dist.groups import Session, address, barrier, host_facts, settled

REPEATS = 5
MAX_NICS = 256


class Here(Frozen, frozen=True, kw_only=True):
    """One rank's place as it is. machine: the same for ranks of one machine. index: of the device on it,
    -1 = not known.

    numa: of the device, or of the CPUs this process may run on where there is no device; -1 = not known, or several.

    nics: NUMA node of each RDMA NIC by name. flops, memory_Bps: best of five, of a matrix product and of a copy (bytes
    read and written).
    """

    rank: int
    host: str
    machine: str
    device: str
    index: int
    numa: int
    nics: dict[str, int]
    flops: float = 0.0
    memory_Bps: float = 0.0


def look(session: Session, root: Path = Path("/sys")) -> Here:
    """This rank's place, without timing anything. root: where sysfs is."""
    facts = host_facts()
    name, index, numa = "CPU", session.start.local_rank, _cpu_numa(root)
    if session.backend == "nccl":
        name, index, numa = _gpu(session, root)
    stated = os.environ.get("LINKWISE_DEVICE", "")
    if stated.isascii() and stated.isdigit():
        index = int(stated) if len(stated) < 8 else index
    return Here(
        rank=session.start.rank,
        host=facts["host"],
        machine=facts["machine"],
        device=name,
        index=index,
        numa=numa,
        nics=_nics(root),
    )


def _gpu(session: Session, root: Path) -> tuple[str, int, int]:
    import torch

    local = session.device.index
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    index = int(visible[local]) if local < len(visible) and visible[local].strip().isdigit() else local
    if torch.cuda.device_count() == 1 and session.start.local_rank:
        index = -1  # the only one this task is shown; which of the machine's it is, nobody says
    pci = address(session.device).rpartition(" ")[2]
    numa = _number(root / "bus/pci/devices" / pci / "numa_node") if pci else -1
    return torch.cuda.get_device_properties(local).name, index, numa


def _nics(root: Path) -> dict[str, int]:
    try:
        names = sorted(os.listdir(root / "class/infiniband"))[:MAX_NICS]
    except OSError:
        return {}
    return {name: _number(root / "class/infiniband" / name / "device/numa_node") for name in names}


def _cpu_numa(root: Path) -> int:
    """The NUMA node all CPUs of this process are on."""
    mine = os.sched_getaffinity(0)
    nodes = root / "devices/system/node"
    try:
        names = [name for name in os.listdir(nodes) if name.startswith("node") and name[4:].isdigit()]
        holding = [int(name[4:]) for name in names if mine & _cpus((nodes / name / "cpulist").read_text())]
    except (OSError, ValueError):
        return -1
    return holding[0] if len(holding) == 1 else -1


def _cpus(text: str) -> set[int]:
    """CPU numbers of `0-3,8`."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def _number(path: Path) -> int:
    try:
        return int(path.read_text().strip())
    except (OSError, ValueError):
        return -1


def probe(session: Session) -> tuple[float, float]:
    """(FLOP/s, bytes/s) of this rank's device, all ranks at once: neighbours that slow each other show it."""
    import torch

    gpu = session.backend == "nccl"
    width, count = (8192, 2**28) if gpu else (768, 2**22)
    a = torch.ones(width, width, dtype=torch.bfloat16 if gpu else torch.float32, device=session.device)
    source = torch.ones(count, dtype=torch.float32, device=session.device)
    target = torch.empty_like(source)
    product = torch.empty_like(a)
    flops = 2 * width**3 / _best(session, lambda: torch.mm(a, a, out=product))
    return flops, 2 * count * 4 / _best(session, lambda: target.copy_(source))


def _best(session: Session, work: Any) -> float:
    work()
    settled(session)
    best = float("inf")
    for _ in range(REPEATS):
        barrier(session)
        start = time.perf_counter()
        work()
        settled(session)
        best = min(best, time.perf_counter() - start)
    return best

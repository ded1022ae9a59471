"""Lines of NCCL (and RCCL) taken apart. Logs of engines hold them too.

After nccl: src/debug.cc (fronts), src/init.cc (communicators), src/transport/*.cc (ways), src/enqueue.cc (calls).
"""

import re
from typing import NamedTuple

MAX_LINE = 8_192  # characters of a line that patterns see

# mpirun --tag-output, "[rank3]:" of PyTorch, "rank3:"; srun -l. "[default3]:" of torchrun is a local rank.
_LAUNCHER = re.compile(
    r"\s*(?:\[(?:[\w.@-]{1,80}@)?\d{1,6},(?P<mpi>\d{1,7})\]<std(?:out|err)>: ?|"
    r"\[?rank ?(?P<rank>\d{1,7})\]?: ?|(?P<srun>\d{1,7}): )",
    re.IGNORECASE,
)
_FRONT = re.compile(
    r"(?<![\w.-])(?P<host>[A-Za-z0-9][\w.-]{0,250}):(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) \[(?P<dev>\d{1,4})\] "
    r"(?:\S{1,200}:\d{1,6} )?(?:\(\w{1,100}\) )?NCCL (?P<level>INFO|WARN|TRACE) (?P<text>.*)"
)


class Line(NamedTuple):
    """One line of NCCL. device: cudaDev of the thread that wrote it."""

    host: str
    pid: int
    tid: int
    device: int
    warn: bool
    text: str


def launcher_rank(line: str) -> int:
    """The rank that a launcher puts before a line; -1: none."""
    found = _LAUNCHER.match(line)
    rank = int(next(filter(None, found.groups()))) if found else -1
    return rank if rank < 2**20 else -1


def parsed(line: str) -> Line | None:
    """A line of NCCL, wherever in a line of a log it begins."""
    if " NCCL " not in line or (found := _FRONT.search(line[:MAX_LINE])) is None:
        return None
    host, pid, tid, device, level, text = found.groups()
    return Line(host, int(pid), int(tid), int(device), level == "WARN", text)


class Communicator(NamedTuple):
    """A rank's place in a communicator. id: the same on all its ranks; "" before NCCL 2.14, and for a split one, which
    is named by its parent's pointer and by its color."""

    pointer: str
    rank: int
    size: int
    id: str
    bus: str
    device: int
    parent: str
    color: str


_COMM = re.compile(
    r"comm (0x[0-9a-f]{1,16}) rank (\d{1,7}) n[rR]anks (\d{1,7}) cudaDev (\d{1,4})(?: nvmlDev \d{1,4})?"
    r"(.{0,300})- ?Init"
)
_BUS = re.compile(r" busId ([0-9a-f]{1,12})")
_ID = re.compile(r" commId (0x[0-9a-f]{1,16})")
_SPLIT = re.compile(r" parent (0x[0-9a-f]{1,16}) splitCount (\d{1,9}) color (-?\d{1,10})")


def communicator(text: str) -> Communicator | None:
    """From "ncclCommInitRank comm 0x... rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x... - Init START"."""
    found = _COMM.search(text)
    if found is None:
        return None
    pointer, rank, size, device, rest = found.groups()
    if not 0 <= int(rank) < int(size) <= 2**20:
        return None
    bus, named, split = _BUS.search(rest), _ID.search(rest), _SPLIT.search(rest)
    return Communicator(
        pointer,
        int(rank),
        int(size),
        named[1] if named else "",
        pci_address(bus[1]) if bus else "",
        int(device),
        split[1] if split else "",
        f"split {split[2]} color {split[3]}" if split else "",
    )


def pci_address(bus: str) -> str:
    """0000:1b:00.0 from NCCL's 1b000: the digits of domain, bus, device and function run together."""
    value = int(bus, 16)
    return f"{value >> 20:04x}:{value >> 12 & 0xFF:02x}:{value >> 4 & 0xFF:02x}.{value & 0xF:x}"


class Way(NamedTuple):
    """How a rank of a communicator, which wrote the line, reaches another. name: of a fact of kind transport; peer -1:
    none, as of calls that the network itself reduces."""

    name: str
    rank: int
    peer: int
    channel: str


_WAY = re.compile(
    r"(?:Channel|Coll|CollNet|Ring) (\d{1,4}(?:/\d{1,4})?) : (\d{1,7})(?:\[\w{1,12}\])?(?: -> (\d{1,7})\[\w{1,12}\])?"
    r"(?: \[(send|receive)\])? via (.{1,120})"
)


def way(text: str) -> Way | None:
    """From "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "... [send] via NET/IB/0/GDRDMA", "... via SHM/direct"."""
    found = _WAY.search(text)
    name = _way_name(found[5].split(" comm ")[0]) if found else ""
    if found is None or not name:
        return None
    channel, sender, receiver, side, _ = found.groups()
    ends = int(sender), int(receiver) if receiver else -1
    return Way(name, *(ends[::-1] if side == "receive" and receiver else ends), channel)


def _way_name(via: str) -> str:
    first, *rest = via.upper().split("/")
    if first in _WAYS:
        return _WAYS[first]
    if first != "NET" or not rest:
        return ""
    kind = "ib" if rest[0].startswith("IB") else re.sub(r"\W+", "_", (rest[0].split() or ["unknown"])[-1].lower())
    return f"net.{kind}" + ".gdr" * any(part.startswith("GDRDMA") for part in rest)


_WAYS = {"P2P": "p2p", "SHM": "shm", "DIRECT SHARED MEMORY": "shm", "COLLNET": "coll.sharp"}


class Call(NamedTuple):
    """A call as it is enqueued. turn: opCount of the communicator; S_bytes: DESIGN §3; peer: of a send or recv, as a
    rank of the communicator; rank: of the world where RCCL says it, else -1."""

    op: str
    turn: int
    S_bytes: int
    dtype: str
    peer: int
    pointer: str
    size: int
    rank: int


_CALL = re.compile(
    r"(\w{1,40}): opCount (?:0x)?([0-9a-f]{1,15}) sendbuff \S+ recvbuff \S+ (?:acc \S+ )?count (\d{1,18}) "
    r"datatype (\d{1,3}) op \d{1,10} root (\d{1,10}) comm (0x[0-9a-f]{1,16}) \[nranks=(\d{1,7})\]"
    r"(?:.{0,80} globalrank (\d{1,7}))?"
)
_OPS = {
    "AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter", "Broadcast": "broadcast",
    "Reduce": "reduce", "Send": "send", "Recv": "recv", "AlltoAll": "all_to_all", "AllToAll": "all_to_all",
    "Gather": "gather", "Scatter": "scatter", "AllToAllv": "all_to_allv",
}  # fmt: skip
# ncclDataType_t, in its order: name, bytes an element.
_DTYPES = (
    ("int8", 1), ("uint8", 1), ("int32", 4), ("uint32", 4), ("int64", 8), ("uint64", 8), ("float16", 2), ("float32", 4),
    ("float64", 8), ("bfloat16", 2), ("float8_e4m3fn", 1), ("float8_e5m2", 1),
)  # fmt: skip
_PER_RANK = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})  # count: of one rank's part


def snake(name: str) -> str:
    """A name in CamelCase as ours are."""
    return _OPS.get(name) or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def call(text: str) -> Call | None:
    """From "AllReduce: opCount 11d sendbuff ... count 1024 datatype 7 op 0 root 0 comm 0x... [nranks=4] stream ..."."""
    found = _CALL.search(text)
    if found is None:
        return None
    name, turn, count, code, root, pointer, size, rank = found.groups()
    op = snake(name)
    dtype, width = _DTYPES[int(code)] if int(code) < len(_DTYPES) else ("", 0)
    amount = int(count) * width * (int(size) if op in _PER_RANK else 1)
    if amount >= 2**62 or not 0 < int(size) <= 2**20:
        return None
    peer = int(root) if op in ("send", "recv") else -1
    return Call(op, int(turn, 16), amount, dtype, peer, pointer, int(size), int(rank) if rank else -1)


class Completion(NamedTuple):
    """A request that a NIC gave back with an error."""

    status: str
    vendor: str
    peer: str
    device: str
    side: str


_COMPLETION = re.compile(
    r"NET/IB\S* ?: ?Got completion (?:from peer (?P<peer>[\w.:%-]{1,80})(?:<\d{1,5}>)? )?with "
    r"(?:error |status=)(?:\w{1,40}\()?(?P<status>\d{1,3})"
)
_VENDOR = re.compile(r"vendor[ _]err[= ](\d{1,5})(?: \((\w{1,20})\))?")
_HCA = re.compile(r" hca (\w{1,40})")


def completion(text: str) -> Completion | None:
    """From "NET/IB : Got completion from peer 10.2.0.5<33092> with error 12, opcode 0, ... vendor err 129 (Recv)"."""
    found = _COMPLETION.search(text)
    if found is None:
        return None
    vendor, hca = _VENDOR.search(text, found.end()), _HCA.search(text, found.end())
    return Completion(
        found["status"],
        vendor[1] if vendor else "",
        found["peer"] or "",
        hca[1] if hca else "",
        (vendor[2] or "").lower() if vendor else "",
    )

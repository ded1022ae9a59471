"""Reads what nccl-tests and rccl-tests print (`all_reduce_perf -b 8 -e 1G -f 2`): times by size, in and out of place.

Sizes are those of DESIGN §3: nccl-tests counts the gathered output of an all-gather, the input of a reduce-scatter, and
what a rank holds to send in an all-to-all. A run that found wrong values is refused: its times mean nothing.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from linkwise.cluster.types import Cluster
from linkwise.core.errors import InputError
from linkwise.core.files import read_text
from linkwise.measure.calibration import Sample

MAX_FILE_BYTES = 16 * 2**20
MAX_LINE = 2000
# `0: ` of srun, `[1,0]<stdout>:` of mpirun, which sets no blank behind it.
_TAG = re.compile(r"^\s*(?:\[[^\]\s]{1,80}\](?:<\w+>)?:\s*|[\w.,-]+(?:<\w+>)?:(?:\s+|(?=#)))(?=#|\d)")
_COLOUR = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")  # ANSI escapes of a terminal
_RANK = re.compile(
    r"#\s+Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+(\d+)"
    r"(?:\s+\[([\w:.]+)\])?(?:\s+(\S.*))?"
)
_PROGRAM = re.compile(
    r"\b(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|sendrecv|broadcast|gather|reduce|scatter|hypercube)_perf\b"
)
_KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
    "broadcast": "broadcast",
    "gather": "gather",
}
# Bytes of an element; a type that is not here is not checked.
_WIDTH = {
    "int8": 1, "uint8": 1, "char": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "f8e4m3": 1, "f8e5m2": 1, "half": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "int": 4, "float": 4, "int64": 8, "uint64": 8, "double": 8,
}  # fmt: skip
_MAX_DEVICES = 10**6
_NUMBER = re.compile(r"\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")


class Row(NamedTuple):
    """One size. seconds: out of place and in place, None where not measured. line: of the file. slack: by how much
    bus_over_algorithm may be off, since both figures are printed with two decimals."""

    line: int
    S_bytes: int
    elements: int
    dtype: str
    redop: str
    out_of_place_s: float | None
    in_place_s: float | None
    bus_over_algorithm: float | None
    slack: float = 0.0
    root: str = ""

    @property
    def loop(self) -> tuple[str, str, str]:
        """What a run goes through all its sizes for: type, operation, root."""
        return self.dtype, self.redop, self.root


class Run(NamedTuple):
    """What a file says. devices: (host, device) of each rank in rank order. kind: "" when the file does not say.

    version: NCCL's, where printed. products: what the driver calls the devices. notes: what was taken for what.
    """

    kind: str
    devices: tuple[tuple[str, int], ...]
    rows: tuple[Row, ...]
    version: str
    notes: tuple[str, ...] = ()
    products: tuple[str, ...] = ()


class _Rank(NamedTuple):
    """A rank's line. group: of ranks that run by themselves. bus: PCI address of its device, product: what the driver
    calls it; "" where not printed."""

    group: str
    host: str
    device: int
    bus: str
    product: str = ""


def load(path: str) -> Run:
    """A file of nccl-tests output."""
    return parse(read_text(path, max_bytes=MAX_FILE_BYTES), where=path)


def parse(text: str, *, where: str) -> Run:
    """Ranks and rows of one run. Raises InputError naming the line for wrong values, failures, cut rows and the
    beginning of a second run."""
    programs: list[str] = []
    ranks: dict[int, _Rank] = {}
    rows: list[Row] = []
    loops: set[tuple[str, str, str]] = set()
    heads, version, begun = "", "", False
    for number, raw in enumerate(_COLOUR.sub("", text).split("\n"), 1):
        line = _TAG.sub("", raw[:MAX_LINE]).strip()
        here = f"{where}: line {number}"
        if match := _PROGRAM.search(line):
            programs.append(match[1].replace("_", ""))
        if match := re.search(r"NCCL version (\S+)", line):
            version = match[1][:40]
        if match := _RANK.match(line):
            product = (match[6] or "").strip()[:80]
            one = _Rank(match[2] or "", match[3], min(int(match[4][:9]), _MAX_DEVICES), match[5] or "", product)
            if ranks.setdefault(int(match[1][:9]), one) != one:
                raise InputError(f"rank {match[1][:9]} is on two devices", where=here, expected="one run in a file")
        elif line.startswith("#"):
            first, begun = not begun, begun or line.startswith("# nThread ")
            if (line.startswith("# nThread ") and not first) or ("algbw" in line and heads):
                raise InputError("a second run begins", where=here, expected="one run in a file")
            heads = line if "algbw" in line else heads
            if re.search(r"Out of bounds values\s*:\s*[1-9]", line) or "FAILED" in line:
                raise InputError(line[:100], where=here, expected="a run without wrong values")
        elif "Test NCCL failure" in line or "Test CUDA failure" in line or "Test failure" in line:
            raise InputError(line[:100], where=here, expected="a run that ended well")
        elif heads and line[:1].isdigit():
            row = _row(line, heads, number, here)
            _same_test(rows, loops, row, here)
            rows.append(row)
    if not rows:
        raise InputError(
            "no table of times", where=where, expected="the output of nccl-tests, with its `# size count type` header"
        )
    for row in rows:
        _whole_elements(row, len(ranks), f"{where}: line {row.line}")
    devices, notes = _devices(ranks, where)
    products = tuple(dict.fromkeys(one.product for one in ranks.values() if one.product))
    return Run(_kind(programs, rows, len(ranks), where), devices, tuple(rows), version, notes, products)


def _row(line: str, heads: str, number: int, here: str) -> Row:
    """`size count type [redop] [root]`, then `time algbw busbw #wrong` out of place and in place."""
    words, names = line.split(), heads.lstrip("# ").split()
    columns = names.count("time") * 4
    fixed = names.index("time") if "time" in names else 0
    # Older versions print no redop or root in some tests though the header has them: blocks are counted from the end.
    lead = len(words) - columns
    if names[:3] != ["size", "count", "type"] or columns not in {4, 8}:
        raise InputError(f"the header is {heads[:80]!r}", where=here, expected="# size count type ... time algbw busbw")
    blocks = [words[lead + at : lead + at + 4] for at in range(0, columns, 4)] if lead >= 3 else []
    if lead < fixed and not (blocks and all(_is_block(words[0], block) for block in blocks)):
        raise InputError(
            f"a cut row, {len(words)} words: {line[:80]!r}",
            where=here,
            expected=f"{fixed + columns}, as the header has them",
        )
    if lead > fixed:
        raise InputError(
            f"{len(words)} words: {line[:80]!r}", where=here, expected=f"{fixed + columns}, as the header has them"
        )
    times = [_seconds(block, names[-1], here) for block in blocks]
    for word, what in ((words[0], "size"), (words[1], "count")):
        if not (word.isascii() and word.isdigit()) or len(word) > 15:
            raise InputError(f"{what} {word[:30]!r}", where=here, expected="a whole number")
    algorithm, bus = (float(w) if _NUMBER.fullmatch(w) else 0.0 for w in blocks[0][1:3])
    told = algorithm >= 1 and bus >= 1  # two decimals say nothing of small figures
    return Row(
        number,
        int(words[0]),
        int(words[1]),
        words[2][:20],
        words[3][:20] if lead > 3 and not words[3].lstrip("-").isdigit() else "",
        times[0],
        times[1] if len(times) > 1 else None,
        bus / algorithm if told else None,
        bus / algorithm * (0.01 / algorithm + 0.01 / bus) + 0.002 if told else 0.0,
        words[4][:20] if lead > 4 else "",
    )


def _is_block(size: str, block: list[str]) -> bool:
    """Whether words stand where a block's belong: its bandwidth is the size over its time, to two decimals."""
    time, algorithm = block[:2]
    if time == "N/A":
        return set(block) == {"N/A"}
    if not all(word.isascii() and _NUMBER.fullmatch(word) for word in (size, time, algorithm)) or not float(time):
        return False
    meant = float(size) / float(time) * 1e-3
    return abs(float(algorithm) - meant) <= 0.011 + 0.02 * meant


def _same_test(rows: list[Row], loops: set[tuple[str, str, str]], row: Row, here: str) -> None:
    """Refuse a row that cannot follow these in one run of one test. loops: those rows have begun; row's is added."""
    first, last = (rows[0], rows[-1]) if rows else (row, row)
    says = ""
    if row.S_bytes < last.S_bytes and row.loop == last.loop:
        says = f"sizes begin again, {row.S_bytes} after {last.S_bytes}"
    elif row.loop != last.loop and row.loop in loops:
        says = f"{row.dtype} {row.redop or 'none'} begins again"
    elif (row.redop in {"", "none"}) != (first.redop in {"", "none"}):
        says = f"operation {row.redop or 'none'} after {first.redop or 'none'}"
    told = next((one for one in reversed(rows[-64:]) if one.bus_over_algorithm), None)
    here_is, there_was = row.bus_over_algorithm, told.bus_over_algorithm if told else None
    if told and here_is and there_was and abs(here_is - there_was) > row.slack + told.slack:
        says = f"busbw / algbw is {here_is:.3g} after {there_was:.3g}"
    if says:
        raise InputError(f"another test begins: {says}", where=here, expected="one run in a file")
    loops.add(row.loop)


def _whole_elements(row: Row, ranks: int, here: str) -> None:
    """Refuse a count that is neither the tensor's nor one rank's share of it."""
    share = row.elements * _WIDTH.get(row.dtype, 0)
    if share and row.S_bytes and row.S_bytes not in {share, share * ranks}:
        raise InputError(
            f"{row.elements} elements of {row.dtype} in {row.S_bytes} bytes",
            where=here,
            expected=f"{share} bytes" + (f", or {share * ranks} of {ranks} ranks" if ranks > 1 else ""),
        )


def _seconds(block: list[str], last: str, here: str) -> float | None:
    """Seconds of one block; None for N/A. Refuses wrong values."""
    time, _, _, wrong = block
    if wrong not in {"N/A", "0"} and (last == "#wrong" or not _NUMBER.fullmatch(wrong) or float(wrong) > 1e-2):
        raise InputError(f"{wrong[:20]} wrong values", where=here, expected="a run without wrong values")
    if time == "N/A":
        return None
    if not _NUMBER.fullmatch(time) or not 0 < float(time) < 1e12:
        raise InputError(f"time {time[:20]!r}", where=here, expected="microseconds above 0")
    return float(time) * 1e-6


def _kind(programs: list[str], rows: list[Row], ranks: int, where: str) -> str:
    """From the program's name where the file has it; from the ratio of its bandwidths where only one kind has that."""
    named = set(programs)
    if len(named) > 1:
        raise InputError(f"several tests: {', '.join(sorted(named))}", where=where, expected="one run in a file")
    if named:
        name = named.pop()
        if name not in _KINDS:
            raise InputError(f"{name}_perf", where=where, expected=", ".join(f"{k}_perf" for k in _KINDS))
        return _KINDS[name]
    ratios = [row.bus_over_algorithm for row in rows if row.bus_over_algorithm]
    if not ratios or ranks < 3:  # of two ranks, all ratios are 1 or one half
        return ""
    ratio = sorted(ratios)[len(ratios) // 2]
    if abs(ratio - 2 * (ranks - 1) / ranks) < 0.02:
        return "all_reduce"
    if abs(ratio - (ranks - 1) / ranks) < 0.02 and rows[0].redop not in {"", "none"}:
        return "reduce_scatter"
    return ""


def _devices(ranks: dict[int, _Rank], where: str) -> tuple[tuple[tuple[str, int], ...], tuple[str, ...]]:
    """(host, device) by rank, and what had to be taken for what."""
    if sorted(ranks) != list(range(len(ranks))):
        raise InputError(
            f"ranks {', '.join(map(str, sorted(ranks)[:16]))}", where=where, expected="a `# Rank` line for every rank"
        )
    if len({one.group for one in ranks.values()}) > 1:
        raise InputError(
            f"ranks of {len({one.group for one in ranks.values()})} groups", where=where, expected="one group of all"
        )
    hosts: dict[str, list[int]] = {}
    for rank, one in ranks.items():
        hosts.setdefault(one.host, []).append(rank)
    found = {rank: one.device for rank, one in ranks.items()}
    renumbered = False
    for here in hosts.values():
        buses = sorted({ranks[rank].bus for rank in here} - {""})
        # A launcher that shows each task one GPU: all are device 0, and their PCI addresses tell them apart.
        if len({found[rank] for rank in here}) < len(here) == len(buses):
            found |= {rank: buses.index(ranks[rank].bus) for rank in here}
            renumbered = True
    notes = ("each rank saw one device: devices of a host are numbered in order of their PCI addresses",)
    return tuple((ranks[rank].host, found[rank]) for rank in range(len(ranks))), notes if renumbered else ()


def samples(run: Run, cluster: Cluster, *, kind: str = "", where: str = "nccl-tests") -> list[Sample]:
    """A run's times as calls on a cluster: hosts are nodes in the order they appear, devices are those of the node.

    kind: when the file does not say (the run's command line was not kept). Raises InputError when it is needed, when it
    contradicts the file, or when the ranks do not fit on the cluster.
    """
    if kind and run.kind and kind != run.kind:
        raise InputError(f"--kind {kind}, but the file is a run of {run.kind}", where=where)
    chosen = kind or run.kind
    if not chosen:
        raise InputError("the file does not say which collective it is", where=where, expected="--kind all_gather, ...")
    if chosen not in _KINDS.values():
        raise InputError(f"{chosen!r}", where="--kind", expected=", ".join(_KINDS.values()))
    if len(run.devices) < 2:
        raise InputError(f"{len(run.devices)} ranks named", where=where, expected="`# Rank` lines of two ranks or more")
    members = _members(run, cluster, where)
    tier, nodes = cluster.tier(members).value, len({cluster.node_of(device) for device in members})
    return [
        Sample(
            kind=chosen, group=label, tier=tier, ranks=len(members), nodes=nodes, S_bytes=row.S_bytes, seconds=seconds
        )
        for row in run.rows
        for label, seconds in _measured(row)
    ]


def _measured(row: Row) -> Iterator[tuple[str, float]]:
    if row.S_bytes:
        for label, seconds in (("out of place", row.out_of_place_s), ("in place", row.in_place_s)):
            if seconds is not None:
                yield label, seconds


def _members(run: Run, cluster: Cluster, where: str) -> tuple[int, ...]:
    hosts = list(dict.fromkeys(host for host, _ in run.devices))
    members = tuple(hosts.index(host) * cluster.devices_per_node + device for host, device in run.devices)
    most = max(device for _, device in run.devices)
    if len(hosts) > cluster.nodes or most >= cluster.devices_per_node or len(set(members)) != len(members):
        raise InputError(
            f"{len(members)} ranks on {len(hosts)} hosts, devices up to {most}",
            where=where,
            expected=f"each rank on a device of its own; {cluster.name} has {cluster.nodes} nodes of"
            f" {cluster.devices_per_node}",
        )
    return members

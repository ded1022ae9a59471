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
_TAG = re.compile(r"^\s*(?:\[?[\w.,-]+\]?(?:<\w+>)?:\s+)(?=#|\d)")  # `0: ` or `[1,0]<stdout>: ` of a launcher
_RANK = re.compile(r"#\s+Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+(\d+)")
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
_NUMBER = re.compile(r"\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")


class Row(NamedTuple):
    """One size. seconds: out of place and in place, None where not measured. line: of the file."""

    line: int
    S_bytes: int
    dtype: str
    redop: str
    out_of_place_s: float | None
    in_place_s: float | None
    bus_over_algorithm: float | None


class Run(NamedTuple):
    """What a file says. devices: (host, device) of each rank in rank order. kind: "" when the file does not say.

    version: NCCL's, where printed.
    """

    kind: str
    devices: tuple[tuple[str, int], ...]
    rows: tuple[Row, ...]
    version: str


def load(path: str) -> Run:
    """A file of nccl-tests output."""
    return parse(read_text(path, max_bytes=MAX_FILE_BYTES), where=path)


def parse(text: str, *, where: str) -> Run:
    """Ranks and rows of one run. Raises InputError naming the line for wrong values, failures and cut rows."""
    programs: list[str] = []
    ranks: dict[int, tuple[str, int]] = {}
    rows: list[Row] = []
    heads, version = "", ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = _TAG.sub("", raw[:MAX_LINE]).strip()
        here = f"{where}: line {number}"
        if match := _PROGRAM.search(line):
            programs.append(match[1].replace("_", ""))
        if match := re.search(r"NCCL version (\S+)", line):
            version = match[1][:40]
        if match := _RANK.match(line):
            if ranks.setdefault(int(match[1]), (match[2], int(match[3]))) != (match[2], int(match[3])):
                raise InputError(f"rank {match[1]} is on two devices", where=here, expected="one run in a file")
        elif line.startswith("#"):
            heads = line if "algbw" in line else heads
            if re.search(r"Out of bounds values\s*:\s*[1-9]", line) or "FAILED" in line:
                raise InputError(line[:100], where=here, expected="a run without wrong values")
        elif "Test NCCL failure" in line or "Test CUDA failure" in line or "Test failure" in line:
            raise InputError(line[:100], where=here, expected="a run that ended well")
        elif heads and line[:1].isdigit():
            rows.append(_row(line, heads, number, here))
    if not rows:
        raise InputError(
            "no table of times", where=where, expected="the output of nccl-tests, with its `# size count type` header"
        )
    return Run(_kind(programs, rows, len(ranks), where), _devices(ranks, where), tuple(rows), version)


def _row(line: str, heads: str, number: int, here: str) -> Row:
    """`size count type [redop] [root]`, then `time algbw busbw #wrong` out of place and in place."""
    words, names = line.split(), heads.lstrip("# ").split()
    columns = names.count("time") * 4
    fixed = names.index("time") if "time" in names else 0
    # Older versions print no redop or root in some tests though the header has them: blocks are counted from the end.
    lead = len(words) - columns
    if names[:3] != ["size", "count", "type"] or columns not in {4, 8} or not 3 <= lead <= fixed:
        raise InputError(
            f"{len(words)} words: {line[:80]!r}", where=here, expected=f"{fixed + columns}, as the header has them"
        )
    blocks = [words[lead + at : lead + at + 4] for at in range(0, columns, 4)]
    times = [_seconds(block, names[-1], here) for block in blocks]
    if not words[0].isdigit() or len(words[0]) > 15:
        raise InputError(f"size {words[0][:30]!r}", where=here, expected="bytes")
    algorithm, bus = (float(w) if _NUMBER.fullmatch(w) else 0.0 for w in blocks[0][1:3])
    return Row(
        number,
        int(words[0]),
        words[2][:20],
        words[3] if lead > 3 and not words[3].lstrip("-").isdigit() else "",
        times[0],
        times[1] if len(times) > 1 else None,
        bus / algorithm if algorithm >= 1 and bus >= 1 else None,  # two decimals say nothing of small figures
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


def _devices(ranks: dict[int, tuple[str, int]], where: str) -> tuple[tuple[str, int], ...]:
    if sorted(ranks) != list(range(len(ranks))):
        raise InputError(
            f"ranks {', '.join(map(str, sorted(ranks)[:16]))}", where=where, expected="a `# Rank` line for every rank"
        )
    return tuple(ranks[rank] for rank in range(len(ranks)))


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

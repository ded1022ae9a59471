"""Without a plan: groups of one shape, the same bytes, not the same time: what moves them is not alike.

Of a call's members the last to arrive is inside for as long as the bytes take, whatever the clocks of the others say: a
call's time here is its shortest over the members.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from linkwise.diagnose.case import Case, ranks_text
from linkwise.diagnose.places import lines, one
from linkwise.diagnose.types import Fault, Finding
from linkwise.trace.calls import DONE

RATIO = 1.25  # between the quarters of slow and of usual calls that face each other
CALLS, GROUPS = 4, 3
LEAST_NS = 1_000_000  # below it start-up decides, not the link


class Path(NamedTuple):
    """What one group, or one pair in it, took for calls of one kind. places: of its members' records."""

    group: int
    places: tuple[int, ...]
    times: np.ndarray

    @property
    def middle(self) -> float:
        return float(np.median(self.times))


def find(case: Case) -> Iterator[Finding]:
    """Sets of sibling groups of which a few are slower than all the others, every time."""
    if case.plan is not None:  # it says what each link should do: routes.py
        return
    told: set[tuple[int, ...]] = set()
    for (op, size), paths in _paths(case):
        slow = _slow(paths)
        groups = tuple(sorted(path.group for path in slow))
        if slow and groups not in told:
            told.add(groups)
            yield _finding(case, op, size, slow, [path for path in paths if path.group not in groups])


def _paths(case: Case) -> list[tuple[tuple[str, int], list[Path]]]:
    """By op and size, groups with as many members on as many hosts and what each took."""
    joined, rows = case.joined, case.joined.rows
    if not len(rows.who):
        return []
    begin = joined.first[:-1]
    known = (rows.started_ns > 0) & (rows.ended_ns > rows.started_ns) & (rows.state == DONE)
    took = np.where(known, rows.ended_ns - rows.started_ns, np.iinfo(np.int64).max)
    shortest = np.minimum.reduceat(took, begin)
    whole = np.logical_and.reduceat(known, begin)
    sizes = rows.S_bytes[begin]
    calls = np.flatnonzero(whole & (np.diff(joined.first) > 1) & (shortest >= LEAST_NS) & (sizes > 0))
    columns = (rows.group[begin], rows.op[begin], sizes)
    order = calls[np.lexsort(tuple(column[calls] for column in reversed(columns)))]
    new = np.logical_or.reduce([np.diff(column[order]) != 0 for column in columns])
    found: dict[tuple[str, int, int, int], list[Path]] = {}
    for part in np.split(order, np.flatnonzero(new) + 1) if len(order) else ():
        group = int(rows.group[begin[part[0]]])
        places = tuple(sorted(joined.groups[group].known.values()))
        hosts = {joined.ranks[place].head.host for place in places}
        if len(part) < CALLS or "" in hosts or len(places) < len(joined.groups[group].members):
            continue
        key = joined.ops[rows.op[begin[part[0]]]], int(sizes[part[0]]), len(places), len(hosts)
        found.setdefault(key, []).append(Path(group, places, shortest[part]))
    return [(key[:2], paths) for key, paths in found.items() if len(paths) >= GROUPS]


def _slow(paths: list[Path]) -> list[Path]:
    """The fewer paths, all of whose calls take longer than nearly all of the others'."""
    ordered = sorted(paths, key=lambda path: path.middle)
    for place in range(len(ordered) // 2 + 1, len(ordered)):
        rest, slow = ordered[:place], ordered[place:]
        high = max(float(np.quantile(path.times, 0.75)) for path in rest)
        low = min(float(np.quantile(path.times, 0.25)) for path in slow)
        if low >= RATIO * high:
            return slow
    return []


def _finding(case: Case, op: str, size: int, slow: list[Path], rest: list[Path]) -> Finding:
    ranks = case.joined.ranks
    usual, long = float(np.median([path.middle for path in rest])), float(np.median([path.middle for path in slow]))
    hosts = {ranks[place].head.host for path in slow for place in path.places}
    others = {ranks[place].head.host for path in rest for place in path.places}
    own = hosts - others
    devices = {ranks[place].head.device for path in slow for place in path.places} - {""}
    names = "; ".join(_name(case, path) for path in slow[:4])
    return Finding(
        class_="slow_link",
        summary=f"{len(slow)} of {len(slow) + len(rest)} groups of one shape take {long / usual:.2g} times as long for"
        f" the same {op} of {size / 1e6:.4g} MB although their members are there: {names}. What they share (NIC,"
        " switch, PCIe path) is not said",
        original_fault=Fault(host=one(own)),
        cause="network",
        confidence=0.5,
        decided=False,
        evidence=(
            f"{long / 1e6:.4g} ms (median) against {usual / 1e6:.4g} ms",
            *(f"{_name(case, path)}: {path.middle / 1e6:.4g} ms, {size / path.middle:.3g} GB/s" for path in slow[:3]),
            *(f"{_name(case, path)}: {path.middle / 1e6:.4g} ms, {size / path.middle:.3g} GB/s" for path in rest[:2]),
            *lines(case.facts("transport"), 2),
        ),
        would_decide="which NIC each rank uses (NCCL_DEBUG=INFO, NET/IB) and the ports' counters before and after"
        + (f"; devices {', '.join(sorted(devices)[:4])}" if devices else ""),
        next="nvidia-smi topo -m and ib_write_bw from these GPUs' NICs, one after the other and all at once",
        recovery="none",
    )


def _name(case: Case, path: Path) -> str:
    heads = [case.joined.ranks[place].head for place in path.places]
    group = case.joined.groups[path.group]
    where = " and ".join(sorted({head.host for head in heads}))
    return f"{group.unit or f'group {group.key}'} ({ranks_text([head.rank for head in heads])} on {where})"

"""Groups of one shape, the same bytes, not the same time: what moves them is not alike. For calls no plan speaks of.

Of a call's members the last to arrive is inside for as long as the bytes take, whatever the clocks of the others say: a
call's time here is its shortest over the members.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from linkwise.core.units import show_bytes, show_figure, show_time
from linkwise.diagnose.case import Case, ranks_text
from linkwise.diagnose.places import lines, one
from linkwise.diagnose.rules import routes
from linkwise.diagnose.types import Fault, Finding
from linkwise.trace.calls import DONE

RATIO = 1.25  # between the quarters of slow and of usual calls that face each other
CALLS, GROUPS = 4, 3
LEAST_NS = 1_000_000  # below it start-up decides, not the link
SMALL = 5.0  # times as long as usual calls of less than that, which a call of more than twice that is
LATELY, LATE_RATIO = (
    8,
    2.0,
)  # calls of a part of the record that counts by itself, and by how much: noise comes in spells


class Path(NamedTuple):
    """What one group, or one pair in it, took for calls of one kind. places: of its members' records."""

    group: int
    places: tuple[int, ...]
    times: np.ndarray  # in the order of its calls

    @property
    def middle(self) -> float:
        return float(np.median(self.times))

    def last(self, share: float) -> "Path":
        """Of its last calls alone."""
        return self._replace(times=self.times[-max(1, int(len(self.times) * share)) :])


def find(case: Case) -> Iterator[Finding]:
    """Sets of sibling groups of which a few are slower than all the others, every time."""
    if case.found("routes"):  # it names the link
        return
    planned = {tuple(sorted(path.places)) for path in routes.compared(case)}  # of those the plan says what is usual
    told: set[tuple[int, ...]] = set()
    for (op, size), all_ in _paths(case):
        paths = [path for path in all_ if path.places not in planned]
        if len(paths) < GROUPS:
            continue
        for share in (1.0, 0.5, 0.25):  # a link may become slow on the way
            part = [path.last(share) for path in paths]
            if share < 1 and min(len(path.times) for path in part) < LATELY:
                break
            slow = _slow(part, RATIO if share == 1 else LATE_RATIO)
            groups = tuple(sorted(path.group for path in slow))
            if slow and groups not in told:
                told.add(groups)
                yield _finding(case, op, size, slow, [path for path in part if path.group not in groups], share)
            if slow:
                break


def _paths(case: Case) -> list[tuple[tuple[str, int], list[Path]]]:
    """By op and size, groups with as many members on as many hosts and what each took.

    Where no host is known, groups are alike whose ranks are as far apart: tensor groups, data groups."""
    joined, rows = case.joined, case.joined.rows
    if not len(rows.who):
        return []
    nowhere = not any(rank.head.host for rank in joined.ranks)
    begin = joined.first[:-1]
    known = (rows.started_ns > 0) & (rows.ended_ns > rows.started_ns) & (rows.state == DONE)
    took = np.where(known, rows.ended_ns - rows.started_ns, np.iinfo(np.int64).max)
    shortest = np.minimum.reduceat(took, begin)
    whole = np.logical_and.reduceat(known, begin)
    sizes = rows.S_bytes[begin]
    calls = np.flatnonzero(whole & (np.diff(joined.first) > 1) & (sizes > 0))
    columns = (rows.group[begin], rows.op[begin], sizes)
    order = calls[np.lexsort(tuple(column[calls] for column in reversed(columns)))]
    new = np.logical_or.reduce([np.diff(column[order]) != 0 for column in columns])
    found: dict[tuple[str, int, int, tuple[int, ...]], list[Path]] = {}
    for part in np.split(order, np.flatnonzero(new) + 1) if len(order) else ():
        group = int(rows.group[begin[part[0]]])
        places = tuple(sorted(joined.groups[group].known.values()))
        hosts = {joined.ranks[place].head.host for place in places}
        members = joined.groups[group].members
        if len(part) < CALLS or ("" in hosts and not nowhere) or len(places) < len(members):
            continue
        shape = tuple(np.diff(sorted(members)).tolist()) if nowhere else (len(hosts),)
        key = joined.ops[rows.op[begin[part[0]]]], int(sizes[part[0]]), len(places), shape
        found.setdefault(key, []).append(Path(group, places, shortest[part]))
    return [(key[:2], paths) for key, paths in found.items() if len(paths) >= GROUPS]


def _slow(paths: list[Path], ratio: float) -> list[Path]:
    """The fewer paths, all of whose calls take longer than nearly all of the others'."""
    ordered = sorted(paths, key=lambda path: path.middle)
    for place in range(len(ordered) // 2 + 1, len(ordered)):
        rest, slow = ordered[:place], ordered[place:]
        high = max(float(np.quantile(path.times, 0.75)) for path in rest)
        low = min(float(np.quantile(path.times, 0.25)) for path in slow)
        if low >= (ratio * high if high >= LEAST_NS else max(SMALL * high, 2 * LEAST_NS)):
            return slow
    return []


def _finding(case: Case, op: str, size: int, slow: list[Path], rest: list[Path], share: float) -> Finding:
    ranks = case.joined.ranks
    usual, long = float(np.median([path.middle for path in rest])), float(np.median([path.middle for path in slow]))
    hosts = {ranks[place].head.host for path in slow for place in path.places}
    others = {ranks[place].head.host for path in rest for place in path.places}
    own = hosts - others
    devices = {ranks[place].head.device for path in slow for place in path.places} - {""}
    names = "; ".join(_name(case, path) for path in slow[:4])
    lately = f" in the last {100 * share:.0f} % of their calls" if share < 1 else ""
    nowhere = "" in hosts
    apart = ". Hosts are not known: of such groups those that lie across hosts would be slower, too" if nowhere else ""
    return Finding(
        class_="slow_link",
        summary=f"{len(slow)} of {len(slow) + len(rest)} groups of one shape take {show_figure(long / usual, 2)} times"
        f" as long for the same {op} of {show_bytes(size)}{lately} although their members are there: {names}. What they"
        f" share (NIC, switch, PCIe path) is not said{apart}",
        original_fault=Fault(host=one(own)),
        cause="network",
        confidence=0.4 if nowhere else 0.5,
        decided=False,
        evidence=(
            f"{show_time(long / 1e9, 4)} (median) against {show_time(usual / 1e9, 4)}",
            *(
                f"{_name(case, path)}: {show_time(path.middle / 1e9, 4)}, {show_bytes(size / path.middle * 1e9)}/s"
                for path in (*slow[:3], *rest[:2])
            ),
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
    ranks = ranks_text([head.rank for head in heads])
    return f"{group.unit or f'group {group.key}'} ({ranks}{f' on {where}' if where else ''})"

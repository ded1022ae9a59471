"""With a plan: which link is slower than the plan's cluster says? Every call's bytes are laid on the links they cross
(plan/flows.py), its time is held against what the busiest of them needs, and what the slow ones share and the others do
not cross is named.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from linkwise.cluster.types import Cluster
from linkwise.core.quantity import value_of
from linkwise.core.units import counted, show_figure, show_time
from linkwise.diagnose.case import Case, ranks_text
from linkwise.diagnose.places import one
from linkwise.diagnose.timing import Timing
from linkwise.diagnose.types import Fault, Finding
from linkwise.plan.algorithms import Call, gloo
from linkwise.plan.flows import Roads, flows, link_bytes
from linkwise.trace.joined import P2P

# Predictions of calls that a link bounds hold within a fifth (docs/lab.md): twice is slow, below half as long again is
# as it should be, and what is between says nothing.
SLOW, USUAL = 2.0, 1.5
LEAST_S = 0.002  # below it start-up decides, not the link
CALLS = 4
NAMED = 8  # links that the evidence cannot tell apart, at most

Cable = tuple[str, str]  # a link's ends in order: both directions are one cable


class Path(NamedTuple):
    """What one group, or one pair of it, took for calls a link bounds. ranks, devices: in order; ratio: of what was
    taken to what the plan says, middle; loads: share of the plan's time each cable takes."""

    places: tuple[int, ...]
    calls: int
    took_s: float
    ratio: float
    loads: dict[Cable, float]


def find(case: Case) -> Iterator[Finding]:
    """Cables that explain every slow path, fewest first."""
    paths = compared(case)
    fast = {cable for path in paths if path.ratio <= USUAL for cable in path.loads}
    slow = [path for path in paths if path.ratio >= SLOW]
    while slow:
        covers: dict[Cable, list[Path]] = defaultdict(list)
        for path in slow:
            for cable, share in path.loads.items():
                if cable not in fast and share * path.ratio >= 1 / SLOW:
                    covers[cable].append(path)
        if not covers:
            yield _unplaced(case, slow)
            return
        most = max(map(len, covers.values()))
        suspects = sorted(cable for cable, crossing in covers.items() if len(crossing) == most)
        explained = covers[suspects[0]]
        # Cables that other slow paths cross are apart from these.
        suspects = [cable for cable in suspects if covers[cable] == explained]
        yield _finding(case, suspects, explained, [path for path in paths if path.ratio <= USUAL])
        slow = [path for path in slow if path not in explained]


def compared(case: Case) -> list[Path]:
    """What can be held against the plan; nothing without one."""
    plan, t = case.plan, case.timing
    if plan is None or t is None:
        return []
    found: list[Path] = case.once(
        "held against the plan", lambda: _paths(case, t, plan.cluster, _devices(case, plan.rank_grid))
    )
    return found


def note(case: Case) -> str:
    """How much of the record the plan could be held against, and why not all; "" without a plan."""
    if case.plan is None:
        return ""
    paths, grid, ranks = compared(case), case.plan.rank_grid, case.joined.ranks
    device = _devices(case, grid)
    outside = sorted({rank.head.rank for place, rank in enumerate(ranks) if place not in device})
    sizes = " and ".join(str(size) for size in sorted({len(row) for row in grid}))
    why = ""
    if case.timing is None:
        why = "the evidence has no times of calls"
    elif outside:
        why = f"it has {counted(len(grid), 'unit')} of {sizes} ranks, in which {ranks_text(outside)} have no place"
    elif not paths:
        why = f"no group made {CALLS} calls alike that take {show_time(LEAST_S)} or more by it"
    held = f"calls of {counted(len(paths), 'set')} of ranks were" if paths else "nothing was"
    return f"the plan: {held} held against it{f': {why}' if why else ''}"


def _devices(case: Case, grid: tuple[tuple[int, ...], ...]) -> dict[int, int]:
    """By record its device in the plan; those of a unit with more ranks than the plan's are of another run."""
    units = sorted({rank.head.unit for rank in case.joined.ranks})
    found = {}
    for place, rank in enumerate(case.joined.ranks):
        number = units.index(rank.head.unit)
        row = grid[number] if number < len(grid) else ()
        if rank.head.rank < len(row) and rank.head.world <= len(row):
            found[place] = row[rank.head.rank]
    return found


def _paths(case: Case, t: Timing, cluster: Cluster, device: dict[int, int]) -> list[Path]:
    joined, rows = case.joined, case.joined.rows
    over_tcp = any(rank.head.transport.startswith(("tcp", "gloo")) for rank in joined.ranks)
    law = _Law(cluster, over_tcp)
    found: dict[tuple[int, ...], list[tuple[float, float, dict[Cable, float]]]] = defaultdict(list)
    for call in np.flatnonzero(t.moved > 0).tolist():
        first = int(joined.first[call])
        kind, size = joined.ops[rows.op[first]], int(rows.S_bytes[first : joined.first[call + 1]].max())
        if kind in P2P:
            ends = {joined.ops[rows.op[row]]: int(rows.who[row]) for row in range(first, int(joined.first[call + 1]))}
            places: tuple[int, ...] = tuple(ends[side] for side in P2P if side in ends)
            kind = "send_recv"
        else:
            group = joined.groups[int(rows.group[first])]
            places = tuple(group.known[rank] for rank in group.members if rank in group.known)
            if len(places) < len(group.members):
                continue
        if len(places) < 2 or not all(place in device for place in places):
            continue
        predicted, loads = law.of(kind, tuple(device[place] for place in places), size)
        if predicted >= LEAST_S:
            found[places].append((float(t.moved[call]) / 1e9, predicted, loads))
    paths = []
    for places, calls in found.items():
        if len(calls) >= CALLS:
            took = float(np.median([took for took, _, _ in calls]))
            ratio = float(np.median([took / predicted for took, predicted, _ in calls]))
            paths.append(Path(places, len(calls), took, ratio, calls[0][2]))
    return paths


class _Law:
    """Seconds of calls and the cables they load, each kind and size worked out once."""

    def __init__(self, cluster: Cluster, over_tcp: bool) -> None:
        self._roads, self._tcp = Roads(cluster, single=over_tcp), over_tcp
        self._known: dict[tuple[str, tuple[int, ...], int], tuple[float, dict[Cable, float]]] = {}

    def of(self, kind: str, devices: tuple[int, ...], size: int) -> tuple[float, dict[Cable, float]]:
        key = kind, devices, size
        if key not in self._known:
            self._known[key] = self._worked_out(*key)
        return self._known[key]

    def _worked_out(self, kind: str, devices: tuple[int, ...], size: int) -> tuple[float, dict[Cable, float]]:
        name = gloo.NAMES.get(kind, "") if self._tcp else ""
        if len(set(devices)) < len(devices) or (kind not in gloo.NAMES):
            return 0.0, {}
        found = flows(kind, self._roads, devices, Call(size), name)
        rates = {(link.src, link.dst): link.effective_Bps for flow in found for link in flow.way}
        seconds = {ends: float(value_of(size)) / rates[ends] for ends, size in link_bytes(found).items()}
        longest = max(seconds.values(), default=0.0)
        cables: dict[Cable, float] = {}
        for (a, b), took in seconds.items():
            cable = min(a, b), max(a, b)
            cables[cable] = max(cables.get(cable, 0.0), took / longest if longest else 0.0)
        return longest * (gloo.waits(kind, len(devices))[1] if self._tcp else 1.0), cables


def _finding(case: Case, suspects: list[Cable], slow: list[Path], usual: list[Path]) -> Finding:
    worst = max(slow, key=lambda path: path.ratio)
    names = [f"{a}-{b}" for a, b in suspects[:NAMED]]
    nodes = {vertex.partition(".")[0] for cable in suspects for vertex in cable if vertex.startswith("n")}
    at = {case.joined.ranks[place].head.host for path in slow for place in path.places}
    for path in usual:
        at -= {case.joined.ranks[place].head.host for place in path.places} if len(at) > 1 else set()
    alone = len(suspects) == 1
    return Finding(
        class_="slow_link",
        summary=f"{'link' if alone else 'one of the links'} {', '.join(names)} is slower than the plan's cluster: what"
        f" crosses {'it' if alone else 'them'} takes {show_figure(worst.ratio, 2)} times as long",
        original_fault=Fault(link=" or ".join(names), host=one(at) if len(nodes) == 1 else ""),
        cause="network",
        first_reporter=_named(case, worst),
        confidence=0.9 if usual else 0.75,
        waited_s=sum(path.calls * path.took_s * (1 - 1 / path.ratio) for path in slow),
        evidence=(
            *(_said(case, path) for path in sorted(slow, key=lambda path: -path.ratio)[:4]),
            *(f"as planned: {_said(case, path)}" for path in usual[:4]),
            *(() if alone else (f"the same calls cross all of {', '.join(names)}",)),
        ),
        would_decide="" if alone else "counters of these interfaces, or a call that crosses one of them alone",
        next="ethtool and the counters of these interfaces; linkwise measure between their ends",
        recovery="none",
    )


def _unplaced(case: Case, slow: list[Path]) -> Finding:
    return Finding(
        class_="slow_link",
        summary=f"calls of {', '.join(_named(case, path) for path in slow[:4])} take up to"
        f" {show_figure(max(path.ratio for path in slow), 2)} times as long as planned, and no link is theirs alone",
        cause="network",
        confidence=0.4,
        decided=False,
        evidence=tuple(_said(case, path) for path in slow[:8]),
        would_decide="calls of other groups over the same links; the interfaces' counters",
        next="linkwise measure; linkwise traffic of the plan",
        recovery="none",
    )


def _named(case: Case, path: Path) -> str:
    return ranks_text([case.joined.ranks[place].head.rank for place in path.places])


def _said(case: Case, path: Path) -> str:
    times = show_figure(path.ratio, 2)
    return f"{_named(case, path)}: {show_time(path.took_s)} (median of {path.calls}), {times} times the plan's"

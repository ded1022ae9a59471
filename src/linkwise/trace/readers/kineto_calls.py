"""Rows of calls from what a PyTorch profiler trace told: collectives with the moment they were asked for, and a rank's
own work between them.

A kernel of NCCL knows its call by `External id` (that of the `record_param_comms` it was launched in); older traces
only by the launch's thread and time. gloo's worker threads take calls from one queue, so that the k-th annotation of an
op by start is the k-th call of that op.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from linkwise.trace.calls import Calls, columns
from linkwise.trace.readers.kineto_columns import Work
from linkwise.trace.readers.kineto_names import ROLES
from linkwise.trace.readers.kineto_scan import Call, Scan, Window


class Row(NamedTuple):
    """One row to be: times in ns of the trace, 0 = not known. busy: of own work, how long of it something ran."""

    call: Call
    created: int
    started: int
    ended: int
    busy: int = 0


class Threads:
    """Calls by the thread that made them, to find the one that was going on at a moment."""

    def __init__(self, calls: Iterable[Call]) -> None:
        self._by: dict[int | str | None, list[Call]] = {}
        for call in sorted(calls, key=lambda one: one.begin):
            self._by.setdefault(call.tid, []).append(call)
        self._begins = {tid: [call.begin for call in mine] for tid, mine in self._by.items()}

    def at(self, tid: int | str | None, moment: int) -> Call | None:
        """The latest call that a thread had begun, if it was not over."""
        place = bisect_right(self._begins.get(tid, []), moment) - 1
        call = self._by[tid][place] if place >= 0 else None
        return call if call is not None and moment <= call.end else None

    def inside(self, outer: Call) -> bool:
        """Whether a call began within another of its thread."""
        begins = self._begins.get(outer.tid, [])
        place = bisect_right(begins, outer.begin - 1)
        return place < len(begins) and begins[place] <= outer.end


def rows(scan: Scan, base_ns: int) -> tuple[Calls, tuple[int, ...], list[str], bool]:
    """All calls in the order in which they were made, how long each row of own work was busy (ns), what a person should
    know of them, and whether the trace itself numbers all of them."""
    notes = []
    by_id = bool(scan.params)
    made = scan.params if by_id else _with_sizes(scan)
    found = _launched(scan, made, by_id)
    begun = len(found)
    found += _queued(scan, Threads(scan.params or scan.marks))
    ghosts = sum(not row.started for row in found)
    if ghosts:
        why = f"{ghosts} calls have no kernel or worker's span: when they were asked for is known alone"
        notes.append(why if begun or scan.gloo else f"{why}; the trace has no device events")
    for row in found:
        _settle(row.call, scan)
    found.sort(key=lambda row: row.created or row.started)
    all_rows = sorted(found + _work(scan, found), key=lambda row: row.created or row.started)
    if any(not row.call.group and row.call.op != "compute" for row in all_rows):
        notes.append("the process group of some calls is not in the trace: they cannot be joined across ranks")
    busy = tuple(row.busy for row in all_rows if row.call.op == "compute")
    numbered = all(row.call.seq >= 0 for row in found)
    return _columns(all_rows, base_ns, Steps(scan.windows)), busy, notes, numbered


def before_gaps(calls: Calls, groups: list[str]) -> Calls:
    """Of a trace that ends early the calls from before any is missing, and own work. Events lie in the file by thread
    and by kind, so the rest of a group's may be missing while another's are there to the end: each group tells up to
    its last call before a gap in its numbers, and all of them together up to the first of these."""
    time = np.maximum(calls.created_ns, calls.started_ns)
    work = calls.op == (calls.ops.index("compute") if "compute" in calls.ops else -1)
    until = np.iinfo(np.int64).max
    for name in groups:
        mine = np.flatnonzero((calls.group == calls.groups.index(name)) & ~work)
        mine = mine[np.argsort(time[mine], kind="stable")]
        gaps = np.flatnonzero(np.diff(calls.sequence[mine]) > 1)
        if len(mine):
            until = min(until, int(time[mine[gaps[0] if len(gaps) else -1]]))
    return calls.take((time <= until) | work)


def _with_sizes(scan: Scan) -> list[Call]:
    """Annotations of NCCL calls in a trace without arguments: sizes of gathered tensors are those of the operators."""
    threads = Threads(scan.asked)
    for mark in scan.marks:
        outer = threads.at(mark.tid, mark.begin)
        if mark.share and outer is not None and outer.op == mark.op and outer.S_bytes and not outer.share:
            mark.S_bytes, mark.share = outer.S_bytes, False
    return scan.marks


def _launched(scan: Scan, made: list[Call], by_id: bool) -> list[Row]:
    """Calls on the device, each with the host's call it was launched in; then those of the host without a kernel."""
    by_external = {call.external: call for call in made if call.external > 0} if by_id else {}
    threads = Threads(made)
    launches = scan.launches.of([kernel.correlation for kernel in scan.kernels if kernel.correlation > 0])
    found: list[Row] = []
    places: dict[int, int] = {}
    for kernel in sorted(scan.kernels, key=lambda one: one.begin):
        at, tid = launches.get(kernel.correlation, (0, None))
        host = by_external.get(kernel.external) or (threads.at(tid, at) if at else None)
        if host is not None and id(host) in places:  # a call of more than one kernel
            place = places[id(host)]
            found[place] = found[place]._replace(ended=max(found[place].ended, kernel.end))
            continue
        if host is not None:
            places[id(host)] = len(found)
        call = kernel
        if host is not None and not kernel.group and not kernel.S_bytes:
            # The host's name of the op counts: kernels of NCCL 2.1x are all called SendRecv in some traces.
            call = host
            call.dtype = call.dtype or (kernel.dtype if kernel.op == call.op else "")
        created = host.begin if host is not None else at
        found.append(Row(call, min(created, kernel.begin), max(kernel.begin, 1), kernel.end))
    return found + [Row(call, max(call.begin, 1), 0, 0) for call in made if id(call) not in places]


def _queued(scan: Scan, on_device: Threads) -> list[Row]:
    """Calls of gloo: asked for by an operator, run by a worker."""
    waiting: dict[str, deque[Call]] = {}
    for call in sorted(scan.asked, key=lambda one: one.begin):
        if not on_device.inside(call):
            waiting.setdefault(call.op, deque()).append(call)
    found = []
    for span in sorted(scan.gloo, key=lambda one: one.begin):
        queue = waiting.get(span.op)
        # One that began before the first operator of the record was asked for before it.
        asked = queue.popleft() if queue and queue[0].begin <= span.begin else None
        found.append(Row(span, asked.begin if asked else 0, max(span.begin, 1), span.end))
    return found + [Row(call, max(call.begin, 1), 0, 0) for queue in waiting.values() for call in queue]


def _settle(call: Call, scan: Scan) -> None:
    """What only the whole trace says: the group when there is one only, and from it a gathered tensor's size."""
    call.group = call.group or scan.groups.only
    if call.share:
        call.S_bytes, call.share = min(call.S_bytes * scan.groups.sizes.get(call.group, 0), 2**62), False


def _work(scan: Scan, found: list[Row]) -> list[Row]:
    """Own work summed between calls and steps, one row for each stretch; on the host only if the device did none."""
    on_device = len(scan.device) > 0
    work = scan.device.spans() if on_device else _main(scan).spans().top()
    if not len(work.begin):
        return []
    windows = _best(scan.windows[True] or scan.windows[False]) if on_device else _best(scan.windows[False])
    starts = [row.started if on_device else row.created for row in found] + [window.begin for window in windows]
    stretch = np.searchsorted(np.unique(np.asarray([0, *starts], np.int64)), work.begin, side="right")
    new = np.append(True, np.diff(stretch) != 0)
    first, place, kinds = np.flatnonzero(new), np.cumsum(new) - 1, len(ROLES)
    spent = np.bincount(place * kinds + work.kind, weights=work.end - work.begin, minlength=len(first) * kinds)
    most = spent.reshape(-1, kinds).argmax(axis=1)
    ends = np.maximum.reduceat(work.end, first)
    # What ran side by side counts once, and what was idle in between not at all.
    free = np.append(work.begin[0], np.maximum.accumulate(work.end)[:-1])
    busy = np.add.reduceat(np.maximum(work.end - np.maximum(work.begin, free), 0), first)
    return [
        Row(Call("compute", begin, end, None, role=ROLES[kind]), 0, max(begin, 1), end, ran)
        for begin, end, kind, ran in zip(
            work.begin[first].tolist(), ends.tolist(), most.tolist(), busy.tolist(), strict=True
        )
    ]


def _main(scan: Scan) -> Work:
    """Operators of the main thread: the process's own, else the busiest."""
    process = [scan.host[pid] for pid, _ in scan.pids.most_common(1) if pid in scan.host]
    return next(iter(process), None) or max(scan.host.values(), key=len, default=Work())


def _best(windows: list[Window]) -> list[Window]:
    """Windows of the kind that names steps best, in order."""
    most = max((window.rank for window in windows), default=0)
    return sorted(window for window in windows if window.rank == most)


class Steps:
    """The step of a moment: by the host's annotations for when a call was asked for, else by the device's."""

    def __init__(self, windows: dict[bool, list[Window]]) -> None:
        self._windows = {where: _best(found) for where, found in windows.items()}
        self._begins = {where: [window.begin for window in found] for where, found in self._windows.items()}

    def of(self, row: Row) -> int:
        if row.created:
            return self._at(False, row.created)
        # A device runs behind its host: by the host's annotations, work belongs to the last step that began.
        return self._at(bool(self._windows[True]), row.started, late=not self._windows[True])

    def _at(self, on_device: bool, moment: int, late: bool = False) -> int:
        place = bisect_right(self._begins[on_device], moment) - 1
        if place < 0 or (self._windows[on_device][place].end < moment and not late):
            return -1
        number = self._windows[on_device][place].number
        return place if number < 0 else number


def _columns(found: list[Row], base_ns: int, steps: Steps) -> Calls:
    return columns(
        group=[row.call.group for row in found],
        op=[row.call.op for row in found],
        role=[row.call.role for row in found],
        dtype=[row.call.dtype for row in found],
        sequence=_sequence(found),
        S_bytes=[row.call.S_bytes for row in found],
        peer=[row.call.peer for row in found],
        step=[steps.of(row) for row in found],
        created_ns=[row.created + base_ns if row.created else 0 for row in found],
        started_ns=[row.started + base_ns if row.started else 0 for row in found],
        ended_ns=[row.ended + base_ns if row.ended else 0 for row in found],
    )


def _sequence(found: list[Row]) -> list[int]:
    """Numbers in the group: the trace's own where every call of the group has one, else counted. Own work apart."""
    keys = [(row.call.op == "compute", row.call.group) for row in found]
    counted = {key for key, row in zip(keys, found, strict=True) if row.call.seq < 0}
    next_: dict[tuple[bool, str], int] = {}
    numbers = []
    for key, row in zip(keys, found, strict=True):
        number = next_.get(key, 0)
        next_[key] = number + 1
        numbers.append(number if key in counted else row.call.seq)
    return numbers

"""Millions of a profiler trace's events in columns: launches of kernels, and spans of a rank's own work."""

from array import array
from typing import NamedTuple

import numpy as np

from linkwise.trace.calls import Ints

MAX_THREADS = 4096


def ns(us: float) -> int:
    """Whole ns of a time in us: a float keeps them when its whole part is taken apart."""
    whole = int(us)
    return whole * 1000 + round((us - whole) * 1000)


class Launches:
    """When and by which thread kernels were launched, by correlation."""

    def __init__(self) -> None:
        self._correlation, self._at, self._tid = array("q"), array("q"), array("i")
        self._tids: dict[int | str | None, int] = {}

    def add(self, correlation: int, at: int, tid: int | str | None) -> None:
        if len(self._tids) >= MAX_THREADS and tid not in self._tids:
            return
        self._correlation.append(correlation)
        self._at.append(at)
        self._tid.append(self._tids.setdefault(tid, len(self._tids)))

    def of(self, wanted: list[int]) -> dict[int, tuple[int, int | str | None]]:
        """Time and thread of the launches that are asked for."""
        known = np.asarray(self._correlation, np.int64)
        places = np.flatnonzero(np.isin(known, np.asarray(wanted, np.int64)))
        tids = list(self._tids)
        return {self._correlation[i]: (self._at[i], tids[self._tid[i]]) for i in places.tolist()}


class Work:
    """Spans of own work in columns, as a trace has millions of them: times in us as they are written."""

    def __init__(self) -> None:
        self._ts, self._dur, self._kind = array("d"), array("d"), array("b")

    def __len__(self) -> int:
        return len(self._kind)

    def add(self, ts: float, dur: float, kind: int) -> None:
        self._ts.append(ts)
        self._dur.append(dur)
        self._kind.append(kind)

    def spans(self) -> "Spans":
        """Begin and end in ns, and kind, in order of begin; of two that begin together, the longer first."""
        ts = np.asarray(self._ts, np.float64)
        begin = np.floor(ts).astype(np.int64) * 1000 + np.rint((ts - np.floor(ts)) * 1000).astype(np.int64)
        end = begin + np.rint(np.asarray(self._dur, np.float64) * 1000).astype(np.int64)
        order = np.lexsort((-end, begin))
        return Spans(begin[order], end[order], np.asarray(self._kind, np.int64)[order])


class Spans(NamedTuple):
    """Columns of spans."""

    begin: Ints
    end: Ints
    kind: Ints

    def top(self) -> "Spans":
        """Those that lie in no earlier one: spans of one thread nest."""
        if not len(self.begin):
            return self
        outside = np.append(True, self.begin[1:] >= np.maximum.accumulate(self.end)[:-1])
        return Spans(*(column[outside] for column in self))

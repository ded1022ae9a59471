"""Exceptions in engines' logs, and which of them ended a process.

A log is full of exceptions that somebody caught. One counts as an end where the line before it said so (SGLang's
"Scheduler hit an exception"), or where it is the last that its process wrote.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from linkwise.trace.readers import shared
from linkwise.trace.readers.engine_rules import ENDED, MESSAGE_OF_OTHERS, OF_OTHERS, RULES
from linkwise.trace.readers.log_time import Clock
from linkwise.trace.readers.shared import Found

REACH = 500  # lines from the announcement of an exception to its own line: the stack stands between
EACH = 64  # exceptions of a process that are kept
AFTER = 20  # lines of an exception's own message

Placed = tuple[int, dict[str, str]]

_TYPE = r"(?P<type>[A-Z]\w{0,60}(?:Error|Exception|Interrupt|Exit)|\w[\w.]{0,100}\.[A-Z]\w{0,60}(?:Error|Exception))"
_EXCEPTION = re.compile(rf"(?:^|[\])>:] |\] +){_TYPE}(?:[:(]|$)")
# torch distributed_c10d.py puts this before what its hook for uncaught exceptions prints.
_HOOKED = re.compile(rf"^(?:\d{{4}}-\d\d-\d\dT[\d:.]{{8,18}}Z? )?\[rank\d{{1,6}}\]: {_TYPE}: ")
TRACEBACK = "Traceback (most recent call last)"
# What a process still writes after its last exception: the interpreter, torch and the launchers tidying up.
_TIDYING = re.compile(
    r"resource_tracker|leaked |destroy_process_group|warnings\.warn|closing signal|[Ss]hutting down|terminate[ds]?\b|"
    r"CUDA kernel errors might|For debugging consider|Compile with|Search for `cuda|Exception raised from|^frame #\d|"
    r"^\s|Killed$|core dumped|Application shutdown|Finished server|Process \w+:$|^\W*$"
)
_LEVEL = re.compile(r"\b(?:INFO|DEBUG|WARNING)\b|\[I\]|^\d{4}-\d\d-\d\d|^\[\d{4}-")


def exception(row: str) -> str:
    """The type of the exception that a line is of; "" for other lines."""
    match = _EXCEPTION.search(row) if "rror" in row or "xception" in row else None
    return match["type"] if match else ""


def _hooked(row: str) -> bool:
    """Whether a line without a stack is an uncaught exception's, of which no rule tells already."""
    hooked = _HOOKED.search(row) is not None
    return hooked and not any(rule.mark in row and rule.pattern.search(row) for rule in RULES)


class _Told(NamedTuple):
    """An exception's line. end: how it is known to have ended its process; "" = it is not."""

    kind: str
    row: str
    at: dict[str, Any]
    labels: dict[str, str]
    end: str


class Ends:
    """Exceptions of a log, the ones that ended a process with the label end: announced or last."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._announced: dict[str, int] = {}  # by process: the line
        self._heard: dict[tuple[str, ...], int] = {}
        self._told: dict[tuple[str, str], _Told] = {}  # by process and line: the last of its wording

    def announced(self, labels: dict[str, str], at: dict[str, Any]) -> None:
        """A process said that an exception ends it, which is about to follow."""
        self._announced[_who(labels, at["rank"])] = at["line"]

    def stormed(self, who: tuple[str, ...]) -> bool:
        """Whether a process has told of more exceptions than are kept of one, and none is announced. who: words of the
        line that tell the process."""
        if who not in self._heard and len(self._heard) >= shared.MAX_SERIES:
            return not self._announced
        self._heard[who] = heard = self._heard.get(who, 0) + 1
        return heard > EACH and not self._announced

    def exception(self, kind: str, row: str, at: dict[str, Any], labels: dict[str, str]) -> None:
        """An exception's own line."""
        who = _who(labels, at["rank"])
        end = "announced" if at["line"] - self._announced.pop(who, -2 * REACH) <= REACH else ""
        if end or len(self._told) < shared.MAX_FACTS:
            self._told.setdefault((who, row), _Told(kind, row, at, labels, end))

    def last(self, tail: list[tuple[int, str]], place: Callable[[str], Placed], clock: Clock) -> None:
        """The exceptions with which processes end their parts of a log's last lines."""
        traced: set[str] = set()
        ends: dict[str, tuple[int, _Told]] = {}  # by process: how many lines follow it
        who, rank, labels = "", -1, dict[str, str]()
        for line, row in tail:
            placed = place(row)
            if not who or placed[1].keys() & {"process", "pid"} or placed[0] != rank:
                (rank, labels), who = placed, _who(placed[1], placed[0])
            kind = exception(row)
            if TRACEBACK in row:
                traced.add(who)
                ends.pop(who, None)
            elif kind and (who in traced or _hooked(row)):
                ends[who] = (0, _Told(kind, row, {"line": line, "rank": rank, "unix_ns": clock(row)}, labels, "last"))
            elif who in ends and not _TIDYING.search(row):
                after, told = ends.pop(who)
                if after < AFTER and not _LEVEL.search(row):
                    ends[who] = (after + 1, told)
                else:
                    traced.discard(who)
        for who, (_, told) in ends.items():
            known = self._told.get((who, told.row))
            self._told[who, told.row] = told if known is None else known._replace(end=known.end or "last")

    def flush(self) -> None:
        """Of exceptions that ended no process only those are kept whose process is known."""
        for told in self._told.values():
            if told.end and ENDED.search(told.kind):
                continue
            if told.end or told.at["rank"] >= 0 or "process" in told.labels:
                of_others = OF_OTHERS.search(told.kind) or MESSAGE_OF_OTHERS.search(told.row)
                about = {"type": told.kind, "end": told.end, "of": "others" if of_others else ""}
                self._found.add("error", "exception", labels=told.labels | about, text=told.row, **told.at)


def _who(labels: dict[str, str], rank: int) -> str:
    return f"{rank} {labels.get('process', '')} {labels.get('pid', '')}"

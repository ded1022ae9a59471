"""A rank's calls in columns: what a million of them fit in, and what numpy can join."""

from collections.abc import Iterable, Iterator
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt

from linkwise.core.errors import InputError
from linkwise.trace.events import Event, State

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]

STATES: tuple[State, ...] = ("done", "started", "scheduled", "failed")
DONE, STARTED, SCHEDULED, FAILED = range(4)
_NUMBERS = ("step", "sequence", "S_bytes", "peer", "created_ns", "started_ns", "ended_ns")
_WORDS = ("group", "role", "op", "dtype")


class Calls(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Calls of one rank, a row each, in the order in which it made them. Fields are those of `events.Event`.

    group, role, op, dtype: places in `groups`, `roles`, `ops`, `dtypes`; state: a place in STATES.
    """

    groups: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    group: Codes
    role: Codes
    op: Codes
    dtype: Codes
    step: Ints
    sequence: Ints
    S_bytes: Ints
    peer: Ints
    created_ns: Ints
    started_ns: Ints
    ended_ns: Ints
    state: npt.NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.sequence)

    def __iter__(self) -> Iterator[Event]:
        """Rows as events: for a person or a test, not for a million of them."""
        words = [
            [names[code] for code in codes]
            for names, codes in ((self.groups, self.group), (self.roles, self.role), (self.ops, self.op))
        ]
        dtypes = [self.dtypes[code] for code in self.dtype]
        n: dict[str, list[int]] = {name: getattr(self, name).tolist() for name in _NUMBERS}
        states = [STATES[code] for code in self.state]
        return map(
            Event, n["step"], *words, n["sequence"], n["S_bytes"], dtypes, n["peer"],
            n["created_ns"], n["started_ns"], n["ended_ns"], states,
        )  # fmt: skip

    def take(self, rows: Any) -> Self:
        """The calls of some rows: indices in order, or a mask."""
        columns = {name: getattr(self, name)[rows] for name in (*_NUMBERS, *_WORDS, "state")}
        return msgspec.structs.replace(self, **columns)


def columns(
    *,
    group: Iterable[str],
    op: Iterable[str],
    sequence: Iterable[int],
    role: Iterable[str] | None = None,
    dtype: Iterable[str] | None = None,
    step: Iterable[int] | None = None,
    S_bytes: Iterable[int] | None = None,
    peer: Iterable[int] | None = None,
    created_ns: Iterable[int] | None = None,
    started_ns: Iterable[int] | None = None,
    ended_ns: Iterable[int] | None = None,
    state: Iterable[int] | None = None,
) -> Calls:
    """Calls from one iterable a field; left out: "" or 0, and -1 for step and peer. state: places in STATES.

    Raises InputError for columns of unequal lengths and numbers beyond 64 bits.
    """
    try:
        numbers: dict[str, Any] = {"sequence": np.fromiter(sequence, np.int64)}
        count = len(numbers["sequence"])
        given = {"S_bytes": S_bytes, "created_ns": created_ns, "started_ns": started_ns, "ended_ns": ended_ns}
        given |= {"step": step, "peer": peer}
        for name, values in given.items():
            empty = -1 if name in {"step", "peer"} else 0
            numbers[name] = np.full(count, empty, np.int64) if values is None else np.fromiter(values, np.int64)
        states = np.zeros(count, np.int8) if state is None else np.fromiter(state, np.int8)
    except (OverflowError, TypeError, ValueError) as error:
        raise InputError(f"a number of a call: {error}", expected="whole numbers of 64 bits") from None
    words: dict[str, Any] = {}
    for name, texts in {"group": group, "op": op, "role": role, "dtype": dtype}.items():
        if texts is None:
            words[f"{name}s"], words[name] = ("",), np.zeros(count, np.int32)
        else:
            rows = list(texts)
            known = {text: place for place, text in enumerate(dict.fromkeys(rows))}
            words[name] = np.fromiter(map(known.__getitem__, rows), np.int32, len(rows))
            words[f"{name}s"] = tuple(known)
    found = Calls(**numbers, **words, state=states)
    if any(len(getattr(found, name)) != count for name in (*_NUMBERS, *_WORDS, "state")):
        raise InputError("columns of unequal lengths", expected=f"{count} rows in each")
    return found


def of_events(events: Iterable[Event]) -> Calls:
    """Calls from events."""
    rows = list(events)
    fields: dict[str, Any] = {name: [row[place] for row in rows] for place, name in enumerate(Event._fields)}
    fields["state"] = [STATES.index(one) for one in fields["state"]]
    return columns(**fields)

"""Entries of a flight-recorder dump as calls, in columns: a dump holds thousands and there may be a thousand dumps.

- Peers of send and recv are ranks of their group; collective_seq_id and p2p_seq_id count apart: here the calls of a
  group and those of "<group>|p2p".
- time_discovered_*_ns is when the watchdog looked, up to 100 ms late, or when the dump was made; no time is null in
  pickles, 0 in JSON. Starts are looked for when a call is over, and only with TORCH_NCCL_ENABLE_TIMING, which also
  gives duration_ms, of the kernel itself.
- "retired" without "completed": NCCL: it timed out. gloo, which never completes: it is over, well or not, and marked
  so by another thread some time after it returned.
- Ops of a coalesced group never change state: they take that of the entry that ends it. Its collectives are one call,
  as they are one launch.
"""

import math
import re
from itertools import pairwise
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from linkwise.core.errors import InputError
from linkwise.core.printable import clipped, printable
from linkwise.trace.calls import DONE, FAILED, SCHEDULED, STARTED
from linkwise.trace.facts import quoted

MAX_ENTRIES = 2_000_000
MAX_DIMS = 64
P2P = "|p2p"

Pair = tuple[str, str]  # name and description of a group
Columns = dict[str, list[Any]]

# Fields, with what they are where a version lacks them.
_FIELDS: dict[str, Any] = {
    "record_id": 0, "pg_id": 0, "process_group": None, "collective_seq_id": 0, "p2p_seq_id": 0, "profiling_name": "",
    "time_created_ns": 0, "input_sizes": (), "output_sizes": (), "input_dtypes": (), "output_dtypes": (), "state": "",
    "time_discovered_started_ns": 0, "time_discovered_completed_ns": 0, "retired": None, "is_p2p": None,
}  # fmt: skip
_EARLIER = {"collective_seq_id": "seq_id"}  # of the first versions
LOOKED_NS = 20_000  # from start to end at most, where one look noted both: no call over a link is as short
AT_LEAST = 10  # one call of so many is noted so, also where most are waited in for longer than from look to look
PAUSES = 3  # times the longest pause between two calls: a rank that enqueued none for so long does not go on
FREQUENT_NS = 20_000_000  # between calls, on average: five of them between two looks of the watchdog
RECENT_NS = 10 * 10**9  # a dump this soon after the last call was enqueued is no watchdog's, which waits for a minute

# Names of ops (ProcessGroupNCCL.cpp) that taking off an ending does not make ours.
_OPS = {
    "allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all", "all_gather_base": "all_gather",
    "reduce_scatter_base": "reduce_scatter", "alltoall_base": "all_to_all", "broadcast_oop": "broadcast",
    "reduce_oop": "reduce", "all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter",
    "all_reduce_barrier": "barrier", "recvanysource": "recv", "all_to_allv": "all_to_all",
}  # fmt: skip
_ENDINGS = re.compile(r"(?:_coalesced|_single|_v|_v_single)$")
# c10::toString(ScalarType) -> our name, bytes an element.
_DTYPES = {
    "Float": ("float32", 4), "BFloat16": ("bfloat16", 2), "Half": ("float16", 2), "Double": ("float64", 8),
    "Byte": ("uint8", 1), "Char": ("int8", 1), "Short": ("int16", 2), "Int": ("int32", 4), "Long": ("int64", 8),
    "Bool": ("bool", 1), "UInt16": ("uint16", 2), "UInt32": ("uint32", 4), "UInt64": ("uint64", 8),
    "Float8_e4m3fn": ("float8_e4m3fn", 1), "Float8_e5m2": ("float8_e5m2", 1), "Float8_e8m0fnu": ("float8_e8m0fnu", 1),
    "Float8_e4m3fnuz": ("float8_e4m3fnuz", 1), "Float8_e5m2fnuz": ("float8_e5m2fnuz", 1),
    "Float4_e2m1fn_x2": ("float4_e2m1fn_x2", 1), "ComplexHalf": ("complex32", 4), "ComplexFloat": ("complex64", 8),
    "ComplexDouble": ("complex128", 16),
}  # fmt: skip
_STATES = {"completed": DONE, "started": STARTED, "scheduled": SCHEDULED}
_BY_OUTPUT = frozenset({"all_gather", "scatter"})


def lower(values: dict[Any, Any]) -> dict[Any, Any]:
    """A dict with its text keys in lower case: JSON of some handlers spells them otherwise."""
    return {key.lower() if type(key) is str else key: value for key, value in values.items()}


def checked(entries: list[dict[str, Any]], where: str) -> Columns:
    """Every field of every entry. Entries of one dump have the same fields. Raises InputError."""
    where = f"{where}: entries"
    if len(entries) > MAX_ENTRIES:
        raise InputError(f"{len(entries)} entries", where=where, expected=f"at most {MAX_ENTRIES}")
    if not entries:
        return {field: [] for field in _FIELDS}
    first = entries[0]
    if not {"profiling_name", "state"} <= first.keys():
        lacks = " and ".join(sorted({"profiling_name", "state"} - first.keys()))
        raise InputError(f"entry 0 has no {lacks}", where=where, expected="calls as the recorder writes them")
    names = {field: _EARLIER.get(field, field) if field not in first else field for field in _FIELDS}
    names = {field: name for field, name in names.items() if name in first}
    rows: Columns = {field: [default] * len(entries) for field, default in _FIELDS.items() if field not in names}
    try:
        values = zip(*map(itemgetter(*names.values()), entries), strict=True)
        rows |= zip(names, map(list, values), strict=True)
    except KeyError as error:
        lacks = error.args[0]
        place = next((n for n, entry in enumerate(entries) if lacks not in entry), 0)
        reason = f"entry {place} has no {quoted(str(lacks))}"
        raise InputError(reason, where=where, expected="the fields of entry 0") from None
    for field, default in _FIELDS.items():
        if type(default) is int:
            rows[field] = _integers(rows[field], field, where)
        elif type(default) is str and not set(map(type, rows[field])) <= {str}:
            raise InputError(_first_wrong(rows[field], field, (str,)), where=where, expected="text")
    rows["process_group"] = _pairs(rows["process_group"], rows["pg_id"])
    return rows


class Seen(NamedTuple):
    """How a dump's times came about. polled: they are when somebody looked, not when it was. taken_ns: when the dump
    was made, 0 = not known. pace: whether calls went on until then, as far as that shows."""

    polled: bool
    taken_ns: int
    pace: Literal["moving", "still", ""]


def seen(rows: Columns) -> Seen:
    """A call that is completed and not retired was found so by the dump itself, and so was a start without an end."""
    started, ended = rows["time_discovered_started_ns"], rows["time_discovered_completed_ns"]
    done = [n for n, word in enumerate(rows["state"]) if word == "completed" and ended[n]]
    took = sorted(ended[n] - started[n] for n in done if started[n])
    if not done or (took and took[(len(took) - 1) // AT_LEAST] >= LOOKED_NS):
        return Seen(False, 0, "")
    retired = [ended[n] for n in done if rows["retired"][n] is True]
    fresh = [ended[n] for n in done if rows["retired"][n] is False]
    if not retired or (fresh and min(fresh) < max(retired)):
        return Seen(True, 0, "")
    pending = [started[n] for n, word in enumerate(rows["state"]) if word == "started"]
    made = sorted(rows["time_created_ns"])
    gaps = [after - before for before, after in pairwise(made)] or [0]
    taken = max([*pending, *fresh], default=0)
    if taken:
        if taken - made[-1] >= (RECENT_NS if fresh else PAUSES * max(gaps)):
            return Seen(True, taken, "still")
        # A start alone shows no end: the last call before a device stops begins as any other.
        return Seen(True, taken, "moving" if fresh else "")
    # Of calls this frequent some would have ended since the last look, did they go on.
    return Seen(True, 0, "still" if made[-1] - made[0] < FREQUENT_NS * len(gaps) else "")


def began(rows: Columns, durations: list[Any], where: str) -> list[int]:
    """Starts of calls whose times are when somebody looked: before the end by what the kernel took, 0 where that is
    not told. durations: in ms. Raises InputError."""
    wrong = [one for one in durations if one is not None and not (type(one) in (int, float) and 0 <= one < 1e12)]
    if wrong:
        shown = f"{wrong[0]:g}" if type(wrong[0]) is float else f"a {type(wrong[0]).__name__}"
        raise InputError(f"duration_ms {shown}", where=f"{where}: entries", expected="milliseconds")
    ends = rows["time_discovered_completed_ns"]
    return [
        max(0, end - round(took * 1e6)) if took is not None and end else 0
        for end, took in zip(ends, durations, strict=True)
    ]


def _first_wrong(values: list[Any], field: str, right: tuple[type, ...]) -> str:
    place = next((n for n, value in enumerate(values) if type(value) not in right), 0)
    return f"entry {place}, field {field}: a {type(values[place]).__name__}"


def _integers(values: list[Any], field: str, where: str) -> list[int]:
    """Whole numbers below 2^62; none and negative ones (no time) are 0."""
    kinds = set(map(type, values))
    if not kinds <= {int, type(None)}:
        raise InputError(_first_wrong(values, field, (int, type(None))), where=where, expected="a whole number")
    if type(None) in kinds:
        values = [value or 0 for value in values]
    if values and max(values) >= 2**62:
        raise InputError(f"field {field}", where=where, expected="numbers below 2^62")
    return [max(value, 0) for value in values] if values and min(values) < 0 else values


def _pairs(given: list[Any], numbers: list[int]) -> list[Pair]:
    """Names and descriptions of groups; early versions have the name alone, or the number."""
    if set(map(type, given)) == {tuple} and all(map(_is_pair, set(given))):
        return given

    def pair(value: Any, number: int) -> Pair:
        if type(value) in (tuple, list) and _is_pair(value):
            return value[0], value[1]
        return (value, "") if type(value) is str else (f"pg {number}", "")

    return list(map(pair, given, numbers))


def _is_pair(value: Any) -> bool:
    return len(value) == 2 and type(value[0]) is str and type(value[1]) is str


def calls(
    rows: Columns, groups: dict[Pair, tuple[str, tuple[int, ...]]], where: str
) -> tuple[dict[str, Any], str, list[str]]:
    """Columns as `calls.columns` takes them, what carries the calls, and notes. groups: key and members."""
    notes: list[str] = []
    where = f"{where}: entries"
    known = {name: _op(name) for name in set(rows["profiling_name"])}
    op = [known[name][1] for name in rows["profiling_name"]]
    p2p = rows["is_p2p"] = _flags(rows["is_p2p"], op)
    pairs = rows["process_group"]
    keys = {pair: key for pair, (key, _) in groups.items()}
    found: dict[str, Any] = {
        "group": [keys[pair] for pair in pairs],
        "op": op,
        "sequence": rows["collective_seq_id"],
        "created_ns": rows["time_created_ns"],
        "started_ns": rows["time_discovered_started_ns"],
        "ended_ns": rows["time_discovered_completed_ns"],
        "state": _states(rows, {name for name, one in known.items() if one[0] in ("nccl", "xccl")}, notes, where),
    }
    found["S_bytes"], found["dtype"] = _amounts(rows, op, groups, notes, where)
    if True in p2p:
        found["sequence"] = list(found["sequence"])
        found["peer"] = [-1] * len(op)
        for n in [n for n, flag in enumerate(p2p) if flag]:
            members, end = groups[pairs[n]][1], known[rows["profiling_name"][n]][2]
            found["group"][n] += P2P
            found["sequence"][n] = rows["p2p_seq_id"][n]
            found["peer"][n] = members[end] if 0 <= end < len(members) else -1
    if any("coalesced" in name for name in known):
        found = _coalesced(found, rows["profiling_name"])
    return found, next((backend for backend, _, _ in known.values() if backend), ""), notes


def _op(name: str) -> tuple[str, str, int]:
    """Backend, our op, and the peer's rank in the group, from "nccl:send 0->3" or "nccl:recv 0<-3"."""
    backend, _, rest = name.rpartition(":")
    word, _, ends = rest.partition(" ")
    word = re.sub(r"\W+", "_", word.strip("_").lower())
    word = _ENDINGS.sub("", word) or word
    peer = re.fullmatch(r"[0-9]{1,7}(?:->|<-)([0-9]{1,7})", ends)
    return clipped(printable(backend), 40), clipped(_OPS.get(word, word), 60), int(peer[1]) if peer else -1


def _flags(given: list[Any], op: list[str]) -> list[bool]:
    if set(map(type, given)) <= {bool}:
        return given
    return [flag is True or (flag is None and one in ("send", "recv")) for flag, one in zip(given, op, strict=True)]


def _states(rows: Columns, watched: set[str], notes: list[str], where: str) -> list[int]:
    """watched: names of ops whose backend records completions."""
    try:
        state = [_STATES[word] for word in rows["state"]]
    except KeyError as error:
        raise InputError(f"state {quoted(str(error))}", where=where, expected=", ".join(_STATES)) from None
    over = [n for n, flag in enumerate(rows["retired"]) if flag is True and state[n] != DONE]
    for n in over:
        state[n] = FAILED if rows["profiling_name"][n] in watched else DONE
    if any(state[n] == DONE for n in over):
        notes.append("its backend records no completions: a call that is over counts as done, even if it failed")
    return state


def _amounts(
    rows: Columns, op: list[str], groups: dict[Pair, tuple[str, tuple[int, ...]]], notes: list[str], where: str
) -> tuple[list[int], list[str]]:
    """S (DESIGN §3) and dtype of every call.

    All inputs together, or outputs where they are the whole or the only ones; gather and scatter: the own part by the
    number of members, since the root alone has the whole.
    """
    if not any(rows["input_dtypes"]) and not any(rows["output_dtypes"]):
        if any(rows["input_sizes"]) or any(rows["output_sizes"]):
            notes.append("it records no dtypes: no size of a call is known")
        return [0] * len(op), [""] * len(op)
    size = _Sizes()
    shapes, dtypes = _sides(rows, op)
    try:
        amount = [
            # Hashing is linear: `unpickle` makes no tuple of tuples, and lists and dicts cannot be hashed at all.
            size[dtype[0], tuple(shape[0])]
            if len(shape) == 1 == len(dtype)
            else sum(size[name, tuple(dims)] for dims, name in zip(shape, dtype, strict=True))
            for shape, dtype in zip(shapes, dtypes, strict=True)
        ]
        names = [_DTYPES[dtype[0]][0] if dtype and dtype[0] in _DTYPES else "" for dtype in dtypes]
    except (TypeError, ValueError, LookupError):
        raise InputError("sizes or dtypes", where=where, expected="lists of sizes and of dtypes") from None
    for n in [n for n, word in enumerate(op) if word in ("gather", "scatter")]:
        amount[n] *= max(1, len(groups[rows["process_group"][n]][1]))
    if max(amount, default=0) >= 2**62:
        raise InputError("sizes", where=where, expected="less than 2^62 bytes a call")
    if size.unknown:
        notes.append(f"calls of dtype {', '.join(sorted(size.unknown)[:5])} have a size of 0: not known here")
    return amount, names


class _Sizes(dict[tuple[str, tuple[int, ...]], int]):
    """Bytes of tensors by dtype and shape, each worked out once: the same few come again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.unknown: set[str] = set()

    def __missing__(self, key: tuple[str, tuple[int, ...]]) -> int:
        dtype, shape = key
        if len(shape) > MAX_DIMS or set(map(type, shape)) - {int} or type(dtype) is not str:
            raise ValueError
        if shape and not 0 <= min(shape) <= max(shape) < 2**48:
            raise ValueError
        if dtype not in _DTYPES:
            self.unknown.add(quoted(dtype))
        found = self[key] = math.prod(shape) * _DTYPES.get(dtype, ("", 0))[1]
        return found


def _sides(rows: Columns, op: list[str]) -> tuple[list[Any], list[Any]]:
    """Shapes and dtypes of the tensors of each call that S counts."""
    shapes, dtypes = rows["input_sizes"], rows["input_dtypes"]
    if _BY_OUTPUT.isdisjoint(op) and all(shapes):
        return shapes, dtypes
    outputs = rows["output_sizes"]
    flags = [word in _BY_OUTPUT or not given for word, given in zip(op, shapes, strict=True)]
    flags = [flag and bool(out) for flag, out in zip(flags, outputs, strict=True)]
    shapes = [out if flag else given for flag, out, given in zip(flags, outputs, shapes, strict=True)]
    dtypes = [out if flag else given for flag, out, given in zip(flags, rows["output_dtypes"], dtypes, strict=True)]
    return shapes, dtypes


def _coalesced(found: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Calls of coalesced groups with the state and times of the entry that ends each, which is left out."""
    turns: dict[tuple[str, int], list[int]] = {}
    for n, place in enumerate(zip(found["group"], found["sequence"], strict=True)):
        turns.setdefault(place, []).append(n)
    gone = set()
    for (group, _), (*inner, end) in turns.items():
        if not inner or "coalesced" not in names[end] or found["S_bytes"][end]:
            continue
        for field in ("state", "started_ns", "ended_ns"):
            for n in inner:
                found[field][n] = found[field][end]
        if group.endswith(P2P):
            gone.add(end)
            continue
        first = inner[0]
        gone |= {*inner[1:], end}
        found["S_bytes"][first] = sum(found["S_bytes"][n] for n in inner)
        if len({found["op"][n] for n in inner}) > 1:
            found["op"][first] = "coalesced"
    return {field: [v for n, v in enumerate(values) if n not in gone] for field, values in found.items()}

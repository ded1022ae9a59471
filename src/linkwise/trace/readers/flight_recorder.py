"""PyTorch flight-recorder dumps, one rank each: pickles of `DebugInfoWriter` and the JSON of the HTTP handler, 2.x.

After pytorch: torch/csrc/distributed/c10d/FlightRecorderDetail.hpp (fields) and torch/distributed/flight_recorder
(their meaning). What to know of them:
- the rank stands in the file's name only;
- a dump may hold the calls that were not done alone, so that done ones look missing (`only_open`);
- pg_status names groups by numbers that only entries tie to names (`_names` says what else is certain). Its counts are
  those of collectives or of send and recv, whichever came last: a Mark is of the "|p2p" calls of a group where the
  group's last entry shows it, else of the group itself.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from linkwise.core.errors import InputError
from linkwise.core.printable import clipped, printable
from linkwise.trace.calls import DONE, columns
from linkwise.trace.events import Head, Mark, RankTrace
from linkwise.trace.readers import flight_entries, unpickle
from linkwise.trace.readers.base import Reading, Source
from linkwise.trace.readers.flight_entries import P2P, Columns, Pair
from linkwise.trace.readers.unpickle import no_collection

FORMAT = "PyTorch flight recorder"
MAX_GROUPS = 4096
MAX_RANKS = 65_536
DEFAULT: Pair = ("0", "default_pg")

_RANK = re.compile(r"rank[_-]?(\d{1,7})(?!\d)|(?<!\d)(\d{1,7})$", re.IGNORECASE)
_SUFFIXES = re.compile(r"(?:\.(?:gz|json|pickle|pkl|bin|dump))+$", re.IGNORECASE)
_FIELDS = (b"profiling_name", b"pg_status")  # and pg_config, which profiler traces have too
_COUNTS = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")


def recognises(source: Source) -> bool:
    """A pickle or an object of JSON in whose beginning the recorder's own field names stand."""
    if unpickle.is_pickle(source.head):
        return any(field in source.head for field in (*_FIELDS, b"pg_config"))
    head = source.head.lstrip().lower()
    return head[:1] in (b"{", b"[") and any(b'"' + field + b'"' in head for field in _FIELDS)


def read(source: Source) -> Reading:
    """One dump. Raises InputError when it is none, or its name does not say whose it is."""
    with no_collection():
        return _read(source)


def _read(source: Source) -> Reading:
    where = source.where
    rank = rank_of(source.name, where)
    dump = _load(source)
    entries = _entries(dump, where)
    rows = flight_entries.checked(entries, where)
    seen = flight_entries.seen(rows)
    if seen.polled:
        durations = [entry.get("duration_ms") for entry in entries]
        rows["time_discovered_started_ns"] = flight_entries.began(rows, durations, where)
    pairs = list(dict.fromkeys(rows["process_group"]))
    groups = _groups(dump.get("pg_config"), pairs, where)
    calls, transport, notes = flight_entries.calls(rows, {p: (group_key(p), m) for p, m in groups.items()}, where)
    marks = tuple(_marks(dump.get("pg_status"), rows, groups))
    world = _world(groups, rank, notes)
    members = {group_key(pair): ranks for pair, ranks in groups.items() if ranks}
    members |= {key: members[base] for key in set(calls["group"]) if (base := key.removesuffix(P2P)) in members}
    only_open = _holds_only_open(rows["record_id"], calls["state"], marks)
    try:
        trace = RankTrace(
            head=Head(
                rank=rank,
                world=world,
                groups=members,
                transport=transport or ("nccl" if _library(dump) else ""),
                writer=_writer(dump),
            ),
            calls=columns(**calls),
            marks=marks,
            only_open=only_open,
            lost=0 if only_open else next(iter(rows["record_id"]), 0),
            polled=seen.polled,
            taken_ns=seen.taken_ns,
            pace=seen.pace,
            source=where,
            format=FORMAT,
        )
    except InputError as error:
        raise InputError(error.message, where=where, expected=error.expected) from None
    return Reading(ranks=(trace,), notes=tuple(notes))


def rank_of(name: str, where: str) -> int:
    """The rank in a dump's file name: `nccl_trace_rank_3`, `_dump_12`, `json_rank2.json`. Raises InputError."""
    found = _RANK.search(_SUFFIXES.sub("", name))
    rank = int(found[1] or found[2]) if found else 2**20
    if rank >= 2**20:
        raise InputError(
            "the file's name says no rank, and nothing inside does",
            where=where,
            expected="a name that ends in it, such as nccl_trace_rank_3",
        )
    return rank


def group_key(pair: Pair) -> str:
    """A group's name in traces, the same on every member. Without a description the recorder says "undefined"."""
    name, desc = pair
    return clipped(printable(f"{desc}:{name}" if desc not in ("", "undefined") else name or "group"), 190)


def _load(source: Source) -> dict[str, Any]:
    data = source.bytes(unpickle.MAX_PICKLE_BYTES)
    if unpickle.is_pickle(data):
        dump = unpickle.loads(data, where=source.where)
    else:
        try:
            dump = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise InputError(f"not valid JSON: {error}", where=source.where, expected=FORMAT) from None
    if type(dump) is list:  # the first versions: entries alone
        dump = {"entries": dump}
    if type(dump) is not dict:
        raise InputError(f"holds a {type(dump).__name__}", where=source.where, expected="a dict of entries")
    return flight_entries.lower(dump)


def _entries(dump: dict[str, Any], where: str) -> list[dict[str, Any]]:
    entries = dump.get("entries") or []
    if type(entries) is not list or not set(map(type, entries)) <= {dict}:
        raise InputError("entries", where=where, expected="a list of entries")
    return entries if not entries or "state" in entries[0] else [flight_entries.lower(entry) for entry in entries]


def _groups(config: Any, pairs: Sequence[Pair], where: str) -> dict[Pair, tuple[int, ...]]:
    """Members of every group that the dump names, as world ranks; () where it does not say."""
    config = {} if config is None else config
    if type(config) is not dict or len(config) + len(pairs) > MAX_GROUPS:
        raise InputError("pg_config", where=where, expected=f"at most {MAX_GROUPS} groups by name")
    found: dict[Pair, tuple[int, ...]] = {}
    for name, value in config.items():
        fields = flight_entries.lower(value) if type(value) is dict else {}
        desc = fields.get("desc", "")
        if type(name) is not str or type(desc) is not str:
            raise InputError("pg_config", where=where, expected="names and descriptions")
        found[name, desc] = _members(fields.get("ranks"), where)
    if "" in config and len(found) == 1 and len(pairs) < 2:  # gloo: the name of the only group is in entries alone
        return {pairs[0] if pairs else DEFAULT: next(iter(found.values()))}
    return dict.fromkeys(pairs, ()) | found


def _members(ranks: Any, where: str) -> tuple[int, ...]:
    """World ranks from "[0, 2]", in the order of their ranks in the group."""
    if type(ranks) is list and set(map(type, ranks)) <= {int}:
        members = tuple(ranks)
    elif type(ranks) is str and re.fullmatch(r"[\[\]0-9, ]*", ranks):
        members = tuple(int(word) for word in re.findall(r"[0-9]{1,9}", ranks))
    else:
        raise InputError("ranks of pg_config", where=where, expected="a list of ranks")
    if len(members) > MAX_RANKS or (members and not 0 <= min(members) <= max(members) < 2**20):
        raise InputError("ranks of pg_config", where=where, expected=f"at most {MAX_RANKS} ranks below 2^20")
    return members


def _world(groups: dict[Pair, tuple[int, ...]], rank: int, notes: list[str]) -> int:
    default = groups.get(DEFAULT) or next((m for (name, _), m in groups.items() if name == "0"), ())
    if not default:
        notes.append("its default group is not in it: the world is taken to end with the largest rank that it names")
    elif rank not in default:
        notes.append(f"the file's name says rank {rank}, which its default group does not hold")
    return max([rank, *(r for members in groups.values() for r in members)]) + 1


def _marks(status: Any, rows: Columns, groups: dict[Pair, tuple[int, ...]]) -> Iterator[Mark]:
    """What pg_status says. A group whose name is not certain is "pg <number>"."""
    if type(status) is not dict or len(status) > MAX_GROUPS:
        return
    counts = {int(key): value for key, value in status.items() if type(key) is str and re.fullmatch("[0-9]{1,9}", key)}
    names = _names(sorted(counts), dict(zip(rows["pg_id"], rows["process_group"], strict=True)), groups)
    last = dict(zip(rows["process_group"], zip(rows["is_p2p"], rows["p2p_seq_id"], strict=True), strict=True))
    for number, value in sorted(counts.items()):
        if type(value) is dict:
            mark = Mark(f"pg {number}", *(_count(value.get(name)) for name in _COUNTS))
            if number in names:
                p2p = last.get(names[number]) == (True, mark.enqueued)
                mark = mark._replace(group=group_key(names[number]) + P2P * p2p)
            yield mark


def _names(numbers: list[int], seen: dict[int, Pair], groups: dict[Pair, tuple[int, ...]]) -> dict[int, Pair]:
    """Groups by their numbers. seen: those that entries tell.

    Numbers and decimal names both count groups in the order of their making, and a group with a number here has made a
    call, for which pg_config must know it. So between two known pairs as many numbers as names belong together.
    """
    known = dict(seen)
    if DEFAULT in groups:
        known.setdefault(0, DEFAULT)
    pairs = sorted((pair for pair in groups if pair[0].isascii() and pair[0].isdigit()), key=_made)
    place = {pair: n for n, pair in enumerate(pairs)}
    fixed = [(number, place[pair]) for number, pair in sorted(known.items()) if pair in place]
    if len(pairs) < len(groups) or any(a[1] >= b[1] for a, b in pairwise(fixed)):
        return known
    for low, high in pairwise([(-1, -1), *fixed, (2**62, len(pairs))]):
        free = numbers[bisect_right(numbers, low[0]) : bisect_left(numbers, high[0])]
        nameless = pairs[low[1] + 1 : high[1]]
        if len(free) == len(nameless):
            known |= zip(free, nameless, strict=True)
    return known


def _made(pair: Pair) -> tuple[int, str]:
    """When a group was made, by its name. Longer numbers are larger ones; no arithmetic on what may be huge."""
    digits = pair[0].lstrip("0")
    return len(digits), digits


def _count(value: Any) -> int:
    """A call's number: JSON has it as text, NCCL without events as -1."""
    if type(value) is str and re.fullmatch("-?[0-9]{1,18}", value):
        value = int(value)
    return value if type(value) is int and 0 <= value < 2**62 else -1


def _holds_only_open(record_ids: Sequence[int], states: Sequence[int], marks: Sequence[Mark]) -> bool:
    """Calls are done by the rank's own count, none is in the record, and it is no record from the start."""
    whole = len(record_ids) > 0 and list(record_ids) == list(range(len(record_ids)))
    return DONE not in states and not whole and any(mark.completed > 0 for mark in marks)


def _writer(dump: dict[str, Any]) -> str:
    version, library = dump.get("version"), _library(dump)
    words = [FORMAT, version if type(version) is str else "", f"NCCL {library}" if library else ""]
    return clipped(printable(" ".join(word for word in words if word)), 200)


def _library(dump: dict[str, Any]) -> str:
    """Version of NCCL; gloo has none."""
    version = dump.get("nccl_version") or dump.get("comm_lib_version")
    return version if type(version) is str else ""

"""Reports of NCCL's RAS subsystem: `ncclras`, as text (since 2.24) and JSON (since 2.28.7).

After nccl: src/ras/client_support.cc and its documentation. It counts collectives *launched*, not completed, so that it
can say OK in a hang. Its text names the minority of ranks, which may be ahead or behind. Ranks are those of a
communicator: they are ranks of the world where the communicator holds every process, else `rank` is -1 and the label
comm_rank has it. Its timestamp names no zone and is left out.

Facts: launched <op>, missing unresponsive / considered_dead / not_a_member, status ok / mismatch / error / incomplete,
error nccl_async_error / nccl_init_error, place rank. Labels communicator and size say of which.
"""

import re
from collections.abc import Iterator
from typing import Any

from linkwise.core.errors import InputError
from linkwise.core.files import parse_json
from linkwise.trace.facts import Fact, quoted
from linkwise.trace.readers import ras_text
from linkwise.trace.readers.base import Reading, Source
from linkwise.trace.readers.nccl_lines import snake
from linkwise.trace.readers.watchdog import Watchdog

FORMAT = "NCCL RAS"
MAX_BYTES = 64 * 2**20
MAX_FACTS = 500_000

# ncclResult_t, in its order.
_RESULTS = (
    "success", "unhandled CUDA error", "system error", "internal error", "invalid argument", "invalid usage",
    "remote process error", "in progress",
)  # fmt: skip
_FINE = (0, 7)
# 2.28.9 leaves out a comma where it lists a missing rank.
_NO_COMMA = re.compile(r'("nvml_dev"\s*:\s*-?\d+)(\s*\n\s*"status"\s*:)')


def recognises(source: Source) -> bool:
    """The names of RAS's own fields, or the headings of its text."""
    head = source.text
    if head.lstrip()[:1] == "{":
        return '"communicators"' in head and '"nccl_version"' in head
    return ras_text.recognises(head)


def read(source: Source) -> Reading:
    """One report or several of them; lines of PyTorch's watchdog among them are read too."""
    text = source.bytes(MAX_BYTES).decode("utf-8-sig", errors="replace")
    notes: list[str] = []
    lines = list(enumerate(text.splitlines(), 1))
    if text.lstrip()[:1] == "{":
        reports, lines = _cut(lines)
        found = [fact for number, part in enumerate(reports, 1) for fact in _report(part, number, source.where, notes)]
    else:
        found = list(ras_text.facts(lines, source.where))
    watchdog = Watchdog(source.where)
    for number, line in lines:
        watchdog.take(number, line)
    facts = [*found, *watchdog.facts()]
    if not facts:
        raise InputError("no communicator in it", where=source.where, expected="ncclras output")
    if len(facts) > MAX_FACTS:
        notes.append(f"only {MAX_FACTS} of {len(facts)} statements are kept")
    return Reading(facts=tuple(facts[:MAX_FACTS]), notes=tuple(notes))


def _cut(lines: list[tuple[int, str]]) -> tuple[list[str], list[tuple[int, str]]]:
    """Reports, each from a line "{" to a line "}", and the lines between and after them. Else all is one report."""
    reports: list[str] = []
    between: list[tuple[int, str]] = []
    inside: list[str] = []
    for number, line in lines:
        if not inside and line.rstrip() != "{":
            between.append((number, line))
            continue
        inside.append(line)
        if line.rstrip() == "}":
            reports.append("\n".join(inside))
            inside = []
    if inside or not reports:
        reports.append("\n".join(inside or [line for _, line in between]))
    return reports, between


def _report(text: str, number: int, where: str, notes: list[str]) -> Iterator[Fact]:
    """One report of a file."""
    where = where if number == 1 else f"{where}: report {number}"
    report = _parsed(text, where, notes)
    if type(report) is not dict or type(report.get("communicators")) is not list:
        raise InputError("no list of communicators", where=where, expected="ncclras -f json output")
    more = {"snapshot": str(number)} if number > 1 else {}
    communicators = [_Communicator(one, f"{where}: communicator {n}") for n, one in enumerate(report["communicators"])]
    largest = max(communicators, key=lambda one: one.size, default=None)
    world = {} if largest is None else {who: rank for rank, who in largest.who.items()}
    if any(who not in world for one in communicators for who in one.who.values()):
        largest, world = None, {}  # none holds all: nothing says which ranks of the world these are
    for one in communicators:
        yield from one.facts(world, largest is one, more)


def _parsed(text: str, where: str, notes: list[str]) -> Any:
    try:
        return parse_json(text, where=where)
    except InputError:
        repaired, count = _NO_COMMA.subn(r"\1,\2", text)
        if not count:
            raise
        note = "NCCL 2.28.9 leaves out the comma after nvml_dev of a missing rank: put in"
        notes += [] if note in notes else [note]
        return parse_json(repaired, where=where)


_Identity = tuple[str, int, int]  # host, pid, device


class _Communicator:
    """One communicator of a report, checked. who: what each of its ranks is, where RAS knows its process."""

    def __init__(self, value: Any, where: str) -> None:
        self.where = where
        if type(value) is not dict:
            raise InputError("a communicator", where=where, expected="an object")
        self.hash = quoted(str(value.get("hash", "")))
        self.size = _number(value, "size", where, 0, 2**20)
        self.ranks, self.missing = _list(value, "ranks", where), _list(value, "missing_ranks", where)
        self.who: dict[int, _Identity] = {}
        for one in (*self.ranks, *self.missing):
            if "rank" not in one:
                raise InputError("a rank without its number", where=where, expected="field rank")
            rank = _number(one, "rank", where, 0, 2**20)
            pid = _number(one, "pid", where, -1, 2**40)
            if rank >= max(1, self.size):
                raise InputError(f"rank {rank} of {self.size}", where=where, expected="ranks below the size")
            if pid >= 0:
                self.who[rank] = (_host(one), pid, _number(one, "nvml_dev", where, -1, 2**20))

    def facts(self, world: dict[_Identity, int], whole: bool, more: dict[str, str]) -> Iterator[Fact]:
        """What the report says of it. whole: its ranks are those of the world."""
        members = tuple(range(self.size)) if whole else tuple(sorted(world[who] for who in self.who.values() if world))
        members = members if len(members) == self.size else ()
        about = {"communicator": self.hash, "size": str(self.size)} | more
        counts = [(one, _object(one, "collective_counts", self.where)) for one in self.ranks]
        ops = [op for op in dict.fromkeys(name for _, count in counts for name in count) if type(op) is str]
        told: dict[str, set[int]] = {}
        errors = False
        for one, count in counts:
            fact = self._about(one, world, whole, about)._replace(group=members)
            yield fact
            for op in ops[:64]:
                launched = _number(count, op, self.where, 0, 2**62)
                told.setdefault(op, set()).add(launched)
                if any(other.get(op) for _, other in counts):
                    name = re.sub(r"\W+", "_", snake(op))[:60]
                    yield fact._replace(kind="launched", name=name, value=float(launched))
            bad = [*self._errors(one, fact)]
            errors = errors or bool(bad)
            yield from bad
        silent = False
        for one in self.missing:
            status = _object(one, "status", self.where)
            name = next(
                (word for word in ("considered_dead", "unresponsive") if status.get(word) is True), "not_a_member"
            )
            silent = silent or name != "not_a_member"
            yield self._about(one, world, whole, about)._replace(kind="missing", name=name, group=members)
        differ = any(len(values) > 1 for values in told.values()) or (self.missing and not silent)
        words = ["incomplete"] * silent + ["error"] * errors + ["mismatch"] * bool(differ)
        for word in words or ["ok"]:
            yield Fact("status", word, group=members, labels=tuple(about.items()), source=self.where)

    def _about(self, one: dict[str, Any], world: dict[_Identity, int], whole: bool, about: dict[str, str]) -> Fact:
        """Where a rank runs; other statements about it are made of this one."""
        rank, host = one["rank"], _host(one)
        labels = about | {"host": host, "pid": str(one.get("pid", "")), "comm_rank": str(rank)}
        labels |= {"device": f"gpu{_number(one, 'cuda_dev', self.where, -1, 2**20)}"}
        number = rank if whole else world.get(self.who.get(rank, ("", -1, -1)), -1)
        return Fact("place", "rank", rank=number, host=host, labels=tuple(labels.items()), source=self.where)

    def _errors(self, one: dict[str, Any], fact: Fact) -> Iterator[Fact]:
        status = _object(one, "status", self.where)
        for field, name in (("init_state", "nccl_init_error"), ("async_error", "nccl_async_error")):
            code = _number(status, field, self.where, -1, 2**20)
            if code not in (-1, *_FINE):
                reason = _RESULTS[code] if code < len(_RESULTS) else f"error {code}"
                labels = (*fact.labels, ("reason", reason))
                yield fact._replace(
                    kind="error", name=name, value=float(code), labels=labels, text=f"{field}: {reason}"
                )


def _host(one: dict[str, Any]) -> str:
    host = one.get("host")
    return quoted(host) if type(host) is str and host != "unknown" else ""


def _list(value: dict[str, Any], field: str, where: str) -> list[dict[str, Any]]:
    found = value.get(field, [])
    if type(found) is not list or not set(map(type, found)) <= {dict}:
        raise InputError(f"field {field}", where=where, expected="a list of objects")
    return found


def _object(value: dict[str, Any], field: str, where: str) -> dict[str, Any]:
    found = value.get(field, {})
    if type(found) is not dict:
        raise InputError(f"field {field}", where=where, expected="an object")
    return found


def _number(value: dict[str, Any], field: str, where: str, least: int, most: int) -> int:
    """A whole number; the least where it is not given."""
    found = value.get(field, least)
    if type(found) is not int or not least <= found <= most:
        raise InputError(f"field {quoted(field)}", where=where, expected=f"a whole number from {least} to {most}")
    return found

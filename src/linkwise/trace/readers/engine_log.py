"""Logs of serving engines (vLLM, SGLang, TensorRT-LLM) and their libraries: figures, stuck requests, exceptions, exits.

Wordings are those of the projects' sources; each pattern names the file. Dumps of stacks that a watchdog writes into
its log are read as well.
"""

import re
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from linkwise.trace.readers import shared
from linkwise.trace.readers.asked import WORDS as ASKED
from linkwise.trace.readers.asked import typed, unasked
from linkwise.trace.readers.base import Reading, Source
from linkwise.trace.readers.elastic import WORDS as ELASTIC
from linkwise.trace.readers.elastic import Elastic
from linkwise.trace.readers.engine_ends import TRACEBACK, Ends, exception
from linkwise.trace.readers.engine_figures import MARKS, TRANSFER, figures, mark
from linkwise.trace.readers.engine_rules import RULES, SIGNALS, Rule
from linkwise.trace.readers.log_time import Clock
from linkwise.trace.readers.shared import SERIES, Block, Found, Series, number, placed, placed_by_path
from linkwise.trace.readers.sieve import Sieve
from linkwise.trace.readers.stacks import WORDS as STACKED
from linkwise.trace.readers.stacks import Stacks

FORMAT = "engine log"

# A name in front of each line. vLLM logger/utils: (Worker_TP1 pid=7), (EngineCore_DP0 pid=7); torchrun: [rank3]:;
# SGLang: [2026-05-09 12:00:00 DP0 TP0 EP0]; TensorRT-LLM: [TRT-LLM] [RANK 3]; Ray: (RayWorkerWrapper pid=7, ip=...).
_FRONT = re.compile(
    r"\((?P<worker>[A-Za-z]\w{0,60})(?: rank=\d{1,6}| [A-Z]{2}\d{1,6})?,? pid=(?P<pid>\d{1,10})|"
    r"\[(?:rank|RANK )(?P<torch>\d{1,6})\]|(?P<axes>(?<![A-Z_])(?:[A-Z_]{2,8}\d{1,6} )*[A-Z_]{2,8}\d{1,6})\] |"
    r"\[pid=(?P<own>\d{1,10}) pname="
)
_STRIP = re.compile(r"^(?:\d{4}-\d\d-\d\dT[\d:.]{8,18}Z ?)?(?:\([A-Za-z][^()]{1,80}\) ?)?(?:\[rank\d{1,6}\]: ?)?")
_MARK = re.compile(
    r"^\((?:\w{1,60}) (?:\w{1,8} )?(?:rank=\d+ )?pid=\d+\) |^(?:INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d |"
    r"\[TRT-LLM\]|\[TensorRT-LLM\]|^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?(?: [A-Z_]{2,8}\d+)*\] |#running-req: |"
    r"\bNIXL \w+ |gloo/transport|^srun: |cpu[-_]bind=|^(?:\d{4}-\d\d-\d\dT[\d:.]{8,18}Z? )?\[rank\d+\]: |"
    r"torch[./]distributed[./]elastic|^\d{4}-\d\d-\d\dT[\d:.]{8,18}Z +[A-Z]{4,5} dynamo_\w+|"
    r"^Traceback \(most recent call last\)|^(?:\w+\.)*OutOfMemoryError: "
)
# Dynamo's lines as its Rust runtime writes them, as text and with DYN_LOGGING_JSONL (lib/runtime/src/logging.rs).
_RUST = re.compile(r"\{\"time\":\"[\dT:.+-]{19,40}Z?\",\"level\":\"[A-Z]{4,5}\",")
_SETTING = re.compile(
    r"(?<![\w$.])((?:TORCH_NCCL|NCCL|RCCL|UCX|GLOO)_[A-Z0-9_]{2,60}|OMP_NUM_THREADS|VLLM_CPU_\w{2,60}|"
    r"CUDA_DEVICE_MAX_CONNECTIONS|SLURM_CPU_BIND|TLLM_NUMA_AWARE_WORKER_AFFINITY)=[\"']?([^\s\"';]{1,200})"
)
_BIND = re.compile(r"--?cpu[-_]bind[= ][\"']?([\w:,]{2,60})|\bcpu_bind=[\"']?([a-z][\w:,]{1,60})")
# A setting counts where it is made or listed, not where a message names it as a remedy.
_MADE = re.compile(
    r"^\s*(?:export |declare -x |env |\+ |-e |[A-Z][A-Z0-9_]{2,60}=)|\b(?:srun|mpirun|mpiexec|torchrun|docker run)\b"
)
# Slurm src/plugins/task/affinity: cpu-bind=MASK - node, task  <global> <local> [pid]: mask 0x... set
_BOUND = re.compile(
    r"cpu[-_]bind=(?P<how>\w{1,20}) - (?P<host>[\w.-]{1,100}), task +(?P<rank>\d{1,6}) +\d{1,6} \[(?P<pid>\d{1,10})\]: "
    r"mask (?P<mask>0x[0-9a-fA-F,]{1,2048})"
)
_NAMES = {"OMP_NUM_THREADS": "omp_threads", "SLURM_CPU_BIND": "cpu_bind"}
_SETTINGS = (
    "NCCL_",
    "UCX_",
    "GLOO_",
    "OMP_NUM",
    "VLLM_CPU_",
    "_MAX_CONNECTIONS",
    "_CPU_BIND",
    "_AFFINITY=",
    "bind=",
    "bind ",
)
_COLOR = re.compile(r"\x1b?\[[0-9;]{1,8}m")
_STACK = re.compile(
    r"\s{2,}\S|#\d|(?:Current t|T)hread |Process \d|Fatal Python|\W*(?:global.)?rank\b|.{0,80}Pyspy dump", re.IGNORECASE
)
# Whose figures a line has, as cheaply as can be told: lines of one are thinned before they are taken apart.
_WHOSE = re.compile(r"pid=\d+|[rR](?:ank|ANK) ?\d+|[A-Z]P\d+|Engine \d+|type=\w+|global_rank = \d+")
_FRONT_CHARS = 160
_DATED = re.compile(r"^(?:\[|[IWEF])?\d{2,4}[-/ ]?\d\d|^[A-Z]{4,8} \d\d-\d\d ")  # a line that begins by itself
_STACK_LINES = 500  # below an announced exception that can be its stack and its message
STARTUP = 2_000  # first lines of a log, in which each process of an engine writes with its id in front
END = 60  # lines of figures at a log's end that are not thinned
TAIL = 400  # last lines of a log, in which an exception that ended a process stands with its stack
_SIEVE = Sieve(
    *(rule.mark for rule in RULES), *MARKS, *STACKED, *ELASTIC, "rror", "xcep", "CCL_", "UCX_", "GLOO_", "OMP_NUM",
    "_CPU_", "_MAX_CON", "_AFFIN", "bind=", "bind ", TRANSFER, *ASKED,
)  # fmt: skip


def fits(title: str, head: str) -> bool:
    """A line that is marked as an engine's, or that one of the rules knows. JSON, Docker's and Dynamo's lines aside,
    is for others."""
    if head.lstrip()[:1] == "{" and not (head.lstrip().startswith('{"log":') or _RUST.match(head.lstrip()[:2000])):
        return False
    lines = [line[: shared.MAX_LINE] for line in head.splitlines()[:2000]]
    return any(_MARK.search(line) or _RUST.match(line) or _known(line) for line in lines)


def _known(line: str) -> bool:
    if typed(line):
        return False
    if any(rule.mark in line and rule.pattern.search(line) for rule in RULES):
        return True
    return bool((mark(line) and figures(line)) or _settings(line))


def recognises(source: Source) -> bool:
    """By marks of engines' lines. Many logs hold such lines among others: ask this reader last."""
    return shared.recognised(source, fits)


def read(source: Source) -> Reading:
    """Never refuses what it recognises."""
    return shared.reading(source, facts)


def facts(block: Block, found: Found) -> None:
    """Gauges `serve.*` and `rank.*`, errors, notices, exits, settings; stacks that were dumped into the log."""
    clock, file_place = Clock(block.unix_ns), placed_by_path(block.title)
    stacks, elastic, ends = Stacks(found, file_place), Elastic(found), Ends(found)
    series: dict[tuple[str, ...], Series[str]] = {}
    below = _Below(file_place, clock)
    for line, raw in unasked(block.sifted(_SIEVE)):
        row = _plain(raw)
        below.look(line, row)
        if kind := mark(row):
            key = (kind, *_whose(row))
            if key in series or len(series) < shared.MAX_SERIES:
                series.setdefault(key, Series(2 * SERIES - 1)).add(line, row)
            continue
        bare = _STRIP.sub("", row, count=1)
        if elastic.take(line, bare):
            continue
        if (
            _STACK.match(bare)
            and stacks.wants(bare)
            and stacks.feed(line, bare, said=_place(row, file_place), unix_ns=clock(row))
        ):
            continue
        if TRANSFER in row and _figures(line, row, found, clock, file_place, _pool(block.title)):
            continue
        _said(line, row, found, below.clock, below.place, ends)
    last = _numbered(block.tail(TAIL))
    for one in series.values():
        found.thinned(one.stride)
    for line, row in _with_end(series.values(), last):
        if not _figures(line, row, found, clock, file_place, _pool(block.title)):
            _said(line, row, found, clock, file_place, ends)
    stacks.flush()
    elastic.flush()
    _processes(chain(block.first(STARTUP), last), found)
    ends.last([(n, _plain(row)) for n, row in last], lambda row: _place(row, file_place), clock)
    ends.flush()
    for note in clock.notes:
        found.note(note)


Placed = tuple[int, dict[str, str]]


def _with_end(series: Iterable[Series[str]], last: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Thinned lines of figures in order, with all of the log's end: how an engine ends takes more than one point."""
    rows = {line: row for one in series for line, row in one.all()}
    ends = [(line, _plain(row)) for line, row in last if line and mark(row)]
    return sorted((rows | dict(ends[-END:])).items())


def _processes(lines: Iterable[tuple[int, str]], found: Found) -> None:
    """Where ranks run, by the process ids in vLLM's fronts: (Worker_TP3 pid=2213). Kills are told by process id."""
    seen: set[str] = set()
    for line, row in lines:
        front = row[: row.find(")") + 1] if row.startswith(("(Worker", "(VllmWorker", "(RayWorker")) else ""
        if not front or front in seen or len(seen) >= shared.MAX_EACH:
            continue
        seen.add(front)
        rank, labels = _place(front + " ", (-1, {}))
        if rank >= 0 and "pid" in labels:
            found.add("place", "process", line=line, rank=rank, labels=labels, text=front)


def _numbered(tail: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """The last lines, those of prompts aside, which are told by how far apart they are, whatever their numbers."""
    return [(tail[place][0], row) for place, row in unasked((at, row) for at, (_, row) in enumerate(tail))]


class _Below:
    """Whose the lines without a front are: those below an announced exception, its stack and message, are of the
    process that announced it (one write of its logger). Until a line begins with a front or a time of its own."""

    def __init__(self, file_place: Placed, clock: Clock) -> None:
        self._file, self._clock = file_place, clock
        self._until, self._unix_ns = 0, 0
        self.place = file_place

    def look(self, line: int, row: str) -> None:
        """Each line in turn, before it is asked for."""
        if TRACEBACK in row and "hit an exception" in row:
            self.place, self._until, self._unix_ns = _place(row, self._file), line + _STACK_LINES, self._clock(row)
        elif self._until and (line > self._until or _DATED.match(row) or _FRONT.search(row, 0, _FRONT_CHARS)):
            self.place, self._until = self._file, 0

    def clock(self, row: str) -> int:
        """The line's own time, else that of the announcement above it."""
        return self._clock(row) or (self._unix_ns if self._until else 0)


def _figures(line: int, row: str, found: Found, clock: Clock, file_place: Placed, pool: dict[str, str]) -> bool:
    """The gauges of a line; whether it has any."""
    gauges = figures(row)
    rank, labels = _place(row, file_place) if gauges else file_place
    for gauge in gauges:
        about = pool | labels | {key: value for key, value in gauge.labels if value}
        said = about.pop("rank", "")
        where: dict[str, Any] = {"line": line, "unix_ns": clock(row), "rank": int(said) if said else rank}
        found.add("gauge", gauge.name, gauge.value, labels=about, unit=gauge.unit, **where)
    return bool(gauges)


def _said(line: int, row: str, found: Found, clock: Callable[[str], int], file_place: Placed, ends: Ends) -> None:
    """What a line says that is no figure: an event, a setting, an exception."""
    event = next(((rule, said) for rule in RULES if rule.mark in row and (said := rule.pattern.search(row))), None)
    bound = None if event else _BOUND.search(row) if "bind=" in row else None
    settings = [] if event or bound else _settings(row)
    kind = "" if event or bound or settings else exception(row)
    if not (event or bound or settings or kind):
        return
    if event and found.stormed(event[0].kind, event[0].name, _whose(row)):
        return
    if kind and ends.stormed(_whose(row)):
        return
    rank, labels = _place(row, file_place)
    at: dict[str, Any] = {"line": line, "unix_ns": clock(row), "rank": rank}
    if event:
        _event(*event, row, found, at, labels)
        if event[0].name == "fatal_exception":
            ends.announced(labels, at)
    elif bound:
        _bound(bound, row, found, at)
    elif kind:
        ends.exception(kind, row, at, labels)
    for name, value in settings:
        found.add("setting", name, labels=labels | {"value": value}, text=row, **at)


def _plain(raw: str) -> str:
    """A line without its colours, as long as patterns see it."""
    row = raw[: shared.MAX_LINE]
    return _COLOR.sub("", row) if "\x1b" in row or row.startswith(("[1;", "[0;")) else row


def _whose(row: str) -> tuple[str, ...]:
    return tuple(_WHOSE.findall(row, 0, _FRONT_CHARS))


def _pool(title: str) -> dict[str, str]:
    """The role that a file's name tells: decode-0.log."""
    roles = [role for role in ("prefill", "decode") if role in title.rpartition("/")[2].lower()]
    return {"pool": roles[0]} if len(roles) == 1 else {}


def _place(row: str, otherwise: tuple[int, dict[str, str]]) -> tuple[int, dict[str, str]]:
    """Rank and axes by what stands in front of the line, else by the file."""
    rank, labels = -1, dict[str, str]()
    for front in _FRONT.finditer(row[:300]):
        if front["torch"]:
            rank = int(front["torch"])
        elif front["own"]:
            labels["pid"] = front["own"]
        else:
            said, axes = placed(front[0], dp_inside=front["axes"] is not None)
            rank, labels = (said if said >= 0 else rank), labels | axes
            if front["worker"]:
                labels |= {"process": front["worker"], "pid": front["pid"]}
    return (rank, labels) if rank >= 0 or labels.keys() - {"pid", "process"} else (otherwise[0], otherwise[1] | labels)


def _event(
    rule: Rule, match: re.Match[str], row: str, found: Found, at: dict[str, Any], labels: dict[str, str]
) -> None:
    said = {key: value for key, value in match.groupdict().items() if value}
    value = (number(said.pop("n", "")) or 0.0) * rule.factor
    where = at | ({"rank": int(said.pop("rank"))} if "rank" in said else {})
    if "signal" in said and not value:
        value = SIGNALS.get(said["signal"], 0.0)
    if "status" in said:  # as waitpid gives it
        status = int(said.pop("status"))
        value = status if status < 0 else -(status & 0x7F) or status >> 8
    if rule.name == "died" and not value:
        said["code"] = "unknown"
    if "pool" in said:
        said["pool"] = said["pool"].lower()
    about = labels | rule.labels | said
    host = said.get("node", found.host)
    found.add(rule.kind, rule.name, value, labels=about, text=row, unit=rule.unit, host=host, **where)


def _bound(bound: re.Match[str], row: str, found: Found, at: dict[str, Any]) -> None:
    about = {"pid": bound["pid"], "cpus": shared.cpu_list(bound["mask"])}
    where = at | {"rank": int(bound["rank"]), "host": shared.word(bound["host"])}
    found.add("place", "process", labels=about, text=row, **where)
    if bound["how"] in {"NONE", "NULL"}:
        found.add("setting", "cpu_bind", labels={"value": "none"}, text=row, **where)


def _settings(row: str) -> list[tuple[str, str]]:
    """Names and values of settings that a line makes or lists."""
    if ("=" not in row and "bind" not in row) or not any(name in row for name in _SETTINGS):
        return []
    pairs = [(found[1], found[2]) for found in _SETTING.finditer(row)] if _MADE.search(row) else []
    pairs += [("cpu_bind", found[1] or found[2]) for found in _BIND.finditer(row)]
    return [(_NAMES.get(name, name), value) for name, value in pairs]

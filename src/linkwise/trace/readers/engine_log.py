"""Logs of serving engines (vLLM, SGLang, TensorRT-LLM) and their libraries: figures, stuck requests, exceptions, exits.

Wordings are those of the projects' sources; each pattern names the file. Dumps of stacks that a watchdog writes into
its log are read as well.
"""

import re
from typing import Any

from linkwise.trace.readers import shared
from linkwise.trace.readers.base import Reading, Source
from linkwise.trace.readers.engine_figures import figures
from linkwise.trace.readers.engine_rules import RULES, SIGNALS
from linkwise.trace.readers.log_time import Clock
from linkwise.trace.readers.shared import Block, Found, number, placed, placed_by_path
from linkwise.trace.readers.stacks import Stacks

FORMAT = "engine log"

_EXCEPTION = re.compile(
    r"(?:^|[\])>:] )(?P<type>[A-Z]\w{0,60}(?:Error|Exception)|\w[\w.]{0,100}\.[A-Z]\w{0,60}Error)[:(]"
)

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
    r"\bNIXL \w+ |gloo/transport|^srun: |cpu[-_]bind=|^\[rank\d+\]: "
)
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
# One search decides for nearly every line that it says nothing.
_WANTED = re.compile(
    r"throughput: |batch|ransfer|queue_duration|ReqTimeStats|host_step_time|memory broadcast|KVPoll|handshake|"
    r"expired KV|baton|atchdog|Hang det|RPC call|Timed out|onnection|[Ee]rror|Exception|died|is dead|exitcode|exited|"
    r"ignal|srun|bind=|bind |NCCL_|OMP_NUM|UCX_|GLOO_|fault|SocketImpl|_CONNECTIONS=|_AFFINITY=|VLLM_CPU_|out of memory"
)
_STACK = re.compile(
    r"\s{2,}\S|#\d|(?:Current t|T)hread |Process \d|Fatal Python|\W*(?:global.)?rank\b|.{0,80}Pyspy dump", re.IGNORECASE
)


def fits(title: str, head: str) -> bool:
    """A line that is marked as an engine's, or that one of the rules knows. JSON, Docker's aside, is for others."""
    if head.lstrip()[:1] == "{" and not head.lstrip().startswith('{"log":'):
        return False
    lines = [line[: shared.MAX_LINE] for line in head.splitlines()[:2000]]
    return any(_MARK.search(line) or _known(line) for line in lines)


def _known(line: str) -> bool:
    if not _WANTED.search(line):
        return False
    return bool(figures(line)) or any(rule.pattern.search(line) for rule in RULES) or bool(_settings(line))


def recognises(source: Source) -> bool:
    """By marks of engines' lines. Many logs hold such lines among others: ask this reader last."""
    return shared.recognised(source, fits)


def read(source: Source) -> Reading:
    """Never refuses what it recognises."""
    return shared.reading(source, facts)


def facts(block: Block, found: Found) -> None:
    """Gauges `serve.*` and `rank.*`, errors, notices, exits, settings; stacks that were dumped into the log."""
    clock, file_place = Clock(block.unix_ns), placed_by_path(block.title)
    pool = _pool(block.title)
    stacks = Stacks(found, file_place)
    for line, raw in block.lines:
        row = raw[: shared.MAX_LINE]
        bare = _STRIP.sub("", row, count=1)
        if _STACK.match(bare) and stacks.feed(line, bare, said=_place(row, file_place), unix_ns=clock(row)):
            continue
        if not _WANTED.search(row):
            continue
        rank, labels = _place(row, file_place)
        at: dict[str, Any] = {"line": line, "unix_ns": clock(row), "rank": rank}
        gauges = figures(row)
        for gauge in gauges:
            about = pool | labels | {key: value for key, value in gauge.labels if value}
            said = about.pop("rank", "")
            where = at | ({"rank": int(said)} if said else {})
            found.add("gauge", gauge.name, gauge.value, labels=about, unit=gauge.unit, **where)
        if not gauges and not _event(row, found, at, labels) and not _setting(row, found, at, labels):
            _exception(row, found, at, labels)
    stacks.flush()
    for note in clock.notes:
        found.note(note)


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


def _event(row: str, found: Found, at: dict[str, Any], labels: dict[str, str]) -> bool:
    for rule in RULES:
        match = rule.pattern.search(row)
        if not match:
            continue
        said = {key: value for key, value in match.groupdict().items() if value}
        value = (number(said.pop("n", "")) or 0.0) * rule.factor
        where = at | ({"rank": int(said.pop("rank"))} if "rank" in said else {})
        if "signal" in said and not value:
            value = SIGNALS.get(said["signal"], 0.0)
        if "status" in said:  # as waitpid gives it
            status = int(said.pop("status"))
            value = status if status < 0 else -(status & 0x7F) or status >> 8
        if "pool" in said:
            said["pool"] = said["pool"].lower()
        about = labels | rule.labels | said
        found.add(
            rule.kind,
            rule.name,
            value,
            labels=about,
            text=row,
            unit=rule.unit,
            host=said.get("node", found.host),
            **where,
        )
        return True
    return False


def _settings(row: str) -> list[tuple[str, str]]:
    """Names and values of settings that a line makes or lists."""
    pairs = [(found[1], found[2]) for found in _SETTING.finditer(row)] if _MADE.search(row) else []
    pairs += [("cpu_bind", found[1] or found[2]) for found in _BIND.finditer(row)]
    return [(_NAMES.get(name, name), value) for name, value in pairs]


def _setting(row: str, found: Found, at: dict[str, Any], labels: dict[str, str]) -> bool:
    if bound := _BOUND.search(row):
        about = {"pid": bound["pid"], "cpus": shared.cpu_list(bound["mask"])}
        where = at | {"rank": int(bound["rank"]), "host": shared.word(bound["host"])}
        found.add("place", "process", labels=about, text=row, **where)
        if bound["how"] in {"NONE", "NULL"}:
            found.add("setting", "cpu_bind", labels={"value": "none"}, text=row, **where)
        return True
    pairs = _settings(row)
    for name, value in pairs:
        found.add("setting", name, labels=labels | {"value": value}, text=row, **at)
    return bool(pairs)


def _exception(row: str, found: Found, at: dict[str, Any], labels: dict[str, str]) -> None:
    """An exception's own line, where the process it comes from is known."""
    match = _EXCEPTION.search(row)
    if match and (at["rank"] >= 0 or "process" in labels):
        found.add("error", "exception", labels=labels | {"type": match["type"]}, text=row, **at)

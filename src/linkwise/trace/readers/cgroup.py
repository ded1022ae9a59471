"""CPU time a process or container was refused: cgroup v1 and v2, /proc/<pid>/{schedstat,status}, pressure, affinity.

A container over its CPU quota is stopped for the rest of each period, and with it the thread that feeds the GPU.
"""

import re
from collections.abc import Callable
from typing import Any

from linkwise.trace.readers import shared
from linkwise.trace.readers.base import Reading, Source
from linkwise.trace.readers.shared import Block, Found, cpu_list, number, placed

FORMAT = "CPU scheduling"

# Kernel documentation: admin-guide/cgroup-v2.rst (cpu.stat in us), scheduler/sched-bwc.rst (v1 throttled_time in ns),
# scheduler/sched-stats.rst (/proc/<pid>/schedstat: ns on the CPU, ns waiting for one, timeslices).
_STAT = {
    "nr_periods": ("cpu.nr_periods", 1.0, ""), "nr_throttled": ("cpu.nr_throttled", 1.0, ""),
    "throttled_usec": ("cpu.throttled_us", 1.0, "us"), "throttled_time": ("cpu.throttled_us", 1e-3, "us"),
    "usage_usec": ("cpu.usage_us", 1.0, "us"), "user_usec": ("cpu.user_us", 1.0, "us"),
    "system_usec": ("cpu.system_us", 1.0, "us"),
}  # fmt: skip
_SCHED = (("cpu.run_ns", "ns"), ("cpu.run_delay_ns", "ns"), ("cpu.timeslices", ""))
_SWITCHES = {
    "voluntary_ctxt_switches": "cpu.voluntary_switches",
    "nonvoluntary_ctxt_switches": "cpu.nonvoluntary_switches",
}
_PERIOD_US = 100_000.0  # the kernel's own, where the dump does not tell


def fits(title: str, head: str) -> bool:
    """By what is in it; the files that hold bare numbers by their names."""
    return _kind(title, head) is not None


def recognises(source: Source) -> bool:
    """By what is in it; the files that hold bare numbers by their names."""
    return shared.recognised(source, fits)


def read(source: Source) -> Reading:
    """Never refuses what it recognises; lines that do not hold numbers are left out."""
    return shared.reading(source, facts)


def facts(block: Block, found: Found) -> None:
    """Counters `cpu.*`, gauges `cpu.pressure`, setting `cpu_quota`, places with the CPUs a process may use."""
    rows = [(line, text[: shared.MAX_LINE]) for line, text in block.text]
    kind = _kind(block.title, "\n".join(text for _, text in rows[:400]))
    if kind:
        kind(block, rows, found)


Read = Callable[[Block, list[tuple[int, str]], Found], None]


def _kind(title: str, head: str) -> Read | None:
    name = (title.rstrip("/").rpartition("/")[2].split() or [""])[-1]
    one = head.strip()
    if re.search(r"^nr_throttled \d", head, re.MULTILINE):
        return _stat
    if re.search(r"^Cpus_allowed(?:_list)?:\s", head, re.MULTILINE):
        return _status
    if re.search(r"^some avg10=[\d.]+ ", head, re.MULTILINE):
        return _pressure
    if re.search(r"^pid \d+'s current affinity (?:list|mask): ", head, re.MULTILINE):
        return _taskset
    if re.search(r"^physcpubind: ", head, re.MULTILINE):
        return _numactl
    if name.endswith("schedstat") and re.fullmatch(r"\d{1,20} \d{1,20} \d{1,20}", one):
        return _schedstat
    if name.endswith(("cpu.max", "cpu.cfs_quota_us")) and re.fullmatch(r"(?:max|-?\d{1,12})(?: \d{1,12})?", one):
        return _quota
    if name.endswith("cpu.stat") and re.search(r"^usage_usec \d", head, re.MULTILINE):
        return _stat
    return None


def _about(block: Block) -> tuple[int, dict[str, str]]:
    """Rank and process that a title tells, and its cgroup: `/proc/123/status`, `rank 3 /proc/123/schedstat`."""
    rank, axes = placed(block.title)
    pid = re.search(r"/proc/(\d{1,10})/|\bpid[ =:](\d{1,10})", block.title)
    labels = axes | {"pid": (pid[1] or pid[2]) if pid else ""}
    group = re.search(r"(?:/sys/fs/cgroup|/cgroup)(/\S*?)/?(?:cpu\.\w+)", block.title)
    if group:
        labels["cgroup"] = group[1]
    return rank, labels


def _count(block: Block, found: Found, line: int, name: str, value: float, unit: str, more: dict[str, str]) -> None:
    rank, labels = _about(block)
    found.add("counter", name, value, line=line, rank=rank, labels=labels | more, unit=unit)


def _stat(block: Block, rows: list[tuple[int, str]], found: Found) -> None:
    for line, text in rows:
        figure = re.fullmatch(r"(\w{1,40}) (\d{1,20})\s*", text)
        if figure and figure[1] in _STAT:
            name, factor, unit = _STAT[figure[1]]
            _count(block, found, line, name, float(figure[2]) * factor, unit, {})


def _schedstat(block: Block, rows: list[tuple[int, str]], found: Found) -> None:
    line, text = next((line, text) for line, text in rows if text.strip())
    for (name, unit), value in zip(_SCHED, text.split(), strict=True):
        _count(block, found, line, name, float(value), unit, {})


def _status(block: Block, rows: list[tuple[int, str]], found: Found) -> None:
    fields = {}
    for line, text in rows:
        key, _, value = text.partition(":")
        fields[key.strip()[:60]] = (line, value.strip())
        if key == "Name" and len(fields) > 1:  # the next process of an unlabelled dump
            _process(block, fields, found)
            fields = {"Name": (line, value.strip())}
    _process(block, fields, found)


def _process(block: Block, fields: dict[str, tuple[int, str]], found: Found) -> None:
    rank, labels = _about(block)
    name = fields.get("Name", (0, ""))[1]
    more = {"process": name, "pid": fields.get("Pid", (0, labels["pid"]))[1]}
    if "Cpus_allowed_list" in fields:
        line, cpus = fields["Cpus_allowed_list"]
        about = labels | more | {"cpus": cpus, "mems": fields.get("Mems_allowed_list", (0, ""))[1]}
        named = placed(name)
        about |= named[1]
        found.add("place", "process", line=line, rank=rank if rank >= 0 else named[0], labels=about)
    for key, counter in _SWITCHES.items():
        line, value = fields.get(key, (0, ""))
        if re.fullmatch(r"\d{1,20}", value):
            _count(block, found, line, counter, float(value), "", more)


def _pressure(block: Block, rows: list[tuple[int, str]], found: Found) -> None:
    """The share of the last ten seconds in which some task, or every task, waited (accounting/psi.rst)."""
    what = re.search(r"(cpu|memory|io)(?:\.pressure)?$", block.title)
    rank, labels = _about(block)
    for line, text in rows:
        figure = re.match(r"(some|full) avg10=([\d.]{1,8}) avg60=[\d.]{1,8} avg300=[\d.]{1,8} total=(\d{1,20})", text)
        if not figure or (average := number(figure[2])) is None:
            continue
        at: dict[str, Any] = {"line": line, "rank": rank, "labels": labels | {"scope": figure[1]}}
        resource = what[1] if what else "cpu"
        found.add("gauge", f"{resource}.pressure", average / 100, **at)
        found.add("counter", f"{resource}.pressure_us", float(figure[3]), unit="us", **at)


def _quota(block: Block, rows: list[tuple[int, str]], found: Found) -> None:
    """`max 100000`, `400000 100000`; v1 keeps the period in a file of its own: the kernel's default is taken."""
    line, words = next((line, text.split()) for line, text in rows if text.strip())
    period = float(words[1]) if len(words) > 1 else _PERIOD_US
    rank, labels = _about(block)
    labels |= {"period_us": f"{period:g}", "period": "" if len(words) > 1 else "assumed"}
    quota = -1.0 if words[0] == "max" else float(words[0])
    cores = quota / period if quota >= 0 and period else 0.0
    labels["value"] = f"{cores:g} cores" if cores else "none"
    found.add("setting", "cpu_quota", cores, line=line, rank=rank, labels=labels, unit="cores")


def _taskset(block: Block, rows: list[tuple[int, str]], found: Found) -> None:
    rank, labels = _about(block)
    for line, text in rows:
        if bound := re.match(r"pid (\d{1,10})'s current affinity (list|mask): ([\da-fA-F,-]{1,2000})", text):
            cpus = bound[3] if bound[2] == "list" else cpu_list(bound[3])
            about = labels | {"pid": bound[1], "cpus": cpus}
            found.add("place", "process", line=line, rank=rank, labels=about)


def _numactl(block: Block, rows: list[tuple[int, str]], found: Found) -> None:
    rank, labels = _about(block)
    fields = {key.strip(): (line, value.strip()) for line, text in rows for key, _, value in [text.partition(":")]}
    line, cpus = fields["physcpubind"]
    about = {"cpus": cpus.replace(" ", ","), "numa": fields.get("nodebind", (0, ""))[1].replace(" ", ",")}
    about["mems"] = fields.get("membind", (0, ""))[1].replace(" ", ",")
    found.add("place", "process", line=line, rank=rank, labels=labels | about)
    if "policy" in fields:
        line, policy = fields["policy"]
        found.add("setting", "numa_policy", line=line, rank=rank, labels=labels | {"value": policy})

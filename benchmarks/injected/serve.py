"""One trial on real ranks: serve some requests, with a fault in one of them or none, and diagnose what was recorded."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from linkwise.core.layout import Layout
from linkwise.diagnose.diagnose import diagnose
from linkwise.diagnose.types import Findings
from linkwise.runtime.driver import LocalUnit, UnitSpec
from linkwise.supervise.types import Event, Failed, Finished, Job, Token
from linkwise.trace.gather import gather

RANK = Path(__file__).with_name("rank.py")
UP_S, OVER_S = 120.0, 90.0
BITES, WAVES = (
    5,
    20,
)  # periods a quota must have stopped its rank in; at most so many more waves of requests until it has
CPU = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")  # where a version 1 and a version 2 hierarchy are mounted
PERIOD_US = 100_000


class Trial(NamedTuple):
    """What is served. inject: for rank.py. signal: to a rank, after `after_s`. quota: a rank's share of a core from
    then on. noise: another program takes the processors in bursts."""

    weights: Path
    layout: Layout
    prefill: Layout | None = None
    layers: tuple[int, ...] = ()
    inject: dict[str, Any] | None = None
    signal: int = 0
    quota: float = 0.0
    rank: int = -1
    after_s: float = 0.0
    noise: bool = False
    requests: int = 6
    tokens: int = 40
    prompt: int = 24
    kv_tokens: int = 16_384
    timeout_s: float = 4.0
    seed: int = 0


class Outcome(NamedTuple):
    """What was found. seconds: from the fault, where it ended the ranks, or else from their end, to the findings."""

    findings: Findings
    seconds: float
    served_s: float
    ended: str


class _Sink:
    def __init__(self) -> None:
        self.tokens = 0
        self.end: Event | None = None
        self.over = threading.Event()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Token):
            self.tokens += 1
        elif isinstance(event, Finished | Failed):
            self.end = event
            self.over.set()


def run(trial: Trial, keep: Path | None = None) -> Outcome:
    """Serve, end, diagnose. keep: a folder for the evidence; else it is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="linkwise-injected-") as name:
        folder, mark = keep or Path(name, "trace"), Path(name, "mark")
        if trial.inject:
            trial = trial._replace(inject={**trial.inject, "mark": str(mark)})
        struck, ended, served = _serve(trial, folder)
        struck = float(mark.read_text()) if mark.exists() else struck
        began = time.monotonic()
        findings = diagnose(gather([folder], processes=1))
        found = time.monotonic()
        return Outcome(findings, found - (struck if ended and struck else began), served, ended)


def _serve(trial: Trial, folder: Path) -> tuple[float, str, float]:
    """(time.monotonic() of the strike or 0, words of the fault that ended the unit or "", seconds of serving)."""
    command = (sys.executable, str(RANK), json.dumps(trial.inject))
    spec = UnitSpec(
        weights=str(trial.weights), layout=trial.layout, prefill=trial.prefill, layers=trial.layers, dtype="float32",
        threads=1, kv_tokens=trial.kv_tokens, timeout_s=trial.timeout_s, start_s=UP_S, trace=str(folder),
    )  # fmt: skip
    unit = LocalUnit("unit", spec, **({"command": command} if trial.inject else {}))
    up, fault = threading.Event(), ""

    def watch(state: str, why: Any) -> None:
        nonlocal fault
        if why is not None:
            fault = f"{why.kind}: {why.message}"
        if state in {"ready", "failed"}:
            up.set()

    held = contextlib.ExitStack()
    unit.start(watch)
    try:
        if not up.wait(UP_S) or unit.state != "ready":
            raise RuntimeError(f"the unit did not come up: {fault}")
        began = time.monotonic()
        with _noise(trial.noise):
            sinks = _submit(unit, trial)
            struck, stat = _strike(unit, trial, held)
            _ends(sinks)
            # A tiny model may be done before its rank has used up what it may have in one period.
            waves = 0
            while stat is not None and not fault and _throttled(stat) < BITES and waves < WAVES:
                waves += 1
                _ends(_submit(unit, trial, waves * trial.requests))
        served = time.monotonic() - began
    finally:
        unit.stop()
        held.close()
    return struck, fault, served


def _ends(sinks: list[_Sink]) -> None:
    for sink in sinks:
        if not sink.over.wait(OVER_S):
            raise TimeoutError("a request does not end")


def _submit(unit: LocalUnit, trial: Trial, first: int = 0) -> list[_Sink]:
    chance = random.Random(trial.seed + first)  # noqa: S311 - test data
    sinks = []
    for number in range(first, first + trial.requests):
        prompt = tuple(chance.randrange(1, unit.arch.vocab) for _ in range(trial.prompt))
        sinks.append(_Sink())
        tokens = chance.randrange(trial.tokens * 3 // 4, trial.tokens + 1)
        unit.submit(Job(f"r{number}", prompt, tokens, trace=f"{number:016x}"), sinks[-1])
    return sinks


def _strike(unit: LocalUnit, trial: Trial, held: contextlib.ExitStack) -> tuple[float, Path | None]:
    """(time.monotonic() of the strike or 0, the file that counts how often a quota stopped the rank)."""
    if not (trial.signal or trial.quota):
        return 0.0, None
    pid = next(fact.pid for fact in unit.facts if fact.rank == trial.rank)
    time.sleep(trial.after_s)
    stat = None
    if trial.quota:
        stat = held.enter_context(_starved(pid, trial.quota))
    else:
        os.kill(pid, trial.signal)
    return time.monotonic(), stat


def _throttled(stat: Path) -> int:
    """Periods in which a group was stopped at its quota (the kernel's cgroup documentation, cpu.stat)."""
    return next(int(line.split()[1]) for line in stat.read_text().splitlines() if line.startswith("nr_throttled"))


def no_quota() -> str:
    """Why no process can be given a CPU quota here; empty when it can."""
    try:
        with _starved(os.getpid(), 10.0):
            return ""
    except OSError as error:
        return f"no control group with a CPU quota can be made here: {error}"


@contextlib.contextmanager
def _starved(pid: int, share: float) -> Iterator[Path]:
    """A process in a control group of its own that gives it a share of one core. Yields the group's cpu.stat."""
    one = next((top for top in CPU if (top / "cgroup.procs").exists()), None)
    if one is None:
        raise FileNotFoundError("no control groups are mounted")
    old = (CPU[0] / "cpu.cfs_quota_us").exists() or (one / "cpu.shares").exists()
    group = one / f"linkwise-{pid}"
    group.mkdir()
    try:
        if old:
            (group / "cpu.cfs_quota_us").write_text(f"{int(share * PERIOD_US)}")
        else:
            (group / "cpu.max").write_text(f"{int(share * PERIOD_US)} {PERIOD_US}")
        (group / "cgroup.procs").write_text(str(pid))
        yield group / "cpu.stat"
    finally:
        with contextlib.suppress(OSError):
            (one / "cgroup.procs").write_text(str(pid))
        for _ in range(50):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


_BURSTS = """
import os, random, sys, time
os.nice(10)
while os.getppid() == int(sys.argv[1]):
    end = time.monotonic() + random.uniform(0.02, 0.3)
    while time.monotonic() < end:
        pass
    time.sleep(random.uniform(0.02, 0.4))
"""


@contextlib.contextmanager
def _noise(wanted: bool) -> Iterator[None]:
    """Another program that takes a core in bursts, nicer than the ranks."""
    if not wanted:
        yield
        return
    other = subprocess.Popen((sys.executable, "-c", _BURSTS, str(os.getpid())))
    try:
        yield
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()

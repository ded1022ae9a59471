"""What launch wrote, started by the real engine on this machine's processor from the files alone: tiny random weights.

Answers through the front, the ledger's KV tokens in the engine's log, the layout read back from the server, a stopped
worker and a killed one named within the bound and their group started again, and no process left.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.vllm import models

import linkwise
from linkwise.answers import Plan
from linkwise.api_launch import launch
from linkwise.launch import sessions
from linkwise.launch.write import write

BOUND_S = 40.0  # for a worker that does nothing; a step of this engine on this processor takes well under a second
START_S = 300.0
TOKENS = 8
KV_BYTES = 2**30  # VLLM_CPU_KVCACHE_SPACE, of each rank
BLOCK_TOKENS = 128  # of the CPU build
# Compiling takes minutes on a processor, and the CPU build's pipeline stages have no compiled graphs.
EAGER = """--compilation-config '{"mode": 2, "backend": "eager"}'"""


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.tiny(tmp_path_factory.mktemp("weights") / "dense")


class Started:
    """`linkwise launch FOLDER --start`, of a folder that was written."""

    def __init__(self, folder: Path, front: str) -> None:
        self.folder, self.front, self.said = folder, front, list[tuple[float, str]]()
        tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "linkwise", "launch", str(folder), "--start", "--timeout", f"{BOUND_S}s"],
            stderr=subprocess.PIPE, text=True, env=os.environ | {"PATH": tools, "VLLM_SERVER_DEV_MODE": "1"},
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.said.append((time.monotonic(), line.strip()))
                print(f"  {line.strip()}", flush=True)

    def wait(self, words: str, within_s: float, *, after: float = 0.0) -> tuple[float, str]:
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            for when, line in self.said:
                if when >= after and words in line:
                    return when, line
            assert self.process.poll() is None, f"it ended: {self.said}{self.logs()[-6000:]}"
            time.sleep(0.1)
        raise AssertionError(f"{words!r} was not said within {within_s} s: {self.said}{self.logs()[-6000:]}")

    def logs(self) -> str:
        return "".join(f"\n== {p.name}\n{p.read_text()}" for p in (self.folder / "logs").glob("*.log"))

    def complete(self, prompt: str = "5 6 7 8") -> dict[str, Any]:
        body = {"model": "it", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(
            f"{self.front}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=120) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return found

    def engines(self) -> list[sessions.Seen]:
        """Every process that came of the command: it starts its own in sessions of their own."""
        return sessions.members(_leaders(self.process.pid))

    def stop(self) -> None:
        leaders = _leaders(self.process.pid)
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(90) == 0
        self._reader.join(5)
        assert leaders
        assert not sessions.members(leaders)
        assert self.said[-1][1].endswith("stopped")


def _leaders(parent: int) -> list[int]:
    found = []
    for name in (name for name in os.listdir("/proc") if name.isdigit()):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(name))
    return found


@contextmanager
def started(
    folder: Path, weights: Path, on: str, *, words: str = "", engine_args: str = EAGER, hosts: tuple[str, ...] = (),
    data_parallel: bool = False,
) -> Iterator[Started]:  # fmt: skip
    """A command's layout planned, written, and started; ended whatever happens."""
    found = linkwise.plan(
        on=on, engine="vllm@0.32", from_command=f"vllm serve {weights} --max-model-len 512 {words}",
        isl=16, osl=16, concurrency=1,
    )  # fmt: skip
    assert isinstance(found, Plan)
    made = launch(
        found, weights=str(weights), name="it", router="linkwise", hosts=hosts, engine_args=engine_args,
        data_parallel=data_parallel,
    )  # fmt: skip
    with serving(made, folder) as it:
        logged = {int(n.replace(",", "")) for n in re.findall(r"KV cache size: ([0-9,]+) tokens", it.logs())}
        token = max(rank.bytes_per_token or 0 for rank in found.ledger.ranks)
        assert logged == {KV_BYTES // (token * BLOCK_TOKENS) * BLOCK_TOKENS}
        door = next(p for p in made.processes if p.url and p.role != "router")
        today = linkwise.plan(on=on, from_running=door.url, isl=16, osl=16, concurrency=1)
        assert isinstance(today, Plan)
        assert today.layout == found.layout
        assert today.replicas == (found.replicas if data_parallel else 1)
        yield it


@contextmanager
def serving(made: Any, folder: Path) -> Iterator[Started]:
    write(made, folder)
    it = Started(folder, made.front)
    leaders: list[int] = []
    try:
        for group in made.groups:
            it.wait(f"{group.name} serves", START_S)
        leaders = _leaders(it.process.pid)
        yield it
        it.stop()
    finally:
        if it.process.poll() is None:
            leaders = _leaders(it.process.pid)
            it.process.kill()
            it.process.wait(10)
        sessions.end(leaders, 1.0)


def answers(it: Started, prompt: str = "5 6 7 8") -> str:
    found = it.complete(prompt)
    assert found["usage"]["completion_tokens"] == TOKENS
    text: str = found["choices"][0]["text"]
    return text


def worker(it: Started, title: str) -> int:
    return next(seen.pid for seen in it.engines() if title in seen.title)


def test_tensor_parallel_and_its_workers_lost(tmp_path: Path, dense: Path) -> None:
    with started(tmp_path / "d", dense, "1x2xh100-sxm", words="-tp 2") as it:
        said = answers(it)
        for signal_, kind, words in (
            (signal.SIGSTOP, "replica-0: stopped", "is stopped"),
            (signal.SIGKILL, "replica-0: dead", ""),
        ):
            victim, began = worker(it, "Worker_TP1"), time.monotonic()
            os.kill(victim, signal_)
            when, line = it.wait(kind, BOUND_S + 5, after=began)
            print(f"  {signal_.name}: said after {when - began:.1f} s")
            assert when - began <= BOUND_S
            assert words in line
            it.wait("replica-0 serves again", START_S, after=began)
            assert answers(it) == said


def test_pipeline_parallel(tmp_path: Path, dense: Path) -> None:
    with started(tmp_path / "d", dense, "1x2xh100-sxm", words="-pp 2") as it:
        answers(it)


def test_two_replicas(tmp_path: Path, dense: Path) -> None:
    with started(tmp_path / "d", dense, "1x2xh100-sxm", words="-dp 2") as it:
        assert len({answers(it) for _ in range(4)}) == 1


def test_data_parallel(tmp_path: Path, dense: Path) -> None:
    with started(tmp_path / "d", dense, "1x2xh100-sxm", words="-dp 2", data_parallel=True) as it:
        cores = {seen.pid for seen in it.engines() if "EngineCore" in seen.title}
        assert len(cores) == 2
        said = answers(it)
        assert {answers(it) for _ in range(4)} == {said}
        victim, began = max(cores), time.monotonic()
        os.kill(victim, signal.SIGSTOP)
        it.wait("replicas: stopped", BOUND_S + 5, after=began)
        it.wait("replicas serves again", START_S, after=began)
        assert answers(it) == said


def test_two_nodes_on_one_machine(tmp_path: Path, dense: Path) -> None:
    with started(tmp_path / "d", dense, "2x1xh100-sxm", words="-tp 2", hosts=("127.0.0.1", "127.0.0.1")) as it:
        answers(it)


def test_prefill_and_decode_over_nixl(tmp_path: Path, dense: Path) -> None:
    found = linkwise.handoff(
        dense, "1x2xh100-sxm", prompt=16, prefill_tp=1, decode_tp=1, engine="vllm@0.32", rate="1/s", osl=16
    )
    made = launch(found, weights=str(dense), name="it", router="linkwise", engine_args=EAGER)
    with serving(made, tmp_path / "d") as it:
        prompt = " ".join(str(5 + n % 900) for n in range(200))
        assert answers(it, prompt)

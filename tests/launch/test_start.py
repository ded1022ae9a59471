"""Started from the files alone, routed, watched, stopped: with a server that keeps its /health as engines do."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.launch.made import asked, deployment
from tests.launch.test_kubernetes import pools

from linkwise.core.layout import Layout
from linkwise.launch import guard, registry, sessions
from linkwise.launch.build import assemble
from linkwise.launch.types import Deployment, Served
from linkwise.launch.write import write

FAKE = Path(__file__).with_name("fake_engine.py")
BOUND_S = 6.0
KEY = "sk-9.a_b~c+d/e="


def free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    found = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return found


def faked(made: Deployment) -> Deployment:
    """The same processes, each with the fake in the engine's place, on free ports of this machine."""
    doors = [p for p in made.processes if p.url]
    ports = dict(zip([p.name for p in doors], free_ports(len(doors)), strict=True))
    processes = []
    for p in made.processes:
        key = {name: value for name, value in p.environment.items() if name == "VLLM_API_KEY"}
        changed: dict[str, Any] = {"host": "127.0.0.1", "environment": key}
        if p.name in ports:
            changed["ports"] = {"http": ports[p.name]}
            if p.role != "router":
                command = (sys.executable, str(FAKE), "--host", "127.0.0.1", "--port", str(ports[p.name]), p.name)
                changed["command"] = command
        processes.append(msgspec.structs.replace(p, **changed))
    front = f"http://127.0.0.1:{ports['router']}"
    hosts = dict.fromkeys(made.hosts, "127.0.0.1")
    return msgspec.structs.replace(made, processes=tuple(processes), front=front, hosts=hosts)


class Ran:
    """`linkwise launch FOLDER --start` as a process of its own."""

    def __init__(self, folder: Path, made: Deployment, *words: str) -> None:
        write(made, folder)
        self.front, self.made = made.front, made
        command = [sys.executable, "-m", "linkwise", "launch", str(folder), "--timeout", f"{BOUND_S}s", *words]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.said: list[tuple[float, str]] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.said.append((time.monotonic(), line.strip()))

    def wait(self, words: str, within_s: float = 30.0, *, after: float = 0.0) -> tuple[float, str]:
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            for when, line in self.said:
                if when >= after and words in line:
                    return when, line
            time.sleep(0.05)
        raise AssertionError(f"{words!r} was not said: {self.said}")

    def ask(self, tokens: int = 2, **more: Any) -> tuple[int, Any]:
        key = {"Authorization": f"Bearer {more.pop('key')}"} if "key" in more else {}
        body = json.dumps({"model": "it", "prompt": "a prompt", "max_tokens": tokens, **more}).encode()
        request = urllib.request.Request(
            f"{self.front}/v1/completions", body, {"Content-Type": "application/json", **key}
        )  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read()
                return answer.status, text if more.get("stream") else json.loads(text)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def workers(self) -> dict[str, int]:
        """The worker's process of every group."""
        found = {}
        for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
            seen = _cmdline(pid)
            if "fake-worker" in seen:
                parent = _cmdline(_parent(pid))
                found |= {p.name: pid for p in self.made.processes if f":{p.name}" in f":{parent.split(' ')[-1]}"}
        return found

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(40)
        self.reader.join(5)
        return code


def _cmdline(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Ran]:
    given = asked("llama-3.3-70b", "vllm", [range(4), range(4, 8)], Layout(tp=4), router="linkwise")
    ran = Ran(tmp_path / "d", faked(deployment(given)), "--start")
    yield ran
    if ran.process.poll() is None:
        ran.stop()
    assert not ran.workers()


def test_start_route_and_stop(two: Ran) -> None:
    for name in ("replica-0", "replica-1"):
        two.wait(f"{name} serves")
    served = {two.ask(prompt=f"prompt {n}" * 20)[1]["served_by"] for n in range(6)}
    assert served == {"replica-0", "replica-1"}
    status, text = two.ask(tokens=3, stream=True)
    assert (status, text.count(b"data: ")) == (200, 3)
    with urllib.request.urlopen(f"{two.front}/health", timeout=20) as answer:
        assert json.loads(answer.read())["ok"] is True
    assert len(two.workers()) == 2
    assert two.stop() == 0
    assert not two.workers()


def test_servers_that_ask_for_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key reaches the servers and their watch by the environment alone; the door passes on what requests say."""
    given = asked("llama-3.3-70b", "vllm", [range(4), range(4, 8)], Layout(tp=4), router="linkwise", keyed=True)
    monkeypatch.setenv("LINKWISE_API_KEY", KEY)
    ran = Ran(tmp_path / "d", faked(deployment(given)), "--start")
    try:
        for name in ("replica-0", "replica-1"):
            ran.wait(f"{name} serves")
        assert [ran.ask(key=KEY)[0], ran.ask()[0], ran.ask(key="sk-other")[0]] == [200, 401, 401]
        models = urllib.request.Request(f"{ran.front}/v1/models", headers={"Authorization": f"Bearer {KEY}"})
        with urllib.request.urlopen(models, timeout=20) as answer:
            assert answer.status == 200
        with urllib.request.urlopen(f"{ran.front}/health", timeout=20) as answer:
            assert json.loads(answer.read())["ok"] is True
        health = ["bash", str(tmp_path / "d" / "health.sh")]
        assert subprocess.run(health, check=True, capture_output=True, text=True, timeout=60).stdout == "serves\n"
        for key, said in (("sk-other", "401"), ("", "LINKWISE_API_KEY: set it to the key"), ('a"b', "set it")):
            environment = {**os.environ, "LINKWISE_API_KEY": key}
            told = subprocess.run(health, env=environment, check=False, capture_output=True, text=True, timeout=60)
            assert (told.returncode != 0, told.stdout, said in told.stderr) == (True, "", True)
    finally:
        assert ran.stop() == 0
    assert not [path for path in (tmp_path / "d").rglob("*") if path.is_file() and KEY in path.read_text()]
    monkeypatch.delenv("LINKWISE_API_KEY")
    told = subprocess.run(
        [sys.executable, "-m", "linkwise", "launch", str(tmp_path / "d"), "--start"],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (told.returncode, "LINKWISE_API_KEY: is not set" in told.stderr) == (2, True)


def test_a_stopped_worker_is_named_within_the_bound_and_its_group_started_again(two: Ran) -> None:
    for name in ("replica-0", "replica-1"):
        two.wait(f"{name} serves")
    worker = two.workers()["replica-0"]
    began = time.monotonic()
    os.kill(worker, signal.SIGSTOP)
    door = next(p for p in two.made.processes if p.name == "replica-0")
    with urllib.request.urlopen(f"{door.url}/health", timeout=5) as answer:
        assert answer.status == 200  # the engine itself sees nothing
    # Requests meanwhile: all are answered, whichever group they went to first.
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda n=n: answers.append(two.ask(prompt=f"{n}" * 100)[0])) for n in range(6)
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    when, line = two.wait("replica-0: stopped", BOUND_S + 5, after=began)
    assert when - began <= BOUND_S
    assert f"process {worker} is stopped" in line
    for thread in threads:
        thread.join(60)
    assert answers == [200] * 6
    two.wait("replica-0 serves again", after=began)
    assert two.workers()["replica-0"] != worker


def test_a_killed_worker_is_named_and_its_group_started_again(two: Ran) -> None:
    for name in ("replica-0", "replica-1"):
        two.wait(f"{name} serves")
    worker = two.workers()["replica-1"]
    began = time.monotonic()
    os.kill(worker, signal.SIGKILL)
    when, line = two.wait("replica-1: dead", BOUND_S + 5, after=began)
    assert when - began <= BOUND_S + 1
    assert f"process {worker} is gone" in line
    two.wait("replica-1 serves again", after=began)
    assert two.ask()[0] == 200


def test_a_killed_server_is_named(two: Ran) -> None:
    for name in ("replica-0", "replica-1"):
        two.wait(f"{name} serves")
    began = time.monotonic()
    os.kill(_parent(two.workers()["replica-0"]), signal.SIGKILL)
    when, _ = two.wait("replica-0: dead: replica-0 ended with signal 9", BOUND_S, after=began)
    assert when - began <= 2.0
    two.wait("replica-0 serves again", after=began)
    assert len(two.workers()) == 2  # the orphan of the first life is gone


def test_a_launcher_that_is_killed_leaves_no_engine_behind(two: Ran) -> None:
    for name in ("replica-0", "replica-1"):
        two.wait(f"{name} serves")
    assert len(two.workers()) == 2
    two.process.kill()
    two.process.wait(10)
    until = time.monotonic() + 30
    while two.workers() and time.monotonic() < until:
        time.sleep(0.1)
    assert not two.workers()


def test_what_a_guard_still_has_to_end() -> None:
    lines = [b"+10\n", b"+11\n", b"-10\n", b"+12\n", b"anything\n", b"+\n", b"-99\n", b"+" + b"1" * 50 + b"\n"]
    assert guard.left(lines) == {11, 12}


def test_two_pools(tmp_path: Path) -> None:
    given = pools()._replace(router="linkwise", connector="nixl")
    made = faked(assemble(given, registry.get("vllm"), Served(isl_tokens=10, osl_tokens=10)))
    ran = Ran(tmp_path / "d", made, "--start")
    for name in ("prefill-0", "prefill-1", "decode-0"):
        ran.wait(f"{name} serves")
    status, found = ran.ask(tokens=4)
    assert status == 200
    # The decode group answers, and was told where the prefill group keeps the prompt's KV.
    assert found["served_by"] == "decode-0"
    assert found["choices"][0]["text"] == "tttt"
    assert found["got"]["remote_port"] in {p.ports["http"] for p in made.serving("prefill")}
    assert ran.stop() == 0
    assert not ran.workers()


def test_what_belongs_elsewhere_is_not_started(tmp_path: Path) -> None:
    given = asked("llama-3.3-70b", "vllm", [range(16)], Layout(tp=8, pp=2), hosts=("n0", "n1"), router="linkwise")
    ran = Ran(tmp_path / "d", deployment(given), "--start")
    assert ran.process.wait(30) == 1
    ran.wait("belongs on n0", 5)


def test_a_group_that_does_not_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    given = asked("llama-3.3-70b", "vllm", [range(4)], Layout(tp=4), router="linkwise")
    made = faked(deployment(given))
    said = "echo RuntimeError: no device; echo 500 Internal Server Error; exit 3"
    broken = tuple(
        msgspec.structs.replace(p, command=("bash", "-c", said))
        if p.role != "router" else p for p in made.processes
    )  # fmt: skip
    ran = Ran(tmp_path / "d", msgspec.structs.replace(made, processes=broken), "--start")
    _, line = ran.wait("replica-0 does not start")
    assert "replica-0 ended with exit code 3: RuntimeError: no device" in line
    assert ran.process.wait(30) == 1


def test_every_process_of_a_session_is_ended() -> None:
    sleep = "import time; time.sleep(99)"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', '{sleep}']); {sleep}"
    leader = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    until = time.monotonic() + 20
    while len(sessions.members([leader.pid])) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    assert len(sessions.members([leader.pid])) == 2
    for seen in sessions.members([leader.pid]):
        os.kill(seen.pid, signal.SIGSTOP)
    while not all(seen.stopped for seen in sessions.members([leader.pid])):
        assert time.monotonic() < until
        time.sleep(0.05)
    sessions.end([leader.pid], 1.0)
    assert not sessions.members([leader.pid])
    leader.wait(5)

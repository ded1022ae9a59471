"""`linkwise serve` as a process with real ranks: texts as transformers makes them, a killed rank, an orderly end."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from benchmarks.faults import tiny

PROMPT = [5, 17, 99, 3, 42]
COUNT = 48
UP_S = 240.0  # where other tests take the processors


class Served:
    """The process, what it said on standard error, and its address once it serves."""

    def __init__(self, folder: Path, *words: str) -> None:
        command = [sys.executable, "-m", "linkwise", "serve", "--weights", str(folder), "--dtype", "float32", *words]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        self.lines: list[str] = []
        self.url = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(iter(self.process.stderr.readline, ""))

    def address(self) -> str:
        deadline = time.monotonic() + UP_S
        while time.monotonic() < deadline and self.process.poll() is None:
            for line in self.lines:
                if found := re.search(r"serving on (http://\S+)", line):
                    return found[1]
            time.sleep(0.05)
        raise AssertionError("".join(self.lines))

    def children(self) -> list[int]:
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == self.process.pid and fields[0] != "Z":
                found.append(int(stat.parent.name))
        return found

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()
            self._reader.join(5)
            self.process.stderr.close()  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    process = Served(folder, "--replicas", "2", "--port", "0", "--timeout", "6s", "--drain", "20s")
    process.url = process.address()
    yield process
    process.end()


@pytest.fixture(scope="module")
def expected(folder: Path) -> str:
    import torch
    from tokenizers import Tokenizer
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    given = torch.tensor([PROMPT])
    answer = model.generate(
        given, attention_mask=torch.ones_like(given), max_new_tokens=COUNT, do_sample=False, pad_token_id=0
    )
    return Tokenizer.from_file(str(folder / "tokenizer.json")).decode(answer[0, len(PROMPT) :].tolist())


def _body(**more: Any) -> dict[str, Any]:
    return {"prompt": PROMPT, "max_tokens": COUNT, "temperature": 0, **more}


def test_the_text_is_transformers(served: Served, expected: str) -> None:
    answer = httpx.post(f"{served.url}/v1/completions", json=_body(), timeout=60).json()
    assert answer["choices"][0]["text"] == expected
    assert answer["usage"] == {"prompt_tokens": len(PROMPT), "completion_tokens": COUNT, "total_tokens": 53}
    health = httpx.get(f"{served.url}/health", timeout=60)
    assert health.status_code == 200


def test_a_port_in_use_is_one_clear_error(served: Served, folder: Path) -> None:
    port = served.url.rpartition(":")[2]
    other = Served(folder, "--port", port)
    assert other.process.wait(120) == 2
    other.end()
    assert [line for line in other.lines if "error" in line] == [
        f"linkwise: error: --port: port {port} is in use; expected a free port, or 0 for any\n"
    ]


def test_a_killed_rank_changes_no_text_and_the_group_comes_back(served: Served, expected: str) -> None:
    ranks = served.children()
    assert len(ranks) == 2
    texts: list[str] = []

    def read() -> None:
        url = f"{served.url}/v1/completions"
        with httpx.stream("POST", url, json=_body(stream=True), timeout=120) as stream:
            lines = [line[6:] for line in stream.iter_lines() if line.startswith("data: {")]
        texts.append("".join(json.loads(line)["choices"][0]["text"] for line in lines))

    readers = [threading.Thread(target=read) for _ in range(8)]
    for reader in readers:
        reader.start()
    time.sleep(0.1)
    os.kill(ranks[0], signal.SIGKILL)
    for reader in readers:
        reader.join()
    assert texts == [expected] * 8
    deadline = time.monotonic() + UP_S
    while time.monotonic() < deadline and not any("serves again" in line for line in served.lines):
        time.sleep(0.1)
    assert any(re.search(r"replica-\d: rank 0 dead", line) for line in served.lines)
    assert any("serves again" in line for line in served.lines)
    assert len(served.children()) == 2


def test_sigterm_lets_streams_end_behind_an_open_port_and_then_ends_everything(served: Served) -> None:
    ranks = served.children()
    body = _body(prompt=[PROMPT] * 16, max_tokens=500, stream=True)
    with httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=60) as stream:
        lines = stream.iter_lines()
        next(lines)
        served.process.terminate()
        answers = [httpx.get(f"{served.url}/ready", timeout=60)]
        while answers[-1].status_code == 200:  # the signal is on its way
            answers.append(httpx.get(f"{served.url}/ready", timeout=60))
        assert (answers[-1].status_code, answers[-1].json()["status"]) == (503, "draining")
        refused = httpx.post(f"{served.url}/v1/completions", json=_body(), timeout=60)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert list(lines)[-2] == "data: [DONE]"
    assert served.process.wait(60) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{served.url}/ready", timeout=60)
    assert not [pid for pid in ranks if os.path.exists(f"/proc/{pid}")]


def test_sigterm_while_it_loads_ends_with_0(folder: Path) -> None:
    """From the moment the command runs; the interpreter and the command line take a moment before that."""
    words = (
        "import os, signal, sys\n"
        "from linkwise import cli, cli_serve\n"
        "cli_serve._needs = lambda: os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.exit(cli.main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", words, "serve", "--weights", str(folder), "--port", "0"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=UP_S)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_garbage_on_the_port_is_said_once(folder: Path) -> None:
    process = Served(folder, "--port", "0")
    try:
        address = urlsplit(process.address())
        for _ in range(20):
            with socket.create_connection((address.hostname, address.port), timeout=10) as line:
                line.sendall(b"\x16\x03\x01 no HTTP\r\n\r\n")
                line.recv(4096)
    finally:
        process.end()
    assert sum("Invalid HTTP request" in line for line in process.lines) == 1


def test_weights_with_a_nan_end_it_with_the_rank(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.norm.weight"][3] = float("nan")
    save_file(tensors, tmp_path / "model.safetensors")
    command = [sys.executable, "-m", "linkwise", "run", "--weights", str(tmp_path), "--prompt", "x", "--layout", "pp=2"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=UP_S)
    assert ended.returncode == 2
    assert "rank 1: weights: logits are not finite" in ended.stderr
    assert ended.stderr.count("rank 1") == 1 and ended.stdout == ""


def test_weights_that_miss_a_tensor_end_it_with_one_error(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | {"num_hidden_layers": 3}))
    broken = Served(tmp_path, "--port", "0")
    assert broken.process.wait(UP_S) == 2
    broken.end()
    errors = [line for line in broken.lines if "error:" in line]
    assert len(errors) == 1
    assert "layers.2" in errors[0]
    assert not any("restart" in line for line in broken.lines)  # what will not happen is not promised
    assert errors[0].count("rank 0") == 1

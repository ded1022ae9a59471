"""A key that requests need: in no file, and wherever a request for tokens is made."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from tests.launch.made import asked, deployment
from tests.launch.test_kubernetes import pools
from tests.test_cli import Shell

from linkwise.core.errors import InputError, Refused
from linkwise.core.layout import Layout
from linkwise.launch import added, registry, server
from linkwise.launch.base import Asked
from linkwise.launch.kubernetes import registry as kubernetes
from linkwise.launch.kubernetes.pods import Cast
from linkwise.launch.types import Deployment, Process
from linkwise.launch.write import read, write

KEY = "sk-9.a_b~c+d/e="


def given(engine: str, **more: object) -> Asked:
    return asked("llama-3.3-70b", engine, [range(4), range(4, 8)], Layout(tp=4), keyed=True, **more)


def by_name(made: Deployment) -> dict[str, Process]:
    return {p.name: p for p in made.processes}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--api-key sk-1", "--api-key would put the key into the files; expected --with-key"),
        ("--seed 1 --api_key=sk-1", "--api-key would put the key into the files; expected --with-key"),
        ("--ssl-keyfile k --ssl-certfile c", "--ssl-keyfile is for the servers alone; expected TLS in front"),
        ("--enable-ssl-refresh", "--enable-ssl-refresh is for the servers alone"),
    ],
)
def test_what_the_files_would_leave_out_is_refused_by_name(engine: str, words: str, said: str) -> None:
    one = asked("llama-3.3-70b", engine, [range(8)], Layout(tp=8), extra=tuple(words.split()))
    with pytest.raises(InputError) as refused:
        added.check(one, registry.get(engine))
    assert said in str(refused.value)
    assert "sk-1" not in str(refused.value)


def test_engines_are_told_the_key_as_they_take_it() -> None:
    """vLLM reads VLLM_API_KEY (docs/serving/openai_compatible_server.md); SGLang and its router take --api-key alone
    (server_args.py; sglang_router 0.3.2, router_args.py), vllm-router passes on what requests say (router.rs)."""
    processes = by_name(deployment(given("vllm")))
    assert processes["replica-0"].environment["VLLM_API_KEY"] == "${LINKWISE_API_KEY}"
    assert not any("LINKWISE_API_KEY" in word for p in processes.values() for word in p.command)
    assert processes["router"].environment == {}
    processes = by_name(deployment(given("sglang")))
    for name in ("replica-0", "replica-1", "router"):
        command = processes[name].command
        assert command[command.index("--api-key") + 1] == "${LINKWISE_API_KEY}"


def test_a_part_without_a_door_needs_no_key() -> None:
    one = asked("llama-3.3-70b", "vllm", [range(16)], Layout(tp=16), keyed=True)
    first, second = deployment(one).processes
    assert ("VLLM_API_KEY" in first.environment, "VLLM_API_KEY" in second.environment) == (True, False)


@pytest.mark.parametrize("around", ["trtllm", "dynamo"])
def test_servers_that_ask_for_none_are_refused(linkwise: Shell, around: str) -> None:
    assert linkwise("plan llama-3.1-8b --on 8xh100-sxm --tp 2 --isl 100 --osl 10 -o p.json").code == 0
    ran = linkwise(f"launch p.json -o d --engine {around} --with-key")
    assert (ran.code, f"the servers of {around} ask for no key" in ran.err) == (1, True)
    assert not (linkwise.folder / "d").exists()


def test_vllms_router_would_open_pools_to_anybody() -> None:
    """It asks both pools with OPENAI_API_KEY of its own environment, whatever a request says (vllm_pd_router.rs)."""
    with pytest.raises(Refused, match="opens pools that ask for a key to anybody; expected --router linkwise"):
        deployment(pools()._replace(keyed=True))
    with pytest.raises(Refused, match="--with-key"):
        kubernetes.manifest("lws", pools()._replace(keyed=True), registry.get("vllm"), Cast("it", "a", "b"))
    processes = by_name(deployment(pools()._replace(keyed=True, router="linkwise")))
    assert processes["prefill-0"].environment["VLLM_API_KEY"] == "${LINKWISE_API_KEY}"


def test_benchmarks_send_the_key(tmp_path: Path) -> None:
    """vLLM's takes OPENAI_API_KEY (benchmarks/lib/endpoint_request_func.py), aiperf 0.13.0 --api-key, GuideLLM 0.8.1
    api_key of its backend (schemas/backends/openai_http.py)."""
    write(deployment(given("vllm")), tmp_path / "d")
    bin = tmp_path / "bin"
    bin.mkdir()
    for tool in ("vllm", "aiperf", "guidellm"):
        (bin / tool).write_text('#!/bin/bash\nprintf "%s\\n" "$OPENAI_API_KEY" "$@"\n')
        (bin / tool).chmod(0o755)
    environment = {**os.environ, "PATH": f"{bin}:{os.environ['PATH']}", "LINKWISE_API_KEY": KEY}

    def words(tool: str) -> list[str]:
        bench = ["bash", str(tmp_path / "d" / "bench.sh"), tool]
        return subprocess.run(bench, env=environment, check=True, capture_output=True, text=True).stdout.splitlines()

    assert words("vllm")[0] == KEY
    said = words("aiperf")
    assert said[said.index("--api-key") + 1] == KEY
    said = words("guidellm")
    assert json.loads(said[said.index("--backend") + 1])["api_key"] == KEY


def test_pods_read_the_key_from_a_secret() -> None:
    found = kubernetes.manifest("lws", given("sglang"), registry.get("sglang"), Cast("it", "a"))
    (engine,) = _containers(found.text)
    own = {"secretKeyRef": {"name": "linkwise-api-key", "key": "LINKWISE_API_KEY"}}
    assert {"name": "LINKWISE_API_KEY", "valueFrom": own} in engine["env"]
    assert engine["args"][0].endswith('--api-key "${LINKWISE_API_KEY}"')
    assert "requests need the key of Secret linkwise-api-key, key LINKWISE_API_KEY" in " ".join(found.notes)
    found = kubernetes.manifest("lws", given("vllm"), registry.get("vllm"), Cast("it", "a"))
    (engine,) = _containers(found.text)
    assert {"name": "VLLM_API_KEY", "valueFrom": own} in engine["env"]


def _containers(text: str) -> list[dict]:  # type: ignore[type-arg]
    sets = [one for one in yaml.safe_load_all(text) if one["kind"] == "LeaderWorkerSet"]
    return [c for s in sets for c in s["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"]]


def test_a_folder_with_a_key_is_read_back(linkwise: Shell) -> None:
    assert linkwise("plan llama-3.1-8b --on 8xh100-sxm --tp 2 --isl 100 --osl 10 -o p.json").code == 0
    for engine in ("vllm", "sglang"):
        assert linkwise(f"launch p.json -o {engine} --engine {engine} --with-key").code == 0
        assert read(linkwise.folder / engine).keyed
        assert linkwise(f"fit --from-manifest {engine} --on 8xh100-sxm").code == 0
    ran = linkwise("launch p.json -o d --engine-args=--seed=${LINKWISE_API_KEY}")
    assert (ran.code, "a name without it" in ran.err) == (2, True)


@pytest.fixture
def keyed() -> Iterator[str]:
    """A server that asks for the key below /v1 alone, with vLLM's metrics."""
    metrics = b'vllm:cache_config_info{block_size="16",num_gpu_blocks="9"} 1.0\n'

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            opened = self.headers["Authorization"] == f"Bearer {KEY}" or not self.path.startswith("/v1/")
            pages = {"/metrics": metrics, "/v1/models": b'{"data": [{"id": "openai/gpt-oss-120b"}]}'}
            self.send_response(401 if not opened else 200 if self.path in pages else 404)
            self.end_headers()
            self.wfile.write(pages.get(self.path, b"") if opened else b"")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_address[1]}"
        listening.shutdown()
        thread.join()


def test_a_running_server_that_asks_for_a_key(keyed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LINKWISE_API_KEY", raising=False)
    with pytest.raises(InputError, match="/v1/models: the server asks for a key; expected its key in LINKWISE_API_KEY"):
        server.read(keyed, degrees=True)
    monkeypatch.setenv("LINKWISE_API_KEY", "sk-other")
    with pytest.raises(InputError, match="the server takes another key"):
        server.read(keyed, degrees=True)
    monkeypatch.setenv("LINKWISE_API_KEY", KEY)
    assert server.read(keyed, degrees=True).parse().model == "openai/gpt-oss-120b"

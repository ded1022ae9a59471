"""The folder `linkwise launch` writes: what a shell makes of it, what is read back, and what is refused."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from tests.launch.made import asked, cluster, deployment
from tests.test_cli import Shell

from linkwise.cluster.detail import NodeDetail
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.core.schema import encode_json
from linkwise.engine.registry import parse_command
from linkwise.launch import network
from linkwise.launch.bench import commands
from linkwise.launch.scripts import line, quoted, scripts
from linkwise.launch.types import Deployment, Process, Served
from linkwise.launch.write import DEPLOYMENT, read, write

HOSTILE = ["a b", "$(touch gone)", "`id`", "'", '"', "\\", "*", "", "a;b", "é", "${HOST_0", "$HOST_0", "#", "~", "!x"]


def small(**more: object) -> Deployment:
    return deployment(asked("llama-3.3-70b", "vllm", [range(8), range(8, 16)], Layout(tp=8), **more))


def bash(text: str, **environment: str) -> str:
    ran = subprocess.run(
        ["bash", "-c", text], capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    return ran.stdout


@pytest.mark.parametrize("word", HOSTILE)
def test_a_shell_reads_every_word_back(word: str) -> None:
    assert bash(f"printf %s {quoted(word)}") == word


def test_a_stand_in_is_the_only_thing_a_shell_expands() -> None:
    words = ["http://${HOST_1}:80/$(id)", "${HOST_0},${HOST_1}", "${HOST_x}"]
    seen = bash(f"printf '%s\\n' {line(words)}", HOST_0="a b", HOST_1="$(id)")
    assert seen.splitlines() == ["http://$(id):80/$(id)", "a b,$(id)", "${HOST_x}"]


def test_every_script_is_a_script(tmp_path: Path) -> None:
    for multi_node in ("native", "ray", "slurm"):
        made = deployment(asked("llama-3.3-70b", "vllm", [range(16)], Layout(tp=8, pp=2), multi_node=multi_node))
        for name, text in scripts(made).items():
            if name.endswith(".sh"):
                assert text.startswith("#!/usr/bin/env bash\n#")
                assert "set -euo pipefail\n" in text
                subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    write(made, tmp_path / "d")
    assert os.access(tmp_path / "d" / "slurm.sh", os.X_OK)


def test_a_folder_is_read_back_and_replaced(tmp_path: Path) -> None:
    made = small()
    write(made, tmp_path / "d")
    assert read(tmp_path / "d") == made
    one = deployment(asked("llama-3.3-70b", "vllm", [range(8)], Layout(tp=8)))
    write(one, tmp_path / "d")
    assert sorted(p.name for p in (tmp_path / "d" / "processes").iterdir()) == ["replica-0.sh"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="holds other files"):
        write(one, tmp_path / "other")


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("processes", 1, "devices"), [1, 0, 2, 3, 4, 5, 6, 7], "every rank on the device it is given"),
        (("processes", 1, "devices"), [0, 0, 2, 3, 4, 5, 6, 7], "one device for each rank"),
        (("processes", 2, "node"), 0, "each once"),
        (("processes", 1, "name"), "../x", "lower-case letters"),
        (("processes", 1, "host"), "a;b", "host names"),
        (("processes", 1, "command"), [], "at least one word"),
        (("processes", 1, "command"), ["a\nb"], "printable"),
        (("processes", 1, "environment"), {"A=B": "c"}, "name of a variable"),
        (("processes", 1, "ports"), {"http": 70000}, "1..65535"),
        (("processes", 1, "started_by"), "nobody", "a process"),
        (("processes", 1, "name"), "replica-1", "each name once"),
        (("front",), "http://elsewhere:1", "the address of a process"),
        (("files",), {"../x": "y"}, "plain file name"),
        (("schema",), "linkwise.plan/1", "linkwise.deployment/1"),
        (("extra",), 1, "extra"),
    ],
)
def test_a_folder_that_was_changed_is_refused(
    tmp_path: Path, path: tuple[str | int, ...], value: object, said: str
) -> None:
    write(small(), tmp_path / "d")
    whole = json.loads((tmp_path / "d" / DEPLOYMENT).read_text())
    at = whole
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    (tmp_path / "d" / DEPLOYMENT).write_text(json.dumps(whole))
    with pytest.raises(InputError, match=re.escape(said)):
        read(tmp_path / "d")


def test_addresses_are_filled_in_from_one_file(tmp_path: Path) -> None:
    made = small()
    write(made, tmp_path / "d")
    script = (tmp_path / "d" / "processes" / "router.sh").read_text()
    ran = subprocess.run(["bash", f"{tmp_path}/d/processes/router.sh"], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "fill it in hosts.env" in ran.stderr
    hosts = tmp_path / "d" / "hosts.env"
    hosts.write_text(hosts.read_text().replace("HOST_0:-}", "HOST_0:-n0}").replace("HOST_1:-}", "HOST_1:-n1}"))
    shown = script.replace("exec vllm-router", "exec printf '%s '")
    (tmp_path / "d" / "processes" / "router.sh").write_text(shown)
    assert "--worker-urls http://n0:8100 http://n1:8100 " in bash(f"bash {tmp_path}/d/processes/router.sh")
    named = small(hosts=("n0", "10.0.0.2"))
    assert "hosts.env" not in scripts(named)
    assert named.front == "http://n0:8000"
    assert named.processes[2].environment["VLLM_HOST_IP"] == "10.0.0.2"


def test_benchmarks_have_the_flags_of_their_tools_release() -> None:
    """GuideLLM 0.8.1: `guidellm run --help` and its README (kind=poisson takes rate, concurrent takes streams); aiperf
    0.13.0 and vLLM 0.32.0: their options as they are declared (config/flags/cli_config.py, benchmarks/serve.py)."""
    one = small(hosts=("n0", "n1"))
    rate = msgspec.structs.replace(one, served=Served(isl_tokens=100, osl_tokens=20, rate_per_s=1.5, concurrency=8))
    words = commands(rate)["guidellm"]
    assert words[:2] == ["guidellm", "run"]
    given = dict(zip(words[2::2], words[3::2], strict=True))
    assert json.loads(given["--backend"]) == {
        "kind": "openai_http", "target": "http://n0:8000", "model": one.called, "request_format": "/v1/completions"
    }  # fmt: skip
    assert given["--profile"] == "kind=poisson,rate=1.5,max_concurrency=8"
    assert given["--constraint"] == "kind=max_requests,count=180"  # two minutes of arrivals
    assert given["--data"] == "kind=synthetic_text,prompt_tokens=100,output_tokens=20"
    assert json.loads(given["--tokenizer"]) == {"kind": "huggingface_auto", "model": one.model}
    assert given["--seed"] == "kind=static,value=0"
    many = msgspec.structs.replace(one, served=Served(isl_tokens=100, osl_tokens=20, concurrency=8))
    assert "kind=concurrent,streams=8" in commands(many)["guidellm"]
    assert "GuideLLM 0.8.1" in scripts(one)["bench.sh"]


def test_nics_numa_nodes_and_the_interface() -> None:
    numa = (0, 0, 0, 0, 1, 1, 1, 1)
    paths = tuple(" ".join(["-"] * 8 + ["PIX" if a == b else "SYS" for b in range(8)]) for a in range(8))
    detail = NodeDetail(numa=numa, nic_names=tuple(f"mlx5_{n}" for n in range(8)), nic_numa=numa, paths=paths)
    where = msgspec.structs.replace(cluster(), detail=detail)
    given = asked("llama-3.3-70b", "vllm", [range(16)], Layout(tp=8, pp=2), interface="eth0")
    made = deployment(given._replace(cluster=where))
    first = made.processes[0]
    assert first.environment["NCCL_IB_HCA"] == "=" + ",".join(f"mlx5_{n}" for n in range(8))
    assert first.environment["GLOO_SOCKET_IFNAME"] == "eth0"
    words = list(first.command)
    assert words[words.index("--numa-bind-nodes") + 1 :][:8] == ["0", "0", "0", "0", "1", "1", "1", "1"]
    half = asked("llama-3.3-70b", "sglang", [range(4, 8)], Layout(tp=4))
    assert deployment(half._replace(cluster=where)).processes[0].command[:3] == (
        "numactl", "--cpunodebind=1", "--membind=1",
    )  # fmt: skip
    # sglang/srt/server_args.py: --numa-node, one for each of the process's ranks in turn.
    whole = asked("llama-3.3-70b", "sglang", [range(16)], Layout(tp=8, pp=2))._replace(cluster=where)
    for one in deployment(whole).processes:
        words = list(one.command)
        assert words[words.index("--numa-node") + 1 :][:8] == ["0", "0", "0", "0", "1", "1", "1", "1"]
    assert parse_command(words).layout == Layout(tp=8, pp=2)
    # Ray and TensorRT-LLM start the ranks of a node from one process, which is bound where one NUMA node has them all.
    other = asked("llama-3.3-70b", "trtllm", [range(8)], Layout(tp=8))._replace(cluster=where)
    (said,) = network.unbound(other, "trtllm")
    assert said.startswith("trtllm is not told NUMA nodes: replica-0 has devices of nodes 0, 1 on node 0")
    row = [*range(4, 8), *range(12, 16)]
    ray = deployment(
        asked("llama-3.3-70b", "vllm", [row], Layout(tp=4, pp=2), multi_node="ray")._replace(cluster=where)
    )
    assert [p.command[:3] for p in ray.processes[1:]] == [("numactl", "--cpunodebind=1", "--membind=1")] * 2
    # One NIC whose name is no RDMA device's: NCCL is left to choose.
    odd = msgspec.structs.replace(detail, nic_names=("eth0", *detail.nic_names[1:]))
    other = deployment(given._replace(cluster=msgspec.structs.replace(where, detail=odd)))
    assert "NCCL_IB_HCA" not in other.processes[0].environment


def test_start_ends_everything_when_one_process_ends_or_on_a_signal(tmp_path: Path) -> None:
    made = small()
    here = [p for p in made.processes if p.node == 0]
    (tmp_path / "child.py").write_text(_CHILD)
    local = msgspec.structs.replace(
        made,
        hosts={0: "127.0.0.1"},
        groups=made.groups[:1],
        front="http://127.0.0.1:8000",
        processes=tuple(
            msgspec.structs.replace(
                p,
                host="127.0.0.1",
                command=(sys.executable, str(tmp_path / "child.py"), str(tmp_path / f"{p.name}.pid")),
            )
            for p in here
        ),
    )
    write(local, tmp_path / "d")
    for how in ("signal", "one ends"):
        running = subprocess.Popen(["bash", str(tmp_path / "d" / "start.sh")], stdout=subprocess.DEVNULL)
        pids = [_pid(tmp_path / f"{p.name}.pid") for p in here]
        # Each of them has started a child of its own.
        pids += [_pid(tmp_path / f"{p.name}.pid.child") for p in here]
        if how == "signal":
            running.send_signal(signal.SIGTERM)
        else:
            os.kill(pids[0], signal.SIGKILL)
        code = running.wait(20)
        assert code == (143 if how == "signal" else 1)
        assert not [pid for pid in pids if _alive(pid)]
        for file in tmp_path.glob("*.pid*"):
            file.unlink()


_CHILD = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
for path, pid in ((sys.argv[1], os.getpid()), (sys.argv[1] + ".child", child.pid)):
    with open(path + ".part", "w") as file:
        file.write(str(pid))
    os.rename(path + ".part", path)
time.sleep(60)
"""


def _pid(path: Path) -> int:
    end = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < end, f"{path.name} was not started"
        time.sleep(0.05)
    return int(path.read_text())


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_the_command(linkwise: Shell) -> None:
    assert linkwise("plan llama-3.3-70b --on 2x8xh100-sxm --tp 8 --isl 1000 --osl 100 --rate 2/s -o p.json").code == 0
    ran = linkwise("launch p.json -o d")
    assert ran.code == 0
    assert "devices 0,1,2,3,4,5,6,7" in ran.out
    assert "--request-rate 2 " in (linkwise.folder / "d" / "bench.sh").read_text() + " "
    ran = linkwise("launch p.json --engine sglang --json")
    assert ran.code == 0
    assert json.loads(ran.out)["engine"] == "sglang"
    assert any("the default of sglang" in said for said in json.loads(ran.out)["differs"])
    assert linkwise("launch plan: -o d").code == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("launch p.json", 2, "-o FOLDER"),
        ("launch p.json -o d --engine llamacpp", 2, "vllm, sglang, trtllm, dynamo"),
        ("launch p.json -o d --engine linkwise", 2, "linkwise serve"),
        ("launch p.json -o d --multi-node k8s", 2, "native, ray, slurm"),
        ("launch p.json -o d --engine sglang --multi-node ray", 1, "not started through ray"),
        ("launch p.json -o d --hosts a;b", 2, "host names"),
        ("launch p.json -o d --hosts a", 2, "one for each node"),
        ("launch p.json -o d --interface eth0/x", 2, "a network interface"),
        ("launch p.json -o d --weights=-x", 2, "no flag"),
        ("launch p.json -o d --weights ${HOST_0}/m", 2, "a name without it"),
        ("launch p.json -o d --name ${HOST_1}", 2, "a name without it"),
        ("launch p.json -o d --engine-args=--seed=${HOST_0}", 2, "a name without it"),
        ("launch p.json -o d --port 8790", 2, "outside the ports of workers (8100-9099, "),
        ("launch nothing.json -o d", 2, "no such file"),
        ("launch cp.json -o d --engine trtllm", 1, "context parallelism of TensorRT-LLM"),
        ("launch seq.json -o d --engine sglang", 1, "no sequence-sharded"),
        ("launch p.json -o d --data-parallel", 2, "several replicas"),
        ("launch moe.json -o d --data-parallel", 1, "experts"),
        ("launch two.json -o d --engine sglang --data-parallel", 1, "--engine vllm"),
        ("launch p.json -o d --on-fault reject", 2, "--on-fault with files that are only written"),
        ("launch p.json -o d --timeout 5s", 2, "--timeout with files"),
        ("launch p.json -o d --image x", 2, "--image with files"),
        ("launch p.json -o d --start --route", 2, "--route with --start"),
        ("launch p.json -o d --kubernetes lws --port 9999", 2, "--port with --kubernetes"),
        ("launch p.json -o d --kubernetes lws --data-parallel", 2, "--data-parallel with --kubernetes"),
        ("launch p.json --kubernetes lws", 2, "-o FOLDER"),
        ("launch . --start --engine vllm", 2, "--engine with a folder of a launch"),
        ("launch . --start --route", 2, "--route with --start"),
        ("launch p.json -o d --kubernetes lws --object-name=", 2, "--object-name: is empty"),
        ("launch p.json -o d --name=", 2, "--name: is empty"),
        ("launch p.json -o d --start-timeout=", 2, "--start-timeout"),
        ("launch p.json -o d --engine-args=", 0, ""),
        ("launch p.json -o d --engine-args=--seed=1", 0, ""),
        ("launch p.json -o d --engine-args=--port=1", 2, "--port is what the files say themselves"),
        ("launch p.json -o d --engine sglang --engine-args=--model-path=other", 1, "serves other"),
        ("launch two.json -o d --engine-args=--data-parallel-size=2", 1, "makes"),
        ("launch two.json -o d --data-parallel --engine-args=--data-parallel-size=3", 1, "makes"),
        ("launch two.json -o d --data-parallel --engine-args=-dpl=1", 2, "-dpl is what the files say themselves"),
    ],
)
def test_what_is_refused_and_how(linkwise: Shell, words: str, code: int, said: str) -> None:
    base = "plan llama-3.3-70b --on 2x8xh100-sxm --isl 1000 --osl 100"
    assert linkwise(f"{base} --tp 8 --pp 2 -o p.json").code == 0
    assert linkwise(f"{base} --engine linkwise --tp 4 --cp 2 -o cp.json").code == 0
    assert linkwise(f"{base} --engine vllm@0.31 --tp 4 --sequence-sharded -o seq.json").code == 0
    assert linkwise(f"{base} --tp 8 -o two.json").code == 0
    assert linkwise("plan qwen3-30b-a3b --on 2x8xh100-sxm --tp 8 --isl 1000 --osl 100 -o moe.json").code == 0
    ran = linkwise(words)
    assert ran.code == code
    assert said in ran.err


def test_replicas_as_data_parallel_ranks_of_one_server(linkwise: Shell) -> None:
    """Eight replicas of tp 2 on two nodes: one group of 16 devices, four ranks of the eight on each node
    (vllm/engine/arg_utils.py: --data-parallel-size counts all, -local those of a node, -start-rank its first)."""
    base = "--on 2x8xh100-sxm --isl 1000 --osl 100"
    assert linkwise(f"plan llama-3.1-8b {base} --tp 2 -o p.json").code == 0
    assert linkwise("launch p.json --data-parallel -o d").code == 0
    made = json.loads((linkwise.folder / "d" / "deployment.json").read_text())
    assert [(p["node"], p["devices"], p["ranks"]) for p in made["processes"]] == [
        (0, list(range(8)), list(range(8))), (1, list(range(8)), list(range(8, 16))),
    ]  # fmt: skip
    words = [" ".join(p["command"]) for p in made["processes"]]
    assert all("--tensor-parallel-size 2 --data-parallel-size 8 " in w for w in words)
    assert all("--data-parallel-size-local 4" in w for w in words)
    assert [w.endswith("--data-parallel-start-rank 4 --headless") for w in words] == [False, True]
    assert any("one lost rank ends them all" in said for said in made["differs"])
    # The way back counts the same replicas.
    assert linkwise(f"plan --from-manifest d {base} --tp 2 -o back.json").code == 0
    back = json.loads((linkwise.folder / "back.json").read_text())
    assert (back["layout"]["tp"], back["layout"]["dp_attn"], back["replicas"]) == (2, 1, 8)


def test_routers_and_checks_wait_as_long_as_a_start_may_take(linkwise: Shell) -> None:
    assert linkwise("plan llama-3.3-70b --on 2x8xh100-sxm --tp 8 --isl 1000 --osl 100 -o p.json").code == 0
    for engine in ("vllm", "sglang"):
        assert linkwise(f"launch p.json --engine {engine} -o {engine} --start-timeout 1h").code == 0
        router = (linkwise.folder / engine / "processes" / "router.sh").read_text()
        assert "--worker-startup-timeout-secs 3600" in router
        assert "HEALTH_TIMEOUT_S:-3600" in (linkwise.folder / engine / "health.sh").read_text()


def test_the_name_in_the_api_is_the_plans_whatever_folder_serves_it(linkwise: Shell) -> None:
    assert linkwise("plan llama-3.3-70b --on 8xh100-sxm --tp 8 --isl 1000 --osl 100 -o p.json").code == 0
    assert json.loads(linkwise("launch p.json --weights /models/it --json").out)["called"] == "llama-3.3-70b"
    assert json.loads(linkwise("launch p.json --weights /models/it --name x --json").out)["called"] == "x"


def test_names_of_a_plan_file_are_hostile(linkwise: Shell) -> None:
    assert linkwise("plan llama-3.3-70b --on 8xh100-sxm --tp 8 --isl 1000 --osl 100 -o p.json").code == 0
    whole = json.loads((linkwise.folder / "p.json").read_text())
    for name, code in (("--config=/etc/passwd", 2), ("a\nb", 2), ("x; touch gone; $(touch gone)", 0)):
        whole["model"]["served_as"] = name
        (linkwise.folder / "evil.json").write_text(json.dumps(whole))
        ran = linkwise("launch evil.json -o d")
        assert ran.code == code, ran.err
    script = (linkwise.folder / "d" / "processes" / "replica-0.sh").read_text()
    shown = script.replace("exec vllm", "exec printf '%s\\n'")
    (linkwise.folder / "shown.sh").write_text(shown.replace('cd "', 'true "'))
    assert "x; touch gone; $(touch gone)" in bash(f"bash {linkwise.folder}/shown.sh").splitlines()
    assert not list(linkwise.folder.rglob("gone"))


def test_a_process_without_a_door_has_no_address() -> None:
    one = Process(name="a", group="", role="both", node=0, host="h", command=("x",))
    assert one.url == ""
    assert b'"name": "a"' in encode_json(one)

"""Groups over several nodes through Slurm and Ray: which node starts what, in whose order, and what waits for what."""

import json
import socket
import subprocess
import sys
from pathlib import Path

from tests.launch.made import asked, deployment
from tests.launch.test_files import bash
from tests.test_cli import Shell

from linkwise.core.layout import Layout
from linkwise.launch.write import write


def test_a_trtllm_group_over_slurm_nodes_asks_for_its_own_number_of_tasks(linkwise: Shell) -> None:
    # srun(1): SLURM_NTASKS of the step around it is the default of --ntasks, before --ntasks-per-node.
    base = "plan llama-3.3-70b --on 2x8xh100-sxm --engine trtllm --tp 8 --pp 2 --isl 1000 --osl 100"
    assert linkwise(f"{base} -o p.json").code == 0
    made = json.loads(linkwise("launch p.json --multi-node slurm --json").out)
    words = next(p["command"] for p in made["processes"] if p["command"][0] == "srun")
    assert "--ntasks=16" in words and "--ntasks-per-node=8" in words and "--nodes=2" in words


def test_a_node_on_which_nothing_is_started_is_left_out_of_the_job(linkwise: Shell) -> None:
    """TensorRT-LLM's second node is started from the first: a step that ends there with an error would, by srun's
    --kill-on-bad-exit, end the first one too."""
    base = "plan llama-3.3-70b --on 2x8xh100-sxm --engine trtllm --tp 8 --pp 2 --isl 1000 --osl 100"
    assert linkwise(f"{base} -o p.json").code == 0
    assert linkwise("launch p.json --multi-node slurm -o s").code == 0
    assert linkwise("launch p.json --hosts na,nb -o n").code == 0
    assert "On node 1 (nb): nothing: replica-0 on node 0 starts it" in (linkwise.folder / "n" / "README.md").read_text()
    assert "replica-0 on node 0 starts it" in bash(f"bash {linkwise.folder}/n/start.sh 1")
    slurm = Slurm(linkwise.folder, "n1 n2")
    slurm.run("s")
    assert slurm.options[:3] == ["--overlap", "--nodes=1", "--ntasks=1"]
    assert "--nodelist=n1" in slurm.options
    assert slurm.started == ["n1 0"]


def test_slurms_order_of_nodes_is_not_the_plans(linkwise: Shell) -> None:
    # scontrol(1), show hostnames: names in the order of the list; sbatch(1), --nodelist: its order is not important.
    assert linkwise("plan llama-3.3-70b --on 2x8xh100-sxm --tp 8 --pp 2 --isl 1000 --osl 100 -o p.json").code == 0
    assert linkwise("launch p.json --multi-node slurm --hosts nb,na -o named").code == 0
    assert linkwise("launch p.json --multi-node slurm -o open").code == 0
    slurm = Slurm(linkwise.folder, "na nb")
    slurm.run("named")
    assert slurm.started == ["na 1", "nb 0"]
    assert "#SBATCH --nodelist=nb,na" in (linkwise.folder / "named" / "slurm.sh").read_text()
    assert "--master-addr nb" in (linkwise.folder / "named" / "processes" / "replica-0-part-1.sh").read_text()
    slurm.run("open")
    assert slurm.started == ["na 0", "nb 1"]
    for hosts in ("10.0.0.1,10.0.0.2", "na,na"):
        ran = linkwise(f"launch p.json --multi-node slurm --hosts {hosts} -o no")
        assert (ran.code, "Slurm's names of the nodes" in ran.err) == (2, True)
    assert (
        linkwise("plan llama-3.3-70b --on 2x8xh100-sxm --engine trtllm --tp 8 --pp 2 --isl 9 --osl 9 -o t.json").code
        == 0
    )
    ran = linkwise("launch t.json --multi-node slurm --hosts nb,na -o no")
    assert (ran.code, "along Slurm's own" in ran.err) == (1, True)


def test_one_node_that_slurm_chooses(linkwise: Shell) -> None:
    """sbatch(1): without --nodelist Slurm takes any node; the loopback address is reached from no other."""
    assert linkwise("plan llama-3.1-8b --on 1x8xh100-sxm --tp 2 --isl 1000 --osl 100 -o p.json").code == 0
    ran = linkwise("launch p.json --multi-node slurm -o s")
    assert (ran.code, "hosts.env" in ran.err) == (0, False)
    folder = linkwise.folder / "s"
    texts = {path.name: path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert not [name for name, text in texts.items() if "127.0.0.1" in text or "localhost" in text]
    assert "#SBATCH --nodes=1\n" in texts["slurm.sh"] and "#SBATCH --nodelist" not in texts["slurm.sh"]
    assert all("--host 0.0.0.0" in text for name, text in texts.items() if name.startswith(("replica-", "router")))
    assert "Write the addresses" not in texts["README.md"]
    slurm = Slurm(linkwise.folder, "n7")
    slurm.run("s")
    assert slurm.started == ["n7 0"]
    assert "--nodelist=n7" in slurm.options
    # The checks outside the job know the node's name now; a job's own name stays before another job's.
    assert bash(f". {folder}/hosts.env; echo $HOST_0") == "n7\n"
    assert bash(f". {folder}/hosts.env; echo $HOST_0", HOST_0="n8") == "n8\n"
    ran = linkwise("launch p.json --multi-node slurm -o s --start")
    assert (ran.code, "--multi-node slurm with --start" in ran.err) == (2, True)
    assert linkwise("launch p.json -o here").code == 0
    assert '"127.0.0.1"' in (linkwise.folder / "here" / "deployment.json").read_text()


_SRUN = r"""
printf '%s\n' "$@" >"$SAID.options"
while [[ $1 == --* ]]; do
  case $1 in --nodelist=*) on=${1#*=} ;; esac
  shift
done
for node in $(tr , '\n' <<<"$on" | sort); do SLURMD_NODENAME=$node "$@" || exit 1; done
"""


class Slurm:
    """A stand-in for the cluster: scontrol lists the job's nodes, srun runs its command once for each node it is given,
    with SLURMD_NODENAME as srun(1) has it; start.sh is replaced by one that says where it was started."""

    def __init__(self, folder: Path, nodes: str) -> None:
        self._folder, self._tools = folder, folder / "slurm-tools"
        self._tools.mkdir()
        self._said = folder / "said"
        for name, text in (("scontrol", f"printf '%s\\n' {nodes}"), ("srun", _SRUN)):
            (self._tools / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
            (self._tools / name).chmod(0o755)

    def run(self, name: str) -> None:
        self._said.write_text("")
        (self._folder / name / "start.sh").write_text('echo "$SLURMD_NODENAME $1" >>"$SAID"\n')
        job = f"export SLURM_JOB_NODELIST=job SAID={self._said} PATH={self._tools}:$PATH"
        bash(f"cd {self._folder}/{name}; {job}; bash slurm.sh")

    @property
    def started(self) -> list[str]:
        return self._said.read_text().splitlines()

    @property
    def options(self) -> list[str]:
        return Path(f"{self._said}.options").read_text().splitlines()


def test_ray_is_waited_for_and_told_addresses(tmp_path: Path) -> None:
    given = asked("llama-3.3-70b", "vllm", [range(16)], Layout(tp=8, pp=2), multi_node="ray")
    write(deployment(given), tmp_path / "d")
    front = (tmp_path / "d" / "processes" / "replica-0.sh").read_text()
    assert front.index("python3 ray-gpus.py ") < front.index("exec vllm serve")
    hosts = tmp_path / "d" / "hosts.env"
    hosts.write_text("HOST_0=127.0.0.1\nHOST_1=a-name\n")
    ran = subprocess.run(["bash", f"{tmp_path}/d/processes/replica-0.sh"], capture_output=True, text=True, check=False)
    assert (ran.returncode, "HOST_1: hosts.env takes IPv4 addresses" in ran.stderr) == (2, True)
    # Ray as far as the wait uses it: not there at first, then with all GPUs.
    (tmp_path / "ray.py").write_text(
        "import types\nseen = []\nexceptions = types.SimpleNamespace(RayError=KeyError)\n"
        "def is_initialized(): return bool(seen)\n"
        "def init(**given):\n    seen.append(1)\n    raise KeyError('no raylet yet')\n"
        "def cluster_resources():\n    seen.append(1)\n    return {'GPU': 8.0 * min(2, len(seen) - 1)}\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as head:
        port = head.getsockname()[1]
        wait = f"cd {tmp_path}/d; PYTHONPATH={tmp_path} {sys.executable} ray-gpus.py 127.0.0.1 {port}"
        bash(f"{wait} 16 60")
        ran = subprocess.run(["bash", "-c", f"{wait} 17 4"], capture_output=True, text=True, check=False)
    assert (ran.returncode, " of 17 GPUs in the Ray cluster" in ran.stderr) == (1, True)

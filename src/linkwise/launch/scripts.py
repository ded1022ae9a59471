"""A Deployment as bash scripts: one per process, one that starts a node, Slurm's, a health check, a benchmark.

Every word is quoted by shlex; a node's address that is not known yet is the one thing that stays a shell variable.
"""

import json
import math
import shlex
from collections.abc import Mapping, Sequence

from linkwise.launch.types import STAND_IN, Deployment, Process, stand_in

HOSTS = "hosts.env"
_HEAD = "#!/usr/bin/env bash\n"
_STRICT = "set -euo pipefail\n"
SEED = 0
BENCH_S = 120  # how long a benchmark at a rate goes on


def quoted(word: str, names: Mapping[int, str] | None = None) -> str:
    """A word as bash reads it back; stand-ins of addresses are expanded. names: the variables they are in, by node."""
    made, at = "", 0
    for match in STAND_IN.finditer(word):
        made += (
            shlex.quote(word[at : match.start()]) if match.start() > at else ""
        ) + f'"${{{names[int(match[1])] if names else match[0][2:-1]}}}"'
        at = match.end()
    return made + (shlex.quote(word[at:]) if at < len(word) or not word else "")


def line(words: Sequence[str], names: Mapping[int, str] | None = None) -> str:
    """A command on one line."""
    return " ".join(quoted(word, names) for word in words)


def scripts(made: Deployment) -> dict[str, str]:
    """Texts of all scripts by their path below the folder."""
    found = {f"processes/{p.name}.sh": process(made, p) for p in made.processes}
    found["start.sh"] = start(made)
    found["health.sh"] = health(made)
    found["bench.sh"] = bench(made)
    if open_hosts(made):
        found[HOSTS] = "".join(
            f'HOST_{node}="${{HOST_{node}:-}}"  # address of node {node}, between :- and }}\n' for node in made.hosts
        )
    if made.multi_node == "slurm":
        found["slurm.sh"] = slurm(made)
    return found


def open_hosts(made: Deployment) -> bool:
    """Addresses are to be filled in."""
    return any(STAND_IN.fullmatch(host) for host in made.hosts.values())


def _hosts(made: Deployment) -> str:
    if not open_hosts(made):
        return ""
    needed = "".join(f': "${{HOST_{node}:?fill it in {HOSTS}}}"\n' for node in made.hosts)
    return f". ./{HOSTS}\n{needed}"


def file_name(made: Deployment, name: str) -> str:
    """What a file beside the commands is written as: with addresses to fill in, a template of itself."""
    return f"{name}.in" if STAND_IN.search(made.files[name]) else name


def _filled(made: Deployment, one: Process) -> str:
    """Lines that make the files a command names from their templates."""
    lines = ""
    for name in made.files:
        if name in one.command and file_name(made, name) != name:
            swaps = "".join(f"text=${{text//'{stand_in(node)}'/$HOST_{node}}}\n" for node in made.hosts)
            lines += f"text=$(<{name}.in)\n{swaps}printf '%s\\n' \"$text\" >{name}\n"
    return lines


def _here(up: str = "") -> str:
    return f'cd "$(dirname "${{BASH_SOURCE[0]}}"){up}"\n'


def process(made: Deployment, one: Process) -> str:
    """One process: its environment, then the command in place of the shell."""
    what = f"# {one.name} on node {one.node}"
    if one.ranks:
        pairs = ", ".join(f"{rank} on {device}" for rank, device in zip(one.ranks, one.devices, strict=True))
        what += f": the plan's ranks on the node's devices: {pairs}"
    exports = "".join(f"export {name}={quoted(value)}\n" for name, value in sorted(one.environment.items()))
    return (
        f"{_HEAD}{what}\n{_STRICT}{_here('/..')}{_hosts(made)}{_filled(made, one)}{exports}exec {line(one.command)}\n"
    )


def start(made: Deployment) -> str:
    """Everything on one node; the first process that ends takes the others of the node with it."""
    cases = "".join(
        f"  {node}) names=({' '.join(p.name for p in made.starts(node))}) ;;\n" for node in made.hosts
    )  # fmt: skip
    given = "${1:-0}" if len(made.hosts) == 1 and 0 in made.hosts else "${1:?which node: " + _numbers(made) + "}"
    return f"""{_HEAD}# Starts what runs on one node: ./start.sh NODE, the plan's number of it ({_numbers(made)}).
# Logs are in ./logs. When one process ends, or on a signal, all of this node are ended.
{_STRICT}{_here()}node={given}
case "$node" in
{cases}  *) echo "no node $node: {_numbers(made)}" >&2; exit 2 ;;
esac
mkdir -p logs
pids=()
stop() {{
  trap - EXIT TERM INT
  for pid in "${{pids[@]}}"; do kill -TERM -- "-$pid" 2>/dev/null || true; done
  for _ in $(seq "${{STOP_TIMEOUT_S:-30}}"); do
    alive=0
    for pid in "${{pids[@]}}"; do if kill -0 -- "-$pid" 2>/dev/null; then alive=1; fi; done
    if [ "$alive" = 0 ]; then return; fi
    sleep 1
  done
  for pid in "${{pids[@]}}"; do kill -KILL -- "-$pid" 2>/dev/null || true; done
}}
trap stop EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
for name in "${{names[@]}}"; do
  # A session of its own: the process and all it starts are ended together.
  setsid bash "processes/$name.sh" >"logs/$name.log" 2>&1 &
  pids+=("$!")
  echo "$name: process $!, logs/$name.log"
done
code=0
wait -n "${{pids[@]}}" || code=$?
echo "one process ended with $code; logs/ says which" >&2
exit 1
"""


def _numbers(made: Deployment) -> str:
    return ", ".join(map(str, made.hosts))


def health(made: Deployment) -> str:
    """Waits for every server, then for one token through the front."""
    doors = [p.url for p in made.processes if p.url]
    body = json.dumps({"model": made.called, "prompt": "1", "max_tokens": 1})
    return f"""{_HEAD}# Waits until every server answers and a token comes through the front. Exit code 0: it serves.
{_STRICT}{_here()}{_hosts(made)}end=$((SECONDS + ${{HEALTH_TIMEOUT_S:-{math.ceil(made.start_s)}}}))
for url in {line(doors)}; do
  until curl -fsS --max-time 5 "$url/health" >/dev/null 2>&1; do
    if [ "$SECONDS" -ge "$end" ]; then echo "$url/health does not answer" >&2; exit 1; fi
    sleep 2
  done
done
# An engine's /health stays 200 while one of its workers is stopped: only a token shows that all of them work.
curl -fsS --max-time "${{TOKEN_TIMEOUT_S:-60}}" {line([f"{made.front}/v1/completions"])} \\
  -H 'Content-Type: application/json' -d {quoted(body)} | grep -q '"choices"'
echo "serves"
"""


def bench(made: Deployment) -> str:
    """The workload's lengths, rate and concurrency, by one of three tools."""
    asks, tokens = made.served, {"in": str(made.served.isl_tokens), "out": str(made.served.osl_tokens)}
    many = str(_prompts(made))
    rate = [] if asks.rate_per_s is None else [f"{asks.rate_per_s:g}"]
    at_once = [] if asks.concurrency is None else [str(asks.concurrency)]
    seed = str(SEED)
    vllm = [
        "vllm", "bench", "serve", "--backend", "openai", "--base-url", made.front, "--endpoint", "/v1/completions",
        "--model", made.called, "--tokenizer", made.model, "--dataset-name", "random", "--random-input-len",
        tokens["in"], "--random-output-len", tokens["out"], "--ignore-eos", "--num-prompts", many, "--seed", seed,
        "--save-result", "--result-filename", "bench-vllm.json",
    ]  # fmt: skip
    vllm += ["--request-rate", *rate] if rate else []
    vllm += ["--max-concurrency", *at_once] if at_once else []
    aiperf = [
        "aiperf", "profile", "--model", made.called, "--tokenizer", made.model, "--url", made.front,
        "--endpoint-type", "completions", "--streaming", "--synthetic-input-tokens-mean", tokens["in"],
        "--synthetic-input-tokens-stddev", "0", "--output-tokens-mean", tokens["out"], "--output-tokens-stddev", "0",
        "--extra-inputs", "ignore_eos:true", "--request-count", many, "--random-seed", seed,
    ]  # fmt: skip
    aiperf += ["--request-rate", *rate] if rate else []
    aiperf += ["--concurrency", *at_once] if at_once else []
    kind = ("poisson", rate[0]) if rate else ("concurrent", *(at_once or ["1"]))
    guidellm = [
        "guidellm", "benchmark", "run", "--target", made.front, "--model", made.called, "--processor", made.model,
        "--rate-type", kind[0], "--rate", kind[1], "--data",
        f"prompt_tokens={tokens['in']},output_tokens={tokens['out']}", "--max-requests", many, "--random-seed", seed,
    ]  # fmt: skip
    return f"""{_HEAD}# The plan's workload: ./bench.sh [vllm|aiperf|guidellm]; the tool must be installed.
{_STRICT}{_here()}{_hosts(made)}case "${{1:-vllm}}" in
  vllm) exec {line(vllm)} ;;
  aiperf) exec {line(aiperf)} ;;
  guidellm) exec {line(guidellm)} ;;
  *) echo "no tool $1: vllm, aiperf or guidellm" >&2; exit 2 ;;
esac
"""


def _prompts(made: Deployment) -> int:
    """Requests of a benchmark: two minutes of arrivals, or ten for each at once."""
    if made.served.rate_per_s is not None:
        return max(20, min(20_000, round(made.served.rate_per_s * BENCH_S)))
    return max(20, min(20_000, 10 * (made.served.concurrency or 1)))


def slurm(made: Deployment) -> str:
    """A batch job that starts every node of the deployment."""
    most = max(
        1 + max((max(p.devices) for p in made.processes if p.node == n and p.devices), default=0) for n in made.hosts
    )
    nodes = " ".join(map(str, made.hosts))
    return f"""{_HEAD}#SBATCH --job-name=linkwise
#SBATCH --nodes={len(made.hosts)}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={most}
#SBATCH --exclusive
# sbatch slurm.sh, from this folder on a file system that all nodes share.
{_STRICT}cd "${{SLURM_SUBMIT_DIR:-.}}"
mapfile -t found < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
nodes=({nodes})
for at in "${{!nodes[@]}}"; do export "HOST_${{nodes[$at]}}=${{found[$at]}}"; done
export LINKWISE_NODES="${{nodes[*]}}"
# --overlap: a node's script may start steps of its own.
exec srun --overlap --ntasks-per-node=1 --kill-on-bad-exit=1 bash -c \\
  'nodes=($LINKWISE_NODES); exec bash start.sh "${{nodes[$SLURM_NODEID]}}"'
"""

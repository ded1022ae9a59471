"""A Deployment as bash scripts: one per process, one that starts a node, Slurm's, a health check, a benchmark.

Every word is quoted by shlex; a node's address that is not known yet, and the key, are all that stay shell variables.
"""

import json
import math
import shlex
from collections.abc import Mapping, Sequence

from linkwise.launch import key
from linkwise.launch.bench import RELEASES, commands
from linkwise.launch.types import EXPANDED, KEY_VARIABLE, STAND_IN, Deployment, Process, stand_in

HOSTS = "hosts.env"
_HEAD = "#!/usr/bin/env bash\n"
_STRICT = "set -euo pipefail\n"


def quoted(word: str, names: Mapping[int, str] | None = None) -> str:
    """A word as bash reads it back; stand-ins of addresses are expanded. names: the variables they are in, by node."""
    made, at = "", 0
    for match in EXPANDED.finditer(word):
        made += (
            shlex.quote(word[at : match.start()]) if match.start() > at else ""
        ) + f'"${{{names[int(match[1])] if names and match[1] else match[0][2:-1]}}}"'
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
    if made.multi_node == "ray":  # which compares addresses as text
        names = " ".join(f"HOST_{node}" for node in made.hosts)
        needed += (
            f"for name in {names}; do [[ ${{!name}} =~ ^[0-9]+(\\.[0-9]+){{3}}$ ]] ||"
            f' {{ echo "$name: {HOSTS} takes IPv4 addresses for Ray, not ${{!name}}" >&2; exit 2; }}; done\n'
        )
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
    waits = f"{line(one.before)}\n" if one.before else ""
    needs = key.check(" ".join((*one.command, *one.environment.values())))
    set_up = f"{_STRICT}{_here('/..')}{_hosts(made)}{needs}{_filled(made, one)}{exports}"
    return f"{_HEAD}{what}\n{set_up}{waits}exec {line(one.command)}\n"


def _key(made: Deployment) -> str:
    """A line that wants the key, where requests need one."""
    return key.check() if made.keyed else ""


def start(made: Deployment) -> str:
    """Everything on one node; the first process that ends takes the others of the node with it."""
    cases = "".join(
        f"  {node}) names=({' '.join(p.name for p in made.starts(node))}) ;;\n" for node in made.starting
    ) + "".join(
        f"  {node}) echo 'nothing is started here: {made.started_from(node)}'; exit 0 ;;\n"
        for node in made.hosts if node not in made.starting
    )  # fmt: skip
    given = "${1:-0}" if len(made.hosts) == 1 and 0 in made.hosts else "${1:?which node: " + _numbers(made) + "}"
    return f"""{_HEAD}# Starts what runs on one node: ./start.sh NODE, the plan's number of it ({_numbers(made)}).
# Logs are in ./logs. When one process ends, or on a signal, all of this node are ended.
{_STRICT}{_here()}{_key(made)}node={given}
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
    # By a pipe: a node's users can read the words of a command.
    with_key = f" -H @<(printf 'Authorization: Bearer %s\\n' \"${KEY_VARIABLE}\")" if made.keyed else ""
    return f"""{_HEAD}# Waits until every server answers and a token comes through the front. Exit code 0: it serves.
{_STRICT}{_here()}{_hosts(made)}{_key(made)}end=$((SECONDS + ${{HEALTH_TIMEOUT_S:-{math.ceil(made.start_s)}}}))
for url in {line(doors)}; do
  until curl -fsS --max-time 5 "$url/health" >/dev/null 2>&1; do
    if [ "$SECONDS" -ge "$end" ]; then echo "$url/health does not answer" >&2; exit 1; fi
    sleep 2
  done
done
# An engine's /health stays 200 while one of its workers is stopped: only a token shows that all of them work.
curl -fsS --max-time "${{TOKEN_TIMEOUT_S:-60}}" {line([f"{made.front}/v1/completions"])} \\
  -H 'Content-Type: application/json'{with_key} -d {quoted(body)} | grep -q '"choices"'
echo "serves"
"""


def bench(made: Deployment) -> str:
    """The workload's lengths, rate and concurrency, by one of three tools."""
    tools = commands(made)
    cases = "".join(f"  {tool}) exec {line(words)} ;;\n" for tool, words in tools.items())
    exported = f'export OPENAI_API_KEY="${KEY_VARIABLE}"\n' if made.keyed else ""  # where vLLM's looks
    return f"""{_HEAD}# The plan's workload: ./bench.sh [{"|".join(tools)}]; the tool must be installed.
# The flags are those of {", ".join(RELEASES.values())}.
{_STRICT}{_here()}{_hosts(made)}{_key(made)}{exported}case "${{1:-vllm}}" in
{cases}  *) echo "no tool $1: {", ".join(tools)}" >&2; exit 2 ;;
esac
"""


def slurm(made: Deployment) -> str:
    """A batch job that starts every node of the deployment, each by its name: Slurm orders nodes itself."""
    most = max(
        1 + max((max(p.devices) for p in made.processes if p.node == n and p.devices), default=0) for n in made.hosts
    )
    if open_hosts(made):
        given, named = "", 'mapfile -t found < <(scontrol show hostnames "$SLURM_JOB_NODELIST")\n'
        named += f"nodes=({' '.join(map(str, made.hosts))})\n"
        named += 'for at in "${!nodes[@]}"; do export "HOST_${nodes[$at]}=${found[$at]}"; done\n'
        # For health.sh and bench.sh, which run outside the job. A job's own names stay before those in the file.
        named += 'for node in "${nodes[@]}"; do\n  host=HOST_$node\n'
        named += '  echo "$host=\\"\\${$host:-${!host}}\\""\n'
        named += f"done >{HOSTS}.part\nmv {HOSTS}.part {HOSTS}\n"
    else:
        given = f"#SBATCH --nodelist={','.join(made.hosts.values())}\n"
        named = "".join(f"HOST_{node}={quoted(host)}\n" for node, host in made.hosts.items())
    starting = made.starting
    return f"""{_HEAD}#SBATCH --job-name=linkwise
#SBATCH --nodes={len(made.hosts)}
{given}#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={most}
#SBATCH --exclusive
# sbatch slurm.sh, from this folder on a file system that all nodes share.
{_STRICT}cd "${{SLURM_SUBMIT_DIR:-.}}"
{named}# Where processes start: Slurm's name of a node, and the plan's number of it.
export LINKWISE_NODES="{" ".join(f"$HOST_{node}={node}" for node in starting)}"
# --overlap: a node's script may start steps of its own.
exec srun --overlap --nodes={len(starting)} --ntasks={len(starting)} --ntasks-per-node=1 --kill-on-bad-exit=1 \\
  --nodelist="{",".join(f"$HOST_{node}" for node in starting)}" bash -c \\
  'for pair in $LINKWISE_NODES; do
    if [ "${{pair%=*}}" = "$SLURMD_NODENAME" ]; then exec bash start.sh "${{pair##*=}}"; fi
  done
  echo "$SLURMD_NODENAME is none of $LINKWISE_NODES" >&2; exit 1'
"""

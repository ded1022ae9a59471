"""A Ray cluster of one group's own devices: its head, its workers, and what waits for them.

vLLM looks for its head among Ray's nodes by the text of an address (v1/engine/utils.py, _dp_nodes_master_first), places
attention replicas on the nodes that are there at once (create_dp_placement_groups), the same number on each. A worker
of Ray gives up after seconds without a head. So every process is told its address, and each waits for what it needs.
"""

from collections.abc import Sequence
from typing import NamedTuple

from linkwise.engine.base import Refusal
from linkwise.launch import network
from linkwise.launch.base import Asked, Run, local
from linkwise.launch.types import STAND_IN, Group, Process

WAIT = "ray-gpus.py"
# $1: host, $2: port, $3: seconds.
_REACHED = (
    'until timeout 5 bash -c \'exec 3<>"/dev/tcp/$0/$1"\' "$1" "$2" 2>/dev/null; do'
    ' if [ "$SECONDS" -ge "$3" ]; then echo "no Ray head at $1:$2 after $3 s" >&2; exit 1; fi; sleep 2; done'
)
_GPUS = '''"""Waits until the Ray cluster at HOST:PORT has COUNT GPUs: ray-gpus.py HOST PORT COUNT SECONDS."""

import socket
import sys
import time

import ray

host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
end = time.monotonic() + float(sys.argv[4])
have, why = 0, ""
while have < count:
    if time.monotonic() > end:
        sys.exit(f"{have} of {count} GPUs in the Ray cluster at {host}:{port}. {why}")
    time.sleep(1)
    try:
        # Ray ends the program itself where nothing listens.
        socket.create_connection((host, port), timeout=5).close()
        if not ray.is_initialized():
            ray.init(address=f"{host}:{port}", log_to_driver=False)
        have = int(ray.cluster_resources().get("GPU", 0))
    except (OSError, RuntimeError, ray.exceptions.RayError) as error:
        why = f"{type(error).__name__}: {error}"
'''


class Cluster(NamedTuple):
    """Ray's processes of a group, and how its command joins them. before: what waits for all of its devices."""

    processes: tuple[Process, ...]
    environment: dict[str, str]
    before: tuple[str, ...]


def files(asked: Asked) -> dict[str, str]:
    """What waits for a cluster's devices, where a group is one."""
    wide = any(len({asked.cluster.node_of(d) for d in group.devices}) > 1 for group in asked.groups)
    return {WAIT: _GPUS} if asked.multi_node == "ray" and wide else {}


def refuses(asked: Asked, group: Group, parts: Sequence[Sequence[Run]]) -> Refusal | None:
    """parts: the runs of each attention replica."""
    by_node = ranks_by_node(parts)
    if len(by_node) == 1:
        return None
    for node in by_node:
        host = asked.host(node)
        if not (STAND_IN.fullmatch(host) or network.own_address(asked, node)):
            return Refusal(
                reason=f"node {node} is called {host}: Ray and vLLM compare addresses as text",
                change="IPv4 addresses in --hosts",
            )
    if group.layout.dp_attn == 1:
        return None
    if any(len(part) > 1 for part in parts):
        return Refusal(
            reason=f"{group.name}: an attention replica spans nodes, and where Ray would put it is not known",
            change="--multi-node native",
        )
    if len({len(ranks) for ranks in by_node.values()}) > 1:
        listed = ", ".join(f"{len(ranks)} on node {node}" for node, ranks in by_node.items())
        return Refusal(
            reason=f"{group.name} has {listed}: vLLM puts the same number of attention replicas on every node of Ray",
            change="--multi-node native",
        )
    return None


def ranks_by_node(parts: Sequence[Sequence[Run]]) -> dict[int, list[int]]:
    """The group's ranks on each node, the head first."""
    found: dict[int, list[int]] = {}
    for part in parts:
        for run in part:
            found.setdefault(run.node, []).extend(run.ranks)
    return found


def cluster(asked: Asked, group: Group, by_node: dict[int, list[int]], port: int) -> Cluster:
    """port: of the head."""
    head, seconds = asked.host(next(iter(by_node))), str(round(asked.start_s))
    made = []
    for number, (node, ranks) in enumerate(by_node.items()):
        own = asked.host(node)
        where = [f"--address={head}:{port}"] if number else ["--head", f"--port={port}"]
        bound = network.bound(network.numa(asked, group, node, ranks))  # the ranks inherit it
        command = (*bound, "ray", "start", *where, f"--node-ip-address={own}", f"--num-gpus={len(ranks)}", "--block")
        made.append(
            Process(
                name=f"{group.name}-ray-{number}", group=group.name, role=group.role, node=node, host=own,
                devices=local(asked, group, ranks), ranks=tuple(ranks), command=command,
                before=("bash", "-c", _REACHED, "wait", head, str(port), seconds) if number else (),
                environment=network.environment(asked, group, node, ranks) | {"VLLM_HOST_IP": own},
                ports={} if number else {"gcs": port},
            )
        )  # fmt: skip
    return Cluster(
        tuple(made),
        {"RAY_ADDRESS": f"{head}:{port}", "VLLM_HOST_IP": head},
        ("python3", WAIT, head, str(port), str(group.layout.size), seconds),
    )

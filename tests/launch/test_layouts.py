"""Every legal layout up to 64 devices: what the files say sums to the plan, and no degree is lost or counted twice.

Expected places come from each engine's own numbering of ranks, written down here from its source: vLLM's
initialize_model_parallel reshapes ranks to (data, pipeline, prefill context, tensor) parallel; SGLang's
_calculate_rank_ranges and TensorRT-LLM's mapping.py count stages, then the ranks of a stage.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from tests.launch.made import asked, cluster, deployment, legal, model

from linkwise.core.layout import Layout
from linkwise.engine import registry as engines
from linkwise.engine.base import Parsed
from linkwise.launch import registry
from linkwise.launch.base import Asked
from linkwise.launch.types import Deployment, Process

MODELS = ("llama-3.3-70b", "deepseek-v3", "deepseek-v3.2", "qwen3-235b-a22b")
NUMBERED = {
    "vllm": lambda x: (x.dp_attn, x.pp, x.cp, x.tp),
    "sglang": lambda x: (x.pp, x.cp, x.dp_attn, x.tp),
    "trtllm": lambda x: (x.pp, x.cp, x.dp_attn, x.tp),
}


def engine_processes(made: Deployment, group: str) -> list[Process]:
    """Those that start the engine, in the order it numbers their ranks (of mpirun and Ray, what these start)."""
    return [p for p in made.processes if p.group == group and p.devices]


def parsed(given: Asked, process: Process, made: Deployment) -> Parsed:
    return engines.parse_command(
        list(process.command), version=given.engine.version, model=given.model, files=made.files
    )  # fmt: skip


def in_engine_order(layout: Layout, engine: str) -> list[int]:
    """The plan's rank of each of the engine's, by equal coordinates."""
    of_engine = np.arange(layout.size).reshape(NUMBERED[engine](layout))
    if engine == "vllm":  # (dp, pp, cp, tp) as the plan has them: (pp, cp, dp, tp)
        of_engine = of_engine.transpose(1, 2, 0, 3)
    plan_rank = np.empty(layout.size, dtype=int)
    plan_rank[of_engine.reshape(-1)] = np.arange(layout.size)
    return [int(r) for r in plan_rank]


def check(given: Asked, made: Deployment) -> None:
    layout, per_node = given.groups[0].layout, given.cluster.devices_per_node
    used = Counter((p.node, d) for p in made.processes for d in p.devices)
    planned = {divmod(d, per_node) for group in given.groups for d in group.devices}
    assert set(used) == planned
    assert set(used.values()) == {1}
    assert set(made.hosts) == {node for node, _ in planned}
    doors = [p for p in made.processes if p.url and p.role != "router"]
    assert len(doors) == len(given.groups)
    assert len({(p.node, port) for p in made.processes for port in p.ports.values()}) == sum(
        len(p.ports) for p in made.processes
    )
    for group in given.groups:
        parts = engine_processes(made, group.name)
        # Ranks in the engine's own order lie on the devices of the plan's ranks with the same coordinates.
        order = [rank for p in parts for rank in p.ranks]
        assert order == in_engine_order(layout, given.engine.name)
        assert [p.node * per_node + d for p in parts for d in p.devices] == [group.devices[r] for r in order]
        assert all(p.environment["CUDA_VISIBLE_DEVICES"] == ",".join(map(str, p.devices)) for p in parts)
        for part in parts:
            found = parsed(given, part, made)
            assert (found.layout, found.replicas) == (layout, 1)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("name", MODELS)
def test_every_legal_layout_up_to_64_devices(name: str, engine: str) -> None:
    written, refused = 0, 0
    for layout in legal(name, engine):
        most = cluster().size // layout.size
        for count in {1, min(3, most), most if layout.size >= 8 else 1}:
            rows = [range(n * layout.size, (n + 1) * layout.size) for n in range(count)]
            given = asked(name, engine, rows, layout)
            if registry.get(engine).refuses(given, given.groups[0]) is not None:
                refused += 1
                continue
            check(given, deployment(given))
            written += 1
    assert written > 20
    # What an engine has but these files cannot say: prefill context over more nodes than its other ranks divide into.
    assert refused == 0 or engine in {"vllm", "sglang"}


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_devices_out_of_order_inside_nodes(engine: str) -> None:
    rng = np.random.default_rng(7)
    for layout in (Layout(tp=4, pp=2), Layout(tp=8, pp=2), Layout(tp=2, pp=4)):
        rows = []
        for n in range(cluster().size // layout.size):
            row = np.arange(n * layout.size, (n + 1) * layout.size)
            for node in range(0, layout.size, 8):
                rng.shuffle(row[node : node + 8])
            rows.append([int(d) for d in row])
        given = asked("llama-3.3-70b", engine, rows, layout)
        check(given, deployment(given))


def test_nodes_of_attention_replicas_are_counted_as_vllm_does() -> None:
    """pp 2 x dp 2 x tp 4 on two nodes of 8: stages are on nodes, so each attention replica spans both.

    vLLM's nnodes_within_dp = nnodes / (dp / dp_local) with dp_local inferred as max(ranks a node / ranks a replica, 1)
    (arg_utils.py, config/parallel.py): four launches, two a replica, 4 ranks each.
    """
    layout = Layout(tp=4, pp=2, dp_attn=2, ep=8)
    given = asked("deepseek-v3", "vllm", [range(16)], layout)
    made = deployment(given)
    words = [" ".join(p.command) for p in made.processes]
    assert [(p.node, p.devices) for p in made.processes] == [
        (0, (0, 1, 2, 3)), (1, (0, 1, 2, 3)), (0, (4, 5, 6, 7)), (1, (4, 5, 6, 7)),
    ]  # fmt: skip
    assert all("--nnodes 4" in w and f"--node-rank {n}" in w for n, w in enumerate(words))
    assert ["--headless" in w for w in words] == [False, True, True, True]


def test_whole_attention_replicas_on_each_node_start_at_their_own_rank() -> None:
    given = asked("deepseek-v3", "vllm", [range(32)], Layout(tp=1, dp_attn=32, ep=32))
    made = deployment(given)
    words = [p.command for p in made.processes]
    assert [w[w.index("--data-parallel-size-local") + 1] for w in words] == ["8"] * 4
    starts = [w[w.index("--data-parallel-start-rank") + 1] for w in words if "--data-parallel-start-rank" in w]
    assert starts == ["8", "16", "24"]
    assert len({w[w.index("--data-parallel-rpc-port") + 1] for w in words}) == 1


def test_a_ray_cluster_has_the_groups_devices_and_one_command() -> None:
    layout = Layout(tp=8, pp=2)
    given = asked("llama-3.3-70b", "vllm", [range(16), range(16, 32)], layout, multi_node="ray")
    made = deployment(given)
    used = Counter((p.node, d) for p in made.processes for d in p.devices)
    assert len(used) == 32
    assert set(used.values()) == {1}
    fronts = [p for p in made.processes if p.command[0] == "vllm"]
    assert [parsed(given, p, made).layout for p in fronts] == [layout, layout]
    assert all(p.environment["RAY_ADDRESS"].startswith(p.host) for p in fronts)


def test_attention_replicas_on_a_ray_cluster_are_asked_for_node_by_node() -> None:
    """vLLM 0.32, v1/engine/utils.py create_dp_placement_groups: --data-parallel-size-local replicas on each node, the
    head found as Ray's node:ADDRESS by --data-parallel-address; arg_utils.py takes all replicas as local otherwise."""
    layout = Layout(tp=2, dp_attn=8, ep=16)
    given = asked(
        "deepseek-v3", "vllm", [range(16)], layout, multi_node="ray", hosts=tuple(f"10.0.0.{n}" for n in range(8))
    )
    made = deployment(given)
    front, head, worker = made.processes
    words = " ".join(front.command)
    assert "--data-parallel-size 8 " in words
    assert "--data-parallel-size-local 4 --data-parallel-backend ray --data-parallel-address 10.0.0.0" in words
    assert " ".join(head.command) == ("ray start --head --port=25400 --node-ip-address=10.0.0.0 --num-gpus=8 --block")
    assert " ".join(worker.command) == (
        "ray start --address=10.0.0.0:25400 --node-ip-address=10.0.0.1 --num-gpus=8 --block"
    )
    # vLLM's get_ip(), on each node and for its own processes there.
    assert [p.environment["VLLM_HOST_IP"] for p in made.processes] == ["10.0.0.0", "10.0.0.0", "10.0.0.1"]
    assert front.before == ("python3", "ray-gpus.py", "10.0.0.0", "25400", "16", "1800")
    assert worker.before[-3:] == ("10.0.0.0", "25400", "1800")
    assert list(made.files) == ["ray-gpus.py"]


@pytest.mark.parametrize(
    ("hosts", "row", "layout", "said"),
    [
        (("na", "nb"), range(16), Layout(tp=8, pp=2), "node 0 is called na"),
        ((), [*range(8), *range(8, 12)], Layout(tp=4, dp_attn=3), "8 on node 0, 4 on node 1"),
        ((), range(16), Layout(tp=8, pp=2, dp_attn=1), ""),
        ((), range(32), Layout(tp=8, pp=2, dp_attn=2), "where Ray would put it is not known"),
    ],
)
def test_groups_that_ray_would_place_elsewhere(
    hosts: tuple[str, ...], row: Sequence[int], layout: Layout, said: str
) -> None:
    given = asked("llama-3.3-70b", "vllm", [row], layout, multi_node="ray", hosts=hosts)
    refusal = registry.get("vllm").refuses(given, given.groups[0])
    assert said in refusal.reason if refusal else not said


def test_what_these_files_cannot_say_is_refused_by_name() -> None:
    # vLLM's create_engine_config divides data x pipeline x tensor ranks by the nodes, without prefill context.
    wide = asked("deepseek-v3.2", "vllm", [range(32)], Layout(tp=1, cp=32))
    refusal = registry.get("vllm").refuses(wide, wide.groups[0])
    assert refusal is not None
    assert "cp 32 over 4 nodes" in refusal.reason
    odd = asked("llama-3.3-70b", "vllm", [range(4, 12)], Layout(tp=8))
    assert registry.get("vllm").refuses(odd, odd.groups[0]) is None  # four ranks on each of two nodes
    odd = asked("llama-3.3-70b", "vllm", [range(5, 13)], Layout(tp=8))
    assert "3 on node 0, 5 on node 1" in str(registry.get("vllm").refuses(odd, odd.groups[0]))
    old = asked("llama-3.3-70b", "vllm", [range(16)], Layout(tp=16), version="0.11.0")
    refusal = registry.get("vllm").refuses(old, old.groups[0])
    assert refusal is not None
    assert refusal.change == "--multi-node ray"
    thirds = asked("llama-3.3-70b", "sglang", [range(24)], Layout(tp=8, pp=3))
    assert registry.get("sglang").refuses(thirds, thirds.groups[0]) is None
    halves = asked("llama-3.3-70b", "sglang", [range(16)], Layout(tp=4, pp=4))
    assert registry.get("sglang").refuses(halves, halves.groups[0]) is None
    fives = asked("deepseek-v3", "sglang", [range(40)], Layout(tp=8, pp=5))
    assert registry.get("sglang").refuses(fives, fives.groups[0]) is None
    dynamo = asked("deepseek-v3", "vllm", [range(16)], Layout(tp=8, dp_attn=2, ep=16))
    assert "dp_attn 2 over several nodes" in str(registry.get("dynamo").refuses(dynamo, dynamo.groups[0]))


def test_dynamo_starts_the_engines_own_layout() -> None:
    for engine, module in (("vllm", "dynamo.vllm"), ("sglang", "dynamo.sglang")):
        given = asked("llama-3.3-70b", engine, [range(8), range(8, 16)], Layout(tp=8))
        made = deployment(given, "dynamo")
        workers = engine_processes(made, "replica-0") + engine_processes(made, "replica-1")
        assert [p.command[2] for p in workers] == [module, module]
        assert [p.role for p in made.processes if p.url] == ["router"]
        known = {"vllm": ("vllm", "serve"), "sglang": ("sglang", "serve")}[engine]
        for worker in workers:
            words = [w for w in worker.command[3:] if not (engine == "vllm" and w == "--model")]
            found = engines.parse_command([*known, *words], model=model("llama-3.3-70b"))
            assert (found.layout, found.replicas) == (Layout(tp=8), 1)

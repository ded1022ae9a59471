"""vLLM: a process per node of a replica.

vLLM numbers ranks data parallel, pipeline, prefill context, tensor, outer to inner (distributed/parallel_state.py,
initialize_model_parallel), the plan pipeline first. So the visible devices are listed in vLLM's order, and an
attention replica that spans nodes is given "nodes" of its own (--nnodes counts launches, not machines).
"""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from linkwise.core.errors import Refused
from linkwise.core.layout import Layout
from linkwise.engine.base import Refusal
from linkwise.engine.facts_io import version_key
from linkwise.launch import key, network, ray
from linkwise.launch.base import Asked, Launcher, Ports, Run, engine_words, local, router_process, runs, uneven
from linkwise.launch.types import KEY, Group, Process

_NUMA_SINCE = "0.20"  # --numa-bind; the release that added it is unverified, 0.32 has it
_NIXL_ROLES = "0.32"  # kv_both is deprecated there (nixl/connector.py)


class _Channel(NamedTuple):
    """Where a pool's connector is found by the other pool. kind: of its ports; ports: for each attention replica."""

    kind: str
    ports: int


# NIXL: 0.32 uses the next port for the next attention replica, 0.22 was seen to use every second. Mooncake: the first
# rank of a prefill group runs one bootstrap server for all of the group (mooncake_connector.py).
_CHANNELS = {"nixl": _Channel("nixl", 2), "mooncake": _Channel("bootstrap", 1)}
_SHARED = {channel.kind for channel in _CHANNELS.values()}  # ports that every process of a group is told


# Short names as vLLM 0.32 has them (engine/arg_utils.py, add_cli_args).
_FLAGS = frozenset({
    "--host", "--port", "--uds", "--served-model-name", "--headless", "--nnodes", "-n", "--node-rank", "-r",
    "--master-addr", "--master-port", "--data-parallel-size-local", "-dpl", "--data-parallel-rank", "-dpn",
    "--data-parallel-start-rank", "-dpr", "--data-parallel-address", "-dpa", "--data-parallel-rpc-port", "-dpp",
    "--data-parallel-backend", "-dpb", "--data-parallel-hybrid-lb", "-dph", "--data-parallel-external-lb", "-dpe",
    "--data-parallel-multi-port-external-lb", "-dpm", "--data-parallel-supervisor-port",
    "--distributed-executor-backend",
})  # fmt: skip


class Vllm(Launcher):
    """vLLM's own server."""

    name = "vllm"
    multi_node = ("native", "ray", "slurm")
    joins_replicas = True
    takes_key = True
    connectors = {"nixl": "NixlConnector", "mooncake": "MooncakeConnector"}
    flags = _FLAGS
    program: tuple[str, ...] = ("vllm", "serve")

    def refuses(self, asked: Asked, group: Group) -> Refusal | None:
        layout, parts = group.layout, self._parts(asked, group)
        if group.role != "both" and asked.connector == "nixl" and (refused := _nixl(asked, group)):
            return refused
        if asked.multi_node == "ray":
            return ray.refuses(asked, group, parts)
        wide = [part for part in parts if len(part) > 1]
        if not wide:
            return None
        if not asked.engine.facts.gates["nnodes"]:  # type: ignore[attr-defined]
            return Refusal(
                reason=f"vLLM {asked.engine.version} starts a group over several nodes through Ray only",
                change="--multi-node ray",
            )
        found = [run for part in parts for run in part]
        if refused := uneven(group, found, "vLLM"):
            return refused
        # vLLM divides the ranks without prefill context over the nodes (arg_utils.py, create_engine_config).
        if layout.dp_attn * layout.pp * layout.tp % len(found):
            return Refusal(
                reason=f"cp {layout.cp} over {len(found)} nodes: vLLM divides pp {layout.pp} x tp {layout.tp} ranks"
                " over them",
                change=f"a tp that {len(found)} divides",
            )
        return None

    def processes(self, asked: Asked, group: Group, ports: Ports) -> tuple[Process, ...]:
        parts = self._parts(asked, group)
        if asked.multi_node == "ray" and len({run.node for part in parts for run in part}) > 1:
            return self._ray(asked, group, parts, ports)
        wide = any(len(part) > 1 for part in parts)
        pieces = [run for part in parts for run in part] if wide else _joined(parts)
        nodes = [run.node for run in pieces]
        common = self._common(asked, group, ports, nodes)
        if len(pieces) > 1:
            common = self._joined_up(asked, group, ports, nodes, common, wide=wide)
        started, made = 0, []
        for number, run in enumerate(pieces):
            words = list(common.words)
            if wide:
                words += ["--node-rank", str(number)]
            elif len(pieces) > 1:
                own = len(run.ranks) * group.layout.dp_attn // group.layout.size
                words += ["--data-parallel-size-local", str(own)]
                words += ["--data-parallel-start-rank", str(started)] if number else []
                started += own
            words += ["--headless"] if number else self._door(asked, common.ports["http"])
            opened = {k: v for k, v in common.ports.items() if k in _SHARED or not number}
            name = group.name if len(pieces) == 1 else f"{group.name}-part-{number}"
            made.append(self._process(asked, group, name, run, words, opened))
        return tuple(made)

    def _door(self, asked: Asked, port: int) -> list[str]:
        """How the process that answers requests is reached."""
        return ["--host", asked.listen, "--port", str(port)]

    def _parts(self, asked: Asked, group: Group) -> list[list[Run]]:
        """For every attention replica its ranks in vLLM's order, cut where the node changes."""
        return [runs(asked, group, order) for order in attention_replicas(group.layout)]

    def _common(self, asked: Asked, group: Group, ports: Ports, nodes: Sequence[int]) -> "_Common":
        """What all processes of a group share."""
        base = engine_words(asked, group)
        words = [*self.program, *base[2:], "--served-model-name", asked.called]
        opened = {"http": ports.take("http", nodes[:1])}
        if group.role != "both":
            words += ["--kv-transfer-config", json.dumps(self._transfer(asked, group))]
            channel = _CHANNELS[asked.connector]
            opened[channel.kind] = ports.take(channel.kind, nodes, group.layout.dp_attn * channel.ports)
        return _Common(tuple(words), opened)

    def _transfer(self, asked: Asked, group: Group) -> dict[str, str]:
        """A pool's KV transfer. NIXL read no role from it before 0.32, which asks for the pool's own."""
        roles = {"prefill": "kv_producer", "decode": "kv_consumer"}
        old = asked.connector == "nixl" and version_key(asked.engine.version) < version_key(_NIXL_ROLES)
        return {
            "kv_connector": self.connectors[asked.connector], "kv_role": "kv_both" if old else roles[group.role]
        }  # fmt: skip

    def _joined_up(
        self, asked: Asked, group: Group, ports: Ports, nodes: Sequence[int], common: "_Common", *, wide: bool
    ) -> "_Common":
        """How the processes of a group find each other. wide: attention replicas span nodes."""
        head, words, opened = asked.host(nodes[0]), list(common.words), dict(common.ports)
        if wide:
            opened["rendezvous"] = ports.take("dist", nodes)
            words += ["--nnodes", str(len(nodes)), "--master-addr", head, "--master-port", str(opened["rendezvous"])]
        else:
            words += ["--data-parallel-address", head]
        if group.layout.dp_attn > 1:
            opened["rpc"] = ports.take("rpc", nodes)
            words += ["--data-parallel-rpc-port", str(opened["rpc"])]
        return _Common(tuple(words), opened)

    def _process(
        self, asked: Asked, group: Group, name: str, run: Run, words: Sequence[str], ports: dict[str, int]
    ) -> Process:
        environment = network.environment(asked, group, run.node, run.ranks) | _key(asked, ports)
        # Of a pod that is one of several the address is known when it runs.
        several = len({asked.cluster.node_of(d) for d in group.devices}) > 1
        address = asked.host(run.node) if asked.far and several else network.own_address(asked, run.node)
        if address and not asked.alone:
            environment["VLLM_HOST_IP"] = address
        if group.role != "both":
            environment |= side_channel(asked, run.node, ports)
        numa = network.numa(asked, group, run.node, run.ranks)
        front: tuple[str, ...] = ()
        if numa and self.binds_ranks(asked):
            words = (*words, "--numa-bind", "--numa-bind-nodes", *map(str, numa))
        else:
            front = network.bound(numa)
        return Process(
            name=name, group=group.name, role=group.role, node=run.node, host=asked.host(run.node),
            devices=local(asked, group, run.ranks), ranks=run.ranks, command=(*front, *words), environment=environment,
            ports=ports,
        )  # fmt: skip

    def _ray(self, asked: Asked, group: Group, parts: list[list[Run]], ports: Ports) -> tuple[Process, ...]:
        """A Ray cluster of the group's own devices, and the command on its head."""
        by_node = ray.ranks_by_node(parts)
        nodes = list(by_node)
        common = self._common(asked, group, ports, nodes)
        joined = ray.cluster(asked, group, by_node, ports.take("gcs", nodes))
        head, layout, environment = asked.host(nodes[0]), group.layout, joined.environment
        words = [*common.words, "--distributed-executor-backend", "ray"]
        if layout.dp_attn > 1:
            # Without it all of them are looked for on the head (arg_utils.py, create_engine_config).
            words += ["--data-parallel-size-local", str(layout.dp_attn // len(nodes))]
            words += ["--data-parallel-backend", "ray", "--data-parallel-address", head]
        environment |= _key(asked, common.ports)
        if group.role != "both":
            environment |= side_channel(asked, nodes[0], common.ports)
        front = Process(
            name=group.name, group=group.name, role=group.role, node=nodes[0], host=head, before=joined.before,
            command=(*words, *self._door(asked, common.ports["http"])), environment=environment, ports=common.ports,
        )  # fmt: skip
        return (front, *joined.processes)

    def binds_ranks(self, asked: Asked) -> bool:
        # Ray starts the ranks itself.
        return asked.multi_node != "ray" and version_key(asked.engine.version) >= version_key(_NUMA_SINCE)

    def files(self, asked: Asked) -> dict[str, str]:
        return ray.files(asked)

    def differs(self, asked: Asked, layout: Layout) -> tuple[str, ...]:
        if asked.multi_node == "ray":
            return (
                "Ray decides which rank takes which of a group's devices: the plan's order inside a group is not kept",
            )
        return ()

    def router(self, asked: Asked, processes: Sequence[Process]) -> tuple[Process, dict[str, str]] | None:
        doors = [p for p in processes if p.url]
        if len(doors) == 1:
            return None
        if asked.groups[0].role == "both":
            words = ["vllm-router", "--worker-urls", *(p.url for p in doors), "--policy", "power_of_two"]
        else:
            if asked.keyed:  # it puts the key of its own environment on whatever it is asked (vllm_pd_router.rs)
                raise Refused(
                    "vllm-router opens pools that ask for a key to anybody", where=key.WHERE,
                    expected="--router linkwise, which passes on what a request says (pools over nixl)",
                )  # fmt: skip
            words = ["vllm-router", "--vllm-pd-disaggregation"]
            for p in doors:
                words += ["--prefill", p.url, *_bootstrap(p)] if p.role == "prefill" else ["--decode", p.url]
            words += ["--policy", "power_of_two"]
            words += ["--kv-connector", "mooncake"] if asked.connector == "mooncake" else []
        # It gives up after 600 s otherwise, and what starts a node then ends all of it.
        words += ["--worker-startup-timeout-secs", str(round(asked.start_s))]
        return router_process(asked, [*words, "--host", asked.listen, "--port", str(asked.port)]), {}


def _key(asked: Asked, ports: Mapping[str, int]) -> dict[str, str]:
    """Where vLLM finds the key that its server asks for."""
    return {"VLLM_API_KEY": KEY} if asked.keyed and "http" in ports else {}


def _bootstrap(prefill: Process) -> list[str]:
    """The port that the router asks a prefill group's connector at (--prefill URL [PORT]); it takes 8998 otherwise."""
    return [str(prefill.ports["bootstrap"])] if "bootstrap" in prefill.ports else []


class _Common(NamedTuple):
    """Words and ports all processes of a group share."""

    words: tuple[str, ...]
    ports: dict[str, int]


def attention_replicas(layout: Layout) -> list[tuple[int, ...]]:
    """The plan's ranks of every attention replica in vLLM's order: stages, then prefill context, then tensor."""
    pp, cp, dp, tp = layout.pp, layout.cp, layout.dp_attn, layout.tp

    def rank(p: int, c: int, d: int, t: int) -> int:
        return ((p * cp + c) * dp + d) * tp + t

    return [
        tuple(rank(p, c, d, t) for p in range(pp) for c in range(cp) for t in range(tp)) for d in range(dp)
    ]  # fmt: skip


def _joined(parts: list[list[Run]]) -> list[Run]:
    """Whole attention replicas that follow each other on a node, together."""
    found: list[Run] = []
    for (run,) in parts:
        if found and found[-1].node == run.node:
            found[-1] = Run(run.node, (*found[-1].ranks, *run.ranks))
        else:
            found.append(run)
    return found


def _nixl(asked: Asked, group: Group) -> Refusal | None:
    """vllm/config/vllm.py and nixl/connector.py: which sharded KV the NIXL connector moves."""
    layout = group.layout
    shards, across = layout.dcp * layout.cp, max(layout.tp, layout.cp)
    if layout.cp > 1 and group.role == "decode":
        return Refusal(reason=f"{group.name}: cp {layout.cp}: NIXL takes KV from prefill ranks, not to them")
    if shards > 1 and (not asked.model.mla_latent or shards != across):
        return Refusal(
            reason=f"{group.name}: dcp {layout.dcp} x cp {layout.cp}: NIXL moves KV that is whole on each rank, or"
            f" latent KV over all {across}",
            change="dcp 1",
        )
    return None


def side_channel(asked: Asked, node: int, ports: Mapping[str, int]) -> dict[str, str]:
    """Where a pool's connector is found by the other pool."""
    port = str(ports[_CHANNELS[asked.connector].kind])
    if asked.connector == "mooncake":
        return {"VLLM_MOONCAKE_BOOTSTRAP_PORT": port}
    return {"VLLM_NIXL_SIDE_CHANNEL_HOST": asked.host(node), "VLLM_NIXL_SIDE_CHANNEL_PORT": port}

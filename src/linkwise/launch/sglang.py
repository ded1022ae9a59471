"""SGLang: a process per node of a replica.

It numbers ranks as the plan does: stages, attention replicas, tensor. Every node has the same number of them, whole
stages or equal parts of one (managers/scheduler launch, _calculate_rank_ranges).
"""

from collections.abc import Sequence

from linkwise.engine.base import Refusal
from linkwise.launch import network
from linkwise.launch.base import Asked, Launcher, Ports, Run, engine_words, local, router_process, runs, uneven
from linkwise.launch.types import KEY, Group, Process

_FLAGS = frozenset({
    "--host", "--port", "--served-model-name", "--nnodes", "--node-rank", "--dist-init-addr", "--nccl-init-addr",
    "--base-gpu-id", "--gpu-id-step", "--disaggregation-mode", "--disaggregation-transfer-backend",
    "--disaggregation-bootstrap-port", "--disaggregation-ib-device",
})  # fmt: skip


class Sglang(Launcher):
    """SGLang's own server."""

    name = "sglang"
    flags = _FLAGS
    takes_key = True
    connectors = {"sglang_mooncake": "mooncake"}
    program: tuple[str, ...] = ("python3", "-m", "sglang.launch_server")

    def refuses(self, asked: Asked, group: Group) -> Refusal | None:
        found = self._runs(asked, group)
        if refused := uneven(group, found, "SGLang"):
            return refused
        nodes, pp, ranks = len(found), group.layout.pp, group.layout.stage_size
        if pp % nodes == 0 or (nodes % pp == 0 and ranks % (nodes // pp) == 0):
            return None
        return Refusal(
            reason=f"{group.name}: pp {pp} over {nodes} nodes: SGLang puts whole stages on a node, or one stage on"
            " whole nodes",
            change=f"a pp that divides {nodes}, or that {nodes} divides",
        )

    def processes(self, asked: Asked, group: Group, ports: Ports) -> tuple[Process, ...]:
        found = self._runs(asked, group)
        nodes = [run.node for run in found]
        base = engine_words(asked, group)
        opened = {"http": ports.take("http", nodes[:1])}
        words = [*self.program, *base[3:], "--served-model-name", asked.called]
        words += self._door(asked, opened["http"])
        words += self._pool(asked, group, ports, nodes, opened)
        if len(found) > 1:
            opened["rendezvous"] = ports.take("dist", nodes)
            words += ["--nnodes", str(len(found)), "--dist-init-addr", f"{asked.host(nodes[0])}:{opened['rendezvous']}"]
        return tuple(
            self._process(asked, group, number, run, words, opened if not number else {}, len(found))
            for number, run in enumerate(found)
        )

    def _door(self, asked: Asked, port: int) -> list[str]:
        """How the process that answers requests is reached."""
        return ["--host", asked.listen, "--port", str(port), *_key(asked)]

    def _runs(self, asked: Asked, group: Group) -> list[Run]:
        return runs(asked, group, range(group.layout.size))

    def _pool(
        self, asked: Asked, group: Group, ports: Ports, nodes: Sequence[int], opened: dict[str, int]
    ) -> list[str]:
        """Words of a prefill or decode pool."""
        if group.role == "both":
            return []
        words = ["--disaggregation-mode", group.role]
        words += ["--disaggregation-transfer-backend", self.connectors[asked.connector]]
        if group.role == "prefill":
            opened["bootstrap"] = ports.take("bootstrap", nodes)
            words += ["--disaggregation-bootstrap-port", str(opened["bootstrap"])]
        nics = network.rdma(asked.cluster, [d for d in group.devices if asked.cluster.node_of(d) == nodes[0]])
        return words + (["--disaggregation-ib-device", ",".join(nics)] if nics else [])

    def _process(
        self, asked: Asked, group: Group, number: int, run: Run, words: Sequence[str], ports: dict[str, int], count: int
    ) -> Process:
        numa = network.numa(asked, group, run.node, run.ranks)
        own = ["--node-rank", str(number)] if count > 1 else []
        if len(set(numa)) > 1:
            # By the number of a rank's device among those the process sees (numa_utils.py, configure_subprocess).
            own += ["--numa-node", *map(str, numa)]
        return Process(
            name=group.name if count == 1 else f"{group.name}-part-{number}", group=group.name, role=group.role,
            node=run.node, host=asked.host(run.node), devices=local(asked, group, run.ranks), ranks=run.ranks,
            command=(*network.bound(numa), *words, *own),
            environment=network.environment(asked, group, run.node, run.ranks), ports=ports,
        )  # fmt: skip

    def binds_ranks(self, asked: Asked) -> bool:
        return True

    def router(self, asked: Asked, processes: Sequence[Process]) -> tuple[Process, dict[str, str]] | None:
        doors = [p for p in processes if p.url]
        if len(doors) == 1:
            return None
        words = ["python3", "-m", "sglang_router.launch_router"]
        if asked.groups[0].role == "both":
            words += ["--worker-urls", *(p.url for p in doors)]
        else:
            words.append("--pd-disaggregation")
            for p in doors:
                words += ["--prefill", p.url, str(p.ports["bootstrap"])] if p.role == "prefill" else ["--decode", p.url]
        # It gives up on workers that start for longer otherwise, and ends.
        words += ["--worker-startup-timeout-secs", str(round(asked.start_s))]
        # It asks for the key it has for its workers (sgl-model-gateway, middleware.rs).
        return router_process(asked, [*words, "--host", asked.listen, "--port", str(asked.port), *_key(asked)]), {}


def _key(asked: Asked) -> list[str]:
    return ["--api-key", KEY] if asked.keyed else []

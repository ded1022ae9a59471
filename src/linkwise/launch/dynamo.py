"""NVIDIA Dynamo: its workers around vLLM or SGLang, its frontend as the router.

Workers take the engine's own flags beside Dynamo's (components/src/dynamo). They find each other through Dynamo's
discovery, so none of them opens a door of its own; requests go to the frontend.
"""

from collections.abc import Sequence

import msgspec

from linkwise.core.layout import Layout
from linkwise.engine.base import Refusal
from linkwise.launch.base import Asked, Launcher, Ports, router_process
from linkwise.launch.sglang import Sglang
from linkwise.launch.types import Group, Process
from linkwise.launch.vllm import Vllm

_NOTE = (
    "Dynamo's processes find each other through its discovery: set ETCD_ENDPOINTS and NATS_SERVER where they are on"
    " several nodes (on one node DYN_DISCOVERY_BACKEND=file needs neither)"
)


class _Vllm(Vllm):
    program = ("python3", "-m", "dynamo.vllm", "--model")

    def _door(self, asked: Asked, port: int) -> list[str]:
        return []


class _Sglang(Sglang):
    program = ("python3", "-m", "dynamo.sglang")

    def _door(self, asked: Asked, port: int) -> list[str]:
        return []


class Dynamo(Launcher):
    """Dynamo around the plan's own engine."""

    name = "dynamo"
    connectors = {"nixl": "NixlConnector", "sglang_mooncake": "mooncake"}

    def refuses(self, asked: Asked, group: Group) -> Refusal | None:
        around = self._around(asked)
        if around is None:
            return Refusal(
                reason=f"Dynamo's worker for {asked.engine.name} takes other settings, which are not written yet",
                change="--engine trtllm, or a plan made for vllm or sglang",
            )
        if group.layout.dp_attn > 1 and asked.engine.name == "vllm" and not _single(asked, group):
            return Refusal(
                reason=f"{group.name}: dp_attn {group.layout.dp_attn} over several nodes: how Dynamo's frontend reaches"
                " the attention replicas of other nodes is not known",
                change="a group inside one node, or --engine vllm",
            )
        return around.refuses(asked, group)

    def processes(self, asked: Asked, group: Group, ports: Ports) -> tuple[Process, ...]:
        around = self._around(asked)
        assert around is not None, "refused before"  # noqa: S101 - a broken promise of the caller's
        return tuple(self._worker(asked, process, ports) for process in around.processes(asked, group, ports))

    def _worker(self, asked: Asked, process: Process, ports: Ports) -> Process:
        words = list(process.command)
        if process.role != "both" and asked.engine.name == "vllm":
            words += ["--disaggregation-mode", process.role]
        system = ports.take("metrics", [process.node])
        return msgspec.structs.replace(
            process,
            command=tuple(words),
            environment=process.environment | {"DYN_SYSTEM_PORT": str(system)},
            ports={name: port for name, port in process.ports.items() if name != "http"} | {"system": system},
        )

    def _around(self, asked: Asked) -> Launcher | None:
        found: dict[str, Launcher] = {"vllm": _Vllm(), "sglang": _Sglang()}
        return found.get(asked.engine.name)

    def differs(self, asked: Asked, layout: Layout) -> tuple[str, ...]:
        around = self._around(asked)
        return around.differs(asked, layout) if around else ()

    def own_flags(self, asked: Asked) -> frozenset[str]:
        around = self._around(asked)
        return (around.flags if around else frozenset()) | {"--disaggregation-mode"}

    def binds_ranks(self, asked: Asked) -> bool:
        around = self._around(asked)
        return around is not None and around.binds_ranks(asked)

    def notes(self, asked: Asked) -> tuple[str, ...]:
        return (_NOTE,)

    def router(self, asked: Asked, processes: Sequence[Process]) -> tuple[Process, dict[str, str]] | None:
        words = ["python3", "-m", "dynamo.frontend", "--http-host", asked.listen, "--http-port", str(asked.port)]
        return router_process(asked, [*words, "--router-mode", "kv" if len(asked.groups) > 1 else "round-robin"]), {}


def _single(asked: Asked, group: Group) -> bool:
    return len({asked.cluster.node_of(d) for d in group.devices}) == 1

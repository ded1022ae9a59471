"""TensorRT-LLM: one rank per device, started by mpirun or srun, which is told the devices of each node.

It numbers ranks as the plan does: stages, then the ranks of a stage (mapping.py). What flags cannot say is in a
settings file per pool.
"""

from collections.abc import Sequence

from linkwise.core.layout import Layout
from linkwise.engine.base import Refusal
from linkwise.launch import network
from linkwise.launch.base import Asked, Launcher, Ports, Run, engine_words, local, router_process, runs, uneven
from linkwise.launch.types import Group, Process

SETTINGS = "trtllm.yaml"
FRONT = "trtllm-front.yaml"
BALANCER = "nginx.conf"


_FLAGS = frozenset({
    "--host", "--port", "--served-model-name", "--gpus-per-node", "--extra-llm-api-options", "--config",
    "--server-role", "--metadata-server-config-file", "--disagg-cluster-uri",
})  # fmt: skip


class Trtllm(Launcher):
    """trtllm-serve."""

    name = "trtllm"
    flags = _FLAGS
    connectors = {"trtllm": "DEFAULT"}

    def refuses(self, asked: Asked, group: Group) -> Refusal | None:
        found = self._runs(asked, group)
        nodes = [run.node for run in found]
        # srun numbers ranks along its own order of nodes, which is the plan's where the names come from Slurm.
        if asked.multi_node == "slurm" and len(nodes) > 1 and (asked.hosts or nodes != sorted(nodes)):
            return Refusal(
                reason=f"{group.name} is planned on nodes {', '.join(asked.host(n) for n in nodes[:8])} in this order:"
                " srun numbers the ranks of TensorRT-LLM along Slurm's own",
                change="no --hosts" if asked.hosts else "--multi-node native",
            )
        return uneven(group, found, "TensorRT-LLM")

    def processes(self, asked: Asked, group: Group, ports: Ports) -> tuple[Process, ...]:
        found = self._runs(asked, group)
        nodes = [run.node for run in found]
        opened = {"http": ports.take("http", nodes[:1])}
        words = engine_words(asked, group)
        if "--extra_llm_api_options" in words:
            at = words.index("--extra_llm_api_options")
            del words[at : at + 2]
        if settings(asked, group):
            words += ["--extra_llm_api_options", settings_name(group)]
        words += ["--served_model_name", asked.called, "--host", asked.listen, "--port", str(opened["http"])]
        if len(found) > 1:
            words = ["trtllm-llmapi-launch", *words, "--gpus_per_node", str(len(found[0].ranks))]
        parts = tuple(
            Process(
                name=group.name if len(found) == 1 else f"{group.name}-part-{number}", group=group.name,
                role=group.role, node=run.node, host=asked.host(run.node), devices=local(asked, group, run.ranks),
                ranks=run.ranks, command=(*self._bound(asked, group, run), *words),
                environment=network.environment(asked, group, run.node, run.ranks),
                ports=opened if len(found) == 1 else {}, started_by=group.name if len(found) > 1 else "",
            )
            for number, run in enumerate(found)
        )  # fmt: skip
        if len(found) == 1:
            return parts
        launcher = Process(
            name=group.name, group=group.name, role=group.role, node=nodes[0], host=asked.host(nodes[0]),
            command=_start(asked, parts), ports=opened,
        )  # fmt: skip
        return (launcher, *parts)

    def _runs(self, asked: Asked, group: Group) -> list[Run]:
        return runs(asked, group, range(group.layout.size))

    def _bound(self, asked: Asked, group: Group, run: Run) -> tuple[str, ...]:
        return network.bound(network.numa(asked, group, run.node, run.ranks))

    def differs(self, asked: Asked, layout: Layout) -> tuple[str, ...]:
        if 1 < layout.ep < layout.stage_size:
            return (
                f"TensorRT-LLM deals experts to neighbouring ranks (ep {layout.ep} inside, moe_tp {layout.moe_tp}"
                " outside), the plan the other way round: the same bytes, but between other pairs of devices",
            )
        return ()

    def files(self, asked: Asked) -> dict[str, str]:
        return {settings_name(g): text for g in asked.groups if (text := settings(asked, g))}

    def router(self, asked: Asked, processes: Sequence[Process]) -> tuple[Process, dict[str, str]] | None:
        doors = [p for p in processes if p.url]
        if len(doors) == 1:
            return None
        if asked.groups[0].role == "both":
            command = ["nginx", "-p", ".", "-c", BALANCER, "-g", "daemon off;"]
            return router_process(asked, command), {BALANCER: _balancer(asked, doors)}
        command = ["trtllm-serve", "disaggregated", "-c", FRONT]
        return router_process(asked, command), {FRONT: _front(asked, doors)}


def _start(asked: Asked, parts: Sequence[Process]) -> tuple[str, ...]:
    """What starts a rank for each device of every node, each node by its own script."""
    each = str(len(parts[0].ranks))
    if asked.multi_node == "slurm":
        script = f'exec bash "processes/{parts[0].group}-part-$SLURM_NODEID.sh"'
        # Without a number of its own, a step inside a step takes the outer one's (SLURM_NTASKS), one a node.
        words = ["srun", "--overlap", "--mpi=pmix", f"--nodes={len(parts)}", f"--ntasks={len(parts) * int(each)}"]
        words += [f"--ntasks-per-node={each}"]
        return (*words, f"--nodelist={','.join(p.host for p in parts)}", "bash", "-c", script)
    words = ["mpirun"]
    for number, part in enumerate(parts):
        words += [":"] if number else []
        words += ["-n", each, "--host", f"{part.host}:{each}", "bash", f"processes/{part.name}.sh"]
    return tuple(words)


def settings_name(group: Group) -> str:
    """The settings file of a group's pool."""
    return SETTINGS if group.role == "both" else f"{group.role}.yaml"


def settings(asked: Asked, group: Group) -> str:
    """Its text: the engine's own settings, and a pool's side of the KV transfer; "" when flags say everything."""
    own = asked.engine.files(group.layout, asked.options[group.role])
    text = "".join(own.values())
    if group.role == "both":
        return text
    if group.role == "prefill":
        # Context servers do not overlap steps (TensorRT-LLM docs, disaggregated serving).
        text += "disable_overlap_scheduler: true\n"
    text += f"cache_transceiver_config:\n  backend: {Trtllm.connectors[asked.connector]}\n"
    return text + (f"  max_tokens_in_buffer: {asked.prompt_tokens}\n" if asked.prompt_tokens else "")


def _front(asked: Asked, doors: Sequence[Process]) -> str:
    """What the disaggregated server reads: addresses of both pools."""
    lines = [f"hostname: {asked.listen}", f"port: {asked.port}", "backend: pytorch"]
    for key, role in (("context_servers", "prefill"), ("generation_servers", "decode")):
        urls = [f"{p.host}:{p.ports['http']}" for p in doors if p.role == role]
        lines += [f"{key}:", f"  num_instances: {len(urls)}", "  urls:", *(f'    - "{url}"' for url in urls)]
    return "\n".join(lines) + "\n"


def _balancer(asked: Asked, doors: Sequence[Process]) -> str:
    """nginx in front of replicas, the one with the fewest open requests first."""
    servers = "".join(f"    server {p.host}:{p.ports['http']};\n" for p in doors)
    return (
        "events {}\nhttp {\n  upstream replicas {\n    least_conn;\n"
        + servers
        + f"  }}\n  server {{\n    listen {asked.listen}:{asked.port};\n    location / {{\n"
        "      proxy_pass http://replicas;\n      proxy_http_version 1.1;\n      proxy_buffering off;\n"
        "      proxy_read_timeout 3600s;\n    }\n  }\n}\n"
    )

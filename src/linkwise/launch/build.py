"""From a plan, or a handoff's two pools, to a Deployment: groups on devices, processes, a router, and what differs."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from linkwise._version import __version__
from linkwise.cluster.types import Cluster
from linkwise.core.errors import InputError, Refused
from linkwise.engine import registry as engines
from linkwise.engine.base import Engine, Options, Refusal
from linkwise.launch import network, registry
from linkwise.launch.base import FRONT_PORT, Asked, Launcher, Ports, own_router
from linkwise.launch.types import Deployment, Group, MultiNode, Process, Served, check_host, check_word
from linkwise.model.types import Model
from linkwise.plan.handoff_types import Handoff
from linkwise.plan.ledger import ledger
from linkwise.plan.types import Plan

_SPARE = 0.9  # of the KV a plan expects: what a longest request may take of it


class Choices(msgspec.Struct, frozen=True, kw_only=True):
    """What a user says beside the plan. engine: "" = the plan's. weights: a folder, "" = the plan's model by name.

    hosts: addresses of the cluster's nodes in order. extra: words added to every engine command; they may not change
    the layout. router: "linkwise" = our own in front. port: where requests go, on the first node.
    """

    engine: str = ""
    weights: str = ""
    called: str = ""
    multi_node: MultiNode = "native"
    hosts: tuple[str, ...] = ()
    interface: str = ""
    extra: tuple[str, ...] = ()
    router: str = ""
    port: int = FRONT_PORT


class Prepared(NamedTuple):
    """What a launcher is asked for, all choices settled and nothing refused."""

    asked: Asked
    launcher: Launcher
    served: Served
    differs: tuple[str, ...]
    notes: tuple[str, ...]


def deployment(source: Plan | Handoff, model: Model, cluster: Cluster, choices: Choices) -> Deployment:
    """Everything to be started. model, cluster: the source's own. Raises as `prepare`."""
    return assemble(*prepare(source, model, cluster, choices))


def prepare(source: Plan | Handoff, model: Model, cluster: Cluster, choices: Choices) -> Prepared:
    """Groups on devices and the engine's settings. model, cluster: the source's own.

    Raises Refused (exit code 1) where the engine cannot express the plan, InputError for choices that cannot be.
    """
    own = engines.get(source.engine, _version(source))
    launcher = registry.get(choices.engine or own.name)
    engine = own if launcher.name in {"dynamo", own.name} else engines.get(launcher.name)
    if choices.multi_node not in launcher.multi_node:
        raise Refused(
            f"{launcher.name} is not started through {choices.multi_node} here",
            where="--multi-node", expected="one of " + ", ".join(launcher.multi_node),
        )  # fmt: skip
    for name in choices.hosts:
        check_host(name, "--hosts")
    options, differs = _options(source, model, cluster, own, engine)
    groups = _groups(source, cluster)
    asked = Asked(
        model=model,
        weights=_word(choices.weights or model.served_as or model.name),
        called=_word(choices.called or choices.weights.rstrip("/").rsplit("/", 1)[-1] or model.name),
        cluster=cluster,
        engine=engine,
        options=options,
        groups=groups,
        multi_node=choices.multi_node,
        hosts=choices.hosts,
        interface=network.check_interface(choices.interface),
        connector=_connector(source, launcher, own),
        prompt_tokens=source.prompt_tokens if isinstance(source, Handoff) else 0,
        extra=choices.extra,
        router=_router(choices.router, launcher, groups, engine),
        port=_port(choices.port),
    )
    _refuse(asked, launcher)
    differs += launcher.differs(asked, groups[0].layout) + _extra(asked)
    return Prepared(asked, launcher, served(source), differs, _notes(source, asked))


def _port(number: int) -> int:
    if not 1 <= number <= 65_535 or Ports.given(number):
        raise InputError(f"port {number}", where="--port", expected="1..65535, outside the ports of workers")
    return number


def _router(name: str, launcher: Launcher, groups: Sequence[Group], engine: Engine) -> str:
    if name not in {"", "engine", "linkwise"}:
        raise InputError(repr(name[:40]), where="--router", expected="engine or linkwise")
    if name != "linkwise":
        return ""
    if launcher.name == "dynamo" or (groups[0].role != "both" and engine.name != "vllm"):
        raise Refused(
            f"our router does not speak to {launcher.name}{'' if launcher.name == 'dynamo' else ' pools'}",
            where="--router", expected="engine",
        )  # fmt: skip
    return name


def _extra(asked: Asked) -> tuple[str, ...]:
    """What words added by hand change. Raises Refused where that is the layout."""
    if not asked.extra:
        return ()
    said = []
    for layout in dict.fromkeys(group.layout for group in asked.groups):
        plain = asked.engine.command(asked.weights, layout, asked.options)
        before, after = (asked.engine.parse(words, model=asked.model) for words in (plain, [*plain, *asked.extra]))
        if (before.layout, before.replicas) != (after.layout, after.replicas):
            raise Refused(
                f"{' '.join(asked.extra)[:120]} makes {after.replicas} x ({after.layout}) of {layout}",
                where="--engine-args", hint="Plan that layout",
            )  # fmt: skip
        for field in before.options.__struct_fields__:
            was, now = getattr(before.options, field), getattr(after.options, field)
            if was != now:
                said.append(f"{field} is {now} by --engine-args, {was} in the plan")
    return tuple(dict.fromkeys(said))


def _version(source: Plan | Handoff) -> str | None:
    return getattr(source, "engine_version", None)


def _word(text: str) -> str:
    if text.startswith("-"):
        raise InputError(repr(text[:60]), where="--weights", expected="a model's name or folder, no flag")
    return check_word(text, "the model's name")


def served(source: Plan | Handoff) -> Served:
    """What a benchmark of it asks for."""
    if isinstance(source, Handoff):
        output = source.verdict.question.output_tokens if getattr(source, "verdict", None) else 256  # type: ignore[attr-defined]
        return Served(isl_tokens=source.prompt_tokens, osl_tokens=output, rate_per_s=source.rate_per_s)
    asks = source.workload
    many = asks.concurrency or (None if asks.rate_per_s else source.chosen.point.batch * source.replicas)
    return Served(
        isl_tokens=asks.isl_tokens, osl_tokens=asks.osl_tokens, rate_per_s=asks.rate_per_s, concurrency=many
    )  # fmt: skip


def _options(
    source: Plan | Handoff, model: Model, cluster: Cluster, own: Engine, engine: Engine
) -> tuple[Options, tuple[str, ...]]:
    """The engine's settings, written out so that a later release's defaults change nothing, and what differs."""
    if isinstance(source, Handoff):
        return Options(kv_dtype=None if source.kv_dtype == "auto" else source.kv_dtype), ()
    if engine.name != own.name:
        return source.options, _other_engine(source, model, cluster, own, engine)
    chosen, now = source.options, source.resolved
    length, differs = _longest(source, model)
    return msgspec.structs.replace(
        chosen,
        memory_utilization=now.memory_utilization,
        max_batched_tokens=now.max_batched_tokens,
        max_seqs=now.max_seqs,
        max_model_len=length,
    ), differs


def _longest(plan: Plan, model: Model) -> tuple[int | None, tuple[str, ...]]:
    """The longest request to allow: an engine does not start when its KV cannot hold one."""
    asked, held = plan.resolved.max_model_len, plan.ledger.kv_tokens
    if held is None or asked <= held * _SPARE:
        return plan.options.max_model_len, ()
    length = max(plan.workload.total_tokens, int(held * _SPARE))
    if length >= asked:
        return plan.options.max_model_len, ()
    return length, (
        f"the longest request is {length} tokens, not {asked}: KV is planned to hold {held} tokens, and {plan.engine}"
        " does not start when one request may need more",
    )


def _other_engine(plan: Plan, model: Model, cluster: Cluster, own: Engine, engine: Engine) -> tuple[str, ...]:
    """What the plan's layout is under another engine. Raises Refused where it does not run or does not fit there."""
    refusal = engine.refuses(model, plan.layout, devices_per_node=cluster.devices_per_node)
    if refusal is not None:
        raise _refused(refusal, f"{plan.layout} under {engine.name}")
    try:
        engine.command("model", plan.layout, plan.options)
        there = engine.resolve(plan.options, model, cluster.accelerator, plan.layout)
    except InputError as error:
        raise Refused(error.message, where=f"{own.name}'s plan under {engine.name}", expected=error.expected) from None
    memory = ledger(model, cluster, engine, plan.layout, plan.options, plan.workload)
    if memory.shortfall is not None:
        raise Refused(
            f"does not fit under {engine.name}: {memory.shortfall.reason}",
            where=f"{plan.layout}", hint=memory.shortfall.change,
        )  # fmt: skip
    said = [f"the plan was made for {own.name} {own.version}: times and figures are not those of {engine.name}"]
    for field in there.__struct_fields__:
        before, after = getattr(plan.resolved, field), getattr(there, field)
        if before != after:
            said.append(f"{field} {after}, the default of {engine.name}; the plan has {before}")
    if memory.kv_tokens != plan.ledger.kv_tokens:
        said.append(f"KV tokens of a replica: {memory.kv_tokens} under {engine.name}, {plan.ledger.kv_tokens} planned")
    return tuple(said)


def _groups(source: Plan | Handoff, cluster: Cluster) -> tuple[Group, ...]:
    if isinstance(source, Plan):
        return tuple(
            Group(name=f"replica-{number}", role="both", layout=source.layout, devices=row)
            for number, row in enumerate(source.rank_grid)
        )
    return _pools(source, cluster)


def _pools(source: Handoff, cluster: Cluster) -> tuple[Group, ...]:
    """The pair as the handoff places it, and the rest of both pools on devices that are left, nodes kept whole."""
    verdict = getattr(source, "verdict", None)
    wanted = (verdict.prefill_groups, verdict.decode_groups) if verdict and verdict.prefill_groups else (1, 1)
    placed: list[Group] = []
    used: set[int] = set()
    for role, layout in (("prefill", source.prefill), ("decode", source.decode)):
        ranks = sorted((r for r in source.ranks if r.side == role), key=lambda r: r.rank)
        devices = tuple(r.device for r in ranks)
        if len(devices) != layout.size or used & set(devices) or not all(0 <= d < cluster.size for d in devices):
            raise InputError(f"ranks of {role}: {devices}"[:120], where="handoff", expected=f"{layout.size} devices")
        placed.append(Group(name=f"{role}-0", role=role, layout=layout, devices=devices))  # type: ignore[arg-type]
        used |= set(devices)
    for role, layout, count in (("prefill", source.prefill, wanted[0]), ("decode", source.decode, wanted[1])):
        for number in range(1, count):
            row = _free(cluster, layout.size, used)
            if row is None:
                raise Refused(
                    f"{wanted[0]} prefill and {wanted[1]} decode groups do not pack into whole nodes",
                    where=f"{role}-{number} of {layout.size} devices", expected="groups that divide a node",
                )  # fmt: skip
            placed.append(Group(name=f"{role}-{number}", role=role, layout=layout, devices=row))  # type: ignore[arg-type]
            used |= set(row)
    return tuple(sorted(placed, key=lambda g: (g.role != "prefill", int(g.name.rsplit("-", 1)[1]))))


def _free(cluster: Cluster, size: int, used: set[int]) -> tuple[int, ...] | None:
    """The first free devices in order that are part of a node, or whole nodes."""
    per_node = cluster.devices_per_node
    step = size if size <= per_node and per_node % size == 0 else per_node
    for first in range(0, cluster.size - size + 1, min(step, per_node)):
        row = range(first, first + size)
        inside = cluster.node_of(first) == cluster.node_of(row[-1]) or (first % per_node == 0 and size % per_node == 0)
        if inside and not used.intersection(row):
            return tuple(row)
    return None


def _connector(source: Plan | Handoff, launcher: Launcher, own: Engine) -> str:
    if isinstance(source, Plan):
        return ""
    if launcher.name not in {"dynamo", own.name}:
        raise Refused(
            f"pools planned for {own.name} with {source.connector}", where="--engine", expected=f"{own.name} or dynamo",
            hint=f"linkwise handoff --engine {launcher.name} plans them for it",
        )  # fmt: skip
    if source.refused is not None:
        raise _refused(source.refused, "handoff")
    if source.connector not in launcher.connectors:
        raise Refused(
            f"connector {source.connector} is not written by this launcher", where="handoff",
            expected="one of " + (", ".join(launcher.connectors) or f"none: {launcher.name} joins no pools"),
        )  # fmt: skip
    return source.connector


def _refused(refusal: Refusal, where: str) -> Refused:
    return Refused(refusal.reason, where=where, hint=f"What helps: {refusal.change}" if refusal.change else "")


def _refuse(asked: Asked, launcher: Launcher) -> None:
    """Raises Refused for the first thing the engine cannot express."""
    refusal = network.visible_refusal(asked.cluster)
    if refusal is not None:
        raise _refused(refusal, asked.cluster.name)
    for layout in dict.fromkeys(group.layout for group in asked.groups):
        refusal = asked.engine.refuses(asked.model, layout, devices_per_node=asked.cluster.devices_per_node)
        if refusal is not None:
            raise _refused(refusal, f"{layout} under {asked.engine.name} {asked.engine.version}")
    for group in asked.groups:
        refusal = launcher.refuses(asked, group)
        if refusal is not None:
            raise _refused(refusal, f"launch --engine {launcher.name}")


def _notes(source: Plan | Handoff, asked: Asked) -> tuple[str, ...]:
    said = list(network.unnamed(asked))
    if not asked.alone and not asked.hosts:
        nodes = ", ".join(f"HOST_{node}" for node in asked.nodes[:4]) + (", ..." if len(asked.nodes) > 4 else "")
        said.append(f"addresses of nodes are not given: fill {nodes} in hosts.env, or give --hosts")
    if isinstance(source, Handoff) and not source.keeps_up:
        said.append(f"the route does not keep up with {source.rate_per_s:g} requests/s: {source.limiting}")
    return tuple(said)


def assemble(
    asked: Asked, launcher: Launcher, served: Served, differs: Sequence[str] = (), notes: Sequence[str] = ()
) -> Deployment:
    """Processes, router and files of what the launcher does not refuse."""
    # Without a router in front, the one group answers where a router would.
    ports = Ports(asked.port if len(asked.groups) == 1 and not asked.router else None)
    processes: list[Process] = []
    for group in asked.groups:
        processes += launcher.processes(asked, group, ports)
    files = launcher.files(asked)
    front = (own_router(asked), {}) if asked.router else launcher.router(asked, processes)
    if front is not None:
        processes.insert(0, front[0])
        files |= front[1]
    door = next(p for p in processes if p.url)
    return Deployment(
        version=__version__,
        engine=launcher.name,
        engine_version=asked.engine.version,
        model=asked.weights,
        called=asked.called,
        multi_node=asked.multi_node,
        groups=asked.groups,
        devices_per_node=asked.cluster.devices_per_node,
        hosts={node: asked.host(node) for node in asked.nodes},
        processes=tuple(processes),
        front=door.url,
        connector=asked.connector,
        served=served,
        differs=tuple(differs),
        notes=tuple(notes),
        files=files,
    )

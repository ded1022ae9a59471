"""From a plan, or a handoff's two pools, to a Deployment: groups on devices, processes, a router, and what differs."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from linkwise._version import __version__
from linkwise.cluster.types import Cluster
from linkwise.core.errors import InputError, Refused
from linkwise.engine import registry as engines
from linkwise.engine.base import Engine
from linkwise.launch import added, data_parallel, key, network, registry
from linkwise.launch.base import FRONT_PORT, START_S, Asked, Launcher, Ports, own_router
from linkwise.launch.settle import Source, refused, settle
from linkwise.launch.types import Deployment, Group, MultiNode, Process, Served, check_given, check_host
from linkwise.plan.handoff_pair import Pair, Pools, plain
from linkwise.plan.types import Plan


class Choices(msgspec.Struct, frozen=True, kw_only=True):
    """What a user says beside the plan. engine: "" = the plan's. weights: a folder, "" = the plan's model by name.

    hosts: addresses of the cluster's nodes in order. extra: words added to every engine command; they may not change
    the layout. router: "linkwise" = our own in front. port: where requests go, on the first node.
    start_s: how long a group may take until it serves, which routers and checks wait for. data_parallel: the replicas
    are ranks of one server. with_key: requests need a key, which the environment of what runs holds.
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
    start_s: float = START_S
    data_parallel: bool = False
    with_key: bool = False


class Prepared(NamedTuple):
    """What a launcher is asked for, all choices settled and nothing refused.

    notes: what to know of scripts on nodes. rate: how a handoff's rate and its devices go together, pods or not.
    """

    asked: Asked
    launcher: Launcher
    served: Served
    differs: tuple[str, ...]
    notes: tuple[str, ...]
    rate: tuple[str, ...]


def prepare(source: Source, choices: Choices) -> Prepared:
    """Groups on devices and the engine's settings.

    Raises Refused (exit code 1) where the engine cannot express the plan, InputError for choices that cannot be.
    """
    model, cluster = source.served if isinstance(source, Pair) else source.model, source.cluster
    own = engines.get(source.engine, source.engine_version)
    launcher = registry.get(choices.engine or own.name)
    engine = own if launcher.name in {"dynamo", own.name} else engines.get(launcher.name)
    if choices.multi_node not in launcher.multi_node:
        raise Refused(
            f"{launcher.name} is not started through {choices.multi_node} here",
            where="--multi-node", expected="one of " + ", ".join(launcher.multi_node),
        )  # fmt: skip
    _check_hosts(choices)
    if isinstance(source, Pair):
        _refuse_pools(source.pools)
    connector = _connector(source, launcher, own)
    settled = settle(source, model, cluster, own, engine)
    groups = _groups(source, cluster)
    asked = Asked(
        model=model,
        weights=_word(choices.weights or model.served_as or model.name, "--weights"),
        called=_word(choices.called or model.name, "--name"),
        cluster=cluster,
        engine=engine,
        options=settled.options,
        groups=groups,
        multi_node=choices.multi_node,
        hosts=choices.hosts,
        interface=network.check_interface(choices.interface),
        connector=connector,
        prompt_tokens=source.prompt_tokens if isinstance(source, Pair) else 0,
        extra=tuple(check_given(word, "--engine-args") for word in choices.extra),
        router=_router(choices.router, launcher, groups, engine, connector),
        port=_port(choices.port),
        start_s=choices.start_s,
        keyed=choices.with_key,
    )
    _refuse(asked, launcher)
    added.check(asked, launcher)
    differs = settled.differs + launcher.differs(asked, groups[0].layout) + added.differs(asked)
    if choices.data_parallel:
        asked = data_parallel.together(asked, launcher)
        _refuse_processes(asked, launcher)
        added.check(asked, launcher)
        differs += (*added.differs(asked), data_parallel.DIFFERS)
    return Prepared(
        asked, launcher, served(source), tuple(dict.fromkeys(differs)), _notes(asked, launcher),
        _rate(source, groups),
    )  # fmt: skip


def _check_hosts(choices: Choices) -> None:
    for name in choices.hosts:
        check_host(name, "--hosts")
    if choices.multi_node != "slurm":
        return
    # slurm.sh finds a node's part by its name.
    if any(network.is_address(name) for name in choices.hosts) or len(set(choices.hosts)) < len(choices.hosts):
        raise InputError(
            ",".join(choices.hosts)[:120], where="--hosts with --multi-node slurm",
            expected="Slurm's names of the nodes, each once (or none: Slurm chooses the nodes)",
        )  # fmt: skip


def _port(number: int) -> int:
    if not 1 <= number <= 65_535 or Ports.given(number):
        kept = ", ".join(f"{first}-{last}" for first, last in Ports.ranges())
        raise InputError(f"port {number}", where="--port", expected=f"1..65535, outside the ports of workers ({kept})")
    return number


def _router(name: str, launcher: Launcher, groups: Sequence[Group], engine: Engine, connector: str) -> str:
    if name not in {"", "engine", "linkwise"}:
        raise InputError(repr(name[:40]), where="--router", expected="engine or linkwise")
    if name != "linkwise":
        return ""
    if launcher.name == "dynamo":
        raise Refused("our router does not speak to dynamo", where="--router", expected="engine")
    if groups[0].role != "both" and (engine.name, connector) != ("vllm", "nixl"):
        raise Refused(
            f"our router does not speak to {launcher.name} pools over {connector}", where="--router",
            expected="engine, or pools of vllm over nixl",
        )  # fmt: skip
    return name


def _word(text: str, where: str) -> str:
    if text.startswith("-"):
        raise InputError(repr(text[:60]), where=where, expected="a model's name or folder, no flag")
    return check_given(text, where)


def served(source: Source) -> Served:
    """What a benchmark of it asks for."""
    if isinstance(source, Pair):
        return Served(
            isl_tokens=source.prompt_tokens, osl_tokens=source.output_tokens, rate_per_s=source.rate_per_s
        )  # fmt: skip
    asks = source.workload
    many = asks.concurrency or (None if asks.rate_per_s else source.chosen.point.batch * source.replicas)
    return Served(
        isl_tokens=asks.isl_tokens, osl_tokens=asks.osl_tokens, rate_per_s=asks.rate_per_s, concurrency=many
    )  # fmt: skip


def _groups(source: Source, cluster: Cluster) -> tuple[Group, ...]:
    if isinstance(source, Plan):
        return tuple(
            Group(name=f"replica-{number}", role="both", layout=source.layout, devices=row)
            for number, row in enumerate(source.rank_grid)
        )
    return _pools(source, cluster)


def _wanted(source: Pair) -> tuple[int, int]:
    """Prefill and decode groups: those of two plans; else those the rate takes, or the best the devices hold where
    they do not carry it."""
    if source.pools is not None:
        return source.pools.prefill_groups, source.pools.decode_groups
    verdict = source.verdict
    if verdict is None or not verdict.prefill_groups:
        return 1, 1
    supply = verdict.supply
    if supply is not None and supply.serves and supply.prefill_needed and supply.decode_needed:
        return supply.prefill_needed, supply.decode_needed
    return verdict.prefill_groups, verdict.decode_groups


def _pools(source: Pair, cluster: Cluster) -> tuple[Group, ...]:
    """The pair as the handoff places it, and the rest of both pools on devices that are left, nodes kept whole."""
    wanted = _wanted(source)
    placed: list[Group] = []
    used: set[int] = set()
    for role, layout in (("prefill", source.prefill), ("decode", source.decode)):
        ranks = sorted((r for r in source.ranks if r.side == role), key=lambda r: r.rank)
        devices = tuple(r.device for r in ranks)
        if len(devices) != layout.size or used & set(devices) or not all(0 <= d < cluster.size for d in devices):
            raise InputError(f"ranks of {role}: {devices}"[:120], where="handoff", expected=f"{layout.size} devices")
        placed.append(Group(name=f"{role}-0", role=role, layout=layout, devices=devices))  # type: ignore[arg-type]
        used |= set(devices)
    # The larger groups first: what they leave still holds the smaller ones.
    rest = (("prefill", source.prefill, wanted[0]), ("decode", source.decode, wanted[1]))
    for role, layout, count in sorted(rest, key=lambda pool: -pool[1].size):
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


def _refuse_pools(pools: Pools | None) -> None:
    """Raises Refused for pools of two plans that are not started here."""
    if pools is None:
        return
    if pools.other is not None or not (plain(pools.prefill) and plain(pools.decode)):
        raise Refused(
            f"pools of {pools.prefill} and {pools.decode}" + (" on two clusters" if pools.other else ""),
            where="handoff", expected="pools of tp and pp alone, on one cluster",
        )  # fmt: skip
    if pools.differs:
        raise Refused(
            "the plans differ in " + ", ".join(pools.differs),
            where="handoff",
            expected="the same settings for both pools",
        )


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


def _connector(source: Source, launcher: Launcher, own: Engine) -> str:
    if isinstance(source, Plan):
        return ""
    if launcher.name not in {"dynamo", own.name}:
        raise Refused(
            f"pools planned for {own.name} with {source.connector}", where="--engine", expected=f"{own.name} or dynamo",
            hint=f"linkwise handoff --engine {launcher.name} plans them for it",
        )  # fmt: skip
    if source.refused is not None:
        raise refused(source.refused, "handoff")
    if source.connector not in launcher.connectors:
        raise Refused(
            f"connector {source.connector} is not written by this launcher", where="handoff",
            expected="one of " + (", ".join(launcher.connectors) or f"none: {launcher.name} joins no pools"),
        )  # fmt: skip
    return source.connector


def _refuse(asked: Asked, launcher: Launcher) -> None:
    """Raises Refused for the first thing the engine cannot express."""
    if asked.keyed and not launcher.takes_key:
        raise Refused(
            f"the servers of {launcher.name} ask for no key", where=key.WHERE, expected="--engine vllm or sglang",
            hint="Put a gateway in front that asks for it",
        )  # fmt: skip
    refusal = network.visible_refusal(asked.cluster)
    if refusal is not None:
        raise refused(refusal, asked.cluster.name)
    per_node = asked.cluster.devices_per_node
    for layout, role in dict.fromkeys((group.layout, group.role) for group in asked.groups):
        refusal = asked.engine.refuses(asked.model, layout, devices_per_node=per_node, options=asked.options[role])
        if refusal is not None:
            raise refused(refusal, f"{layout} under {asked.engine.name} {asked.engine.version}")
    _refuse_processes(asked, launcher)


def _refuse_processes(asked: Asked, launcher: Launcher) -> None:
    for group in asked.groups:
        refusal = launcher.refuses(asked, group)
        if refusal is not None:
            raise refused(refusal, f"launch --engine {launcher.name}")


def _notes(asked: Asked, launcher: Launcher) -> tuple[str, ...]:
    said = [*network.unnamed(asked), *launcher.notes(asked)]
    said += (key.NOTE, *key.notes(launcher.name)) if asked.keyed else ()
    if not launcher.binds_ranks(asked):
        through = f"{launcher.name} through Ray" if asked.multi_node == "ray" else launcher.name
        said += network.unbound(asked, through)
    if not asked.alone and not asked.hosts and asked.multi_node != "slurm":
        nodes = ", ".join(f"HOST_{node}" for node in asked.nodes[:4]) + (", ..." if len(asked.nodes) > 4 else "")
        said.append(f"addresses of nodes are not given: fill {nodes} in hosts.env, or give --hosts")
    return tuple(said)


def _rate(source: Source, groups: Sequence[Group]) -> tuple[str, ...]:
    """Whether a handoff's route and pools carry its rate, and what of the devices is left."""
    if isinstance(source, Plan):
        return ()
    said = []
    if not source.keeps_up:
        said.append(f"the route does not keep up with {source.rate_per_s:g} requests/s: {source.limiting}")
    supply = source.supply
    if supply is not None and supply.serves:
        left = source.cluster.size - sum(len(group.devices) for group in groups)
        said.append(supply.reason + (f"; the other {left} are left unused" if left else ""))
    elif short := supply.reason if supply else source.unserved:
        said.append(f"the pools do not serve the rate: {short}")
    return tuple(said)


def assemble(
    asked: Asked,
    launcher: Launcher,
    served: Served,
    differs: Sequence[str] = (),
    notes: Sequence[str] = (),
    rate: Sequence[str] = (),
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
        start_s=asked.start_s,
        keyed=asked.keyed,
        served=served,
        differs=tuple(differs),
        notes=(*notes, *rate),
        files=files,
    )

"""A group as pods: one per node, the first the leader; what differs between the others follows from their index."""

import hashlib
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from linkwise.cluster.types import Tier
from linkwise.core.errors import InputError, Refused
from linkwise.core.layout import Layout
from linkwise.launch.base import Asked, Launcher, Ports
from linkwise.launch.kubernetes import schema
from linkwise.launch.scripts import line
from linkwise.launch.types import KEY, KEY_VARIABLE, STAND_IN, Process, Role

PORT = 8000
# Keys topograph writes (its reference of node labels): the scale-up domain, and the fabric's tier next to the nodes.
DOMAIN, LEAF = "accelerator.topograph.run/domain", "fabric.topograph.run/tier-0"
# Variables and labels LeaderWorkerSet gives its pods.
LEADER, INDEX = "LWS_LEADER_ADDRESS", "LWS_WORKER_INDEX"
LWS = "leaderworkerset.sigs.k8s.io"
STAND_IN_IP = "POD_IP"  # the variable of a pod's own address
SECRET, SECRET_KEY = "hf-token-secret", "HF_TOKEN"  # as Dynamo's examples have them
KEY_OBJECT = "linkwise-api-key"  # of the key that requests need
_FILES = "/etc/linkwise"
_SHM = "16Gi"
_NAME_CHARS = 40  # of 63: controllers and we add to it


class Cast(NamedTuple):
    """What manifests are made with. name: of all objects; image: of the engine; router_image: of what routes.

    topology: the ClusterTopology a Dynamo graph refers to.
    """

    name: str
    image: str
    router_image: str = ""
    topology: str = ""


class Set(NamedTuple):
    """Groups of one role and layout. processes: of one of them, a process per node, its leader first.

    block: how many neighbouring pods share a scale-up domain that is wider than a node; 0 = no such domain.
    files: what the commands name, by name. at_path: the model is a folder of the pods.
    start_s: how long a group may take until it serves.
    """

    name: str
    role: Role
    layout: Layout
    replicas: int
    processes: tuple[Process, ...]
    block: int
    files: dict[str, str]
    at_path: bool
    start_s: float

    @property
    def size(self) -> int:
        """Pods of a group."""
        return len(self.processes)

    @property
    def devices(self) -> int:
        """Devices of a pod."""
        return len(self.processes[0].devices)


def sets(asked: Asked, launcher: Launcher, cast: Cast, *, door: int = PORT) -> tuple[Set, ...]:
    """The groups by role and layout. Raises Refused for what one pod a node cannot be."""
    found: dict[tuple[Role, Layout], int] = {}
    for group in asked.groups:
        found[group.role, group.layout] = found.get((group.role, group.layout), 0) + 1
    return tuple(_set(asked, launcher, cast, role, layout, count, door) for (role, layout), count in found.items())


def _set(asked: Asked, launcher: Launcher, cast: Cast, role: Role, layout: Layout, count: int, door: int) -> Set:
    alike = [g for g in asked.groups if (g.role, g.layout) == (role, layout)]
    group = alike[0]
    where = asked._replace(groups=(group,), far=True, hosts=(), multi_node="native")
    processes = launcher.processes(where, group, Ports(door))
    nodes = [p.node for p in processes]
    if any(p.started_by for p in processes):
        raise Refused(
            f"{group.name}: {asked.engine.name} starts its other nodes through mpirun, which pods do not offer",
            where="--kubernetes", expected="a group inside one node",
        )  # fmt: skip
    if len(set(nodes)) != len(nodes):
        raise Refused(
            f"{group.name}: {asked.engine.name} needs several processes on a node for {layout}, and two pods of a group"
            " cannot be told to share one",
            where="--kubernetes", hint="The scripts for nodes (without --kubernetes) start it",
        )  # fmt: skip
    for each in alike:
        _stays_together(asked, each.devices, each.name)
    # One template serves them all: where they lie differently, what the closest of them needs.
    block = max(_block(asked, list(dict.fromkeys(asked.cluster.node_of(d) for d in each.devices))) for each in alike)
    name = cast.name if role == "both" else f"{cast.name}-{role}"
    return Set(name, role, layout, count, processes, block, launcher.files(where), by_path(asked), asked.start_s)


def _stays_together(asked: Asked, devices: Sequence[int], name: str) -> None:
    """Raises Refused where the plan counts on an island smaller than the node: a device plugin picks devices alone."""
    cluster = asked.cluster
    node = cluster.node_of(devices[0])
    here = range(node * cluster.devices_per_node, (node + 1) * cluster.devices_per_node)
    islands = {cluster.island_of(d) for d in here}
    inside = {cluster.node_of(d) for d in devices} == {node}
    if inside and len(islands) > 1 and cluster.tier(tuple(devices)) in {Tier.ISLAND} and len(devices) > 1:
        raise Refused(
            f"{name} is planned inside one of a node's {len(islands)} islands, and Kubernetes does not say which"
            " devices of a node a pod gets",
            where="--kubernetes", hint="The scripts for nodes (without --kubernetes) pin the devices",
        )  # fmt: skip


def _block(asked: Asked, nodes: Sequence[int]) -> int:
    """Neighbouring nodes of a group in one scale-up domain, where domains are wider than a node."""
    cluster = asked.cluster
    if len(nodes) < 2 or cluster.island_size <= cluster.devices_per_node:
        return 0
    homes = [cluster.island_of(node * cluster.devices_per_node) for node in nodes]
    size = homes.count(homes[0])
    blocks = [homes[at : at + size] for at in range(0, len(homes), size)]
    if any(len(set(block)) > 1 or len(block) != size for block in blocks):
        raise Refused(
            f"nodes {', '.join(map(str, nodes[:8]))} are spread unevenly over scale-up domains",
            where="--kubernetes", expected="as many neighbouring nodes in each",
        )  # fmt: skip
    return size if size > 1 else 0


def affinity(one: Set) -> schema.Affinity | None:
    """Pods of a group stay in the scale-up domain the plan has them in, and near each other where they can."""
    if one.size == 1:
        return None
    own = schema.Selector(match_labels={f"{LWS}/name": one.name})
    required: tuple[schema.PodAffinityTerm, ...] = ()
    if one.block:
        key = "group-key" if one.block == one.size else "subgroup-key"
        required = (
            schema.PodAffinityTerm(topology_key=DOMAIN, label_selector=own, match_label_keys=(f"{LWS}/{key}",)),
        )
    near = schema.PodAffinityTerm(topology_key=LEAF, label_selector=own, match_label_keys=(f"{LWS}/group-key",))
    return schema.Affinity(
        pod_affinity=schema.PodAffinity(
            required_during_scheduling_ignored_during_execution=required,
            preferred_during_scheduling_ignored_during_execution=(
                schema.WeightedTerm(weight=50, pod_affinity_term=near),
            ),
        )
    )


def script(one: Set, *, worker: bool = False) -> str:
    """What a container runs in place of a shell. worker: any pod but the leader, by its index."""
    processes = one.processes[1:] if worker else one.processes[:1]
    words = [_by_index(column, 1 if worker else 0) for column in zip(*(p.command for p in processes), strict=True)]
    names = {p.node: STAND_IN_IP for p in processes} | ({one.processes[0].node: LEADER} if one.size > 1 else {})
    words = [word._replace(text=f"{_FILES}/{word.text}") if word.text in one.files else word for word in words]
    text = " ".join(word.text if word.ready else line([word.text], names) for word in words)
    return escaped(f"exec {text}")


def escaped(text: str) -> str:
    """Text that Kubernetes leaves as it is: it expands $(NAME) in arguments, and makes one sign of two."""
    return re.sub(r"\$(?=[$(])", "$$", text)


class _Word(NamedTuple):
    text: str
    ready: bool = False  # for a shell as it is


def _by_index(column: Sequence[str], first: int) -> _Word:
    """A word of all workers: the same, or a number that grows with the index."""
    if len(set(column)) == 1:
        return _Word(column[0])
    if all(re.fullmatch(r"[0-9]{1,9}", word) for word in column):
        values = [int(word) for word in column]
        step = values[1] - values[0]
        base = values[0] - step * first
        if values == [base + step * (first + at) for at in range(len(values))]:
            plus = f" + {base}" if base > 0 else f" - {-base}" if base else ""
            return _Word(f'"$(({INDEX} * {step}{plus}))"', ready=True)
    raise Refused(f"words {', '.join(column[:4])} of a group's pods follow no rule", where="--kubernetes")


def environment(one: Set, *, worker: bool = False) -> tuple[schema.Env, ...]:
    """Environment of a pod's container: its own address where the engine or its command asks for it, a hub's token."""
    process = one.processes[1 if worker else 0]
    address = schema.ValueFrom(field_ref=schema.FieldRef(field_path="status.podIP"))
    own = f"${{{STAND_IN_IP}}}" in script(one, worker=worker)
    found = [schema.Env(name=STAND_IN_IP, value_from=address)] if own else []
    found += [api_key(KEY_VARIABLE)] if KEY in script(one, worker=worker) else []
    for name, value in sorted(process.environment.items()):
        if value == process.host:
            found.append(schema.Env(name=name, value_from=address))
        elif value == KEY:
            found.append(api_key(name))
        elif STAND_IN.search(value):
            raise Refused(f"{name} names another node", where="--kubernetes")
        else:
            found.append(schema.Env(name=name, value=escaped(value)))
    return (*found, *(() if one.at_path else (token(),)))


def api_key(name: str) -> schema.Env:
    """The key that requests need, from a secret without which a pod does not start."""
    key = schema.SecretKeyRef(name=KEY_OBJECT, key=KEY_VARIABLE)
    return schema.Env(name=name, value_from=schema.ValueFrom(secret_key_ref=key))


def token() -> schema.Env:
    """A hub's token from a secret that need not be there."""
    key = schema.SecretKeyRef(name=SECRET, key=SECRET_KEY, optional=True)
    return schema.Env(name="HF_TOKEN", value_from=schema.ValueFrom(secret_key_ref=key))


def by_path(asked: Asked) -> bool:
    """Whether the model is a folder of the nodes, not a name that a hub knows."""
    return asked.weights.startswith(("/", ".", "~"))


def container(one: Set, cast: Cast, gpu: str, *, worker: bool = False, name: str = "engine") -> schema.Container:
    """The engine's container of a leader or a worker."""
    process = one.processes[1 if worker else 0]
    door = one.processes[0].ports.get("http", PORT)
    probe = schema.HttpGet(path="/health", port=door)
    ports = sorted({*process.ports.values()})
    return schema.Container(
        name=name,
        image=cast.image,
        command=("bash", "-c"),
        args=(script(one, worker=worker),),
        env=environment(one, worker=worker),
        ports=tuple(schema.ContainerPort(container_port=port) for port in ports),
        resources=schema.Resources(limits={gpu: str(one.devices)}),
        startup_probe=None
        if worker
        else schema.Probe(
            http_get=probe, period_seconds=10, timeout_seconds=5, failure_threshold=math.ceil(one.start_s / 10)
        ),
        readiness_probe=None if worker else schema.Probe(http_get=probe, timeout_seconds=5),
        volume_mounts=(
            schema.Mount(name="shm", mount_path="/dev/shm"),  # noqa: S108 - the ranks' shared memory
            *((schema.Mount(name="files", mount_path=_FILES),) if one.files else ()),
        ),
    )


def volumes(one: Set) -> tuple[schema.Volume, ...]:
    """Shared memory for the ranks of a pod (containers have 64 MiB of it otherwise), and the files commands name."""
    files = schema.Volume(name="files", config_map=schema.ConfigMapSource(name=one.name))
    shared = schema.Volume(name="shm", empty_dir=schema.EmptyDir(medium="Memory", size_limit=_SHM))
    return (shared, files) if one.files else (shared,)


def config(one: Set) -> tuple[schema.ConfigMap, ...]:
    """The files of a set's commands."""
    return (schema.ConfigMap(metadata=schema.Metadata(name=one.name), data=one.files),) if one.files else ()


def gpu_resource(asked: Asked) -> str:
    """What the device plugin calls the devices."""
    return "amd.com/gpu" if "amd" in asked.cluster.accelerator.label.lower() else "nvidia.com/gpu"


def lws(one: Set, cast: Cast, asked: Asked, labels: dict[str, str], leader: schema.PodSpec | None = None) -> (
    schema.LeaderWorkerSet
):  # fmt: skip
    """A LeaderWorkerSet of a set's groups. labels: of its leaders."""
    gpu, near = gpu_resource(asked), affinity(one)
    first = leader or schema.PodSpec(
        containers=(container(one, cast, gpu),), volumes=volumes(one), affinity=near
    )  # fmt: skip
    heads = schema.PodTemplate(metadata=schema.Metadata(labels=labels), spec=first)
    others = heads
    if one.size > 1:
        spec = schema.PodSpec(containers=(container(one, cast, gpu, worker=True),), volumes=volumes(one), affinity=near)
        others = schema.PodTemplate(spec=spec)
    sub = schema.SubGroupPolicy(sub_group_size=one.block) if 0 < one.block < one.size else None
    return schema.LeaderWorkerSet(
        metadata=schema.Metadata(name=one.name),
        spec=schema.LeaderWorkerSetSpec(
            replicas=one.replicas,
            startup_policy="LeaderCreated",
            leader_worker_template=schema.LeaderWorkerTemplate(
                size=one.size,
                restart_policy="RecreateGroupOnPodRestart",
                leader_template=heads if one.size > 1 else None,
                worker_template=others,
                sub_group_policy=sub,
            ),
        ),
    )


def name_for(called: str) -> str:
    """A name for objects, made of a model's. Raises InputError where nothing of it may stand in one."""
    plain = re.sub(r"[^a-z0-9]+", "-", called.lower()).strip("-")
    if not plain:
        raise InputError(
            f"nothing of {called[:60]!r} may stand in a name of Kubernetes", where="--kubernetes",
            expected="--object-name NAME",
        )  # fmt: skip
    if not plain[0].isalpha():
        plain = f"m-{plain}"
    if len(plain) <= _NAME_CHARS:
        return plain
    # What tells long names apart may lie behind the cut.
    mark = hashlib.sha256(called.encode()).hexdigest()[:6]
    return f"{plain[: _NAME_CHARS - 7].strip('-')}-{mark}"


def check_name(name: str) -> str:
    """A name for objects. Raises InputError."""
    if not re.fullmatch(rf"[a-z]([-a-z0-9]{{0,{_NAME_CHARS - 2}}}[a-z0-9])?", name):
        raise InputError(
            repr(name[:60]), where="--object-name",
            expected=f"at most {_NAME_CHARS} lower-case letters, digits and dashes, a letter first",
        )  # fmt: skip
    return name

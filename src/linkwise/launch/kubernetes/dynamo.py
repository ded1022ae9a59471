"""A Dynamo graph: a frontend, and a component per pool. The operator adds how several nodes find each other."""

from linkwise.core.errors import InputError, Refused
from linkwise.launch.base import Asked, Launcher
from linkwise.launch.kubernetes import pods, schema
from linkwise.launch.kubernetes.pods import PORT, Cast
from linkwise.launch.types import STAND_IN

RACK = "rack"  # the level of the ClusterTopology that stands for scale-up domains


def manifests(asked: Asked, launcher: Launcher, cast: Cast) -> tuple[schema.Manifest, ...]:
    """One DynamoGraphDeployment, for `kubectl apply` where Dynamo's operator is installed."""
    if launcher.name != "dynamo":
        raise Refused(
            f"a Dynamo graph runs Dynamo's workers, not {launcher.name}'s own server", where="--kubernetes dynamo",
            expected="--engine dynamo",
        )  # fmt: skip
    sets = pods.sets(asked, launcher, cast)
    components = [_frontend(cast, asked)]
    found: list[schema.Manifest] = []
    for one in sets:
        found += pods.config(one)
        if one.block and one.block < one.size:
            raise Refused(
                f"{one.name}: parts of a group in scale-up domains of their own cannot be said to Dynamo's operator",
                where="--kubernetes dynamo", hint="--kubernetes lws has subgroups",
            )  # fmt: skip
        components.append(_component(one, cast, asked))
    wide = any(one.block for one in sets)
    if wide and not cast.topology:
        raise InputError(
            "groups that must stay inside a scale-up domain", where="--cluster-topology",
            expected=f"the name of the ClusterTopology whose level {RACK} is {pods.DOMAIN}",
        )  # fmt: skip
    graph = schema.DynamoGraphDeployment(
        metadata=schema.Metadata(name=cast.name),
        spec=schema.GraphSpec(
            components=tuple(components),
            topology_constraint=schema.GraphTopology(cluster_topology_name=cast.topology) if wide else None,
        ),
    )
    return (*found, graph)


def _frontend(cast: Cast, asked: Asked) -> schema.Component:
    """Its router and the model's tokenizer, which it fetches as workers fetch the model."""
    mode = "kv" if len(asked.groups) > 1 else "round-robin"
    main = schema.Container(
        name="main",
        image=cast.image,
        command=("python3", "-m", "dynamo.frontend"),
        args=("--http-port", str(PORT), "--router-mode", mode),
        env=() if pods.by_path(asked) else (pods.token(),),
    )
    template = schema.PodTemplate(spec=schema.PodSpec(containers=(main,)))
    return schema.Component(name="Frontend", type="frontend", replicas=1, pod_template=template)


def _component(one: pods.Set, cast: Cast, asked: Asked) -> schema.Component:
    """A pool. The command is one node's, without the flags for several: the operator writes those, behind the last of
    `args`, so no shell stands before it (backend_vllm.go, backend_sglang.go: injectFlagsIntoContainerCommand)."""
    words = _without_nodes(one.processes[0].command)
    if any(STAND_IN.search(word) for word in words):
        raise Refused(f"{one.name}: its command names a node's address", where="--kubernetes dynamo")
    env = tuple(e for e in pods.environment(one) if not e.name.startswith("DYN_"))
    main = schema.Container(
        name="main",
        image=cast.image,
        command=words[:_PROGRAM],
        args=tuple(pods.escaped(word) for word in words[_PROGRAM:]),
        env=env,
        resources=schema.Resources(limits={pods.gpu_resource(asked): str(one.devices)}),
    )
    # Older operators choose Ray, which decides itself which rank of a group takes which device.
    native = asked.engine.name == "vllm" and one.size > 1
    meta = schema.Metadata(annotations={_EXECUTOR: "mp"}) if native else None
    return schema.Component(
        name="worker" if one.role == "both" else one.role,
        type="worker" if one.role == "both" else one.role,  # type: ignore[arg-type]
        replicas=one.replicas,
        multinode=schema.Multinode(node_count=one.size) if one.size > 1 else None,
        topology_constraint=schema.PackDomain(pack_domain=RACK) if one.block else None,
        pod_template=schema.PodTemplate(metadata=meta, spec=schema.PodSpec(containers=(main,))),
    )


_PROGRAM = 3  # words of python3 -m dynamo.ENGINE
_EXECUTOR = "nvidia.com/vllm-distributed-executor-backend"  # of the pods (operator, internal/consts)
_OF_NODES = {"--nnodes", "--node-rank", "--master-addr", "--master-port", "--dist-init-addr"}


def _without_nodes(words: tuple[str, ...]) -> tuple[str, ...]:
    kept: list[str] = []
    skip = False
    for word in words:
        if not skip and word not in _OF_NODES:
            kept.append(word)
        skip = word in _OF_NODES
    return tuple(kept)

"""llm-d: model servers with its labels, a Deployment or a LeaderWorkerSet per pool, and the InferencePool over them.

Its router (the endpoint picker and the gateway) is installed by llm-d's own charts; decode pods carry its routing
sidecar, which sends a prompt to a prefill pod first (llm-d guides: pd-disaggregation, wide-ep-lws).
"""

from linkwise.core.errors import InputError, Refused
from linkwise.launch.base import Asked, Launcher
from linkwise.launch.kubernetes import pods, schema
from linkwise.launch.kubernetes.pods import PORT, Cast, Set

SERVER_PORT = 8200  # of a decode server behind its sidecar
_CONNECTORS = {"nixl": "nixlv2", "sglang_mooncake": "sglang"}
PICKER_PORT = 9002


def manifests(asked: Asked, launcher: Launcher, cast: Cast) -> tuple[schema.Manifest, ...]:
    """Model servers and their pool, for `kubectl apply` where llm-d's router is installed as NAME-epp."""
    if launcher.name not in {"vllm", "sglang"}:
        raise Refused(f"llm-d serves vLLM and SGLang, not {launcher.name}", where="--kubernetes llm-d")
    found: list[schema.Manifest] = []
    pool = {"llm-d.ai/inference-serving": "true", "llm-d.ai/model": cast.name}
    for one in _sets(asked, launcher, cast):
        labels = pool | ({"llm-d.ai/role": one.role} if one.role != "both" else {})
        spec = _leader(one, cast, asked)
        found += pods.config(one)
        if one.size > 1:
            found.append(pods.lws(one, cast, asked, labels, spec))
            continue
        template = schema.PodTemplate(metadata=schema.Metadata(labels=labels), spec=spec)
        found.append(
            schema.Deployment(
                metadata=schema.Metadata(name=one.name, labels=labels),
                spec=schema.DeploymentSpec(
                    replicas=one.replicas, selector=schema.Selector(match_labels=labels), template=template
                ),
            )
        )
    found.append(
        schema.InferencePool(
            metadata=schema.Metadata(name=cast.name),
            spec=schema.InferencePoolSpec(
                selector=schema.Selector(match_labels=pool),
                target_ports=(schema.PoolPort(number=PORT),),
                endpoint_picker_ref=schema.PickerRef(
                    name=f"{cast.name}-epp", port=schema.PickerPort(number=PICKER_PORT)
                ),
            ),
        )
    )
    return tuple(found)


def _sets(asked: Asked, launcher: Launcher, cast: Cast) -> tuple[Set, ...]:
    """As `pods.sets`; decode servers leave the pool's port to their sidecar."""
    front = pods.sets(asked, launcher, cast)
    behind = pods.sets(asked, launcher, cast, door=SERVER_PORT)
    return tuple(b if f.role == "decode" else f for f, b in zip(front, behind, strict=True))


def _leader(one: Set, cast: Cast, asked: Asked) -> schema.PodSpec:
    main = pods.container(one, cast, pods.gpu_resource(asked))
    return schema.PodSpec(
        containers=(main,),
        init_containers=(_sidecar(cast, asked.connector),) if one.role == "decode" else (),
        volumes=pods.volumes(one),
        affinity=pods.affinity(one),
    )


def _sidecar(cast: Cast, connector: str) -> schema.Container:
    """The routing sidecar's flags of its 0.7 releases."""
    if not cast.router_image:
        raise InputError(
            "pools without the routing sidecar's image",
            where="--router-image",
            expected="llm-d-routing-sidecar's image",
        )
    if connector not in _CONNECTORS:
        raise Refused(f"llm-d's sidecar does not know connector {connector}", where="--kubernetes llm-d")
    flags = (f"--port={PORT}", f"--vllm-port={SERVER_PORT}", f"--connector={_CONNECTORS[connector]}")
    return schema.Container(
        name="routing-proxy", image=cast.router_image, args=(*flags, "--secure-proxy=false"), restart_policy="Always",
        ports=(schema.ContainerPort(container_port=PORT),),
    )  # fmt: skip

"""LeaderWorkerSet: one set per pool, a service on the leaders; a router's Deployment in front of two pools."""

from linkwise.core.errors import InputError
from linkwise.launch.base import Asked, Launcher
from linkwise.launch.kubernetes import pods, schema
from linkwise.launch.kubernetes.pods import LWS, PORT, Cast, Set
from linkwise.launch.scripts import line
from linkwise.launch.types import KEY_VARIABLE, Process


def manifests(asked: Asked, launcher: Launcher, cast: Cast) -> tuple[schema.Manifest, ...]:
    """Everything `kubectl apply` needs where the LeaderWorkerSet controller is installed."""
    found: list[schema.Manifest] = []
    sets = pods.sets(asked, launcher, cast)
    for one in sets:
        found += pods.config(one)
        found.append(pods.lws(one, cast, asked, {"app": one.name}))
    if len(sets) == 1:
        leaders = {f"{LWS}/name": cast.name, f"{LWS}/worker-index": "0"}
        return (*found, _service(cast, leaders))
    return (*found, *_router(asked, launcher, cast, sets))


def _service(cast: Cast, selector: dict[str, str]) -> schema.Service:
    """Where requests go. A set's own name is taken: its controller makes a headless service of it."""
    return schema.Service(
        metadata=schema.Metadata(name=f"{cast.name}-front"),
        spec=schema.ServiceSpec(
            selector=selector, ports=(schema.ServicePort(name="http", port=PORT, target_port=PORT),)
        ),
    )


def _router(asked: Asked, launcher: Launcher, cast: Cast, sets: tuple[Set, ...]) -> tuple[schema.Manifest, ...]:
    """The launcher's own router, told the leaders' names, which LeaderWorkerSet derives from the sets'."""
    if not cast.router_image:
        raise InputError("pools without a router's image", where="--router-image", expected="an image with the router")
    doors: list[Process] = []
    for one in sets:
        for number in range(one.replicas):
            # Leader pods are NAME-0, NAME-1, ... under the headless service of the set's name.
            host = f"{one.name}-{number}.{one.name}"
            doors.append(
                Process(
                    name=f"{one.role}-{number}", group="", role=one.role, node=0, host=host, command=("-",),
                    ports=one.processes[0].ports,
                )
            )  # fmt: skip
    front = launcher.router(asked._replace(far=True, hosts=()), doors)
    assert front is not None, "two pools have more than one door"  # noqa: S101 - `sets` made them
    process, files = front
    words = [f"/etc/linkwise/{word}" if word in files else word for word in process.command]
    name = f"{cast.name}-router"
    labels = {"app": name}
    mounts = (schema.Mount(name="files", mount_path="/etc/linkwise"),) if files else ()
    probe = schema.Probe(http_get=schema.HttpGet(path="/health", port=PORT), timeout_seconds=5)
    container = schema.Container(
        name="router", image=cast.router_image, command=("bash", "-c"),
        args=(pods.escaped(f"exec {line(words)}"),),
        env=(pods.api_key(KEY_VARIABLE),) if asked.keyed else (),
        ports=(schema.ContainerPort(container_port=PORT),), readiness_probe=probe, volume_mounts=mounts,
    )  # fmt: skip
    volumes = (schema.Volume(name="files", config_map=schema.ConfigMapSource(name=name)),) if files else ()
    template = schema.PodTemplate(
        metadata=schema.Metadata(labels=labels), spec=schema.PodSpec(containers=(container,), volumes=volumes)
    )  # fmt: skip
    deployment = schema.Deployment(
        metadata=schema.Metadata(name=name, labels=labels),
        spec=schema.DeploymentSpec(replicas=1, selector=schema.Selector(match_labels=labels), template=template),
    )  # fmt: skip
    data = (schema.ConfigMap(metadata=schema.Metadata(name=name), data=files),) if files else ()
    return (*data, deployment, _service(cast, labels))

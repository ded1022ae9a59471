"""Our own description of the manifest fields that are written: what the API servers' schemas allow, as types.

Sources: Kubernetes core/v1 and apps/v1; leaderworkerset.x-k8s.io/v1 (kubernetes-sigs/lws, leaderworkerset_types.go);
inference.networking.k8s.io/v1 (gateway-api-inference-extension, inferencepool_types.go); nvidia.com/v1beta1
(ai-dynamo/dynamo, dynamocomponentdeployment_types.go, dynamographdeployment_types.go, the disagg-multinode example).
Values are checked when an object is made or read.
"""

import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from linkwise.core.errors import InputError
from linkwise.core.files import dump_yaml
from linkwise.core.schema import convert

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # RFC 1123 label, what names of pods and services are
_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_QUANTITY = re.compile(r"[0-9]{1,15}(Ki|Mi|Gi|Ti)?")
_COMPONENT = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?")


class Object(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """Base of all manifest objects: camelCase in YAML, unknown fields refused."""


def _match(pattern: re.Pattern[str], text: str, where: str, expected: str) -> None:
    if not pattern.fullmatch(text):
        raise InputError(repr(text[:80]), where=f"manifest: {where}", expected=expected)


def _labels(found: dict[str, str], where: str) -> None:
    for key, value in found.items():
        _match(_KEY, key, f"{where}: key", "a label key, such as llm-d.ai/role")
        _match(_VALUE, value, f"{where}: {key}", "at most 63 letters, digits, - _ .")


class Metadata(Object, frozen=True, kw_only=True):
    name: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}

    def __post_init__(self) -> None:
        if self.name:
            _match(_NAME, self.name, "metadata.name", "at most 63 lower-case letters, digits and dashes")
        _labels(self.labels, "metadata.labels")


class FieldRef(Object, frozen=True, kw_only=True):
    field_path: Literal["status.podIP", "metadata.name"]


class SecretKeyRef(Object, frozen=True, kw_only=True):
    name: str
    key: str
    optional: bool | None = None


class ValueFrom(Object, frozen=True, kw_only=True):
    field_ref: FieldRef | None = None
    secret_key_ref: SecretKeyRef | None = None

    def __post_init__(self) -> None:
        if (self.field_ref is None) == (self.secret_key_ref is None):
            raise InputError("valueFrom", where="manifest", expected="one source")


class Env(Object, frozen=True, kw_only=True):
    name: str
    value: str | None = None
    value_from: ValueFrom | None = None


class ContainerPort(Object, frozen=True, kw_only=True):
    container_port: int
    name: str = ""

    def __post_init__(self) -> None:
        _port(self.container_port, "containerPort")


class HttpGet(Object, frozen=True, kw_only=True):
    path: str
    port: int


class Probe(Object, frozen=True, kw_only=True):
    http_get: HttpGet
    period_seconds: int = 10
    timeout_seconds: int = 1
    failure_threshold: int = 3


class Resources(Object, frozen=True, kw_only=True):
    limits: dict[str, str] = {}
    requests: dict[str, str] = {}

    def __post_init__(self) -> None:
        for quantity in (*self.limits.values(), *self.requests.values()):
            _match(_QUANTITY, quantity, "resources", "a quantity, such as 8 or 16Gi")


class Mount(Object, frozen=True, kw_only=True):
    name: str
    mount_path: str


class Container(Object, frozen=True, kw_only=True):
    name: str
    image: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[Env, ...] = ()
    ports: tuple[ContainerPort, ...] = ()
    resources: Resources | None = None
    readiness_probe: Probe | None = None
    startup_probe: Probe | None = None
    volume_mounts: tuple[Mount, ...] = ()
    restart_policy: Literal["Always"] | None = None  # of an init container: a sidecar

    def __post_init__(self) -> None:
        _match(_NAME, self.name, "container", "at most 63 lower-case letters, digits and dashes")
        if not self.image or not self.image.isprintable() or " " in self.image:
            raise InputError(f"image {self.image[:80]!r}", where="manifest", expected="an image's name and tag")


class EmptyDir(Object, frozen=True, kw_only=True):
    medium: Literal["Memory"]
    size_limit: str


class ConfigMapSource(Object, frozen=True, kw_only=True):
    name: str


class Volume(Object, frozen=True, kw_only=True):
    name: str
    empty_dir: EmptyDir | None = None
    config_map: ConfigMapSource | None = None


class Selector(Object, frozen=True, kw_only=True):
    match_labels: dict[str, str]


class PodAffinityTerm(Object, frozen=True, kw_only=True):
    """matchLabelKeys: Kubernetes 1.31 or later (beta, on by default)."""

    topology_key: str
    label_selector: Selector
    match_label_keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _match(_KEY, self.topology_key, "topologyKey", "a label key of nodes")


class WeightedTerm(Object, frozen=True, kw_only=True):
    weight: int
    pod_affinity_term: PodAffinityTerm


class PodAffinity(Object, frozen=True, kw_only=True):
    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedTerm, ...] = ()


class Affinity(Object, frozen=True, kw_only=True):
    pod_affinity: PodAffinity | None = None


class PodSpec(Object, frozen=True, kw_only=True):
    containers: tuple[Container, ...]
    init_containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()
    affinity: Affinity | None = None


class PodTemplate(Object, frozen=True, kw_only=True):
    metadata: Metadata | None = None
    spec: PodSpec


class SubGroupPolicy(Object, frozen=True, kw_only=True):
    sub_group_size: int


class LeaderWorkerTemplate(Object, frozen=True, kw_only=True):
    size: int
    restart_policy: Literal["RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]
    leader_template: PodTemplate | None = None
    worker_template: PodTemplate
    sub_group_policy: SubGroupPolicy | None = None

    def __post_init__(self) -> None:
        policy = self.sub_group_policy
        if self.size < 1 or (policy and (policy.sub_group_size < 1 or self.size % policy.sub_group_size)):
            raise InputError(f"size {self.size}", where="manifest", expected="a multiple of subGroupSize, at least 1")


class LeaderWorkerSetSpec(Object, frozen=True, kw_only=True):
    replicas: int
    leader_worker_template: LeaderWorkerTemplate
    startup_policy: Literal["LeaderCreated", "LeaderReady"] | None = None


class LeaderWorkerSet(Object, frozen=True, kw_only=True):
    metadata: Metadata
    spec: LeaderWorkerSetSpec


class DeploymentSpec(Object, frozen=True, kw_only=True):
    replicas: int
    selector: Selector
    template: PodTemplate

    def __post_init__(self) -> None:
        labels = self.template.metadata.labels if self.template.metadata else {}
        if not self.selector.match_labels.items() <= labels.items():
            raise InputError("selector", where="manifest", expected="labels of the template")


class Deployment(Object, frozen=True, kw_only=True):
    metadata: Metadata
    spec: DeploymentSpec


class ServicePort(Object, frozen=True, kw_only=True):
    port: int
    target_port: int
    name: str = ""

    def __post_init__(self) -> None:
        _port(self.port, "port")
        _port(self.target_port, "targetPort")


class ServiceSpec(Object, frozen=True, kw_only=True):
    selector: dict[str, str]
    ports: tuple[ServicePort, ...]


class Service(Object, frozen=True, kw_only=True):
    metadata: Metadata
    spec: ServiceSpec


class ConfigMap(Object, frozen=True, kw_only=True):
    metadata: Metadata
    data: dict[str, str]


class PoolPort(Object, frozen=True, kw_only=True):
    number: int

    def __post_init__(self) -> None:
        _port(self.number, "targetPorts")


class PickerPort(Object, frozen=True, kw_only=True):
    number: int


class PickerRef(Object, frozen=True, kw_only=True):
    name: str
    port: PickerPort


class InferencePoolSpec(Object, frozen=True, kw_only=True):
    selector: Selector
    target_ports: tuple[PoolPort, ...]
    endpoint_picker_ref: PickerRef

    def __post_init__(self) -> None:
        if not 1 <= len(self.target_ports) <= 8:
            raise InputError(f"{len(self.target_ports)} targetPorts", where="manifest", expected="1..8")


class InferencePool(Object, frozen=True, kw_only=True):
    metadata: Metadata
    spec: InferencePoolSpec


class Multinode(Object, frozen=True, kw_only=True):
    node_count: int

    def __post_init__(self) -> None:
        if self.node_count < 2:
            raise InputError(f"nodeCount {self.node_count}", where="manifest", expected="2 or more")


class PackDomain(Object, frozen=True, kw_only=True):
    pack_domain: str


class Component(Object, frozen=True, kw_only=True):
    name: str
    type: Literal["frontend", "worker", "prefill", "decode"]
    replicas: int
    pod_template: PodTemplate
    multinode: Multinode | None = None
    shared_memory_size: str | None = None
    topology_constraint: PackDomain | None = None

    def __post_init__(self) -> None:
        _match(_COMPONENT, self.name, "component", "at most 63 letters, digits and dashes")
        if not any(c.name == "main" for c in self.pod_template.spec.containers):
            raise InputError("no container main", where=f"manifest: {self.name}", expected="a container named main")


class GraphTopology(Object, frozen=True, kw_only=True):
    cluster_topology_name: str


class GraphSpec(Object, frozen=True, kw_only=True):
    components: tuple[Component, ...]
    topology_constraint: GraphTopology | None = None


class DynamoGraphDeployment(Object, frozen=True, kw_only=True):
    metadata: Metadata
    spec: GraphSpec


Manifest = LeaderWorkerSet | Deployment | Service | ConfigMap | InferencePool | DynamoGraphDeployment
KINDS: dict[tuple[str, str], type[Manifest]] = {
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): LeaderWorkerSet,
    ("apps/v1", "Deployment"): Deployment,
    ("v1", "Service"): Service,
    ("v1", "ConfigMap"): ConfigMap,
    ("inference.networking.k8s.io/v1", "InferencePool"): InferencePool,
    ("nvidia.com/v1beta1", "DynamoGraphDeployment"): DynamoGraphDeployment,
}


def _port(number: int, where: str) -> None:
    if not 1 <= number <= 65_535:
        raise InputError(f"{where} {number}", where="manifest", expected="1..65535")


def text(manifests: Sequence[Manifest]) -> str:
    """All manifests as one YAML stream, each checked by being read back."""
    parts = []
    for one in manifests:
        head = next({"apiVersion": api, "kind": kind} for (api, kind), made in KINDS.items() if isinstance(one, made))
        value = head | msgspec.to_builtins(one)
        check(value, where=head["kind"])
        parts.append(dump_yaml(value))
    return "---\n".join(parts)


def check(value: dict[str, Any], *, where: str) -> Manifest:
    """A manifest of one of the kinds written here. Raises InputError naming the field that is wrong."""
    known = KINDS.get((str(value.get("apiVersion")), str(value.get("kind"))))
    if known is None:
        named = f"{value.get('apiVersion')} {value.get('kind')}"[:120]
        raise InputError(named, where=where, expected="one of " + ", ".join(kind for _, kind in KINDS))
    return convert({k: v for k, v in value.items() if k not in {"apiVersion", "kind"}}, known, where=where)

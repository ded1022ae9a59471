"""A cluster from what the user wrote: shorthand or a YAML file, and back to YAML."""

from typing import Any

import msgspec

from linkwise.cluster import known, presets
from linkwise.cluster.detail import NodeDetail
from linkwise.cluster.links import check_measured
from linkwise.cluster.types import Accelerator, Cluster, Constants
from linkwise.core.errors import InputError
from linkwise.core.files import dump_yaml, parse_yaml_object, read_text
from linkwise.core.printable import clipped
from linkwise.core.schema import CLUSTER_SCHEMA, Frozen, convert
from linkwise.core.units import parse_bytes

MAX_FILE_BYTES = 2**20
_TEXT_FIELDS = frozenset(
    {"schema", "name", "label", "source", "memory_source", "scaleup_kind", "host_link", "confidence"}
    | {"note", "notes", "kind", "sources", "nic_names", "paths"}
)
_TABLES = ("link_efficiency", "latency_us", "link_Bps", "sources")


class _Nics(Frozen, frozen=True, kw_only=True):
    """NICs of one machine; exactly one of the three bandwidths, of one NIC per direction."""

    count: int
    Gbps: float | None = None
    GBps: float | None = None
    Bps: float | None = None


class _Fabric(Frozen, frozen=True, kw_only=True):
    kind: str
    oversubscription: float = 1.0


class _File(Frozen, frozen=True, kw_only=True):
    """The file's fields. None = left out: the usual machine of a known accelerator decides, and the notes say so."""

    schema: str
    accelerator: str | dict[str, Any]
    devices_per_node: int
    nodes: int = 1
    name: str | None = None
    island_size: int | str | None = None
    nics: _Nics | str | None = None
    fabric: _Fabric | str | None = None
    host_memory_bytes: int | None = None
    numa_per_node: int | None = None
    constants: dict[str, Any] = {}
    source: str = ""
    notes: tuple[str, ...] = ()
    detail: NodeDetail | None = None
    odd_nodes: dict[int, NodeDetail] = {}


def load(text: str) -> Cluster:
    """A cluster from shorthand (`2x8xh100-sxm`) or from the path of a .yaml or .yml file. Raises InputError."""
    plain = text.strip()
    if plain.lower().endswith((".yaml", ".yml")):
        return parse(read_text(plain, max_bytes=MAX_FILE_BYTES), where=plain)
    if "/" in plain or plain.lower().endswith((".json", ".xml", ".txt", ".toml")):
        raise InputError(
            "not a cluster file", where=plain[:200], expected=f"a .yaml or .yml file, or shorthand: {presets.FORM}"
        )
    return presets.shorthand(plain)


def parse(text: str, *, where: str) -> Cluster:
    """A cluster from YAML text. Unknown fields, wrong types and absurd numbers are refused, naming file and field."""
    raw = _typed(parse_yaml_object(text, where=where), "", where)
    given = raw.get("schema")
    if given != CLUSTER_SCHEMA:
        raise InputError(f"field schema: {given!r}", where=where, expected=CLUSTER_SCHEMA)
    file = convert(raw, _File, where=where)
    try:
        built = _build(file, where)
        check_measured(built)
        return built
    except InputError as error:
        if error.where.startswith(where):
            raise
        raise InputError(
            error.message, where=f"{where}: {error.where}", expected=error.expected, hint=error.hint
        ) from None


def dump(cluster: Cluster) -> str:
    """YAML that `load` reads back to an equal cluster: every fact is written out, none is looked up again."""
    nics: Any = "none"
    if cluster.nics_per_node:
        exact = cluster.nic_Bps / 1e9
        rate = {"GBps": exact} if exact * 1e9 == cluster.nic_Bps else {"Bps": cluster.nic_Bps}
        nics = {"count": cluster.nics_per_node, **rate}
    document = {
        "schema": CLUSTER_SCHEMA,
        "name": cluster.name,
        "source": cluster.source,
        "notes": list(cluster.notes),
        "nodes": cluster.nodes,
        "devices_per_node": cluster.devices_per_node,
        "island_size": cluster.island_size,
        "nics": nics,
        "fabric": {"kind": cluster.fabric, "oversubscription": cluster.oversubscription},
        "host_memory_bytes": cluster.host_memory_bytes,
        "numa_per_node": cluster.numa_per_node,
        **_detail(cluster),
        "accelerator": msgspec.to_builtins(cluster.accelerator),
        "constants": msgspec.to_builtins(cluster.constants),
    }
    return dump_yaml(document)


def _detail(cluster: Cluster) -> dict[str, Any]:
    """The fields of a topology file, where the cluster comes from one; what is empty is left out."""
    if cluster.detail is None:
        return {}
    return {
        "detail": _filled(cluster.detail),
        "odd_nodes": {node: _filled(detail) for node, detail in cluster.odd_nodes.items()},
    }


def _filled(detail: NodeDetail) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(detail).items() if value}


def _typed(value: Any, field: str, where: str) -> Any:
    """Sizes people write with a unit become numbers in fields named `..._bytes`."""
    if isinstance(value, dict):
        return {k: v if k in _TEXT_FIELDS else _typed(v, str(k), where) for k, v in value.items()}
    if isinstance(value, list):
        return [_typed(item, field, where) for item in value]
    if isinstance(value, str) and field.endswith("_bytes"):
        return parse_bytes(value, where=f"{where}: field {field}")
    return value


def _build(file: _File, where: str) -> Cluster:
    device = _accelerator(file.accelerator, where)
    nodes, count = file.nodes, file.devices_per_node
    notes = list(file.notes)
    nics, nic_Bps = _nics(file, device, where, notes)
    fabric, oversubscription = _fabric(file, nics, notes)
    usual = known.node(device.name)
    numa = file.numa_per_node
    if numa is None:
        numa = max(1, min(usual.numa, count)) if usual else 1
    return Cluster(
        name=clipped(where) if file.name is None else file.name,
        accelerator=device,
        nodes=nodes,
        devices_per_node=count,
        island_size=_island(file, device, where),
        nics_per_node=nics,
        nic_Bps=nic_Bps,
        constants=_constants(file.constants, where),
        fabric=fabric,
        oversubscription=oversubscription,
        host_memory_bytes=file.host_memory_bytes or 0,
        numa_per_node=numa,
        source=file.source,
        notes=tuple(notes),
        detail=file.detail,
        odd_nodes=file.odd_nodes,
    )


def _accelerator(given: str | dict[str, Any], where: str) -> Accelerator:
    """A known accelerator, a known one with fields replaced, or one whose facts are all in the file."""
    if isinstance(given, str):
        return presets.accelerator(given, where=where)
    name = given.get("name")
    if not isinstance(name, str) or not name:
        raise InputError("field accelerator.name is missing", where=where, expected="a name")
    facts: dict[str, Any] = {"label": name, "memory_source": f"given in {where}", "source": f"given in {where}"}
    canonical = known.names().get(name.lower())
    if canonical:
        facts = msgspec.to_builtins(known.accelerator(canonical))
        changed = given.keys() - {"name", "source", "memory_source"}
        if "memory_bytes" in changed:
            # The known driver figure belongs to the known memory figure.
            facts |= {"memory_source": f"given in {where}", "driver_memory_bytes": 0}
        if changed:
            facts["source"] += f"; replaced by {where}: {', '.join(sorted(changed))}"
    elif isinstance(given.get("memory_bytes"), int):
        facts["nominal_GB"] = round(given["memory_bytes"] / 1e9)
    return convert(facts | given, Accelerator, where=f"{where}: accelerator")


def _island(file: _File, device: Accelerator, where: str) -> int:
    if file.island_size is None:
        return presets.island_size(device, max(1, file.nodes), max(1, file.devices_per_node))
    if isinstance(file.island_size, str):
        if file.island_size.lower() != "none":
            raise InputError(
                f"field island_size: {file.island_size!r}", where=where, expected="a count of devices, or none"
            )
        return 1
    return file.island_size


def _nics(file: _File, device: Accelerator, where: str, notes: list[str]) -> tuple[int, float]:
    """Count and bytes/s of one NIC; the usual machine's when left out."""
    given = file.nics
    if given is None:
        usual = known.node(device.name)
        if usual is None:
            return 0, 0.0
        count = usual.nics_for(max(0, file.devices_per_node))
        if count and file.nodes > 1:
            notes.append(f"nics are not given: {count} x {usual.nic_Gbps:g} Gb/s per machine assumed ({usual.source})")
        return count, usual.nic_Gbps * 1e9 / 8 if count else 0.0
    if isinstance(given, str):
        if given.lower() != "none":
            raise InputError(f"field nics: {given!r}", where=where, expected="{count: 8, Gbps: 400}, or none")
        return 0, 0.0
    rates = [rate for rate in (_scaled(given.Gbps, 1e9 / 8), _scaled(given.GBps, 1e9), given.Bps) if rate is not None]
    if len(rates) != 1:
        raise InputError(
            f"field nics: {len(rates)} bandwidths", where=where, expected="exactly one of Gbps, GBps or Bps, of one NIC"
        )
    return given.count, rates[0]


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _fabric(file: _File, nics: int, notes: list[str]) -> tuple[str, float]:
    given = file.fabric
    if given is None:
        kind = presets.fabric(file.nodes, file.devices_per_node, nics)
        if kind != "none":
            notes.append(f"the fabric is not given: {kind} without oversubscription assumed")
        return kind, 1.0
    if isinstance(given, str):
        return given, 1.0
    return given.kind, given.oversubscription


def _constants(given: dict[str, Any], where: str) -> Constants:
    """The uncalibrated constants with the file's figures in place of theirs; the label says which were replaced.

    A mapping that gives every field is a calibration of its own and is taken whole.
    """
    if given.keys() >= {field.name for field in msgspec.structs.fields(Constants)}:
        return convert(given, Constants, where=f"{where}: constants")
    merged: dict[str, Any] = msgspec.to_builtins(known.constants())
    replaced = []
    for name, value in given.items():
        if name not in _TABLES:
            merged[name] = value
            replaced.append(name)
        elif isinstance(value, dict):
            merged[name] |= value
            replaced += [f"{name}.{key}" for key in value]
        else:
            raise InputError(f"field constants.{name}: a {type(value).__name__}", where=where, expected="a mapping")
    replaced = [name for name in replaced if name != "label" and not name.startswith("sources.")]
    merged["sources"] |= {name: f"given in {where}" for name in replaced if name not in given.get("sources", {})}
    if replaced and "label" not in given:
        merged["label"] += f", with {', '.join(replaced)} from {where}"
    return convert(merged, Constants, where=f"{where}: constants")

"""Engine facts: one YAML file per engine, every figure with its source, overlaid for older versions."""

from functools import cache
from importlib import resources
from typing import Any, Literal

from linkwise.core.errors import InputError
from linkwise.core.files import parse_yaml_object
from linkwise.core.schema import Frozen, convert
from linkwise.engine.base import Batching, Convention, Defaults, Dtypes, Memory
from linkwise.engine.versions import version_key

__all__ = ["NAMES", "Bucket", "Facts", "Flag", "Flags", "LargeDevice", "Overlay", "Raw", "facts", "raw", "version_key"]
_SECTIONS = ("defaults", "memory", "convention", "batching", "dtypes", "gates")
NAMES = ("vllm", "sglang", "trtllm", "linkwise", "textbook")


class LargeDevice(Frozen, frozen=True, kw_only=True):
    """Defaults of a device with at least `least_bytes` of memory whose name holds none of `not_named`."""

    least_bytes: int
    max_batched_tokens: int
    max_seqs: int
    not_named: tuple[str, ...] = ()


class Bucket(Frozen, frozen=True, kw_only=True):
    """A device class by memory: chunk of one prefill step and largest batch of the CUDA graphs (tp below 4, from 4)."""

    below_bytes: float
    chunk_tokens: int
    graph_batch: tuple[int, int]


class Flag(Frozen, frozen=True, kw_only=True):
    """A launch flag that changes layout or memory. kind: how its value is read."""

    kind: Literal["int", "human", "float", "text", "switch", "json"]
    names: tuple[str, ...]


class Flags(Frozen, frozen=True, kw_only=True):
    """An engine's launch flags. `known` are read into the plan; the others neither change layout nor memory.

    values, switches, lists: flags to ignore that take one value, none, or words up to the next flag.
    refused: flags that change layout or memory in a way that is not modelled, with what to do instead.
    environment: variables that are read; all others are ignored.
    """

    known: dict[str, Flag] = {}
    values: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    refused: dict[str, str] = {}
    environment: tuple[str, ...] = ()


class Overlay(Frozen, frozen=True, kw_only=True):
    """What differs in versions before `before`; later overlays of the file apply over earlier ones."""

    before: str
    source: str
    defaults: dict[str, Any] = {}
    memory: dict[str, Any] = {}
    convention: dict[str, Any] = {}
    batching: dict[str, Any] = {}
    dtypes: dict[str, Any] = {}
    gates: dict[str, Any] = {}
    large_device: bool = True


class Raw(Frozen, frozen=True, kw_only=True):
    """A facts file as written. gates: what this version allows, by name. sources: figure to source."""

    engine: str
    version: str
    about: str
    defaults: dict[str, Any]
    memory: dict[str, Any]
    convention: dict[str, Any]
    batching: dict[str, Any]
    sources: dict[str, str]
    dtypes: dict[str, Any] = {}
    gates: dict[str, Any] = {}
    large_device: LargeDevice | None = None
    block_tokens_mla_by_capability: dict[str, int] = {}
    buckets: tuple[Bucket, ...] = ()
    versions: tuple[Overlay, ...] = ()
    flags: Flags = Flags()


class Facts(Frozen, frozen=True, kw_only=True):
    """One engine at one version. checked: False for a version newer than the facts were taken from."""

    engine: str
    version: str
    checked: bool
    about: str
    defaults: Defaults
    memory: Memory
    convention: Convention
    batching: Batching
    dtypes: Dtypes
    sources: dict[str, str]
    gates: dict[str, Any]
    large_device: LargeDevice | None
    block_tokens_mla_by_capability: dict[str, int]
    buckets: tuple[Bucket, ...]
    flags: Flags


@cache
def raw(name: str) -> Raw:
    """The facts file of an engine, validated. Raises InputError for an unknown name."""
    if name not in NAMES:
        raise InputError(f"unknown engine {name!r}"[:80], where="engine", expected="one of " + ", ".join(NAMES))
    where = f"engine/facts/{name}.yaml"
    text = (resources.files("linkwise.engine") / "facts" / f"{name}.yaml").read_text(encoding="utf-8")
    return convert(parse_yaml_object(text, where=where), Raw, where=where)


def facts(name: str, version: str | None = None) -> Facts:
    """An engine's facts at a version; without one, at the version they were taken from."""
    base = raw(name)
    key = version_key(version or base.version)
    sections = {part: dict(getattr(base, part)) for part in _SECTIONS}
    sources, large = dict(base.sources), base.large_device
    for overlay in base.versions:
        if key >= version_key(overlay.before):
            continue
        for part, values in sections.items():
            changed = getattr(overlay, part)
            values.update(changed)
            sources.update({f"{part}.{figure}": overlay.source for figure in changed})
        large = large if overlay.large_device else None
    where = f"engine/facts/{name}.yaml"
    return Facts(
        engine=name,
        version=version or base.version,
        checked=key <= version_key(base.version) or key[:2] == version_key(base.version)[:2],
        about=base.about,
        defaults=convert(sections["defaults"], Defaults, where=f"{where}: defaults"),
        memory=convert(sections["memory"], Memory, where=f"{where}: memory"),
        convention=convert({"name": name, **sections["convention"]}, Convention, where=f"{where}: convention"),
        batching=convert(sections["batching"], Batching, where=f"{where}: batching"),
        dtypes=convert(sections["dtypes"], Dtypes, where=f"{where}: dtypes"),
        sources=sources,
        gates=sections["gates"],
        large_device=large,
        block_tokens_mla_by_capability=base.block_tokens_mla_by_capability,
        buckets=base.buckets,
        flags=base.flags,
    )

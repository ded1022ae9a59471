"""Every setting of `fit`, `plan` and `handoff`, once: its name, type, group and words. The commands' options and the
Python calls' keyword arguments are both made from this table, so they cannot drift apart."""

import difflib
import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, cast, get_args, get_type_hints

from linkwise.core.dtypes import canonical
from linkwise.core.errors import InputError
from linkwise.core.files import FilePath
from linkwise.core.layout import MAX_DEGREE
from linkwise.core.schema import convert
from linkwise.engine.base import Options
from linkwise.workload.types import Workload


class Word(NamedTuple):
    """How a setting is explained. group: heading in the help. metavar: what to write for the value."""

    group: str
    help: str
    metavar: str = ""


_LAYOUT, _MEMORY, _MOE, _LOAD = "Layout", "Engine settings", "Experts", "Workload"
_MEASURED = "Measured"


class Settings(TypedDict, total=False):
    """Keyword arguments of `fit`, `plan` and `handoff`. What is absent is the engine's default, or is searched."""

    tp: Annotated[int, Word(_LAYOUT, "tensor parallel degree of attention")]
    pp: Annotated[int, Word(_LAYOUT, "pipeline stages")]
    cp: Annotated[int, Word(_LAYOUT, "context parallel ranks (added; prefill tokens and KV are split)")]
    dp_attn: Annotated[int, Word(_LAYOUT, "attention replicas inside the group, which share its experts")]
    dcp: Annotated[int, Word(_LAYOUT, "decode context parallel: divides tp, splits the tokens of its KV")]
    ep: Annotated[int, Word(_LAYOUT, "expert parallel degree inside a stage")]
    sequence_sharded: Annotated[bool, Word(_LAYOUT, "shard tokens between tensor-parallel blocks")]
    microbatches: Annotated[int, Word(_LAYOUT, "batches a pipeline keeps in flight")]

    dtype: Annotated[str, Word(_MEMORY, "what the model runs in: weights not quantised, activations", "DTYPE")]
    kv_dtype: Annotated[str, Word(_MEMORY, "dtype of the KV cache", "DTYPE")]
    weights: Annotated[str, Word(_MEMORY, "what if linear weights were stored as fp8, int4, nvfp4, ...", "DTYPE")]
    utilization: Annotated[float, Word(_MEMORY, "share of device memory the engine may use", "SHARE")]
    max_batched_tokens: Annotated[int, Word(_MEMORY, "most tokens of one step")]
    max_seqs: Annotated[int, Word(_MEMORY, "most requests of one step")]
    max_model_len: Annotated[int, Word(_MEMORY, "longest request, tokens")]
    block: Annotated[int, Word(_MEMORY, "tokens of a KV block")]
    mtp: Annotated[int, Word(_MEMORY, "speculative tokens a step, drawn by MTP layers")]
    mtp_acceptance: Annotated[float, Word(_MEMORY, "chance that a drawn token is kept", "SHARE")]
    lora: Annotated[str, Word(_MEMORY, "adapters resident at once and their rank, such as 8:16", "N:RANK")]
    prefix_cache_tokens: Annotated[int, Word(_MEMORY, "KV tokens kept for shared prefixes")]
    eager: Annotated[bool, Word(_MEMORY, "no CUDA graphs")]

    skew: Annotated[float, Word(_MOE, "load of the busiest expert rank over the mean, 1 = uniform", "FACTOR")]
    exchange: Annotated[str, Word(_MOE, "how tokens reach experts: all_to_all, all_to_all_node or all_gather", "KIND")]
    dense_whole: Annotated[bool, Word(_MOE, "dense MLPs whole on each rank (SGLang)")]
    head_over_tp: Annotated[bool, Word(_MOE, "the head over the attention tensor group alone (SGLang)")]

    workload: Annotated[FilePath, Word(_LOAD, "workload file (YAML); the settings below win over it", "FILE")]
    isl: Annotated[int, Word(_LOAD, "mean input length, tokens")]
    osl: Annotated[int, Word(_LOAD, "mean output length, tokens")]
    rate: Annotated[str | float, Word(_LOAD, "requests per second, such as 6/s or 90/min", "RATE")]
    concurrency: Annotated[int, Word(_LOAD, "requests in flight at once")]
    ttft: Annotated[str | float, Word(_LOAD, "target time to the first token, such as 1s", "TIME")]
    tpot: Annotated[str | float, Word(_LOAD, "target time per output token after it, such as 40ms", "TIME")]
    burst: Annotated[float, Word(_LOAD, "KV headroom over the mean number of requests in flight", "FACTOR")]
    prefix_hit: Annotated[float, Word(_LOAD, "share of prompt tokens found in the prefix cache", "SHARE")]

    calibration: Annotated[
        FilePath, Word(_MEASURED, "what links gave (measure -o) or steps took (calibrate -o)", "FILE")
    ]


FILES = ("workload", "calibration")  # settings that name one
DEGREES = ("tp", "pp", "cp", "dp_attn", "dcp", "ep", "sequence_sharded")
_OPTION_NAMES = {
    "utilization": "memory_utilization",
    "block": "block_tokens",
    "mtp": "mtp_tokens",
    "mtp_acceptance": "mtp_acceptance",
    "skew": "moe_skew",
    "exchange": "moe_exchange",
    "dense_whole": "dense_whole",
    "head_over_tp": "head_over_tp",
    "weights": "weight_dtype",
}
_SAME_OPTIONS = ("max_batched_tokens", "max_seqs", "max_model_len", "prefix_cache_tokens", "eager", "microbatches")
_EXCHANGES = ("all_to_all", "all_to_all_node", "all_gather")


def words() -> dict[str, tuple[Any, Word]]:
    """Every setting: its type, a file's name being text, and its words."""
    hints = {name: get_args(hint) for name, hint in get_type_hints(Settings, include_extras=True).items()}
    return {name: (str if name in FILES else kind, word) for name, (kind, word) in hints.items()}


def option_field(name: str) -> str:
    """The field of `Options` that a setting fills as it is; "" of a setting that is none or is read first."""
    return _OPTION_NAMES.get(name, name if name in (*_SAME_OPTIONS, "dtype", "kv_dtype") else "")


def check(given: Mapping[str, Any]) -> Settings:
    """Settings with known names and right types; None counts as absent. Raises InputError naming the field."""
    known = Settings.__annotations__
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise InputError(
                f"unknown setting {name!r}",
                expected="one of " + ", ".join(known),
                hint=f"Did you mean {near[0]}?" if near else "",
            )
    present = {
        name: os.fspath(value) if name in FILES and isinstance(value, os.PathLike) else value
        for name, value in given.items()
        if value is not None
    }
    typed = {name: kind for name, (kind, _) in words().items() if name in present}
    return cast(Settings, convert(present, TypedDict("Settings", typed), where="settings"))  # type: ignore[operator]


def file(settings: Settings, name: Literal["workload", "calibration"]) -> str | None:
    """The path that a setting names."""
    return os.fspath(settings[name]) if name in settings else None


def degrees(settings: Settings) -> dict[str, int]:
    """The degrees that are fixed."""
    given = {name: value for name, value in settings.items() if name in DEGREES and value is not False}
    found = {name: int(cast(int, value)) for name, value in given.items()}
    for name, degree in found.items():
        if not 1 <= degree <= MAX_DEGREE:
            raise InputError(f"{name} is {degree}", where="layout", expected=f"1..{MAX_DEGREE}")
    return found


def options(settings: Settings, base: Options | None = None) -> Options:
    """Engine options; `base` gives those not set here."""
    fields: dict[str, Any] = {n: settings[n] for n in _SAME_OPTIONS if n in settings}  # type: ignore[literal-required]
    for name, field in _OPTION_NAMES.items():
        if name in settings:
            fields[field] = settings[name]  # type: ignore[literal-required]
    for name in ("dtype", "kv_dtype"):
        if name in settings:
            plain = settings[name]  # type: ignore[literal-required]
            fields[name] = None if plain == "auto" else canonical(plain, where=f"--{name.replace('_', '-')}")
    if "exchange" in settings and settings["exchange"] not in _EXCHANGES:
        raise InputError(repr(settings["exchange"]), where="--exchange", expected="one of " + ", ".join(_EXCHANGES))
    if "lora" in settings:
        fields["lora_count"], fields["lora_rank"] = _adapters(settings["lora"])
    return Options(**({f: getattr(base, f) for f in Options.__struct_fields__} if base else {}) | fields)


def _adapters(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,9})(?::([0-9]{1,9}))?", text)
    if not match:
        raise InputError(repr(text), where="--lora", expected="adapters and their rank, such as 8:16")
    return int(match[1]), int(match[2] or 16)


def workload(settings: Settings) -> Workload:
    """For whom: lengths, arrivals, targets; a workload file first, then what is set here."""
    from linkwise.workload.read import from_options, load

    path = file(settings, "workload")
    base = load(path) if path is not None else None
    return from_options(
        base=base,
        isl=settings.get("isl"),
        osl=settings.get("osl"),
        rate=_with_unit(settings.get("rate"), "/s"),
        concurrency=settings.get("concurrency"),
        ttft=_with_unit(settings.get("ttft"), "s"),
        tpot=_with_unit(settings.get("tpot"), "s"),
        prefix_hit=settings.get("prefix_hit"),
        burst=settings.get("burst"),
    )


def _with_unit(value: str | float | None, unit: str) -> str | None:
    """Text as typed. A number, which only Python calls give, is in seconds or per second."""
    return value if value is None or isinstance(value, str) else f"{value!r}{unit}"

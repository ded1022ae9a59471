"""A workload from command-line words or a YAML file."""

from typing import Any, TypeVar

import msgspec

from linkwise.core.errors import InputError
from linkwise.core.files import dump_yaml, parse_yaml_object, read_text
from linkwise.core.schema import WORKLOAD_SCHEMA, Frozen, convert
from linkwise.core.units import parse_rate, parse_time
from linkwise.workload.types import Targets, Workload

MAX_FILE_BYTES = 2**20

T = TypeVar("T", bound=Frozen)


class _Targets(Frozen, frozen=True, kw_only=True):
    """Targets as written: "40ms" in ttft, tpot, or seconds in the fields that say so."""

    ttft: str | None = None
    tpot: str | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None


class _File(Frozen, frozen=True, kw_only=True):
    schema: str
    isl_tokens: int | None = None
    osl_tokens: int | None = None
    rate: str | None = None
    rate_per_s: float | None = None
    concurrency: int | None = None
    prefix_hit: float | None = None
    burst: float | None = None
    targets: _Targets = _Targets()


def from_options(
    *,
    base: Workload | None = None,
    isl: int | None = None,
    osl: int | None = None,
    rate: str | None = None,
    concurrency: int | None = None,
    ttft: str | None = None,
    tpot: str | None = None,
    prefix_hit: float | None = None,
    burst: float | None = None,
) -> Workload:
    """A workload from options as typed: lengths in tokens, rate "6/s", ttft "1s", tpot "40ms".

    base: what options not given (None) are taken from, such as a file; the defaults without one. Raises InputError.
    """
    base = Workload() if base is None else base
    changes = {
        "isl_tokens": isl,
        "osl_tokens": osl,
        "rate_per_s": None if rate is None else parse_rate(rate, where="rate"),
        "concurrency": concurrency,
        "prefix_hit": prefix_hit,
        "burst": burst,
    }
    targets = {
        "ttft_s": None if ttft is None else parse_time(ttft, where="ttft"),
        "tpot_s": None if tpot is None else parse_time(tpot, where="tpot"),
    }
    return _changed(base, changes | {"targets": _changed(base.targets, targets)})


def load(path: str) -> Workload:
    """A workload from a YAML file. Raises InputError naming the file and the field."""
    return parse(read_text(path, max_bytes=MAX_FILE_BYTES), where=path)


def parse(text: str, *, where: str) -> Workload:
    """A workload from YAML text; `schema: linkwise.workload/1` and any of the fields of `Workload`.

    rate may be text ("6/s") where rate_per_s is a number; targets.ttft and targets.tpot likewise. Both: refused.
    """
    raw = parse_yaml_object(text, where=where)
    if raw.get("schema") != WORKLOAD_SCHEMA:
        raise InputError(f"field schema: {raw.get('schema')!r}", where=where, expected=WORKLOAD_SCHEMA)
    file = convert(raw, _File, where=where)
    rate = _one(file.rate, file.rate_per_s, "rate", "rate_per_s", parse_rate, where)
    ttft = _one(file.targets.ttft, file.targets.ttft_s, "targets.ttft", "targets.ttft_s", parse_time, where)
    tpot = _one(file.targets.tpot, file.targets.tpot_s, "targets.tpot", "targets.tpot_s", parse_time, where)
    try:
        return _changed(
            Workload(targets=Targets(ttft_s=ttft, tpot_s=tpot)),
            {
                "isl_tokens": file.isl_tokens,
                "osl_tokens": file.osl_tokens,
                "rate_per_s": rate,
                "concurrency": file.concurrency,
                "prefix_hit": file.prefix_hit,
                "burst": file.burst,
            },
        )
    except InputError as error:
        raise InputError(error.message, where=where, expected=error.expected, hint=error.hint) from None


def dump(workload: Workload) -> str:
    """YAML that `parse` reads back to an equal workload; fields without a value are left out."""
    document: dict[str, Any] = {"schema": WORKLOAD_SCHEMA} | msgspec.to_builtins(workload)
    document["targets"] = {name: value for name, value in document["targets"].items() if value is not None}
    return dump_yaml({k: v for k, v in document.items() if v not in (None, {})})


def _one(text: str | None, number: float | None, text_name: str, name: str, parser: Any, where: str) -> float | None:
    """The value of a field that can be written in two ways."""
    if text is None:
        return number
    if number is not None:
        raise InputError(f"fields {text_name} and {name} are both given", where=where, expected="one of them")
    value: float = parser(text, where=f"{where}: field {text_name}")
    return value


def _changed(value: T, changes: dict[str, Any]) -> T:
    """A checked copy with the changes that are not None."""
    return msgspec.structs.replace(value, **{name: change for name, change in changes.items() if change is not None})

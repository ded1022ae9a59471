"""Schema versions, and typed reading and writing of our own files."""

from typing import Any, TypeVar

import msgspec

from linkwise.core.errors import InputError

PLAN_SCHEMA = "linkwise.plan/1"
FIT_SCHEMA = "linkwise.fit/1"
HANDOFF_SCHEMA = "linkwise.handoff/1"
CLUSTER_SCHEMA = "linkwise.cluster/1"
WORKLOAD_SCHEMA = "linkwise.workload/1"


class Frozen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of our file-facing values: immutable, keyword-only, unknown fields refused."""


T = TypeVar("T")


def convert(value: Any, kind: type[T], *, where: str) -> T:
    """A validated value from decoded JSON or YAML. Names the field that is wrong."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise InputError(_field_first(str(error)), where=where) from None


def decode_json(text: bytes, kind: type[T], *, where: str) -> T:
    """A validated value from JSON text."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise InputError(_field_first(str(error)), where=where) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"not valid JSON: {error}", where=where) from None


def encode_json(value: Any) -> bytes:
    """Indented JSON, as a person would read it, with a final newline."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def _field_first(message: str) -> str:
    # msgspec says "Expected `int`, got `str` - at `$.nodes[0].count`"; people look for the field first.
    reason, _, place = message.partition(" - at `$")
    field = place.rstrip("`").lstrip(".")
    return f"field {field}: {reason[0].lower()}{reason[1:]}" if field else reason[0].lower() + reason[1:]

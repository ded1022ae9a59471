"""Schema versions, and typed reading and writing of our own files."""

import difflib
import re
from typing import Any, TypeVar, get_args

import msgspec

from linkwise.core.errors import InputError, InternalError
from linkwise.core.files import parse_json
from linkwise.core.printable import escaped_json

PLAN_SCHEMA = "linkwise.plan/1"
NOPLAN_SCHEMA = "linkwise.noplan/1"
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
        raise _wrong(error, kind, where) from None


def decode_json(text: bytes, kind: type[T], *, where: str) -> T:
    """A validated value from JSON text; a field given twice is refused. Errors name the file, also those of values."""
    parse_json(text, where=where, finite=True)  # for duplicates, which the typed reader resolves without a word
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise _wrong(error, kind, where) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"not valid JSON: {error}", where=where) from None
    except InputError as error:  # a value's own check, which does not know the file
        place = f"{where}: {error.where}" if error.where else where
        raise type(error)(error.message, where=place, expected=error.expected, hint=error.hint) from None


def encode_json(value: Any) -> bytes:
    """Indented JSON, as a person would read it, with a final newline; invisible characters are escapes.

    One of our own values comes out as it will after being read back: a whole number in a field of floats has its `.0`,
    so that reading and writing again changes no byte. Raises InputError for text that is no Unicode (a file name that
    is not UTF-8).
    """
    try:
        text = msgspec.json.encode(value)
        if isinstance(value, Frozen):
            text = msgspec.json.encode(msgspec.json.decode(text, type=type(value)))
    except UnicodeEncodeError as error:
        given = error.object[max(0, error.start - 40) : error.end]
        raise InputError(f"{given!r} is not valid Unicode", expected="names in UTF-8") from None
    except msgspec.ValidationError as error:
        raise InternalError(f"a {type(value).__name__} that cannot be read back: {error}") from None
    return escaped_json(msgspec.json.format(text, indent=1)) + b"\n"


_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`(?: - at `\$(.*)`)?", re.DOTALL)


def _wrong(error: msgspec.ValidationError, kind: Any, where: str) -> InputError:
    """What is wrong with a value, by its field; for a field that is not known, those that are."""
    match = _UNKNOWN.fullmatch(str(error))
    known = _fields(kind, match[2] or "") if match else ()
    near = difflib.get_close_matches(match[1], known, n=1) if match else []
    return InputError(
        _field_first(str(error)),
        where=where,
        expected="one of " + ", ".join(known) if known else "",
        hint=f"Did you mean {near[0]}?" if near else "",
    )


def _fields(kind: Any, place: str) -> tuple[str, ...]:
    """The fields of the object at a place of a value of that type, such as `.nodes[0]`; none where types are unions."""
    for name in filter(None, re.sub(r"\[[^\]]*\]", "", place).split(".")):
        inner = {field.encode_name: field.type for field in msgspec.structs.fields(kind)} if _is_struct(kind) else {}
        kind = _struct_in(inner.get(name))
    return tuple(field.encode_name for field in msgspec.structs.fields(kind)) if _is_struct(kind) else ()


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _struct_in(kind: Any) -> Any:
    """The one struct in a type such as `tuple[Node, ...] | None`."""
    if _is_struct(kind):
        return kind
    found = {inner for part in get_args(kind) if (inner := _struct_in(part)) is not None}
    return found.pop() if len(found) == 1 else None


def _field_first(message: str) -> str:
    # msgspec says "Expected `int`, got `str` - at `$.nodes[0].count`"; people look for the field first.
    reason, _, place = message.partition(" - at `$")
    field = place.rstrip("`").lstrip(".")
    return f"field {field}: {reason[0].lower()}{reason[1:]}" if field else reason[0].lower() + reason[1:]

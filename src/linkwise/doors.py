"""What Python calls and saved files are checked for at the door, so that what lies behind can trust its values.

Text and options are checked where they are read; here are the types a program can get wrong, and the claims of a plan
file that its fields' own ranges cannot see.
"""

import os
import re
from typing import Any, TypeVar

import msgspec

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.core.schema import Frozen, convert
from linkwise.engine.base import Engine
from linkwise.engine.registry import get
from linkwise.model.types import Model
from linkwise.plan.sound import check
from linkwise.plan.types import Plan
from linkwise.settings import Settings

# A release as engines number them, ASCII digits: 0.11, v0.11.0, 1.0.0rc1, 0.5.10.post1, 0.9.1.dev3+cu128.
_VERSION = re.compile(
    r"v?[0-9]{1,6}(\.[0-9]{1,6}){1,3}((a|b|rc)[0-9]{1,4})?(\.(post|dev)[0-9]{1,6}){0,2}(\+[a-zA-Z0-9.]{1,40})?"
)

F = TypeVar("F", bound=Frozen)


class _Sides(Frozen, frozen=True, kw_only=True):
    prompt: int
    prefill_tp: int
    decode_tp: int
    prefill_pp: int
    decode_pp: int


def of_type(value: Any, kinds: type | tuple[type, ...], where: str, expected: str) -> None:
    """Refuse a value of another type. where: the argument's name."""
    if not isinstance(value, kinds):
        raise InputError(f"is a {type(value).__name__}", where=where, expected=expected)


def path(value: Any, where: str = "path") -> str:
    """The path of a file as text."""
    of_type(value, (str, os.PathLike), where, "a path")
    text = os.fspath(value)
    of_type(text, str, where, "a path of text")
    return str(text)


def again(value: F, where: str) -> F:
    """A value a program made, checked as if it came from a file: its constructor does not look at types."""
    return convert(msgspec.to_builtins(value, builtin_types=()), type(value), where=where)


def sides(**degrees: Any) -> None:
    """Refuse degrees or a prompt length of a handoff that are no integers."""
    convert(degrees, _Sides, where="handoff")


def engine(given: str | Engine) -> Engine:
    """An engine from "vllm" or "vllm@0.11", or as it is."""
    of_type(given, (str, Engine), "engine", 'an engine such as "vllm" or "vllm@0.11"')
    if isinstance(given, Engine):
        return given
    name, at, version = given.strip().replace("==", "@", 1).partition("@")
    return get(name, checked_version(version, name)) if at else get(name)


def version_of(given: str | Engine) -> str | None:
    """The version a text or an engine names; None without one."""
    if isinstance(given, Engine):
        return given.version
    return given.replace("==", "@", 1).partition("@")[2] or None


def checked_version(version: str, name: str) -> str:
    """A version of an engine, in the form its makers write. Raises InputError."""
    if not _VERSION.fullmatch(version):
        raise InputError(
            f"{name} version {version[:60]!r}", where="engine", expected=f"a released version, such as {name}@0.11.0"
        )
    return version


def experts(model: Model, given: Settings) -> None:
    """Refuse settings of expert parallelism for a model without experts: they could change nothing."""
    named = [name for name in ("skew", "exchange") if name in given]
    if named and model.moe is None:
        raise InputError(
            f"{' and '.join(named)} given, but {model.name} has no experts",
            where="settings",
            expected="a mixture-of-experts model, or none of them",
        )


def saved(value: Any, where: str) -> None:
    """Refuse a file whose engine is not known, or whose groups are more than its cluster holds."""
    try:
        get(value.engine, checked_version(value.engine_version, value.engine))
    except InputError as error:
        raise InputError(
            error.message, where=f"{where}: field engine", expected=error.expected, hint=error.hint
        ) from None
    layout, replicas = getattr(value, "layout", None), getattr(value, "replicas", 1)
    if isinstance(layout, Layout) and not 1 <= replicas * layout.size <= value.cluster.size:
        raise InputError(
            f"field replicas: {replicas} x ({layout}) on {value.cluster.size} devices",
            where=where,
            expected="groups that the cluster holds",
        )
    if isinstance(value, Plan):
        check(value, where)

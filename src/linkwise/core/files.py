"""Bounded reading of files that are hostile until validated."""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

import yaml

from linkwise.core.errors import InputError

MAX_TEXT_BYTES = 32 * 2**20
# YAML expands aliases: a small text can become a huge value, so its bound is tighter than JSON's.
MAX_YAML_BYTES = 2 * 2**20


def read_bytes(path: str | Path, *, max_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Contents of a regular file of at most `max_bytes` bytes. Raises InputError, never OSError."""
    try:
        # O_NONBLOCK: a FIFO given as a config must be refused, not waited for.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        raise InputError("no such file", where=str(path)) from None
    except OSError as error:
        reason = "a loop of symbolic links" if error.errno == errno.ELOOP else (error.strerror or str(error)).lower()
        raise InputError(f"cannot be read: {reason}", where=str(path)) from None
    except ValueError as error:  # an embedded NUL
        raise InputError(f"not a usable path: {error}", where=repr(str(path))) from None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise InputError("not a regular file", where=str(path), expected="a regular file")
        if status.st_size > max_bytes:
            raise InputError(f"{status.st_size} bytes", where=str(path), expected=f"at most {max_bytes} bytes")
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise InputError(f"more than {max_bytes} bytes", where=str(path), expected=f"at most {max_bytes} bytes")
    return data


def read_text(path: str | Path, *, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """UTF-8 text of a bounded regular file."""
    try:
        return read_bytes(path, max_bytes=max_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"byte {error.start} is not UTF-8", where=str(path), expected="UTF-8 text") from None


def parse_json(text: str | bytes, *, where: str) -> Any:
    """A JSON value. Python's reader, since published configs hold `Infinity`, which strict JSON forbids."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"not valid JSON at line {error.lineno} column {error.colno}: {error.msg.lower()}", where=where
        ) from None
    except (RecursionError, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"not valid JSON: {type(error).__name__}", where=where) from None


def read_json_object(path: str | Path, *, max_bytes: int = MAX_TEXT_BYTES) -> dict[str, Any]:
    """A JSON file whose top level is an object."""
    value = parse_json(read_text(path, max_bytes=max_bytes), where=str(path))
    if not isinstance(value, dict):
        raise InputError(f"the top level is a {type(value).__name__}", where=str(path), expected="a JSON object")
    return value


def read_yaml_object(path: str | Path) -> dict[str, Any]:
    """A YAML file whose top level is a mapping. Safe loader; aliases are refused (expansion bombs)."""
    return parse_yaml_object(read_text(path, max_bytes=MAX_YAML_BYTES), where=str(path))


# libyaml's loader is ten times faster where PyYAML was built with it; both are safe loaders.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _NoAliasLoader(_LOADER):  # type: ignore[misc]
    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not accepted")
        return super().compose_node(parent, index)


def parse_yaml_object(text: str, *, where: str) -> dict[str, Any]:
    """A YAML mapping from text, without aliases."""
    try:
        value = yaml.load(text, Loader=_NoAliasLoader)  # noqa: S506 - a subclass of the safe loader
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or str(error)
        raise InputError(f"not valid YAML{line}: {reason}", where=where) from None
    if not isinstance(value, dict):
        raise InputError(f"the top level is a {type(value).__name__}", where=where, expected="a YAML mapping")
    return value

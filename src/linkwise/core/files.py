"""Bounded reading of files that are hostile until validated, and writing that is whole or not at all."""

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from linkwise.core.errors import InputError

MAX_TEXT_BYTES = 32 * 2**20
# YAML expands aliases: a small text can become a huge value, so its bound is tighter than JSON's.
MAX_YAML_BYTES = 2 * 2**20


@contextmanager
def open_regular(path: str | Path) -> Iterator[tuple[BinaryIO, int]]:
    """A regular file opened for reading, and its size in bytes. Raises InputError, never OSError, on opening."""
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
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):  # asked first: Python refuses to open a folder with an error of its own
        os.close(descriptor)
        raise InputError("not a regular file", where=str(path), expected="a regular file")
    with os.fdopen(descriptor, "rb") as file:
        yield file, status.st_size


def read_bytes(path: str | Path, *, max_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Contents of a regular file of at most `max_bytes` bytes. Raises InputError, never OSError."""
    with open_regular(path) as (file, size):
        if size > max_bytes:
            raise InputError(f"{size} bytes", where=str(path), expected=f"at most {max_bytes} bytes")
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


def _load_yaml(text: str) -> Any:
    """The value of one document. A node reached twice is an alias, whichever loader composed it."""
    loader = _LOADER(text)
    try:
        root = loader.get_single_node()
        seen: set[int] = set()
        open_nodes = [] if root is None else [root]
        while open_nodes:
            node = open_nodes.pop()
            if id(node) in seen:
                raise yaml.YAMLError("aliases are not accepted")
            seen.add(id(node))
            if isinstance(node, yaml.MappingNode):
                open_nodes.extend(part for pair in node.value for part in pair)
            elif isinstance(node, yaml.SequenceNode):
                open_nodes.extend(node.value)
        return None if root is None else loader.construct_document(root)
    finally:
        loader.dispose()


def parse_yaml_object(text: str, *, where: str) -> dict[str, Any]:
    """A YAML mapping from text, without aliases."""
    try:
        value = _load_yaml(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or str(error)
        raise InputError(f"not valid YAML{line}: {reason}", where=where) from None
    if not isinstance(value, dict):
        raise InputError(f"the top level is a {type(value).__name__}", where=where, expected="a YAML mapping")
    return value


def write_bytes(path: str | Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write a file completely or leave what was there. mode: permissions of a new file, before the umask.

    Raises InputError, never OSError. What is not a regular file (a terminal, a pipe) is written to as it is.
    """
    try:
        target = os.path.realpath(path)
        beside = f"{target}.{os.getpid()}.part"
        if os.path.exists(target) and not os.path.isfile(target):
            with open(target, "wb") as file:
                file.write(data)
            return
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            os.replace(beside, target)
        except BaseException:
            os.unlink(beside)
            raise
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
        raise InputError(f"cannot be written: {reason}", where=str(path)) from None

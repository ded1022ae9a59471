"""Bounded reading of files that are hostile until validated, and writing that is whole or not at all."""

import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from linkwise.core.errors import InputError

FilePath = str | os.PathLike[str]  # how Python calls name a file
MAX_TEXT_BYTES = 32 * 2**20
# YAML expands aliases: a small text can become a huge value, so its bound is tighter than JSON's.
MAX_YAML_BYTES = 2 * 2**20
MAX_DIGITS = 40


@contextmanager
def open_regular(path: str | Path) -> Iterator[tuple[BinaryIO, int]]:
    """A regular file opened for reading, and its size in bytes. Raises InputError, never OSError, on opening."""
    try:
        # O_NONBLOCK: a FIFO given as a config must be refused, not waited for.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        raise InputError("no such file", where=str(path)) from None
    except OSError as error:
        raise InputError(f"cannot be read: {_reason(error)}", where=str(path)) from None
    except ValueError as error:  # an embedded NUL
        raise InputError(f"not a usable path: {error}", where=repr(str(path))) from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):  # asked first: Python refuses to open a folder with an error of its own
        os.close(descriptor)
        raise InputError("not a regular file", where=str(path), expected="a regular file")
    with os.fdopen(descriptor, "rb") as file:
        try:
            yield file, status.st_size
        except OSError as error:  # a disk that fails while reading
            raise InputError(f"cannot be read: {_reason(error)}", where=str(path)) from None


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
    data = read_bytes(path, max_bytes=max_bytes)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):  # what PowerShell's > writes
            raise InputError(
                "UTF-16 text", where=str(path), expected="UTF-8 text", hint="`iconv -f utf-16 -t utf-8` converts it"
            ) from None
        packed = next((name for start, name in _PACKED.items() if data.startswith(start)), None)
        if packed is not None:
            hint = f"`{packed} -dk FILE` unpacks it"
            raise InputError(f"a {packed} file", where=str(path), expected="UTF-8 text", hint=hint) from None
        raise InputError(f"byte {error.start} is not UTF-8", where=str(path), expected="UTF-8 text") from None


_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ": "xz", b"BZh": "bzip2"}


def parse_json(text: str | bytes, *, where: str, finite: bool = False) -> Any:
    """A JSON value; a key given twice in one object is refused. Raises InputError.

    Python's reader, since published configs hold `Infinity`, which strict JSON forbids; finite: forbid it.
    """
    try:
        return json.loads(
            text, object_pairs_hook=_unique, parse_constant=_not_finite if finite else None, parse_int=_bounded_int
        )
    except json.JSONDecodeError as error:
        raise InputError(
            f"not valid JSON at line {error.lineno} column {error.colno}: {error.msg.lower()}", where=where
        ) from None
    except _Refused as error:
        raise InputError(str(error), where=where, expected=error.expected) from None
    except (RecursionError, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"not valid JSON: {type(error).__name__}", where=where) from None


class _Refused(ValueError):
    """What JSON or YAML allow and we do not."""

    def __init__(self, message: str, expected: str = "") -> None:
        super().__init__(message)
        self.expected = expected


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise _Refused(f"field {twice[:80]!r} is given twice", "each field once")
    return value


def _not_finite(word: str) -> Any:
    raise _Refused(f"the number {word}", "finite numbers")


def _bounded_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:  # arithmetic on what it makes would take unbounded time
        raise _Refused(f"an integer of {len(digits)} digits", f"at most {MAX_DIGITS} digits")
    return int(digits)


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
_SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
# What an unquoted word means: the words of JSON, and text else. YAML 1.1, which PyYAML reads by default, makes `010`
# an octal eight, `1:30` ninety, `no` false and `2024-01-01` a date: here they stay text, refused for numbers.
_MEANINGS = (
    ("null", re.compile(r"~|null|Null|NULL|"), ["~", "n", "N", ""]),
    ("bool", re.compile(r"true|True|TRUE|false|False|FALSE"), list("tTfF")),
    ("int", re.compile(r"[-+]?(?:0|[1-9][0-9]{0,39})"), list("-+0123456789")),
    (
        "float",
        re.compile(
            r"[-+]?(?:(?:(?:0|[1-9][0-9]*)?\.[0-9]+|(?:0|[1-9][0-9]*)\.)(?:[eE][-+]?[0-9]+)?"
            r"|(?:0|[1-9][0-9]*)[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)"
        ),
        list("-+.0123456789"),
    ),
)


class _Loader(_SAFE):  # type: ignore[misc]
    """The safe loader with the meanings above in place of YAML 1.1's."""

    yaml_implicit_resolvers: dict[str, Any] = {}


class _Dumper(yaml.SafeDumper):
    """The safe dumper, which also quotes text that the loader above would take for a number: `0E0`."""


for _kind, _pattern, _starts in _MEANINGS:
    _Dumper.add_implicit_resolver(_TAG + _kind, re.compile(f"(?:{_pattern.pattern})\\Z"), _starts)
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(f"(?:{_pattern.pattern})\\Z"), _starts)


def _load_yaml(text: str) -> Any:
    """The value of one document. A node reached twice is an alias, whichever loader composed it."""
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        seen: set[int] = set()
        open_nodes = [] if root is None else [root]
        while open_nodes:
            node = open_nodes.pop()
            if id(node) in seen:
                raise yaml.YAMLError("aliases are not accepted")
            seen.add(id(node))
            _check_tag(loader, node)
            if isinstance(node, yaml.MappingNode):
                _check_keys(node)
                open_nodes.extend(part for pair in node.value for part in pair)
            elif isinstance(node, yaml.SequenceNode):
                open_nodes.extend(node.value)
        return None if root is None else loader.construct_document(root)
    finally:
        loader.dispose()


def _check_tag(loader: Any, node: Any) -> None:
    """Refuse a tag the text spells out (`!!int "010"`): a value means what it looks like."""
    if not isinstance(node, yaml.ScalarNode):
        plain = _TAG + ("map" if isinstance(node, yaml.MappingNode) else "seq")
    elif node.style:  # quoted or a block
        plain = _TAG + "str"
    else:
        plain = loader.resolve(yaml.ScalarNode, node.value, (True, False))
    if node.tag != plain:
        raise yaml.MarkedYAMLError(problem=f"tag {node.tag[:80]!r} is not accepted", problem_mark=node.start_mark)


def _check_keys(node: Any) -> None:
    """Refuse a key given twice, and YAML's merge key: both hide which value counts."""
    names: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        if key.value in names:
            problem = f"field {key.value[:80]!r} is given twice"
        elif key.value == "<<":
            problem = "merge keys (<<) are not accepted"
        else:
            names.add(key.value)
            continue
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)


def parse_yaml(text: str, *, where: str) -> Any:
    """A YAML value of at most `MAX_YAML_BYTES` characters, without aliases."""
    if len(text) > MAX_YAML_BYTES:
        raise InputError(f"{len(text)} characters of YAML", where=where, expected=f"at most {MAX_YAML_BYTES}")
    try:
        return _load_yaml(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or str(error)
        raise InputError(f"not valid YAML{line}: {reason}", where=where) from None


def parse_yaml_object(text: str, *, where: str) -> dict[str, Any]:
    """A YAML mapping from text, without aliases."""
    value = parse_yaml(text, where=where)
    if not isinstance(value, dict):
        raise InputError(f"the top level is a {type(value).__name__}", where=where, expected="a YAML mapping")
    return value


def dump_yaml(value: dict[str, Any]) -> str:
    """YAML that a person reads and `parse_yaml_object` reads back to an equal value."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None
    )
    return text


def write_bytes(path: str | Path, data: bytes, *, mode: int = 0o666, regular: bool = False) -> None:
    """Write a file completely or leave what was there. mode: permissions of a new file, before the umask.

    What is not a regular file (a terminal, a pipe somebody reads) is written to as it is; regular: refused.
    Raises InputError, never OSError.
    """
    try:
        target = _target(path)
        if os.path.exists(target) and not os.path.isfile(target):
            if regular:
                raise InputError("not a regular file", where=str(path), expected="a regular file, or none")
            _write_into(target, data)
            return
        beside = f"{target}.{os.getpid()}.part"
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
        raise InputError(f"cannot be written: {_reason(error)}", where=str(path)) from None


def _target(path: str | Path) -> str:
    """What the path leads to: the link itself is never replaced. Raises OSError for a loop of links."""
    try:
        return os.path.realpath(path, strict=True)
    except FileNotFoundError:
        return os.path.realpath(path)


def _write_into(path: str, data: bytes) -> None:
    # O_NONBLOCK: a FIFO that nobody reads is refused (ENXIO), not waited for.
    descriptor = os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def _reason(error: OSError | ValueError) -> str:
    if not isinstance(error, OSError):
        return str(error)
    known = {errno.ELOOP: "a loop of symbolic links", errno.ENXIO: "nobody reads this pipe"}
    return known.get(error.errno or 0) or (error.strerror or str(error)).lower()

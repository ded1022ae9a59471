"""Launch commands as words: reading an engine's flags by table, and finding the engine in a pasted command."""

import difflib
import json
import re
import shlex
from collections.abc import Iterable
from typing import Any, NamedTuple

from linkwise.core.errors import InputError
from linkwise.engine.facts_io import Flag, Flags

MAX_COMMAND_CHARS = 100_000
_ELLIPSIS = {"...", "…", "[...]", "[options]", "[OPTIONS]"}
_CONTROL = re.compile(r"(?:&&|\|\|?|;|&|\d?>>?.*|\d>&\d|<.*)")
_ENVIRONMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_SECRET = re.compile(r"(?:apikey|(?:^|[-_])(?:key|token|secret|password))$", re.IGNORECASE)
_HIDDEN = "***"
# vLLM's own reading of sizes: lower case is decimal and may have a fraction, upper case is binary and may not.
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class Words(NamedTuple):
    """A command taken apart. values: known flags by key; ignored: flags that change neither layout nor memory."""

    values: dict[str, Any]
    positional: tuple[str, ...]
    environment: dict[str, str]
    ignored: tuple[str, ...]
    notes: tuple[str, ...]

    def take(self, key: str, default: Any = None) -> Any:
        return self.values.get(key, default)


def split(text: str) -> list[str]:
    """Words of a command as a POSIX shell would split it. Nothing is expanded and nothing is run."""
    if len(text) > MAX_COMMAND_CHARS:
        raise InputError(f"{len(text)} characters", where="command", expected=f"at most {MAX_COMMAND_CHARS}")
    # A backslash with blanks after it is a common slip that a shell would not join; the intent is plain.
    joined = re.sub(r"\\[ \t]*\r?\n", " ", text)
    try:
        return shlex.split(joined, comments=True)
    except ValueError as error:
        raise InputError(f"not a command: {error}", where="command", expected="balanced quotes") from None


def concealed(words: Iterable[str]) -> str:
    """Words as they may be shown and kept: without the values of keys, tokens and passwords."""
    shown, secret = list[str](), False
    for word in words:
        name, equals, _ = word.partition("=")
        if secret and not word.startswith("-"):
            shown.append(_HIDDEN)
            continue
        secret = _SECRET.search(name) is not None and (word.startswith("-") or bool(equals))
        shown.append(f"{name}={_HIDDEN}" if secret and equals else word)
        secret = secret and not equals
    return " ".join(shown)


def read(words: list[str], table: Flags, *, where: str) -> Words:
    """Words after the program's name, by the engine's table. Leading NAME=value words are the environment.

    Raises InputError for a flag in no list (naming the nearest known one), a missing or malformed value.
    """
    names = {n: (key, flag) for key, flag in table.known.items() for n in flag.names}
    values: dict[str, Any] = {}
    positional: list[str] = []
    environment: dict[str, str] = {}
    ignored: list[str] = []
    notes: list[str] = []
    queue = list(words)
    while queue and _ENVIRONMENT.fullmatch(queue[0]):
        name, _, value = queue.pop(0).partition("=")
        environment[name] = value
        if name not in table.environment:
            ignored.append(concealed([f"{name}={value}"]))
    while queue:
        word = queue.pop(0)
        if word in _ELLIPSIS:
            ignored.append(word)
            notes.append(f"{word!r} stands for options that were not given: they are taken to be the defaults")
        elif _CONTROL.fullmatch(word):
            ignored.append(concealed([word, *queue]))
            queue.clear()
        elif not word.startswith("-") or word == "-":
            positional.append(word)
        else:
            _flag(word, queue, table, names, values, ignored, where)
    return Words(values, tuple(positional), environment, tuple(ignored), tuple(notes))


def _flag(
    word: str,
    queue: list[str],
    table: Flags,
    names: dict[str, tuple[str, Flag]],
    values: dict[str, Any],
    ignored: list[str],
    where: str,
) -> None:
    """One flag and its value: into `values`, or into `ignored` as written."""
    name, equals, inline = word.partition("=")
    plain = "--" + name[2:].replace("_", "-") if name.startswith("--") else name
    head, dot, path = plain.partition(".")
    if plain in table.refused:
        raise InputError(f"{name} is not modelled", where=where, hint=table.refused[plain])
    if plain in names or (dot and head in names and names[head][1].kind == "json"):
        key, flag = names[plain if plain in names else head]
        if flag.kind == "switch":
            values[key] = inline.lower() not in {"false", "0"} if equals else True
            return
        text = inline if equals else _next(queue, name, where)
        if plain in names:
            values[key] = _value(text, flag.kind, name, where)
        else:
            _nest(values.setdefault(key, {}), path.replace("-", "_").split("."), text)
        return
    positive = "--" + plain[5:] if plain.startswith("--no-") else plain
    if positive in names and names[positive][1].kind == "switch":
        values[names[positive][0]] = False
    elif plain in table.values or (dot and head in table.values):
        ignored.append(concealed([word] if equals else [word, _next(queue, name, where)]))
    elif positive in table.switches:
        ignored.append(word)
    elif plain in table.lists:
        taken = [word]
        while queue and not queue[0].startswith("-") and not _CONTROL.fullmatch(queue[0]):
            taken.append(queue.pop(0))
        ignored.append(concealed(taken))
    else:
        raise _unknown(name, plain, table, where)


def _unknown(name: str, plain: str, table: Flags, where: str) -> InputError:
    known = [n for flag in table.known.values() for n in flag.names]
    near = difflib.get_close_matches(plain, [*known, *table.values, *table.switches, *table.lists], n=1, cutoff=0.6)
    meant = f"Did you mean {near[0]}? " if near else ""
    return InputError(
        f"unknown flag {name}"[:120],
        where=where,
        expected="a flag whose effect on layout and memory is known",
        hint=f"{meant}Remove it if it changes neither",
    )


def _next(queue: list[str], name: str, where: str) -> str:
    if not queue or (queue[0].startswith("--") and len(queue[0]) > 2):
        raise InputError(f"{name} has no value", where=where, expected=f"{name} VALUE")
    return queue.pop(0)


def _value(text: str, kind: str, name: str, where: str) -> Any:
    if "$" in text and kind != "json":
        raise InputError(
            f"{name} is {text!r}"[:200], where=where, hint="Shell variables are not expanded: write the value"
        )
    if kind == "text":
        return text
    if kind == "human":
        return human_int(text, where=f"{where}: {name}")
    if kind == "json":
        return _json_object(text, f"{where}: {name}")
    try:
        return int(text) if kind == "int" else float(text)
    except ValueError:
        expected = "an integer" if kind == "int" else "a number"
        raise InputError(f"{name} is {text!r}"[:200], where=where, expected=expected) from None


def _json_object(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(
            f"{text!r} is not JSON"[:200], where=where, expected="a JSON object in single quotes"
        ) from None
    if not isinstance(value, dict):
        raise InputError(f"a JSON {type(value).__name__}", where=where, expected="a JSON object")
    return value


def _nest(into: dict[str, Any], path: list[str], text: str) -> None:
    """--config.a.b VALUE: the value as JSON where it is, else as text."""
    for part in path[:-1]:
        into = into.setdefault(part, {})
    try:
        into[path[-1]] = json.loads(text)
    except ValueError:
        into[path[-1]] = text


def unused(name: str, config: Any, used: tuple[str, ...] = ()) -> list[str]:
    """Entries of a JSON flag that nobody reads, as words: "--config.a.b=true". `used`: dotted paths that are read."""
    if isinstance(config, dict) and config:
        inner = [p.partition(".") for p in used]
        return [
            word
            for key, value in config.items()
            if key not in used
            for word in unused(f"{name}.{key}", value, tuple(rest for head, _, rest in inner if head == key and rest))
        ]
    return [f"{name}={json.dumps(config)}"]


def human_int(text: str, *, where: str) -> int | None:
    """An integer as vLLM reads it: 32k = 32,000, 32K = 32,768, 1M = 1,048,576, 25.6k = 25,600; auto and -1 = None.

    Source: vllm/engine/arg_utils.py, human_readable_int.
    """
    if text.strip() in {"auto", "-1"}:
        return None
    match = re.fullmatch(r"(\d{1,15})(\.\d{1,9})?([kKmMgGtT]?)", text.strip())
    whole_only = match and match[3] in {"", *_BINARY}
    if not match or (match[2] and whole_only):
        raise InputError(
            f"{text!r}"[:200], where=where, expected="an integer such as 32768, 32k (32,000) or 32K (32,768)"
        )
    scale = _BINARY.get(match[3]) or _DECIMAL.get(match[3]) or 1
    return round(float(match[1] + (match[2] or "")) * scale) if match[2] else int(match[1]) * scale


def positive(value: Any, name: str, where: str) -> int:
    """A degree or count given by a flag, 1 when absent. Raises InputError below 1."""
    if value is None:
        return 1
    if not isinstance(value, int) or value < 1:
        raise InputError(f"{name} is {value!r}", where=where, expected="at least 1")
    return value


def without_program(words: list[str], programs: tuple[tuple[str, ...], ...]) -> list[str]:
    """Words without the program's own (one of `programs`, python's `-m MODULE` included), environment words kept."""
    start = 0
    while start < len(words) and _ENVIRONMENT.fullmatch(words[start]):
        start += 1
    rest = [w.rsplit("/", 1)[-1] for w in words[start : start + 1]] + words[start + 1 :]
    if rest[:1] and re.fullmatch(r"python(\d[\d.]*)?", rest[0]):
        rest = rest[1:]
    for program in programs:
        if tuple(rest[: len(program)]) == program:
            return words[:start] + rest[len(program) :]
    return list(words)

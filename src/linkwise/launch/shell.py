"""A shell script as the simple commands in it, as they are written. Nothing is run, and no branch is chosen."""

import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from linkwise.core.errors import InputError
from linkwise.engine.flags import MAX_COMMAND_CHARS

_SHELLS = {"sh", "bash", "dash", "ash", "zsh"}
_TAKES_VALUE = re.compile(r"[-+][a-zA-Z]*[oO]")  # set -o NAME and shopt -O NAME, alone or last in a bundle
_HEREDOC = re.compile(r"<<-?[ \t]*(['\"]?)(\w{1,60})\1([^\n]*)\n(?:.*\n){0,300}?[ \t]*\2[ \t]*(?=\n|$)")
_TOKEN = re.compile(
    r"(?P<blank>(?:[ \t\r]|\\[ \t]*\r?\n)+)"
    r"|(?P<comment>#[^\n]*)"
    r"|(?P<redirect>(?:\d|&)?>[>|]?(?:&\d?-?)?|\d?<{1,3}(?:&\d?-?)?)"
    r"|(?P<end>;;|&&|\|\||[;&|()\n])"
    r"|(?P<word>(?:'[^']*'|\"(?:[^\"\\]|\\.)*\"|\$\((?:[^()]|\([^()]*\))*\)|\$\{[^}]{0,1000}\}|`[^`]*`|\\.|[^\s;&|()<>'\"`\\])+)",
    re.DOTALL,
)
_KEYWORDS = {"if", "then", "else", "elif", "while", "until", "do", "!", "{", "time", "exec", "nohup", "setsid"}
_CLOSING = {"fi", "done", "esac", "}"}


class Script(NamedTuple):
    """What a shell is given to run. arguments: $1 and on, which `$@` stands for."""

    text: str
    arguments: tuple[str, ...]


def script(words: Sequence[str]) -> Script | None:
    """The script in a shell's words, as in `bash -lc SCRIPT NAME ARGUMENTS`; None for other words."""
    rest = list(words)
    if rest and rest[0].rsplit("/", 1)[-1] == "env":
        rest = rest[1:]
    rest = rest[0].split() + rest[1:] if rest else []  # "/usr/bin/env bash" is written as one word, too
    if rest and rest[0].rsplit("/", 1)[-1] == "env":
        rest = rest[1:]
    if not rest or rest[0].rsplit("/", 1)[-1] not in _SHELLS:
        return None
    from_words, at = False, 1
    while at < len(rest) and rest[at][:1] in {"-", "+"} and len(rest[at]) > 1:
        word = rest[at]
        if word == "--":
            at += 1
            break
        from_words |= re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", word) is not None
        at += 2 if _TAKES_VALUE.fullmatch(word) else 1
    return Script(rest[at], tuple(rest[at + 2 :])) if from_words and at < len(rest) else None


def commands(text: str) -> list[list[str]]:
    """Every simple command of a script as words, without the keywords before it and without redirections.

    Raises InputError for quotes that do not close, and for more than a script may have.
    """
    if len(text) > MAX_COMMAND_CHARS:
        raise InputError(f"{len(text)} characters", where="script", expected=f"at most {MAX_COMMAND_CHARS}")
    text = _HEREDOC.sub(lambda match: match[3], text)
    found: list[list[str]] = [[]]
    at, skip = 0, False
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise InputError(f"not a command: {text[at : at + 40]!r}", where="script", expected="balanced quotes")
        at = token.end()
        if token["redirect"]:
            skip = not re.search(r"&(\d|-)$", token["redirect"])  # its target is the next word
        elif token["end"]:
            found.append([])
            skip = False
        elif token["word"] and skip:
            skip = False
        elif token["word"]:
            found[-1].append(_plain(token["word"]))
    return [words for words in map(_without_keywords, found) if words]


def _plain(word: str) -> str:
    """A word without its quotes. What runs a command stays as it is written."""
    if word.startswith(("$(", "`")):
        return word
    return " ".join(shlex.split(word))


def _without_keywords(words: list[str]) -> list[str]:
    at = 0
    while at < len(words) and words[at] in _KEYWORDS:
        at += 1
    return [] if words[at : at + 1] and words[at] in _CLOSING else words[at:]

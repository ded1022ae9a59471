"""Slurm's short form of many host names: `tux[0-3,12]`, `rack[1-2]node[01-18]`, `a1,b[2-3]`."""

import re

from linkwise.cluster.types import MAX_DEVICES
from linkwise.core.errors import InputError

_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
_PIECE = re.compile(r"[^\s,\[\]]*(?:\[[^\[\]]*\][^\s,\[\]]*)*")
_FORM = "names such as node[01-18,20] or a1,a2"


def expand(text: str, *, where: str, most: int = MAX_DEVICES) -> tuple[str, ...]:
    """Every name of a host list, in its order. Raises InputError when malformed, or longer than `most` names."""
    names: list[str] = []
    for piece in _pieces(text, where):
        names += _names(piece, where, most - len(names))
    return tuple(names)


def _pieces(text: str, where: str) -> list[str]:
    """The list split at the commas outside brackets."""
    pieces, at, plain = [], 0, text.strip()
    while at <= len(plain):
        match = _PIECE.match(plain, at)
        end = match.end() if match else at
        if end == at or (end < len(plain) and plain[end] != ","):
            raise InputError(f"{_short(text)} is not a host list", where=where, expected=_FORM)
        pieces.append(plain[at:end])
        at = end + 1
    return pieces


def _names(piece: str, where: str, most: int) -> list[str]:
    """The names of one piece: every combination of its brackets, the last turning fastest."""
    names = [""]
    for at, part in enumerate(re.split(r"[\[\]]", piece)):
        choices = [part] if at % 2 == 0 else _numbers(part, where, most)
        if len(names) * len(choices) > most:
            raise InputError(f"{_short(piece)} is too many names", where=where, expected=f"at most {MAX_DEVICES}")
        names = [name + choice for name in names for choice in choices]
    return names


def _numbers(inside: str, where: str, most: int) -> list[str]:
    """The numbers of one bracket, as wide as the first of each range is written."""
    numbers: list[str] = []
    for part in inside.split(","):
        match = _RANGE.fullmatch(part.strip())
        if not match:
            raise InputError(f"[{_short(inside)}] is no list of numbers", where=where, expected=_FORM)
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise InputError(f"[{_short(inside)}] runs backwards", where=where, expected=_FORM)
        if last - first + 1 > most - len(numbers):
            raise InputError(f"[{_short(inside)}] is too many names", where=where, expected=f"at most {MAX_DEVICES}")
        numbers += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return numbers


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")

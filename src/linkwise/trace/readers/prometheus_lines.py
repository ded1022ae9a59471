"""A line of the Prometheus and OpenMetrics text formats: name, labels, value, time, and an exemplar that is left out.

Grammar: prometheus/docs content/docs/instrumenting/exposition_formats.md; OpenMetrics 1.0.
"""

import math
import re
from typing import NamedTuple

MAX_LABELS = 64
NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'\s*([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,|(?=\}))')
_ESCAPE = re.compile(r"\\(.)")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,4})?|[-+]?[iI]nf(?:inity)?|[nN]a[nN]")
_FAR_MS = 10**11  # a time above is in ms, as Prometheus writes; below in s, as OpenMetrics does


class Sample(NamedTuple):
    """One line. unix_ns: its own time, 0 = none."""

    name: str
    labels: dict[str, str]
    value: float
    unix_ns: int
    line: int
    text: str


def sample(name: str, text: str, at: int, line: int) -> Sample | None:
    """A line's labels, value and time; None for one that is not of the grammar."""
    labels: dict[str, str] = {}
    rest = text[at:].lstrip()
    if rest.startswith("{"):
        at = text.index("{", at) + 1
        while not text.startswith("}", at):
            found = _LABEL.match(text, at)
            if found is None or len(labels) >= MAX_LABELS or found[1] in labels:
                if not text[at:].lstrip().startswith("}"):
                    return None
                at = text.index("}", at)
                break
            labels[found[1]] = _ESCAPE.sub(_unescaped, found[2]) if "\\" in found[2] else found[2]
            at = found.end()
        rest = text[at + 1 :]
    said = figure(rest)
    return Sample(name, labels, *said, line, text) if said else None


def figure(rest: str) -> tuple[float, int] | None:
    """Value and Unix time in ns, 0 = none, of what stands behind a line's labels; None: not of the grammar."""
    words = rest.split(None, 3)
    if not words or not _NUMBER.fullmatch(words[0][:64]) or len(words[0]) > 64:
        return None
    at_ns = 0
    if len(words) > 1 and words[1] != "#":
        if not _NUMBER.fullmatch(words[1][:64]) or (len(words) > 2 and words[2] != "#"):
            return None
        at_ns = unix_ns(words[1])
    return float(words[0]), at_ns


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def unix_ns(text: str) -> int:
    """Unix ns of a time in s or ms; 0 for what is none."""
    if re.fullmatch(r"\d{1,19}", text) and int(text) > _FAR_MS:
        return min(int(text) * (1 if int(text) > 10**17 else 10**6), 2**62)
    value = float(text) if _NUMBER.fullmatch(text[:64]) else math.nan
    if not 0 < value < 2**62 / 1e6:
        return 0
    scale = 10**6 if value > _FAR_MS else 10**9
    whole = int(value)  # taken apart, as the product would not have the ns
    return min(whole * scale + round((value - whole) * scale), 2**62)

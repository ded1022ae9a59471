"""What readers of results share: one entry of a file with checked fields, and what a reader is."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from linkwise.core.printable import clipped, printable
from linkwise.workload.results.types import Row
from linkwise.workload.types import MAX_TOKENS

MAX_SECONDS = 1e6
MAX_COUNT = 10**12
MAX_TEXT = 300

_NUMBER = re.compile(
    r"[-+]?(?:\d{1,18}(?:\.\d{0,18})?|\.\d{1,18})(?:[eE][-+]?\d{1,3})?|[-+]?(?:inf|infinity|nan)", re.I
)
_TRUE, _FALSE = {"1", "1.0", "true", "yes"}, {"0", "0.0", "false", "no"}


class Unusable(Exception):
    """An entry that is left out, and why."""


class Entry(NamedTuple):
    """A part of a file that is one run, or several. where: file and line or entry; values: its fields."""

    where: str
    values: Mapping[str, Any]

    def part(self, *path: str) -> "Entry":
        """The object at a path of names; an empty one where there is none."""
        found: Any = self.values
        for name in path:
            found = found.get(name) if isinstance(found, Mapping) else None
        return Entry(f"{self.where}: {'.'.join(path)}", found if isinstance(found, Mapping) else {})

    def given(self, *names: str) -> str:
        """The first of the names that has a value; "" = none has."""
        return next((name for name in names if self.values.get(name) not in (None, "", [])), "")

    def text(self, *names: str) -> str | None:
        """A short text, of a list its only member. Raises Unusable for other values."""
        name = self.given(*names)
        value = self.values.get(name) if name else None
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if value is None:
            return None
        if not isinstance(value, (str, int, float)) or isinstance(value, bool):
            raise Unusable(f"field {name}: a {type(value).__name__}, expected text")
        return clipped(printable(" ".join(str(value).split())), MAX_TEXT) or None

    def number(self, *names: str, low: float = 0.0, high: float = math.inf, scale: float = 1.0) -> float | None:
        """A finite number between the two, times scale. Raises Unusable for other values."""
        name = self.given(*names)
        if not name:
            return None
        value = as_number(self.values[name])
        if value is None:
            raise Unusable(f"field {name}: {shown(self.values[name])}, expected a number")
        if not math.isfinite(value) or not low <= value * scale <= high:
            bounds = f"{low / scale:g} to {high / scale:g}" if high < math.inf else f"{low / scale:g} or more"
            raise Unusable(f"field {name}: {value:g}, expected {bounds}")
        return value * scale

    def whole(self, *names: str, low: int = 1, high: int = MAX_COUNT) -> int | None:
        """A whole number, also one that is written 8.0."""
        value = self.number(*names, low=low, high=high)
        if value is None:
            return None
        if value != int(value):
            raise Unusable(f"field {self.given(*names)}: {value:g}, expected a whole number")
        return int(value)

    def flag(self, *names: str) -> bool | None:
        """True or false, in words or as 1 or 0."""
        name = self.given(*names)
        if not name:
            return None
        word = str(self.values[name]).strip().lower()
        if word not in _TRUE | _FALSE:
            raise Unusable(f"field {name}: {shown(self.values[name])}, expected true or false")
        return word in _TRUE

    def seconds(self, *names: str, scale: float = 1e-3) -> float | None:
        """A time in s, from one in ms by default; 0 is what tools write for what they did not measure."""
        return self.number(*names, low=0.0, high=MAX_SECONDS, scale=scale) or None

    def rate(self, *names: str) -> float | None:
        """Arrivals a second; infinite = all at once = None."""
        name = self.given(*names)
        value = as_number(self.values[name]) if name else None
        if name and (value == math.inf or self.values[name] in ("trace", "inf")):
            return None
        return self.number(*names, low=0.0, high=1e7) or None

    def tokens(self, *names: str) -> float | None:
        """A mean number of tokens of a request."""
        return self.number(*names, low=1.0, high=float(MAX_TOKENS))

    def degree(self, *names: str) -> int | None:
        """How many ranks; also counts of devices."""
        return self.whole(*names, low=1, high=1_000_000)


def as_number(value: object) -> float | None:
    """The number that a value or a text of one stands for; None for others. It need not be finite."""
    if isinstance(value, str):
        return float(value.replace(",", "")) if _NUMBER.fullmatch(value.strip().replace(",", "")) else None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def shown(value: object) -> str:
    """A value as it may stand in a reason."""
    return repr(clipped(printable(str(value)), 60))


def usable(row: Row) -> Row:
    """The row. Raises Unusable for one that says no time, or not how long its requests are."""
    if row.ttft_s is None and row.tpot_s is None:
        raise Unusable("neither a time to first token nor a time per output token")
    return row


class Reader(Protocol):
    """A format of JSON: a module. FORMAT names it; recognises: by an entry's fields; rows: raises Unusable."""

    FORMAT: str

    def recognises(self, entry: Entry) -> bool: ...

    def rows(self, entry: Entry) -> Iterator[Row]: ...

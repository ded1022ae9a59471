"""The metadata of a GGUF file, typed as it is asked for."""

import math
from typing import Any

from linkwise.core.errors import InputError

MAX_TOKENS = 2_000_000
MAX_COUNT = 1 << 31


class Fields:
    """Values by name of what `gguf.GGUFReader` has read. Raises InputError naming the field."""

    def __init__(self, reader: Any, where: str) -> None:
        self._fields, self.where = reader.fields, where

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def _value(self, name: str, otherwise: Any, kind: type | tuple[type, ...], what: str) -> Any:
        if name not in self._fields:
            if otherwise is None:
                raise InputError(f"has no {name}", where=self.where, expected=what)
            return otherwise
        try:
            value = self._fields[name].contents()
        except (ValueError, IndexError) as error:
            raise InputError(f"{name} is malformed: {error}", where=self.where, expected=what) from None
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InputError(f"{name} is {value!r}"[:120], where=self.where, expected=what)
        return value

    def count(self, name: str, otherwise: int | None = None, *, least: int = 1, most: int = MAX_COUNT) -> int:
        """A whole number from least to most."""
        value: int = self._value(name, otherwise, int, "a whole number")
        if value != otherwise and not least <= value <= most:
            raise InputError(f"{name} is {value}", where=self.where, expected=f"a whole number from {least} to {most}")
        return value

    def number(self, name: str, otherwise: float | None = None) -> float:
        """A positive number. The file keeps 32 bits: the shortest decimal number that has them is what was meant."""
        value = self._value(name, otherwise, (int, float), "a number")
        if not 0 < value < 1e12 or not math.isfinite(value):
            raise InputError(f"{name} is {value}", where=self.where, expected="a positive number")
        return float(f"{value:.7g}")

    def flag(self, name: str, otherwise: bool) -> bool:
        return bool(self._value(name, otherwise, bool, "true or false"))

    def text(self, name: str, otherwise: str | None = None) -> str:
        return str(self._value(name, otherwise, str, "text"))

    def texts(self, name: str) -> list[str]:
        return self._list(name, str)

    def counts(self, name: str) -> list[int]:
        return self._list(name, int)

    def _list(self, name: str, kind: type) -> list[Any]:
        values: list[Any] = self._value(name, None, list, f"a list of {kind.__name__}")
        if len(values) > MAX_TOKENS or not all(type(value) is kind for value in values):
            raise InputError(f"{name} is no list of {kind.__name__}", where=self.where, expected=f"up to {MAX_TOKENS}")
        return values

"""What every worked calculation is made of: its inputs, its answer, and how a difference is said."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from linkwise.cluster.types import Cluster
from linkwise.core.chain import Chain, chain_of, show
from linkwise.core.errors import InputError
from linkwise.core.quantity import Num, Quantity
from linkwise.core.units import show_bytes
from linkwise.model.types import Model

Figures = dict[str, Quantity]


class Worked(NamedTuple):
    """One worked calculation. `str()` prints it.

    expect: the textbook's figures. ledger: what the plan's own accounting gives for a real engine, by name.
    differences: why they differ, line by line. decision, shows: the answer to a question of choice, and what it costs.
    """

    id: str
    title: str
    expect: Figures
    ledger: Figures = {}
    differences: tuple[str, ...] = ()
    decision: str = ""
    shows: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()

    def chain(self, figure: str) -> Chain:
        """The chain of one figure: a name of `expect`, or `ledger.` and a name of `ledger`. InputError if unknown."""
        known = self.expect | {f"ledger.{name}": found for name, found in self.ledger.items()}
        found = known.get(figure)
        if found is None:
            raise InputError(
                f"no figure {figure!r}"[:100], where=f"seed:{self.id}", expected=f"one of {', '.join(known)}"
            )
        return chain_of(found)

    def __str__(self) -> str:
        blocks = [f"{self.title}   (seed:{self.id}, convention textbook)"]
        if self.decision:
            blocks.append(self.decision)
        blocks.append(str(chain_of(*self.expect.values())))
        if self.shows:
            blocks.append("\n".join(f"{name}: {text}" for name, text in self.shows.items()))
        if self.ledger:
            lines = ["beside it, the plan's own accounting:"]
            lines += [f"  {name} = {chain_of(figure).result}" for name, figure in self.ledger.items()]
            blocks.append("\n".join(lines))
        if self.differences:
            blocks.append("\n".join(["what makes the difference:", *(f"  {line}" for line in self.differences)]))
        blocks += [f"note: {note}" for note in self.notes]
        return "\n\n".join(blocks)


class Inputs:
    """The inputs of one calculation: what was given, else its default; what nobody asked for is refused at the end."""

    def __init__(self, id: str, values: Mapping[str, Any] | None) -> None:
        self.where = f"seed:{id}"
        self._values = dict(values or {})
        self._asked: set[str] = set()

    def value(self, name: str, default: Any) -> Any:
        self._asked.add(name)
        return self._values.get(name, default)

    def number(self, name: str, default: float, unit: str = "", source: str = "the worked example") -> Quantity:
        """A positive number as a recorded input; whole numbers stay whole."""
        value = self.value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise InputError(f"{name} is {value!r}"[:100], where=self.where, expected="a number above 0")
        return Quantity.given(name, value, unit, "given" if name in self._values else source)

    def count(self, name: str, default: int, unit: str = "", source: str = "the worked example") -> Quantity:
        """A positive whole number."""
        found = self.number(name, default, unit, source)
        if not isinstance(found.value, int) or found.value > 10**15:
            raise InputError(f"{name} is {found.value!r}", where=self.where, expected="a whole number above 0")
        return found

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str, default: str) -> str:
        value = self.value(name, default)
        if not isinstance(value, str) or len(value) > 200:
            raise InputError(f"{name} is {value!r}"[:100], where=self.where, expected="a short text")
        return value

    def agrees(self, name: str, fact: float | str, *, within: float = 0.0) -> None:
        """An input that only repeats a fact of the model must say the same as the fact."""
        value = self.value(name, fact)
        same = value == fact
        if not same and within and isinstance(value, int | float) and isinstance(fact, int | float):
            same = abs(value - fact) <= within * abs(fact)
        if not same:
            raise InputError(
                f"{name} is {value!r}"[:100], where=self.where, expected=f"{fact!r}, as the model or formula has it"
            )

    def model(self, default: str, *, weight_dtype: str | None = None) -> Model:
        """A model of the catalogue (or a folder) by the name people write."""
        from linkwise.model.read import load

        return load(self.text("model", default), weight_dtype=weight_dtype)

    def finish(self) -> None:
        unknown = sorted(set(self._values) - self._asked)
        if unknown:
            raise InputError(
                f"unknown input {', '.join(unknown)}"[:200],
                where=self.where,
                expected="one of " + ", ".join(sorted(self._asked)),
            )


def cluster(on: str) -> Cluster:
    """A cluster by shorthand."""
    from linkwise.cluster.read import load

    return load(on)


def compare(name: str, textbook: Quantity | float, ledger: Quantity | float, unit: str, why: str) -> str:
    """One line of a difference: both figures and the reason."""
    a, b = (x.value if isinstance(x, Quantity) else x for x in (textbook, ledger))
    one, other = (show_bytes(x) if unit == "B" else f"{show(x)} {unit}".rstrip() for x in (a, b))
    return f"{name}: textbook {one}, ledger {other}: {why}"


def step(name: str, number: Num, unit: str = "", note: str = "") -> Quantity:
    """A figure of the answer under the name it is asked by."""
    kept = (
        number if isinstance(number, Quantity) else Quantity.given(name, number, unit, "counted in the step's op list")
    )
    return Quantity(kept.value, unit or kept.unit, name, kept.source, kept.op or "=", kept.args or (kept,), note)

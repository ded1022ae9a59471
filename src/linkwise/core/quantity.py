"""A number that explains itself (DESIGN §2.2).

The functions that compute our figures are written once and run on three kinds of number: plain int/float, numpy
arrays (a whole batch axis at once), and `Quantity`, which records the chain. They may branch on a value only through
`where`, `maximum`, `minimum`, `ceil_div` and friends below: a comparison of quantities is a quantity and refuses to be
used in an `if`, so a figure's chain can never hide a decision.

    given  : Given = plain            # or Quantity.given
    hidden = given("hidden", 8192, "elements", "config.json: hidden_size")
    size   = named("S", hidden * tokens * 2, "B")
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, Protocol

# int | float | bool | numpy array | Quantity. One alias, so that signatures say "a number, in any of its forms".
Num = Any


class Given(Protocol):
    """How an input enters a computation: `plain` drops the words, `Quantity.given` keeps them."""

    def __call__(self, name: str, value: Num, unit: str = "", source: str = "") -> Num: ...


def plain(name: str, value: Num, unit: str = "", source: str = "") -> Num:
    """The fast path: the value itself."""
    return value


class Quantity:
    """A recorded number: value, unit, and either a source (an input) or the operation that made it.

    Attributes:
        value: int, float or bool. Integers stay exact.
        unit: what the number counts ("B", "s", "tokens", ...); shown, not checked.
        name: set for inputs and for named intermediate results; empty for anonymous ones.
        source: where an input came from.
        op, args: the operation and its operands; empty for an input.
        note: a sanity line or a remark shown below the step.
    """

    __slots__ = ("args", "name", "note", "op", "source", "unit", "value")
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        value: Any,
        unit: str = "",
        name: str = "",
        source: str = "",
        op: str = "",
        args: tuple[Any, ...] = (),
        note: str = "",
    ) -> None:
        self.value, self.unit, self.name, self.source = value, unit, name, source
        self.op, self.args, self.note = op, args, note

    @staticmethod
    def given(name: str, value: Num, unit: str = "", source: str = "") -> Quantity:
        """An input of a computation. A quantity given again keeps its own chain under the new name."""
        if isinstance(value, Quantity):
            return Quantity(value.value, unit or value.unit, name, source or value.source, value.op, value.args)
        return Quantity(value, unit, name, source)

    def __add__(self, other: Num) -> Quantity:
        return _record("+", self, other, lambda a, b: a + b)

    def __radd__(self, other: Num) -> Quantity:
        return _record("+", other, self, lambda a, b: a + b)

    def __sub__(self, other: Num) -> Quantity:
        return _record("-", self, other, lambda a, b: a - b)

    def __rsub__(self, other: Num) -> Quantity:
        return _record("-", other, self, lambda a, b: a - b)

    def __mul__(self, other: Num) -> Quantity:
        return _record("*", self, other, lambda a, b: a * b)

    def __rmul__(self, other: Num) -> Quantity:
        return _record("*", other, self, lambda a, b: a * b)

    def __truediv__(self, other: Num) -> Quantity:
        return _record("/", self, other, lambda a, b: a / b)

    def __rtruediv__(self, other: Num) -> Quantity:
        return _record("/", other, self, lambda a, b: a / b)

    def __floordiv__(self, other: Num) -> Quantity:
        return _record("//", self, other, lambda a, b: a // b)

    def __rfloordiv__(self, other: Num) -> Quantity:
        return _record("//", other, self, lambda a, b: a // b)

    def __neg__(self) -> Quantity:
        return _record("-", 0, self, lambda a, b: a - b)

    def __lt__(self, other: Num) -> Quantity:
        return _record("<", self, other, lambda a, b: a < b)

    def __le__(self, other: Num) -> Quantity:
        return _record("<=", self, other, lambda a, b: a <= b)

    def __gt__(self, other: Num) -> Quantity:
        return _record(">", self, other, lambda a, b: a > b)

    def __ge__(self, other: Num) -> Quantity:
        return _record(">=", self, other, lambda a, b: a >= b)

    def __bool__(self) -> bool:
        raise TypeError("a Quantity does not branch: use where(), maximum(), minimum()")

    def __float__(self) -> float:
        raise TypeError("a Quantity keeps its chain: use value_of() at the edge")

    def __repr__(self) -> str:
        return f"{self.name or 'quantity'} = {self.value!r} {self.unit}".rstrip()


def _record(op: str, a: Num, b: Num, apply: Callable[[Any, Any], Any]) -> Quantity:
    return Quantity(apply(value_of(a), value_of(b)), op=op, args=(a, b))


def value_of(number: Num) -> Any:
    """The plain value of a number in any of its forms."""
    return number.value if isinstance(number, Quantity) else number


def named(name: str, number: Num, unit: str = "", note: str = "") -> Num:
    """Give a result a name and a unit, so that a chain shows it as a step. Plain numbers pass unchanged."""
    if not isinstance(number, Quantity):
        return number
    return Quantity(
        number.value, unit or number.unit, name, number.source, number.op or "=", number.args or (number,), note
    )


TINY = 1e-300  # a denominator that is never zero


def _arrays(*numbers: Num) -> ModuleType | None:
    """numpy, when one of the numbers is an array. No array exists before its user has imported numpy, which takes a
    tenth of a second that commands without arrays do not pay."""
    np = sys.modules.get("numpy")
    if np is not None:
        for number in numbers:  # no generator: this runs hundreds of thousands of times in a layout search
            if isinstance(number, np.ndarray):
                return np
    return None


def where(condition: Num, yes: Num, no: Num) -> Num:
    """`yes` where the condition holds, else `no`; elementwise on arrays."""
    if isinstance(condition, Quantity) or isinstance(yes, Quantity) or isinstance(no, Quantity):
        chosen = yes if value_of(condition) else no
        return Quantity(value_of(chosen), op="where", args=(condition, yes, no))
    if np := _arrays(condition):
        return np.where(condition, yes, no)
    return yes if condition else no


def maximum(a: Num, b: Num) -> Num:
    """The larger of two numbers; elementwise on arrays."""
    if isinstance(a, Quantity) or isinstance(b, Quantity):
        return _record("max", a, b, max)
    if np := _arrays(a, b):
        return np.maximum(a, b)
    return max(a, b)


def minimum(a: Num, b: Num) -> Num:
    """The smaller of two numbers; elementwise on arrays."""
    if isinstance(a, Quantity) or isinstance(b, Quantity):
        return _record("min", a, b, min)
    if np := _arrays(a, b):
        return np.minimum(a, b)
    return min(a, b)


def ceil_div(a: Num, b: Num) -> Num:
    """The least integer not below a / b, exact for integers."""
    if isinstance(a, Quantity) or isinstance(b, Quantity):
        return _record("ceil_div", a, b, lambda x, y: -(-x // y))
    return -(-a // b)


def power(a: Num, b: Num) -> Num:
    """a to the power b, as a float; elementwise on arrays."""
    if isinstance(a, Quantity) or isinstance(b, Quantity):
        return _record("**", a, b, lambda x, y: float(x) ** y)
    if np := _arrays(a, b):
        return np.power(np.asarray(a, dtype=float), b)
    return float(a) ** b


def decay(a: Num) -> Num:
    """e to the power -a; elementwise on arrays."""
    if isinstance(a, Quantity):
        return Quantity(math.exp(-a.value), op="decay", args=(a,))
    if np := _arrays(a):
        return np.exp(-a)
    return math.exp(-a)


def pnorm(a: Num, b: Num, p: float) -> Num:
    """(a^p + b^p)^(1/p) of two numbers not below 0: the larger for p = inf, the sum for p = 1, else in between."""
    if p == math.inf:
        return maximum(a, b)
    if p == 1:
        return a + b
    if isinstance(a, Quantity) or isinstance(b, Quantity):
        return Quantity(_pnorm(float(value_of(a)), float(value_of(b)), p), op=f"norm{p:g}", args=(a, b))
    return _pnorm(a, b, p)


def _pnorm(a: Any, b: Any, p: float) -> Any:
    """Scaled by the larger, so that no power overflows or vanishes."""
    high, low = maximum(a, b), minimum(a, b)
    ratio = low / maximum(high, TINY)
    return high * power(1 + power(ratio, p), 1 / p)


def floor(a: Num) -> Num:
    """The greatest integer not above a number (an int for scalars, integers as floats for arrays)."""
    if isinstance(a, Quantity):
        return Quantity(math.floor(a.value), op="floor", args=(a,))
    if np := _arrays(a):
        return np.floor(a)
    return math.floor(a)


def times(*factors: Num) -> Num:
    """A product whose chain shows no factor of a plain one."""
    result: Num = 1
    for factor in factors:
        # Plain numbers first: this runs hundreds of thousands of times in a layout search.
        if type(factor) is int and factor == 1:
            continue
        result = factor if type(result) is int and result == 1 else result * factor
    return result


def total(numbers: Iterable[Num]) -> Num:
    """A sum whose chain shows every term once, not a ladder of additions. 0 when empty."""
    terms = tuple(numbers)
    result: Num = 0
    recorded = False
    for term in terms:  # not sum(): from Python 3.12 on it compensates rounding, which arrays do not
        if isinstance(term, Quantity):
            recorded = True
            result = result + term.value
        else:
            result = result + term
    return Quantity(result, op="sum", args=terms) if recorded else result

"""The chain behind a figure, as steps a person can follow by hand."""

from __future__ import annotations

import math

import msgspec

from linkwise.core.printable import printable
from linkwise.core.quantity import Quantity, value_of
from linkwise.core.units import show_bytes, show_time

# How tightly an operation binds. What is not listed prints as a word with its own brackets.
_RANK = {"<": 0, "<=": 0, ">": 0, ">=": 0, "sum": 1, "+": 1, "-": 1, "*": 2, "/": 2, "**": 3}
# `a - (b - c)` needs its brackets, `a * (b * c)` does not.
_ORDERED = frozenset({"-", "/", "**"})


class Step(msgspec.Struct, frozen=True):
    """One named result: `name = formula = numbers = value unit`. An input has a source and no formula."""

    name: str
    value: int | float | bool
    unit: str
    formula: str = ""
    numbers: str = ""
    source: str = ""
    note: str = ""

    def __str__(self) -> str:
        return f"{show(self.value)} {self.unit}".rstrip() + _scaled(self.value, self.unit)


class Chain(msgspec.Struct, frozen=True):
    """Inputs first, then every named step in the order it is needed, the figure last.

    A name that different values share is numbered from its second value on: `S`, `S#2`.
    """

    inputs: tuple[Step, ...]
    steps: tuple[Step, ...]

    @property
    def result(self) -> Step:
        return (self.steps or self.inputs)[-1]

    def __str__(self) -> str:
        lines = []
        for s in self.inputs:
            lines.append(f"{s.name} = {s}   [{s.source or 'given'}]")
            if s.note:
                lines.append(f"    ({s.note})")
        for s in self.steps:
            lines.append(f"{s.name} = {s.formula}")
            if s.numbers not in {s.formula, show(s.value)}:
                lines.append(f"    = {s.numbers}")
            lines.append(f"    = {s}")
            if s.note:
                lines.append(f"    ({s.note})")
        return "\n".join(printable(line) for line in lines)


def chain_of(figure: Quantity, *more: Quantity) -> Chain:
    """Every named quantity the figure rests on, each once, operands before results. Several figures share one chain."""
    inputs: dict[Step, None] = {}
    steps: dict[Step, None] = {}
    labels = _Labels()
    seen: set[int] = set()
    roots = {id(f) for f in (figure, *more)}
    # Iterative post-order: a step of a hundred-layer model nests deeper than Python's recursion limit.
    stack: list[tuple[Quantity, bool]] = [(f, False) for f in reversed((figure, *more))]
    while stack:
        node, ready = stack.pop()
        if id(node) in seen:
            continue
        if not ready:
            stack.append((node, True))
            stack.extend((a, False) for a in reversed(node.args) if isinstance(a, Quantity))
            continue
        seen.add(id(node))
        if not node.op and (node.name or id(node) in roots):
            name = labels.of(node, (node.value, node.unit, node.source))
            inputs[Step(name, node.value, node.unit, source=node.source, note=node.note)] = None
        elif node.name or id(node) in roots:
            formula, numbers = _expression(node, labels), _expression(node, None)
            name = labels.of(node, (node.value, node.unit, formula, numbers))
            steps[Step(name, node.value, node.unit, formula, numbers, note=node.note)] = None
    return Chain(tuple(inputs), tuple(steps))


class _Labels:
    """What each named quantity is called in one chain: its name, numbered when the name means several things."""

    def __init__(self) -> None:
        self._by_node: dict[int, str] = {}
        self._meanings: dict[str, list[tuple[object, ...]]] = {}

    def of(self, node: Quantity, meaning: tuple[object, ...]) -> str:
        name = node.name or "result"
        meanings = self._meanings.setdefault(name, [])
        if meaning not in meanings:
            meanings.append(meaning)
        place = meanings.index(meaning) + 1
        self._by_node[id(node)] = name if place == 1 else f"{name}#{place}"
        return self._by_node[id(node)]

    def __getitem__(self, node: Quantity) -> str:
        return self._by_node[id(node)]


def _expression(node: Quantity, labels: _Labels | None) -> str:
    """The operation that made a node: over the names of its operands, or over their values without labels."""

    def operand(x: object, rank: int, right: bool = False) -> str:
        if not isinstance(x, Quantity) or not (x.name or x.op):
            return show(x)
        if x.op == "sum" and not x.name and len(x.args) == 1:
            return operand(x.args[0], rank, right)
        if x.name:
            return labels[x] if labels else show(x.value)
        text, own = body(x), _RANK.get(x.op, 9)
        return f"({text})" if own < rank or (own == rank and right) else text

    def body(q: Quantity) -> str:
        if not q.op:
            return show(q.value)
        if q.op == "=":
            return operand(q.args[0], 0)
        if q.op == "sum":
            # A plain 0 is a term that does not apply here, such as a buffer an engine does not have.
            terms = [a for a in q.args if isinstance(a, Quantity) or a != 0]
            return " + ".join(operand(a, 1) for a in terms) or "0"
        if q.op == "where":
            condition, yes, no = (operand(a, 0) for a in q.args)
            return f"({yes} if {condition} else {no})"
        if q.op in {"ceil_div", "//"}:
            word = "ceil" if q.op == "ceil_div" else "floor"
            return f"{word}({operand(q.args[0], 2)} / {operand(q.args[1], 2, True)})"
        if q.op == "decay":
            return f"exp(-{operand(q.args[0], 9)})"
        if q.op not in _RANK:
            return f"{q.op}({', '.join(operand(a, 0) for a in q.args)})"
        rank = _RANK[q.op]
        left, right = q.args
        return f"{operand(left, rank, q.op == '**')} {q.op} {operand(right, rank, q.op in _ORDERED or rank == 0)}"

    return body(node)


def show(value: object) -> str:
    """A number for a chain: whole numbers with separators, others to six significant digits."""
    value = value_of(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if value.is_integer() and abs(value) < 1e12:
            return f"{value:,.0f}"
        if value != 0 and (abs(value) >= 1e7 or abs(value) < 1e-4):
            return f"{value:.6g}".replace("e+", "e")
        return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"
    return str(value)


def _scaled(value: object, unit: str) -> str:
    """The same value in the unit people say it in, where that is another one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return ""
    if unit in {"B", "B/s"} and abs(value) >= 1e6:
        return f" ({show_bytes(value)}{unit[1:]})"
    if unit == "s" and 0 < abs(value) < 0.9995:
        return f" ({show_time(value)})"
    return ""

"""The chain behind a figure, as steps a person can follow by hand."""

from __future__ import annotations

import msgspec

from linkwise.core.quantity import Quantity, value_of

_RANK = {"sum": 1, "+": 1, "-": 1, "*": 2, "/": 2, "//": 2, "**": 3}


class Step(msgspec.Struct, frozen=True):
    """One named result: `name = formula = numbers = value unit`. An input has a source and no formula."""

    name: str
    value: int | float | bool
    unit: str
    formula: str = ""
    numbers: str = ""
    source: str = ""
    note: str = ""


class Chain(msgspec.Struct, frozen=True):
    """Inputs first, then every named step in the order it is needed, the figure last."""

    inputs: tuple[Step, ...]
    steps: tuple[Step, ...]

    @property
    def result(self) -> Step:
        return (self.steps or self.inputs)[-1]

    def __str__(self) -> str:
        lines = [f"{s.name} = {show(s.value)} {s.unit}".rstrip() + f"   [{s.source or 'given'}]" for s in self.inputs]
        for s in self.steps:
            lines.append(f"{s.name} = {s.formula}")
            if s.numbers != s.formula:
                lines.append(f"    = {s.numbers}")
            lines.append(f"    = {show(s.value)} {s.unit}".rstrip())
            if s.note:
                lines.append(f"    ({s.note})")
        return "\n".join(lines)


def chain_of(figure: Quantity) -> Chain:
    """Every named quantity the figure rests on, each once, operands before results."""
    inputs: list[Step] = []
    steps: list[Step] = []
    seen: set[int] = set()
    # Iterative post-order: a step of a hundred-layer model nests deeper than Python's recursion limit.
    stack: list[tuple[Quantity, bool]] = [(figure, False)]
    while stack:
        node, ready = stack.pop()
        if id(node) in seen:
            continue
        if not ready:
            stack.append((node, True))
            stack.extend((a, False) for a in reversed(node.args) if isinstance(a, Quantity))
            continue
        seen.add(id(node))
        if not node.op and node.name:
            inputs.append(Step(node.name, node.value, node.unit, source=node.source, note=node.note))
        elif node.name or node is figure:
            steps.append(
                Step(
                    node.name or "result",
                    node.value,
                    node.unit,
                    _expression(node, names=True),
                    _expression(node, names=False),
                    note=node.note,
                )
            )
    return Chain(_unique(inputs), _unique(steps))


def _unique(steps: list[Step]) -> tuple[Step, ...]:
    return tuple(dict.fromkeys(steps))


def _expression(node: Quantity, *, names: bool) -> str:
    def operand(x: object, rank: int, right: bool) -> str:
        if isinstance(x, Quantity):
            if x.name or not x.op:
                return x.name if names and x.name else show(x.value)
            text = body(x)
            own = _RANK.get(x.op, 9)
            return f"({text})" if own < rank or (own == rank and right) else text
        return show(x)

    def body(q: Quantity) -> str:
        if q.op == "=":
            return operand(q.args[0], 0, False)
        if q.op == "sum":
            return " + ".join(operand(a, 1, False) for a in q.args) or "0"
        if q.op == "where":
            condition, yes, no = q.args
            c = operand(condition, 0, False)
            return f"({operand(yes, 0, False)} if {c} else {operand(no, 0, False)})"
        if q.op in {"max", "min", "ceil_div", "floor"}:
            word = {"ceil_div": "ceil"}.get(q.op, q.op)
            joint = " / " if q.op == "ceil_div" else ", "
            return (
                f"{word}({joint.join(operand(a, 2 if q.op == 'ceil_div' else 0, i > 0) for i, a in enumerate(q.args))})"
            )
        rank = _RANK.get(q.op, 0)
        left, right = q.args
        left_text = operand(left, rank, q.op == "**")
        return f"{left_text} {q.op} {operand(right, rank, q.op in {'-', '/', '//', '**'})}"

    return body(node)


def show(value: object) -> str:
    """A number for a chain: integers whole with separators, floats to six significant digits."""
    value = value_of(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if value != 0 and (abs(value) >= 1e7 or abs(value) < 1e-4):
            return f"{value:.6g}"
        return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"
    return str(value)

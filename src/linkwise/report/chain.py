"""The chain behind a figure, and the figures that have one."""

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING

from linkwise.core.chain import Chain, show
from linkwise.plan.explain import Explanation
from linkwise.report.text import table

if TYPE_CHECKING:
    from rich.table import Table


def screen(found: Explanation) -> list[str]:
    """The chain, inputs first, the figure last; then the textbook's figure and what makes them differ."""
    lines = [f"{found.path} = {found.chain.result}", "", *_lines(found.chain)]
    if found.beside is not None:
        lines += ["", f"beside it, the textbook's {found.path} = {found.beside.result}"]
        if found.beside.result.value == found.chain.result.value:
            lines.append("    the same figure, by the same chain or a shorter one")
        else:
            lines += [f"    {line}" for line in _lines(found.beside)]
    lines += [f"    differs: {text}" for text in found.differences]
    return lines


def _lines(chain: Chain) -> list[str]:
    return str(chain).split("\n")


def paths(figures: Mapping[str, float]) -> "list[str | Table]":
    """Every explainable figure, grouped by the first word of its path."""
    blocks: list[str | Table] = []
    ordered: Iterable[str] = sorted(figures)
    for group, members in groupby(ordered, key=lambda path: path.split(".")[0]):
        rows = [[path, show(figures[path])] for path in members]
        blocks.append(table([group, ">"], rows))
    return blocks

"""The chain behind a figure, and the figures that have one."""

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING

from linkwise.core.chain import Chain, chain_of, show
from linkwise.plan.explain import Explanation
from linkwise.plan.textbook import Worked
from linkwise.report.text import table

if TYPE_CHECKING:
    from rich.table import Table


def screen(found: Explanation | Worked) -> list[str]:
    """The chain, inputs first, the figure last; then the textbook's figure and what makes them differ."""
    if isinstance(found, Worked):
        return str(found).split("\n")
    lines = [f"{found.path} = {found.chain.result}", "", *_lines(found.chain)]
    if found.beside is not None:
        lines += ["", f"beside it, the textbook's {found.path} = {found.beside.result}"]
        if found.beside.result.value == found.chain.result.value:
            lines.append("    the same figure, by the same chain or a shorter one")
        else:
            lines += [f"    {line}" for line in _lines(found.beside)]
    lines += [f"    differs: {text}" for text in found.differences]
    return lines


def data(found: Explanation | Worked) -> object:
    """The same as JSON-ready data: a worked calculation's quantities as their chains."""
    if isinstance(found, Explanation):
        return found
    chains = {group: {n: chain_of(q) for n, q in getattr(found, group).items()} for group in ("expect", "ledger")}
    return found._asdict() | chains | {"shows": dict(found.shows)}


def worked(known: Iterable[tuple[str, str]]) -> "list[str | Table]":
    """The worked calculations there are."""
    return [table(["explain", ""], [[f"seed:{name}", title] for name, title in known])]


def paths(figures: Mapping[str, float]) -> "list[str | Table]":
    """Every explainable figure, grouped by the first word of its path."""
    rows: list[tuple[str, str]] = []
    for _, members in groupby(sorted(figures), key=lambda path: path.split(".")[0]):
        rows += [("", "")] if rows else []
        rows += [(path, show(figures[path])) for path in members]
    return [table(["figure", ">value"], rows)]


def _lines(chain: Chain) -> list[str]:
    return str(chain).split("\n")

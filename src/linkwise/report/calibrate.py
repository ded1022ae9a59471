"""The screen of `calibrate`: what moved, by how much errors fell, and how far the result can be trusted."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from linkwise.report.text import table
from linkwise.simulate.calibrate.kernels import Outcome as Kernels
from linkwise.simulate.calibrate.own import Error, Moved, Outcome
from linkwise.workload.results import LeftOut

if TYPE_CHECKING:
    from rich.table import Table

_FEW = 5  # left-out rows that are shown, without --all
_SOME = 0.05  # a move of five percent


def screen(
    found: Outcome, left_out: Sequence[LeftOut], *, every: bool = False, written: str = ""
) -> "list[str | Table]":
    """Errors before and after, the constants that moved, and the rows that were left out. every: all of both."""
    lines: list[str | Table] = [
        f"rows       {found.rows} of {found.engine}, {found.explained} explained; constants before: {found.base}",
        f"error      median TPOT {_pair(found, 'tpot')}; TTFT {_pair(found, 'ttft')}",
        f"trust      {found.trust}",
    ]
    moved = [m for m in found.moved if every or abs(m.after / m.before - 1) >= _SOME]
    if moved:
        lines.append(_constants(moved))
    hidden = len(found.moved) - len(moved)
    if hidden:
        lines.append(f"           {hidden} constants moved by less than {_SOME:.0%}; --all shows them")
    shown = left_out if every else left_out[:_FEW]
    lines += [f"left out   {one.where}: {one.reason}" for one in shown]
    if len(left_out) > len(shown):
        lines.append(f"left out   {len(left_out) - len(shown)} more rows; --all names them")
    if written:
        lines.append(f"written    {written}: linkwise plan MODEL --on CLUSTER --calibration {written}")
    return lines


def kernel_screen(found: Kernels, *, written: str = "") -> "list[str | Table]":
    """What each table of kernels said, and the tables that said nothing."""
    lines: list[str | Table] = [
        f"kernels    {found.calibration.source}",
        table(
            ["table", "with", ">rows used", ">of", ">off (median)", ">launch us", "constants"],
            [
                [p.table, p.version, str(p.rows), str(p.of), f"{p.off:.0%}", f"{p.launch_us:.3g}",
                 ", ".join(f"{name} {value:.3g}" for name, value in p.constants.items())]
                for p in found.parts if p.constants
            ],
        ),
    ]  # fmt: skip
    lines += [f"left out   {p.table}: {p.why}" for p in found.parts if not p.constants]
    lines.append(
        "trust      kernels alone say nothing of an engine's own time: intervals are those of an unknown model"
    )
    if written:
        lines.append(f"written    {written}: linkwise plan MODEL --on CLUSTER --calibration {written}")
    return lines


def _constants(moved: Sequence[Moved]) -> "Table":
    return table(
        ["constant", ">before", ">after", "unit", ">change", ">within", ">determined by rows"],
        [
            [m.name, f"{m.before:.4g}", f"{m.after:.4g}", m.unit, f"{m.after / m.before - 1:+.0%}", f"{m.error:.0%}",
             f"{m.determined:.0%}"]
            for m in moved
        ],
    )  # fmt: skip


def _pair(found: Outcome, name: str) -> str:
    def words(error: Error) -> str:
        value = getattr(error, name)
        return "-" if value is None else f"{value:.1%}"

    return f"{words(found.before)} before, {words(found.after)} after, {words(found.left_out)} of rows left out"

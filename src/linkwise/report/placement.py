"""The screen of `place`: what the order costs, what it gains, how sure that is, and how to start it."""

from itertools import groupby
from typing import TYPE_CHECKING

from linkwise.core.layout import coordinates
from linkwise.core.units import show_time
from linkwise.plan.binding import torchrun_refusal, visible
from linkwise.plan.placement_types import BEST_FOUND, HostRanks, Placement
from linkwise.report.text import remarks, table

if TYPE_CHECKING:
    from rich.table import Table

# Lines of visible devices on the first screen; `--as cuda` prints them all.
MOST_LINES = 8


def screen(found: Placement) -> list[str]:
    """The answer in a few lines; every rank is behind --ranks, every file behind --as."""
    count = len(found.rank_grid)
    lines = [
        f"{count} replica{'s' * (count != 1)} of {found.layout} on {found.cluster}",
        f"order      {'naive order' if found.naive else 'not the naive order'}: {_proof(found)}",
        f"links      {show_time(found.seconds)} of a mean step ({_mean(found)}){_compared(found)}",
        *_steps(found),
        *(
            f"           {one.axis:<10} {one.naive_tier} to {one.tier}: {show_time(one.naive_s)} to"
            f" {show_time(one.seconds)}"
            for one in found.axes
            if not found.naive and (one.naive_tier != one.tier or one.naive_s != one.seconds)
        ),
    ]
    shown = _devices(found)
    lines += [f"{'start' if i == 0 else '':<10} {line}" for i, line in enumerate(shown[:MOST_LINES])]
    if len(shown) > MOST_LINES:
        lines.append(f"           and {len(shown) - MOST_LINES} more: --as cuda")
    refused = torchrun_refusal([part for part in found.hosts if part.replica == 0])
    if refused:
        lines.append(f"           torchrun cannot number ranks so ({refused}): use a rankfile or a Slurm host file")
    return [
        *lines,
        *remarks(found.notes),
        "more       --ranks  --json  --as cuda|rankfile|slurm|torchrun|nics, one --replica, with your --hosts",
    ]


def _proof(found: Placement) -> str:
    if found.proof != BEST_FOUND:
        return found.proof
    return f"{found.proof}, at most {found.gap:.1%} above the lower bound of {show_time(found.bound_seconds)}"


def _mean(found: Placement) -> str:
    return " + ".join(f"{weight:.3g} {step}" for step, weight in found.weights.items() if weight)


def _compared(found: Placement) -> str:
    parts = [] if found.naive else [f"naive order {_times(found.naive_seconds, found)}"]
    if found.random_seconds is not None and found.worst_seconds is not None:
        parts.append(f"random order {_times(found.random_seconds, found)} (median)")
        parts.append(f"worst found {_times(found.worst_seconds, found)}")
    return "; ".join(["", *parts])


def _times(seconds: float, found: Placement) -> str:
    return f"{show_time(seconds)} ({seconds / found.seconds:.2f} x)" if found.seconds else show_time(seconds)


def _steps(found: Placement) -> list[str]:
    if found.naive:
        return []
    return [
        f"           {step:<10} {show_time(before / found.weights[step])} a step in naive order,"
        f" {show_time(after / found.weights[step])} placed"
        for step, (before, after) in found.steps.items()
    ]


def _devices(found: Placement) -> list[str]:
    """One line for each run of equal device lists."""
    lines = []
    for text, run in groupby(found.hosts, key=visible):
        parts = list(run)
        lines.append(f"{_where(parts)}: {text}")
    return lines


def _where(parts: list[HostRanks]) -> str:
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return f"replica {first.replica} node {first.node}"
    one = first.replica == last.replica
    replicas = f"replica {first.replica}" if one else f"replicas {first.replica}-{last.replica}"
    return f"{replicas} nodes {first.node}-{last.node}"


def ranks(found: Placement) -> "list[str | Table]":
    """Every rank: its place in the layout, its device and NICs."""
    degrees = {axis: degree for axis, degree in found.layout.degrees().items() if degree > 1}
    rows = []
    for part in found.hosts:
        for local, rank in enumerate(part.ranks):
            at = coordinates(found.layout, rank)
            nics = ",".join(map(str, part.nics[local])) or "-"
            place = [part.node, part.devices[local], part.numa[local], nics]
            rows.append([part.replica, rank, *(at[axis] for axis in degrees), *place])
    heads = [">replica", ">rank", *(f">{axis}" for axis in degrees), ">node", ">device", ">NUMA", ">NICs"]
    return [table(heads, sorted(rows, key=lambda row: (row[0], row[1])), title="rank by rank")]

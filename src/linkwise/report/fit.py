"""The first screen of `fit`: does it fit, what is the first thing that does not, what is the nearest change."""

from typing import TYPE_CHECKING

from linkwise.core.units import GB, show_lack
from linkwise.plan.types import Fit
from linkwise.report.text import (
    budget_words,
    capacity_words,
    engine_words,
    heading,
    memory_line,
    missing,
    rank_table,
    remarks,
)

if TYPE_CHECKING:
    from rich.table import Table


def screen(fit: Fit) -> list[str]:
    """Six lines or so; every figure on them has a chain."""
    lines = [heading(fit.model, fit.cluster, engine_words(fit.engine, fit.engine_version, fit.options))]
    lines += _yes(fit) if fit.fits else _no(fit)
    return lines + remarks(fit.notes, fit.ledger.warnings)


def ranks(fit: Fit) -> "list[str | Table]":
    """Every state per rank class."""
    return rank_table(fit.ledger)


def _yes(fit: Fit) -> list[str]:
    tightest = fit.ledger.ranks[fit.ledger.tightest]
    copies = f"{fit.replicas} replicas of {fit.layout}" if fit.replicas > 1 else str(fit.layout)
    weights = tightest.bytes_of("weights") / GB
    each = " a replica" if fit.replicas > 1 else ""
    lines = [
        f"fits: {copies}.  {weights:.1f} GB of weights a rank, {tightest.kv_bytes / GB:.1f} GB left for KV:"
        f" {capacity_words(fit.ledger, fit.workload, fit.resolved)}{each}",
        f"tightest: {tightest.rank_class}, {memory_line(fit.ledger, fit.resolved)}",
    ]
    if fit.nearest:
        lines.append("nearest: " + "; or ".join(fit.nearest))
    path = _path(fit, f"kv.rank{tightest.ranks[0]}", "kv_tokens", "kv")
    return [*lines, f"every state: --ranks   any figure: linkwise explain fit:{path}"]


def _no(fit: Fit) -> list[str]:
    short = fit.ledger.shortfall
    if short is None:  # not fitting without a shortfall would be a bug of ours
        return [f"does not fit: {fit.layout}"]
    if short.resource == "weights":
        rank = next(r for r in fit.ledger.ranks if short.rank in r.ranks)
        budget = budget_words(rank, fit.resolved)
        needed = show_lack(short.need, short.have)[0]
        reason = f"{fit.layout} needs {needed} on each rank, the budget is {budget}"
    else:
        reason = short.reason
    lines = [f"does not fit: {short.resource}.  {reason}{missing(short)}"]
    nearest = fit.nearest or ((short.change,) if short.change else ())
    if nearest:
        lines.append("nearest: " + "; or ".join(nearest))
    path = _path(fit, f"{short.resource}.rank{short.rank}", f"short.rank{short.rank}", short.resource)
    return [*lines, f"why it cannot be otherwise: linkwise explain fit:{path}"]


def _path(fit: Fit, *wanted: str) -> str:
    """The first of these figures the fit has; else the first that starts like one; else none: all are listed."""
    for path in wanted:
        if path in fit.figures:
            return path
    for path in wanted:
        for known in fit.figures:
            if known.startswith(path):
                return known
    return ""

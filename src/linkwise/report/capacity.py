"""The screen of `capacity`: how many replicas, what decides it, what is left when some are gone."""

from typing import TYPE_CHECKING

from linkwise.core.units import show_count, show_time
from linkwise.plan.types import Plan
from linkwise.report.text import engine_words, heading, remarks, table
from linkwise.simulate.capacity import Capacity, Held

if TYPE_CHECKING:
    from rich.table import Table


def screen(found: Capacity, plan: Plan) -> "list[str | Table]":
    """The answer first; the headroom of every state as a table; what would help where it does not fit."""
    lines: list[str | Table] = [
        heading(plan.model, plan.cluster, engine_words(plan.engine, plan.engine_version, plan.options)),
        f"load       {_load(found)}",
        f"targets    {_targets(found)}",
    ]
    if found.shortfall is not None:
        lines.append(f"NO         {found.shortfall.reason}")
        lines += [f"           would help: {change}" for change in found.changes]
    if found.replicas:
        lines.append(f"replicas   {_replicas(found)} of ({plan.layout})")
        lines.append(f"binding    {found.binding}")
        lines.append(_states(found))
        lines.append(f"devices    {_devices(found, plan)}")
        if found.lasts_months is not None:
            lines.append(f"lasts      {found.lasts_months:.1f} months from today at this pace, then a failure hurts")
    lines += remarks(found.notes)
    lines.append(
        f"decided by {found.runs} simulated runs of {show_count(found.requests)} requests; what each replica does when"
        " others fail is simulated, what a failed node takes with it is counted"
    )
    return lines


def _load(found: Capacity) -> str:
    factors = [f"{found.rate_today_per_s:.3g} requests/s today"]
    if found.growth_factor != 1:
        factors.append(f"{found.growth_factor:.3g} (growth {found.growth})")
    if found.peak_factor != 1:
        factors.append(f"{found.peak_factor:g} (peak)")
    return " x ".join(factors) + (f" = {found.rate_per_s:.3g}/s" if len(factors) > 1 else "")


def _targets(found: Capacity) -> str:
    limits = [
        f"{name} p{found.percentile * 100:g} at most {show_time(value)}"
        for name, value in (("TTFT", found.ttft_target_s), ("TPOT", found.tpot_target_s))
        if value is not None
    ]
    return ", ".join(limits) or "none given: the queue must not grow"


def _replicas(found: Capacity) -> str:
    if not found.lost:
        return f"{found.replicas}"
    kind = f"{found.failures} {found.failure_of}{'s' if found.failures > 1 else ''}"
    return f"{found.replicas} = {found.replicas - found.lost} that carry the load + {found.lost} that go with {kind}"


def _states(found: Capacity) -> "Table":
    states = [("all up", found.normal)]
    if found.lost:
        states.append((f"without {found.lost}", found.failed))
    share = f"p{found.percentile * 100:g}"
    rows = [_row(name, held) for name, held in states if held is not None]
    if found.failing_ttft_s is not None:
        rows.append(["minute after the failure", "", "", "", show_time(found.failing_ttft_s), ""])
    return table(["", ">replicas", ">holds", ">headroom", f">TTFT {share}", f">TPOT {share}"], rows)


def _row(name: str, held: Held) -> list[str]:
    tpot = show_time(held.tpot_s) if held.tpot_s is not None else ""
    return [
        name, f"{held.replicas}", f"{held.rate_per_s:.3g}/s", f"{held.headroom:.0%}", show_time(held.ttft_s), tpot
    ]  # fmt: skip


def _devices(found: Capacity, plan: Plan) -> str:
    words = f"{found.devices} of {plan.cluster.size}, {found.nodes} of {plan.cluster.nodes} nodes"
    if found.devices_left < 0:
        return words
    return f"{words}; left: {found.devices_left} devices, {found.nodes_left} whole nodes"

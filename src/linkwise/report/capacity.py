"""The screen of `capacity`: how many replicas, what decides it, what is left when some are gone."""

from typing import TYPE_CHECKING

from linkwise.core.units import show_count, show_time
from linkwise.plan.types import Plan
from linkwise.report.text import engine_words, heading, remarks, table
from linkwise.simulate.capacity import Capacity, Held, PoolNeed

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
        lines += _counted(found, plan)
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


def _counted(found: Capacity, plan: Plan) -> list[str]:
    """How many of what, and why not fewer."""
    if not found.pools:
        return [f"replicas   {_replicas(found, found)} of ({plan.layout})", f"binding    {found.binding}"]
    where = {pool.cluster for pool in found.pools}
    return [
        f"{pool.role:<10} {_replicas(pool, found)} of ({pool.layout}){f' on {pool.cluster}' if len(where) > 1 else ''}"
        for pool in found.pools
    ] + [f"binding    {pool.role}: {pool.binding}" for pool in found.pools]


def _replicas(of: Capacity | PoolNeed, found: Capacity) -> str:
    if not of.lost:
        return f"{of.replicas}"
    kind = f"{found.failures} {found.failure_of}{'s' if found.failures > 1 else ''}"
    return f"{of.replicas} = {of.replicas - of.lost} that carry the load + {of.lost} that go with {kind}"


def _states(found: Capacity) -> "Table":
    states: list[tuple[str, Held | None, float | None]] = [("all up", found.normal, None)]
    if found.pools:
        states += [(f"without {p.lost} {p.role}", p.failed, p.failing_ttft_s) for p in found.pools if p.lost]
    elif found.lost:
        states.append((f"without {found.lost}", found.failed, found.failing_ttft_s))
    share = f"p{found.percentile * 100:g}"
    rows = []
    for name, held, late in states:
        rows += [_row(name, held)] if held is not None else []
        rows += [["minute after the failure", "", "", "", show_time(late), ""]] if late is not None else []
    return table(["", ">replicas", ">holds", ">headroom", f">TTFT {share}", f">TPOT {share}"], rows)


def _row(name: str, held: Held) -> list[str]:
    tpot = show_time(held.tpot_s) if held.tpot_s is not None else ""
    many = " + ".join(map(str, held.by_pool)) or f"{held.replicas}"
    return [name, many, f"{held.rate_per_s:.3g}/s", f"{held.headroom:.0%}", show_time(held.ttft_s), tpot]


def _devices(found: Capacity, plan: Plan) -> str:
    if len({pool.cluster for pool in found.pools}) > 1:
        return ", ".join(f"{pool.devices} of {pool.cluster} ({pool.nodes} nodes)" for pool in found.pools)
    words = f"{found.devices} of {plan.cluster.size}, {found.nodes} of {plan.cluster.nodes} nodes"
    if found.devices_left < 0:
        return words
    return f"{words}; left: {found.devices_left} devices, {found.nodes_left} whole nodes"

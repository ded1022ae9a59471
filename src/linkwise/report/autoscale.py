"""The screen of `autoscale`: rules side by side, what cold starts did to TTFT, and what the first rule decided when."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from linkwise.core.units import show_count, show_time
from linkwise.plan.types import Plan
from linkwise.report.simulate import beyond
from linkwise.report.text import engine_words, heading, remarks, table
from linkwise.simulate.autoscale import Autoscaled, Scaled
from linkwise.simulate.types import Spread

if TYPE_CHECKING:
    from rich.table import Table

CHANGES = 12  # shown of the first rule


def screen(found: Autoscaled, plan: Plan) -> "list[str | Table]":
    """The rules as a table, then their cold starts, worst minutes and the first rule's decisions."""
    lines: list[str | Table] = [
        heading(plan.model, plan.cluster, engine_words(plan.engine, plan.engine_version, plan.options)),
        f"load       {show_count(found.requests)} requests in {_clock(found.span_s)}, {found.rate_per_s:.3g}/s",
        f"targets    {_targets(found)}",
        f"replica    {plan.layout}, {found.devices_per_replica} devices; serves"
        f" {show_time(found.cold_start_s) if found.cold_start_s else '0 s'} after its order",
        *(f"CAPPED     {one.rule.name}: {one.capped} replicas at most were asked for, the cluster holds"
          f" {found.replicas_held}" for one in found.rules if one.capped),
        *_missed(found.rules[: found.asked or None], found.ttft_target_s),
        table(
            ["rule", ">replica-h", ">device-h", ">mean", ">most", ">starts", ">in target", ">TTFT p50", ">TTFT p99",
             ">TPOT p99"],
            [_row(one) for one in found.rules],
        ),
        table(
            ["TTFT while a replica starts, and else", ">requests", ">p50", ">p99", ">else p50", ">else p99"],
            [_cold(one) for one in found.rules if one.cold is not None],
        ) if any(one.cold is not None for one in found.rules) else "cold       no request arrived while one started",
    ]  # fmt: skip
    lines += _missed(found.rules[found.asked :], found.ttft_target_s) if found.asked else []
    lines += [f"worst      {one.rule.name}: {_worst(one)}" for one in found.rules if one.worst is not None]
    lines += [f"UNSERVED   {one.rule.name}: {show_count(one.unserved)} requests" for one in found.rules if one.unserved]
    if found.rules[0].changes:
        lines.append(f"decided    {found.rules[0].rule.name}: {_changes(found.rules[0])}")
    lines += remarks(found.notes)
    lines.append("not modelled: " + "; ".join(found.not_modelled))
    return lines


def _missed(rules: Sequence[Scaled], ttft_target_s: float | None) -> list[str]:
    """The load is beyond what the replicas serve, over the whole run or while too few are up."""
    lines = [f"SATURATED  {one.rule.name}: {one.saturation}" for one in rules if one.saturation]
    for one in rules:
        if one.stretch is not None:
            words = beyond(one.stretch, ttft_target_s, at=_clock, replicas=one.stretch_replicas)
            lines.append(f"BEYOND     {one.rule.name}: {words}")
    return lines


def _targets(found: Autoscaled) -> str:
    limits = [
        f"{name} at most {show_time(value)}"
        for name, value in (("TTFT", found.ttft_target_s), ("TPOT", found.tpot_target_s))
        if value is not None
    ]
    return ", ".join(limits) or "none given: every request that is served counts"


def _row(one: Scaled) -> list[str]:
    return [
        one.rule.name, f"{one.replica_hours:.2f}", f"{one.device_hours:.1f}", f"{one.mean:.2f}", f"{one.most}",
        f"{one.starts}", f"{one.in_target:.1%}", _of(one.ttft, "p50"), _of(one.ttft, "p99"), _of(one.tpot, "p99"),
    ]  # fmt: skip


def _cold(one: Scaled) -> list[str]:
    return [
        one.rule.name, f"{one.cold_share:.0%}", _of(one.cold, "p50"), _of(one.cold, "p99"), _of(one.steady, "p50"),
        _of(one.steady, "p99"),
    ]  # fmt: skip


def _of(values: Spread | None, name: str) -> str:
    return show_time(getattr(values, name)) if values is not None else ""


def _worst(one: Scaled) -> str:
    at = one.worst
    if at is None:
        return ""
    return (
        f"the minute from {_clock(at.start_s)}, {show_count(at.requests)} requests, {at.in_target:.0%} in target,"
        f" TTFT p99 {show_time(at.ttft_p99_s)}"
    )


def _changes(one: Scaled) -> str:
    shown = [
        f"{_clock(x.at_s)} {x.replicas} ({x.outstanding:g} outstanding, {x.waiting:g} waiting, KV {x.kv:.2f})"
        for x in one.changes[:CHANGES]
    ]
    more = len(one.changes) - CHANGES
    return "; ".join(shown) + (f"; and {more} more, see --json" if more > 0 else "")


def _clock(seconds: float) -> str:
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"

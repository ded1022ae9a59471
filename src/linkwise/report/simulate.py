"""The screen of `simulate`: who was served how fast, what limited it, and what is not modelled."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from linkwise.core.units import show_count, show_time
from linkwise.plan.types import Plan
from linkwise.report.text import engine_words, heading, remarks, table
from linkwise.report.trust import trust_lines
from linkwise.simulate.stretch import Stretch
from linkwise.simulate.types import PoolUse, Spread, Summary

if TYPE_CHECKING:
    from rich.table import Table


def screen(found: Summary, plan: Plan) -> "list[str | Table]":
    """Ten lines or so, and the latencies as a table."""
    lines: list[str | Table] = [
        heading(plan.model, plan.cluster, engine_words(plan.engine, plan.engine_version, plan.options)),
        f"served     {show_count(found.served)} of {show_count(found.requests)} requests in {show_time(found.span_s)}:"
        f" {found.rate_per_s:.3g} requests/s, {show_count(found.output_tokens_per_s)} tokens/s{_others(found)}",
        f"targets    {_targets(found)}",
    ]
    lines += _faults(found)
    if found.saturated:
        lines.append(f"SATURATED  {found.saturation}")
    if found.stretch is not None:
        lines.append(f"BEYOND     what is served, {beyond(found.stretch, found.ttft_target_s)}")
    if found.lost:
        lines.append(f"LOST       {show_count(found.lost)} requests died with their replica, as --recovery drop has it")
    if found.unmoved:
        lines.append(f"LOST       {show_count(found.unmoved)} requests: their KV never arrived on the decode side")
    lines.append(_latencies(found))
    lines += [line.replace(" in 8 of", " means in 8 of") for line in trust_lines(found.trust)]
    if found.split is not None:
        lines.append(f"TTFT       {_split(found)}")
    lines += [f"pool       {_pool(use)}" for use in found.pools]
    if found.starving:
        lines.append(f"starving   {found.starving_why}")
    lines.append(
        f"work       {show_count(found.steps)} steps; {show_count(found.prefill_tokens)} prompt tokens computed,"
        f" {show_count(found.cached_tokens)} found cached; {show_count(found.decode_tokens)} drawn;"
        f" {show_count(found.preemptions)} preemptions, {show_count(found.recomputed_tokens)} tokens computed again"
    )
    lines += remarks(found.notes)
    lines.append("not modelled: " + "; ".join(found.not_modelled))
    return lines


_RECOVERY = {
    "elsewhere": "its requests go to other replicas", "drop": "its requests are lost",
    "stay": "its requests wait for it",
}  # fmt: skip


def _faults(found: Summary) -> list[str]:
    """What goes wrong with which replica, when, and what becomes of its requests."""
    said = []
    for number, one in enumerate(found.faults):
        if number in found.faults_never:  # a note says so
            continue
        first = found.pools[0].replicas
        name = f"replica {one.replica}"
        if len(found.pools) > 1:  # prefill replicas are numbered first
            name = f"prefill {name}" if one.replica < first else f"decode {name}, the pool's {one.replica - first}"
        what = {
            "slow": f"computes {one.factor:g} times as long", "link": f"its links take {one.factor:g} times as long",
        }.get(one.kind, f"is down; {_RECOVERY[found.recovery]}")  # fmt: skip
        window = f"{show_time(one.start_s) if one.start_s else '0 s'} to {show_time(one.end_s)}"
        said.append(f"fault      {window}: {name} {what}".replace(" its links", ": its links"))
    return said


def beyond(
    one: Stretch, target_s: float | None, *, at: Callable[[float], str] = show_time, replicas: float | None = None
) -> str:
    """A stretch in words. at: shows a time of the run. replicas: that served in it, where they come and go."""
    target = "" if target_s is None else f", TTFT target {show_time(target_s)}"
    number = "" if replicas is None else f"{replicas:.3g}"
    by = number and f" by {number} replica{'s' * (number != '1')} on average"
    return (
        f"from {at(one.start_s) if one.start_s else '0 s'} to {at(one.end_s)}: {_rate(one.offered_per_s)} requests/s"
        f" came, {_rate(one.served_per_s)}/s were served{by}; those waiting grew from {show_count(one.few)} to"
        f" {show_count(one.most)} and waited {show_time(one.wait_s)}, mean{target}"
    )


def _rate(per_s: float) -> str:
    return f"{per_s:.3g}" if per_s < 999.5 else show_count(per_s)


def _others(found: Summary) -> str:
    parts = [
        f"{show_count(count)} {name}"
        for name, count in (("refused", found.refused), ("lost", found.lost), ("not handed over", found.unmoved))
        if count
    ]
    return "; " + ", ".join(parts) if parts else ""


def _targets(found: Summary) -> str:
    limits = [
        f"{name} at most {show_time(value)}"
        for name, value in (("TTFT", found.ttft_target_s), ("TPOT", found.tpot_target_s))
        if value is not None
    ]
    if not limits:
        return "none given"
    return f"{', '.join(limits)}: met by {found.in_target:.1%}, goodput {found.goodput_per_s:.3g} requests/s"


def _latencies(found: Summary) -> "Table":
    rows: list[tuple[str, Spread | None]] = [
        ("TTFT", found.ttft), ("TPOT", found.tpot), ("ITL, gaps between tokens", found.itl),
        ("whole request", found.e2e), ("queue", found.queue),
    ]  # fmt: skip
    return table(
        ["", ">mean", ">p50", ">p90", ">p95", ">p99", ">most"],
        [
            [name, *(show_time(x) if x else "0" for x in (s.mean, s.p50, s.p90, s.p95, s.p99, s.most))]
            for name, s in rows
            if s is not None
        ],
    )


def _split(found: Summary) -> str:
    s = found.split
    if s is None:
        return ""
    parts = {"queue": s.queue_s, "prefill": s.prefill_s}
    if len(found.pools) > 1:
        parts |= {"blocks": s.blocks_s, "transfer": s.link_s, "first decode": s.first_decode_s}
    elif s.first_decode_s:
        parts["after it"] = s.first_decode_s
    return "mean = " + " + ".join(f"{name} {show_time(value) if value else '0'}" for name, value in parts.items())


def _pool(use: PoolUse) -> str:
    role = "" if use.role == "both" else f"{use.role}: "
    bubble = f", {use.bubble:.0%} bubble" if use.bubble > 0.0005 else ""
    return (
        f"{role}{use.replicas} x ({use.label}): {use.rows:.0%} of its seats taken, KV {use.kv_mean:.0%} in use,"
        f" {use.kv_peak:.0%} at most; computing {use.busy:.0%} of the time{bubble}"
    )


@contextmanager
def bar() -> Iterator[Callable[[int, int | None], None]]:
    """A progress bar on the error stream: requests finished, or runs made where nobody knows how many there will be."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    shown = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=Console(file=sys.stderr), transient=True,
    )  # fmt: skip
    with shown:
        # Nothing is told before the loop runs, and the first run on a machine compiles it.
        task = shown.add_task("simulate (a first run compiles the event loop: half a minute)", total=None)

        def tell(done: int, whole: int | None) -> None:
            shown.update(task, description="simulate", completed=done, total=whole)

        yield tell

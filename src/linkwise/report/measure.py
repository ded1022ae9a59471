"""The screens of `measure` and `check`: what links gave, predicted against measured, who is not as the others."""

from statistics import median
from typing import TYPE_CHECKING

from linkwise.core.units import show_bytes, show_time
from linkwise.measure.calibration import Calibration, KindFit, Value
from linkwise.measure.check import Check
from linkwise.measure.rehearse import Rehearsal
from linkwise.report.text import remarks, table

if TYPE_CHECKING:
    from rich.table import Table


def calibration(found: Calibration, written: str = "") -> list[str]:
    """Latency and bandwidth of every tier and kind of call, and single links."""
    lines = [f"{found.cluster}: {found.library}, {found.ranks} ranks, {found.made}"]
    for name, tier in found.tiers.items():
        best = "bandwidth not measured" if tier.best is None else f"{_value(tier.best)} of the spec rate"
        launch = f"; {tier.launch_us:.3g} us to launch a call that is waited for" if tier.launch_us else ""
        lines.append(f"{name:<10} {tier.link}: {best}{launch}")
        fits: dict[str, KindFit] = {**tier.kinds, "all kinds": tier}
        for kind, one in fits.items():
            share = "bandwidth not measured" if one.efficiency is None else f"{_value(one.efficiency)} of spec"
            ignored = f", {one.outliers} without weight" if one.outliers else ""
            step = f" us + {_value(one.step_us)} us a step" if one.step_us else f" us{_sizes(found, name, one, kind)}"
            lines.append(
                f"           {kind:<14} {_value(one.base_us)}{step}, {share}"
                f" ({one.points} calls, median residual {one.residual:.1%}{ignored})"
            )
    if found.links:
        lines.append("links that differ from their kind:")
    for name, link in found.links.items():
        or_else = f" (or {', '.join(link.indistinct)}: the same pairs cross them)" if link.indistinct else ""
        lines.append(f"           {name}: {_value(link.Bps, 1e9)} GB/s, its kind {link.usual_Bps / 1e9:.3g}{or_else}")
    together = _together(found)
    if together:
        lines.append("several groups at once: " + together)
    lines += remarks(found.notes)
    if written:
        lines.append(f"written    {written}: linkwise plan MODEL --on CLUSTER --calibration {written}")
    return lines


def _sizes(found: Calibration, tier: str, one: KindFit, kind: str) -> str:
    """Of which groups a latency is that base and steps are together in; a note tells what that means."""
    sizes = found.group_sizes(tier, "" if one is found.tiers[tier] else kind)
    return f" at {sizes[0]} ranks" if len(sizes) == 1 else ", steps included"


def _value(figure: Value, unit: float = 1.0) -> str:
    error = "" if figure.error is None else f" +- {figure.error / unit:.2g}"
    return f"{figure.value / unit:.3g}{error}"


def _together(found: Calibration) -> str:
    """Time of a call with all groups at once over one alone, by label: median over kinds."""
    alone = {(s.group, s.kind, s.S_bytes): s.seconds for s in found.samples if s.groups == 1}
    ratios: dict[tuple[str, int], list[float]] = {}
    for s in found.samples:
        key = (s.group, s.kind, s.S_bytes)
        if s.groups > 1 and key in alone:
            ratios.setdefault((s.group, s.groups), []).append(s.seconds / alone[key])
    return ", ".join(f"{count} x {label} {median(each):.2f} x as long" for (label, count), each in ratios.items())


def samples(found: Calibration) -> "list[str | Table]":
    """Every measured call."""
    rows = [
        [
            s.group,
            s.tier,
            s.kind,
            f"{s.groups} x {s.ranks}" if s.groups > 1 else s.ranks,
            show_bytes(s.S_bytes),
            show_time(s.seconds),
            f"{s.spread_s / s.seconds:.1%}" if s.spread_s else "-",
            s.mode.replace("_", " "),
        ]
        for s in found.samples
    ]
    heads = ["group", "tier", "kind", ">ranks", ">S", ">time of a call", ">spread", "mode"]
    return [table(heads, rows, title="measured calls")]


def rehearsal(found: Rehearsal) -> "list[str | Table]":
    """Predicted against measured, op by op."""
    rows = [
        [
            op.role,
            op.kind,
            f"{op.groups} x {op.group} {op.ranks}" if op.groups > 1 else f"{op.group} {op.ranks}",
            op.calls,
            show_bytes(op.S_bytes),
            "as planned" if op.as_planned else f"NOT as planned: {show_bytes(op.seen_bytes)}",
            show_time(op.predicted_s),
            show_time(op.measured_s),
            f"{op.ratio:.2f} x",
        ]
        for op in found.ops
    ]
    copies = f"{found.replicas} replica{'s' * (found.replicas != 1)} of {found.layout}"
    ratio = f"{found.measured_s / found.predicted_s:.2f} x" if found.predicted_s else "no prediction"
    heads = ["op", "kind", "groups", ">calls", ">S", "seen", ">predicted", ">measured", ">ratio"]
    return [
        f"{found.model}, {copies} on {found.cluster}: the {found.step} step's communication over {found.library}",
        table(heads, rows),
        f"step       {show_time(found.predicted_s)} predicted ({found.calibration}), {show_time(found.measured_s)}"
        f" measured: {ratio}",
        *remarks(found.notes),
    ]


def check(found: Check) -> list[str]:
    """The verdict, then what it rests on."""
    count = len(found.ranks)
    hosts = len({one.machine for one in found.ranks})
    lines = [f"{count} ranks on {hosts} machine{'s' * (hosts != 1)} for {found.cluster}, over {found.library}"]
    if not found.findings:
        lines.append("healthy    every rank is where it should be and as fast as its peers")
    lines += [f"{'FAULT' if one.sure else 'undecided':<10} {one.who}: {one.words}" for one in found.findings]
    lines.append(f"compared   {', '.join(found.compared) or 'nothing: no two alike'}")
    if found.alone:
        lines.append(f"alone      nothing to hold against: {', '.join(found.alone)}")
    if found.pairs:
        slow = min(found.pairs, key=lambda one: one.Bps)
        usual = median(one.Bps for one in found.pairs)
        lines.append(
            f"pairs      {usual / 1e9:.3g} GB/s one way (median), {show_time(median(p.small_s for p in found.pairs))}"
            f" a small message; slowest {slow.src}>{slow.dst} with {slow.Bps / 1e9:.3g}"
        )
    return [*lines, *remarks(found.notes), "more       --ranks-table  --json"]


def check_ranks(found: Check) -> "list[str | Table]":
    """Every rank: where it is meant to be, where it is, what it reached."""
    rows = [
        [
            one.rank,
            device,
            one.host,
            one.index,
            one.device,
            one.numa if one.numa >= 0 else "-",
            ", ".join(one.nics) or "-",
            f"{one.flops / 1e12:.3g}",
            f"{one.memory_Bps / 1e9:.3g}",
        ]
        for device, one in zip(found.devices, found.ranks, strict=True)
    ]
    heads = [">rank", ">meant for device", "host", ">index", "device", ">NUMA", "NICs", ">TFLOP/s", ">memory GB/s"]
    return [table(heads, rows, title="rank by rank")]

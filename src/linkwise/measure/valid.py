"""What a calibration cannot say: figures that no machine gives, counts that contradict each other, fits that contradict
the calls they came from. Every refusal names the field; `calibration.parse` and `apply` put the file before it.
"""

from collections.abc import Sequence
from datetime import datetime
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from linkwise.cluster.links import links
from linkwise.cluster.types import Cluster, Tier
from linkwise.core.errors import InputError
from linkwise.plan.collective_time import estimate
from linkwise.plan.collective_ways import Group, ways
from linkwise.plan.collectives import ALGORITHMS, wire

if TYPE_CHECKING:
    from linkwise.measure.calibration import Calibration, KindFit, LinkFit, Sample, Value

# What a measurement can be; a file with anything else was not measured.
LEAST_S, MOST_S = 1e-9, 1e4  # of one call; both excluded
MAX_S_BYTES = 2**50
MAX_COUNT = 2**20
MAX_US = 1e6
MAX_BPS = 1e15
MAX_ERROR = 1e15
LEAST_SHARE = 1e-9  # of the spec rate: a modem on an NVLink would have more
FASTER = 10.0  # a link that differs from its kind differs by less than this
ABOVE_SPEC = 1.05
GROSSLY = 20.0  # a fit and half of its own calls differ by less than this
_TIERS = (Tier.ISLAND.value, Tier.NODE.value, Tier.CLUSTER.value)


def check(found: "Calibration") -> None:
    """Refuse what needs no cluster to be seen."""
    if not found.library.strip():
        raise InputError(f"library is {found.library!r}", where="calibration", expected="a name such as nccl 2.27.3")
    try:
        datetime.fromisoformat(found.made)
    except ValueError:
        raise InputError(
            f"made is {found.made[:40]!r}", where="calibration", expected="a date such as 2026-11-29T21:00Z"
        ) from None
    for field in ("nodes", "devices_per_node"):
        _within("calibration", field, getattr(found, field), 1, MAX_COUNT)
    most = found.nodes * found.devices_per_node
    _within("calibration", "ranks", found.ranks, 1, most, f"nodes x devices_per_node, {most}")
    if found.hosts and len(found.hosts) != found.ranks:
        raise InputError(
            f"hosts names {len(found.hosts)}", where="calibration", expected=f"{found.ranks}, one a rank, or none"
        )
    for number, sample in enumerate(found.samples):
        _check_sample(sample, found, f"calibration: samples[{number}]")
    if not found.tiers:
        raise InputError("tiers is empty", where="calibration", expected="island, node or cluster with its figures")
    for name, tier in found.tiers.items():
        where = f"calibration: tiers.{name[:40]}"
        if name not in _TIERS:
            raise InputError("unknown tier", where=where, expected="island, node or cluster")
        _check_fit(tier, where)
        for kind, one in tier.kinds.items():
            if kind not in ALGORITHMS:
                raise InputError(f"unknown kind {kind[:40]!r}", where=where, expected=", ".join(ALGORITHMS))
            _check_fit(one, f"{where}.kinds.{kind}")
        _within(where, "launch_us", tier.launch_us, 0, MAX_US)
    for name, link in found.links.items():
        _check_link(link, f"calibration: links.{name[:60]}")


def _within(where: str, field: str, value: float, least: float, most: float, words: str = "") -> None:
    if not least <= value <= most:
        raise InputError(f"{field} is {value:.12g}", where=where, expected=f"{least:g} to {words or format(most, 'g')}")


def _check_sample(one: "Sample", found: "Calibration", where: str) -> None:
    if one.kind not in ALGORITHMS:
        raise InputError(f"kind is {one.kind[:40]!r}", where=where, expected=", ".join(ALGORITHMS))
    if one.tier not in _TIERS:
        raise InputError(f"tier is {one.tier[:40]!r}", where=where, expected=", ".join(_TIERS))
    _within(where, "ranks", one.ranks, 2, found.ranks, f"the calibration's ranks, {found.ranks}")
    most = min(found.nodes, one.ranks)
    _within(where, "nodes", one.nodes, 1, most, f"{most}, of {found.nodes} nodes and {one.ranks} ranks")
    _within(where, "groups", one.groups, 1, found.ranks, f"the calibration's ranks, {found.ranks}")
    _within(where, "S_bytes", one.S_bytes, 0, MAX_S_BYTES)
    _within(where, "spread_s", one.spread_s, 0, MOST_S)
    if not LEAST_S < one.seconds < MOST_S:
        raise InputError(f"seconds is {one.seconds:g}", where=where, expected=f"above {LEAST_S:g} and below {MOST_S:g}")


def _check_fit(one: "KindFit", where: str) -> None:
    figures = (("base_us", one.base_us), ("step_us", one.step_us), ("efficiency", one.efficiency))
    for field, figure in figures:
        if figure is not None:
            if field != "efficiency":
                _within(where, field, figure.value, 0, MAX_US)
            _check_error(figure, where, field)
    for field, count in (("points", one.points), ("residual", one.residual)):
        _within(where, field, count, 0, MAX_COUNT)
    _within(where, "outliers", one.outliers, 0, one.points, f"points, {one.points}")
    if one.efficiency is not None and not LEAST_SHARE <= one.efficiency.value <= 1:
        raise InputError(
            f"efficiency is {one.efficiency.value:g}", where=where, expected=f"{LEAST_SHARE:g} to 1 of the spec"
        )


def _check_error(figure: "Value", where: str, field: str) -> None:
    if figure.error is not None:
        _within(where, f"{field}.error", figure.error, 0, MAX_ERROR)


def _check_link(link: "LinkFit", where: str) -> None:
    for field, value in (("usual_Bps", link.usual_Bps), ("Bps", link.Bps.value)):
        if not 0 < value <= MAX_BPS:
            raise InputError(f"{field} is {value:g}", where=where, expected=f"above 0, at most {MAX_BPS:g}")
    _within(where, "Bps", link.Bps.value, 0, FASTER * link.usual_Bps, f"{FASTER:g} x usual_Bps")
    _check_error(link.Bps, where, "Bps")
    _within(where, "latency_us", link.latency_us, 0, MAX_US)


def check_on(found: "Calibration", cluster: Cluster, where: str) -> None:
    """Refuse what contradicts a cluster that has the calibration's figures: links above their spec, and, where the
    cluster has the shape that was measured, fits that are far from their own calls."""
    known = {f"{link.src}>{link.dst}": link for link in links(cluster)} if found.links else {}
    for name, link in found.links.items():
        spec = known[name].spec_Bps
        _within(f"{where}: links.{name}", "Bps", link.Bps.value, 0, ABOVE_SPEC * spec, f"the link's {spec:.3g}")
    if (found.nodes, found.devices_per_node) != (cluster.nodes, cluster.devices_per_node):
        return
    for name, tier in found.tiers.items():
        calls = [
            s for s in found.samples if s.tier == name and s.groups == 1 and s.mode == "back_to_back" and s.S_bytes
        ]
        for kind in tier.kinds:
            own = [s for s in calls if s.kind == kind]
            _bear_out(own, cluster, f"{where}: tiers.{name}.kinds.{kind}")
        _bear_out(calls, _without_kinds(cluster, name), f"{where}: tiers.{name}")


def _bear_out(calls: "Sequence[Sample]", cluster: Cluster, where: str) -> None:
    if len(calls) < 4:
        return
    calls = sorted(calls, key=lambda s: s.S_bytes)
    middle = len(calls) // 2
    for half, words in ((calls[:middle], "smaller"), (calls[middle:], "larger")):
        ratio = median(_seconds(s, cluster) / s.seconds for s in half)
        if not 1 / GROSSLY <= ratio <= GROSSLY:
            raise InputError(
                f"its figures give {ratio:.3g} times what the {words} of its own calls took (median of {len(half)})",
                where=where,
                expected="figures that the samples in the file bear out",
            )


def _seconds(sample: "Sample", cluster: Cluster) -> float:
    """What the planner says of a call."""
    group = Group(Tier(sample.tier), sample.ranks, max(1, sample.ranks // sample.nodes), sample.nodes)
    moved = wire(sample.kind, sample.S_bytes, sample.ranks).sent
    return float(estimate(ways(sample.kind, group, cluster, "nccl"), moved).seconds)


def _without_kinds(cluster: Cluster, tier: str) -> Cluster:
    """Every kind of call over a tier by the figures of all kinds together."""
    c, start = cluster.constants, f"nccl.{tier}."
    changed = msgspec.structs.replace(
        c,
        latency_us={key: pair for key, pair in c.latency_us.items() if not key.startswith(start)},
        link_efficiency={key: share for key, share in c.link_efficiency.items() if not key.startswith(start)},
    )
    return msgspec.structs.replace(cluster, constants=changed)

"""A calibration: what a machine's links gave when they were measured, as a file, and as the planner's constants.

It replaces values of `Constants`, never a formula: per tier the latency of the library's calls and the share of the
links' spec rate, and single links that differ from their kind. Points are kept, so that the file explains itself.
"""

from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from linkwise.cluster.links import check_measured
from linkwise.cluster.types import Cluster, Constants, Tier
from linkwise.core.errors import InputError
from linkwise.core.files import dump_yaml, parse_yaml_object, read_text
from linkwise.core.schema import Frozen, convert
from linkwise.measure import valid
from linkwise.measure.fit import Figure, Line

CALIBRATION_SCHEMA = "linkwise.calibration/1"
MAX_FILE_BYTES = 2**21
# The planner's names of what a library does: calls launched back to back or captured, and calls launched one by one.
LIBRARY, EAGER = "nccl", "eager"


class Value(Frozen, frozen=True, kw_only=True):
    """A measured figure. error: standard error of the fit, in the figure's own unit; None where it is not known."""

    value: float
    error: float | None = None


class Sample(Frozen, frozen=True, kw_only=True):
    """One measured call: the slowest member's time, the best of its repeats.

    group: label of the groups that made it (an axis of a plan, or a tier). ranks, nodes: of one group. groups: how many
    called at the same time. seconds: of one call; spread_s: by how much the median repeat took longer. mode: calls one
    after another without waiting (back_to_back), or each waited for (single).
    """

    kind: str
    group: str
    tier: str
    ranks: int
    nodes: int
    S_bytes: int
    seconds: float
    spread_s: float = 0.0
    groups: int = 1
    mode: Literal["back_to_back", "single"] = "back_to_back"


class KindFit(Frozen, frozen=True, kw_only=True):
    """Calls of one kind over one tier: seconds = base + per step x steps + bytes on the bus / (efficiency x spec rate).

    step_us: None when all calls had one number of steps; base_us is then base and steps together, at groups of that
    size alone. efficiency: None when the calls say nothing of it. residual: median relative error of the fit over
    `points` calls, `outliers` of which had no weight.
    """

    base_us: Value
    step_us: Value | None
    efficiency: Value | None
    residual: float
    points: int
    outliers: int = 0


class TierFit(KindFit, frozen=True, kw_only=True):
    """The same over all kinds of call of a tier, for those that were not measured often enough to have their own.

    link: kind of the tier's links. launch_us: a call that is waited for, beyond one of many; 0 where that was not
    measured, or where calls wait anyway: what the planner knows of launches then stands.
    kinds: each kind of call that was measured at several sizes; libraries do some kinds better than others.
    """

    link: str
    launch_us: float = 0.0
    kinds: dict[str, KindFit] = {}

    @property
    def best(self) -> Value | None:
        """What the links give: the share that the best kind of call reaches."""
        fits: tuple[KindFit, ...] = (self, *self.kinds.values())
        shares = [one.efficiency for one in fits if one.efficiency is not None]
        return max(shares, key=lambda one: one.value, default=None)


class LinkFit(Frozen, frozen=True, kw_only=True):
    """A link that differs from its kind. usual_Bps: of its kind. indistinct: links that only the same pairs cross, so
    that it could be any of them; latency_us: of a small message over it (not used by the planner)."""

    Bps: Value
    usual_Bps: float
    latency_us: float
    indistinct: tuple[str, ...] = ()


class Calibration(Frozen, frozen=True, kw_only=True):
    """What was measured, on what, when and by what. ranks: how many; hosts: machine of each rank.

    tiers: by name (island, node, cluster). links: by `src>dst`. accelerator, nodes, devices_per_node: of the cluster
    file the ranks were laid on.
    """

    schema: str = CALIBRATION_SCHEMA
    made: str
    library: str
    source: str
    cluster: str
    accelerator: str
    nodes: int
    devices_per_node: int
    ranks: int
    tiers: dict[str, TierFit]
    links: dict[str, LinkFit] = {}
    hosts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    samples: tuple[Sample, ...] = ()

    def __post_init__(self) -> None:
        valid.check(self)

    @property
    def label(self) -> str:
        """What calibrated, and when: nccl 2.21 on 8 ranks of 8xh100-sxm, 2026-11-29T21:00Z"""
        return f"{self.library} on {self.ranks} ranks of {self.cluster}, {self.made}"

    def group_sizes(self, tier: str, kind: str = "") -> tuple[int, ...]:
        """Ranks of the groups a tier's figures come from, ascending; of one kind of call, or of all kinds."""
        same = (s for s in self.samples if s.tier == tier and s.groups == 1 and kind in ("", s.kind))
        return tuple(sorted({s.ranks for s in same}))

    def together(self, tier: str, kind: str = "") -> str:
        """Why a fit has no latency per step."""
        sizes = self.group_sizes(tier, kind)
        if len(sizes) == 1:
            return f"one group size: latency is base and steps together, at {sizes[0]} ranks"
        return "one number of steps: latency is base and steps together"

    @property
    def one_size(self) -> tuple[str, ...]:
        """What must be known where groups of other sizes are priced: tiers that were measured at one size of group."""
        found = []
        for name, tier in self.tiers.items():
            sizes = self.group_sizes(name)
            if len(sizes) == 1 and any(one.step_us is None for one in (tier, *tier.kinds.values())):
                found.append(
                    f"{name}: measured in groups of {sizes[0]} ranks alone; one group size: latency is base and steps"
                    f" together, and calls of groups of other sizes are priced with the latency at {sizes[0]}"
                )
        return tuple(found)


def now() -> str:
    """The time as calibrations write it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ")


def kind_fit(line: Line, words: str) -> tuple[KindFit, tuple[str, ...]]:
    """A fitted line in the units of a calibration, and what had to be said about it. words: what was fitted."""
    notes: list[str] = []
    efficiency = None
    if line.efficiency is not None:
        value, error = line.efficiency
        if value > 1:
            notes.append(f"{words}: {value:.3g} of the spec rate: the cluster file's rate is too low; 1 is used")
            value = 1.0
        efficiency = Value(value=value, error=error)
    fitted = KindFit(
        base_us=_us(line.base_s),
        step_us=None if line.step_s is None else _us(line.step_s),
        efficiency=efficiency,
        residual=line.residual,
        points=line.points,
        outliers=line.outliers,
    )
    return fitted, tuple(notes)


def _error(figure: Value) -> str:
    return "error unknown" if figure.error is None else f"+- {figure.error:.2g}"


def _us(figure: Figure) -> Value:
    return Value(value=figure.value * 1e6, error=None if figure.error is None else figure.error * 1e6)


def load(path: str) -> Calibration:
    """A calibration file (YAML), validated. Raises InputError naming file and field."""
    return parse(read_text(path, max_bytes=MAX_FILE_BYTES), where=path)


def parse(text: str, *, where: str) -> Calibration:
    """A calibration from YAML text."""
    raw = parse_yaml_object(text, where=where)
    if raw.get("schema") != CALIBRATION_SCHEMA:
        raise InputError(
            f"field schema: {str(raw.get('schema'))[:60]!r}",
            where=where,
            expected=f"{CALIBRATION_SCHEMA}, as linkwise measure -o FILE writes it",
        )
    try:
        return convert(raw, Calibration, where=where)
    except InputError as error:
        inside = (error.where or "").removeprefix("calibration").removeprefix(": ")
        place = f"{where}: {inside}" if inside and not inside.startswith(where) else where
        raise InputError(error.message, where=place, expected=error.expected, hint=error.hint) from None


def dump(found: Calibration) -> str:
    """YAML that `parse` reads back to an equal value."""
    document = msgspec.to_builtins(found)
    return dump_yaml(document)


def constants(found: Calibration, base: Constants, where: str = "calibration") -> Constants:
    """`base` with the measured figures in place of its own; each source says what was measured."""
    latency, shares, sources = dict(base.latency_us), dict(base.link_efficiency), dict(base.sources)
    family = found.library.split()[0]
    for name, tier in found.tiers.items():
        best = tier.best
        if best is not None:
            shares[tier.link] = best.value
            sources[f"link_efficiency.{tier.link}"] = f"{found.label}: its best kind of call; {_error(best)} ({where})"
        fits: dict[str, KindFit] = {"": tier, **tier.kinds}
        for kind, one in fits.items():
            words = f"{found.label}: {one.points} calls, median residual {one.residual:.1%} ({where})"
            words += "" if family == LIBRARY else f"; {family} is this machine's library"
            first_us, step = one.base_us.value, one.step_us.value if one.step_us else 0.0
            sure = f"{_error(one.base_us)} us, " + (
                f"{_error(one.step_us)} a step" if one.step_us else found.together(name, kind)
            )
            figures = {family: first_us, LIBRARY: first_us}
            if tier.launch_us:
                figures[EAGER] = first_us + tier.launch_us
            for implementation, first in figures.items():
                key = f"{implementation}.{name}" + (f".{kind}" if kind else "")
                latency[key] = (first, step)
                sources[f"latency_us.{key}"] = f"{words}; {sure}"
                if best is not None and one.efficiency is not None:
                    shares[key] = one.efficiency.value / best.value
                    sources[f"link_efficiency.{key}"] = f"{words}; {one.efficiency.value:.3g} of the spec rate"
    for name, link in found.links.items():
        sources[f"link_Bps.{name}"] = f"{found.label}: {link.Bps.value:.3g} of {link.usual_Bps:.3g} B/s ({where})"
    return msgspec.structs.replace(
        base,
        label=found.label,
        latency_us=latency,
        link_efficiency=shares,
        link_Bps=base.link_Bps | {name: link.Bps.value for name, link in found.links.items()},
        sources=sources,
    )


def apply(found: Calibration, cluster: Cluster, where: str = "calibration") -> Cluster:
    """The cluster with the calibration's figures. Raises InputError, naming file and field, when it was made on other
    devices, when its kinds of link are not the cluster's, when a single link it measured is not there or is faster than
    it can be, or when its figures contradict its own calls."""
    if found.accelerator != cluster.accelerator.name:
        raise InputError(
            f"measured on {found.accelerator}",
            where=f"{where}: accelerator",
            expected=f"a calibration of {cluster.accelerator.name}, as {cluster.name} has it",
        )
    for name, tier in found.tiers.items():
        kind = cluster.port(Tier(name))[0]
        if kind != tier.link:
            raise InputError(
                f"tier {name} is {tier.link}",
                where=f"{where}: tiers.{name}.link",
                expected=f"{kind}, as on {cluster.name}",
            )
    same = (found.nodes, found.devices_per_node) == (cluster.nodes, cluster.devices_per_node)
    if found.links and not same:
        raise InputError(
            f"single links were measured on {found.nodes} nodes of {found.devices_per_node}",
            where=f"{where}: links",
            expected=f"{cluster.nodes} nodes of {cluster.devices_per_node}: there a link's name means another wire",
        )
    place = where
    try:
        changed: Any = msgspec.structs.replace(cluster, constants=constants(found, cluster.constants, where))
        place = f"{where}: links"
        check_measured(changed)
    except InputError as error:
        raise InputError(error.message, where=place, expected=error.expected, hint=error.hint) from None
    valid.check_on(found, changed, where)
    notes = tuple(f"calibration ({where}): {words}" for words in found.one_size)
    return msgspec.structs.replace(cluster, constants=changed.constants, notes=cluster.notes + notes)

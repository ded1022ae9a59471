"""From measured calls to a calibration: a line for each tier, and the links that are not like their kind. No torch."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import msgspec

from linkwise.cluster.links import links
from linkwise.cluster.routes import route
from linkwise.cluster.types import Cluster, Link, Tier
from linkwise.core.errors import InputError
from linkwise.measure.calibration import Calibration, KindFit, LinkFit, Sample, TierFit, Value, kind_fit, now
from linkwise.measure.fit import Point, compare, fit_line
from linkwise.plan.collective_ways import Group, ways
from linkwise.plan.collectives import default_algorithm, hops, wire

_TIERS = (Tier.ISLAND, Tier.NODE, Tier.CLUSTER)
LEAST_SIZES = 4  # of one kind of call, for a line of its own
_PROBE = "measured"  # an implementation without figures of its own: latency 0, bandwidth of the links
_SMALL = 2.0**-20  # of its spec rate: a link as slow as this bounds whatever crosses it
_CLEAR = 1.03  # a link bounds calls when it would still bound them this much faster: else none is sure to


class Rate(NamedTuple):
    """What one pair of devices reached in one direction: bytes/s of large messages, seconds of a small one.

    error: standard error of Bps.
    """

    Bps: float
    small_s: float
    error: float = 0.0


def calibrate(
    cluster: Cluster,
    samples: Sequence[Sample],
    *,
    library: str,
    source: str,
    ranks: int,
    pairs: Mapping[tuple[int, int], Rate] | None = None,
    hosts: tuple[str, ...] = (),
    notes: Iterable[str] = (),
) -> Calibration:
    """The calibration of a cluster from measured calls, and from messages between pairs of devices.

    Raises InputError when no tier has the three calls a fit needs; it says why, tier by tier.
    """
    said = list(notes)
    tiers: dict[str, TierFit] = {}
    fitted = cluster
    for tier in _TIERS:  # inner tiers first: what is known of them says which calls the outer one bounds
        alone = [s for s in samples if s.tier == tier.value and s.groups == 1]
        found = _fit_tier(_taken(fitted, tiers), tier, alone, said)
        if found is not None:
            tiers[tier.value] = found
            if found.best is not None:
                fitted = _with_share(fitted, found.link, found.best.value)
    if not tiers:
        why = f": {'; '.join(said[-len(_TIERS) :])}" if said else ""
        raise InputError(
            f"{len(samples)} measured calls decide nothing{why}",
            where="calibration",
            expected="at least 3 of different sizes in one tier, which its links bound",
        )
    odd, more = link_fits(fitted, pairs or {})
    made = Calibration(
        made=now(),
        library=library,
        source=source,
        cluster=cluster.name,
        accelerator=cluster.accelerator.name,
        nodes=cluster.nodes,
        devices_per_node=cluster.devices_per_node,
        ranks=ranks,
        tiers=tiers,
        links=odd,
        hosts=hosts,
        notes=tuple(dict.fromkeys([*said, *more])),
        samples=tuple(samples),
    )
    return msgspec.structs.replace(made, notes=made.notes + made.one_size)


def _fit_tier(cluster: Cluster, tier: Tier, samples: list[Sample], notes: list[str]) -> TierFit | None:
    many = [s for s in samples if s.mode == "back_to_back"]
    if len(many) < 3:
        if many:
            notes.append(f"{tier.value}: {len(many)} calls are too few for a fit; its figures stay as they were")
        return None
    link = cluster.port(tier)[0]
    placed = _placed(cluster, many, link)
    bound = [point for _, point in placed if point is not None]
    others = ", ".join(dict.fromkeys(s.kind for s, point in placed if point is None))
    if len(bound) < 3:
        notes.append(f"{tier.value}: links other than {link} bound these calls; its figures stay as they were")
        return None
    if others:
        notes.append(f"{tier.value}: links other than {link} bound some calls ({others}); they are left out")
    whole, more = kind_fit(fit_line(bound), f"{tier.value} ({link})")
    if whole.efficiency is None:
        notes.append(f"{tier.value}: calls too small to tell a bandwidth; the uncalibrated share of {link} stands")
    kinds: dict[str, KindFit] = {}
    for kind in dict.fromkeys(s.kind for s in many):
        own = [point for s, point in placed if point is not None and s.kind == kind]
        if len({p.full_rate_s for p in own}) >= LEAST_SIZES:
            kinds[kind], said = kind_fit(fit_line(own), f"{tier.value} ({link}), {kind}")
            more += said
    notes += more
    return TierFit(
        link=link, base_us=whole.base_us, step_us=whole.step_us, efficiency=whole.efficiency, residual=whole.residual,
        points=whole.points, outliers=whole.outliers, launch_us=_launch_us(samples), kinds=kinds,
    )  # fmt: skip


def _launch_us(samples: list[Sample]) -> float:
    """What a call that is waited for takes beyond one of many: median over the same calls, small ones only."""
    many = {_key(s): s.seconds for s in samples if s.mode == "back_to_back"}
    extra = [s.seconds - many[_key(s)] for s in samples if s.mode == "single" and _key(s) in many]
    return max(0.0, median(extra)) * 1e6 if extra else 0.0


def _key(s: Sample) -> tuple[str, str, int, int]:
    return s.kind, s.group, s.ranks, s.S_bytes


def _taken(cluster: Cluster, tiers: Mapping[str, TierFit]) -> Cluster:
    """What links are taken for while a tier's calls are looked at: those that were measured for what they gave, others
    for their spec rate, since nothing here says that they give less."""
    inner = {cluster.port(tier)[0] for tier in _TIERS[:2]} - {fit.link for fit in tiers.values()}
    for kind in inner:
        cluster = _with_share(cluster, kind, 1.0)
    return cluster


def _placed(cluster: Cluster, samples: Sequence[Sample], link: str) -> list[tuple[Sample, Point | None]]:
    """Samples as the fit sees them; None for those that a link of another kind bounds.

    Which link bounds a call depends on what they give, not on their spec rates: eight NICs may be as fast as an island
    by the datasheet and half as fast when measured. So calls of one kind and shape are fitted as if this link bounded
    them, and it is asked whether it does at the rate that comes out.
    """
    series: dict[tuple[str, int, int], list[Sample]] = {}
    for s in samples:
        series.setdefault((s.kind, s.ranks, s.nodes), []).append(s)
    bound = {key for key, own in series.items() if _bounds(cluster, own, link)}
    return [(s, point_of(cluster, s, link) if (s.kind, s.ranks, s.nodes) in bound else None) for s in samples]


def _bounds(cluster: Cluster, samples: Sequence[Sample], link: str) -> bool:
    """Whether links of a kind bound these calls (of one kind and shape) at the rate they were measured at."""
    first, group = samples[0], _group(samples[0])
    if _is_all(cluster, first.kind, group, link, 1.0):
        return True
    points = [point_of(cluster, s, link) for s in samples]
    share = max(p.full_rate_s / p.seconds for p in points)  # reached for sure, latency included
    if len({p.full_rate_s for p in points}) >= LEAST_SIZES:
        efficiency = fit_line(points).efficiency
        share = max(share, efficiency.value) if efficiency else share
    return share * _CLEAR < 1 and _is_all(cluster, first.kind, group, link, share * _CLEAR)


def _is_all(cluster: Cluster, kind: str, group: Group, link: str, share: float) -> bool:
    """Whether calls are as slow as links of a kind alone make them, when these reach a share of their spec rate."""
    alone = share * _alone(cluster, kind, group, link)
    return _bandwidth(cluster, kind, group, link, share) > 0.999 * alone


def _alone(cluster: Cluster, kind: str, group: Group, link: str) -> float:
    """Bus bandwidth if links of a kind, at their spec rate, were all that bounds it."""
    return _bandwidth(cluster, kind, group, link, _SMALL) / _SMALL


def _group(sample: Sample) -> Group:
    return Group(Tier(sample.tier), sample.ranks, max(1, sample.ranks // sample.nodes), sample.nodes)


def point_of(cluster: Cluster, sample: Sample, link: str) -> Point:
    """A sample as the fit sees it, if links of a kind bound it."""
    algorithm = default_algorithm(sample.kind)
    steps = hops(sample.kind, sample.ranks, algorithm if algorithm != "direct" else "")
    moved = float(wire(sample.kind, sample.S_bytes, sample.ranks).sent)
    return Point(float(steps), moved / _alone(cluster, sample.kind, _group(sample), link), sample.seconds)


def _bandwidth(cluster: Cluster, kind: str, group: Group, link: str, share: float) -> float:
    """Bus bandwidth of the group, as the planner has it, when links of a kind reach a share of their spec rate."""
    probe = {f"{_PROBE}.{group.tier.value}": (0.0, 0.0)}
    changed = msgspec.structs.replace(
        cluster.constants,
        latency_us=cluster.constants.latency_us | probe,
        link_efficiency=cluster.constants.link_efficiency | {link: share},
    )
    (way,) = ways(kind, group, msgspec.structs.replace(cluster, constants=changed), _PROBE)
    return way.bandwidth_Bps


def _with_share(cluster: Cluster, link: str, share: float) -> Cluster:
    shares = cluster.constants.link_efficiency | {link: share}
    return msgspec.structs.replace(
        cluster, constants=msgspec.structs.replace(cluster.constants, link_efficiency=shares)
    )


class _Crossed(NamedTuple):
    """A link, the best rate of any pair over it, and the pairs."""

    link: Link
    best: Rate
    pairs: frozenset[tuple[int, int]]


def link_fits(cluster: Cluster, pairs: Mapping[tuple[int, int], Rate]) -> tuple[dict[str, LinkFit], tuple[str, ...]]:
    """Links that differ from their kind, by name, and what could not be told.

    A link is no slower than the fastest pair over it, so that pair's rate stands for it: a slow link slows all its
    pairs, a sound one has a pair that meets no slow link. Links that the same pairs cross cannot be told apart; the
    one with the least bandwidth stands for them.
    """
    by_class: dict[tuple[str, str, str], dict[str, _Crossed]] = {}
    for name, one in _crossed(cluster, pairs).items():
        ends = tuple(end.rpartition(".")[2].rstrip("0123456789") for end in (one.link.src, one.link.dst))
        by_class.setdefault((one.link.kind, ends[0], ends[1]), {})[name] = one
    odd: dict[str, tuple[_Crossed, float]] = {}
    notes: list[str] = []
    for (kind, src, dst), members in by_class.items():
        found = compare({name: one.best.Bps for name, one in members.items()})
        odd |= {each.name: (members[each.name], each.ratio) for each in found.odd}
        if found.unsure:
            shown = ", ".join(f"{each.name} {each.value / 1e9:.3g}" for each in found.unsure[:4])
            notes.append(
                f"{kind} links {src}>{dst} differ ({shown} GB/s), but {len(members)} measured links do not decide"
                " which are at fault"
            )
    return _fits(odd), tuple(notes)


def _fits(odd: dict[str, tuple[_Crossed, float]]) -> dict[str, LinkFit]:
    together: dict[frozenset[tuple[int, int]], list[str]] = {}
    for name, (one, _) in odd.items():
        together.setdefault(one.pairs, []).append(name)
    result = {}
    for names in together.values():
        first = min(names, key=lambda n: odd[n][0].link.effective_Bps)
        one, ratio = odd[first]
        usual = one.link.effective_Bps
        relative = one.best.error / one.best.Bps if one.best.Bps else 0.0
        result[first] = LinkFit(
            Bps=Value(value=usual * ratio, error=usual * ratio * relative),
            usual_Bps=usual,
            latency_us=one.best.small_s * 1e6,
            indistinct=tuple(n for n in names if n != first),
        )
    return result


def _crossed(cluster: Cluster, pairs: Mapping[tuple[int, int], Rate]) -> dict[str, _Crossed]:
    known = {(link.src, link.dst): link for link in links(cluster)}
    found: dict[str, _Crossed] = {}
    # A message over NICs is no measure of the links inside a node, which are faster.
    for (a, b), rate in pairs.items():
        way = route(cluster, a, b)
        slowest = min(link.effective_Bps for link in way)
        for link in way:
            if link.effective_Bps > 4 * slowest:
                continue
            name = f"{link.src}>{link.dst}"
            old = found.get(name)
            best = max(old.best, rate, key=lambda r: r.Bps) if old else rate
            through = (old.pairs if old else frozenset()) | {(a, b)}
            found[name] = _Crossed(known[link.src, link.dst], best, through)
    return found

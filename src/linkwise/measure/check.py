"""The pre-flight: is every participant there, where the plan puts it, and as fast as its peers?

Ranks, links and groups are held against those that should be like them (measure/fit.py: `compare`). What surely is
worse is a fault; what differs without saying who is at fault leaves the check undecided. A rank that does not answer
ends it with its number.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from linkwise.cluster import identify
from linkwise.cluster.types import Cluster
from linkwise.core.schema import Frozen
from linkwise.dist.groups import Session, share
from linkwise.measure.fit import Odd, compare
from linkwise.measure.here import Here, look, probe
from linkwise.measure.laid import Laid
from linkwise.measure.points import Rate, link_fits
from linkwise.measure.sweep import Job, Progress, pair_jobs, rates, run, shape_of, silent

CHECK_SCHEMA = "linkwise.check/1"
GROUP_BYTES = 2**20


class Finding(Frozen, frozen=True, kw_only=True):
    """Something that is not as it should be. who: rank 3, link d1>island0, tp of ranks 4-5. sure: the evidence decides.

    ratio: to its peers; 0 where it is no matter of speed.
    """

    who: str
    words: str
    sure: bool
    ratio: float = 0.0


class GroupTime(Frozen, frozen=True, kw_only=True):
    """One all-reduce of GROUP_BYTES in one group, alone; best of its repeats."""

    label: str
    ranks: tuple[int, ...]
    seconds: float


class PairRate(Frozen, frozen=True, kw_only=True):
    """Messages one way between two ranks."""

    src: int
    dst: int
    Bps: float
    small_s: float


class Check(Frozen, frozen=True, kw_only=True):
    """What the pre-flight found. devices: where the plan (or the cluster file) has each rank. compared: things that had
    peers to be held against; alone: those that had none, so that nothing is said of their speed."""

    schema: str = CHECK_SCHEMA
    cluster: str
    library: str
    devices: tuple[int, ...]
    ranks: tuple[Here, ...]
    pairs: tuple[PairRate, ...]
    groups: tuple[GroupTime, ...]
    findings: tuple[Finding, ...]
    compared: tuple[str, ...]
    alone: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 healthy, 1 a fault found, 3 something differs and the evidence does not decide."""
        if any(one.sure for one in self.findings):
            return 1
        return 3 if self.findings else 0


def check(session: Session, laid: Laid, *, library: str, progress: Progress = silent) -> Check | None:
    """Look at every rank, then at pairs and groups; the result on rank 0, None on the others."""
    session.watch.at("compute and memory probe")
    progress(0, 0, "compute and memory probe")
    flops, memory = probe(session)
    mine = msgspec.structs.replace(look(session), flops=flops, memory_Bps=memory)
    gathered = share(session, "here", msgspec.to_builtins(mine))
    jobs = [*pair_jobs(laid.cluster, laid.devices), *_group_jobs(laid)]
    times = run(session, jobs, progress)
    if gathered is None:
        return None
    ranks = tuple(msgspec.convert(one, Here) for one in gathered)
    groups = tuple(
        GroupTime(label=job.label, ranks=job.teams[0], seconds=min(each))
        for job, each in zip(jobs, times, strict=True)
        if job.label != "pair"
    )
    return judge(laid, ranks, rates(laid.devices, jobs, times), groups, library=library)


def _group_jobs(laid: Laid) -> list[Job]:
    return [
        Job(label, shape_of(laid.cluster, laid.devices, team)[0], "all_reduce", (team,), GROUP_BYTES)
        for label, teams in laid.groups
        for team in teams
    ]


def judge(
    laid: Laid,
    ranks: Sequence[Here],
    pairs: Mapping[tuple[int, int], Rate],
    groups: Sequence[GroupTime],
    *,
    library: str,
) -> Check:
    """The verdict on what was seen. pairs: by devices."""
    found: list[Finding] = [*misplaced(laid.cluster, laid.devices, ranks)]
    compared: list[str] = []
    alone: list[str] = []

    def held(name: str, unit: str, scale: float, values: Mapping[str, float]) -> None:
        if len(values) < 2:
            if values:
                alone.append(name)
            return
        compared.append(f"{name} of {len(values)}")
        answer = compare(values)
        found.extend(_slow(one, name, unit, scale, True) for one in answer.odd)
        found.extend(_slow(one, name, unit, scale, False) for one in answer.unsure)

    kinds = {one.device for one in ranks}
    for kind in sorted(kinds):
        alike = [one for one in ranks if one.device == kind]
        held("compute", "TFLOP/s", 1e12, {f"rank {one.rank}": one.flops for one in alike})
        held("memory", "GB/s", 1e9, {f"rank {one.rank}": one.memory_Bps for one in alike})
    odd, unsure = link_fits(laid.cluster, pairs)
    compared += [f"links between {len(pairs)} pairs"] if len(pairs) > 2 else []
    alone += ["the link between two ranks"] if len(pairs) == 2 else []
    for name, link in odd.items():
        ratio = link.Bps.value / link.usual_Bps
        other = f"; or {', '.join(link.indistinct)}, which the same pairs cross" if link.indistinct else ""
        found.append(Finding(who=f"link {name}", words=f"{ratio:.0%} of its peers{other}", sure=True, ratio=ratio))
    found += [Finding(who="links", words=words, sure=False) for words in unsure]
    by_shape: dict[tuple[str, tuple[str, int, int]], dict[str, float]] = {}
    for group in groups:
        shape = group.label, shape_of(laid.cluster, laid.devices, group.ranks)
        by_shape.setdefault(shape, {})[f"{group.label} of ranks {_ranks(group.ranks)}"] = 1 / group.seconds
    for (label, _), values in by_shape.items():
        held(f"{label} groups", "calls/ms", 1e3, values)
    number = {device: rank for rank, device in enumerate(laid.devices)}
    return Check(
        cluster=laid.cluster.name,
        library=library,
        devices=laid.devices,
        ranks=tuple(ranks),
        pairs=tuple(
            PairRate(src=number[a], dst=number[b], Bps=rate.Bps, small_s=rate.small_s) for (a, b), rate in pairs.items()
        ),
        groups=tuple(groups),
        findings=tuple(sorted(found, key=lambda one: not one.sure)),
        compared=tuple(compared),
        alone=tuple(alone),
        notes=(f"ranks drive different devices: {', '.join(sorted(kinds))}",) if len(kinds) > 1 else (),
    )


def _slow(one: Odd, name: str, unit: str, scale: float, sure: bool) -> Finding:
    words = f"{name}: {one.value / scale:.3g} {unit}, its peers' median is {one.usual / scale:.3g}"
    if not sure:
        words += "; these do not decide which is at fault"
    return Finding(who=one.name, words=words, sure=sure, ratio=one.ratio)


def _ranks(ranks: Sequence[int]) -> str:
    shown = ",".join(map(str, ranks[:8]))
    return shown + (",..." if len(ranks) > 8 else "")


def misplaced(cluster: Cluster, devices: Sequence[int], ranks: Sequence[Here]) -> list[Finding]:
    """Ranks that are not on the machine, device, NUMA node or beside the NICs where they are meant to be.

    A node of the cluster is the machine most of its ranks are on. What a rank does not know of itself is not compared.
    """
    found: list[Finding] = []
    by_node: dict[int, list[Here]] = {}
    for device, one in zip(devices, ranks, strict=True):
        by_node.setdefault(cluster.node_of(device), []).append(one)
    machine = {node: Counter(one.machine for one in here).most_common(1)[0][0] for node, here in by_node.items()}
    for name, count in Counter(machine.values()).items():
        if count > 1:
            nodes = ", ".join(str(node) for node, at in machine.items() if at == name)
            host = next(one.host for one in ranks if one.machine == name)
            words = f"ranks laid on {count} nodes run on one machine, {host}"
            found.append(Finding(who=f"nodes {nodes}", words=words, sure=True))
    for device, one in zip(devices, ranks, strict=True):
        node, index = divmod(device, cluster.devices_per_node)
        if one.machine != machine[node]:
            words = f"runs on {one.host}, the other ranks of node {node} do not"
            found.append(Finding(who=f"rank {one.rank}", words=words, sure=True))
            continue
        differs = [] if one.index in {index, -1} else [f"device {one.index}, meant to be {index}"]
        if identify.contradicts(one.device, cluster.accelerator):
            differs.append(f"{one.device}, meant to be {cluster.accelerator.label}")
        detail = cluster.detail_of(node)
        # Without a topology file the NUMA nodes are an even spread, an assumption that no machine can contradict.
        meant = detail.numa[index] if detail and detail.numa else -1
        if meant >= 0 and one.numa >= 0 and meant != one.numa:
            differs.append(f"NUMA node {one.numa}, meant to be {meant}")
        if detail and detail.nic_names and one.nics:
            nearest = [detail.nic_names[nic] for nic in cluster.nics_of(device)]
            missing = [name for name in nearest if name not in one.nics]
            if missing:
                differs.append(f"no NIC {', '.join(missing)} here; its machine has {', '.join(one.nics)}")
            for nic in cluster.nics_of(device) if detail.nic_numa else ():
                stated, seen = detail.nic_numa[nic], one.nics.get(detail.nic_names[nic], -1)
                if stated >= 0 and seen >= 0 and stated != seen:
                    differs.append(f"NIC {detail.nic_names[nic]} on NUMA node {seen}, meant to be {stated}")
        if differs:
            found.append(Finding(who=f"rank {one.rank}", words="; ".join(differs), sure=True))
    return found

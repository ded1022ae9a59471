"""The sweep: which calls to measure, and measuring them on every rank.

Which calls is pure data, the same on every rank. A call is timed back to back: `calls` of it between two readings of a
clock, after a barrier of all ranks; its time is the slowest member's, the best of the repeats: other work on a
machine makes calls slower at random, never faster.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Literal, NamedTuple

from linkwise.cluster.types import Cluster, Tier
from linkwise.core.errors import InputError
from linkwise.core.units import parse_bytes, show_bytes
from linkwise.dist.calls import KINDS, prepare
from linkwise.dist.groups import Named, Session, Team, barrier, create, settled, share
from linkwise.measure.calibration import Sample
from linkwise.measure.points import Rate

REPEATS = 5
AT_ONCE_BYTES = 4 * 2**20  # small calls are repeated until they have moved this much, at most MAX_CALLS of them
MAX_CALLS = 20
MOST_FOR_ALL_PAIRS = 16
MAX_SIZES = 64
PAIR_BYTES = (4 * 2**10, 4 * 2**20)
Mode = Literal["back_to_back", "single"]
Progress = Callable[[int, int, str], Any]  # steps done, steps in all, what comes next


def silent(done: int, total: int, words: str) -> None:
    """Progress that nobody sees."""


class Job(NamedTuple):
    """Calls to time. teams: world ranks of each group that calls at the same time; no rank is in two of them.

    label: what the groups are: an axis, a tier, or `pair`.
    """

    label: str
    tier: str
    kind: str
    teams: tuple[tuple[int, ...], ...]
    S_bytes: int
    mode: Mode = "back_to_back"

    @property
    def calls(self) -> int:
        return max(1, min(MAX_CALLS, AT_ONCE_BYTES // self.S_bytes)) if self.mode == "back_to_back" else 1

    def __str__(self) -> str:
        many = f", {len(self.teams)} groups at once" if len(self.teams) > 1 else ""
        return f"{self.kind} of {show_bytes(self.S_bytes)} in {self.label} of {len(self.teams[0])}{many}"


def sizes(text: str) -> tuple[int, ...]:
    """Sizes in factors of four from `1KiB:16MiB`, the last one included."""
    low, colon, high = text.partition(":")
    first = parse_bytes(low, where="--sizes")
    last = parse_bytes(high, where="--sizes") if colon else first
    if not 0 < first <= last <= 2**36:
        raise InputError(f"{text[:60]!r}", where="--sizes", expected="MIN:MAX, such as 1KiB:16MiB, at most 64GiB")
    found = [first]
    while found[-1] * 4 < last and len(found) < MAX_SIZES:
        found.append(found[-1] * 4)
    return tuple(dict.fromkeys([*found, last]))


def tier_groups(cluster: Cluster, devices: Sequence[int]) -> list[tuple[str, tuple[tuple[int, ...], ...]]]:
    """Groups that exercise each tier: (label, their ranks). Rank r drives devices[r].

    Islands; nodes whose devices no island joins; all ranks when they span nodes; and one rank of each node.
    """
    found: list[tuple[str, tuple[tuple[int, ...], ...]]] = []

    def split(label: str, number: Callable[[int], int], tier: Tier) -> None:
        parts: dict[int, list[int]] = {}
        for rank, device in enumerate(devices):
            parts.setdefault(number(device), []).append(rank)
        teams = tuple(
            tuple(part)
            for part in parts.values()
            if len(part) > 1 and cluster.tier(tuple(devices[r] for r in part)) is tier
        )
        if teams:
            found.append((label, teams))

    split("island", cluster.island_of, Tier.ISLAND)
    split("node", cluster.node_of, Tier.NODE)
    split("all", lambda _: 0, Tier.CLUSTER)
    first = {cluster.node_of(device): rank for rank, device in reversed(list(enumerate(devices)))}
    if 1 < len(first) < len(devices) and (members := tuple(sorted(first.values()))):
        found.append(("one per node", (members,)))
    return found


def collective_jobs(
    cluster: Cluster,
    devices: Sequence[int],
    groups: Sequence[tuple[str, tuple[tuple[int, ...], ...]]],
    wanted: Sequence[int],
    *,
    single: bool,
    kinds: Sequence[str] = KINDS,
) -> list[Job]:
    """Every collective at every size in every group alone (one of each shape), then all groups of a label at once.

    single: also time calls that are waited for one by one, small ones only: what launching costs.
    """
    jobs = []
    for label, teams in groups:
        shapes: dict[tuple[str, int, int], tuple[int, ...]] = {}
        for team in teams:
            shapes.setdefault(shape_of(cluster, devices, team), team)
        for (tier, _, _), team in shapes.items():
            for kind in kinds:
                jobs += [Job(label, tier, kind, (team,), S) for S in wanted]
                if single:
                    jobs += [Job(label, tier, kind, (team,), S, "single") for S in wanted if S <= 64 * 2**10]
        alike = tuple(team for team in teams if shape_of(cluster, devices, team) == next(iter(shapes)))
        if len(alike) > 1:
            jobs += [Job(label, next(iter(shapes))[0], kind, alike, wanted[-1]) for kind in kinds]
    return jobs


def shape_of(cluster: Cluster, devices: Sequence[int], team: Sequence[int]) -> tuple[str, int, int]:
    """Tier, ranks and nodes of a group."""
    members = tuple(devices[rank] for rank in team)
    return cluster.tier(members).value, len(members), len({cluster.node_of(device) for device in members})


def pair_jobs(cluster: Cluster, devices: Sequence[int]) -> list[Job]:
    """Messages one way between pairs: all pairs of up to 16 ranks, else to the next two ranks and to the next node."""
    count = len(devices)
    if count <= MOST_FOR_ALL_PAIRS:
        pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    else:
        pairs = [(a, (a + step) % count) for step in (1, 2, cluster.devices_per_node) for a in range(count)]
    pairs = [(a, b) for a, b in dict.fromkeys(pairs) if a != b]
    return [
        Job("pair", cluster.tier((devices[a], devices[b])).value, "send_recv", ((a, b),), S)
        for a, b in pairs
        for S in PAIR_BYTES
    ]


def run(session: Session, jobs: Sequence[Job], progress: Progress = silent) -> list[list[float]]:
    """Seconds of one call by job and repeat, the slowest member's; on rank 0, else empty. Every rank runs every job."""
    wanted = dict.fromkeys(Named(j.label, team) for j in jobs if j.label != "pair" for team in j.teams)
    teams = create(session, list(wanted))
    mine: list[list[float]] = []
    for number, job in enumerate(jobs):
        progress(number, len(jobs), str(job))
        session.watch.at(str(job))
        mine.append(_time(session, job, _team(session, job, teams)))
    gathered = share(session, "times", mine)
    if gathered is None:
        return []
    return [
        [max(each[at][repeat] for each in gathered if each[at]) for repeat in range(REPEATS)] for at in range(len(jobs))
    ]


def _team(session: Session, job: Job, teams: dict[Named, Team]) -> Team | None:
    """The group of this rank in a job; None when it has no part in it. A pair talks over the group of all ranks."""
    rank = session.start.rank
    members = next((team for team in job.teams if rank in team), None)
    if members is None:
        return None
    if job.label == "pair":
        return Team("pair", members, session.world.handle, members.index(rank))
    return teams[Named(job.label, members)]


def _time(session: Session, job: Job, team: Team | None) -> list[float]:
    call = prepare(session, team, job.kind, job.S_bytes).run if team else None
    if call:
        call()  # the first call of a kind opens connections
        settled(session)
    found = []
    for _ in range(REPEATS):
        barrier(session)
        if call:
            start = time.perf_counter()
            for _ in range(job.calls):
                call()
            settled(session)
            found.append((time.perf_counter() - start) / job.calls)
    return found


def samples(
    cluster: Cluster, devices: Sequence[int], jobs: Sequence[Job], times: Sequence[Sequence[float]]
) -> list[Sample]:
    """What a calibration keeps of a sweep."""
    found = []
    for job, each in zip(jobs, times, strict=True):
        if job.label == "pair":
            continue
        tier, ranks, nodes = shape_of(cluster, devices, job.teams[0])
        best = min(each)
        found.append(
            Sample(
                kind=job.kind,
                group=job.label,
                tier=tier,
                ranks=ranks,
                nodes=nodes,
                S_bytes=job.S_bytes,
                seconds=best,
                spread_s=median(each) - best,
                groups=len(job.teams),
                mode=job.mode,
            )
        )
    return found


def rates(devices: Sequence[int], jobs: Sequence[Job], times: Sequence[Sequence[float]]) -> dict[tuple[int, int], Rate]:
    """Bytes/s and latency of each pair of devices. The best repeat counts: other work only makes a message slower."""
    small: dict[tuple[int, int], float] = {}
    found: dict[tuple[int, int], Rate] = {}
    for job, each in zip(jobs, times, strict=True):
        if job.label != "pair":
            continue
        a, b = (devices[rank] for rank in job.teams[0])
        best = min(each)
        if job.S_bytes == PAIR_BYTES[0]:
            small[a, b] = best
        else:
            middle = median(each)
            spread = 1.4826 * median(abs(one - middle) for one in each) / middle
            found[a, b] = Rate(job.S_bytes / best, small[a, b], job.S_bytes / best * spread / len(each) ** 0.5)
    return found

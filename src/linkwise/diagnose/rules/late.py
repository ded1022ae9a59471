"""One rank that keeps others waiting by its own doing; or a host that makes each of them late in turn.

What is charged to a rank is others' waiting that was followed to its own time (timing.py), so a rank that is late
because it waited elsewhere is never here.
"""

import math
from collections.abc import Iterator

import numpy as np

from linkwise.core.units import show_time
from linkwise.diagnose.case import Case
from linkwise.diagnose.chance import BURST_NS, LIKELY, charged
from linkwise.diagnose.parts import Trust
from linkwise.diagnose.progress import on_device
from linkwise.diagnose.rules import mismatch, stages
from linkwise.diagnose.rules.cause import NEXT, WORDS, cause_of, low, peers_of, refused, taken
from linkwise.diagnose.rules.compute import like_its_peers
from linkwise.diagnose.timing import Timing
from linkwise.diagnose.types import Fault, Finding
from linkwise.trace.joined import P2P

# A rank is named when its own time kept a group waiting for a tenth of the whole record, two and a half times as long
# as its peers did, in several calls, and more than chance does to one of equal ranks. Less than that, ranks of a
# healthy group do to each other in turn.
SHARE, RATIO, CALLS = 0.10, 2.5, 3
OWN = 0.25  # of what a rank is charged with, that its own time in all must be longer than its peers'
MOST_OF = 0.9  # of the waiting: the calls that are told of
LEADER = 1 / 3  # of what the worst rank is charged with: a rank with less lost a few calls from its record
SHARED = 0.5  # of the record lost to others on the same cores, without a quota: less is a busy machine, no rank's fault
TRUSTS: tuple[Trust, ...] = ("host", "written")
# Of the record, that a rank waits for the others in turn: where nothing but cores runs steps, as on any busy machine;
# and where devices do, whose own work takes the same time each step.
ROTATING_SHARE, ROTATING_DEVICES, ROTATING_RANKS = 0.5, 0.12, 3
# What a hang says where a rank may have left the common order.
LEFT_OUT = ("skipped_collective", "repeated_collective", "stopped_rank")
PAUSE_NS = 2_000_000_000  # one stop this long is a stop; a second passes on a host that is overloaded


def find(case: Case) -> Iterator[Finding]:
    """Late ranks, unequal stages, rotating stragglers."""
    t = case.timing
    if t is None:
        return
    if case.found("mismatch") or any(one.class_ in LEFT_OUT and not _stands(one) for one in case.found("hang")):
        t = _in_order(case, t)
    innocent = like_its_peers(case)
    late = [who for who in _late(case, t) if who not in innocent and _fairly(case, who)]
    stage = None if late else stages.uneven(case)
    if stage is not None:
        yield stage
        return
    for who in late:
        found = _finding(case, t, who)
        if found.cause != "contention" or refused(case, who) or t.held_ns[who] >= SHARED * t.elapsed_ns:
            yield found
    if not late:
        yield from stages.slow_alone(case)
        yield from _paused(case, t)
        yield from _between_clocks(case) or _rotating(case, t)


def _fairly(case: Case, who: int) -> bool:
    """Whether a rank is late also where all waits count: those that exceed what clocks are bound by are seen of ranks
    whose clocks look ahead alone, however often the others are late."""
    if not case.open_clocks:
        return True
    host, written = case.trusting("host"), case.trusting("written")
    return (host is not None and who in _late(case, host, open_=True)) or (
        written is not None and who in _late(case, written)
    )


def _between_clocks(case: Case) -> list[Finding]:
    """Who may be late, and that all are in turn, where clocks are bound too loosely to tell.

    Within a host its ranks are compared, but one that waited for another host looks late there. Across hosts, clocks
    that did not have to be moved are taken as they are written; moved ones stand at an end of what orders allow, and
    any rank may look late by them.
    """
    if not case.open_clocks or case.found("mismatch") or case.found("hang"):
        return []
    for trust in TRUSTS:
        t = case.trusting(trust)
        if t is None or (trust == "written" and any(case.clocks.shift_ns.values())):
            continue
        late = [who for who in _late(case, t, open_=True) if charged_by_chance(t, who, peers_of(case, who)) < LIKELY]
        found = [
            _finding(case, t, who)
            if trust == "host" and _waits_as_its_host(case, who)
            else _perhaps(case, t, who, trust)
            for who in late[:1]
        ] or list(_rotating(case, t))
        if found:
            return found
    return []


def _waits_as_its_host(case: Case, who: int) -> bool:
    """Whether whatever a rank waits for on other clocks, all of its own clock that it meets wait for in the same calls,
    so that it cannot be later than they are because of it."""
    clock, rows = case.clocks.clock, case.joined.rows
    used = set(np.unique(rows.group[rows.who == who]).tolist())
    members = {group: set(case.joined.groups[group].known.values()) for group in used}
    if any(case.joined.groups[group].missing for group in used):
        return False
    met = {place for places in members.values() for place in places if clock[place] == clock[who]} - {who}
    across = [places for places in members.values() if any(clock[place] != clock[who] for place in places)]
    return bool(met) and all(met <= places for places in across)


def _perhaps(case: Case, t: Timing, who: int, trust: Trust) -> Finding:
    led = _led(t, who)
    behind = float(np.median(t.wait[led])) if led.any() else 0.0
    width = max(case.clocks.unsure_ns.values(), default=0)
    bound = f"within {show_time(width / 1e9)} only" if width else "from one side at most"
    host = trust == "host"
    of = "the ranks of its host" if host else "its group"
    return Finding(
        class_="late_rank",
        summary=f"{case.name(who)} is last of {of} to {int(led.sum())} calls by {show_time(behind / 1e9)} (median)"
        f"{'' if host else ' as clocks are written'}, and calls and messages bind clocks {bound}:"
        f" it is late by its own doing, or {'it waited for another host before' if host else 'its clock is ahead'}",
        original_fault=case.fault(who),
        first_reporter=_victim(case, t, who),
        confidence=0.4,
        decided=False,
        waited_s=float(t.own_ns[who] / 1e9),
        evidence=(
            f"it would have held others up for {show_time(t.held_ns[who] / 1e9)},"
            f" {100 * t.held_ns[who] / t.elapsed_ns:.0f} % of the record",
        ),
        would_decide=("" if host else "each host's files in a folder named after it (node0/), or ")
        + "TORCH_NCCL_ENABLE_TIMING=1, by which the recorder notes how long each call ran",
        next=f"a profile of {case.name(who)} with its host's calls",
        recovery="none",
    )


def _stands(finding: Finding) -> bool:
    """Whether a rank that is waited for surely stands still, and has not left out a call."""
    return finding.class_ == "stopped_rank" and not finding.would_decide


def _in_order(case: Case, t: Timing) -> Timing:
    """Of the times those from before a rank left the common order of calls: after it, ranks meet in calls that are not
    the same, and each comes early or late to the others'. Where the moment is not known, none are left."""
    rows, first = case.joined.rows, case.joined.first
    begins = {(int(rows.group[row]), int(rows.sequence[row])): int(row) for row in first[:-1].tolist()}
    since: dict[int, int] = {}
    for call in mismatch.differing(case).items():
        row = begins[call]
        moments = t.arrive[row : first[int(np.searchsorted(first, row)) + 1]]
        island = case.clocks.island[int(rows.who[row])]
        since[island] = min(since.get(island, 2**62), int(moments.min()))
    before = np.asarray([since.get(island, 0) for island in case.clocks.island], np.int64)
    kept = t.origins.at_ns < before[t.origins.who]
    origins = t.origins._replace(**{name: column[kept] for name, column in t.origins._asdict().items()})
    held = np.bincount(origins.who, weights=origins.held_ns, minlength=len(t.held_ns)).astype(np.float64)
    return t._replace(origins=origins, held_ns=held, own_ns=np.where(held > 0, t.own_ns, 0.0))


def _late(case: Case, t: Timing, *, open_: bool = False) -> list[int]:
    """Records that keep others waiting. open_: times between calls hold waiting for other hosts, too."""
    found = []
    own = np.bincount(case.joined.rows.who, weights=np.maximum(t.gap, 0), minlength=len(t.held_ns))
    for who in range(len(case.joined.ranks)):
        least = max(SHARE * t.elapsed_ns, LEADER * float(t.held_ns.max()))
        if case.joined.ranks[who].head.device == "cpu":
            least = max(least, BURST_NS)
        if t.held_ns[who] < least or t.own_calls[who] < CALLS:
            continue
        peers = peers_of(case, who)
        if not peers or t.held_ns[who] < RATIO * low(t.held_ns[peers]):
            continue
        if not open_ and own[who] - low(own[peers]) < OWN * t.held_ns[who]:
            continue  # it does as much between calls as they do: what makes it late is inside some call
        if min(charged_by_chance(t, who, peers), _slower_by_chance(case, t, who, peers)) < LIKELY:
            found.append(who)
    return sorted(found, key=lambda who: -t.held_ns[who])


def charged_by_chance(t: Timing, who: int, peers: list[int]) -> float:
    """At most how likely one of equal ranks would be charged with as much, when every pause falls on any alike."""
    held = t.origins.held_ns[np.isin(t.origins.who, [who, *peers])]
    return charged(held, float(t.held_ns[who]), 1 + len(peers))


def _slower_by_chance(case: Case, t: Timing, who: int, peers: list[int]) -> float:
    """How likely one of equal ranks would take longer than the others as often before the same calls: the place of its
    own time among theirs, summed over calls (Friedman's ranks), against the normal distribution."""
    rows = case.joined.rows
    call = np.repeat(np.arange(case.joined.calls), np.diff(case.joined.first))
    known = t.gap >= 0
    mine = np.full(case.joined.calls, -1, np.int64)
    mine[call[known & (rows.who == who)]] = t.gap[known & (rows.who == who)]
    theirs = known & np.isin(rows.who, peers) & (mine[call] >= 0)
    theirs &= ~np.isin(rows.op, [case.joined.op(name) for name in P2P])  # the two ends of a message do different work
    ahead = np.sign(mine[call[theirs]] - t.gap[theirs])
    others = np.bincount(call[theirs], minlength=case.joined.calls).astype(float)
    spread = float((others * (others + 2)).sum()) / 3  # of a sum of signs against as many others, all equally likely
    score = float(ahead.sum()) / math.sqrt(spread) if spread else 0.0
    return min(1.0, (1 + len(peers)) * 0.5 * math.erfc(score / math.sqrt(2)))


def _finding(case: Case, t: Timing, who: int) -> Finding:
    head = case.joined.ranks[who].head
    cause, evidence = cause_of(case, t, who, float(t.held_ns[who]))
    led = _led(t, who)
    waits = t.wait[led]
    behind = float(np.median(waits)) if len(waits) else 0.0
    own, rest = _own_before(case, t, who, led)
    first = [
        f"{case.name(who)} came last to {int((t.lead == who).sum())} of {len(t.lead)} calls; {show_time(behind / 1e9)}"
        f" (median) after half of the group to the {len(waits)} that make up most of the waiting",
        *(
            [f"own time before these {show_time(own / 1e9)} (median), of its peers {show_time(rest / 1e9)}"]
            if own - rest >= behind / 2
            else []
        ),
        f"it held others up for {show_time(t.held_ns[who] / 1e9)}, {100 * t.held_ns[who] / t.elapsed_ns:.0f} % of the"
        f" record; {show_time(t.own_ns[who] / 1e9)} of their waiting, all together, begins here",
    ]
    return Finding(
        class_="late_rank",
        summary=f"{case.name(who)} is late by its own doing ({WORDS[cause]})",
        original_fault=case.fault(who),
        cause=cause,
        first_reporter=_victim(case, t, who),
        confidence=min(0.95, 0.6 + t.held_ns[who] / t.elapsed_ns),
        waited_s=float(t.own_ns[who] / 1e9),
        evidence=(*first, *evidence[:5]),
        next=NEXT[cause].format(rank=head.rank, host=head.host or "its host"),
        recovery="restart group" if cause in {"device", "host"} else "none",
    )


def _led(t: Timing, who: int) -> np.ndarray:
    """Of the calls a rank came last to those with the longest waits, MOST_OF them together."""
    mine = np.flatnonzero((t.lead == who) & (t.wait > 0))
    mine = mine[np.argsort(-t.wait[mine], kind="stable")]
    together = np.cumsum(t.wait[mine])
    most = int(np.searchsorted(together, MOST_OF * together[-1])) + 1 if len(mine) else 0
    found = np.zeros(len(t.lead), bool)
    found[mine[:most]] = True
    return found


def _own_before(case: Case, t: Timing, who: int, led: np.ndarray) -> tuple[float, float]:
    """Median own time before calls a rank came last to: its own, and of the others in the same calls."""
    rows, first = case.joined.rows, case.joined.first
    calls = np.repeat(led, np.diff(first))
    known = calls & (t.gap >= 0)
    mine = t.gap[known & (rows.who == who)]
    rest = t.gap[known & (rows.who != who)]
    return (float(np.median(mine)) if len(mine) else 0.0), (float(np.median(rest)) if len(rest) else 0.0)


def _victim(case: Case, t: Timing, who: int) -> str:
    """The rank that waited longest for another."""
    rows, first = case.joined.rows, case.joined.first
    led = np.repeat(t.lead == who, np.diff(first)) & (t.arrive > 0)
    waited = np.where(led, np.repeat(t.last, np.diff(first)) - t.arrive, 0)
    sums = np.bincount(rows.who, weights=waited, minlength=len(case.joined.ranks))
    most = int(np.argmax(sums))
    return f"{case.name(most)} (waited longest)" if sums[most] > 0 and most != who else ""


def _paused(case: Case, t: Timing) -> Iterator[Finding]:
    """One long stop of one rank, after which it went on."""
    if not len(t.origins.who):
        return
    longest = int(np.argmax(t.origins.held_ns))
    who, wait = int(t.origins.who[longest]), float(t.origins.held_ns[longest])
    if wait < PAUSE_NS or wait < SHARE * t.elapsed_ns:
        return
    if cause_of(case, t, who, wait)[0] == "contention" and not refused(case, who):
        return  # it could have run, and others did
    yield Finding(
        class_="stopped_rank",
        summary=f"{case.name(who)} stood still once for {show_time(wait / 1e9)} and went on",
        original_fault=case.fault(who),
        cause="host",
        confidence=0.7,
        waited_s=wait / 1e9,
        evidence=(f"its peers waited {show_time(wait / 1e9)} in one call; before it the rank was in no call",),
        next="dmesg of its host, and whether its process was stopped (SIGSTOP, a debugger, a page-out)",
        recovery="none",
    )


def _rotating(case: Case, t: Timing) -> Iterator[Finding]:
    """Every rank late in its turn, so that all are slow together.

    Ranks that run on cores do that to each other on any busy machine: of them it is told only where something says why.
    """
    ranks = max(1, len(t.own_ns))
    whole = float(t.own_ns.sum())
    share = whole / ranks / t.elapsed_ns  # of the record, which a rank waits in the middle
    some = t.own_ns >= 0.5 * whole / ranks
    devices = all(on_device(case.joined, who) for who in range(len(t.own_ns)))
    if share < (ROTATING_DEVICES if devices else ROTATING_SHARE) or some.sum() < max(ROTATING_RANKS, 0.6 * ranks):
        return
    hints = [f for f in case.facts("setting") if f.name in {"cpu_bind", "omp_threads"}]
    hints += [fact for fact, _ in taken(case)]
    if not hints and any(rank.head.device == "cpu" for rank in case.joined.ranks):
        return
    hosts = {rank.head.host for rank in case.joined.ranks}
    yield Finding(
        class_="rotating_straggler",
        summary="a different rank is late each time: what they share, not one of them",
        original_fault=Fault(host=next(iter(hosts)) if len(hosts) == 1 else ""),
        cause="placement" if any(f.kind == "setting" for f in hints) else "contention" if hints else "",
        first_reporter="all ranks",
        confidence=0.8 if hints else 0.6,
        waited_s=whole / 1e9,
        evidence=(
            f"{int(some.sum())} of {len(t.own_ns)} ranks are last in turn; a rank waits {100 * share:.0f} % of the"
            " record for one of the others",
            *(f.text or f.name for f in hints[:4]),
        ),
        next="bind every rank to cores of its own NUMA node (numactl, srun --cpu-bind=rank_ldom)",
        recovery="none",
    )

"""Why is a rank late? Its CPU time was taken from it, its host enters calls late, or its device comes late to them.

None of this is a rule by itself: `late.py` asks.
"""

import numpy as np

from linkwise.core.units import show_figure, show_time
from linkwise.diagnose.case import Case
from linkwise.diagnose.counters import grown
from linkwise.diagnose.progress import on_device
from linkwise.diagnose.steps import work_ns
from linkwise.diagnose.timing import Timing
from linkwise.diagnose.types import Cause
from linkwise.trace.calls import Ints
from linkwise.trace.facts import Fact

DELAY = "cpu.run_delay_ns"
CONTENTION = ("cpu.nr_throttled", "cpu.throttled_us", DELAY)
_NS = {"cpu.throttled_us": 1e3, DELAY: 1.0}

WORDS: dict[str, str] = {
    "host": "it enters calls late: its process, not its device",
    "device": "it enters in time and its device comes late",
    "contention": "its CPU time is taken from it",
    "": "its process or its device: what its record holds does not say which",
}
NEXT: dict[str, str] = {
    "host": "py-spy dump of rank {rank}, and what else runs on {host}",
    "device": "nvidia-smi -q -d PERFORMANCE,ECC on {host}",
    "contention": "cpu.stat of its cgroup and /proc/PID/schedstat on {host}; give it cores of its own",
    "": "nvidia-smi -q -d PERFORMANCE,ECC on {host}; a profile of rank {rank} with its host's calls and its kernels",
}


def peers_of(case: Case, who: int) -> list[int]:
    """Records a rank's own time is held against: those of its pool and pipeline stage, else of its pool."""
    head = case.joined.ranks[who].head
    own = head.unit, head.pool
    unit = [n for n, one in enumerate(case.joined.ranks) if (one.head.unit, one.head.pool) == own and n != who]
    same = [place for place in unit if case.joined.ranks[place].head.shard.get("pp") == head.shard.get("pp")]
    return same or unit


def low(values: np.ndarray) -> float:
    """The lower middle: of two, the smaller."""
    return float(np.sort(values)[(len(values) - 1) // 2]) if len(values) else 0.0


def cause_of(case: Case, t: Timing | None, who: int, late_ns: float) -> tuple[Cause, list[str]]:
    """late_ns: how much it was late in all, of which CPU time that was taken from it, and not from its peers as well,
    must explain at least half."""
    gone = [(fact, more) for fact, more in taken(case) if _of(case, fact, who)]
    peers = peers_of(case, who)
    lost = []
    for fact, more in gone:
        same = [
            next((f_more for f, f_more in grown(case, fact.name) if _of(case, f, peer)), 0.0)
            for peer in (peers if fact.rank >= 0 else ())
        ]
        lost.append((more - low(np.asarray(same))) * _NS.get(fact.name, 0))
    if gone and (max(lost) >= 0.5 * late_ns or not any(lost)):
        return "contention", [
            f"{fact.name} grew by {show_figure(more, 6)}" + (f": {fact.text}" if fact.text else "")
            for fact, more in gone
        ]
    broken = [fact for fact in case.facts("device") if _of(case, fact, who)]
    if broken:
        return "device", [fact.text or fact.name for fact in broken]
    if not on_device(case.joined, who):
        return "host", []  # its calls run on the host, and nothing else does
    return ("", []) if t is None else _host_or_device(case, t, who)


def _host_or_device(case: Case, t: Timing, who: int) -> tuple[Cause, list[str]]:
    """Enqueued late: the host; enqueued in time and started late: the device. A host that waits for its device's work
    before it goes on enqueues late as well, but then its kernels take longer than its peers' do."""
    split, longer = _split(case, t, who), _longer(case, t, who)
    if split is None and longer is None:
        return "", []
    host, device = split or (0.0, 0.0)
    told = (
        [f"entered {show_time(host / 1e9)} later than its peers, its device {show_time(device / 1e9)} later"]
        if split
        else []
    )
    if split and device > host:
        return "device", told
    late = host + device if split else float(np.median(t.wait[(t.lead == who) & (t.wait > 0)]))
    if longer is not None:
        told.append(f"its kernels before these calls take {show_time(longer / 1e9)} longer than its peers'")
        if longer >= 0.5 * late:
            return "device", told
    return "host", told


def refused(case: Case, who: int) -> bool:
    """Whether a quota stopped a rank while somebody looked."""
    return any(_of(case, fact, who) and fact.name != DELAY for fact, _ in taken(case))


def _of(case: Case, fact: Fact, who: int) -> bool:
    """Whether a fact is of a rank: by number, or by its host and device."""
    head = case.joined.ranks[who].head
    if fact.rank >= 0:
        return fact.rank == head.rank and fact.label("unit", head.unit) == head.unit
    return bool(fact.host) and fact.host == head.host and fact.device in {"", head.device}


def taken(case: Case) -> list[tuple[Fact, float]]:
    """Counters of CPU time that processes were refused: any throttling; a run delay only when it is a good part of
    what the process ran."""
    ran = {(f.host, f.rank, f.label("pid")): more for f, more in grown(case, "cpu.run_ns", since_start=True)}
    return [
        (fact, more)
        for fact, more in grown(case, *CONTENTION, since_start=True)
        if more > (0.5 * ran.get((fact.host, fact.rank, fact.label("pid")), np.inf) if fact.name == DELAY else 0)
    ]


def _split(case: Case, t: Timing, who: int) -> tuple[float, float] | None:
    """Median lateness of a rank in the calls it came last to, in entering and on the device, in ns; None where no call
    has both times on all members."""
    rows, first = case.joined.rows, case.joined.first
    host, device = [], []
    for call in np.flatnonzero((t.lead == who) & (t.wait > 0))[-2000:].tolist():
        span = slice(int(first[call]), int(first[call + 1]))
        mine = rows.who[span] == who
        created, started = rows.created_ns[span], rows.started_ns[span]
        if (created <= 0).any() or (started <= 0).any() or mine.all():
            continue
        delay = started - created
        host.append(float(created[mine][0] - low(created[~mine])))
        device.append(float(delay[mine][0] - low(delay[~mine])))
    return (float(np.median(host)), float(np.median(device))) if host else None


def _longer(case: Case, t: Timing, who: int) -> float | None:
    """How much longer a rank's own recorded work takes than its peers', in ns (median) before each call it came last
    to; None where records name no work."""
    rows, first = case.joined.rows, case.joined.first
    work = work_ns(case.joined)
    done = {place: _Work(case, place, work) for place in (who, *peers_of(case, who))}
    found = []
    for call in np.flatnonzero((t.lead == who) & (t.wait > 0))[-500:].tolist():
        took = {}
        for row in range(int(first[call]), int(first[call + 1])):
            place = int(rows.who[row])
            if place in done and t.arrive[row] > 0 and t.gap[row] >= 0:
                took[place] = done[place].within(int(t.arrive[row] - t.gap[row]), int(t.arrive[row]))
        rest = [time for place, time in took.items() if place != who]
        if who in took and rest and max(took.values()) > 0:
            found.append(took[who] - low(np.asarray(rest)))
    return float(np.median(found)) if found else None


class _Work:
    """A record's own work in time."""

    def __init__(self, case: Case, place: int, work: Ints) -> None:
        alone = case.joined.alone
        mine = np.flatnonzero((alone.who == place) & (work > 0))
        mine = mine[np.argsort(alone.started_ns[mine], kind="stable")]
        self._begin, self._sum = alone.started_ns[mine], np.append(0, np.cumsum(work[mine]))

    def within(self, begin: int, end: int) -> float:
        """Ns of work that began in a stretch of time."""
        a, b = np.searchsorted(self._begin, (begin, end), side="left")
        return float(self._sum[b] - self._sum[a])

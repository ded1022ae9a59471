"""Hosts that take their ranks' time, memory or locks: quotas, contention, kills, file locks that nobody gives back."""

from collections.abc import Iterator

from linkwise.core.units import show_figure
from linkwise.diagnose import reports
from linkwise.diagnose.case import Case, ranks_text
from linkwise.diagnose.counters import grown
from linkwise.diagnose.places import Places, lines, place_of
from linkwise.diagnose.rules.stacks import CALLS
from linkwise.diagnose.types import Fault, Finding
from linkwise.trace.facts import Fact

THROTTLED = 0.10  # of the periods: a quota that is met now and then stops nobody for long
MIN_PERIODS = 20
# An engine misses a worker some seconds after its end; clocks of logs are apart by as much.
SOON_NS, LATE_NS = 5 * 10**9, 60 * 10**9
# Signals of a process's own doing; and codes of a process that was ended, or ended itself, because of another.
_FAULTS = (-11, -7, -4, -8)
_FOLLOWING = (0, -6, -15, -2, -1)


def find(case: Case) -> Iterator[Finding]:
    """Quotas, ends of processes, locks."""
    places = Places(case)
    yield from _quota(case)
    yield from _ended(case, places)
    yield from _locks(case, places)


def _quota(case: Case) -> Iterator[Finding]:
    """Containers stopped by their CPU quota in more than a tenth of the periods."""
    periods = {_group(f): (f, more) for f, more in grown(case, "cpu.nr_periods", since_start=True)}
    hit: list[tuple[Fact, float, Fact, float]] = []
    for fact, more in grown(case, "cpu.nr_throttled", since_start=True):
        total, count = periods.get(_group(fact), (fact, 0.0))
        if count >= MIN_PERIODS and more > THROTTLED * count:
            hit.append((fact, more, total, count))
    by_host: dict[str, list[tuple[Fact, float, Fact, float]]] = {}
    for row in hit:
        by_host.setdefault(row[0].host, []).append(row)
    settings = [fact for fact in case.facts("setting") if fact.value > 0 or "thread" in fact.name.lower()]
    for host, rows in by_host.items():
        ranks = tuple(sorted({row[0].rank for row in rows if row[0].rank >= 0}))
        worst = max(rows, key=lambda row: row[1] / row[3])
        quotas = [fact for fact in settings if fact.name == "cpu_quota" and fact.host == host]
        pools = [fact for fact in settings if "thread" in fact.name.lower()]
        yield Finding(
            class_="host_contention",
            summary=f"container CPU quota{f' on {host}' if host else ''}"
            f"{f' ({ranks_text(ranks)})' if ranks else ''}: its processes are stopped in"
            f" {100 * worst[1] / worst[3]:.0f} % of the periods",
            original_fault=Fault(ranks=ranks, host=host),
            cause="contention",
            first_reporter="the engine",
            confidence=0.85,
            evidence=(
                f"throttled in {show_figure(worst[1])} of {show_figure(worst[3])} periods",
                *lines([worst[0], worst[2], *quotas[:2], *pools[:2]]),
            ),
            next="raise the quota, or set the thread pools to it (OMP_NUM_THREADS, torch.set_num_threads): by default"
            " they count the host's cores",
            recovery="none",
        )


def _group(fact: Fact) -> tuple[str, int, str, str]:
    return fact.host, fact.rank, fact.label("cgroup"), fact.source.partition(": line ")[0]


def _ended(case: Case, places: Places) -> Iterator[Finding]:
    """Processes that ended by themselves, by a fault or by the kernel; not those that were ended because of them."""
    exits = [fact for fact in case.facts("exit") if int(fact.value) not in _FOLLOWING or _untold(fact)]
    asked = reports.terminated(case)
    exits = [fact for fact in exits if not (fact.label("code") and fact.rank in asked)]
    errors = reports.own(case) if exits else []
    exits = [fact for fact in exits if not reports.follows(errors, fact, places.of(fact))]
    kills = [fact for fact in exits if fact.name == "oom" and not places.of(fact) and not reports.stranger(case, fact)]
    exits = [fact for fact in exits if fact.name != "oom" or places.of(fact)]
    sure = [fact for fact in exits if fact.name == "oom" or _untold(fact)]
    faults = [fact for fact in exits if int(fact.value) in _FAULTS]
    by_ranks: dict[tuple[int, ...], list[Fact]] = {}
    for fact in sure or faults or exits:
        by_ranks.setdefault(places.of(fact), []).append(fact)
    unknown = by_ranks.pop((), []) + kills
    killed = _killed(by_ranks, kills)
    if len(by_ranks) > 1 and not sure:
        first = _first(by_ranks)
        if first is None:
            yield _several(by_ranks)
            if kills:
                yield _unplaced(kills, _why(kills))
            return
        by_ranks = {first: by_ranks[first]}
    for ranks, facts in by_ranks.items():
        oom = any(fact.name == "oom" for fact in [*facts, *killed])
        yield Finding(
            class_="dead_rank",
            summary=f"{ranks_text(ranks)}: {_why(facts)}" + (f"; {_beside(killed[0])}" if killed else ""),
            original_fault=_fault(case, ranks, facts[0]),
            cause="host",
            confidence=0.9 if oom else 0.8,
            evidence=(*lines(facts, 5), *lines(killed, 2)),
            next="memory limits of its cgroup, dmesg of its host" if oom else "the last lines of its log; a core dump",
            recovery="restart group",
        )
    told = [fact for fact in unknown if fact.name in {"oom", "segfault", "trap"} and fact not in killed]
    if told and (not by_ranks or told[-1].name == "oom"):
        yield _unplaced(told, _why(told))


def _killed(by_ranks: dict[tuple[int, ...], list[Fact]], kills: list[Fact]) -> list[Fact]:
    """Of processes that the kernel killed for want of memory, those that are likely the one rank which ended as nobody
    says, or by signal 9: on its host, shortly before, an engine's by their name. In a container process ids differ."""
    ends = next(iter(by_ranks.values())) if len(by_ranks) == 1 else []
    if not all(_untold(end) or int(end.value) == -9 for end in ends):
        return []
    return [fact for fact in kills if any(_same_end(fact, end) for end in ends)]


def _same_end(kill: Fact, end: Fact) -> bool:
    near = not kill.unix_ns or not end.unix_ns or -SOON_NS <= end.unix_ns - kill.unix_ns <= LATE_NS
    here = not kill.host or not end.host or kill.host == end.host
    return near and here and reports.ENGINE.match(kill.label("command")) is not None


def _beside(kill: Fact) -> str:
    command = kill.label("command")
    return f"the kernel killed process {kill.label('pid')} ({command}) of its host for want of memory"


def _first(by_ranks: dict[tuple[int, ...], list[Fact]]) -> tuple[int, ...] | None:
    """Of ranks that ended, the one that did so before all others; None when times do not say."""
    times = {ranks: min((fact.unix_ns for fact in facts), default=0) for ranks, facts in by_ranks.items()}
    order = sorted(times, key=lambda ranks: times[ranks])
    return order[0] if 0 < times[order[0]] < times[order[1]] else None


def _several(by_ranks: dict[tuple[int, ...], list[Fact]]) -> Finding:
    ranks = sorted({rank for group in by_ranks for rank in group})
    return Finding(
        class_="dead_rank",
        summary=f"{ranks_text(ranks)} ended, and it is not said which of them first: the others end because of it",
        cause="host",
        confidence=0.5,
        decided=False,
        evidence=lines(fact for facts in by_ranks.values() for fact in facts),
        would_decide="times of these ends, or the first exception in their logs",
        next="the last lines of every rank's log",
        recovery="restart group",
    )


def _why(facts: list[Fact]) -> str:
    if any(fact.name == "oom" for fact in facts):
        return "the kernel killed it: out of memory"
    return f"its process ended ({_end(facts[0])})"


def _untold(fact: Fact) -> bool:
    """A process that is known to have ended, by what is not known."""
    return fact.name == "dead" or (fact.name == "died" and fact.label("code") == "unknown")


def _end(fact: Fact) -> str:
    code = int(fact.value)
    return f"signal {-code}" if code < 0 else "how is not said" if not code else f"code {code}"


def _fault(case: Case, ranks: tuple[int, ...], fact: Fact) -> Fault:
    return place_of(case, ranks[0], fact) if len(ranks) == 1 else Fault(ranks=ranks, host=fact.host)


def _unplaced(facts: list[Fact], why: str) -> Finding:
    command = facts[0].label("command")
    return Finding(
        class_="dead_rank",
        summary=f"process {facts[0].label('pid') or '?'}{f' ({command})' if command else ''}: {why}; which rank it was"
        " is not said",
        original_fault=Fault(host=facts[0].host),
        cause="host",
        confidence=0.5,
        decided=False,
        evidence=lines(facts),
        would_decide="process ids of the ranks: their logs, nvidia-smi, or NCCL_DEBUG=INFO",
        next="dmesg of the host, and which rank's process is not there any more",
        recovery="restart group",
    )


def _locks(case: Case, places: Places) -> Iterator[Finding]:
    """A file lock that some ranks wait for: it is held by the one member that does not wait for anything."""
    by_lock: dict[str, dict[int, Fact]] = {}
    for kind in ("notice", "stack", "error"):
        for fact in case.facts(kind, "lock_wait"):
            if fact.rank >= 0:
                by_lock.setdefault(fact.label("path") or fact.label("lock"), {}).setdefault(fact.rank, fact)
    stands = [fact for fact in case.facts("stack") if fact.label("thread", "main") == "main"]
    busy = {fact.rank for fact in stands if fact.name in CALLS}
    for path, waits in by_lock.items():
        if len(waits) < 2:
            continue
        # Ranks count from 0: one below the highest known that says nothing is there all the same.
        rest = [rank for rank in range(max([*places.known, -1]) + 1) if rank not in waits]
        holders = [rank for rank in rest if rank not in busy]
        others = holders if len(holders) == 1 else []
        held = f" {path}" if path else ""
        yield Finding(
            class_="stopped_rank" if others else "undecided",
            summary=f"rank {others[0]} holds the file lock{held} and does not give it back;"
            f" {ranks_text(list(waits))} wait for it"
            if others
            else f"{ranks_text(list(waits))} wait for the file lock{held}; who holds it is not said",
            original_fault=Fault(ranks=tuple(others)),
            cause="host",
            first_reporter=f"rank {min(waits)}",
            confidence=0.75 if others else 0.4,
            decided=bool(others),
            evidence=lines([*list(waits.values())[:4], *(fact for fact in stands if fact.rank in rest)], 8),
            would_decide="" if others else f"who has {path or 'the lock'}: its file's owner, py-spy dump of every rank",
            next=f"py-spy dump of {ranks_text(others) if others else 'every rank'}; remove a stale lock file"
            f"{held} before the next start",
            recovery="restart group",
        )

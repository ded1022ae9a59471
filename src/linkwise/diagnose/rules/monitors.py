"""What monitors and watchdogs say, read for what it is.

A monitor that counts *launched* calls says who has entered, not who has come out: with equal counts everywhere a group
can still hang on its devices or its network. And of two counts the lower is behind, however many ranks have it; the
list a monitor prints is the shorter one, which may be the one ahead.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from linkwise.diagnose.case import Case, ranks_text
from linkwise.diagnose.places import Places, lines, place_of, said
from linkwise.diagnose.rules import hang, late, mismatch, watchdogs
from linkwise.diagnose.types import Fault, Finding
from linkwise.trace.facts import Fact


class Count(NamedTuple):
    """What one rank had launched on a communicator at one look. ranks: how many the fact speaks of."""

    rank: int
    value: int
    ranks: int
    fact: Fact


def find(case: Case) -> Iterator[Finding]:
    """Ranks behind, ranks gone, calls that are enqueued everywhere, monitors that see nothing."""
    places = Places(case)
    found = [*_behind(case), *_gone(case, places), *watchdogs.find(case)]
    yield from found
    yield from _idle(case)
    yield from _disagrees(case, found)


def _behind(case: Case) -> Iterator[Finding]:
    for group, looks in launches(case).items():
        last = looks[-1]
        by_op = {op: _spread(counts) for op, counts in last.items() if len({count.value for count in counts}) > 1}
        if not by_op:
            continue
        crossed = _crossed(by_op)
        if crossed:
            yield _other_calls(group, by_op, crossed)
            continue
        op, (low, high) = max(by_op.items(), key=lambda item: item[1][1][0].value - item[1][0][0].value)
        moved = len(looks) > 1 and _moved(looks, op, low)
        if not moved:
            yield _laggards(case, group, op, low, high, len(looks) > 1)


def launches(case: Case) -> dict[str, list[dict[str, list[Count]]]]:
    """By communicator, for each look at it in the order of time, the counts of all ranks by op."""
    found: dict[str, dict[tuple[int, str], dict[str, list[Count]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for fact in case.facts("launched"):
        if fact.name == "work":  # as a process was told to tell: ranks enqueue ahead of each other (watchdogs.py)
            continue
        group = fact.label("comm") or ",".join(map(str, fact.group)) or fact.source.partition(": ")[0]
        many = fact.label("ranks")
        count = Count(fact.rank, int(fact.value), int(many) if many.isdecimal() else 1, fact)
        found[group][fact.unix_ns, fact.source.partition(": ")[0]][fact.name].append(count)
    return {group: [looks[at] for at in sorted(looks)] for group, looks in found.items()}


def _spread(counts: list[Count]) -> tuple[list[Count], list[Count]]:
    """Those with less than the most, and those with the most."""
    most = max(count.value for count in counts)
    low = [count for count in counts if count.value < most]
    return low, [count for count in counts if count.value == most]


def _crossed(by_op: dict[str, tuple[list[Count], list[Count]]]) -> tuple[int, ...]:
    """Ranks behind in one op and ahead in another: they made other calls, not fewer."""
    behind = {count.rank for low, _ in by_op.values() for count in low if count.rank >= 0}
    ahead = {count.rank for _, high in by_op.values() for count in high if count.rank >= 0}
    few = {op: min(low, high, key=_size) for op, (low, high) in by_op.items()}
    odd = set.intersection(*({count.rank for count in counts} for counts in few.values())) if len(few) > 1 else set()
    return tuple(sorted(odd & behind & ahead))


def _size(counts: list[Count]) -> int:
    return sum(count.ranks for count in counts)


def _other_calls(group: str, by_op: dict[str, tuple[list[Count], list[Count]]], odd: tuple[int, ...]) -> Finding:
    told = [count.fact for low, high in by_op.values() for count in [*low, *high]]
    return Finding(
        class_="op_mismatch",
        summary=f"{ranks_text(odd)} launched other calls than the rest of communicator {group}: fewer of"
        f" {' and '.join(op for op, (low, _) in by_op.items() if any(c.rank in odd for c in low))}, more of"
        f" {' and '.join(op for op, (_, high) in by_op.items() if any(c.rank in odd for c in high))}",
        original_fault=Fault(ranks=odd),
        cause="software",
        confidence=0.75,
        evidence=lines(fact for fact in told if fact.rank in odd or fact.rank < 0) + lines(told, 4),
        next=f"the code path of {ranks_text(odd)}; a flight recorder dump of every rank",
        recovery="restart group",
    )


def _moved(looks: list[dict[str, list[Count]]], op: str, low: list[Count]) -> bool:
    """Whether the laggards had launched less at an earlier look: they are on their way."""
    before = {count.rank: count.value for look in looks[:-1] for count in look.get(op, ())}
    return any(before.get(count.rank, count.value) < count.value for count in low)


def _laggards(case: Case, group: str, op: str, low: list[Count], high: list[Count], again: bool) -> Finding:
    ranks = tuple(sorted({count.rank for count in low} - {-1}))
    ahead = tuple(sorted({count.rank for count in high} - {-1}))
    behind, most = _size(low), high[0].value
    counts = sorted({count.value for count in low})
    few = behind < _size(high) or (behind == 1 and _size(high) == 1)
    decided = few and len(ranks) == behind
    hung = again or bool(case.facts("watchdog")) or bool(hang.stalls(case))
    who = ranks_text(ranks) if len(ranks) == behind else f"{behind} ranks"
    first = f"{ranks_text(ahead)}" if len(ahead) == _size(high) else f"{_size(high)} ranks"
    words = f"have launched {counts[0]} {op} where {first} launched {most}"
    return Finding(
        class_="stopped_rank" if decided else "undecided",
        summary=f"{who} {words}: others wait for {'it' if behind == 1 else 'them'}".replace("rank have", "rank has")
        if decided
        else f"{who} {words}. {first[:1].upper()}{first[1:]}, which a monitor lists as the smaller group,"
        f" {'is' if _size(high) == 1 else 'are'} ahead and not to blame; whom the {behind} wait for is not said",
        original_fault=Fault(ranks=ranks if decided else ()),
        cause="host" if decided else "",
        first_reporter=f"{ranks_text(ahead)} (listed by the monitor)" if ahead and not decided else "the monitor",
        confidence=(0.8 if hung else 0.6) if decided else 0.5,
        decided=decided,
        evidence=lines([*(count.fact for count in low[:4]), *(count.fact for count in high[:4])], 8),
        would_decide=""
        if decided and hung
        else "a second look at the monitor a minute later: who has moved; flight"
        " recorder dumps of all ranks, which tell calls that completed",
        next=f"py-spy dump of {ranks_text(ranks)}" if decided else f"py-spy dump of the ranks behind, not of {first}",
        recovery="restart group",
    )


def _gone(case: Case, places: Places) -> Iterator[Finding]:
    """Ranks that a monitor or a driver gets no answer from."""
    gone: dict[int, list[Fact]] = {}
    for fact in case.facts("missing"):
        for rank in places.of(fact):
            gone.setdefault(rank, []).append(fact)
    for rank, facts in gone.items():
        names = {fact.name for fact in facts}
        if names == {"slow"}:  # a driver's own word for a group that makes no progress: late or hung, not gone
            continue
        alive = "stopped" in names and "dead" not in names
        yield Finding(
            class_="stopped_rank" if alive else "dead_rank",
            summary=f"rank {rank}: " + ("its process is stopped" if alive else "its process does not answer any more"),
            original_fault=place_of(case, rank, facts[0]),
            cause="host",
            first_reporter="the monitor",
            confidence=0.9 if names & {"dead", "considered_dead", "stopped"} else 0.75,
            evidence=lines(facts),
            would_decide=""
            if names & {"dead", "considered_dead", "stopped"}
            else "whether the process still runs: a rank that is only stopped does not answer either",
            next="cat /proc/PID/status (State: T is stopped), SIGCONT" if alive else "its log's last lines and dmesg",
            recovery="restart group",
        )


def _idle(case: Case) -> Iterator[Finding]:
    """A data parallel rank without requests that does not make the call its busy peers wait in.

    It runs empty steps for the others' sake; what it skips in one of them, they wait for.
    """
    last: dict[int, Fact] = {}
    for fact in sorted(case.facts("gauge", "serve.running"), key=lambda fact: fact.unix_ns):
        replica = fact.label("dp") or fact.label("engine")
        if replica.isdecimal():
            last[int(replica)] = fact
    idle = sorted(replica for replica, fact in last.items() if fact.value == 0)
    busy = sorted(replica for replica, fact in last.items() if fact.value > 0)
    # Ranks count as replicas do where a replica is one rank.
    if not busy or len(last) != max((rank.head.world for rank in case.evidence.trace.ranks), default=0):
        return
    for one in hang.find(case):
        behind = one.original_fault.ranks
        if one.decided and one.class_ in {"stopped_rank", "dead_rank"} and len(behind) == 1 and behind[0] in idle:
            yield Finding(
                class_="skipped_collective",
                summary=f"idle DP rank: rank {behind[0]} has no requests, makes empty steps for its peers and leaves"
                f" out the call that {ranks_text(busy)} wait in, with {sum(last[r].value for r in busy):g} requests",
                original_fault=one.original_fault,
                cause="software",
                first_reporter=f"{ranks_text(busy)} (busy)",
                confidence=0.9,
                evidence=(*one.evidence[:3], *lines([last[behind[0]], last[busy[0]]])),
                next="what an empty step does where a full one makes its calls (dummy batches, early returns)",
                recovery="restart group",
            )


def _disagrees(case: Case, found: list[Finding]) -> Iterator[Finding]:
    """A monitor that says all is well, beside what ranks say. It neither hides the fault nor is one of its own."""
    fine = case.facts("status", "ok")
    if not fine:
        return
    dogs = [fact for fact in case.facts("watchdog") if not all(_before(ok, fact) for ok in fine)]
    seen = [*found, *(one for rule in (mismatch, hang, late) for one in rule.find(case))]
    if not dogs and not seen:
        return
    what = [f"{one.class_}: {one.summary}" for one in seen[:3]]
    yield Finding(
        class_="monitor_disagrees",
        summary="a monitor says that all is well while ranks say otherwise: what it counts is calls launched or a"
        " process that answers, and neither tells of calls that do not complete or come late",
        first_reporter=watchdogs.first(dogs),
        confidence=0.8,
        decided=any(one.decided for one in seen),
        evidence=(*map(said, fine[:2]), *lines(dogs, 3), *what),
        would_decide=""
        if any(one.decided for one in seen)
        else "what the other finding lacks; the monitor cannot tell",
        next="trust completions (flight recorder, kernel times) over launches and health endpoints",
        recovery="none",
    )


def _before(ok: Fact, dog: Fact) -> bool:
    """Whether a monitor looked before the call began that a watchdog complains of."""
    return bool(ok.unix_ns and dog.unix_ns) and ok.unix_ns < dog.unix_ns - int(dog.value * 1e9)

"""What monitors say, read for what it is.

A monitor that counts *launched* calls says who has entered, not who has come out: with equal counts everywhere a group
can still hang on its devices or its network. And of two counts the lower is behind, however many ranks have it; the
list a monitor prints is the shorter one, which may be the one ahead.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from linkwise.core.units import show_figure
from linkwise.diagnose.case import Case, ranks_text
from linkwise.diagnose.places import Places, lines, one, place_of, said, whole
from linkwise.diagnose.rules import watchdogs
from linkwise.diagnose.types import Fault, Finding
from linkwise.trace.facts import Fact


class Count(NamedTuple):
    """What one rank had launched on a communicator at one look. rank: of the world, or, with a unit, of a communicator
    alone; ranks: how many the fact speaks of."""

    rank: int
    value: int
    ranks: int
    unit: str
    fact: Fact


Look = dict[str, list[Count]]  # by op
Split = tuple[list[Count], list[Count]]  # those with less than the most, and those with the most


def find(case: Case) -> Iterator[Finding]:
    """Ranks behind, ranks gone, calls that are enqueued everywhere, monitors that see nothing."""
    places = Places(case)
    found = [*_behind(case, places), *_gone(case, places), *watchdogs.find(case), *_idle(case)]
    yield from found
    yield from _disagrees(case, found)


def _behind(case: Case, places: Places) -> Iterator[Finding]:
    for group, looks in _looks(case, places).items():
        by_op = {op: _split(counts) for op, counts in looks[-1].items() if len({count.value for count in counts}) > 1}
        if not by_op:
            continue
        crossed = _crossed(by_op)
        if crossed is not None:
            yield _other_calls(group, by_op, crossed)
            continue
        op, (low, high) = max(by_op.items(), key=lambda item: item[1][1][0].value - item[1][0][0].value)
        if not _moved(looks, op, low):
            yield _laggards(case, op, low, high, _again(looks, op, low))


def _looks(case: Case, places: Places) -> dict[str, list[Look]]:
    """By communicator, each look at it in the order of time: the counts of all ranks by op."""
    found: dict[str, dict[tuple[int, int, str], Look]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for fact in case.facts("launched"):
        if fact.name == "work":  # as a process was told to tell: ranks enqueue ahead of each other (watchdogs.py)
            continue
        group = fact.label("communicator") or ",".join(map(str, fact.group)) or _file(fact)
        rank, unit = _who(fact, places)
        count = Count(rank, int(fact.value), max(1, whole(fact, "ranks", 1)), unit, fact)
        found[group][fact.unix_ns, whole(fact, "snapshot", 1), _file(fact)][fact.name].append(count)
    return {group: [looks[at] for at in sorted(looks)] for group, looks in found.items()}


def _file(fact: Fact) -> str:
    return fact.source.partition(": ")[0]


def _who(fact: Fact, places: Places) -> tuple[int, str]:
    """A rank of the world; else one of a communicator, and its name."""
    ranks = places.of(fact)
    if len(ranks) == 1:
        return ranks[0], ""
    own = whole(fact, "comm_rank", -1)
    return (own, f"communicator {fact.label('communicator')}") if own >= 0 else (-1, "")


def _split(counts: list[Count]) -> Split:
    most = max(count.value for count in counts)
    return [count for count in counts if count.value < most], [count for count in counts if count.value == most]


def _size(counts: list[Count]) -> int:
    return sum(count.ranks for count in counts)


def _named(counts: list[Count]) -> str:
    """Ranks by number, or only how many where they are many or not told apart."""
    ranks = sorted({count.rank for count in counts} - {-1})
    return ranks_text(ranks) if len(ranks) == _size(counts) <= 8 else f"{_size(counts)} ranks"


def _crossed(by_op: dict[str, Split]) -> tuple[int, ...] | None:
    """The fewer ranks that are behind in one op and ahead in another: they made other calls, not fewer. Empty when no
    side is the smaller one; None when nobody is both."""
    behind = {count.rank for low, _ in by_op.values() for count in low if count.rank >= 0}
    ahead = {count.rank for _, high in by_op.values() for count in high if count.rank >= 0}
    few = [{count.rank for count in min(low, high, key=_size)} for low, high in by_op.values()]
    odd = set.intersection(*few) if len(few) > 1 else set()
    small = all(_size(low) != _size(high) for low, high in by_op.values())
    return (tuple(sorted(odd & behind & ahead)) if small else ()) if behind & ahead else None


def _other_calls(group: str, by_op: dict[str, Split], odd: tuple[int, ...]) -> Finding:
    counts = [count for low, high in by_op.values() for count in [*low, *high]]
    mine = [count for count in counts if count.rank in odd]
    rest = [count for count in counts if count.rank not in odd]
    fewer = " and ".join(op for op, (low, _) in by_op.items() if any(count.rank in odd for count in low))
    more = " and ".join(op for op, (_, high) in by_op.items() if any(count.rank in odd for count in high))
    words = f"launched other calls than the rest of communicator {group}: fewer {fewer}, more {more}"
    return Finding(
        class_="op_mismatch",
        summary=f"{ranks_text(odd)} {words}"
        if odd
        else f"ranks of communicator {group} launched different calls ({', '.join(by_op)}): which of them left the"
        " common order is not said",
        original_fault=Fault(ranks=odd, unit=mine[0].unit if mine else ""),
        cause="software",
        confidence=0.75 if odd else 0.5,
        decided=bool(odd),
        evidence=lines([*(count.fact for count in mine), *(count.fact for count in rest[:4])], 8),
        would_decide="" if odd else "flight recorder dumps of all ranks, or NCCL_DEBUG_SUBSYS=COLL",
        next=f"the code path of {ranks_text(odd) if odd else 'these ranks'}; a flight recorder dump of every rank",
        recovery="restart group",
    )


def _moved(looks: list[Look], op: str, low: list[Count]) -> bool:
    """Whether the laggards had launched less at an earlier look: they are on their way."""
    before = {count.rank: count.value for look in looks[:-1] for count in look.get(op, ())}
    return any(before.get(count.rank, count.value) < count.value for count in low)


def _again(looks: list[Look], op: str, low: list[Count]) -> bool:
    """Whether an earlier look saw the laggards where they are now."""
    before = {count.rank: count.value for look in looks[:-1] for count in look.get(op, ())}
    return all(before.get(count.rank, -1) == count.value for count in low)


def _others_wait(case: Case, ranks: tuple[int, ...], peers: set[int]) -> list[str]:
    """What besides a count says that peers wait for these ranks. peers: by number in the world, as far as is known."""
    told = [said(fact) for fact in case.facts("watchdog") if fact.rank in peers]
    told += [said(fact) for kind in ("exit", "missing") for fact in case.facts(kind) if fact.rank in ranks]
    for stall in case.stalls:
        members = case.board[stall.group]
        inside = [rank for rank, one in members.items() if one.open and rank in peers]
        out = [rank for rank in ranks if rank in members and members[rank].enqueued < stall.call]
        if inside and out:
            told.append(f"{case.group(stall.group)}: {ranks_text(inside)} in call {stall.call}, {ranks_text(out)} not")
    return told[:3]


def _laggards(case: Case, op: str, low: list[Count], high: list[Count], again: bool) -> Finding:
    behind, ahead, unit = _size(low), _size(high), low[0].unit
    ranks = tuple(sorted({count.rank for count in low} - {-1}))
    words = (
        f"{_named(low)}{f' of {unit}' if unit else ''} {'has' if behind == 1 else 'have'} launched"
        f" {min(count.value for count in low)} {op} where {_named(high)} launched {high[0].value}"
    )
    told = lines([*(count.fact for count in low[:4]), *(count.fact for count in high[:4])], 8)
    if len(ranks) == behind and (behind < ahead or behind == ahead == 1):
        them = "it" if behind == 1 else "them"
        others = _others_wait(case, ranks, {count.rank for count in high}) if not unit else []
        if again or others:
            return Finding(
                class_="stopped_rank",
                summary=f"{words}: the others wait for {them}",
                original_fault=Fault(ranks=ranks, unit=unit, host=one(count.fact.host for count in low)),
                cause="host",
                first_reporter="the monitor",
                confidence=0.8,
                evidence=(*(["an earlier look saw the same counts"] if again else []), *others, *told),
                next=f"py-spy dump of {ranks_text(ranks)}",
                recovery="restart group",
            )
        return Finding(
            class_="undecided",
            summary=f"{words}. Either the others wait for {them}, or {'it is' if behind == 1 else 'they are'} a few"
            " calls behind at this one moment",
            first_reporter="the monitor",
            confidence=0.4,
            decided=False,
            evidence=told,
            would_decide="a second look at the monitor a minute later: who has moved; a watchdog's line, or flight"
            " recorder dumps of all ranks",
            next=f"the same report again in a minute; then py-spy dump of {ranks_text(ranks)}",
            recovery="none",
        )
    return Finding(
        class_="undecided",
        summary=f"{words}. The latter, which a monitor lists where they are fewer, {'is' if ahead == 1 else 'are'}"
        f" ahead and not to blame; whom the {behind} wait for is not said",
        first_reporter=f"{_named(high)} (listed by the monitor)",
        confidence=0.5,
        decided=False,
        evidence=told,
        would_decide="a second look at the monitor a minute later: who has moved; flight recorder dumps of all ranks,"
        " which tell calls that completed",
        next=f"py-spy dump of the ranks behind, not of {_named(high)}",
        recovery="restart group",
    )


_SURE = {"dead", "considered_dead", "stopped"}
_NOT_GONE = {"slow", "not_a_member"}  # late or hung; alive, and out of that communicator


def _gone(case: Case, places: Places) -> Iterator[Finding]:
    """Ranks that a monitor or a driver gets no answer from."""
    gone: dict[tuple[int, str], list[Fact]] = {}
    for fact in case.facts("missing"):
        gone.setdefault(_who(fact, places), []).append(fact)
    for whole_host in _hosts_gone(case, gone):
        yield _host_finding(whole_host, [fact for who in whole_host.ranks for fact in gone.pop(who)])
    for (rank, unit), facts in gone.items():
        names = {fact.name for fact in facts}
        if names <= _NOT_GONE:
            continue
        sure, alive = bool(names & _SURE), "stopped" in names and "dead" not in names
        where = Fault(ranks=(rank,), unit=unit, host=facts[0].host) if unit else place_of(case, rank, facts[0])
        who = f"rank {rank}{f' of {unit}' if unit else ''}" if rank >= 0 else f"process {facts[0].label('pid') or '?'}"
        yield Finding(
            class_="stopped_rank" if alive else "dead_rank",
            summary=f"{who}: its process {'is stopped' if alive else 'does not answer any more'}",
            original_fault=where if rank >= 0 else Fault(host=facts[0].host),
            cause="host",
            first_reporter="the monitor",
            confidence=0.9 if sure else 0.75,
            evidence=lines(facts),
            would_decide="" if sure else "whether the process runs: one that is only stopped does not answer either",
            next="cat /proc/PID/status (State: T is stopped), SIGCONT" if alive else "its log's last lines and dmesg",
            recovery="restart group",
        )


class _Gone(NamedTuple):
    """A host none of whose ranks answers. ranks: keys of what is told of them."""

    host: str
    ranks: tuple[tuple[int, str], ...]


def _hosts_gone(case: Case, gone: dict[tuple[int, str], list[Fact]]) -> list[_Gone]:
    """Named hosts of several ranks of which no answer comes, where nothing else is known to run there."""
    alive: set[str] = {rank.head.host for rank in case.joined.ranks}
    silent: dict[str, list[tuple[int, str]]] = {}
    for who, facts in gone.items():
        if who[0] >= 0 and facts[0].host and not {fact.name for fact in facts} <= {*_NOT_GONE, "stopped"}:
            silent.setdefault(facts[0].host, []).append(who)
    ranks = {who[0] for mine in silent.values() for who in mine}
    alive |= {fact.host for fact in case.facts("place") if fact.rank not in ranks}
    return [_Gone(host, tuple(sorted(mine))) for host, mine in silent.items() if len(mine) > 1 and host not in alive]


def _host_finding(one: _Gone, facts: list[Fact]) -> Finding:
    ranks = tuple(sorted({rank for rank, _ in one.ranks}))
    units = {unit for _, unit in one.ranks}
    return Finding(
        class_="dead_rank",
        summary=f"host {one.host}: none of its {len(ranks)} ranks answers any more ({ranks_text(ranks)})",
        original_fault=Fault(ranks=ranks, host=one.host, unit=units.pop() if len(units) == 1 else ""),
        cause="host",
        first_reporter="the monitor",
        confidence=0.85,
        evidence=lines(facts),
        would_decide="whether the host answers: it may be down, or its network",
        next=f"ping and ssh to {one.host}; its console",
        recovery="restart group",
    )


def _idle(case: Case) -> Iterator[Finding]:
    """A data parallel rank without requests that does not make the call its busy peers wait in.

    It runs empty steps for the others' sake; what it skips in one of them, they wait for.
    """
    last: dict[int, Fact] = {}
    for fact in sorted(case.facts("gauge", "serve.running"), key=lambda fact: fact.unix_ns):
        replica = whole(fact, "dp", whole(fact, "engine", -1))
        if replica >= 0:
            last[replica] = fact
    busy = sorted(replica for replica, fact in last.items() if fact.value > 0)
    # Ranks count as replicas do where a replica is one rank.
    if not busy or len(last) != max((rank.head.world for rank in case.evidence.trace.ranks), default=0):
        return
    for stall in case.found("hang"):
        ranks = stall.original_fault.ranks
        gone = stall.decided and stall.class_ in {"stopped_rank", "dead_rank"} and len(ranks) == 1
        if gone and ranks[0] in last and last[ranks[0]].value == 0:
            requests = sum(last[replica].value for replica in busy)
            yield Finding(
                class_="skipped_collective",
                summary=f"idle DP rank: rank {ranks[0]} has no requests, makes empty steps for its peers and leaves out"
                f" a call that {ranks_text(busy)}, with {show_figure(requests)} requests,"
                f" {'is' if len(busy) == 1 else 'are'} in",
                original_fault=stall.original_fault,
                cause="software",
                first_reporter=f"{ranks_text(busy)} (busy)",
                confidence=0.9,
                evidence=(*stall.evidence[:3], *lines([last[ranks[0]], last[busy[0]]])),
                next="what an empty step does where a full one makes its calls (dummy batches, early returns)",
                recovery="restart group",
            )


def _disagrees(case: Case, found: list[Finding]) -> Iterator[Finding]:
    """A monitor that says all is well, beside what ranks say. It neither hides the fault nor is one of its own."""
    status = case.facts("status")
    ill = {_file(fact) for fact in status if fact.name != "ok"}
    fine = [fact for fact in status if fact.name == "ok" and _file(fact) not in ill]
    if not fine:
        return
    dogs = [fact for fact in case.facts("watchdog") if not all(_before(ok, fact) for ok in fine)]
    seen = [*found, *(other for rule in ("mismatch", "hang", "late") for other in case.found(rule))]
    if not dogs and not seen:
        return
    decided = any(other.decided for other in seen)
    yield Finding(
        class_="monitor_disagrees",
        summary="a monitor says that all is well while ranks say otherwise: what it counts is calls launched or a"
        " process that answers, and neither tells of calls that do not complete or come late",
        first_reporter=watchdogs.first(dogs),
        confidence=0.8,
        decided=decided,
        evidence=(*map(said, fine[:2]), *lines(dogs, 3), *(f"{other.class_}: {other.summary}" for other in seen[:3])),
        would_decide="" if decided else "what the other finding lacks; the monitor cannot tell",
        next="trust completions (flight recorder, kernel times) over launches and health endpoints",
        recovery="none",
    )


def _before(ok: Fact, dog: Fact) -> bool:
    """Whether a monitor looked before the call began that a watchdog complains of."""
    return bool(ok.unix_ns and dog.unix_ns) and ok.unix_ns < dog.unix_ns - int(dog.value * 1e9)

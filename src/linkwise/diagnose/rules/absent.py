"""Ranks that should have a record and have none: one that everybody waits for; or a whole host, or pipeline stage.

A host that is down and a host whose files nobody fetched look alike from outside. So ranks that are missing together
are one question about what they share, and the evidence decides it for none of them.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from linkwise.diagnose.case import Case, ranks_text
from linkwise.diagnose.rules import unread
from linkwise.diagnose.types import Fault, Finding
from linkwise.trace.facts import Fact
from linkwise.trace.joined import P2P
from linkwise.trace.readers import flight_recorder, own

MOST_RANKS = 65_536
# Formats that every rank writes by itself; a profiler is often switched on for a few ranks alone.
_ALL_WRITE = {flight_recorder.FORMAT, own.FORMAT}


class Block(NamedTuple):
    """Ranks of a unit without a record that share something. words: what; host: its name, "" = none or not known."""

    unit: str
    ranks: tuple[int, ...]
    words: str
    host: str


def find(case: Case) -> Iterator[Finding]:
    """A finding for each host, stage or run of ranks that has no record at all."""
    told = [fact for kind in ("exit", "missing") for fact in case.facts(kind)]
    for block in blocks(case):
        if set(block.ranks) <= {fact.rank for fact in told if fact.label("unit", block.unit) == block.unit}:
            continue  # other rules say what is known of them
        waits = waited_for(case, block)
        if waits or _expected(case, block):
            yield _finding(case, block, waits)


def blocks(case: Case) -> list[Block]:
    """What `_blocks` finds, worked out once."""
    found: list[Block] = case.once("blocks", lambda: _blocks(case))
    return found


def _blocks(case: Case) -> list[Block]:
    """Hosts, else pipeline stages, else aligned runs of ranks, none of which has a record; of two ranks at least."""
    found: list[Block] = []
    for unit in dict.fromkeys(rank.head.unit for rank in case.joined.ranks):
        known = {rank.head.rank for rank in case.joined.ranks if rank.head.unit == unit}
        world = max(rank.head.world for rank in case.joined.ranks if rank.head.unit == unit)
        missing = set(range(min(world, MOST_RANKS))) - known - set(unread.files(case, unit))
        by_host = _by_host(case, unit)
        named = [(ranks, f"host {name}", name) for name, ranks in by_host.items()]
        for ranks, words, host in (
            *named,
            *_stages(case, unit, missing),
            *_unnamed(by_host, world),
            *_runs(missing, world),
        ):
            if len(ranks) > 1 and set(ranks) <= missing:
                found.append(Block(unit, tuple(ranks), words, host))
                missing -= set(ranks)
    return found


_Candidate = tuple[list[int], str, str]  # ranks, words, host


def _by_host(case: Case, unit: str) -> dict[str, list[int]]:
    """Ranks of a unit by host, as far as anything names it."""
    names: dict[int, str] = {}
    for fact in case.facts("place"):
        if fact.rank >= 0 and fact.host and fact.label("unit", unit) == unit:
            names[fact.rank] = fact.host
    names |= {rank.head.rank: rank.head.host for rank in case.joined.ranks if rank.head.unit == unit and rank.head.host}
    by_host: dict[str, list[int]] = {}
    for rank, name in sorted(names.items()):
        by_host.setdefault(name, []).append(rank)
    return by_host


def _unnamed(by_host: dict[str, list[int]], world: int) -> Iterator[_Candidate]:
    """Where known hosts hold equal runs of ranks, the runs of hosts that nobody names."""
    size = max(map(len, by_host.values()), default=0)
    aligned = (
        {ranks[0] // size for ranks in by_host.values() if ranks[-1] // size == ranks[0] // size} if size else set()
    )
    if size > 1 and world % size == 0 and len(aligned) == len(by_host):
        for number in sorted(set(range(world // size)) - aligned):
            ranks = list(range(number * size, (number + 1) * size))
            yield ranks, f"the host of {ranks_text(ranks)}", ""


def _stages(case: Case, unit: str, missing: set[int]) -> Iterator[_Candidate]:
    """Pipeline stages, by the groups that run through all of them; several that are missing are one candidate."""
    stages: dict[int, set[int]] = {}
    for rank in case.joined.ranks:
        for key, members in rank.head.groups.items() if rank.head.unit == unit else ():
            axis = key.partition(":")[0].lower()
            if axis in {"pp", "mesh_pp"} or axis.startswith("pipeline"):
                for number, member in enumerate(members):
                    stages.setdefault(number, set()).add(member)
    if len(set().union(*stages.values())) < sum(map(len, stages.values())):
        return  # a rank of two stages: these groups are no stages of one pipeline
    gone = [number for number, ranks in sorted(stages.items()) if ranks <= missing]
    if gone:
        ranks = sorted(set().union(*(stages[number] for number in gone)))
        yield ranks, f"pipeline stage{'s' if len(gone) > 1 else ''} {', '.join(map(str, gone))}", ""


def _runs(missing: set[int], world: int) -> Iterator[_Candidate]:
    """Runs of missing ranks that begin and end where hosts do, if hosts hold equal runs of ranks."""
    rest = sorted(missing)
    while rest:
        run = [rest[0]]
        while len(run) < len(rest) and rest[len(run)] == run[0] + len(run):
            run.append(rest[len(run)])
        if run[0] % len(run) == 0 and world % len(run) == 0 and len(run) < world:
            yield run, ranks_text(run), ""
        rest = rest[len(run) :]


def _expected(case: Case, block: Block) -> bool:
    """Whether a record of these ranks should be here although nobody waits for them: everybody else's is, of a kind
    that every rank writes by itself, and they are no more than half."""
    ranks = [rank for rank in case.joined.ranks if rank.head.unit == block.unit]
    world = max(rank.head.world for rank in ranks)
    others = {rank for one in blocks(case) if one.unit == block.unit for rank in one.ranks}
    whole = len(ranks) + len(others) == world and 2 * len(others) <= world
    return whole and all(rank.format in _ALL_WRITE for rank in ranks)


def waited_for(case: Case, block: Block) -> list[str]:
    """Who waits for a block's ranks in calls that are open, in words."""
    joined = case.joined
    found = []
    for stall in case.stalls:
        group = joined.groups[stall.group]
        lacks = sorted(set(group.missing) & set(block.ranks))
        if group.unit == block.unit and lacks:
            inside = [rank for rank, one in case.board[stall.group].items() if one.open]
            found.append(f"{case.group(stall.group)}: {ranks_text(inside)} in call {stall.call}; {ranks_text(lacks)}"
                         f" {'has' if len(lacks) == 1 else 'have'} no record")  # fmt: skip
    for who, row in sorted(case.fronts.items()):
        peer = int(joined.rows.peer[row])
        if joined.ops[joined.rows.op[row]] in P2P and peer in block.ranks and joined.ranks[who].head.unit == block.unit:
            found.append(f"{case.name(who)} waits in a {joined.ops[joined.rows.op[row]]} with rank {peer}")
    return found


def _finding(case: Case, block: Block, waits: list[str]) -> Finding:
    count = len(block.ranks)
    shared = block.words.startswith(("host", "the host", "pipeline"))
    about = "" if ranks_text(block.ranks) in block.words else f" ({ranks_text(block.ranks)})"
    whose = f" of {block.unit}" if block.unit else ""
    first = f"{len([r for r in case.joined.ranks if r.head.unit == block.unit])} other ranks{whose} have records"
    return Finding(
        class_="undecided",
        summary=f"{block.words}{about}{whose}: none of {'its' if shared else 'these'} {count} ranks has a record."
        " Either they are gone together, or what they wrote was not collected",
        original_fault=Fault(unit=block.unit, host=block.host),
        first_reporter="those who wait for it" if waits else "",
        confidence=0.5 if waits else 0.3,
        decided=False,
        evidence=(first, *waits[:6]),
        would_decide="whether that host answers and the processes of these ranks still run; if they do, their records"
        " beside these",
        next=f"ping and ssh to {block.host or 'that host'}; ps for its ranks; fetch what they wrote",
        recovery="restart group" if waits else "none",
    )


def of_groups(case: Case, known: set[int]) -> dict[tuple[str, int], list[str]]:
    """Members without a record that a stuck group lacks and somebody stands waiting for, where no known one explains
    it. known: records of ranks that do not go on."""
    found: dict[tuple[str, int], list[str]] = {}
    lacks: dict[tuple[str, int], list[int]] = {}
    for stall in case.stalls:
        group = case.joined.groups[stall.group]
        explained = any(one.who in known or one.enqueued < stall.call for one in case.board[stall.group].values())
        for rank in () if explained else group.missing:
            lacks.setdefault((group.unit, rank), []).append(stall.group)
            found.setdefault((group.unit, rank), []).append(
                f"{case.group(stall.group)}: every rank with a record entered call {stall.call};"
                f" rank {rank} has no record"
            )
    stood = _stood_for(case)
    excused = {key for key in found if key not in stood or (known and _elsewhere(case, lacks[key]))}
    found = {key: why for key, why in found.items() if key not in excused}
    # A missing rank is missing from every group: those that only share groups with it are not named beside it.
    most = max((len(why) for why in found.values()), default=0)
    return {key: why for key, why in found.items() if len(why) == most}


def _stood_for(case: Case) -> set[tuple[str, int]]:
    """Members without a record, by unit and rank, of collectives that somebody stands in, and not only has enqueued."""
    rows, p2p = case.joined.rows, {case.joined.op(name) for name in P2P}
    groups = {int(rows.group[row]) for row in case.fronts.values() if int(rows.op[row]) not in p2p}
    return {(case.joined.groups[place].unit, rank) for place in groups for rank in case.joined.groups[place].missing}


def _elsewhere(case: Case, groups: list[int]) -> bool:
    """Whether a member without a record may itself be waiting in another group: before the call of one of these groups
    that is stuck, and after the one before, their other members made calls of others, and so did it. Records of open
    calls alone do not show it."""
    joined = case.joined
    oldest = {stall.group: stall.oldest for stall in case.stalls}
    for place in groups:
        key = joined.groups[place].key
        for who in joined.groups[place].known.values():
            calls = joined.ranks[who].calls
            if joined.ranks[who].only_open or key not in calls.groups:
                continue
            mine = calls.group == calls.groups.index(key)
            last = np.flatnonzero(mine & (calls.sequence <= oldest[place]))[-2:]
            shared = np.asarray([len(joined.ranks[who].head.groups.get(name, ())) > 1 for name in calls.groups])
            if len(last) and shared[calls.group[last[0] + 1 : last[-1]]].any():
                return True
    return False


def exit_of(case: Case, unit: str, rank: int) -> Fact | None:
    """What is known of the end of the process of a unit's rank."""
    ends = (fact for fact in case.facts("exit") if fact.rank == rank)
    return next((fact for fact in ends if fact.label("unit", unit) == unit), None)


def each(case: Case, lacking: dict[tuple[str, int], list[str]], reporter: str) -> Iterator[Finding]:
    """Ranks without a record that all others wait for, one by one, where they are not missing together. Of several one
    may wait for the other: then it is not said which."""
    together = {(block.unit, rank) for block in blocks(case) for rank in block.ranks}
    alone = {key: why for key, why in lacking.items() if key not in together}
    for unit in dict.fromkeys(unit for unit, _ in lacking):
        waits = {rank: why for (at, rank), why in lacking.items() if at == unit and exit_of(case, unit, rank) is None}
        if waits and unread.hidden(case, unit, waits):
            alone = {key: why for key, why in alone.items() if key[0] != unit or key[1] not in waits}
            yield unread.of_files(case, unit, waits, reporter)
    left = [key for key in alone if exit_of(case, *key) is None]
    doubt = {key: alone[key] for key in left if _may_wait(case, key, [one for one in left if one != key])}
    for (unit, rank), why in alone.items():
        free = [] if exit_of(case, unit, rank) else _free(case, unit, rank)
        if free:
            yield _or_free(case, unit, rank, free, why, reporter)
        elif (unit, rank) not in doubt or len(doubt) < 2:
            yield _one(case, unit, rank, why, reporter, exit_of(case, unit, rank))
    if len(doubt) > 1:
        yield _several(doubt, reporter)


def _free(case: Case, unit: str, rank: int) -> list[int]:
    """Records that a rank without one exchanges with and that are in no call: were it gone, they would wait as well, or
    tell of an error."""
    if case.told_to_stand:
        return []
    recorded = {case.joined.groups[place].members for place in set(case.joined.rows.group.tolist())}
    return [
        place
        for place, one in enumerate(case.joined.ranks)
        if one.head.unit == unit and not one.only_open and len(one.calls) and place not in case.waiting
        and any(rank in members and members in recorded for members in one.head.groups.values())
    ]  # fmt: skip


def _or_free(case: Case, unit: str, rank: int, free: list[int], why: list[str], reporter: str) -> Finding:
    names = ranks_text([case.joined.ranks[place].head.rank for place in free])
    return Finding(
        class_="undecided",
        summary=f"rank {rank} has no record and others wait for it; {names}, which it exchanges with, wait for nothing:"
        " either it is gone, or it waits for one of these",
        original_fault=Fault(unit=unit),
        first_reporter=reporter,
        confidence=0.5,
        decided=False,
        evidence=tuple(why[:6]),
        would_decide=f"whether the process of rank {rank} still runs; stacks of {names}",
        next=f"the log of rank {rank}; py-spy dump of {names}",
        recovery="restart group",
    )


def _may_wait(case: Case, key: tuple[str, int], others: list[tuple[str, int]]) -> bool:
    """Whether a rank without a record may wait for one of others without, in a call of both or in another group.
    Records of open calls alone do not show it."""
    groups = case.joined.groups
    stuck = [
        one.group for one in case.stalls if groups[one.group].unit == key[0] and key[1] in groups[one.group].missing
    ]
    if not others or any(rank.only_open for rank in case.joined.ranks if rank.head.unit == key[0]):
        return False
    shared = any(rank in groups[one].missing for one in stuck for unit, rank in others if unit == key[0])
    return shared or not stuck or _elsewhere(case, stuck)


def _several(doubt: dict[tuple[str, int], list[str]], reporter: str) -> Finding:
    ranks = sorted(rank for _, rank in doubt)
    return Finding(
        class_="undecided",
        summary=f"{ranks_text(ranks)} have no record and others wait for each of them: one is gone, and the rest may"
        " wait for it",
        original_fault=Fault(unit=next(iter({unit for unit, _ in doubt})) if len({u for u, _ in doubt}) == 1 else ""),
        first_reporter=reporter,
        confidence=0.5,
        decided=False,
        evidence=tuple(line for why in doubt.values() for line in why[:2])[:8],
        would_decide="which of their processes still run; the records of those that do",
        next=f"the logs of {ranks_text(ranks)}",
        recovery="restart group",
    )


def _one(case: Case, unit: str, rank: int, why: list[str], reporter: str, gone: Fact | None) -> Finding:
    closed = [fact.text for fact in case.facts("error", "peer_closed")][:2]
    return Finding(
        class_="dead_rank",
        summary=f"rank {rank} has no record and every other member of its groups waits for it",
        original_fault=Fault(ranks=(rank,), unit=unit),
        cause="host",
        first_reporter=reporter,
        confidence=0.9 if gone or closed else 0.75,
        evidence=(*([gone.text] if gone else []), *why[:6], *closed),
        would_decide="" if gone else "its process's state: it may have died, or live and not be able to write",
        next=f"the log of rank {rank}, and whether its process still runs",
        recovery="restart group",
    )

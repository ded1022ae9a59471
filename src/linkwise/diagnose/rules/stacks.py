"""Where ranks' threads stand, side by side: in one collective, in different ones, or one of them somewhere else.

A stack is a moment. In a call that others wait in for good it is where the rank is; in a run that goes on it is a
coincidence. So what is read from stacks alone is said with less certainty than what recorders tell.
"""

from collections.abc import Iterator

from linkwise.diagnose.case import Case, ranks_text
from linkwise.diagnose.places import lines
from linkwise.diagnose.rules.whereabouts import complaints
from linkwise.diagnose.timing import ROOTED
from linkwise.diagnose.types import Class, Fault, Finding
from linkwise.trace.facts import Fact

CALLS = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "barrier",
    "send", "recv",
)  # fmt: skip
PROXY = "nccl_proxy"  # the queue between a rank and the thread that moves its bytes


def find(case: Case) -> Iterator[Finding]:
    """Divergence, a hang without a culprit, one rank that does not come; nothing from fewer than two ranks."""
    stands = _stands(case)
    if len(stands) < 2:
        return
    places: dict[tuple[str, str], list[int]] = {}
    for rank, fact in stands.items():
        if fact.name in CALLS:
            places.setdefault((fact.name, fact.label("caller")), []).append(rank)
    inside = sorted(rank for ranks in places.values() for rank in ranks)
    proxy = sorted(rank for rank, fact in stands.items() if fact.name == PROXY)
    rest = sorted(set(stands) - set(inside) - set(proxy))
    if proxy:
        yield _in_proxy(stands, proxy)
    elif len(places) > 1:
        yield _diverged(stands, places)
    elif inside and not rest:
        yield _together(case, stands, inside)
    elif len(inside) > 0 and len(rest) == 1:
        yield from _one_missing(case, stands, inside, rest[0])


def _stands(case: Case) -> dict[int, Fact]:
    """The last stack of every rank's main thread; of its other threads only one that stands in NCCL's queue."""
    found: dict[int, Fact] = {}
    for fact in sorted(case.facts("stack"), key=lambda fact: fact.unix_ns):
        if fact.rank >= 0 and fact.label("thread", "main") == "main" and fact.name != "lock_wait":
            found[fact.rank] = fact
    for fact in case.facts("stack", PROXY):
        if fact.rank in found and found[fact.rank].name not in CALLS:
            found[fact.rank] = fact
    return found


def _words(fact: Fact) -> str:
    caller = fact.label("caller")
    return f"{fact.name}{f' ({caller})' if caller else ''}"


def _shown(stands: dict[int, Fact], ranks: list[int]) -> tuple[str, ...]:
    told = lines((stands[rank] for rank in ranks), 8)
    return tuple(f"rank {rank} stands in {_words(stands[rank])}" for rank in ranks[:8]) + told


def _in_proxy(stands: dict[int, Fact], proxy: list[int]) -> Finding:
    others = [rank for rank in stands if rank not in proxy]
    where = ", ".join(dict.fromkeys(_words(stands[rank]) for rank in others)) or "nowhere else"
    return Finding(
        class_="undecided",
        summary=f"{ranks_text(proxy)} {'stands' if len(proxy) == 1 else 'stand'} in NCCL's proxy queue on the host;"
        f" the others: {where}. Either that queue has no descriptors left, or the ranks took different decisions before"
        " the call: the stacks fit both",
        confidence=0.5,
        decided=False,
        evidence=_shown(stands, [*proxy, *others]),
        would_decide="the free list of the proxy's pool in gdb (freeOps -1: exhausted), against a record of every"
        " collective each rank entered (TORCH_NCCL_TRACE_BUFFER_SIZE): equal up to here, or not",
        next="the same run with another NCCL version, and with the flight recorder on",
        recovery="restart group",
    )


def _diverged(stands: dict[int, Fact], places: dict[tuple[str, str], list[int]]) -> Finding:
    fewest = min(places.values(), key=len)
    words = "; ".join(f"{ranks_text(ranks)} in {op} ({caller or '?'})" for (op, caller), ranks in places.items())
    return Finding(
        class_="control_divergence",
        summary=f"ranks took different decisions and stand in different collectives: {words}",
        original_fault=Fault(),
        cause="software",
        first_reporter=ranks_text(fewest) if len(fewest) * 2 < len(stands) else "",
        confidence=0.8,
        evidence=_shown(stands, sorted(stands)),
        next="the first branch above these calls that depends on what only one rank knows (a queue, a clock, a cache):"
        " which stack is the wrong one is not said by the stacks",
        recovery="restart group",
    )


def _together(case: Case, stands: dict[int, Fact], inside: list[int]) -> Finding:
    fact = stands[inside[0]]
    worlds = {rank.head.world for rank in case.evidence.trace.ranks}
    lacking = sorted(set(range(max(worlds, default=0))) - set(inside))
    missing = f"stacks of {ranks_text(lacking)}; " if lacking else ""
    return Finding(
        class_="hang",
        summary=f"{ranks_text(inside)} all stand in the same {_words(fact)}: nobody is behind, so no rank can be named",
        first_reporter="all ranks" if not lacking else ranks_text(inside),
        confidence=0.5,
        decided=False,
        evidence=_shown(stands, inside),
        would_decide=f"{missing}network and device counters of every host, and the backend and size of this call on"
        " each rank",
        next="nvidia-smi -q and the NIC counters of every host; the same start with NCCL_DEBUG=INFO",
        recovery="restart group",
    )


def _one_missing(case: Case, stands: dict[int, Fact], inside: list[int], rank: int) -> Iterator[Finding]:
    """All but one wait in the same call. Where the one stands says whether it will come."""
    fact, call = stands[rank], _words(stands[inside[0]])
    if fact.name == "device_wait" or (len(inside) < 2 and fact.name == "compute"):
        return  # it may be in the same call, on its device; of two ranks, one is always last
    if fact.name == "idle" and stands[inside[0]].name in {*ROOTED, "recv"} and not complaints(case):
        return  # without work it has nothing for them, and they wait for that by design
    sure = _seen_hanging(case) or _twice(case, rank)
    kind: Class
    if fact.name == "lock":
        kind, what = "stopped_rank", f"waits for a lock ({fact.label('caller') or fact.label('frames')})"
    elif fact.name == "idle":
        kind, what = "control_divergence", "is back in its loop and waits for work"
    else:
        kind, what = "stopped_rank", f"is elsewhere ({_words(fact)})"
    decided = sure or fact.name == "lock"
    yield Finding(
        class_=kind,
        summary=f"rank {rank} {what} while {ranks_text(inside)} wait in {call}",
        original_fault=Fault(ranks=(rank,)) if decided else Fault(),
        cause="software" if kind == "control_divergence" else "host",
        first_reporter=ranks_text(inside),
        confidence=0.75 if sure else 0.6 if decided else 0.4,
        decided=decided,
        evidence=_shown(stands, [rank, *inside]),
        would_decide="" if sure else "the same stacks a minute later: whether it still stands there",
        next=f"py-spy dump --native of rank {rank}, twice",
        recovery="restart group",
    )


def _seen_hanging(case: Case) -> bool:
    """Whether something else says that the group does not go on."""
    if case.facts("watchdog") or case.facts("error", "engine_watchdog"):
        return True
    return any(one.open for members in case.board.values() for one in members.values())


def _twice(case: Case, rank: int) -> bool:
    """Whether every one of several dumps of a rank shows it at the same place."""
    dumps = [fact for fact in case.facts("stack") if fact.rank == rank and fact.label("thread", "main") == "main"]
    return len({fact.source for fact in dumps}) > 1 and len({(f.name, f.label("frames")) for f in dumps}) == 1

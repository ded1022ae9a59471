"""Watchdogs and hang flags: every rank that has one says how far it got, none says whom it waits for."""

from collections.abc import Iterator

from linkwise.core.units import show_time
from linkwise.diagnose.case import Case, ranks_text
from linkwise.diagnose.places import lines, place_of, whole
from linkwise.diagnose.types import Cause, Fault, Finding
from linkwise.trace.facts import Fact


def find(case: Case) -> Iterator[Finding]:
    """The rank behind all others, or that nobody is known to be."""
    found = [*_enqueued(case), *_hang_flags(case)]
    yield from found
    yield from _mismatch(case)
    if not found:
        loops = list(_engines(case))
        yield from loops or _heartbeats(case)
        yield from _health(case) if not loops else ()


def _enqueued(case: Case) -> Iterator[Finding]:
    """Watchdogs whose ranks enqueued more than they completed, where no record tells more than they do."""
    if case.stalls:
        return
    by_group: dict[str, list[Fact]] = {}
    for fact in [*case.facts("launched", "work"), *case.facts("watchdog")]:
        if whole(fact, "enqueued", -1) >= 0 and whole(fact, "completed", -1) >= 0:
            by_group.setdefault(fact.label("group"), []).append(fact)
    for group, facts in by_group.items():
        latest = {fact.rank: fact for fact in facts}
        marks = {rank: (whole(f, "enqueued"), whole(f, "completed")) for rank, f in latest.items()}
        odd = _odd_marks(marks)
        if odd is not None:
            yield _odd_watchdog(case, group, odd, marks, latest)
            continue
        pending = [f for rank, f in latest.items() if f.kind == "watchdog" and marks[rank][0] > marks[rank][1]]
        if pending:
            yield _everywhere(case, group, pending, marks)


def _odd_marks(marks: dict[int, tuple[int, int]]) -> tuple[int, Cause] | None:
    """The one rank, of three or more, that completed less than all others, or enqueued less than they completed next;
    and whether it is its device, which has calls left that the others completed and more behind them; or its host,
    which enqueued nothing that is left; "" = either: the last call it enqueued is left, and nothing came after it."""
    if len(marks) < 3:
        return None
    low = sorted(marks, key=lambda rank: marks[rank][1])
    if marks[low[0]][1] < marks[low[1]][1] and len({marks[rank][1] for rank in low[1:]}) == 1:
        return low[0], "device" if marks[low[0]][0] > marks[low[1]][1] else _host(marks[low[0]])
    last, next_ = sorted(marks, key=lambda rank: marks[rank][0])[:2]
    behind = marks[last][0] <= marks[next_][1] and marks[last][0] < marks[next_][0]
    return (last, _host(marks[last])) if behind else None


def _host(mark: tuple[int, int]) -> Cause:
    return "host" if mark[0] == mark[1] else ""


def _odd_watchdog(
    case: Case, group: str, odd: tuple[int, Cause], marks: dict[int, tuple[int, int]], facts: dict[int, Fact]
) -> Finding:
    rank, cause = odd
    device = cause == "device"
    words = {"device": "its device does not go on", "host": "it does not go on"}
    return Finding(
        class_="device_error" if device else "stopped_rank",
        summary=f"rank {rank} completed call {marks[rank][1]} and enqueued {marks[rank][0]} of group {group or '?'},"
        f" behind all others: {words.get(cause, 'its device does not end that call, or its host makes no more')}",
        original_fault=place_of(case, rank, facts[rank]),
        cause=cause,
        first_reporter=first(list(facts.values())),
        confidence=0.75,
        evidence=lines([facts[rank], *(fact for other, fact in facts.items() if other != rank)]),
        would_decide="" if cause else f"host or device: py-spy dump of rank {rank}; Xids of its device",
        next=f"nvidia-smi -q and dmesg on the host of rank {rank}" if device else f"py-spy dump of rank {rank}",
        recovery="restart group",
    )


def _everywhere(case: Case, group: str, facts: list[Fact], marks: dict[int, tuple[int, int]]) -> Finding:
    ranks = sorted(fact.rank for fact in facts)
    done = {marks[rank][1] for rank in ranks}
    launched: dict[tuple[str, str], set[float]] = {}
    for fact in case.facts("launched"):
        launched.setdefault((fact.label("communicator"), fact.name), set()).add(fact.value)
    equal = bool(launched) and all(len(values) == 1 for values in launched.values())
    quiet = case.facts("status", "ok")
    call = facts[0].label("sequence") or str(max(done) + 1)
    op = facts[0].label("op")
    silent = _silent(case, marks)
    where = f"call {call}{f' ({op})' if op else ''} of group {group or '?'}"
    told = f"{ranks_text(ranks)} {'reports' if len(ranks) == 1 else 'report'} it"
    return Finding(
        class_="hang",
        summary=(
            f"{where} is not completed: {told}; {ranks_text(silent)} {'says' if len(silent) == 1 else 'say'} nothing:"
            f" {'it is' if len(silent) == 1 else 'they are'} in other groups, or what the others wait for"
            if silent
            else f"{where} is enqueued everywhere, not completed, as far as is known: {told}"
        )
        + (", and launch counts are equal on all ranks" if equal or quiet else ""),
        first_reporter=first(facts),
        confidence=0.5,
        decided=False,
        waited_s=max((fact.value for fact in facts), default=0.0),
        evidence=lines([*facts, *quiet], 8),
        would_decide=(f"a stack, or the log, of {ranks_text(silent)}; " if silent else "")
        + "flight recorder dumps of all ranks (TORCH_NCCL_TRACE_BUFFER_SIZE): who completed less; Xids and"
        " NIC counters of every host. Launch counts cannot: a call that is launched need not complete",
        next=f"py-spy dump of {ranks_text(silent)}; then nvidia-smi -q, dmesg and the IB counters on every host"
        if silent
        else "nvidia-smi -q, dmesg and the IB counters on every host",
        recovery="restart group",
    )


def _silent(case: Case, marks: dict[int, tuple[int, int]]) -> list[int]:
    """Ranks that the evidence knows and whose watchdogs say nothing, of any group, where those of most others do. Of
    many nobody knows which group is meant."""
    known = {fact.rank for kind in ("place", "transport", "launched") for fact in case.facts(kind) if fact.rank >= 0}
    known |= {rank.head.rank for rank in case.joined.ranks}
    spoke = {fact.rank for fact in case.facts("watchdog")} | set(marks)
    silent = sorted(known - spoke)
    return silent if len(silent) < len(spoke & known) else []


def _hang_flags(case: Case) -> Iterator[Finding]:
    """Monitors that flag each rank whose device does not come out of a call. The one that is not in it has no flag."""
    flags = {fact.rank: fact for fact in case.facts("gauge", "rank.hang") if fact.rank >= 0}
    stuck = sorted(rank for rank, fact in flags.items() if fact.value > 0)
    if not stuck:
        return
    free = sorted(set(flags) - set(stuck))
    single = len(free) == 1 and len(stuck) > 1
    yield Finding(
        class_="stopped_rank" if single else "hang",
        summary=f"{ranks_text(stuck)} hang in a call and rank {free[0]} does not: they wait for it"
        if single
        else f"{ranks_text(stuck)} of {len(flags)} hang in a call"
        + (
            f", {ranks_text(free)} do not: it is not said which of these they wait for"
            if free
            else ": nobody is behind"
        ),
        original_fault=Fault(ranks=(free[0],)) if single else Fault(),
        cause="host" if single else "",
        first_reporter="the monitor",
        confidence=0.6 if single else 0.5,
        decided=single,
        evidence=lines(flags[rank] for rank in [*stuck[:4], *free[:2]]),
        would_decide="" if single else "stacks or flight recorder dumps of all ranks",
        next=f"py-spy dump of {ranks_text(free)}" if free else "nvidia-smi -q and the NIC counters of every host",
        recovery="restart group",
    )


def _mismatch(case: Case) -> Iterator[Finding]:
    """A library that saw its ranks in different calls, where no record says which."""
    told = case.facts("error", "nccl_mismatch")
    if not told or case.found("mismatch"):
        return
    ranks = sorted({fact.rank for fact in told} - {-1})
    yield Finding(
        class_="op_mismatch",
        summary="ranks made different calls"
        + (f", at and around {ranks_text(ranks)}" if ranks else "")
        + ": which of them left the common order is not said",
        cause="software",
        first_reporter=first(told).replace("watchdog", "NCCL"),
        confidence=0.5,
        decided=False,
        evidence=lines(told),
        would_decide="every rank's calls: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=COLL, or flight recorder dumps",
        next="compare the calls of all ranks by number (opCount)",
        recovery="restart group",
    )


def _engines(case: Case) -> Iterator[Finding]:
    """Watchdogs of engines alone: a loop that did not turn. They fire on every rank that waits."""
    told = [fact for fact in case.facts("error", "engine_watchdog") if fact.label("soft") != "True"]
    if not told or case.stalls or case.facts("stack"):
        return
    ranks = sorted({fact.rank for fact in told} - {-1})
    yield Finding(
        class_="hang",
        summary=f"{ranks_text(ranks) if ranks else 'an engine'}: the engine's watchdog fired: its loop does not turn;"
        " whom it waits for is not said",
        first_reporter=first(told),
        confidence=0.4,
        decided=False,
        waited_s=max(fact.value for fact in told),
        evidence=lines(told),
        would_decide="stacks of all ranks (py-spy dump), or flight recorder dumps",
        next="py-spy dump of every rank",
        recovery="restart group",
    )


def _heartbeats(case: Case) -> Iterator[Finding]:
    """torch's monitor of its watchdog's thread: that thread stands in a call of NCCL or CUDA, or waits for the GIL."""
    told = case.facts("watchdog", "heartbeat")
    if not told or case.stalls or case.facts("stack") or case.facts("watchdog", "collective_timeout"):
        return
    ranks = sorted({fact.rank for fact in told} - {-1})
    seconds = max(fact.value for fact in told)
    yield Finding(
        class_="hang",
        summary=f"{ranks_text(ranks) if ranks else 'a rank'}: torch's watchdog thread stood still"
        f"{f' for {show_time(seconds)}' if seconds else ''}, in a call of NCCL or CUDA that does not return or behind"
        " a thread that holds the GIL; the process ends because of it. Whom that waits for is not said",
        first_reporter=first(told),
        confidence=0.4,
        decided=False,
        waited_s=seconds,
        evidence=lines(told),
        would_decide="flight recorder dumps or stacks (py-spy dump --native) of all ranks; Xids of every host",
        next="nvidia-smi -q and dmesg on every host; py-spy dump --native of the ranks that still run",
        recovery="restart group",
    )


def _health(case: Case) -> Iterator[Finding]:
    """A server that gets no answer from its engine, and whose engine reports no step after that. A long prompt or a
    first request makes an answer late as well; then the engine's figures go on."""
    told = case.facts("notice", "health_failed")
    last = {_file(fact): fact.unix_ns for fact in told}  # of the last of each log, whose own steps count
    steps = {_file(fact) for fact in case.facts("gauge", "serve.") if 0 < last.get(_file(fact), 0) < fact.unix_ns}
    told = [fact for fact in told if _file(fact) not in steps]
    if not told or case.facts("stack"):
        return
    yield Finding(
        class_="hang",
        summary=f"{f'{len(told)} health checks' if len(told) > 1 else 'a health check'} of the server failed: its"
        f" engine gave no answer for {show_time(told[-1].value)}, and no step of it is reported since. The detokenizer"
        " passes on what the scheduler sends and waits for it; what the scheduler waits for is not said",
        original_fault=Fault(host=told[0].host),
        first_reporter="the server's health check",
        confidence=0.4,
        decided=False,
        waited_s=max(fact.value for fact in told),
        evidence=lines([told[0], told[-1]]),
        would_decide="stacks of the scheduler's processes (py-spy dump of every rank), or its log after this: a"
        " prefill that takes longer than the check allows goes on",
        next="py-spy dump of every rank",
        recovery="restart group",
    )


def _file(fact: Fact) -> str:
    return fact.source.partition(": line ")[0]


def first(facts: list[Fact]) -> str:
    timed = sorted((fact for fact in facts if fact.unix_ns), key=lambda fact: fact.unix_ns) or facts
    return f"rank {timed[0].rank} (watchdog)" if timed and timed[0].rank >= 0 else ""

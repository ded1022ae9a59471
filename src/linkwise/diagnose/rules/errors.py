"""Errors that logs state: named where it began if the lines decide that, else undecided and by who said so first."""

from collections.abc import Iterator

from linkwise.diagnose.case import Case, ranks_text
from linkwise.diagnose.places import lines, place_of
from linkwise.diagnose.reports import Story, consequences, of_fronts, of_others, own
from linkwise.diagnose.rules import absent, devices, handoff, hang, host, mismatch, monitors, network, stacks
from linkwise.diagnose.types import Cause, Fault, Finding
from linkwise.trace.facts import Fact
from linkwise.trace.readers.shared import placed_by_path

_ENDS = {"dead_rank", "stopped_rank", "device_error", "network_error"}
SURE = 0.75  # of another rule's finding that explains errors elsewhere


def find(case: Case) -> Iterator[Finding]:
    """A finding for errors that no other rule explains."""
    stories, others, left = own(case), of_others(case), consequences(case)
    if not (stories or others or left):
        return
    found = [
        one
        for rule in (devices, network, host, mismatch, hang, absent, monitors, stacks, handoff)
        for one in rule.find(case)
    ]
    known = [one for one in found if one.decided and (one.class_ in _ENDS or one.class_.endswith("_mismatch"))]
    named = {rank for one in known for rank in one.original_fault.ranks}
    stories = [one for one in stories if not (one.ranks and set(one.ranks) <= named)]
    if any(one.confidence >= SURE for one in known):
        return  # the errors of the rest follow from it
    if stories:
        yield _told(case, stories, others, left)
    elif not found:
        yield _closed(case, others, left) if others else _ended(left)


def _told(case: Case, stories: list[Story], others: list[Fact], left: list[Fact]) -> Finding:
    """Processes that tell of errors of their own."""
    direct = [one for one in stories if one.direct] or stories
    first = _first(direct)
    if len(direct) > 1 and len({_what(one) for one in direct}) == 1:
        return _all_alike(direct, others)
    alone = direct[0] if len(direct) == 1 else None
    if alone is None or not alone.ranks:
        return _undecided(direct, first, others)
    rank = alone.ranks[0]
    witnesses = [fact for fact in (*others, *left) if fact.rank != rank or fact.kind == "exit" or fact.name == "exited"]
    witnesses += of_fronts(case, alone)
    # Nobody may have complained of somebody else before.
    before = [fact for fact in others if 0 < fact.unix_ns < alone.unix_ns and fact.rank != rank]
    if not alone.direct or not witnesses or before:
        return _undecided(direct, alone, others)
    where = place_of(case, rank, alone.facts[0]) if len(alone.ranks) == 1 else Fault(ranks=alone.ranks)
    return Finding(
        class_="dead_rank",
        summary=f"{ranks_text(alone.ranks)}: {_what(alone)}: its process ends, and the rest follows from it",
        original_fault=where,
        cause=_cause(alone),
        first_reporter=_who(alone),
        confidence=0.7,
        evidence=(*lines(alone.facts, 3), *lines(witnesses, 3)),
        would_decide="",
        next=_next(alone),
        recovery="restart group",
    )


def _all_alike(stories: list[Story], others: list[Fact]) -> Finding:
    ranks = sorted({rank for one in stories for rank in one.ranks})
    first = _first(stories)
    return Finding(
        class_="undecided",
        summary=f"{ranks_text(ranks) if ranks else f'{len(stories)} processes'}: {_what(stories[0])}, on each of them:"
        f" the program, its input or its settings rather than one rank; {_who(first)} says so first",
        cause=_cause(stories[0]),
        first_reporter=_who(first),
        confidence=0.5,
        decided=False,
        evidence=(*lines((one.facts[0] for one in stories), 4), *lines(others, 2)),
        would_decide=_would(stories[0]),
        next=_next(stories[0]),
        recovery="restart group",
    )


def _undecided(stories: list[Story], first: Story, others: list[Fact]) -> Finding:
    also = [one for one in stories if one is not first]
    more = f"; {', '.join(f'{_who(one)}: {_what(one)}' for one in also[:3])}" if also else ""
    return Finding(
        class_="undecided",
        summary=f"{_who(first)}: {_what(first)}{more}; what led to it is not said",
        cause=_cause(first),
        first_reporter=_who(first),
        confidence=0.5 if first.direct else 0.4,
        decided=False,
        evidence=(*lines(first.facts, 3), *lines((one.facts[0] for one in also), 3), *lines(others, 2)),
        would_decide=_would(first)
        + ("; times of the errors, or all ranks' logs from before the first" if also else ""),
        next=_next(first),
        recovery="restart group",
    )


def _closed(case: Case, told: list[Fact], left: list[Fact]) -> Finding:
    """Everybody tells of somebody else. Whom others name, and who names nobody, is where it began."""
    reporters = {fact.rank for fact in told if fact.rank >= 0}
    named: dict[int, set[int]] = {}
    for fact in told:
        if fact.peer >= 0 and fact.peer != fact.rank:
            named.setdefault(fact.peer, set()).add(fact.rank)
    roots = sorted(set(named) - reporters)
    said = _words(told)
    first = min(told, key=lambda fact: (fact.unix_ns == 0, fact.unix_ns))
    who = f"rank {first.rank}" if first.rank >= 0 else first.label("process") or first.source.partition(": line ")[0]
    if len(roots) == 1 and (len(named[roots[0]]) > 1 or any(fact.rank == roots[0] for fact in left)):
        return Finding(
            class_="dead_rank",
            summary=f"rank {roots[0]}: {ranks_text(sorted(named[roots[0]] - {-1}))} lost it ({said}), and it says"
            " nothing of others: its process ended",
            original_fault=place_of(case, roots[0]),
            cause="host",
            first_reporter=who,
            confidence=0.65,
            evidence=(*lines((fact for fact in told if fact.peer == roots[0]), 4), *lines(left, 2)),
            next=f"the last lines of the log of rank {roots[0]}, and dmesg of its host",
            recovery="restart group",
        )
    towards = sorted({fact.label("peer_host") or fact.label("peer") for fact in told} - {""})
    silent = sorted(_members(case) - reporters)
    about = f" towards {', '.join(towards[:4])}" if towards else ""
    return Finding(
        class_="undecided",
        summary=f"{ranks_text(sorted(reporters)) if reporters else who}: {said}{about}: these tell of others, and who"
        f" ended or stopped first is not said" + (f"; {ranks_text(silent)} report nothing" if silent else ""),
        first_reporter=who,
        confidence=0.4,
        decided=False,
        waited_s=max((fact.value for fact in told if fact.unit == "s"), default=0.0),
        evidence=(*lines(told, 5), *lines(left, 2)),
        would_decide=f"the last lines of the log of {ranks_text(silent) if silent else 'every rank'} from before this,"
        " exit codes, and dmesg of the hosts",
        next="the logs of all ranks around the first of these lines; py-spy dump of those that still run",
        recovery="restart group",
    )


def _members(case: Case) -> set[int]:
    """Ranks that have a record, a place, or a log of their own, be there nothing in it."""
    ranks = {rank.head.rank for rank in case.evidence.trace.ranks} | {fact.rank for fact in case.facts("place")}
    return (ranks | {placed_by_path(one.path)[0] for one in case.evidence.used}) - {-1}


def _ended(left: list[Fact]) -> Finding:
    """Processes that ended, by what they do not say."""
    first = min(left, key=lambda fact: (fact.label("first") != "1", fact.unix_ns == 0, fact.unix_ns))
    ranks = sorted({fact.rank for fact in left if fact.rank >= 0})
    who = f"rank {first.rank}" if first.rank >= 0 else first.label("proc") or first.label("process")
    return Finding(
        class_="undecided",
        summary=f"{ranks_text(ranks) if ranks else who or 'an engine'}: {_words(left)}; what ended it is not said",
        first_reporter=who or first.source.partition(": line ")[0],
        confidence=0.4,
        decided=False,
        evidence=lines(left),
        would_decide="the last lines of the process's own log: an exception, or a signal (dmesg of its host)",
        next="the log of the process that ended first, from before this line",
        recovery="restart group",
    )


_NAMES = {
    "gpu_out_of_memory": "GPU memory ran out", "gpu_fault": "memory access fault of the GPU",
    "host_out_of_memory": "the host's memory ran out", "host_disk_full": "no space left on a device of the host",
    "hung_task": "it hangs in the kernel", "soft_lockup": "a CPU does not come out of the kernel",
    "peer_closed": "connections closed by their peers", "peer_silent": "a peer does not answer",
    "store_lost": "the store of the job does not answer",
    "gloo_timeout": "a call timed out", "rpc_timeout": "a worker's answer timed out",
    "engine_dead": "an engine told dead",
    "lease_lost": "its lease in etcd ran out",
    "engine_watchdog": "the engine's watchdog fired", "handoff_failed": "a handoff failed", "abort": "it was aborted",
    "transfer_timeout": "a transfer timed out", "nccl_failed": "NCCL failed", "died": "a process ended",
    "collective_timeout": "a collective timed out", "heartbeat": "the watchdog's own thread stood still",
    "fatal_exception": "an exception ends it",
}  # fmt: skip


def _what(story: Story) -> str:
    """Its most telling error in words."""
    order = [
        "gpu_out_of_memory",
        "cuda_error",
        "gpu_fault",
        "cuda",
        "host_out_of_memory",
        "host_disk_full",
        "exception",
    ]
    fact = min(story.facts, key=lambda one: order.index(one.name) if one.name in order else len(order))
    return _words([fact])


def _words(facts: list[Fact]) -> str:
    return ", ".join(list(dict.fromkeys(map(_word, facts)))[:3])


def _word(fact: Fact) -> str:
    reason = fact.label("reason")
    if fact.name in {"cuda_error", "cuda"}:
        return "GPU memory ran out" if "out of memory" in reason else f"CUDA error ({reason or 'see its line'})"
    if fact.name.startswith("nccl_") and reason:
        return f"NCCL error ({reason})"
    if fact.name == "exception":
        return f"{fact.label('type')} ended it"
    if fact.name == "fatal_python_error":
        return f"Python ended ({reason})"
    if fact.name in {"exited", "died"} and fact.value:
        return f"ended with {'signal' if fact.value < 0 else 'code'} {abs(fact.value):.0f}"
    return _NAMES.get(fact.name, fact.name.replace("_", " "))


def _who(story: Story) -> str:
    return ranks_text(story.ranks) if story.ranks else story.who


def _first(stories: list[Story]) -> Story:
    """Who says so first; without times, whoever is listed first."""
    return min(stories, key=lambda one: (one.unix_ns == 0, one.unix_ns))


def _memory(story: Story) -> bool:
    return any(fact.name in {"gpu_out_of_memory"} or "out of memory" in fact.label("reason") for fact in story.facts)


def _cause(story: Story) -> Cause:
    names = {fact.name for fact in story.facts}
    if _memory(story):
        return "configuration"
    if names & {"host_out_of_memory", "host_disk_full", "hung_task", "soft_lockup"}:
        return "host"
    return "software" if names & {"exception", "fatal_exception", "cuda_error", "cuda"} else ""


def _would(story: Story) -> str:
    names = {fact.name for fact in story.facts}
    if _memory(story):
        return (
            "what fills the device: nvidia-smi for other processes, the engine's own memory report, a memory snapshot"
        )
    if names & {"cuda_error", "cuda", "gpu_fault"}:
        return (
            "Xid lines of its device (dmesg), and the step again with CUDA_LAUNCH_BLOCKING=1: the kernel that is named"
            " need not be the one at fault"
        )
    if any(name.startswith("nccl_") for name in names):
        return "NCCL_DEBUG=INFO on all ranks: the first NCCL WARN"
    return "the stack above the exception, and the other ranks' logs from before it"


def _next(story: Story) -> str:
    if _memory(story):
        return "lower the engine's memory share, its batch or its context, or give the model more ranks"
    names = {fact.name for fact in story.facts}
    if names & {"cuda_error", "cuda", "gpu_fault"}:
        return "dmesg | grep -i xid on its host; compute-sanitizer on the failing step"
    if names & {"host_out_of_memory", "host_disk_full"}:
        return "free -m, df -h /dev/shm and the limits of its container"
    return f"the lines above {story.facts[0].source}"

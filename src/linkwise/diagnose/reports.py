"""What processes' logs say of errors, sorted by whom an error tells of: of the process itself, or of somebody else.

Who reports first need not be where it began. A connection that a peer closed, a timeout, an engine that is told dead:
these tell of others. Memory that ran out, a broken CUDA context, an exception that ended a process: of the process.
"""

import re
from typing import NamedTuple

from linkwise.diagnose.case import Case
from linkwise.diagnose.places import Places
from linkwise.trace.facts import Fact

# Names of facts of kind "error". Those of the first lot are a process's own fault whatever else is said.
DIRECT = frozenset({
    "cuda_error", "gpu_out_of_memory", "gpu_fault", "host_out_of_memory", "host_disk_full", "hung_task", "soft_lockup",
})  # fmt: skip
OF_OTHERS = frozenset({
    "peer_closed", "store_lost", "gloo_timeout", "rpc_timeout", "handoff_failed", "transfer_timeout", "engine_watchdog",
    "peer_silent", "lease_lost",
})  # fmt: skip
CONSEQUENCES = frozenset({"engine_dead", "exited", "abort", "nccl_failed"})
ENGINE = re.compile(r"vllm|sglang|ray::|python|pt_main_thread|trtllm|mpi|linkwise", re.IGNORECASE)  # processes' names
_REMOTE = re.compile(r"remote|RemoteError|in progress|InProgress", re.IGNORECASE)


class Story(NamedTuple):
    """Errors of one process. ranks: its rank, () = not known; who: in words. direct: one is surely its own."""

    ranks: tuple[int, ...]
    who: str
    facts: tuple[Fact, ...]
    direct: bool

    @property
    def unix_ns(self) -> int:
        """When it says so first; 0 = not known."""
        return min((fact.unix_ns for fact in self.facts if fact.unix_ns), default=0)


def own(case: Case) -> list[Story]:
    """A story for each process that tells of an error of its own. Where ranks do, processes without a rank (an engine's
    front) only repeat it."""
    places = Places(case)
    found: dict[tuple[tuple[int, ...], str], list[Fact]] = {}
    for fact in case.facts("error"):
        if _kind(fact):
            ranks = places.of(fact)
            found.setdefault((ranks, "" if ranks else _process(fact)), []).append(fact)
    stories = [
        Story(ranks, who, tuple(facts), any(_kind(fact) == 2 for fact in facts))
        for (ranks, who), facts in found.items()
    ]
    return [one for one in stories if one.ranks] or stories


def of_others(case: Case) -> list[Fact]:
    """Reports of somebody else: closed connections, timeouts, remote errors."""
    told = [fact for fact in case.facts("error") if _tells_of_others(fact)]
    return [*told, *case.facts("watchdog")]


def consequences(case: Case) -> list[Fact]:
    """What is left of an error once it is over: processes that ended by themselves, engines told dead."""
    told = [fact for fact in case.facts("error") if fact.name in CONSEQUENCES]
    asked = terminated(case)
    ends = [fact for fact in case.facts("exit") if int(fact.value) not in {0, -1, -2, -15} or fact.label("code")]
    ends = [fact for fact in ends if not (fact.name == "oom" and stranger(case, fact))]
    ends = [fact for fact in ends if not (fact.label("code") and fact.rank in asked)]
    return [*told, *ends]


def of_fronts(case: Case, story: Story) -> list[Fact]:
    """What processes without a rank (an engine's core, its front) say of errors no earlier than a rank told its own:
    they fail with the worker that they lost, and often repeat its words."""
    places = Places(case)
    told = [
        fact for fact in case.facts("error") if fact.label("process") and (_kind(fact) or fact.name in CONSEQUENCES)
    ]
    late = [fact for fact in told if not fact.unix_ns or not story.unix_ns or fact.unix_ns >= story.unix_ns]
    return [fact for fact in late if not places.of(fact)]


def terminated(case: Case) -> set[int]:
    """Ranks that say somebody asked them to end: that their engine misses them then is no fault of theirs."""
    return {fact.rank for fact in case.facts("notice", "terminated") if fact.rank >= 0}


def stranger(case: Case, end: Fact) -> bool:
    """A process that is no engine's by its name, where the process ids of the host's ranks are known and others."""
    known = {fact.label("pid") for fact in case.facts("place") if fact.rank >= 0 and fact.host == end.host} - {""}
    return bool(known) and end.label("pid") not in known and ENGINE.match(end.label("command")) is None


def follows(told: list[Story], end: Fact, ranks: tuple[int, ...]) -> bool:
    """Whether a process, of these ranks, may have ended only because another told of an error of its own before.

    What the kernel killed for want of memory ended for a reason of its own."""
    before = [one for one in told if one.direct and one.ranks and not set(one.ranks) & set(ranks)]
    early = (not one.unix_ns or not end.unix_ns or one.unix_ns <= end.unix_ns for one in before)
    return end.name != "oom" and any(early)


def _kind(fact: Fact) -> int:
    """2: an error of its own, 1: perhaps, 0: none, or one of others."""
    if fact.name in DIRECT:
        return 2
    if fact.name == "fatal_python_error":
        return 1 if "Aborted" in fact.label("reason") else 2
    if fact.name == "exception" and fact.label("end") and not fact.label("of"):
        return 2
    if fact.name == "cuda":
        return 2
    if fact.name in {"nccl_error", "nccl_async_error", "nccl_init_error"} and not _REMOTE.search(fact.label("reason")):
        return 1
    return 1 if fact.name in {"fatal_exception"} else 0


def _tells_of_others(fact: Fact) -> bool:
    if fact.name == "engine_watchdog":
        return fact.label("soft") != "True"
    if fact.name in {"nccl_error", "nccl_async_error"}:
        return bool(_REMOTE.search(fact.label("reason")))
    return fact.name in OF_OTHERS or (fact.name == "exception" and bool(fact.label("end")) and bool(fact.label("of")))


def _process(fact: Fact) -> str:
    """A process without a rank, in words: by its name, its id or its file."""
    return fact.label("process") or (f"process {fact.label('pid')}" if fact.label("pid") else "") or (
        fact.source.partition(": line ")[0]
    )  # fmt: skip

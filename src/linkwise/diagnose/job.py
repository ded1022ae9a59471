"""Evidence of another job among that of this one: ranks that a job of this size does not have."""

from msgspec.structs import replace

from linkwise.core.units import counted
from linkwise.diagnose.case import ranks_text
from linkwise.trace.facts import Fact
from linkwise.trace.gather import Evidence

_MONITORS = frozenset({"status", "launched", "missing"})  # whose report is of one job as a whole


def of_one_job(evidence: Evidence) -> tuple[Evidence, tuple[str, ...]]:
    """Evidence without what is of another job, and notes on what was left out.

    How many ranks the job has is known where a record has a group of all of them. A monitor's report that speaks of
    more is left out as a whole; of logs, what they say of ranks beyond.
    """
    heads = [rank.head for rank in evidence.trace.ranks]
    world = max((head.world for head in heads if any(len(m) == head.world for m in head.groups.values())), default=0)
    if not world or any(head.world > world for head in heads):
        return evidence, ()
    beyond: dict[str, set[int]] = {}
    monitors: set[str] = set()
    for fact in evidence.facts:
        if (highest := _highest(fact)) >= world:
            beyond.setdefault(_file(fact), set()).add(highest)
            monitors |= {_file(fact)} if fact.kind in _MONITORS else set()
    if not beyond:
        return evidence, ()
    kept = tuple(fact for fact in evidence.facts if _file(fact) not in monitors and _highest(fact) < world)
    notes = tuple(
        f"{path}: speaks of {ranks_text(sorted(ranks))}, and the job of the records has {counted(world, 'rank')}:"
        " it is of another job, and left out" + ("" if path in monitors else " as far as it is of such ranks")
        for path, ranks in beyond.items()
    )
    return replace(evidence, facts=kept), notes


def _highest(fact: Fact) -> int:
    return max((fact.rank, *fact.group))


def _file(fact: Fact) -> str:
    return fact.source.partition(": line ")[0]

"""What a rule looks at: all the evidence, joined and measured once."""

from functools import cached_property

from linkwise.diagnose.progress import Board, progress
from linkwise.diagnose.timing import Timing, timing
from linkwise.diagnose.types import Fault
from linkwise.plan.types import Plan
from linkwise.trace.clocks import Clocks, align
from linkwise.trace.facts import Fact
from linkwise.trace.gather import Evidence
from linkwise.trace.joined import Joined, join


class Case:
    """Evidence and, where there is one, the plan it is held against. Everything is computed when it is first asked."""

    def __init__(self, evidence: Evidence, plan: Plan | None = None) -> None:
        self.evidence, self.plan = evidence, plan

    @cached_property
    def clocks(self) -> Clocks:
        return align(self.evidence.trace)

    @cached_property
    def joined(self) -> Joined:
        return join(self.evidence.trace, self.clocks.shift_ns)

    @cached_property
    def timing(self) -> Timing | None:
        return timing(self.joined)

    @cached_property
    def board(self) -> Board:
        return progress(self.joined)

    def facts(self, kind: str, *names: str) -> list[Fact]:
        """Facts of a kind, all or those whose name begins with one of `names`."""
        return [
            fact for fact in self.evidence.facts if fact.kind == kind and (not names or fact.name.startswith(names))
        ]

    def fault(self, *places: int) -> Fault:
        """Records as the place of a fault: their ranks, and host and device where they are the same for all."""
        heads = [self.joined.ranks[place].head for place in places]
        same = {name: {getattr(head, name) for head in heads} for name in ("unit", "host", "device")}
        one = {name: next(iter(values)) if len(values) == 1 else "" for name, values in same.items()}
        return Fault(ranks=tuple(sorted({head.rank for head in heads})), **one)

    def name(self, place: int) -> str:
        """A record's rank in words: rank 3, rank 3 of replica0."""
        head = self.joined.ranks[place].head
        return (
            f"rank {head.rank} of {head.unit}"
            if len({r.head.unit for r in self.joined.ranks}) > 1
            else (f"rank {head.rank}")
        )


def ranks_text(ranks: tuple[int, ...] | list[int]) -> str:
    """rank 3; ranks 3, 5; ranks 0 to 7; at most sixteen named."""
    numbers = sorted(ranks)
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"ranks {numbers[0]} to {numbers[-1]}"
    shown = ", ".join(map(str, numbers[:16]))
    return f"ranks {shown}" + (f" and {len(numbers) - 16} more" if len(numbers) > 16 else "")

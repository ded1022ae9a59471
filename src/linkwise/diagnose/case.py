"""What a rule looks at: all the evidence, joined and measured once."""

import os
from collections.abc import Callable
from functools import cached_property
from typing import Any

from linkwise.diagnose.parts import Trust
from linkwise.diagnose.progress import Board, Stall, fronts, moving, progress, stalls
from linkwise.diagnose.timing import Timing, timing
from linkwise.diagnose.types import Fault, Finding
from linkwise.plan.types import Plan
from linkwise.trace.calls import STARTED
from linkwise.trace.clocks import Clocks, align
from linkwise.trace.facts import Fact
from linkwise.trace.gather import Evidence
from linkwise.trace.joined import Joined, join, moved
from linkwise.trace.whose import START


class Case:
    """Evidence and, where there is one, the plan it is held against. Everything is computed when it is first asked."""

    def __init__(self, evidence: Evidence, plan: Plan | None = None) -> None:
        self.evidence, self.plan = evidence, plan
        self._once: dict[str, Any] = {}

    @cached_property
    def clocks(self) -> Clocks:
        return self._aligned[0]

    @cached_property
    def joined(self) -> Joined:
        return self._aligned[1]

    @cached_property
    def _aligned(self) -> tuple[Clocks, Joined]:
        joined = join(self.evidence.trace)
        clocks = align(self.evidence.trace, joined)
        return clocks, moved(joined, clocks.shift_ns)

    @cached_property
    def timing(self) -> Timing | None:
        return timing(self.joined, self.clocks)

    def trusting(self, trust: Trust) -> Timing | None:
        """The same with clocks compared another way."""
        found: Timing | None = self.once(f"timing {trust}", lambda: timing(self.joined, self.clocks, trust))
        return found

    @cached_property
    def open_clocks(self) -> bool:
        """Whether clocks are bound by orders alone, or not at all, so that times across them are known in part."""
        return any(self.clocks.unsure_ns.values()) or bool(self.clocks.apart)

    @cached_property
    def moving(self) -> dict[str, str]:
        """Units whose calls went on while their records were taken, with what shows it: in them calls under way are no
        hang. Empty where anything says that they stand."""
        return {} if self.told_to_stand else moving(self.joined, self.board)

    @cached_property
    def told_to_stand(self) -> bool:
        """Whether anything beside the calls says that ranks do not go on: a watchdog, an error, an end."""
        return any(self.facts(kind) for kind in ("watchdog", "error", "exit", "missing"))

    def _stands(self, place: int) -> bool:
        return self.joined.ranks[place].head.unit not in self.moving

    @cached_property
    def board(self) -> Board:
        return progress(self.joined)

    @cached_property
    def fronts(self) -> dict[int, int]:
        """By record, the row of `Joined.rows` it stands in, of units that do not move."""
        return {place: row for place, row in fronts(self.joined).items() if self._stands(place)}

    @cached_property
    def stalls(self) -> list[Stall]:
        """Groups somebody is stuck in, of units that do not move."""
        found = stalls(self.joined, self.board)
        return [one for one in found if self.joined.groups[one.group].unit not in self.moving]

    @cached_property
    def waiting(self) -> frozenset[int]:
        """Records that end inside a call, a message or an operation of their own, of units that do not move."""
        alone = self.joined.alone
        own = {place for place in alone.who[alone.state == STARTED].tolist() if self._stands(place)}
        return frozenset(self.fronts) | own

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """What `make` gives, made when it is first asked for under that name."""
        if name not in self._once:
            self._once[name] = make()
        return self._once[name]

    def found(self, name: str) -> tuple[Finding, ...]:
        """What the rule of that name finds. Rules that look at each other's answers ask here."""
        from linkwise.diagnose.rules import rule

        found: tuple[Finding, ...] = self.once(f"rule {name}", lambda: tuple(rule(name).find(self)))
        return found

    @cached_property
    def _by_kind(self) -> dict[str, list[Fact]]:
        found: dict[str, list[Fact]] = {}
        for fact in self.evidence.facts:
            found.setdefault(fact.kind, []).append(fact)
        return found

    def facts(self, kind: str, *names: str) -> list[Fact]:
        """Facts of a kind, all or those whose name begins with one of `names`."""
        return [fact for fact in self._by_kind.get(kind, ()) if not names or fact.name.startswith(names)]

    @cached_property
    def _by_rank(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for place, rank in enumerate(self.evidence.trace.ranks):
            found.setdefault(rank.head.rank, []).append(place)
        return found

    def records_of(self, fact: Fact) -> list[int]:
        """Records of the rank that a statement names: none or one; several where nothing says of which unit it is."""
        ranks = self.evidence.trace.ranks
        found = self._by_rank.get(fact.rank, [])
        if unit := fact.label("unit"):
            return [place for place in found if ranks[place].head.unit == unit]
        folder = os.path.dirname(fact.source.partition(": line ")[0])
        same_host = [place for place in found if fact.host and ranks[place].head.host == fact.host]
        same_folder = [place for place in found if os.path.dirname(ranks[place].source) == folder]
        for some in (same_host, same_folder):
            both = [place for place in some if place in found]
            found = both if len(found) > 1 and both else found
        if len({ranks[place].head.unit.partition(START)[0] for place in found}) == 1 and fact.unix_ns:
            begun = [place for place in found if ranks[place].head.anchor.unix_ns <= fact.unix_ns]
            found = sorted(begun, key=lambda place: ranks[place].head.anchor.unix_ns)[-1:] or found
        return found

    def fault(self, *places: int) -> Fault:
        """Records as the place of a fault: their ranks, and host and device where they are the same for all."""
        heads = [self.joined.ranks[place].head for place in places]
        same = {name: {getattr(head, name) for head in heads} for name in ("unit", "host", "device")}
        one = {name: next(iter(values)) if len(values) == 1 else "" for name, values in same.items()}
        return Fault(ranks=tuple(sorted({head.rank for head in heads})), **one)

    def group(self, place: int) -> str:
        """A group of `Joined.groups` in words."""
        group = self.joined.groups[place]
        return f"group {group.key} ({ranks_text(group.members)})"

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

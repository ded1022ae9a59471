"""Cumulative figures: how much did they grow while somebody looked?"""

import re
from itertools import pairwise

from linkwise.diagnose.case import Case
from linkwise.diagnose.places import whole
from linkwise.trace.facts import Fact

# Parts of a path that name a moment and no place: of `before/cpu.stat` and `after/cpu.stat` the counters are the same.
_MOMENT = re.compile(r"before|after|start|end|first|second|last|snap(?:shot)?[-_.]?\d*|\bt\d+\b|\d{6,}", re.IGNORECASE)


def grown(case: Case, *names: str, since_start: bool = False) -> list[tuple[Fact, float]]:
    """The last look at each counter of those names, with its growth since the first look.

    A counter is the same where name, host, device, rank and labels are; without a host also where its file is, moments
    in the path aside. One that fell was reset: its growth is that since then. Full ones (label saturated) are left out.
    since_start: of a single look, all that it counts.
    """
    found = []
    for facts in _looks(case, names):
        facts.sort(key=lambda fact: (fact.unix_ns, whole(fact, "snapshot")))
        if len(facts) == 1:
            if since_start:
                found.append((facts[0], facts[0].value))
            continue
        if len({(fact.unix_ns, fact.label("snapshot")) for fact in facts}) < len(facts):  # in no known order
            values = [fact.value for fact in facts]
            found.append((facts[-1], max(values) - min(values)))
            continue
        steps = [b.value - a.value if b.value >= a.value else b.value for a, b in pairwise(facts)]
        found.append((facts[-1], sum(steps)))
    return found


def once(case: Case, *names: str) -> list[Fact]:
    """Counters of those names that were looked at once and are not 0: nothing says whether they grow."""
    return [facts[0] for facts in _looks(case, names) if len(facts) == 1 and facts[0].value > 0]


def _looks(case: Case, names: tuple[str, ...]) -> list[list[Fact]]:
    looks: dict[tuple[object, ...], list[Fact]] = {}
    for fact in case.facts("counter", *names):
        if fact.name in names and not fact.label("saturated"):
            about = tuple(pair for pair in fact.labels if pair[0] not in {"snapshot", "time"})
            where = fact.host or _MOMENT.sub("", fact.source.partition(": line ")[0])
            looks.setdefault((fact.name, where, fact.device, fact.rank, about), []).append(fact)
    return list(looks.values())

"""Traces made by hand: every rank's line of calls, from which lateness and waits follow by arithmetic."""

from typing import NamedTuple

from linkwise.trace.calls import of_events
from linkwise.trace.events import Event, Head, RankTrace, Trace
from linkwise.trace.gather import Evidence

MS = 1_000_000
BASE = 1_700_000_000_000_000_000  # a Unix time in ns


class Step(NamedTuple):
    """One collective of a group: own time of each member before it, in ms, and what it then takes."""

    group: str
    own_ms: dict[int, float]
    takes_ms: float = 1.0
    op: str = "all_reduce"
    S_bytes: int = 4096


def run(
    groups: dict[str, tuple[int, ...]],
    steps: list[Step],
    *,
    hosts: dict[int, str] | None = None,
    ahead_ms: dict[int, float] | None = None,
    ends: bool = True,
    units: dict[int, str] | None = None,
) -> Evidence:
    """Play the steps: a call begins when its last member arrives, and all leave together.

    ahead_ms: by rank, how far its clock is ahead. ends: whether the record has the calls' ends.
    """
    world = 1 + max(rank for members in groups.values() for rank in members)
    now = {rank: 0.0 for members in groups.values() for rank in members}
    numbers = dict.fromkeys(groups, 0)
    events: dict[int, list[Event]] = {rank: [] for rank in now}
    for step in steps:
        members = groups[step.group]
        arrive = {rank: now[rank] + step.own_ms.get(rank, 0.0) for rank in members}
        leave = max(arrive.values()) + step.takes_ms
        for rank in members:
            shift = (ahead_ms or {}).get(rank, 0.0)
            begin, end = (BASE + round((time + shift) * MS) for time in (arrive[rank], leave))
            events[rank].append(
                Event(
                    0, step.group, "", step.op, numbers[step.group], step.S_bytes, "bfloat16", -1,
                    begin, begin, end if ends else 0, "done",
                )
            )  # fmt: skip
            now[rank] = leave
        numbers[step.group] += 1
    return evidence(events, groups, world=world, hosts=hosts, units=units)


def evidence(
    events: dict[int, list[Event]],
    groups: dict[str, tuple[int, ...]],
    *,
    world: int,
    hosts: dict[int, str] | None = None,
    units: dict[int, str] | None = None,
    transport: str = "",
) -> Evidence:
    """Records of ranks as evidence."""
    return Evidence(
        trace=Trace(
            ranks=tuple(
                RankTrace(
                    head=Head(
                        rank=rank,
                        world=world,
                        host=(hosts or {}).get(rank, "h"),
                        unit=(units or {}).get(rank, ""),
                        transport=transport,
                        groups={name: members for name, members in groups.items() if rank in members},
                    ),
                    calls=of_events(rows),
                )
                for rank, rows in sorted(events.items())
            )
        )
    )

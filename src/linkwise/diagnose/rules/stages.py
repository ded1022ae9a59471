"""Has a pipeline stage more to do than the others, or is the rank that is alone in it slower than theirs?

Ranks of a stage arrive together, so no call shows that all of them are late: a stage's own time a layer is held against
other stages'.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from linkwise.core.units import show_figure, show_time
from linkwise.diagnose.case import Case, ranks_text
from linkwise.diagnose.chance import BURST_NS
from linkwise.diagnose.rules.cause import NEXT, WORDS, cause_of, low
from linkwise.diagnose.steps import LEAST, own_times
from linkwise.diagnose.types import Finding

STAGE_RATIO = 3.0  # own time a layer, against other stages: they differ in embedding and head, ranks of a stage do not
USUAL = 0.25  # of a stage's steps are no longer than its usual one: what else the machine does only adds to some
RECENT = 0.5  # of the steps: in which a rank that became slow on the way is slow all the time
UNEVEN = 1.5  # times the layers, and the time, of the others: a stage that sets the pace
PIPELINE_NS = 2_000_000  # own time of a stage's step below which a wake-up is as long as the work


class _Stage(NamedTuple):
    """A pipeline stage of a unit. own_ns: of its usual step, of its busiest record; per_layer_ns."""

    places: list[int]
    layers: int
    own_ns: float
    per_layer_ns: float
    steps: int


def _stages(case: Case, part: float = 1.0) -> list[_Stage]:
    """Units' stages, where steps have ends, in the steps that all records of the unit reach over: one that ends early
    tells of other steps than its peers' do. part: of the steps, the last ones."""
    found: dict[tuple[str, int], list[int]] = {}
    for place, one in enumerate(case.joined.ranks):
        if "pp" in one.head.shard:
            found.setdefault((one.head.unit, one.head.shard["pp"]), []).append(place)
    stages = []
    own_of = {place: own_times(case.joined.ranks[place]) for places in found.values() for place in places}
    for (unit, _), places in sorted(found.items()):
        steps = [own_of[place].step for (of, _), mine in found.items() if of == unit for place in mine]
        every = [one for one in steps if len(one) >= LEAST]
        if not every:
            continue
        first, last = max(int(one.min()) for one in every), min(int(one.max()) for one in every)
        times = [own_of[place].own_ns[(own_of[place].step >= first) & (own_of[place].step <= last)] for place in places]
        times = [one[len(one) - round(part * len(one)) :] for one in times]
        if min(len(one) for one in times) < LEAST:
            continue
        own = max(float(np.quantile(one, USUAL)) for one in times)
        layers = _layers(case, places[0])
        stages.append(_Stage(places, layers, own, own / max(1, layers), min(len(one) for one in times)))
    return stages


def uneven(case: Case) -> Finding | None:
    """A pipeline stage with more to do than the others: because of its layers, or all of its ranks alike."""
    stages = _stages(case)
    if len(stages) < 2:
        return None
    slow = max(stages, key=lambda one: one.own_ns)
    rest = [one for one in stages if one is not slow and _unit(case, one) == _unit(case, slow)]
    if not rest:
        return None
    own, layers = low(np.asarray([one.own_ns for one in rest])), low(np.asarray([float(one.layers) for one in rest]))
    if (
        slow.layers < UNEVEN * layers
        or slow.own_ns < UNEVEN * own
        or slow.per_layer_ns > STAGE_RATIO * own / max(1.0, layers)
    ):
        return None
    ranks = [case.joined.ranks[place].head.rank for place in slow.places]
    number = case.joined.ranks[slow.places[0]].head.shard["pp"]
    return Finding(
        class_="stage_imbalance",
        summary=f"pipeline stage {number} ({ranks_text(ranks)}) has more to do than the others",
        original_fault=case.fault(*slow.places),
        confidence=0.85,
        waited_s=(slow.own_ns - own) * slow.steps / 1e9,
        evidence=(
            f"it has {slow.layers} layers, the others {show_figure(layers)}",
            f"its own time is {show_time(slow.own_ns / 1e9)} a step, the others' {show_time(own / 1e9)}",
            f"a layer takes {show_time(slow.per_layer_ns / 1e9)} there and {show_time(own / max(1.0, layers) / 1e9)}"
            " elsewhere",
        ),
        next="linkwise plan, or --layers, with other layer counts per stage; embedding and head count as layers",
        recovery="none",
    )


def slow_alone(case: Case) -> Iterator[Finding]:
    """A rank alone in its stage has nobody to arrive with: its own time a layer is held against other stages', in all
    steps and, as it may become slow on the way, in the last half of them; what costs more is told."""
    found = [*_slow_alone(case, _stages(case), 0.0), *_slow_alone(case, _stages(case, RECENT), 2 * BURST_NS)]
    for where in dict.fromkeys(one.original_fault for one in found):
        yield max((one for one in found if one.original_fault == where), key=lambda one: one.waited_s)


def _slow_alone(case: Case, stages: list[_Stage], least_ns: float) -> Iterator[Finding]:
    """least_ns: of lateness in all; among a few steps one burst of another program is many."""
    for one in stages:
        rest = [s.per_layer_ns for s in stages if s is not one and _unit(case, s) == _unit(case, one)]
        if len(one.places) != 1 or not rest:
            continue
        usual = low(np.asarray(rest))
        if one.per_layer_ns < STAGE_RATIO * usual or one.own_ns < PIPELINE_NS:
            continue
        who = one.places[0]
        behind = (one.own_ns - usual * max(1, one.layers)) * one.steps
        if behind < least_ns:
            continue
        cause, evidence = cause_of(case, None, who, behind)
        yield Finding(
            class_="late_rank",
            summary=f"{case.name(who)} takes longer for its layers than the other stages ({WORDS[cause]})",
            original_fault=case.fault(who),
            cause=cause,
            first_reporter="the stage after it",
            confidence=0.8,
            waited_s=behind / 1e9,
            evidence=(
                f"a layer takes {show_time(one.per_layer_ns / 1e9)} there and {show_time(usual / 1e9)} elsewhere",
                f"its own time is {show_time(one.own_ns / 1e9)} a step (lower quarter of {one.steps})",
                *evidence[:5],
            ),
            next=NEXT[cause].format(
                rank=case.joined.ranks[who].head.rank, host=case.joined.ranks[who].head.host or "its host"
            ),
            recovery="restart group" if cause in {"device", "host"} else "none",
        )


def _unit(case: Case, stage: _Stage) -> str:
    return case.joined.ranks[stage.places[0]].head.unit


def _layers(case: Case, place: int) -> int:
    first, end = case.joined.ranks[place].head.layers
    return end - first

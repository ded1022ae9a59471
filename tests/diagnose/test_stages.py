"""Pipeline stages of one rank each, whose steps have ends: what a rank does itself in a step, by hand."""

import msgspec
import pytest
from tests.diagnose.made import BASE, MS, evidence

from linkwise.diagnose.diagnose import diagnose
from linkwise.trace.events import Batch, Event

STEPS = 60


def stages(own_ms, *, layers=((0, 8), (8, 16))):
    """Two stages; own_ms: by stage, what each takes for a step beside 1 ms in its message."""
    rows = {0: [], 1: []}
    batches = {0: [], 1: []}
    at = BASE
    for number in range(STEPS):
        for rank, op in ((0, "send"), (1, "recv")):
            own = round(own_ms[rank][number] * MS)
            begin, end = (at + own, at + own + MS) if rank == 0 else (at, at + MS)
            rows[rank].append(
                Event(number, "pp", "stage", op, number, 4096, "float32", 1 - rank, begin, begin, end, "done")
            )
            batches[rank].append(Batch(number, at, ("ab",), (1,), at + own + MS))
        at += 200 * MS
    found = evidence(rows, {"pp": (0, 1)}, world=2)
    ranks = tuple(
        msgspec.structs.replace(
            one,
            batches=tuple(batches[one.head.rank]),
            head=msgspec.structs.replace(
                one.head, shard={"pp": one.head.rank}, layers=layers[one.head.rank], device="cpu", transport="tcp"
            ),
        )
        for one in found.trace.ranks
    )
    return msgspec.structs.replace(found, trace=msgspec.structs.replace(found.trace, ranks=ranks))


def verdict(given):
    return [(one.class_, one.original_fault.ranks) for one in diagnose(given).findings]


@pytest.mark.parametrize("begins", [0, 20, 28])
@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_that_is_slow_or_becomes_so_is_named(begins, late):
    # 8 ms a step for 8 layers; from some step on one of them takes 30 ms more.
    usual = [8.0] * STEPS
    slow = [8.0 + 30.0 * (number >= begins) for number in range(STEPS)]
    given = stages([slow, usual] if late == 0 else [usual, slow])
    assert verdict(given) == [("late_rank", (late,))]


def test_another_programs_burst_is_no_slow_rank():
    # 100 ms more in five steps of the last half: half a second of another program on one of the cores.
    burst = [8.0 + 100.0 * (40 <= number < 45) for number in range(STEPS)]
    assert verdict(stages([[8.0] * STEPS, burst])) == []


def test_more_layers_are_more_work():
    assert verdict(stages([[8.0] * STEPS, [8.0] * STEPS])) == []
    uneven = stages([[4.0] * STEPS, [12.0] * STEPS], layers=((0, 4), (4, 16)))
    assert verdict(uneven) == [("stage_imbalance", (1,))]


@pytest.mark.parametrize("cut", [0, 1])
def test_of_a_record_that_ends_early_the_same_steps_are_compared(cut):
    # Both take 40 ms for each of the first steps, and 8 ms later on; one record ends with the first ones.
    warm = [40.0 if number < 15 else 8.0 for number in range(STEPS)]
    given = stages([warm, warm])
    ranks = list(given.trace.ranks)
    half = ranks[cut].calls.sequence < 15
    ranks[cut] = msgspec.structs.replace(
        ranks[cut], cut=True, calls=ranks[cut].calls.take(half), batches=ranks[cut].batches[:15]
    )
    trace = msgspec.structs.replace(given.trace, ranks=tuple(ranks))
    assert verdict(msgspec.structs.replace(given, trace=trace)) == []

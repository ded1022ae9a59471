"""Members in different calls: who left the common order, and how, by hand-made orders."""

import pytest
from tests.diagnose.made import BASE, MS, evidence

from linkwise.diagnose.diagnose import diagnose
from linkwise.trace.events import Event

FOUR, TWO = {"tp": (0, 1, 2, 3)}, {"tp": (0, 1)}
USUAL = (("all_reduce", "attn.out", 4096), ("all_reduce", "mlp.out", 8192), ("all_gather", "logits", 2048))


def order(*kinds, dtype="bfloat16"):
    """A rank's calls in an order, the last one open."""
    rows = []
    for number, (op, role, size) in enumerate(kinds):
        last = number == len(kinds) - 1
        begin = BASE + number * MS
        rows.append(
            Event(
                0, "tp", role, op, number, size, dtype, -1, begin, begin, 0 if last else begin + MS // 2,
                "started" if last else "done",
            )
        )  # fmt: skip
    return rows


def verdict(rows, groups=FOUR):
    found = diagnose(evidence(rows, groups, world=len(rows)))
    return [(one.class_, one.original_fault.ranks, one.decided) for one in found.findings]


COMMON = USUAL * 3


@pytest.mark.parametrize(
    ("odd", "kind"),
    [
        (COMMON[:4] + COMMON[5:], "skipped_collective"),
        (COMMON[:5] + COMMON[4:], "repeated_collective"),
        ((*COMMON[:4], COMMON[5], COMMON[4], *COMMON[6:]), "reordered_collective"),
        ((*COMMON[:4], ("all_reduce", "mlp.out", 4096)), "size_mismatch"),
        ((*COMMON[:4], ("broadcast", "", 64)), "op_mismatch"),
    ],
)
@pytest.mark.parametrize("rank", [0, 2])
def test_one_of_four(odd, kind, rank):
    rows = {r: order(*COMMON) for r in range(4)} | {rank: order(*odd)}
    assert verdict(rows) == [(kind, (rank,), True)]


def test_dtype():
    rows = {r: order(*COMMON) for r in range(4)} | {3: order(*COMMON, dtype="float16")}
    assert verdict(rows) == [("dtype_mismatch", (3,), True)]


def test_of_two_the_one_that_departs_from_earlier_steps():
    # Rank 1 goes on to the all-gather after attn.out, which no earlier step did.
    rows = {0: order(*COMMON[:8]), 1: order(*COMMON[:7], COMMON[8])}
    assert verdict(rows, TWO) == [("skipped_collective", (1,), True)]
    rows = {0: order(*COMMON[:7], COMMON[8]), 1: order(*COMMON[:8])}
    assert verdict(rows, TWO) == [("skipped_collective", (0,), True)]


def test_of_two_without_a_past_nobody_is_named():
    rows = {0: order(("all_reduce", "", 64)), 1: order(("broadcast", "", 64))}
    assert verdict(rows, TWO) == [("op_mismatch", (), False)]


def test_an_all_to_all_may_differ_in_size():
    rows = {r: order(*[("all_to_all", "moe.dispatch", 100 * (r + 1))] * 4) for r in range(4)}
    assert [kind for kind, _, _ in verdict(rows)] == ["hang"]  # the last one is open everywhere


@pytest.mark.parametrize(("late_before", "named"), [(True, {(1,), (2,)}), (False, {(2,)})])
def test_who_is_late_is_judged_by_the_calls_before_a_departure(late_before, named):
    # Ninety calls; in the 60th, or the 30th, rank 2 brings another size. Rank 1 is 5 ms late to 60 calls:
    # all of them before that one, or all after it, where ranks meet in calls that are not the same.
    departs = 60 if late_before else 30
    rows = {rank: [] for rank in range(4)}
    for number in range(90):
        for rank in range(4):
            late = rank == 1 and (number < departs) == late_before
            size = 64 if (rank, number) == (2, departs) else 4096
            end = BASE + (10 * number + 7) * MS
            begin = end - (1 if late else 6) * MS
            rows[rank].append(Event(0, "tp", "", "all_reduce", number, size, "bfloat16", -1, begin, begin, end, "done"))
    found = diagnose(evidence(rows, FOUR, world=4)).findings
    assert {one.original_fault.ranks for one in found} == named


def test_where_calls_alternate_the_counts_of_steps_tell_a_call_made_twice_from_one_left_out():
    # Four calls a step, of two sizes in turn; rank 1 makes the first of step 3 twice, and has five in that step.
    def line(repeats):
        kinds = [(step, at % 2) for step in range(8) for at in ([0, *range(4)] if step == 3 and repeats else range(4))]
        rows = order(*[("all_reduce", "", 4096 * (1 + kind)) for _, kind in kinds])
        return [row._replace(step=step) for row, (step, _) in zip(rows, kinds, strict=True)]

    assert verdict({rank: line(rank == 1) for rank in range(4)}) == [("repeated_collective", (1,), True)]

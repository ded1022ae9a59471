"""The table of ranks where not every rank's record is whole."""

import pytest
from msgspec.structs import replace
from tests.diagnose.made import Step, run
from tests.diagnose.made_facts import fact

from linkwise.diagnose.diagnose import diagnose
from linkwise.report.diagnose import screen
from linkwise.trace.gather import Evidence
from linkwise.trace.whose import Unusable


def half(found: Evidence, rank: int) -> Evidence:
    """The same with the second half of a rank's calls lost."""
    ranks = list(found.trace.ranks)
    calls = ranks[rank].calls
    ranks[rank] = replace(ranks[rank], calls=calls.take(calls.sequence < len(calls) // 2))
    return replace(found, trace=replace(found.trace, ranks=tuple(ranks)))


def test_waiting_for_whom_no_record_tells_of_is_neither_waiting_nor_moving() -> None:
    # Rank 1 comes 8 ms after rank 0 in each of twenty calls, which then take 1 ms; of the last ten only rank 0 tells.
    found = run({"tp": (0, 1)}, [Step("tp", {0: 1, 1: 9})] * 20)
    whole, cut = (diagnose(one).ranks[0] for one in (found, half(found, 1)))
    assert (whole.waited_s, whole.moved_s) == (pytest.approx(0.160), pytest.approx(0.020))
    assert (cut.waited_s, cut.moved_s) == (pytest.approx(0.080), pytest.approx(0.010))


def test_so_it_is_with_a_member_without_any_record() -> None:
    found = run({"tp": (0, 1, 2)}, [Step("tp", {0: 1, 1: 1, 2: 9})] * 20)
    alone = replace(found, trace=replace(found.trace, ranks=found.trace.ranks[:2]))
    assert [row.moved_s for row in diagnose(alone).ranks] == [0, 0]


def test_without_a_fault_the_first_line_says_what_was_not_read():
    found = run({"tp": (0, 1)}, [Step("tp", {})] * 5)
    ranks = found.trace.ranks
    trace = replace(found.trace, ranks=(ranks[0], replace(ranks[1], cut=True)))
    told = diagnose(replace(found, trace=trace, unusable=(Unusable("x", "no format"),)))
    assert told.unread == ("the end of the record of rank 1", "1 file")
    first = next(screen(told))
    assert first == (
        "no fault found in 2 ranks, as far as they were read; not read: the end of the record of rank 1, 1 file"
    )
    assert next(screen(diagnose(found))) == "no fault found in 2 ranks"


def units(*names: str) -> Evidence:
    """Two ranks of each unit, in a folder of its own, in ten calls."""
    made = run({"tp": (0, 1)}, [Step("tp", {})] * 10)
    ranks = [
        replace(rank, source=f"{name}/r{rank.head.rank}", head=replace(rank.head, unit=name))
        for name in names
        for rank in made.trace.ranks
    ]
    return replace(made, trace=replace(made.trace, ranks=tuple(ranks)))


@pytest.mark.parametrize(
    ("said", "whose"),
    [
        (fact("exit", "dead", -9, {"unit": "a"}, rank=1), [("a", 1)]),
        (fact("exit", "dead", -9, {"unit": "a start 2"}, rank=1), [("a start 2", 1)]),
        (fact("exit", "dead", -9, {"unit": "c"}, rank=1), [("", 1)]),  # a unit without records
        (fact("error", "cuda", rank=1, source="b/log: line 3"), [("b", 1)]),
        (fact("error", "cuda", rank=1, source="log: line 3"), [("", 1)]),  # nothing says of which unit
        (fact("error", "cuda", rank=0, source="a/log: line 3", unix_ns=1), [("a", 0)]),
    ],
)
def test_errors_are_those_of_the_unit_and_the_start_they_are_told_of(said, whose):
    rows = diagnose(replace(units("a", "a start 2", "b"), facts=(said,))).ranks
    assert [(row.unit, row.rank) for row in rows if row.errors] == whose

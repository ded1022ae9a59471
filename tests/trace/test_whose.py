"""Files that cannot be read, by their names; statements about a unit that was started again, by their times."""

import pytest

from linkwise.trace.calls import of_events
from linkwise.trace.events import Anchor, Head, RankTrace
from linkwise.trace.facts import Fact
from linkwise.trace.whose import Unusable, of_starts, told


def record(source: str, rank: int, unit: str = "", at: int = 0) -> RankTrace:
    head = Head(rank=rank, world=16, unit=unit, anchor=Anchor(0, at))
    return RankTrace(head=head, calls=of_events([]), source=source)


@pytest.mark.parametrize(
    ("path", "record_", "rank"),
    [
        ("d/nccl_trace_rank_9", True, 9),
        ("elsewhere/job_rank-9.json.gz", True, 9),
        ("d/r7.json", True, 7),  # as its neighbours r1.json and r2.json are numbered
        ("d/r7.json.gz", True, 7),
        ("d/gpu-a_812.pt.trace.json", True, -1),  # its neighbour's number is a process
        ("d/gpu-b.pt.trace.json", True, -1),  # ends as its neighbour does
        ("d/notes.docx", False, -1),
        ("d/dmesg.9", False, -1),
    ],
)
def test_whose_a_file_is(path: str, record_: bool, rank: int) -> None:
    beside = [
        record("d/nccl_trace_rank_0", 0), record("d/nccl_trace_rank_11", 11), record("d/r1.json", 1),
        record("d/r2.json", 2), record("d/gpu-a_811.pt.trace.json", 3),
    ]  # fmt: skip
    assert told([(path, "empty")], beside) == (Unusable(path, "empty", record_, rank),)


def test_its_unit_is_that_of_the_records_called_like_it() -> None:
    beside = [record(f"u-{n}.rank{r}.6ab-{n}{r}.trace.jsonl", r, f"u-{n}") for n in (0, 1) for r in (0, 1)]
    (one,) = told([("u-1.rank2.7cd-9.trace.jsonl", "empty")], beside)
    assert (one.rank, one.unit) == (2, "u-1")


def test_statements_are_of_the_start_that_had_begun_by_then() -> None:
    ranks = [record("a", 0, "u", 1000), record("b", 0, "u start 2", 9000), record("c", 0, "v", 1000)]
    facts = [
        Fact("exit", "dead", rank=0, unix_ns=at, labels=(("unit", unit),), source="u.faults.jsonl:1")
        for at, unit in ((5000, "u"), (9500, "u"), (9500, "v"), (0, "u"))
    ]
    own = [Fact("counter", "cpu.run_ns", rank=0, labels=(("unit", "u"),), source="b")]
    told_of = [fact.label("unit") for fact in of_starts([*facts, *own], ranks)]
    assert told_of == ["u", "u start 2", "v", "u", "u start 2"]

"""Evidence of another job beside records of one of four ranks."""

from tests.diagnose.made_facts import fact, hanging

from linkwise.diagnose.diagnose import diagnose
from linkwise.diagnose.job import of_one_job
from linkwise.trace.events import Trace
from linkwise.trace.gather import Evidence


def test_ranks_that_the_job_does_not_have_are_left_out() -> None:
    own = fact("watchdog", "collective_timeout", 600, rank=3, source="job.log: line 1")
    other = fact("watchdog", "collective_timeout", 600, rank=118, source="job.log: line 2")
    whole = fact("status", "ok", group=tuple(range(256)), source="ras.txt: line 1")
    part = fact("launched", "all_reduce", 9, rank=2, source="ras.txt: line 7")  # of rank 2 of the other job
    evidence = Evidence(trace=Trace(ranks=tuple(hanging(4))), facts=(own, other, whole, part))
    kept, notes = of_one_job(evidence)
    assert kept.facts == (own,)
    assert any("job.log: speaks of rank 118" in note and note.endswith("such ranks") for note in notes)
    assert any("ras.txt: speaks of rank 255" in note and note.endswith("left out") for note in notes)
    answer = diagnose(evidence)
    assert set(notes) <= set(answer.notes)
    assert all("118" not in one.first_reporter for one in answer.findings)


def test_without_a_group_of_all_ranks_nobody_knows_how_many_there_are() -> None:
    other = fact("watchdog", "collective_timeout", 600, rank=118, source="job.log: line 2")
    assert of_one_job(Evidence(facts=(other,)))[0].facts == (other,)

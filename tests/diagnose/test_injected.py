"""Faults put into ranks of the runtime are named by the records they leave: one of each class, on real processes.

`make bench` (benchmarks/diagnose_faults.py) tries each ten times at random ranks and times, and prints the table.
"""

import random

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.diagnose_faults import first, impossible, missed, table
from benchmarks.injected.faults import KINDS, LAB, Asked, Done

from linkwise.diagnose.types import Fault, Finding, Findings

SEED = 1


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("name", list(KINDS))
def test_one_of_each_class(weights, name):
    if why := impossible(name):
        pytest.skip(f"this machine lacks {why}")
    number = 1 if name in LAB else 0
    done = KINDS[name](weights, number, random.Random(f"{SEED} {name}"))  # noqa: S311 - which rank, not a secret
    assert not missed(done), (done.name, done.asked, done.ended, done.findings.findings)


def _done(asked: Asked, *found: Finding) -> Done:
    return Done("made", asked, Findings(findings=found), 0.5, "")


def test_what_counts_as_named():
    asked = Asked(frozenset({"late_rank"}), (1,), "host")
    right = Finding(class_="late_rank", summary="", original_fault=Fault(ranks=(1,)), cause="host")
    wrong_rank = Finding(class_="late_rank", summary="", original_fault=Fault(ranks=(0,)), cause="host")
    wrong_cause = Finding(class_="late_rank", summary="", original_fault=Fault(ranks=(1,)), cause="device")
    unsure = Finding(class_="late_rank", summary="", original_fault=Fault(ranks=(1,)), cause="host", decided=False)
    assert not missed(_done(asked, right))
    assert all(missed(_done(asked, *found)) for found in ((), (wrong_rank,), (wrong_cause,), (unsure,)))
    assert missed(_done(asked, right, wrong_rank))
    assert [first(_done(asked, *found)) for found in ((), (unsure,), (wrong_rank,), (wrong_rank, right))] == [
        "nothing", "undecided", "late_rank", "late_rank",
    ]  # fmt: skip
    nothing = Asked(frozenset())
    assert not missed(_done(nothing))
    assert missed(_done(nothing, unsure))


def test_a_link_counts_when_only_links_with_the_same_calls_are_named():
    asked = Asked(frozenset({"slow_link"}), links=frozenset({"a-b", "b-c"}))

    def named(link: str) -> bool:
        return not missed(_done(asked, Finding(class_="slow_link", summary="", original_fault=Fault(link=link))))

    assert named("a-b")
    assert named("a-b or b-c")
    assert not named("a-b or c-d")
    assert not named("")


def test_the_table_counts():
    asked = Asked(frozenset({"late_rank"}), (1,))
    right = _done(asked, Finding(class_="late_rank", summary="", original_fault=Fault(ranks=(1,))))
    head, late, healthy = table({"late rank": [right, _done(asked)], "healthy": [_done(Asked(frozenset()))]})
    assert head.split()[-2:] == ["late_rank", "nothing"]
    assert late.split() == ["late", "rank", "2", "1", "0", "0.50,", "0.50", "1", "1"]
    assert healthy.split() == ["healthy", "1", "-", "0", "0.50,", "0.50", ".", "1"]

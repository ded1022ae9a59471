"""Experts that get more tokens than others: what ranks bring to the exchange that returns outputs, by hand."""

import pytest
from tests.diagnose.made import BASE, MS, evidence

from linkwise.diagnose.diagnose import diagnose
from linkwise.trace.events import Event


def exchanges(sizes):
    """Two ranks' all-to-alls of experts' outputs, with what each brings."""
    rows = {0: [], 1: []}
    for number, pair in enumerate(sizes):
        at = BASE + number * 10 * MS
        for rank, size in enumerate(pair):
            rows[rank].append(
                Event(number, "ep", "moe.combine", "all_to_all", number, size, "float32", -1, at, at, at + MS, "done")
            )
    return evidence(rows, {"ep": (0, 1)}, world=2)


@pytest.mark.parametrize(
    ("sizes", "ranks"),
    [
        ([(300, 100)] * 30, (0,)),  # three quarters of all tokens
        # 28 of 40 times ahead, otherwise even: 85 % of all tokens, and never behind.
        ([(0, 200)] * 28 + [(100, 100)] * 12, (1,)),
        ([(100, 100)] * 30, None),
        ([(220, 180)] * 30, None),  # 55 %: less than a quarter more than even
        # 62 % of all tokens, and behind as often as ahead: chance, and a long prompt now and then.
        ([(400, 100)] * 15 + [(100, 210)] * 15, None),
        ([(300, 100)] * 19, None),  # too few to tell
    ],
)
def test_a_lasting_preference_is_named(sizes, ranks):
    findings = [one for one in diagnose(exchanges(sizes)).findings if one.class_ == "expert_imbalance"]
    assert [one.original_fault.ranks for one in findings] == ([] if ranks is None else [ranks])


def test_its_evidence_counts():
    (one,) = diagnose(exchanges([(0, 200)] * 28 + [(100, 100)] * 12)).findings
    assert "rank 0 15 %, rank 1 85 %" in one.evidence[0]
    assert "more than its even share in 70 % of 40 exchanges, less in 0 %" in one.evidence[1]

"""What a plan can be held against, and that it is said where it cannot."""

import pytest
from tests.diagnose.made import Step, run

import linkwise
from linkwise.diagnose.diagnose import diagnose
from linkwise.plan.types import Plan

GIB = 2**30


@pytest.fixture(scope="module")
def pair() -> Plan:
    """One unit of two ranks on one host's NVLink (450 GB/s): 1 GiB takes some 2.4 ms one way."""
    plan = linkwise.plan("llama-3.1-8b", on="2xh100-sxm", tp=2, pp=1)
    assert isinstance(plan, Plan)
    assert [len(row) for row in plan.rank_grid] == [2]
    return plan


@pytest.mark.parametrize(
    ("ranks", "size", "said"),
    [
        (2, GIB, "the plan: calls of 1 set of ranks were held against it"),
        (2, 4096, "nothing was held against it: no group made 4 calls alike that take 2 ms or more by it"),
        (4, GIB, "nothing was held against it: it has 1 unit of 2 ranks, in which ranks 0 to 3 have no place"),
    ],
)
def test_how_much_a_plan_could_be_held_against_is_said(pair: Plan, ranks: int, size: int, said: str) -> None:
    found = run({"tp": tuple(range(ranks))}, [Step("tp", dict.fromkeys(range(ranks), 1.0), 3.0, S_bytes=size)] * 8)
    assert said in diagnose(found, pair).notes[0]
    assert diagnose(found).notes == ()


def test_a_plan_that_does_not_fit_hides_no_slow_group(pair: Plan) -> None:
    # Four pairs across two hosts; the second takes ten times as long as the others.
    groups = {f"dp{number}": (number, number + 4) for number in range(4)}
    steps = [Step(name, {}, 40.0 if name == "dp1" else 4.0, S_bytes=GIB) for name in groups] * 8
    found = run(groups, steps, hosts={rank: "a" if rank < 4 else "b" for rank in range(8)})
    for plan in (None, pair):
        (one,) = diagnose(found, plan).findings
        assert (one.class_, one.decided) == ("slow_link", False)
        assert "ranks 1, 5" in one.summary

"""Families under layouts, a third of the table of docs/oracle.md: transformers' logits and tokens, the plan's calls.

`python benchmarks/oracle.py` runs the whole table.
"""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.runtime import oracle


@pytest.fixture(scope="module")
def results() -> dict[oracle.Case, oracle.Result]:
    return dict(zip(oracle.TESTED, oracle.table(oracle.TESTED), strict=True))


def test_the_table_is_as_long_as_it_must_be() -> None:
    assert len(oracle.TESTED) >= 40
    assert {case.name for case in oracle.TESTED} == {case.name for case in oracle.CASES}
    assert {case.family for case in oracle.TESTED} == {case.family for case in oracle.CASES}
    assert max(case.layout.size for case in oracle.CASES) == oracle.RANKS
    assert len({case.family for case in oracle.CASES}) >= 7


@pytest.mark.parametrize("case", oracle.TESTED, ids=lambda case: f"{case.family}: {case.name}")
def test_logits_and_greedy_tokens(case: oracle.Case, results: dict[oracle.Case, oracle.Result]) -> None:
    found = results[case]
    assert found.tokens == len(oracle.CHUNKS) * oracle.NEW_TOKENS
    assert found.equal
    assert found.difference < oracle.TOLERANCE


@pytest.mark.parametrize("case", oracle.TESTED, ids=lambda case: f"{case.family}: {case.name}")
def test_calls_and_memory_are_the_plans(case: oracle.Case, results: dict[oracle.Case, oracle.Result]) -> None:
    found = results[case]
    assert not found.unplanned
    assert (found.calls > 0) == (case.layout.size > 1)

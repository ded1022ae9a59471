"""An engine that has requests and makes no token, and its healthy look-alikes; points ten seconds apart."""

from collections.abc import Sequence

from tests.diagnose.made_facts import SECOND, fact, found

from linkwise.diagnose.rules import engines
from linkwise.trace.facts import Fact

GROWING = [20 * point for point in range(12)]


def points(kind: str, name: str, values: Sequence[float], every_s: int = 10) -> list[Fact]:
    return [
        fact(kind, f"serve.{name}", value, {"engine": "0"}, unix_ns=(1 + place * every_s) * SECOND)
        for place, value in enumerate(values)
    ]


def told(running: Sequence[float], waiting: Sequence[float], tokens: Sequence[float], every_s: int = 10) -> list[str]:
    facts = points("gauge", "running", running, every_s) + points("gauge", "waiting", waiting, every_s)
    answer = found(engines, *facts, *points("counter", "gen_tokens", tokens, every_s))
    assert not any(one.decided for one in answer)
    return [one.summary for one in answer]


def test_requests_that_wait_while_nothing_runs_and_no_token_comes_out_are_a_hang() -> None:
    (summary,) = told([0] * 12, GROWING, [5000] * 12)
    assert "220 requests wait and none runs" in summary


def test_so_is_one_whose_figures_have_all_stopped() -> None:
    # vLLM's figures are those of its last step: a loop that stands in a call leaves them as they were.
    (summary,) = told([12] * 16, [3] * 16, [5000] * 16)
    assert "12 count as running" in summary


def test_load_and_idleness_and_long_prompts_are_none() -> None:
    grow = [5000 + 100 * point for point in range(12)]
    assert told([64] * 12, GROWING, grow) == []  # too many requests
    assert told([0] * 12, GROWING, grow) == []  # seen between two requests
    assert told([0] * 12, [0] * 12, [5000] * 12) == []  # nothing to do
    assert told([1] * 8, [3] * 8, [5000] * 8) == []  # 30 s of one long prompt
    assert told([0] * 6, [1, 2, 3, 4, 5, 6], [5000] * 6, every_s=1) == []  # 3 s: the step before it has begun
    assert told([0] * 12, GROWING, []) == []  # whether a token came out is not known

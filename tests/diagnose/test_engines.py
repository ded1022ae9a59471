"""An engine that has requests and makes no token, and its healthy look-alikes; points ten seconds apart."""

from collections.abc import Sequence

from tests.diagnose.made_facts import SECOND, fact, found, one

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
    assert told([1] * 8, [3] * 8, [5000] * 8) == []  # 70 s of one long prompt
    assert told([0] * 6, [1, 2, 3, 4, 5, 6], [5000] * 6, every_s=1) == []  # 3 s: the step before it has begun
    assert told([0] * 12, GROWING, []) == []  # whether a token came out is not known


def test_the_whole_stretch_without_a_token_counts() -> None:
    # 100 s of work, then nothing for 110 s: more than the last half of its 21 points.
    (summary,) = told([8] * 21, [0] * 21, [*range(10), *[9] * 11])
    assert "no token comes out over 110 s while 8 count as running" in summary
    assert told([8] * 5, [0] * 5, [5000] * 5, every_s=5) == []  # 20 s: a long prompt may hold up the others
    assert len(told([8] * 5, [0] * 5, [5000] * 5)) == 1  # 40 s
    assert len(told([1] * 11, [0] * 11, [5000] * 11)) == 1  # 100 s of one request


def test_prompts_that_end_are_work() -> None:
    counted = points("counter", "gen_tokens", [5000] * 12) + points("counter", "prompt_tokens", GROWING)
    facts = points("gauge", "running", [8] * 12) + points("gauge", "waiting", [3] * 12)
    assert found(engines, *facts, *counted) == []


def test_a_log_says_it_by_its_throughput() -> None:
    facts = points("gauge", "running", [2] * 12) + points("gauge", "waiting", [0] * 12)
    still = points("gauge", "gen_tok_s", [80, *[0] * 11]) + points("gauge", "prompt_tok_s", [0] * 12)
    finding = one(engines, *facts, *still)
    assert finding.waited_s == 100
    assert not finding.decided
    assert found(engines, *facts, *still[:-1], *points("gauge", "prompt_tok_s", [*[0] * 11, 900])) == []  # a prompt


def test_no_token_without_requests_is_idleness() -> None:
    facts = points("gauge", "running", [2, 2, 2, 0, 0, 0]) + points("gauge", "waiting", [0] * 6)
    assert found(engines, *facts, *points("gauge", "gen_tok_s", [0] * 6)) == []

"""What `linkwise run --check` prints. Expected words are written by hand."""

from linkwise.report.runtime_check import comparison
from linkwise.runtime.check import Comparison, Line, Memory


def test_equal_calls_and_memory() -> None:
    lines = (Line("attn.out", "all_reduce", 8, 16_000, 8, 16_000),)
    memory = [Memory(rank, what, 1000, 1000) for rank in (0, 1) for what in ("weights", "kv")]
    shown = comparison(Comparison(lines, "", 2), memory, steps=4)
    assert shown[0] == "calls      planned against observed at the process groups, 2 ranks, 4 steps"
    assert shown[1].split() == ["attn.out", "all_reduce", "8", "of", "16.0", "kB", "equal"]
    assert "every call as planned" in shown[2]
    assert [line.split(":")[0] for line in shown[3:]] == ["memory     weights", "memory     kv"]


def test_differences_are_said_with_both_figures() -> None:
    lines = (Line("logits", "all_gather", 1, 64, 0, 0), Line("(not planned)", "barrier", 0, 0, 1, 0))
    shown = comparison(Comparison(lines, "rank 1: something", 2), [Memory(1, "kv", 1000, 1200)])
    assert "observed 0 of" in shown[1] and "observed 1 of" in shown[2]
    assert shown[3] == "differs    rank 1: something"
    assert shown[4] == "memory     kv of rank 1: 1,200 B allocated, the ledger has 1,000 B"


def test_one_rank_talks_to_nobody() -> None:
    assert "one rank talks to nobody" in comparison(Comparison((), "", 1))[1]

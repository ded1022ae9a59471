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


def test_kv_of_a_plan_is_compared_by_the_token() -> None:
    # 100 B a token on rank 0 and 200 B on rank 1, in caches of 48 tokens and a spare block of 16.
    memory = [Memory(rank, "kv in the plan", size * 64, size * 64, 64) for rank, size in enumerate((100, 200))]
    words = "memory     kv in the plan: 100 B to 200 B a token on each rank, as the ledger has it; 48 tokens run, "
    other, same = (comparison(Comparison((), "", 2), memory, kv_tokens=(48, plan))[-1] for plan in (2048, 48))
    assert other == words + "the plan has 2,048"
    assert same == words + "as many as the plan has"
    wrong = comparison(Comparison((), "", 2), [memory[0]._replace(allocated_bytes=6401)], kv_tokens=(48, 48))
    assert wrong[-1] == "memory     kv in the plan of rank 0: 6,401 B allocated, the ledger has 6,400 B"


def test_differences_are_said_with_both_figures() -> None:
    lines = (Line("logits", "all_gather", 1, 64, 0, 0), Line("(not planned)", "barrier", 0, 0, 1, 0))
    shown = comparison(Comparison(lines, "rank 1: something", 2), [Memory(1, "kv", 1000, 1200)])
    assert "observed 0 of" in shown[1] and "observed 1 of" in shown[2]
    assert shown[3] == "differs    rank 1: something"
    assert shown[4] == "memory     kv of rank 1: 1,200 B allocated, the ledger has 1,000 B"


def test_one_rank_talks_to_nobody() -> None:
    assert "one rank talks to nobody" in comparison(Comparison((), "", 1))[1]

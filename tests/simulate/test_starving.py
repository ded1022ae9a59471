"""Which of two pools waits for the other: pools of constant step times, worked out by hand."""

import numpy as np
import pytest

pytest.importorskip("numba")

from linkwise.simulate.rules import Fault, Pool, Rules, Run, Transfer
from linkwise.simulate.run import simulate
from linkwise.simulate.tables import constant
from linkwise.simulate.types import Summary
from linkwise.workload.requests import requests
from linkwise.workload.types import Targets


def ran(
    gap_s: float, *, prefill_seqs: int = 8, rows: int = 64, output: int = 2, tpot_s: float | None = None
) -> Summary:
    """Forty prompts, one each gap_s; a prefill step takes 1 s, a decode step 0.1 s, a transfer no time."""
    load = requests(np.arange(40) * gap_s, np.full(40, 10), np.full(40, output))
    first = Pool(Rules(max_seqs=prefill_seqs, prefix_cache=False), constant(1.0), role="prefill")
    second = Pool(Rules(max_seqs=rows, prefix_cache=False), constant(0.1), role="decode")
    return simulate([first, second], load, Run(transfer=Transfer()), targets=Targets(tpot_s=tpot_s)).summary


def test_nothing_is_said_where_nothing_waits() -> None:
    # One prompt every 2 s: prefill is at work half of the time, decode a tenth of it, and nobody waits.
    found = ran(2.0)
    assert found.starving == ""
    assert found.pools[0].waiting == found.pools[1].waiting == 0.0


def test_decode_waits_where_prompts_queue() -> None:
    # One prompt every 0.5 s, one computed a second: prompt i waits for i / 2 seconds, 390 in all, until the last one's
    # two tokens are out at 40.2 s.
    found = ran(0.5, prefill_seqs=1)
    assert found.starving == "decode"
    assert found.span_s == pytest.approx(40.2)
    assert found.pools[0].waiting == pytest.approx(390 / 40.2)
    # Each is 0.2 s in one of 64 rows.
    assert found.pools[1].rows == pytest.approx(40 * 0.2 / 40.2 / 64)


def test_prefill_waits_where_decode_has_no_rows_left() -> None:
    # Two rows of 30 tokens, 3 s each: two prompts in 3 s, while one comes every second and prefill computes it in one.
    found = ran(1.25, rows=2, output=30)
    assert found.starving == "prefill"
    assert found.pools[1].waiting > 1


def test_neither_waits_where_both_are_full() -> None:
    # Prompts queue, but tokens take 0.1 s each of a target of 0.1 s: decode has no room for more of them.
    assert ran(0.5, prefill_seqs=1, output=20, tpot_s=0.1).starving == ""
    assert ran(0.5, prefill_seqs=1, output=20, tpot_s=1.0).starving == "decode"


def held_up(
    gap_s: float, *, rows: int = 64, output: int = 2, faults: tuple[Fault, ...] = (), takes_s: float = 0.0
) -> Summary:
    """Forty prompts of one block, one each gap_s, computed in 1 s by a prefill replica whose KV holds two of them."""
    load = requests(np.arange(40) * gap_s, np.full(40, 10), np.full(40, output))
    few = Rules(max_seqs=1, prefix_cache=False, block_tokens=16, kv_blocks=2)
    first = Pool(few, constant(1.0), role="prefill")
    second = Pool(Rules(max_seqs=rows, prefix_cache=False), constant(0.1), role="decode")
    move = Transfer(base_s=takes_s, route="n0.nic0->rail0")
    return simulate([first, second], load, Run(transfer=move, faults=faults)).summary


def test_prefill_is_short_where_it_computes_while_prompts_wait() -> None:
    # Two come in a second, one is computed: KV for two never keeps it from the next one.
    found = held_up(0.5)
    assert (found.starving, found.short) == ("decode", "prefill")
    assert "KV is full" not in found.starving_why


def test_decode_is_short_where_it_is_down_and_prefill_holds_what_it_cannot_take() -> None:
    # One each 2 s, computed in 1 s. Decode is down from 21 s to 61 s: two prompts fill prefill's KV, the twenty that
    # come wait behind them, prefill stands still. In the whole run it computes 40 prompts, 1 s each.
    found = held_up(2.0, faults=(Fault(kind="down", replica=1, start_s=21.0, end_s=61.0),))
    assert found.pools[0].busy < 0.6
    assert found.pools[0].waiting > 1
    assert (found.starving, found.short) == ("prefill", "decode")
    assert "1 of decode's 1 replicas down for a time" in found.starving_why
    assert "its KV is full of computed prompts that decode does not take" in found.starving_why


def test_prefill_is_short_where_it_is_down_itself() -> None:
    found = held_up(2.0, faults=(Fault(kind="down", replica=0, start_s=21.0, end_s=61.0),))
    assert (found.starving, found.short) == ("decode", "prefill")
    assert "1 of prefill's 1 replicas down for a time" in found.starving_why


def test_decode_is_short_where_its_rows_are_full_and_prefill_holds_what_waits() -> None:
    # One row of 40 tokens takes 4 s: one prompt in 4 s leaves, one in 2 s comes and is computed in 1 s.
    found = held_up(2.0, rows=1, output=40)
    assert found.pools[0].waiting > 1
    assert (found.starving, found.short) == ("prefill", "decode")


def test_the_links_are_short_where_computed_prompts_wait_for_them() -> None:
    # A transfer takes 4 s, one prompt comes in 2 s and is computed in 1 s: it waits in prefill's KV for the one before.
    found = held_up(2.0, takes_s=4.0)
    assert (found.starving, found.short) == ("decode", "links")
    assert "the slowest part: n0.nic0->rail0" in found.starving_why
    # Transfers of 0.02 s, 200 times as long: the same, and the fault is named.
    slow = held_up(2.0, takes_s=0.02, faults=(Fault(kind="link", replica=1, start_s=0.0, end_s=1e3, factor=200.0),))
    assert slow.short == "links"
    assert "1 of decode's 1 replicas behind slow links for a time" in slow.starving_why


def test_a_fault_after_the_end_never_began() -> None:
    # The last of forty prompts comes at 78 s and is out 1.2 s later.
    late = Fault(kind="down", replica=1, start_s=100.0, end_s=200.0)
    met = Fault(kind="slow", replica=0, start_s=70.0, end_s=200.0)
    found = held_up(2.0, faults=(met, late))
    assert found.faults_never == (1,)
    assert "the fault of replica 1 at 100 s never began: the last request ended at 79.2 s" in found.notes
    assert held_up(2.0, faults=(met,)).faults_never == ()

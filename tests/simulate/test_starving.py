"""Which of two pools waits for the other: pools of constant step times, worked out by hand."""

import numpy as np
import pytest

pytest.importorskip("numba")

from linkwise.simulate.rules import Pool, Rules, Run, Transfer
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

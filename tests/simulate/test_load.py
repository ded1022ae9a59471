"""Arrivals that come and go: their period and swing are said, taken from the same words everywhere, and run in whole.

Expected values: hand calculation (requests of a period = rate x period; a sine's mean over its rising half).
"""

import json
import re

import numpy as np
import pytest
from tests.test_cli import Shell

pytest.importorskip("numba")

from linkwise import api
from linkwise.core.errors import InputError
from linkwise.simulate.load import Asked, enough, load_of
from linkwise.simulate.rules import Pool, Rules, Run
from linkwise.simulate.run import simulate
from linkwise.simulate.tables import constant
from linkwise.workload.requests import requests

PLAN = "plan llama-3.1-8b --on 2xh100-sxm --tp 1 --isl 1000 --osl 20 --rate 5/s -o p.json"


def said(shell: Shell, words: str) -> str:
    return " ".join(shell(words).out.split())


def test_a_run_covers_a_whole_period() -> None:
    # 5/s over a day: 432,000 requests; stays of 5 min in two states, eight of them: 12,000.
    assert enough(Asked(arrivals="diurnal"), 5.0, 2000, 2_000_000) == 432_000
    assert enough(Asked(arrivals="diurnal", period_s=1800), 5.0, 2000, 2_000_000) == 9_000
    assert enough(Asked(arrivals="mmpp"), 5.0, 2000, 2_000_000) == 12_000
    assert enough(Asked(arrivals="diurnal", period_s=60), 5.0, 2000, 2_000_000) == 2000
    assert enough(Asked(), 5.0, 2000, 2_000_000) == 2000
    assert enough(Asked(arrivals="diurnal", number=7), 5.0, 2000, 2_000_000) == 7
    # A day at 100/s is 8,640,000 requests; 2,000,000 cover 24 h x 2 / 8.64 = 5.56 h,
    # and what is said is 1 % less.
    with pytest.raises(InputError, match=r"--arrivals diurnal: a period of 24 h at 100/s takes 8,640,000") as refused:
        enough(Asked(arrivals="diurnal"), 100.0, 2000, 2_000_000)
    assert "--period 5.5h or less, or --requests N" in str(refused.value)


@pytest.mark.parametrize("command", ["simulate", "capacity", "autoscale"])
def test_period_and_swing_are_said(linkwise: Shell, command: str) -> None:
    more = " --target-outstanding 8 --cold-start 20s" if command == "autoscale" else ""
    words = f"{command} p.json --arrivals diurnal --rate 5/s --period 10min --swing 0.6{more}"
    assert "of a period of 10 min, 60 % up and down" in said(linkwise, words)
    ran = linkwise(f"{command} p.json --arrivals poisson --rate 5/s --swing 0.6{more}")
    assert (ran.code, ran.out) == (2, "")
    assert "--swing beside --arrivals poisson" in ran.err


def test_what_is_not_said_is_a_day(linkwise: Shell) -> None:
    # 2,000 of 432,000 requests of a day, on the way up from the mean.
    out = said(linkwise, "simulate p.json --arrivals diurnal --requests 2000")
    assert re.search(r"0\.004[5-7]? of a period of 24 h, 80 % up and down", out)
    out = said(linkwise, "simulate p.json --arrivals mmpp --requests 99")
    assert "stays of 5 min on average, 4 times as fast" in out
    out = said(linkwise, "simulate p.json --arrivals gamma --requests 99")
    assert "gaps scatter by 2 times their mean" in out


def test_the_swing_moves_requests_into_the_rising_half(linkwise: Shell) -> None:
    import linkwise as package

    plan = package.load(linkwise.folder / "p.json")
    at = load_of(plan, Asked(rate_per_s=5.0, arrivals="diurnal", period_s=2000.0, swing=0.8)).requests.arrival_s
    # 10,000 requests of one period; the first half of a sine carries 1/2 + swing / pi of them: 7,546.
    assert len(at) == 10_000
    assert np.searchsorted(at, 1000.0) == pytest.approx(10_000 * (0.5 + 0.8 / np.pi), abs=4 * 50)


def test_a_rate_that_no_seats_can_serve_is_saturated_however_few_requests(linkwise: Shell) -> None:
    # 1,024 seats, KV for about 300,000 tokens / 1,010: 300 requests, each of some 0.3 s: no more than 1,000/s.
    for rate, number, code in (("1000000000/s", 100, 1), ("1000000000/s", 3, 1), ("100000/s", 100, 1), ("5/s", 3, 0)):
        ran = linkwise(f"simulate p.json --rate {rate} --requests {number} --json")
        value = json.loads(ran.out)
        assert (ran.code, value["saturated"]) == (code, bool(code)), rate
    assert "requests at once are the most" in said(linkwise, "simulate p.json --rate 1000000000/s --requests 100")


def test_what_a_pool_holds_at_once_bounds_what_it_serves() -> None:
    # Answers of some hundred steps that take 1 s together. 8 seats on each of two replicas serve at most 16/s; twice
    # that is 32/s. KV of 32 blocks of 16 holds 3 requests of 60 + 140 / 2 tokens (512 / 130 = 3.9), so 6/s, and 12/s.
    for kv_blocks, rate, said_so in ((10_000, 30.0, False), (10_000, 40.0, True), (32, 11.0, False), (32, 14.0, True)):
        rules = Rules(budget=8192, max_seqs=8, block_tokens=16, kv_blocks=kv_blocks)
        isl, osl = (60, 140) if kv_blocks == 32 else (60, 101)
        seconds = 1.0 / osl
        number = 6  # fewer than would tell a queue from chance
        these = requests(np.arange(number) / rate, np.full(number, isl), np.full(number, osl))
        found = simulate([Pool(rules, constant(seconds), replicas=2)], these, Run(), asked_per_s=rate).summary
        assert found.saturated == said_so, (kv_blocks, rate, found.saturation)


def test_many_requests_are_said_before_they_are_run(caplog: pytest.LogCaptureFixture) -> None:
    plan = api.plan("llama-3.1-8b", on="1xh100-sxm", tp=1, isl=100, osl=10, concurrency=8)
    assert load_of(plan, Asked(users=100_000)).requests.number == 1_000_000
    assert load_of(plan, Asked(users=100_001, number=2_000_000)).requests.number == 2_000_000
    assert not caplog.records  # none beyond a million, or as many as were asked for
    load_of(plan, Asked(users=100_001))
    assert "1,000,010 requests are simulated, 10 for each user: --requests N for fewer" in caplog.text

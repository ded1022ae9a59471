"""Replicas that come and go: runs worked out by hand at a constant step time, conservation, and the command."""

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.test_cli import Shell

pytest.importorskip("numba")

from linkwise.core.errors import InputError
from linkwise.simulate import scaling
from linkwise.simulate.autoscale import Scaled, play, scaled, serving
from linkwise.simulate.rules import Pool, Rules, Run
from linkwise.simulate.run import simulate
from linkwise.simulate.scaling import Advice, Measured, Rule
from linkwise.simulate.tables import constant
from linkwise.workload.requests import Requests, requests
from linkwise.workload.types import Targets

ONE = Rules(max_seqs=1, prefix_cache=False)


def load(arrivals, inputs=10, outputs=1) -> Requests:
    number = len(arrivals)
    columns = (np.broadcast_to(np.asarray(x, np.int64), number).copy() for x in (inputs, outputs))
    return requests(np.asarray(arrivals, float), *columns)


def test_a_replica_serves_once_its_cold_start_is_over() -> None:
    # Five requests of 1 s at 0 s wait for the one replica; the rule orders a second at once, which serves from 3 s.
    # What comes at 2.5 s still waits for the first (until 6 s); what comes at 3.5 s is served by the second by 4.5 s.
    rule = Rule(name="r", measure="outstanding", target=1.0, every_s=2.0)
    ran = play(Pool(ONE, constant(1.0), replicas=2), load([0, 0, 0, 0, 0, 2.5, 3.5]), Run(), rule, 3.0)
    assert ran.found.requests["end"].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 4.5]
    assert next((c.at_s, c.replicas) for c in ran.changes) == (0.0, 2)
    figures = scaled(rule, ran, Targets(ttft_s=2.0), devices=4)
    # Inside 2 s: the first two and the last. Two replicas from 0 s to the end at 6 s, cold start included.
    assert figures.in_target == pytest.approx(3 / 7)
    assert (figures.starts, figures.most) == (1, 2)
    assert figures.replica_hours * 3600 == pytest.approx(12.0)
    assert figures.device_hours * 3600 == pytest.approx(48.0)
    assert figures.mean == pytest.approx((6 + 3) / 6)
    # While one started, 0 to 3 s: six requests, the slowest first token after 5 s.
    assert figures.cold is not None
    assert figures.cold.most == pytest.approx(5.0)
    assert figures.cold_share == pytest.approx(6 / 7)


def test_a_replica_let_go_ends_what_it_has_and_takes_nothing_new() -> None:
    # Two replicas until 4 s, then one. Each has a request of 10 s; what comes at 5 s goes to the one that stays.
    rule = Rule(name="r", measure="schedule", schedule=((0.0, 2), (4.0, 1)), every_s=1.0)
    two = Rules(max_seqs=2, prefix_cache=False)
    ran = play(Pool(two, constant(1.0), replicas=2), load([0, 0, 5.0], 10, [10, 10, 2]), Run(), rule, 1.0)
    lanes = ran.found.requests["lane"].tolist()
    assert ran.found.requests["end"].tolist() == [10.0, 10.0, 7.0]
    stays = lanes[2]
    gone = next(x for x in ran.lives if x.told_s == 4.0)
    assert gone.replica != stays
    assert gone.gone_s in (10.0, math.inf), "it is gone with its last request"
    assert serving(ran) == [(0.0, 2.0), (4.0, 1.0)]


def test_devices_are_not_taken_twice() -> None:
    # Two replicas' worth of devices. One is let go at 2 s but ends its request at 10 s: the order of 4 s waits for it,
    # is made at the look of 10 s and serves from 11 s on.
    rule = Rule(name="r", measure="schedule", schedule=((0.0, 2), (2.0, 1), (4.0, 2)), every_s=1.0)
    ran = play(Pool(ONE, constant(1.0), replicas=2), load([0, 0, 12.0, 12.0], 10, [10, 10, 1, 1]), Run(), rule, 1.0)
    second = [x for x in ran.lives if x.ordered_s > 0]
    assert [(x.ordered_s, x.ready_s) for x in second] == [(10.0, 11.0)]
    assert ran.found.requests["end"].tolist() == [10.0, 10.0, 13.0, 13.0]


def test_a_start_that_is_called_off_never_serves() -> None:
    # A second replica is ordered at 0 s (five requests), called off at the look of 4 s, when one request is left.
    rule = Rule(name="r", measure="outstanding", target=1.0, every_s=1.0, down_window_s=0.0, tolerance=0.0)
    ran = play(Pool(ONE, constant(1.0), replicas=2), load([0, 0, 0, 0, 0, 7.0, 60.0, 60.0]), Run(), rule, 20.0)
    called_off = [x for x in ran.lives if x.gone_s < x.ordered_s + 20.0]
    assert [(x.ordered_s, x.gone_s) for x in called_off] == [(0.0, 4.0), (60.0, 61.0)]
    # At 60 s two come at once, one after the other on the one replica; its second start is called off at 61 s.
    assert ran.found.requests["end"].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 8.0, 61.0, 62.0]


def test_a_fixed_rule_is_the_plain_simulation() -> None:
    arrivals = np.cumsum(np.tile([0.1, 0.9, 0.0, 2.0], 20))
    rule = Rule(name="r", measure="fixed", least=3, most=3, every_s=0.7)
    pool = Pool(Rules(max_seqs=4, prefix_cache=False), constant(0.3), replicas=3)
    ran = play(pool, load(arrivals, 10, 7), Run(), rule, 5.0)
    assert ran.found.requests.tobytes() == simulate([pool], load(arrivals, 10, 7)).requests.tobytes()
    assert scaled(rule, ran, Targets(), 1).cold is None


def rush(rule: Rule, ttft_s: float | None) -> Scaled:
    """One request in 2 s until 198 s, 300 at three a second until 298 s, then one in 4 s. A replica serves one a
    second, its cold start takes 40 s."""
    gaps = np.concatenate([np.full(count, gap) for count, gap in ((100, 2.0), (300, 1 / 3), (100, 4.0))])
    targets = Targets(ttft_s=ttft_s)
    pool = Pool(ONE, constant(1.0), replicas=4)
    return scaled(rule, play(pool, load(np.cumsum(gaps) - 2.0), Run(), rule, 40.0, targets), targets, 1)


def test_what_comes_while_a_replica_starts_is_a_stretch_beyond_what_is_served() -> None:
    # The second replica is ordered at 218 s and serves from 258 s on. Until then one serves 1/s of 3/s and 120 wait;
    # until 298 s two do and 40 more wait: 160, more than 5 x 300 ** 0.5 = 87. Served (60 x 1 + 40 x 2) / 100 = 1.4/s,
    # by as many replicas. Until 258 s a request that comes t s after 198 s waits 2t s behind the others, 60 s on
    # average; later ones go to the new replica and wait 2 s for each second since 258 s, 40 s on average: 52 s of all.
    rule = Rule(name="r", measure="schedule", schedule=((0.0, 1), (218.0, 2)), every_s=2.0)
    figures = rush(rule, 10.0)
    seen = figures.stretch
    assert not figures.saturation
    assert figures.unserved == 0
    assert seen is not None
    assert (seen.start_s, seen.end_s) == (pytest.approx(198.0, abs=4), pytest.approx(298.0, abs=1))
    assert (seen.offered_per_s, seen.served_per_s) == (pytest.approx(3.0, rel=0.03), pytest.approx(1.4, rel=0.03))
    assert seen.most == pytest.approx(160, abs=3)
    assert seen.wait_s == pytest.approx(52.0, rel=0.03)
    assert figures.stretch_replicas == pytest.approx(1.4, rel=0.03)
    assert seen.late
    assert not figures.holds
    # Nobody said how long is too long.
    assert rush(rule, None).holds


@pytest.mark.parametrize(("replicas", "most", "wait_s"), [(2, 100, 25.0), (3, None, 0.0)])
def test_replicas_that_are_up_all_the_time_have_the_stretch_that_they_do_not_serve(
    replicas: int, most: int | None, wait_s: float
) -> None:
    # Two serve 2/s of 3/s: each queue grows by one in 2 s, 50 on either and half of that on average. Three serve all.
    seen = rush(Rule(name="r", measure="fixed", least=replicas, most=replicas), 10.0).stretch
    if most is None:
        assert seen is None
    else:
        assert seen is not None
        assert seen.most == pytest.approx(most, abs=3)
        assert seen.wait_s == pytest.approx(wait_s, rel=0.05)


def test_windows_go_up_to_the_least_and_down_to_the_most() -> None:
    # Target 10 a replica. Up window 30 s: the least wanted in it; down window 60 s: the most wanted in it.
    rule = Rule(name="r", measure="outstanding", target=10.0, up_window_s=30.0, down_window_s=60.0)
    advice = Advice(rule, most=10)
    said, current = [], 2
    for at, outstanding in ((0, 20), (15, 60), (30, 40), (45, 50), (60, 10), (75, 10), (90, 10), (105, 10), (120, 10)):
        current = advice.at(float(at), Measured(float(outstanding), 0.0, 0.0), current)
        said.append(current)
    # wants 2, 6, 4, 5, then 1: up at 45 s to min(6, 4, 5) = 4; the 5 of 45 s holds it until 105 s, down at 120 s.
    assert said == [2, 2, 2, 4, 4, 4, 4, 4, 1]


def test_what_is_wanted_is_within_limits_and_tolerance() -> None:
    rule = Rule(name="r", measure="kv", target=0.5, least=2, most=5)
    for kv, wanted in ((0.1, 2), (1.04, 2), (1.3, 3), (9.0, 5)):
        assert Advice(rule, most=5).at(0.0, Measured(0, 0, kv), 2) == wanted
    day = Rule(name="d", measure="schedule", schedule=((8 * 3600.0, 6), (19 * 3600.0, 3)))
    for hour, count in ((7, 3), (8, 6), (18.9, 6), (19, 3), (32, 6)):
        assert Advice(day, most=9).at(hour * 3600.0, Measured(0, 0, 0), 1) == count


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_nothing_is_lost_while_replicas_come_and_go(data) -> None:
    number = data.draw(st.integers(1, 60))
    gaps = [data.draw(st.sampled_from([0.0, 0.2, 4.0, 30.0])) for _ in range(number)]
    outputs = [data.draw(st.integers(1, 30)) for _ in range(number)]
    hashes = [[data.draw(st.integers(0, 3)), 10 + i] for i in range(number)] if data.draw(st.booleans()) else None
    these = requests(np.cumsum(gaps), np.full(number, 16), np.array(outputs), hashes, 8 if hashes else 0)
    measure = data.draw(st.sampled_from(["outstanding", "waiting", "kv"]))
    rule = Rule(
        name="r", measure=measure, target=data.draw(st.sampled_from([0.2, 1.0])),
        every_s=data.draw(st.sampled_from([0.5, 3.0])),
        down_window_s=data.draw(st.sampled_from([0.0, 5.0])), tolerance=0.0,
    )  # fmt: skip
    whole, cold = data.draw(st.integers(1, 4)), data.draw(st.sampled_from([0.0, 1.0, 10.0]))
    rules = Rules(max_seqs=2, kv_blocks=8, lanes=data.draw(st.integers(1, 2)), slots=data.draw(st.integers(1, 2)))
    pool = Pool(rules, constant(0.5, stages=rules.slots), replicas=whole)
    ran = play(pool, these, Run(seed=1), rule, cold)
    every, w = ran.found.requests, ran.found.world
    assert np.all(every["status"] == 1)
    assert ran.found.summary.in_system_s == pytest.approx(float((every["end"] - every["arrival"]).sum()), abs=1e-6)
    assert np.all(w.replica["outstanding"] == 0)
    assert np.all(w.lane["free"] + w.lane["cached"] == rules.kv_blocks)
    # Never more replicas' devices than there are, never fewer than one replica wanted.
    edges = sorted([(x.ordered_s, 1) for x in ran.lives] + [(x.gone_s, -1) for x in ran.lives])
    held = np.cumsum([step for _, step in edges])
    assert held.max() <= whole
    for life in ran.lives:
        # A request is served between its replica's start and end.
        own = [i for i in range(number) if w.lane["replica"][every["lane"][i]] == life.replica]
        inside = [i for i in own if life.ready_s - 1e-9 <= every["start"][i] and every["end"][i] <= life.gone_s + 1e-9]
        assert len(inside) == len(own) or len([x for x in ran.lives if x.replica == life.replica]) > 1
    again = play(pool, these, Run(seed=1), rule, cold)
    assert again.found.requests.tobytes() == every.tobytes()
    assert again.lives == ran.lives


def test_rules_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(
        "schema: linkwise.scaling/1\nrules:\n"
        "  - {outstanding: 8, min: 2, max: 6, every: 5s, down_window: 60s}\n"
        '  - {name: office, schedule: {"0h": 2, "8h": 6}, period: 24h}\n'
        "  - {fixed: 3}\n"
    )
    first, office, three = scaling.load(path)
    assert (first.name, first.target, first.every_s, first.down_window_s) == ("outstanding 8", 8.0, 5.0, 60.0)
    assert office.schedule == ((0.0, 2), (28800.0, 6))
    assert (three.least, three.most) == (3, 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schema: linkwise.scaling/1\nrules: []\n", "field rules"),
        ("schema: other\nrules: []\n", "field schema"),
        ("schema: linkwise.scaling/1\nrules:\n  - {outstanding: 8, kv: 0.5}\n", "rules[0]"),
        ("schema: linkwise.scaling/1\nrules:\n  - {kv: 1.5}\n", "target kv is 1.5"),
        ("schema: linkwise.scaling/1\nrules:\n  - {kv: .nan}\n", "rules[0]"),
        ("schema: linkwise.scaling/1\nrules:\n  - {outstanding: 8, every: 5}\n", "every"),
        ("schema: linkwise.scaling/1\nrules:\n  - {outstanding: 8, min: 5, max: 2}\n", "min <= max"),
        ("schema: linkwise.scaling/1\nrules:\n  - {outstanding: 8, cooldown: 5s}\n", "cooldown"),
        ('schema: linkwise.scaling/1\nrules:\n  - {schedule: {"25h": 2}}\n', "schedule"),
    ],
)
def test_a_wrong_file_names_its_field(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        scaling.load(path)
    assert said in str(error.value)
    assert "r.yaml" in str(error.value)


PLAN = "plan llama-3.1-8b --on 4xh100-sxm --tp 1 --isl 1000 --osl 100 --rate 5/s --ttft 300ms --tpot 15ms -o p.json"


RUN = "autoscale p.json --rate 20/s --requests 4000 --period 2min --cold-start 20s --target-outstanding 20"


def test_rules_side_by_side(linkwise: Shell) -> None:
    ran = linkwise(f"{RUN} --target-kv 0.2 --timeline t.json --json")
    found = json.loads(ran.out)
    assert (ran.code, ran.err) == (0, "")
    assert [one["rule"]["name"] for one in found["rules"]] == [
        "outstanding 20", "kv 0.2", "1 all the time", "4 all the time"
    ]  # fmt: skip
    ruled, _, least, most = found["rules"]
    assert least["replica_hours"] < ruled["replica_hours"] < most["replica_hours"]
    assert ruled["in_target"] <= most["in_target"]
    assert ruled["starts"] > 0
    assert all(a["at_s"] < b["at_s"] for a, b in pairwise(ruled["changes"]))
    assert linkwise(f"{RUN} --target-kv 0.2 --json").out == ran.out, "same seed, same result"
    events = json.loads((linkwise.folder / "t.json").read_text())["traceEvents"]
    counts = [e["args"]["replicas that serve"] for e in events if e["name"] == "replicas that serve"]
    assert counts[0] == 1
    assert max(counts) == ruled["most"] > 1
    screen = linkwise(RUN).out
    assert "TTFT while a replica starts" in screen
    assert "worst      outstanding 20: the minute from" in screen


def test_a_cold_start_from_the_weights(linkwise: Shell) -> None:
    line = "autoscale p.json --rate 2/s --requests 50 --target-waiting 1 --load-rate 1GB/s --start-up 10s --json"
    found = json.loads(linkwise(line).out)
    # 8.03 B parameters in bf16 are 16.06 GB: 16.1 s at 1 GB/s, and 10 s.
    assert found["cold_start_s"] == pytest.approx(26.06, abs=0.1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--cold-start 20s", "no rule"),
        ("--target-kv 0.5", "no cold start"),
        ("--target-kv 0.5 --cold-start 20s --load-rate 1GB/s", "two cold starts"),
        ("--target-kv 5 --cold-start 20s", "target kv"),
        ("--target-outstanding 8 --cold-start 20s --min 9", "at most 4 replicas"),
        ("--schedule 8h=x --cold-start 20s", "--schedule"),
        ("--target-outstanding 8 --cold-start 20s --every 0s", "--every"),
        ("--target-outstanding 8 --load-rate 1GB", "--load-rate"),
    ],
)
def test_bad_input_is_named(linkwise: Shell, words: str, said: str) -> None:
    ran = linkwise(f"autoscale p.json --rate 5/s --requests 20 {words}")
    assert ran.code == 2
    assert said in ran.err

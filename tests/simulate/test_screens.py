"""What the screens say: which fault, when and with what recovery; what of a pool is full; figures that differ, apart.

Expected values: the words that were typed, and hand calculation.
"""

import json

import pytest
from tests.test_cli import Shell

pytest.importorskip("numba")

from linkwise.core.units import show_apart

PLAN = "plan llama-3.1-8b --on 2xh100-sxm --tp 1 --isl 1000 --osl 100 --rate 5/s -o p.json"


def said(shell: Shell, words: str) -> str:
    return " ".join(shell(words).out.split())


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--fault slow:0@2s-5sx1.5", "fault 2 s to 5 s: replica 0 computes 1.5 times as long"),
        ("--fault link:0@0s-500msx4", "fault 0 s to 500 ms: replica 0: its links take 4 times as long"),
        ("--replicas 2 --fault down:1@2s-5s", "fault 2 s to 5 s: replica 1 is down; its requests go to other replicas"),
        ("--replicas 2 --fault down:1@2s-5s --recovery drop", "replica 1 is down; its requests are lost"),
        ("--replicas 2 --fault down:1@2s-5s --recovery stay", "replica 1 is down; its requests wait for it"),
        ("--prefill p.json --fault down:0@2s-5s", "2 s to 5 s: prefill replica 0 is down"),
        ("--prefill p.json --fault slow:1@2s-5sx2", "2 s to 5 s: decode replica 1, the pool's 0 computes 2 times"),
    ],
)
def test_the_fault_its_window_replica_and_recovery_are_named(linkwise: Shell, words: str, line: str) -> None:
    assert line in said(linkwise, f"simulate p.json --requests 60 {words}")
    assert "fault  " not in linkwise("simulate p.json --requests 60").out


def test_what_of_a_pool_is_full(linkwise: Shell) -> None:
    out = said(linkwise, "simulate p.json --requests 200")
    assert "of its seats taken, KV" in out
    assert "of the time" in out
    assert "% busy" not in out


def test_durations_that_differ_are_told_apart() -> None:
    assert show_apart(0.5004, 0.5) == ("500.4 ms", "500 ms")
    assert show_apart(0.0519, 0.04) == ("51.9 ms", "40 ms")
    assert show_apart(1.0000004, 1.0) == ("1.0000004 s", "1 s")
    assert show_apart(0.5, 0.5) == ("500 ms", "500 ms")


def test_the_rules_asked_for_come_first(linkwise: Shell) -> None:
    # One replica all the time cannot serve 60/s, two with the rule do: its word comes after the table of the rules.
    words = "autoscale p.json --rate 60/s --arrivals poisson --requests 6000 --target-outstanding 8 --cold-start 1s"
    lines = linkwise(f"{words} --osl 100").out.splitlines()
    table = next(at for at, line in enumerate(lines) if line.startswith("rule "))
    saturated = {line.split(":")[0].split(maxsplit=1)[1]: at for at, line in enumerate(lines) if "SATURATED" in line}
    assert all((at < table) == (not name.endswith("all the time")) for name, at in saturated.items()), saturated
    assert "1 all the time" in saturated


def test_headroom_for_bursts_is_named(linkwise: Shell) -> None:
    out = said(linkwise, "plan llama-3.1-8b --on 2xh100-sxm --tp 1 --isl 1000 --osl 100 --burst 1.5")
    assert "requests of 1,000 + 100 (x 1.5 kept for bursts) a replica" in out
    out = said(linkwise, "plan llama-3.1-8b --on 2xh100-sxm --tp 1 --isl 1000 --osl 100 --burst 1")
    assert "kept for bursts" not in out


def test_a_stretch_beyond_what_is_served_is_on_the_screen_and_a_negative_answer(linkwise: Shell) -> None:
    # 100 requests, one a second; 2,000 within 2 s, far more than one H100 serves of an 8B model; then one in 10 s until
    # all are served. The whole trace is 2,200 requests in 1,092 s: about 2/s.
    at = [*range(100), *(99 + i / 1000 for i in range(1, 2001)), *(101 + 10 * i for i in range(1, 101))]
    rows = "".join(f"{t:.3f},1000,100\n" for t in at)
    (linkwise.folder / "rush.csv").write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    ran = linkwise("simulate p.json --workload rush.csv --ttft 1s")
    out = " ".join(ran.out.split())
    assert ran.code == 1
    assert "SATURATED" not in out
    assert "BEYOND what is served, from" in out
    assert "TTFT target 1 s" in out
    value = json.loads(linkwise("simulate p.json --workload rush.csv --ttft 1s --json").out)["stretch"]
    assert (value["start_s"], value["end_s"]) == (pytest.approx(99, abs=1), pytest.approx(101, abs=1))
    assert value["late"]
    # Nobody said how long is too long.
    assert linkwise("simulate p.json --workload rush.csv").code == 0


def test_a_stretch_of_a_rule_is_on_the_screen_and_a_negative_answer(linkwise: Shell) -> None:
    # 100 requests, one a second; 3,000, 40 a second, until 174 s; then one in 10 s. One H100 serves fewer, and the rule
    # has the second up a minute after its look at 105 s, when the queue is longest.
    at = [*range(100), *(99 + i / 40 for i in range(1, 3001)), *(174 + 10 * i for i in range(1, 101))]
    rows = "".join(f"{t:.3f},1000,100\n" for t in at)
    (linkwise.folder / "rush.csv").write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    words = "autoscale p.json --workload rush.csv --target-outstanding 20 --cold-start 60s"
    ran = linkwise(f"{words} --ttft 1s")
    out = " ".join(ran.out.split())
    assert ran.code == 1
    assert "SATURATED outstanding" not in out
    assert "BEYOND outstanding 20: from 0:01:" in out
    assert "were served by 1 replica on average" in out
    assert "TTFT target 1 s" in out
    rule = json.loads(linkwise(f"{words} --ttft 1s --json").out)["rules"][0]
    seen = rule["stretch"]
    assert seen["end_s"] == pytest.approx(165, abs=3)
    assert seen["offered_per_s"] == pytest.approx(40, rel=0.02)
    beyond = (seen["offered_per_s"] - seen["served_per_s"]) * (seen["end_s"] - seen["start_s"])
    assert seen["most"] - seen["few"] == pytest.approx(beyond, rel=0.01)
    assert seen["late"]
    assert rule["stretch_replicas"] == pytest.approx(1, abs=0.1)
    # Nobody said how long is too long.
    assert linkwise(words).code == 0


def test_a_fault_after_the_end_is_a_note(linkwise: Shell) -> None:
    out = said(linkwise, "simulate p.json --requests 60 --fault slow:0@2h-3hx2")
    assert "fault 2 h" not in out
    assert "note: the fault of replica 0 at 2 h never began: the last request ended at" in out

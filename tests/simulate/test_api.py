"""The Python calls are the commands."""

import json

import pytest
from tests.test_cli import Shell

pytest.importorskip("numba")

import linkwise as package
from linkwise.core.errors import InputError
from linkwise.simulate.scaling import Rule

PLAN = "plan llama-3.1-8b --on 4xh100-sxm --tp 1 --isl 1000 --osl 100 --rate 5/s --ttft 300ms --tpot 15ms -o p.json"


def test_each_call_gives_what_its_command_prints(linkwise: Shell) -> None:
    simulated = package.simulate("p.json", rate="8/s", requests=100, ttft=0.25)
    told = json.loads(linkwise("simulate p.json --rate 8/s --requests 100 --ttft 250ms --json").out)
    assert (simulated.ttft.mean, simulated.in_target) == (told["ttft"]["mean"], told["in_target"])
    held = package.capacity("p.json", rate=20.0, growth="50%", requests=300)
    told = json.loads(linkwise("capacity p.json --rate 20/s --growth 50% --requests 300 --json").out)
    assert (held.replicas, held.failed.rate_per_s) == (told["replicas"], told["failed"]["rate_per_s"])
    rule = Rule(name="outstanding 20", measure="outstanding", target=20.0)
    scaled = package.autoscale(package.load("p.json"), [rule], cold_start="20s", rate=10.0, requests=300)
    words = "--rate 10/s --requests 300 --target-outstanding 20 --cold-start 20s --json"
    told = json.loads(linkwise(f"autoscale p.json {words}").out)
    assert [one.replica_hours for one in scaled.rules] == [one["replica_hours"] for one in told["rules"]]
    assert callable(package.simulate), "the folder of that name does not hide the call"


def test_wrong_words_are_refused(linkwise: Shell) -> None:
    for words in (
        {"rate": -1.0},
        {"rate": "8"},
        {"requests": 0},
        {"ttft": float("nan")},
        {"rate": 8, "concurrency": 2},
    ):
        with pytest.raises(InputError):
            package.simulate("p.json", **words)
    with pytest.raises(InputError):
        package.autoscale("p.json", [], cold_start=1.0)

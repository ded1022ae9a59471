"""The Python calls are the commands."""

import json
import os
from pathlib import Path

import pytest
from tests.test_cli import Shell

pytest.importorskip("numba")

import linkwise as package
from linkwise import api_calibrate
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


class Named(os.PathLike[str]):
    """A path that is neither text nor pathlib's, as other libraries have."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __fspath__(self) -> str:
        return self.name


def test_a_file_is_named_by_any_path(linkwise: Shell) -> None:
    rows = "\n".join(f"{i * 0.5},1000,50" for i in range(40))
    (linkwise.folder / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    (linkwise.folder / "r.yaml").write_text("schema: linkwise.scaling/1\nrules:\n  - {outstanding: 8}\n")
    (linkwise.folder / "w.yaml").write_text("schema: linkwise.workload/1\nisl_tokens: 700\nosl_tokens: 70\n")
    (linkwise.folder / "results.csv").write_text(
        "engine,model,gpu,tp,isl,osl,concurrency,tpot_ms\n" + "vllm,llama-3.1-8b,h100,1,900,90,4,9\n" * 2
    )
    for kind in (Named, Path):
        plan, trace = kind("p.json"), kind("t.csv")
        assert package.simulate(plan, workload=trace, prefill=plan).served == 40
        assert package.capacity(plan, workload=trace, prefill=plan, failures=0).replicas == 2
        assert len(package.autoscale(plan, kind("r.yaml"), cold_start=1.0, workload=trace).rules) == 3
        made = linkwise("calibrate results.csv -o made.yaml")
        assert made.code in {0, 1, 3}
        settings = {"workload": kind("w.yaml"), "calibration": kind("made.yaml"), "engine": "vllm", "tp": 1}
        found = package.plan("llama-3.1-8b", "1xh100-sxm", **settings)
        assert (found.workload.isl_tokens, found.step_calibration is not None) == (700, True)
        assert api_calibrate.fitted([kind("results.csv")], base=kind("made.yaml"))[0].rows == 2
        assert package.load(plan).workload.isl_tokens == 1000
    with pytest.raises(InputError, match="a path"):
        package.simulate("p.json", workload=5)

"""`linkwise plan` with targets and prices, as people type it."""

import json
from pathlib import Path

import pytest
from tests.test_cli import Shell


@pytest.fixture
def linkwise(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return Shell(capsys, tmp_path)


PLAN = "plan llama-3.1-8b --on 4xh100-sxm --isl 1000 --osl 100"


def test_targets_set_the_plan_beside_what_else_there_is(linkwise: Shell) -> None:
    ran = linkwise(f"{PLAN} --tpot 20ms --price 2.5 --pareto")
    assert ran.code == 0
    text = " ".join(ran.out.split())
    assert "points, output tokens/s a device against tokens/s a user, every device at work; * is the choice" in text
    assert "USD a million" in text
    assert linkwise(PLAN).out.count("pareto") == 0, "no target, no price: nothing to choose for"
    value = json.loads(linkwise(f"{PLAN} --tpot 20ms --json -o p.json").out)
    assert value["frontier"]["choice"] is not None
    assert json.loads((linkwise.folder / "p.json").read_text())["frontier"] == value["frontier"]
    assert linkwise("explain p.json tpot_s").code == 0, "a plan file with a front is read back"


def test_prefill_groups_on_other_devices(linkwise: Shell) -> None:
    line = f"{PLAN} --tpot 20ms --prefill-on 2xl40s --price h100-sxm=3,l40s=1 --json"
    offers = json.loads(linkwise(line).out)["frontier"]["offers"]
    assert any(one["mode"] == "separate" and one["prefill_on"] == "2xl40s" for one in offers)
    assert all(one["devices"] <= 6 for one in offers)


def test_no_plan_says_that_nothing_meets_the_targets(linkwise: Shell) -> None:
    ran = linkwise(f"{PLAN} --tpot 1ms --pareto")
    assert ran.code == 1
    assert "no offer meets the targets" in ran.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--price x", "--price"),
        ("--price h200-sxm=3", "h200-sxm"),
        ("--price l40s=1 --prefill-on 2xl40s", "no price of h100-sxm"),
        ("--prefill-on 2xnothing", "nothing"),
    ],
)
def test_bad_input_is_named(linkwise: Shell, words: str, said: str) -> None:
    ran = linkwise(f"{PLAN} --tpot 20ms {words}")
    assert ran.code == 2
    assert said in ran.err

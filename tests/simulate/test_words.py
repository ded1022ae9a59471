"""Words that do not go together are refused, both named; lengths of which only the means are known scatter."""

import json

import pytest
from tests.test_cli import Shell

pytest.importorskip("numba")

import linkwise as package
from linkwise.core.errors import InputError

PLAN = "plan llama-3.1-8b --on 2xh100-sxm --tp 1 --isl 1000 --osl 100 --rate 5/s -o p.json"


@pytest.fixture
def linkwise(linkwise: Shell) -> Shell:
    """With a trace in the folder as well."""
    rows = "\n".join(f"{i * 0.5},1000,50" for i in range(40))
    (linkwise.folder / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    return linkwise


LOAD = [
    ("--workload t.csv --isl 100", "--isl beside --workload"),
    ("--workload t.csv --osl 100", "--osl beside --workload"),
    ("--workload t.csv --lengths fixed", "--lengths beside --workload"),
    ("--workload t.csv --arrivals even", "--arrivals beside --workload"),
    ("--long drop", "--long without --workload"),
]


@pytest.mark.parametrize("command", ["simulate", "capacity", "autoscale"])
@pytest.mark.parametrize(("words", "said"), LOAD)
def test_a_load_is_said_once(linkwise: Shell, command: str, words: str, said: str) -> None:
    more = " --target-outstanding 8 --cold-start 20s" if command == "autoscale" else ""
    ran = linkwise(f"{command} p.json {words}{more}")
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("simulate p.json --think 1s", "--think without --concurrency"),
        ("simulate p.json --concurrency 4 --arrivals even", "--arrivals beside --concurrency"),
        ("simulate p.json --recovery drop", "--recovery without --fault"),
        ("simulate p.json --recovery drop --fault slow:0@1s-2sx2", "--recovery without --fault down"),
        ("simulate p.json --steps 10", "--steps without --timeline"),
        ("simulate p.json --concurrency 20000000", "1..2000000"),
        ("capacity p.json --failures 0 --failure-of node", "--failure-of with --failures 0"),
        ("autoscale p.json --steps 10 --target-kv 0.5 --cold-start 1s", "--steps without --timeline"),
        ("autoscale p.json --swing 0.5 --arrivals even --target-kv 0.5 --cold-start 1s", "--swing beside --arrivals"),
        ("autoscale p.json --period 1h --workload t.csv --target-kv 0.5 --cold-start 1s", "--period beside"),
        ("autoscale p.json --start-up 9s --target-kv 0.5 --cold-start 1s", "--start-up without --load-rate"),
        ("autoscale p.json --max 0 --target-kv 0.5 --cold-start 1s", "--max: 0; expected 1 or more"),
        ("autoscale p.json --tolerance 0.5 --schedule 0h=1 --cold-start 1s", "--tolerance without a rule"),
        ("autoscale p.json --rule r.yaml --max 2 --cold-start 1s", "--max without a rule"),
        ("autoscale p.json --target-kv 0.5 --cold-start soon", "a time with a unit, such as 15s, or 0"),
    ],
)
def test_an_option_that_would_mean_nothing_is_refused(linkwise: Shell, words: str, said: str) -> None:
    rule = "schema: linkwise.scaling/1\nrules:\n  - {outstanding: 8}\n"
    (linkwise.folder / "r.yaml").write_text(rule)
    ran = linkwise(words)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


def test_the_call_refuses_what_the_command_does(linkwise: Shell) -> None:
    for words in ({"recovery": "drop"}, {"think": 1.0}, {"long": "drop"}, {"workload": "t.csv", "isl": 5}):
        with pytest.raises(InputError):
            package.simulate("p.json", **words)


def test_lengths_scatter_unless_they_are_said_to_be_fixed(linkwise: Shell) -> None:
    files = pytest.importorskip("pyarrow.parquet")
    ran = linkwise("simulate p.json --requests 2000 --parquet r.parquet")
    assert "scattered lengths of 1,000 in and 100 out, 20 % up and down" in " ".join(ran.out.split())
    found = files.read_table(linkwise.folder / "r.parquet").to_pydict()["input_tokens"]
    # Uniform over 800..1,200: a standard error of 116 / sqrt(2,000) = 2.6 tokens.
    assert 800 <= min(found) < 803
    assert 1197 < max(found) <= 1200
    assert sum(found) / 2000 == pytest.approx(1000, abs=4 * 2.6)
    fixed = linkwise("simulate p.json --requests 50 --lengths fixed")
    assert "fixed lengths of 1,000 in and 100 out" in fixed.out
    # A context that holds the mean and 5 % more: they scatter by those.
    tight = linkwise("simulate p.json --requests 50 --isl 124732 --osl 100")
    assert "5 % up and down" in " ".join(tight.out.split())


def test_a_mean_rate_that_few_requests_miss_is_said(linkwise: Shell) -> None:
    out = " ".join(linkwise("simulate p.json --requests 300 --arrivals mmpp").out.split())
    assert "mmpp arrivals at 5/s over a long time, these at" in out


def test_a_rule_may_have_no_more_replicas_than_there_are(linkwise: Shell) -> None:
    words = "--rate 5/s --requests 200 --target-outstanding 8 --cold-start 0s --max 8"
    ran = linkwise(f"autoscale p.json {words}")
    assert ran.code == 0
    assert "CAPPED     outstanding 8: 8 replicas at most were asked for, the cluster holds 2" in ran.out
    value = json.loads(linkwise(f"autoscale p.json {words} --json").out)
    assert (value["replicas_held"], value["rules"][0]["capped"]) == (2, 8)


def test_rules_under_a_load_beyond_the_devices_are_a_no(linkwise: Shell) -> None:
    ran = linkwise("autoscale p.json --rate 400/s --requests 3000 --target-outstanding 8 --cold-start 1s")
    assert ran.code == 1
    assert "SATURATED  outstanding 8" in ran.out


def test_more_devices_than_there_are_is_a_what_if_that_is_said(linkwise: Shell) -> None:
    # The plan: replicas of one device on two.
    said = " ".join(linkwise("simulate p.json --requests 50 --replicas 5").out.split())
    assert "5 replicas of tp1 take 5 devices, 2xh100-sxm has 2: a what-if" in said
    twice = " ".join(linkwise("simulate p.json --prefill p.json --requests 50 --replicas 2").out.split())
    assert "the pools take 1 + 2 devices" in twice or "the pools take 2 + 2 devices" in twice
    assert "2xh100-sxm has 2" in twice
    assert "a what-if" not in linkwise("simulate p.json --requests 50").out
    far = linkwise("simulate p.json --requests 50 --replicas 100001")
    assert far.code == 2


def test_a_plan_edited_by_hand_is_refused_by_field(linkwise: Shell) -> None:
    path = linkwise.folder / "p.json"
    whole = json.loads(path.read_text())

    def refused(field: str) -> None:
        path.write_text(json.dumps(whole))
        ran = linkwise("simulate p.json --requests 10")
        assert (ran.code, ran.out) == (2, "")
        assert f"field {field}" in ran.err

    kept, whole["step_calibration"]["constants"] = whole["step_calibration"]["constants"], {}
    refused("step_calibration.constants")
    whole["step_calibration"]["constants"] = kept
    whole["ledger"]["kv_tokens"] *= 10
    refused("ledger.kv_tokens")
    whole["ledger"]["kv_tokens"] //= 10
    whole["ledger"]["requests"] = 0
    refused("ledger.requests")


def test_requests_that_died_are_said_first_and_are_a_no(linkwise: Shell) -> None:
    ran = linkwise("simulate p.json --requests 200 --concurrency 40 --fault down:0@1s-2s --recovery drop")
    lost = [line for line in ran.out.splitlines() if line.startswith("LOST")]
    assert ran.code == 1
    assert len(lost) == 1
    assert "requests died with their replica" in lost[0]
    # Computed again elsewhere, or once it is back, all are served.
    for rule in ("elsewhere", "stay"):
        again = linkwise(f"simulate p.json --requests 200 --concurrency 40 --fault down:0@1s-2s --recovery {rule}")
        assert (again.code, "LOST" in again.out) == (0, False)

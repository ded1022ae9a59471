"""`linkwise simulate` as people use it."""

import json
import subprocess
import sys

import pytest
from tests.test_cli import Shell

pytest.importorskip("numba")

PLAN = "plan llama-3.1-8b --on 2xh100-sxm --tp 1 --isl 1000 --osl 100 --rate 5/s -o p.json"


def test_a_plan_under_its_own_load(linkwise: Shell) -> None:
    ran = linkwise("simulate p.json --requests 200 --ttft 1s")
    assert (ran.code, ran.err) == (0, "")
    assert "served     200 of 200 requests" in ran.out
    assert "met by 100.0%" in ran.out
    again = linkwise("simulate p.json --requests 200 --ttft 1s")
    assert again.out == ran.out, "same seed, same result"
    assert linkwise("simulate p.json --requests 200 --ttft 1s --seed 1").out != ran.out


def test_json_parquet_and_a_timeline(linkwise: Shell) -> None:
    files = pytest.importorskip("pyarrow.parquet")
    ran = linkwise("simulate p.json --requests 50 --json --parquet r.parquet --timeline t.json --lengths uniform")
    value = json.loads(ran.out)
    assert (value["schema"], value["served"]) == ("linkwise.simulation/1", 50)
    table = files.read_table(linkwise.folder / "r.parquet").to_pydict()
    # One row a request; the summary's mean is the table's.
    ttft = [first - arrival for first, arrival in zip(table["first_s"], table["arrival_s"], strict=True)]
    assert sum(ttft) / 50 == pytest.approx(value["ttft"]["mean"])
    assert min(table["input_tokens"]) >= 800
    events = json.loads((linkwise.folder / "t.json").read_text())["traceEvents"]
    steps = [e for e in events if e["ph"] == "X"]
    assert len(steps) == value["steps"]
    assert sum(e["args"]["prompt_tokens"] for e in steps) == value["prefill_tokens"] == sum(table["input_tokens"])


def test_a_rate_above_any_capacity_is_simulated_and_named(linkwise: Shell) -> None:
    ran = linkwise("simulate p.json --rate 500/s --requests 2000")
    assert ran.code == 1
    assert "SATURATED" in ran.out
    assert "times what is served" in " ".join(ran.out.split())


def test_a_queue_with_a_limit_refuses(linkwise: Shell) -> None:
    ran = linkwise("simulate p.json --rate 500/s --requests 1000 --max-waiting 20")
    assert ran.code == 1
    assert "refused: queues were full" in ran.out


def test_a_trace_with_prefixes_and_a_router_that_follows_them(linkwise: Shell) -> None:
    lines = [
        json.dumps({"timestamp": 400 * i, "input_length": 2100, "output_length": 20,
                    "hash_ids": [i % 2, 10 + i % 2, 20 + i % 2, 30 + i % 2, 1000 + i]})
        for i in range(40)
    ]  # fmt: skip
    (linkwise.folder / "m.jsonl").write_text("\n".join(lines))
    value = json.loads(linkwise("simulate p.json --workload m.jsonl --router prefix --json").out)
    # Two prefixes of four whole blocks of 512: each is computed once, the other 38 prompts find it.
    assert value["cached_tokens"] == 38 * 4 * 512
    assert value["prefill_tokens"] == 40 * 2100 - value["cached_tokens"]


def test_pools_on_two_plans(linkwise: Shell) -> None:
    value = json.loads(linkwise("simulate p.json --prefill p.json --requests 100 --json").out)
    assert [p["role"] for p in value["pools"]] == ["prefill", "decode"]
    split = value["split"]
    assert sum(split.values()) == pytest.approx(value["ttft"]["mean"])
    assert split["link_s"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--rate 5/s --concurrency 3", "one of --rate and --concurrency"),
        ("--rate 5", "a positive rate with a unit"),
        ("--isl 200000", "at most the context of 131,072 tokens"),
        ("--arrivals often", "one of poisson, gamma, mmpp, diurnal, even"),
        ("--router prefix", "a trace with hash_ids, or another router"),
        ("--router nowhere", "one of random, round-robin, least, prefix"),
        ("--fault slow:0", "slow:REPLICA@10s-20sx1.5"),
        ("--fault down:7@1s-2s", "replica is 7; expected 0..0"),
        ("--fault slow:0@5s-2sx2", "0 <= start < end"),
        ("--requests 0", "1..20000000"),
        ("--workload none.csv", "no such file"),
        ("--long cut", "one of refuse, drop"),
        ("--seed -1", "seed is -1"),
    ],
)
def test_bad_input(linkwise: Shell, words: str, said: str) -> None:
    ran = linkwise(f"simulate p.json {words}")
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


def test_without_numba_it_says_what_to_install(linkwise: Shell) -> None:
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "from linkwise import cli; sys.exit(cli.main(['simulate', 'p.json', '--requests', '10']))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "pip install 'linkwise[simulate]'" in ran.stderr

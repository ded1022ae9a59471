"""The share of a prompt that is found cached is part of a plan's load: simulated, scaled and decided with it.

By hand: of 1,000 prompt tokens at a share of 0.6, 600 are found and 400 computed, while the request holds KV for all.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.test_cli import Shell

pytest.importorskip("numba")

from linkwise import api, api_simulate
from linkwise.cluster.read import load as cluster
from linkwise.core.layout import Layout
from linkwise.engine import registry
from linkwise.engine.base import Options
from linkwise.model.read import load as model
from linkwise.plan.fit import Case
from linkwise.plan.frontier_types import Frontier, Offer
from linkwise.simulate.calibrate.rows import Given, cases_of
from linkwise.simulate.calibrate.steps import run_of
from linkwise.simulate.finalists import simulated
from linkwise.simulate.rules import Fault, Pool, Rules, Run
from linkwise.simulate.run import simulate
from linkwise.simulate.tables import constant
from linkwise.workload.requests import Requests, requests
from linkwise.workload.results import read
from linkwise.workload.types import Targets, Workload

PLAN = "plan llama-3.1-8b --on 8xh100-sxm --tp 1 --isl 6000 --osl 40 --rate 12/s --prefix-hit 0.6 -o p.json"


def load(prompts: list[int], answers: int, share: float, apart_s: float = 60.0) -> Requests:
    number = len(prompts)
    these = requests(apart_s * np.arange(number), np.array(prompts), np.full(number, answers))
    return these._replace(cached_share=share)


def pool(role: str = "both", **rules) -> Pool:
    # A step takes 10 ms and a millisecond for each token of it.
    return Pool(Rules(budget=8192, max_seqs=8, **rules), constant(0.01, tokens=8192, per_token=0.001), role=role)


def test_what_is_found_is_not_computed_and_is_held() -> None:
    found = simulate([pool(kv_blocks=100)], load([1000], 40, 0.6))
    assert found.requests["hit"].tolist() == [600]
    assert (found.summary.prefill_tokens, found.summary.cached_tokens) == (400, 600)
    assert found.requests["first"][0] == pytest.approx(0.410)  # 10 ms + 400 tokens
    # 1,039 tokens at its end, since the last one drawn is never read: 65 blocks of 16.
    assert found.summary.pools[0].kv_peak == pytest.approx(0.65)


def test_at_least_one_token_is_computed_and_fractions_are_not_found() -> None:
    found = simulate([pool()], load([1, 7, 100], 1, 0.99))
    assert found.requests["hit"].tolist() == [0, 6, 99]  # floors of 0.99, 6.93 and 99, as the plan takes them


def test_an_engine_without_a_cache_finds_nothing() -> None:
    assert simulate([pool(prefix_cache=False)], load([1000], 4, 0.6)).summary.cached_tokens == 0


def test_pools_find_it_where_prompts_are_computed() -> None:
    pools = [pool("prefill"), pool("decode")]
    found = simulate(pools, load([1000, 1000], 4, 0.6))
    assert (found.summary.prefill_tokens, found.summary.cached_tokens) == (800, 1200)
    # The decode side dies with the second prompt's KV: the prefill side computes its 400 again.
    down = Run(faults=(Fault(kind="down", replica=1, start_s=60.42, end_s=70.0),))
    again = simulate(pools, load([1000, 1000], 100, 0.6), down).summary
    assert (again.prefill_tokens, again.cached_tokens) == (1200 + again.decode_tokens - 200, 1800)


@pytest.mark.parametrize("part", [0.5, 0.8])
def test_a_plan_and_its_simulation_agree(part: float) -> None:
    words = {"tp": 4, "replicas": 1, "prefix_hit": 0.6, "isl": 4000, "osl": 300}
    most = api.plan("llama-3.3-70b", "4xh100-sxm", rate=1.0, **words).chosen.max_rate_per_s
    plan = api.plan("llama-3.3-70b", "4xh100-sxm", rate=part * most, **words)
    ran = api_simulate.simulate(plan, requests=4000)
    found = ran.cached_tokens / (ran.cached_tokens + ran.prefill_tokens)
    assert found == pytest.approx(0.6, abs=1e-3)
    assert ran.ttft.mean == pytest.approx(plan.chosen.point.ttft_s, rel=0.1)
    assert ran.tpot.mean == pytest.approx(plan.chosen.point.tpot_s, rel=0.1)


def test_finalists_are_simulated_with_it() -> None:
    targets = Targets(ttft_s=1.0, tpot_s=0.05)
    one = Offer(
        mode="mixed", layout=Layout(tp=1), groups=1, batch=8, devices=1, tpot_s=0.01, ttft_s=0.1, rate_per_s=4.0,
        tokens_per_s_per_device=100.0, meets=True, max_batched_tokens=8192, for_rate_per_s=4.0,
    )  # fmt: skip
    ttft = []
    for hit in (0.0, 0.75):
        work = Workload(isl_tokens=8000, osl_tokens=20, rate_per_s=4.0, prefix_hit=hit, targets=targets)
        case = Case(model("llama-3.1-8b"), cluster("1xh100-sxm"), registry.get("vllm"), Options(), work)
        ran = simulated(Frontier(offers=(one,), choice=0, tried=1, devices=1), case)
        ttft.append(ran.offers[0].simulated_ttft_s)
    # A quarter of the tokens is computed: it takes between an eighth and a half of the time.
    assert 0.125 < ttft[1] / ttft[0] < 0.5


def test_commands_say_and_use_it(linkwise: Shell) -> None:
    needs = {}
    for hit in (0.0, 0.6):
        linkwise(PLAN.replace("0.6", str(hit)))
        ran = json.loads(linkwise("capacity p.json --failures 0 --ttft 1s --requests 500 --json").out)
        needs[hit] = ran["replicas"]
        more = "--rate 12/s --arrivals poisson --requests 500 --target-outstanding 8 --cold-start 20s"
        for words in ("simulate p.json --requests 500", f"autoscale p.json {more}"):
            out = " ".join(linkwise(words).out.split())
            assert ("60% of each prompt is found cached, as the plan says" in out) == bool(hit)
    assert needs[0.6] < needs[0.0]


def test_names_of_a_trace_say_it_in_place_of_the_plan(linkwise: Shell) -> None:
    linkwise("plan llama-3.1-8b --on 1xh100-sxm --tp 1 --isl 1000 --osl 20 --rate 1/s --prefix-hit 0.6 -o p.json")
    rows = [{"timestamp": 1000 * i, "input_length": 1024, "output_length": 4, "hash_ids": [0, i + 1]} for i in range(3)]
    (linkwise.folder / "named.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (linkwise.folder / "plain.csv").write_text(
        "arrival_s,input_tokens,output_tokens\n" + "".join(f"{i},1000,4\n" for i in range(3))
    )
    named = linkwise("simulate p.json --workload named.jsonl --json")
    assert json.loads(named.out)["cached_tokens"] == 2 * 512  # the second and the third find the first's block
    assert "hash_ids say what is found cached, not the plan's 60%" in named.out
    assert json.loads(linkwise("simulate p.json --workload plain.csv --json").out)["cached_tokens"] == 3 * 600


def test_a_measured_row_says_it(tmp_path: Path) -> None:
    head = "engine,engine_version,model,gpu,tp,isl,osl,fixed_lengths,concurrency,ttft_ms,tpot_ms,cache_hit_rate"
    row = "vllm,0.18,llama-3.1-8b,NVIDIA H100 SXM,1,8000,50,1,2,100,10"
    (tmp_path / "rows.csv").write_text("\n".join([head, f"{row},0.75", f"{row},", f"{row},75"]))
    found = read(str(tmp_path / "rows.csv"))
    assert "cache_hit_rate: 75, expected 0 to 0.999" in found.left_out[0].reason
    hit, none = cases_of(found.rows, Given()).cases
    assert (hit.prefix_hit, none.prefix_hit) == (0.75, 0.0)
    # 2,000 of 8,000 tokens are computed, so the prompt's part of both means is a fraction of the other's.
    assert run_of(hit).ttft_s < 0.5 * run_of(none).ttft_s
    prefilled = run_of(hit).carried
    assert float(prefilled.fresh.max()) <= 2 * 2000 + 2

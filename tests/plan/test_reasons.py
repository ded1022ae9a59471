"""Why a layout: the rule is followed, and what a plan says would flip it does flip it."""

import re

import pytest
from msgspec.structs import replace

from linkwise.cluster.read import load as cluster
from linkwise.core.layout import Layout
from linkwise.engine import registry
from linkwise.engine.base import Options
from linkwise.model.read import load as model
from linkwise.plan.build import plan
from linkwise.plan.choose import MARGIN, choose, crosses, order, total_rate
from linkwise.plan.fit import Case
from linkwise.plan.reasons import decisions
from linkwise.plan.search import search
from linkwise.plan.types import Plan
from linkwise.workload.types import Targets, Workload

VLLM = registry.get("vllm")


def ask(name, on, **load):
    targets = Targets(ttft_s=load.pop("ttft_s", None), tpot_s=load.pop("tpot_s", None))
    return Case(model(name), cluster(on), VLLM, Options(), Workload(targets=targets, **load))


def seen(case):
    found = search(case.model, case.cluster, case.engine, case.options, case.workload)
    return found, choose(found.candidates, case.workload, case.cluster)[0]


@pytest.mark.parametrize("load", [{"concurrency": 1}, {"concurrency": 64}, {"rate_per_s": 2.0, "tpot_s": 0.05}])
def test_with_a_load_the_smallest_group_that_carries_it_wins(load):
    case = ask("llama-3.3-70b", "8xh100-sxm", **load)
    found, chosen = seen(case)
    inside = [c for c in found.candidates if not crosses(c, case.cluster)]
    assert chosen.group_size == min(c.group_size for c in inside)


@pytest.mark.parametrize(("name", "on"), [("llama-3.3-70b", "8xh100-sxm"), ("llama-2-7b", "2xl4")])
def test_without_a_load_fewer_ranks_must_not_cost_throughput(name, on):
    case = ask(name, on)
    found, chosen = seen(case)
    best = max(total_rate(c) for c in found.candidates if not crosses(c, case.cluster))
    assert total_rate(chosen) >= best * (1 - MARGIN)
    smaller = [c for c in found.candidates if c.group_size < chosen.group_size and not crosses(c, case.cluster)]
    assert all(total_rate(c) < max(total_rate(x) for x in found.candidates) * (1 - MARGIN) for c in smaller)


def test_without_islands_a_tensor_group_may_fill_the_node():
    case = ask("llama-2-7b", "2xl4")
    _, chosen = seen(case)
    assert chosen.layout == Layout(tp=2)


CASES = [
    ("llama-3.3-70b", "8xh100-sxm", {}),
    ("llama-3.3-70b", "8xh100-sxm", {"rate_per_s": 3.0, "tpot_s": 0.04, "isl_tokens": 4000, "osl_tokens": 500}),
    ("llama-2-7b", "2xl4", {}),
    ("qwen3-30b-a3b", "4xh100-sxm", {}),
]


@pytest.mark.parametrize(("name", "on", "load"), CASES)
def test_every_break_even_flips_where_it_says(name, on, load):
    case = ask(name, on, **load)
    found, chosen = seen(case)
    stated = [d for d in decisions(case, chosen, found) if "every collective takes" in d.break_even]
    assert stated or name == "qwen3-30b-a3b"
    for made in stated:
        factor = float(re.search(r"takes ([\d.]+) times", made.break_even)[1])
        away = 1.15 if factor > 1 else 1 / 1.15
        assert not _prefers_other(case, made, chosen, factor**0.8), made.question
        assert _prefers_other(case, made, chosen, factor * away), made.question


def _prefers_other(case, made, chosen, factor):
    """Whether the rule, between the two layouts a decision names, drops the chosen one at this factor."""
    slow = replace(case.cluster, constants=replace(case.cluster.constants, collective_factor=factor))
    found = search(case.model, slow, case.engine, case.options, case.workload)
    named = [c for c in found.candidates if c.layout == chosen.layout or f"{c.layout}" in _words(made.question)]
    return not named or order(tuple(named), case.workload, slow)[0].layout != chosen.layout


def _words(question):
    return re.findall(r"(?:\w+\d x )*\w+\d", question.replace("(", " ").replace(")", " "))


def test_the_replica_question_shows_what_each_side_costs_even_when_the_wider_group_is_rejected():
    case = ask(
        "llama-3.3-70b", "2x4xh100-sxm", isl_tokens=4000, osl_tokens=500, rate_per_s=3.0, tpot_s=0.04, ttft_s=1.0
    )
    found, chosen = seen(case)
    (made,) = [d for d in decisions(case, chosen, found) if "or one (tp8)" in d.question]
    assert made.answer == "2 x (tp4)"
    shown = " ".join(made.because)
    assert "full sharded copy of the weights" in shown
    assert "separate KV" in shown


def test_a_target_offered_as_nearest_change_is_met():
    case = ask("llama-3.3-70b", "2x4xh100-sxm", tpot_s=0.010)
    found = search(case.model, case.cluster, case.engine, case.options, case.workload)
    late = [r for r in found.rejected if r.shortfall.resource == "tpot"]
    assert late
    for one in late:
        offered = float(re.search(r"target of ([\d.]+) ms", one.shortfall.change)[1]) / 1e3
        easier = replace(case.workload, targets=Targets(tpot_s=offered))
        again = search(case.model, case.cluster, case.engine, case.options, easier, one.layout.degrees())
        assert again.candidates, one.layout


def test_a_plan_states_its_rule():
    made = plan(*ask("llama-3.1-8b", "2xh100-sxm", concurrency=4))
    assert isinstance(made, Plan)
    assert "smallest group" in made.rule

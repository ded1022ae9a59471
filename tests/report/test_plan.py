"""Screens of a plan: how ops become lines, where ranks go, what is said when nothing is rejected or feasible."""

import io
import re

import pytest
from msgspec.structs import replace

import linkwise
from linkwise.cluster.detail import NodeDetail
from linkwise.cluster.read import load
from linkwise.plan.types import Op
from linkwise.report import compare, plan, text


def _op(role: str, stage: int, repeat: int, sent: float) -> Op:
    return Op(
        kind="all_reduce",
        role=role,
        group="tp",
        size=4,
        S_bytes=100,
        repeat=repeat,
        stage=stage,
        dtype="bfloat16",
        tokens=1,
        algorithm="ring",
        useful_recv_bytes=75,
        wire_sent_bytes=sent,
        wire_recv_bytes=sent,
    )


def test_stages_that_make_the_same_call_share_a_line() -> None:
    rows = plan.rows_of((_op("attn.out", 0, 40, 150), _op("attn.out", 1, 41, 150), _op("embed", 0, 1, 150)))
    # The busiest stage counts: 41 calls of 150 B.
    assert [(row.role, row.calls, row.sent_bytes) for row in rows] == [("attn.out", 41, 6150), ("embed", 1, 150)]


def test_a_pipeline_says_where_its_stages_lie() -> None:
    found = linkwise.plan("llama-3.1-405b", on="2x8xh100-sxm", tp=8, pp=2, cp=1)
    shown = repr(found)
    assert "plan       pp2 x tp8" in shown
    assert "node 0: ranks 0-7 | node 1: ranks 8-15" in shown
    assert "33% pipeline bubble" in shown  # (p-1)/(m+p-1) with p = m = 2
    assert "no part of TPOT" in " ".join(shown.split())
    half = -(-found.chosen.point.batch // 2)
    assert f"a step of {half} requests, one of 2 batches in flight" in " ".join(shown.split())
    assert "busiest stage computes" in " ".join(shown.split())
    assert "pp.hidden" in shown
    tiers = text.render(plan.links(found), io.StringIO())
    assert "cluster" in tiers
    assert "island" in tiers


def sums(words: str) -> list[tuple[float, list[float]]]:
    """(sum, terms) of every `12.3 ms ... = a 1.2 + b 3.4` of a screen."""
    found = re.findall(r"([\d.]+) (?:ms|us|s|GB)[^=]*? = ([A-Za-z -]+ [\d.]+(?: \+ [A-Za-z -]+ [\d.]+)*)", words)
    return [(float(whole), [float(n) for n in re.findall(r" ([\d.]+)", " " + terms)]) for whole, terms in found]


def test_every_sum_on_a_screen_adds_up() -> None:
    for asked in (
        linkwise.plan("llama-3.3-70b", on="2x4xh100-sxm", tp=4, pp=2, isl=4000, osl=500),
        linkwise.plan("llama-3.3-70b", on="2x4xh100-sxm", tp=4, pp=1, isl=4000, osl=500),
        linkwise.plan("llama-3.1-405b", on="2x8xh100-sxm", engine="trtllm"),
        linkwise.plan("deepseek-v3", on="8xh200-sxm", engine="sglang", dp_attn=8),
    ):
        labelled = ("memory ", "decode ", "prefill ")
        found = [one for line in plan.screen(asked) if line.startswith(labelled) for one in sums(line)]
        assert len(found) == 5, "memory; decode and prefill step, and what each computes"
        for whole, terms in found:
            assert sum(terms) == pytest.approx(whole, abs=1e-9)


def test_a_prompt_of_attention_replicas_is_one_on_each() -> None:
    shown = " ".join(repr(linkwise.plan("deepseek-v3", on="8xh200-sxm", engine="sglang", dp_attn=8)).split())
    assert "1 request on each of 8 attention replicas" in shown


def test_an_engine_that_runs_fewer_requests_than_fit_says_so() -> None:
    shown = " ".join(repr(linkwise.plan("llama-3.1-8b", on="1xh200-sxm", isl=64, osl=8, max_seqs=16)).split())
    assert "(the engine runs at most 16 at once)" in shown


def test_every_reason_is_behind_why_and_the_screen_keeps_what_decides() -> None:
    found = linkwise.plan("llama-3.3-70b", on="2x4xh100-sxm", isl=4000, osl=500, rate=3.0, ttft="1s", tpot="40ms")
    shown, all_of_it = " ".join(repr(found).split()), "\n".join(plan.why(found))
    assert found.decisions
    for made in found.decisions:
        assert f"{made.question} {made.answer}" in shown
        assert f"break-even: {made.break_even}" in shown
        assert f"measure {made.measure}" in shown
        assert all(f"because {reason}" in all_of_it for reason in made.because)
    assert max(len(line) for line in repr(found).split("\n") if not line.startswith("run ")) <= 120


def test_a_plan_and_no_plan_say_which_they_are() -> None:
    assert linkwise.plan("llama-3.1-8b", on="1xh100-sxm").feasible is True
    assert linkwise.plan("llama-3.1-405b", on="8xh100-sxm").feasible is False


def test_every_rank_has_a_place() -> None:
    found = linkwise.plan("llama-3.1-8b", on="2x2xh100-sxm", tp=2, pp=1, cp=1)
    shown = text.render(plan.ranks(found), io.StringIO())
    places = [line.split() for line in shown.partition("where each rank goes")[2].strip().split("\n")]
    # replica, rank, node, device, place on the tp axis
    assert places[1:] == [list("00000"), list("01011"), list("10100"), list("11111")]


def test_no_plan_says_what_is_short_and_what_would_help() -> None:
    found = linkwise.plan("llama-3.1-405b", on="8xh100-sxm")
    shown = repr(found)
    assert "no plan    weights" in shown
    assert "short by" in shown
    assert "change" in shown
    assert len(text.render(plan.rejected(found), io.StringIO()).split("\n")) == len(found.rejected) + 2


def test_plans_that_answer_different_questions_say_so() -> None:
    a = linkwise.plan("llama-3.1-8b", on="1xh100-sxm")
    b = linkwise.plan("llama-3.1-8b", on="1xh100-sxm", isl=100)
    found = compare.compare(a, b)
    assert found.differs == (
        "2,048 in + 256 out tokens; no latency target against 100 in + 256 out tokens; no latency target",
    )
    assert compare.compare(a, a).differs == ()
    assert all(row.a == row.b for row in compare.compare(a, a).rows)


def test_the_headline_follows_the_replica_that_lies_worst() -> None:
    """Two nodes of four devices; in the first, device 0 is off the switch, so one of four pairs goes over PCIe."""
    usual = NodeDetail(islands=(0,) * 4, ports_Bps=(450e9,) * 4)
    odd = NodeDetail(islands=(0, 1, 1, 1), ports_Bps=(0.0, 450e9, 450e9, 450e9))
    where = replace(load("2x4xh100-sxm"), detail=usual, odd_nodes={0: odd})
    found = linkwise.plan("llama-3.1-8b", on=where, tp=2)
    assert found.replicas == 4
    assert "tp over PCIe in 1 of 4 replicas, a scale-up island at best" in repr(found)
    assert "tp over a scale-up island" in repr(linkwise.plan("llama-3.1-8b", on="2x4xh100-sxm", tp=2))

"""Screens of a plan: how ops become lines, where ranks go, what is said when nothing is rejected or feasible."""

import io

import linkwise
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
    assert "pp.hidden" in shown
    tiers = text.render(plan.links(found), io.StringIO())
    assert "cluster" in tiers
    assert "island" in tiers


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

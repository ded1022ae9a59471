"""The page's value against the functions that plan, and against hand calculations where a figure has one."""

import json
import math
from itertools import pairwise

import msgspec
import pytest
from tests.small import LLAMA

import linkwise
from linkwise.api_report import page_of
from linkwise.core.errors import InputError
from linkwise.diagnose.types import Fault as Where
from linkwise.diagnose.types import Finding, Findings
from linkwise.plan.explain import explain
from linkwise.plan.link_chain import explain_link
from linkwise.plan.traffic import traffic
from linkwise.report.page.chains import Writer
from linkwise.report.page.data import page_data
from linkwise.report.page.faults import faults
from linkwise.report.page.layouts import layouts
from linkwise.report.page.steps import at, sizes, step_time
from linkwise.report.page.types import Figure, Page


def plan_of(model, on, **settings) -> linkwise.Plan:
    found = linkwise.plan(model, on=on, **settings)
    assert isinstance(found, linkwise.Plan), found
    return found


@pytest.fixture(scope="module")
def seventy() -> linkwise.Plan:
    return plan_of("llama-3.3-70b", "2x4xh100-sxm", isl=4000, osl=500, rate="3/s", ttft="1s", tpot="40ms")


@pytest.fixture(scope="module")
def page(seventy: linkwise.Plan) -> Page:
    return page_data(seventy)


def figure(page: Page, path: str) -> Figure:
    return next(one for one in page.figures if one.path == path)


def value(page: Page, path: str, batch: int | None = None) -> float:
    values = figure(page, path).values
    place = page.plan if batch is None else page.batches.index(batch)
    return values[place if len(values) > 1 else 0]


def written(page: Page, place: int) -> str:
    """A chain of the book, as `str(chain)` writes it."""
    lines = []
    words = page.book.words
    for at_ in page.book.chains[place]:
        name, formula, source, note, shown, numbers = page.book.steps[at_]
        if formula:
            lines += [f"{words[name]} = {words[formula]}", *([f"    = {numbers}"] if numbers else []), f"    = {shown}"]
        else:
            lines.append(f"{words[name]} = {shown}   [{words[source] or 'given'}]")
        lines += [f"    ({words[note]})"] if words[note] else []
    return "\n".join(lines)


def test_every_figure_is_the_plans(page: Page, seventy: linkwise.Plan) -> None:
    assert {one.path for one in page.figures} == set(seventy.figures)
    for path, stored in seventy.figures.items():
        assert math.isclose(value(page, path), stored, rel_tol=1e-12), path
    assert page.notes == ()


@pytest.mark.parametrize("path", ["tpot_s", "decode.attn.out.sent_bytes", "kv.rank0", "mixed.step_s", "decode.calls"])
def test_a_chain_is_the_one_that_explain_prints(page: Page, seventy: linkwise.Plan, path: str) -> None:
    chains = figure(page, path).chains
    assert written(page, chains[page.plan if len(chains) > 1 else 0]) == str(explain(seventy, path).chain)


def test_the_slider_computes_anew(page: Page) -> None:
    # By hand: tokens x hidden 8,192 x 2 B of bfloat16.
    for batch in page.batches:
        assert value(page, "decode.attn.out.S_bytes", batch) == batch * 8192 * 2
    assert len(figure(page, "prefill.attn.out.S_bytes").values) == 1


def test_the_slider_has_the_plans_batch_and_both_ends(seventy: linkwise.Plan) -> None:
    found = sizes(seventy)
    assert len(found) <= 10
    assert found[0] == 1
    assert found[-1] == seventy.ledger.requests  # fewer than the engine runs at once
    assert seventy.chosen.point.batch in found
    assert all(a < b for a, b in pairwise(found))
    few = sizes(seventy, 4)
    assert len(few) == 4
    assert {few[0], few[-1]} == {found[0], found[-1]}


@pytest.mark.parametrize("step", ["prefill", "decode", "mixed"])
def test_links_carry_what_traffic_counts(page: Page, seventy: linkwise.Plan, step: str) -> None:
    found = {link.name: link for link in traffic(seventy, step).links}
    load = next(x for x in page.picture.loads if x.step == step and x.batch in {page.batches[page.plan], 1})
    if step != "prefill":
        load = next(x for x in page.picture.loads if x.step == step and x.batch == page.batches[page.plan])
    for link, place in zip(page.picture.links, load.of, strict=True):
        if place < 0:
            assert link.name not in found
            continue
        one = load.carried[place]
        assert one.bytes == pytest.approx(found[link.name].bytes, rel=1e-9)
        assert one.busy_s == pytest.approx(found[link.name].busy_s, rel=1e-9)
        assert sum(size for _, _, size in one.parts) == pytest.approx(one.bytes, rel=1e-9)
    assert load.busiest_s == max(link.busy_s for link in found.values())


def test_a_links_chain_is_the_one_that_explain_prints(page: Page, seventy: linkwise.Plan) -> None:
    load = next(x for x in page.picture.loads if x.step == "decode" and x.batch == page.batches[page.plan])
    one = load.carried[0]
    assert written(page, one.chain) == str(explain_link(seventy, f"link:decode:{one.like}").chain)


def test_nodes_that_are_drawn_once_lose_no_byte() -> None:
    plan = plan_of("llama-3.1-405b", "4x8xh100-sxm", tp=8, pp=2, cp=1)
    page = page_data(plan)
    total = sum(link.bytes for link in traffic(plan, "decode").links)
    load = next(x for x in page.picture.loads if x.step == "decode" and x.batch == page.batches[page.plan])
    seen = 0.0
    for node in page.picture.nodes:
        places = {place for wire in node.wires for place in (*wire.out, *wire.back)}
        seen += len(node.nodes) * sum(load.carried[load.of[p]].bytes for p in places if load.of[p] >= 0)
    core = {place for wire in page.picture.core for place in (*wire.out, *wire.back)}
    seen += sum(load.carried[load.of[p]].bytes for p in core if load.of[p] >= 0)
    assert seen == pytest.approx(total, rel=1e-6)
    # Two replicas of two stages: first stages alike, last stages alike.
    assert sorted(node.nodes for node in page.picture.nodes) == [(0, 2), (1, 3)]
    assert page.picture.ranks[8] == (0, 8)
    assert page.picture.ranks[16] == (1, 0)


@pytest.mark.parametrize(
    ("model", "on", "degrees"),
    [("llama-3.3-70b", "1x4xh100-sxm", {"tp": 4}), ("qwen3-30b-a3b", "1x8xh100-sxm", {"tp": 2, "pp": 2, "ep": 2})],
)
@pytest.mark.parametrize("step", ["prefill", "decode", "mixed"])
def test_a_timeline_adds_up(model: str, on: str, degrees: dict[str, int], step: str) -> None:
    found = step_time(at(plan_of(model, on, **degrees), step, 8))
    total = 0.0
    for stage in found.stages:
        parts = sum(stage.parts.values()) + sum(op.exposed_s for op in stage.ops) + stage.host_s
        assert parts == pytest.approx(stage.step_s, rel=1e-9)
        total += stage.step_s * len(stage.stages)
    assert total == pytest.approx(found.token_s, rel=1e-9)
    assert found.interval_s == max(stage.step_s for stage in found.stages)


def test_memory_fills_the_budget(page: Page, seventy: linkwise.Plan) -> None:
    (rank,) = page.memory
    assert sum(s.bytes for s in rank.states if s.in_budget) == pytest.approx(rank.budget_bytes, abs=16)  # rounding
    assert rank.tightest
    mlp = next(s for s in rank.states if s.name == "weights.mlp")
    # By hand: 80 layers x 3 matrices x 8,192 x 28,672 x 2 B over 4 ranks.
    assert mlp.bytes == 80 * 3 * 8192 * 28672 * 2 // 4
    assert mlp.path == "weights.mlp.rank0"


def test_every_layout_of_the_search_is_there(page: Page, seventy: linkwise.Plan) -> None:
    assert len(page.layouts) + page.layouts_left_out == seventy.considered
    first = page.layouts[0]
    assert (first.verdict, first.layout) == ("chosen", str(seventy.layout))
    _, user, device = next(p for p in first.points if p[0] == seventy.chosen.point.batch)
    assert user == pytest.approx(1 / value(page, "tpot_s"), rel=1e-4)
    assert device == pytest.approx(value(page, "rate_per_s") * 500 / 4, rel=1e-4)
    reasons = {str(r.layout): r.shortfall.reason for r in seventy.rejected}
    rejected = [one for one in page.layouts if one.verdict == "rejected"]
    assert rejected
    assert all(one.reason == reasons[one.layout] for one in rejected)
    runs = {one.resource for one in rejected if one.points}
    assert runs <= {"rate", "ttft", "tpot"}


def test_a_layout_that_was_given_is_shown_though_no_search_finds_it() -> None:
    plan = plan_of(
        "llama-3.3-70b", "2x4xh100-sxm", engine="vllm@0.31", tp=4, pp=2, cp=1, sequence_sharded=True
    )  # fmt: skip
    found, _ = layouts(plan)
    assert found[0].layout == str(plan.layout)
    assert found[0].points


def test_an_edited_file_is_said(seventy: linkwise.Plan) -> None:
    edited = msgspec.structs.replace(seventy, figures=seventy.figures | {"tpot_s": 0.001})
    (note,) = page_data(edited).notes
    assert "tpot_s" in note
    assert note.startswith("1 figures")


def findings(**where) -> Findings:
    one = Finding(class_="late_rank", summary="late", original_fault=Where(**where), confidence=0.9)
    return Findings(findings=(one,))


@pytest.mark.parametrize(
    ("where", "devices", "links", "nodes"),
    [
        ({"ranks": (2,), "unit": "replica-1"}, (6,), (), ()),
        ({"ranks": (6,)}, (6,), (), ()),  # without a unit ranks count through all replicas
        ({"ranks": (9,)}, (), (), ()),
        ({"ranks": (1,), "unit": "replica-7"}, (), (), ()),
        ({"link": "n0.nic3>rail3"}, (), ("n0.nic3>rail3",), ()),
        ({"link": "mlx5_9", "host": "a"}, (), (), ()),
    ],
)
def test_where_a_fault_is(seventy: linkwise.Plan, where, devices, links, nodes) -> None:
    (found,) = faults(findings(**where), seventy)
    assert (found.devices, found.links, found.nodes) == (devices, links, nodes)


def test_a_host_is_the_node_its_ranks_are_on(seventy: linkwise.Plan) -> None:
    from linkwise.diagnose.types import Row

    rows = tuple(Row(rank=rank, unit="replica-1", host="box") for rank in range(4))
    (found,) = faults(msgspec.structs.replace(findings(host="box"), ranks=rows), seventy)
    assert found.nodes == (1,)


def test_a_marked_node_is_drawn_for_itself(seventy: linkwise.Plan) -> None:
    page = page_data(seventy, findings=findings(ranks=(2,), unit="replica-1"))
    assert [node.nodes for node in page.picture.nodes] == [(1,), (0,)]


def test_files_are_known_by_their_content(seventy: linkwise.Plan, tmp_path) -> None:
    plan, handoff, found = (tmp_path / name for name in ("plan.json", "a", "b"))
    linkwise.save(seventy, plan)
    made = linkwise.handoff("llama-3.3-70b", "2x4xh100-sxm", prompt=8192, prefill_tp=4, decode_tp=4, rate="2/s")
    linkwise.save(made, handoff)
    linkwise.save(findings(ranks=(0,)), found)
    page = page_of(plan, handoff, found)
    assert page.steps == ("prefill", "decode", "mixed", "handoff")
    assert len(page.faults) == 1
    assert value(page, "handoff.transfer_s") == made.figures["transfer_s"]
    load = page.picture.loads[-1]
    assert (load.step, load.over_s) == ("handoff", 0.5)
    # By hand: 8,192 tokens x 80 layers x 2 x 8 heads x 128 x 2 B, a quarter a rank, packets' headers on top.
    payload = 8192 * 80 * 2 * 8 * 128 * 2 / 4
    wire = next(one for one in load.carried if ".nic" in one.like and "rail" in one.like)
    assert payload < wire.bytes < payload * 1.03
    assert len(page.picture.nodes) == 2  # one sends, the other receives
    with pytest.raises(InputError, match="2 files of a handoff"):
        page_of(plan, handoff, handoff)
    with pytest.raises(InputError, match="no such file"):
        page_of(plan, tmp_path / "none")


def test_a_handoff_of_something_else_is_refused(seventy: linkwise.Plan) -> None:
    other = linkwise.handoff("llama-3.1-8b", "2x4xh100-sxm", prompt=512, prefill_tp=1, decode_tp=1, rate="1/s")
    with pytest.raises(InputError, match=r"that of llama-3\.3-70b"):
        page_data(seventy, handoff=other)
    elsewhere = linkwise.handoff("llama-3.3-70b", "4x8xh100-sxm", prompt=512, prefill_tp=8, decode_tp=8, rate="1/s")
    with pytest.raises(InputError, match="on the plan's cluster"):
        page_data(seventy, handoff=elsewhere)


def test_traffic_at_another_placement_is_one_more_step(seventy: linkwise.Plan, tmp_path) -> None:
    plan, other = tmp_path / "plan.json", tmp_path / "swapped.json"
    linkwise.save(seventy, plan)
    across = linkwise.traffic(seventy, placement=(0, 1, 4, 5, 2, 3, 6, 7))  # each tensor group over both nodes
    linkwise.save(across, other)
    page = page_of(plan, other)
    assert page.steps[-1] == "decode of swapped.json"
    load = page.picture.loads[-1]
    assert load.busiest == across.busiest_by_time
    places = {link.name: place for link, place in zip(page.picture.links, load.of, strict=True)}
    for link in across.links:
        if link.name in places:
            assert load.carried[places[link.name]].bytes == pytest.approx(link.bytes)
    elsewhere = linkwise.traffic(plan_of("llama-3.3-70b", "4x8xh100-sxm", tp=8, pp=2, cp=1))
    linkwise.save(elsewhere, other)
    with pytest.raises(InputError, match="on the plan's cluster"):
        page_of(plan, other)


def test_the_page_is_json_that_comes_back(page: Page) -> None:
    text = msgspec.json.encode(page)
    assert json.loads(text)["schema"] == "linkwise.page/1"
    assert msgspec.json.encode(msgspec.json.decode(text, type=Page)) == text


def test_equal_chains_are_written_once() -> None:
    writer = Writer()
    plan = plan_of_small()
    chain = explain(plan, "tpot_s").chain
    assert writer.chain(chain) == writer.chain(chain) == 0
    assert len(writer.book().chains) == 1


def plan_of_small() -> linkwise.Plan:
    from linkwise.model.read import from_config

    return plan_of(from_config(LLAMA, name="small", source="hand-made"), "1x4xh100-sxm", tp=2, isl=64, osl=16)

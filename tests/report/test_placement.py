"""`place` as people meet it: command, call and screen, and plans that use it. Expected words and figures by hand."""

import json
import re

import pytest

import linkwise
from linkwise.cli import main
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.report.placement import ranks, screen

BOX = """schema: linkwise.cluster/1
name: four cards, bridges on (0,2) and (1,3)
accelerator: a40-bridged
devices_per_node: 4
island_size: 2
detail:
  islands: [0, 1, 0, 1]
  strands:
    - {a: 0, b: 2, spec_Bps: 56.25e+9}
    - {a: 1, b: 3, spec_Bps: 56.25e+9}
"""
WORDS = ("llama-3.1-8b", "--tp", "2", "--pp", "2")


@pytest.fixture
def box(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "box.yaml"
    path.write_text(BOX)
    return str(path)


def test_the_screen_says_order_gain_and_proof(box, capsys):
    assert main(["place", *WORDS, "--on", box]) == 0
    lines = re.sub(r"\n {11}(?=\S)", " ", capsys.readouterr().out).splitlines()  # long lines are wrapped
    assert lines[0] == "1 replica of pp2 x tp2 on four cards, bridges on (0,2) and (1,3)"
    assert lines[1] == "order      not the naive order: optimal (exhaustive up to symmetry)"
    assert "naive order" in lines[2]
    assert "worst found" in lines[2]
    assert any("tp         node to island" in line for line in lines)
    assert "start      replica 0 node 0: CUDA_VISIBLE_DEVICES=0,2,1,3" in lines


def test_a_plan_takes_the_order_and_its_figures_agree(box):
    made = linkwise.plan("llama-3.1-8b", on=box, tp=2, pp=2)
    assert made.rank_grid == ((0, 2, 1, 3),)
    assert "ranks 0-3 on devices 0, 2, 1, 3" in repr(made)  # not the naive order, so it is said
    assert made.chosen.tier == "island"
    assert made.figures["tpot_s"] == pytest.approx(made.chosen.point.tpot_s, rel=1e-12)
    assert any("not on devices in order" in note for note in made.notes)
    for path in ("tpot_s", "decode.attn.out.time_s", "decode.comm_s"):
        assert linkwise.explain(made, path).chain.result.value == pytest.approx(made.figures[path], rel=1e-9)


def test_a_plan_keeps_naive_order_where_that_is_best():
    made = linkwise.plan("llama-3.1-8b", on="2x8xh100-sxm", tp=8, pp=2)
    assert made.rank_grid == (tuple(range(16)),)
    found = linkwise.place(made)
    assert found.naive
    assert found.gain == 1.0
    assert "naive order: optimal" in repr(found)


def test_a_placed_plan_is_placed_the_same_way_again(box, tmp_path):
    made = linkwise.plan("llama-3.1-8b", on=box, tp=2, pp=2)
    linkwise.save(made, tmp_path / "plan.json")
    from_file, from_words = linkwise.place(tmp_path / "plan.json"), linkwise.place("llama-3.1-8b", box, tp=2, pp=2)
    assert from_file == from_words
    assert from_file.rank_grid == made.rank_grid
    assert from_file.gain > 1.5


def test_files_alone_are_printed_alone(box, capsys):
    assert main(["place", *WORDS, "--on", box, "--as", "slurm", "--hosts", "gpu7"]) == 0
    assert capsys.readouterr().out == "gpu7\n" * 4


def test_json_is_the_value(box, capsys):
    assert main(["place", *WORDS, "--on", box, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["schema"] == "linkwise.placement/1"
    assert value["rank_grid"] == [[0, 2, 1, 3]]


def test_every_rank_is_listed_with_its_place(box):
    found = linkwise.place("llama-3.1-8b", box, tp=2, pp=2)
    (table,) = ranks(found)
    assert [str(cell) for cell in table.columns[-3].cells] == ["0", "2", "1", "3"]


def test_the_handoff_counts_when_asked():
    with_it = linkwise.place("llama-3.3-70b", "2x8xh100-sxm", tp=4, handoff=True)
    assert "kv.handoff" in {axis.axis for axis in with_it.axes}
    assert with_it.seconds > linkwise.place("llama-3.3-70b", "2x8xh100-sxm", tp=4).seconds


def test_no_plan_is_a_negative_answer(capsys):
    assert main(["place", "llama-3.1-405b", "--on", "1xrtx-4090"]) == 1
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["no-such-plan.json"],
        ["llama-3.1-8b", "--on", "2xh100-sxm", "--as", "pdf"],
        ["llama-3.1-8b", "--on", "2xh100-sxm", "--replica", "1"],
        ["llama-3.1-8b", "--on", "2xh100-sxm", "--as", "cuda", "--json"],
        ["plan:", "--tp", "2"],
    ],
)
def test_bad_words_are_exit_code_2(words, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(["place", *words]) == 2
    assert capsys.readouterr().err.startswith("linkwise: error: ")


def test_settings_beside_a_plan_are_refused():
    made = linkwise.plan("llama-3.1-8b", on="1xh100-sxm")
    with pytest.raises(InputError, match="tp beside a plan"):
        linkwise.place(made, tp=2)
    assert linkwise.place(made).layout == Layout()
    assert screen(linkwise.place(made))[0] == "1 replica of tp1 on 1xh100-sxm"

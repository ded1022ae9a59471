"""`linkwise report` from the shell: what it writes, and what it refuses."""

from pathlib import Path

import msgspec
import pytest

import linkwise
from linkwise import cli
from linkwise.report.page.types import Page


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    linkwise.save(linkwise.plan("llama-3.1-8b", on="1x2xh100-sxm", tp=2, isl=100, osl=50), path)
    return path


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_data_alone(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(plan), "--json"]) == 0
    page = msgspec.json.decode(capsys.readouterr().out, type=Page)
    assert page.title.startswith("llama-3.1-8b")
    assert not list(tmp_path.iterdir())


def test_the_page(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("vl_convert", reason="the report extra is not installed")
    to = tmp_path / "report.html"
    assert cli.main(["report", str(plan), "-o", str(to)]) == 0
    assert to.read_text().startswith("<!doctype html>")
    assert to.stat().st_size < 2_000_000
    assert cli.main(["report", str(plan)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("report.html: ")
    both = tmp_path / "both.html"
    assert cli.main(["report", str(plan), "-o", str(both), "--json"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out, type=Page).title in both.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none.json"], "no such file"),
        (["PLAN", "none"], "no such file or folder"),
        (["PLAN", "-o", "no/such/folder/x.html", "--json"], "cannot be written"),
        (["PLAN", "-o", "-"], "--json for its data"),
        (["PLAN", "EMPTY"], "no files in it"),
    ],
)
def test_refusals(plan: Path, words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    given = [{"PLAN": str(plan), "EMPTY": "empty"}.get(word, word) for word in words]
    assert cli.main(["report", *given]) == 2
    assert said in capsys.readouterr().err


def test_a_port_that_is_none(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ui", str(plan), "--port", "70000"]) == 2
    assert "--port" in capsys.readouterr().err


WATCHDOG = (
    "[rank{rank}]:[E1029 12:00:0{rank}.000000000 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective"
    " operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000) ran for"
    " 600032 milliseconds before timing out.\n"
)


def test_evidence_without_calls_is_diagnosed_and_said(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "ev"
    folder.mkdir()
    (folder / "rank1.log").write_text(WATCHDOG.format(rank=1))
    (folder / "notes.bin").write_bytes(b"\0\1\2")
    assert cli.main(["report", str(plan), "--json"]) == 0
    bare = msgspec.json.decode(capsys.readouterr().out, type=Page)
    assert cli.main(["report", str(plan), str(folder), "--json"]) == 0
    printed, said = capsys.readouterr()
    page = msgspec.json.decode(printed, type=Page)
    found = linkwise.diagnose(folder, plan=plan).findings
    assert found
    assert [one.summary for one in page.faults] == [one.summary for one in found]
    assert "no calls in it, so nothing is held against the plan" in said
    assert f"was diagnosed for this page: {len(found)} finding" in said
    assert "not used: " in said and "notes.bin" in said
    assert all(f"beside the plan: {line}" in said for line in page.used)
    assert bare.used == ()


def test_what_stands_beside_is_named(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rank1.log").write_text(WATCHDOG.format(rank=1))
    linkwise.save(linkwise.diagnose(tmp_path / "rank1.log"), tmp_path / "found.json")
    assert cli.main(["report", str(plan), str(tmp_path / "found.json"), "--json"]) == 0
    assert "beside the plan: found.json: findings" in capsys.readouterr().err


def test_a_handoff_of_another_workload_or_cluster_is_not_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, pair, far = (tmp_path / name for name in ("own.json", "pair.json", "far.json"))
    made = linkwise.plan("llama-3.1-8b", on="1x4xh100-sxm", tp=2, isl=1000, osl=100, rate="2/s")
    linkwise.save(made, own)
    sides = {"prefill_tp": 1, "decode_tp": 1}
    linkwise.save(
        linkwise.handoff(
            "llama-3.1-8b", "1x4xh100-sxm", prompt=512, engine="sglang", rate="3/s", osl=100, kv_dtype="fp8", **sides
        ),
        pair,
    )
    assert cli.main(["report", str(own), str(pair), "--json"]) == 0
    printed, said = capsys.readouterr()
    (used,) = msgspec.json.decode(printed, type=Page).used
    assert f"beside the plan: {used}" in said
    assert [line.strip() for line in used.split(";")][1:] == [
        "it is for prompts of 512 tokens, the plan for prompts of 1000 tokens",
        "it is for KV in float8_e4m3, the plan for KV in bfloat16",
        "it is for 3 requests/s, the plan for 2 requests/s",
    ]
    assert used.startswith("pair.json: handoff: it is for sglang ") and "the plan for vllm " in used
    # Twice the nodes: every link of the pair is one of the plan's too, and the plan's figures are of another machine.
    linkwise.save(linkwise.handoff("llama-3.1-8b", "2x4xh100-sxm", prompt=1000, rate="2/s", osl=100, **sides), far)
    assert cli.main(["report", str(own), str(far), "--json"]) == 2
    assert "a handoff on 2x4xh100-sxm, 8 devices" in capsys.readouterr().err
    linkwise.save(linkwise.handoff("llama-3.1-8b", "1x4xh100-sxm", prompt=1000, rate="2/s", osl=100, **sides), pair)
    assert cli.main(["report", str(own), str(pair), "--json"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out, type=Page).used == ("pair.json: handoff",)

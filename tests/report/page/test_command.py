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


def test_the_data_alone(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = tmp_path / "page.json"
    assert cli.main(["report", str(plan), "-o", str(to), "--json"]) == 0
    page = msgspec.json.decode(to.read_bytes(), type=Page)
    assert page.title in capsys.readouterr().out


def test_the_page(plan: Path, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="the report extra is not installed")
    to = tmp_path / "report.html"
    assert cli.main(["report", str(plan), "-o", str(to)]) == 0
    assert to.read_text().startswith("<!doctype html>")
    assert to.stat().st_size < 2_000_000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none.json"], "no such file"),
        (["PLAN", "none"], "no such file or folder"),
        (["PLAN", "-o", "no/such/folder/x.html", "--json"], "cannot be written"),
        (["PLAN", "EMPTY"], "no files in it"),
    ],
)
def test_refusals(
    plan: Path, words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
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
    bare, beside = tmp_path / "bare.json", tmp_path / "beside.json"
    assert cli.main(["report", str(plan), "-o", str(bare), "--json"]) == 0
    capsys.readouterr()
    assert cli.main(["report", str(plan), str(folder), "-o", str(beside), "--json"]) == 0
    said = capsys.readouterr().err
    page = msgspec.json.decode(beside.read_bytes(), type=Page)
    found = linkwise.diagnose(folder, plan=plan).findings
    assert found
    assert [one.summary for one in page.faults] == [one.summary for one in found]
    assert "no calls in it, so nothing is held against the plan" in said
    assert f"was diagnosed for this page: {len(found)} finding" in said
    assert "not used: " in said and "notes.bin" in said
    assert all(f"beside the plan: {line}" in said for line in page.used)
    assert msgspec.json.decode(bare.read_bytes(), type=Page).used == ()


def test_what_stands_beside_is_named(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rank1.log").write_text(WATCHDOG.format(rank=1))
    linkwise.save(linkwise.diagnose(tmp_path / "rank1.log"), tmp_path / "found.json")
    to = tmp_path / "page.json"
    assert cli.main(["report", str(plan), str(tmp_path / "found.json"), "-o", str(to), "--json"]) == 0
    assert "beside the plan: found.json: findings" in capsys.readouterr().err

"""The commands as people use them. Figures asserted here are hand calculations from the models' published shapes, the
devices' reported memory, or the brief's worked chains; each says which."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.small import LLAMA

from linkwise import api, cli

PLAN_70B = "plan llama-3.3-70b --on 2x4xh100-sxm --isl 4000 --osl 500 --rate 3/s --ttft 1s --tpot 40ms"


class Ran(NamedTuple):
    code: int
    out: str
    err: str


class Shell:
    """`linkwise` in this process, in a folder and with a cache of its own."""

    def __init__(self, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self._capsys, self.folder = capsys, folder

    def __call__(self, line: str, *more: str) -> Ran:
        code = cli.main([*line.split(), *more])
        out, err = self._capsys.readouterr()
        return Ran(code, out, err)


@pytest.fixture
def linkwise(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return Shell(capsys, tmp_path)


def test_a_model_that_does_not_fit(linkwise: Shell) -> None:
    ran = linkwise("fit llama-3.1-405b --on 8xh100-sxm")
    assert (ran.code, ran.err) == (1, "")
    first, verdict, nearest, why, *_ = ran.out.split("\n")
    # The brief's chain fit_405b: 811.7 GB in bf16, 101.5 GB a rank, a budget of 78.2 GB.
    assert "405.9 B parameters, bf16, 811.7 GB" in first
    assert verdict.startswith("does not fit: weights.")
    assert "tp8 needs 101.5 GB on each rank, the budget is 78.2 GB (79.18 GiB x 0.92): short by 23.3 GB" in verdict
    assert nearest.startswith("nearest: fp8 weights fit")
    assert "a second node: pp2 x tp8" in nearest
    assert why.startswith("why it cannot be otherwise: linkwise explain fit:weights.rank")


def test_the_figure_of_the_verdict_has_its_chain(linkwise: Shell) -> None:
    line = linkwise("fit llama-3.1-405b --on 8xh100-sxm").out.split("\n")[3]
    ran = linkwise(line.partition("linkwise ")[2])
    assert ran.code == 0
    assert "101.5 GB" in ran.out
    assert "layout" in ran.out, "inputs have a source"


def test_a_folder_with_a_config_and_degrees(linkwise: Shell) -> None:
    (linkwise.folder / "m").mkdir()
    (linkwise.folder / "m" / "config.json").write_text(json.dumps(LLAMA))
    ran = linkwise("fit ./m/ --on 8xh100-sxm --tp 4 --pp 2 --kv-dtype fp8 --ranks")
    assert ran.code == 0
    assert "fits: pp2 x tp4." in ran.out
    assert "kv_dtype fp8" in ran.out
    assert "memory by rank class" in ran.out
    assert "stage" in ran.out


def test_json_is_the_value_and_nothing_else(linkwise: Shell) -> None:
    ran = linkwise("fit llama-3.1-8b --on 1xh100-sxm --json")
    assert (ran.code, ran.err) == (0, "")
    value = json.loads(ran.out)
    assert (value["schema"], value["fits"], value["layout"]["tp"]) == ("linkwise.fit/1", True, 1)
    (linkwise.folder / "fit.json").write_text(ran.out)
    assert "weights.rank0" in linkwise("explain fit.json").out
    assert linkwise("explain fit.json weights.rank0").code == 0


def test_a_plan_its_file_and_a_chain(linkwise: Shell) -> None:
    ran = linkwise(PLAN_70B, "-o", "plan.json")
    assert (ran.code, ran.err) == (0, "")
    # The brief's two_tp4_over_tp8: tp4 inside each node, the second node a replica, with its costs.
    assert "2 replicas of tp4, each inside one node" in ran.out
    assert "node 0: replica 0 ranks 0-3 | node 1: replica 1 ranks 0-3" in ran.out
    assert "full sharded copy of the weights" in ran.out
    assert "separate KV" in ran.out
    assert "between replicas only requests are routed" in ran.out
    assert "break-even" in ran.out
    assert "times rest on vllm on published points" in ran.out
    assert "in 8 of 10 cases TTFT" in " ".join(ran.out.split())
    assert "rejected" in ran.out
    assert "runner-up" in ran.out
    figure = linkwise("explain plan.json decode.all_reduce.sent_bytes")
    assert figure.code == 0
    assert figure.out.startswith("decode.all_reduce.sent_bytes = ")
    assert "textbook" in figure.out
    assert linkwise("explain plan:decode.all_reduce.sent_bytes").out == figure.out
    near = linkwise("explain plan.json decode.all_reduce.sent_byte")
    assert near.code == 2
    assert "Near: decode.all_reduce.sent_bytes" in near.err


def test_details_on_demand(linkwise: Shell) -> None:
    ran = linkwise(PLAN_70B, "--ranks", "--links", "--rejected")
    assert "where each rank goes" in ran.out
    assert "decode step" in ran.out
    assert "rejected layouts" in ran.out
    links = ran.out.partition("sent by one rank in a step")[2]
    assert "nvlink4" in links
    assert "nic" not in links.split("\n")[2], "a tensor group inside a node sends nothing over NICs"


def test_no_plan_is_a_negative_answer(linkwise: Shell) -> None:
    ran = linkwise("plan llama-3.3-70b --on 1x4xh100-sxm --tpot 1ms", "-o", "plan.json")
    assert ran.code == 1
    assert "no plan" in ran.out
    assert "1 ms" in ran.out or "1.0 ms" in ran.out
    assert "no plan to write" in ran.err
    assert not (linkwise.folder / "plan.json").exists()


def test_compare(linkwise: Shell) -> None:
    linkwise("plan llama-3.3-70b --on 2x4xh100-sxm --tp 4 --pp 1 --cp 1 -o a.json")
    linkwise("plan llama-3.3-70b --on 2x4xh100-sxm --tp 8 --pp 1 --cp 1 -o b.json")
    ran = linkwise("compare a.json b.json")
    assert ran.code == 0
    for words in (
        "memory of the tightest rank",
        "sent by a rank, decode step",
        "time, vllm on published points",
        "one device fails",
    ):
        assert words in ran.out
    rows = {row["name"]: row for row in json.loads(linkwise("compare a.json b.json --json").out)["rows"]}
    assert (rows["devices that stop"]["a"], rows["devices that stop"]["b"]) == (4, 8)
    assert (rows["share of the capacity lost"]["a"], rows["share of the capacity lost"]["b"]) == (0.5, 1.0)
    # 141.1 GB over 4 and over 8 ranks (norms are whole on each).
    assert rows["weights"]["a"] == pytest.approx(141.1e9 / 4, rel=1e-3)
    assert rows["weights"]["b"] == pytest.approx(141.1e9 / 8, rel=1e-3)


def test_a_plan_from_the_command_that_runs_today(linkwise: Shell) -> None:
    command = "vllm serve meta-llama/Llama-3.3-70B-Instruct -tp 4 --max-model-len 8192 --kv-cache-dtype fp8"
    ran = linkwise("plan --on 2x4xh100-sxm --json --from-command", command)
    assert ran.code == 0, ran.err
    value = json.loads(ran.out)
    assert value["layout"] == {
        "tp": 4,
        "pp": 1,
        "cp": 1,
        "dp_attn": 1,
        "dcp": 1,
        "ep": 1,
        "sequence_sharded": False,
    }
    assert value["replicas"] == 1
    assert (value["options"]["max_model_len"], value["options"]["kv_dtype"]) == (8192, "float8_e4m3")


def test_handoff(linkwise: Shell) -> None:
    line = "handoff llama-3.3-70b --prompt 8192 --rate 20/s --prefill-tp 4 --decode-tp 2 --on 2x8xh100-sxm"
    ran = linkwise(line, "--ranks", "--links")
    # The route keeps up, but 16 devices hold at most 3 prefill groups beside a decode group. At 20 prompts a second and
    # 0.9 of their time, 20 x a prompt's time / 0.9 groups are busy; the next whole number is needed.
    assert ran.code == 1
    assert "route      keeps up" in ran.out
    assert "pools      do not serve the rate" in ran.out
    prompt = re.search(r"prefill (\d+) ms", ran.out)
    assert prompt is not None
    needed = math.ceil(20 * int(prompt[1]) / 1e3 / 0.9)
    assert f"the prefill pool is short by {needed - 3} groups (3 of {needed}" in " ".join(ran.out.split())
    assert linkwise(line.replace("20/s", "0.5/s")).code == 0
    # The brief's kv_transfer: 327,680 B a token, 2,684,354,560 B for 8,192 tokens.
    assert "2.68 GB of KV a request (327,680 B a token)" in ran.out
    assert "verdict" in ran.out
    for term in ("interference", "device fit", "transfer", "failure", "capacity"):
        assert term in ran.out
    assert json.loads(linkwise(line, "--json").out)["kv_bytes"] == 2_684_354_560
    chain = linkwise("explain handoff:transfer_s")
    assert chain.code == 0
    assert chain.out.startswith("transfer_s = ")
    term = linkwise("explain handoff:verdict.capacity")
    assert term.code == 0
    assert term.out.startswith("verdict.capacity = ")
    assert "Near: transfer_s" in linkwise("explain handoff:transfer").err


def test_a_worked_calculation(linkwise: Shell) -> None:
    ran = linkwise("explain seed:tp_all_reduce_bytes")
    assert ran.code == 0
    assert "4,587,520 B" in ran.out  # the brief's figure
    assert "seed:kv_transfer" in linkwise("explain seed:").out
    chain = json.loads(linkwise("explain seed:tp_all_reduce_bytes sent_bytes_per_token_per_gpu --json").out)["chain"]
    assert chain["steps"][-1]["value"] == 4_587_520


@pytest.mark.parametrize(
    ("command", "words"),
    [("models", "deepseek-ai/DeepSeek-V3"), ("hardware", "h100-sxm"), ("engines", "gpu_memory_utilization")],
)
def test_what_is_known_has_sources(linkwise: Shell, command: str, words: str) -> None:
    ran = linkwise(command)
    assert ran.code == 0
    assert words in ran.out
    assert "source" in ran.out or "facts from" in ran.out
    assert len(json.loads(linkwise(f"{command} --json").out)) > 3


def test_a_cache_that_cannot_be_written_is_a_note(linkwise: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    (linkwise.folder / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(linkwise.folder / "file"))
    ran = linkwise("fit llama-3.1-8b --on 1xh100-sxm")
    assert ran.code == 0
    assert ran.err.startswith("linkwise: note: this result is not kept")
    assert ran.err.count("\n") == 1


def test_the_kept_result_is_the_users_alone(linkwise: Shell) -> None:
    linkwise("fit llama-3.1-8b --on 1xh100-sxm")
    kept = linkwise.folder / "cache" / "linkwise" / "last-fit.json"
    assert kept.stat().st_mode & 0o777 == 0o600


def test_a_bug_of_ours_is_one_line(linkwise: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr(api, "fit", broken)
    ran = linkwise("fit llama-3.1-8b --on 1xh100-sxm")
    assert ran.code == 70
    assert ran.err == (
        "linkwise: internal error: ZeroDivisionError: division by zero. This is a bug: --debug shows where\n"
    )
    assert "Traceback" in linkwise("fit llama-3.1-8b --on 1xh100-sxm --debug").err


def test_interrupted(linkwise: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "fit", stopped)
    assert linkwise("fit llama-3.1-8b --on 1xh100-sxm").code == 130


def test_help_and_version(linkwise: Shell) -> None:
    assert linkwise("--version").out.startswith("linkwise ")
    for command in ("", "fit", "plan", "explain", "compare", "handoff", "models", "hardware", "engines"):
        ran = linkwise(f"{command} --help")
        assert ran.code == 0
        assert "Usage" in ran.out


def _process(words: list[str], **more: str) -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | {"NO_COLOR": "1", "COLUMNS": "20"} | more
    return subprocess.run([sys.executable, "-m", "linkwise", *words], capture_output=True, env=environment, check=False)


def test_a_whole_process(tmp_path: Path) -> None:
    """Exit code, plain text and untruncated lines, as a script sees them."""
    ran = _process(["fit", "llama-3.1-405b", "--on", "8xh100-sxm"], XDG_CACHE_HOME=str(tmp_path))
    assert ran.returncode == 1
    assert b"\x1b" not in ran.stdout
    assert b"79.18 GiB x 0.92" in ran.stdout
    assert ran.stderr == b""


def test_a_terminal_without_unicode(tmp_path: Path) -> None:
    ran = _process(
        ["fit", "llama-3.1-8b", "--on", "1xh100-sxm"], XDG_CACHE_HOME=str(tmp_path), PYTHONIOENCODING="ascii"
    )
    assert ran.returncode == 0, ran.stderr


def test_a_reader_that_went_away_is_no_error(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as gone:
        ran = subprocess.run(
            [sys.executable, "-m", "linkwise", "hardware"], stdout=gone, stderr=subprocess.PIPE, check=False
        )
    assert (ran.returncode, ran.stderr) == (0, b"")


def _shell(line: str, tmp_path: Path) -> tuple[int, str, str]:
    """A line of a real shell: exit code of its first command, stdout, stderr."""
    command = line.replace("linkwise", f"{sys.executable} -m linkwise")
    ran = subprocess.run(
        ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)},
        check=False,
    )
    return ran.returncode, ran.stdout, ran.stderr


@pytest.mark.parametrize("words", ["hardware --json", "plan --help", "--version"])
@pytest.mark.parametrize(
    ("where", "code", "error"),
    [
        ("> /dev/full", 74, "linkwise: error: cannot write output: no space left on device\n"),
        (">&-", 74, "linkwise: error: cannot write output: standard output is closed\n"),
        ("| true", 0, ""),
    ],
)
def test_output_that_cannot_be_written(tmp_path: Path, words: str, where: str, code: int, error: str) -> None:
    assert _shell(f"linkwise {words} {where}", tmp_path) == (code, "", error)


@pytest.mark.parametrize("where", ["2>&-", "2> /dev/full"])
def test_errors_never_go_to_standard_output(tmp_path: Path, where: str) -> None:
    assert _shell(f"linkwise fit absent/model/here --on 1xh100-sxm {where}", tmp_path) == (2, "", "")


def test_an_interrupt_while_loading_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    ran = _process(["hardware"], PYTHONPATH=str(tmp_path))
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, b"", b"")


def test_a_kept_result_without_its_colon_is_told(linkwise: Shell) -> None:
    ran = linkwise("explain fit kv.rank0")
    assert ran.code == 2 and "the last result: fit:kv.rank0" in ran.err


def test_a_handoff_in_a_plans_place_is_called_one(linkwise: Shell) -> None:
    linkwise("handoff llama-3.1-8b --prompt 2048 --rate 2/s --prefill-tp 1 --decode-tp 1 --on 8xh100-sxm -o ho.json")
    ran = linkwise("report ho.json -o page.html")
    assert ran.code == 2 and "ho.json: is no plan but a handoff, which goes beside one" in ran.err


def test_one_replicas_lists_say_which_it_is(linkwise: Shell) -> None:
    assert linkwise("plan llama-3.1-8b --on 4xh100-sxm --tp 2 -o plan.json --replicas 2").code == 0
    first, second = linkwise("place plan.json --as cuda"), linkwise("place plan.json --as cuda --replica 1")
    assert first.err == "linkwise: note: replica 0 of 2; --replica N prints another\n" and second.err == ""
    assert first.out == linkwise("place plan.json --as cuda --replica 0").out != second.out


def test_the_kept_result_is_a_file_of_its_kind(linkwise: Shell) -> None:
    assert linkwise("fit llama-3.1-8b --on 1xh100-sxm").code == 0
    assert linkwise("explain fit: weights.rank0").out == linkwise("explain fit:weights.rank0").out != ""
    kept = linkwise.folder / "cache" / "linkwise" / "last-fit.json"
    linkwise("plan llama-3.1-8b --on 1xh100-sxm -o plan.json")
    kept.write_bytes((linkwise.folder / "plan.json").read_bytes())
    ran = linkwise("explain fit:weights.rank0")
    assert ran.code == 2
    assert "last-fit.json: holds a Plan; expected what `linkwise fit` keeps" in ran.err


def test_a_pipe_in_the_cache_is_a_note(linkwise: Shell) -> None:
    kept = linkwise.folder / "cache" / "linkwise" / "last-fit.json"
    kept.parent.mkdir(parents=True)
    os.mkfifo(kept)
    ran = linkwise("fit llama-3.1-8b --on 1xh100-sxm")
    assert ran.code == 0
    assert "this result is not kept" in ran.err
    assert "not a regular file" in ran.err
    assert "not a regular file" in linkwise("explain fit:").err


def test_no_plan_is_a_file_too(linkwise: Shell) -> None:
    ran = linkwise("plan llama-3.3-70b --on 1x4xh100-sxm --tpot 1ms --json")
    (linkwise.folder / "n.json").write_text(ran.out)
    assert json.loads(ran.out)["schema"] == "linkwise.noplan/1"
    told = linkwise("explain n.json")
    assert told.code == 2
    assert "there is no plan to explain" in told.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--as torchrun --json", "--json with --as; expected one of them (--json would change nothing)"),
        ("--as torchrun --ranks", "--ranks with --as; expected one of them (--ranks would change nothing)"),
        ("--replica 0", "--replica without --as; expected --as with it"),
        ("--hosts a", "--hosts without --as; expected --as with it"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused_by_name(linkwise: Shell, words: str, said: str) -> None:
    ran = linkwise(f"place plan.json {words}")
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
